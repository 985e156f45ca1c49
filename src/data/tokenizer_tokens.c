/* SPDX-License-Identifier: Apache-2.0 */
/* The list of added tokens: a token that the vocabulary has keeps its id, another takes the next
 * one after all that are there; what a file says of its id is not asked, as in the package.
 *
 * Called while a tokenizer is opened; the list is const afterwards. Finding them in text is
 * tokenizer_added.c's.
 */
#include "data/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static uint32_t slot_of(const ds_tokenizer *tok, const char *content, size_t n)
{
    uint32_t i = (uint32_t)XXH3_64bits(content, n) & tok->added_mask;
    while (tok->added_slots[i] != DSI_NO_ID) {
        const dsi_added_token *token = &tok->added[tok->added_slots[i]];
        if (token->n_content == n && memcmp(token->content, content, n) == 0) {
            break;
        }
        i = (i + 1) & tok->added_mask;
    }
    return i;
}

uint32_t dsi_tokens_find(const ds_tokenizer *tok, const char *content, size_t n)
{
    return tok->added_slots != NULL ? tok->added_slots[slot_of(tok, content, n)] : DSI_NO_ID;
}

/* Room for one more; the table of slots is at most half full. */
static bool grow(ds_tokenizer *tok)
{
    if (tok->n_added < tok->added_room) {
        return true;
    }
    const uint32_t room = tok->added_room == 0 ? 16 : tok->added_room * 2;
    dsi_added_token *added = realloc(tok->added, (size_t)room * sizeof *added);
    if (added == NULL) {
        return false;
    }
    tok->added = added;
    uint32_t *slots = malloc((size_t)room * 2 * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    memset(slots, 0xFF, (size_t)room * 2 * sizeof *slots);
    free(tok->added_slots);
    tok->added_slots = slots;
    tok->added_mask = room * 2 - 1;
    tok->added_room = room;
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        slots[slot_of(tok, added[i].content, added[i].n_content)] = i;
    }
    return true;
}

void dsi_tokens_begin(ds_tokenizer *tok)
{
    tok->next_added = tok->vocab.n_tokens;
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        const uint32_t after = tok->added[i].id + 1;
        tok->next_added = after > tok->next_added ? after : tok->next_added;
    }
}

static ds_status add_new(ds_tokenizer *tok, const char *path, const dsi_added_token *token)
{
    dsi_added_token made = *token;
    made.id = dsi_vocab_find(&tok->vocab, token->content, token->n_content);
    const bool known = made.id != DSI_NO_ID;
    made.id = known ? made.id : tok->next_added++;
    if (made.id >= DSI_TOK_MAX_ID) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "%s: more than %d tokens", path, DSI_TOK_MAX_ID);
    }
    /* Where the vocabulary's ids have holes a new token, below next_added, may have taken it. */
    const bool may_be_taken = known && made.id >= tok->vocab.n_tokens && made.id < tok->next_added;
    for (uint32_t i = 0; may_be_taken && i < tok->n_added; ++i) {
        if (tok->added[i].id == made.id) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: the added tokens \"%.60s\" and \"%.60s\" have the same id %u: the "
                           "vocabulary's ids have holes",
                           path, tok->added[i].content, token->content, made.id);
        }
    }
    made.content = dsi_arena_strndup(tok->arena, token->content, token->n_content);
    if (made.content == NULL || !grow(tok)) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for the added tokens", path);
    }
    made.ever_special = made.special;
    made.ever_normalized = made.normalized;
    tok->added_slots[slot_of(tok, made.content, made.n_content)] = tok->n_added;
    tok->added[tok->n_added++] = made;
    return DS_OK;
}

ds_status dsi_tokens_add(ds_tokenizer *tok, const char *path, const dsi_added_token *token)
{
    if (token->n_content == 0) {
        return DS_OK; /* the package leaves it out */
    }
    const uint32_t i = dsi_tokens_find(tok, token->content, token->n_content);
    if (i == DSI_NO_ID) {
        return add_new(tok, path, token);
    }
    dsi_added_token *old = &tok->added[i];
    old->single_word = token->single_word;
    old->lstrip = token->lstrip;
    old->rstrip = token->rstrip;
    old->normalized = token->normalized;
    old->special = token->special;
    old->ever_special = old->ever_special || token->special;
    old->ever_normalized = old->ever_normalized || token->normalized;
    return DS_OK;
}
