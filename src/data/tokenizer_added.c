/* SPDX-License-Identifier: Apache-2.0 */
/* Added tokens: finding them in text, leftmost first, the longest at a place.
 *
 * The tries are built at load and searched by the encoder: one over raw text, one over normalized
 * text. What counts as a match, and how white space beside it is taken in, follows the package's
 * single_word, lstrip and rstrip.
 */
#include "data/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>

uint32_t dsi_trie_child(const dsi_trie *trie, uint32_t node, unsigned char byte)
{
    if (node == 0) {
        return trie->first[byte];
    }
    uint32_t child = trie->nodes[node].child;
    while (child != 0 && trie->nodes[child].byte != byte) {
        child = trie->nodes[child].sibling;
    }
    return child;
}

bool dsi_trie_insert(dsi_trie *trie, const char *pattern, size_t n, uint32_t token)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; ++i) {
        const unsigned char byte = (unsigned char)pattern[i];
        uint32_t child = dsi_trie_child(trie, node, byte);
        if (child == 0) {
            child = trie->n++;
            trie->nodes[child] = (dsi_trie_node){.token = DSI_NO_ID, .byte = byte};
            if (node == 0) {
                trie->first[byte] = child;
            } else {
                trie->nodes[child].sibling = trie->nodes[node].child;
                trie->nodes[node].child = child;
            }
        }
        node = child;
    }
    const bool is_new = trie->nodes[node].token == DSI_NO_ID;
    trie->nodes[node].token = token;
    return is_new;
}

static ds_status trie_build(ds_tokenizer *tok, const char *path, bool normalized, dsi_trie *trie)
{
    size_t n = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        n += tok->added[i].normalized == normalized ? tok->added[i].n_pattern : 0;
        count += tok->added[i].normalized == normalized;
    }
    if (count == 0) {
        return DS_OK;
    }
    trie->nodes = calloc(n + 1, sizeof *trie->nodes);
    if (trie->nodes == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for the added tokens", path);
    }
    trie->n = 1;
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        const dsi_added_token *added = &tok->added[i];
        if (added->normalized == normalized &&
            (added->n_pattern == 0 ||
             !dsi_trie_insert(trie, added->pattern, added->n_pattern, i))) {
            return ds_fail(
                tok->ctx, DS_ERR_FORMAT, "%s: the added token \"%.60s\" is normalized to %s", path,
                added->content, added->n_pattern == 0 ? "nothing" : "the same text as another one");
        }
    }
    return DS_OK;
}

ds_status dsi_added_build(ds_tokenizer *tok, const char *path)
{
    tok->added_of_id = malloc(((size_t)tok->n_ids + 1) * sizeof *tok->added_of_id);
    if (tok->added_of_id == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for the added tokens", path);
    }
    memset(tok->added_of_id, 0xFF, ((size_t)tok->n_ids + 1) * sizeof *tok->added_of_id);
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        dsi_added_token *added = &tok->added[i];
        /* The package asks whether the text that it finds for the id, as normalized, is special. */
        const uint32_t named = dsi_tokens_find(tok, added->shown, added->n_shown);
        added->skipped = named != DSI_NO_ID && tok->added[named].ever_special;
        tok->added_of_id[added->id] = i;
    }
    DS_TRY(trie_build(tok, path, false, &tok->trie_raw));
    return trie_build(tok, path, true, &tok->trie_normalized);
}

void dsi_trie_free(dsi_trie *trie)
{
    free(trie->nodes);
    *trie = (dsi_trie){0};
}

/* The longest pattern at text[at..]: its token, its end to *end_out. */
static uint32_t longest(const dsi_trie *trie, const unsigned char *text, size_t n, size_t at,
                        size_t *end_out)
{
    uint32_t token = DSI_NO_ID;
    uint32_t node = trie->first[text[at]];
    while (node != 0) {
        ++at;
        if (trie->nodes[node].token != DSI_NO_ID) {
            token = trie->nodes[node].token;
            *end_out = at;
        }
        if (at == n) {
            break;
        }
        node = dsi_trie_child(trie, node, text[at]);
    }
    return token;
}

/* Start of the character that ends at `at` > 0. */
static size_t character_before(const unsigned char *text, size_t at)
{
    size_t i = at - 1;
    while (i > 0 && at - i < 4 && (text[i] & 0xC0) == 0x80) {
        --i;
    }
    uint32_t cp;
    return i + dsi_utf8_decode(text + i, text + at, &cp) == at ? i : at - 1;
}

static unsigned flags_at(const unsigned char *text, size_t n, size_t at, size_t *size_out)
{
    uint32_t cp;
    *size_out = dsi_utf8_decode(text + at, text + n, &cp);
    return dsi_uc_flags(cp);
}

static bool is_single_word(const unsigned char *text, size_t n, size_t begin, size_t end)
{
    size_t size;
    const bool before =
        begin > 0 && (flags_at(text, begin, character_before(text, begin), &size) & DSI_UC_WORD);
    const bool after = end < n && (flags_at(text, n, end, &size) & DSI_UC_WORD);
    return !before && !after;
}

dsi_added_match dsi_added_find(const ds_tokenizer *tok, const dsi_trie *trie,
                               const unsigned char *text, size_t n, size_t from, size_t floor,
                               bool no_special)
{
    for (size_t at = from; at < n;) {
        size_t end = at + 1;
        const uint32_t token =
            trie->first[text[at]] != 0 ? longest(trie, text, n, at, &end) : DSI_NO_ID;
        if (token == DSI_NO_ID) {
            ++at;
            continue;
        }
        const dsi_added_token *added = &tok->added[token];
        if ((no_special && added->special) ||
            (added->single_word && !is_single_word(text, n, at, end))) {
            at = end;
            continue;
        }
        size_t begin = at;
        const size_t next = end;
        size_t size;
        while (added->lstrip && begin > floor) {
            const size_t before = character_before(text, begin);
            if (before < floor || (flags_at(text, begin, before, &size) & DSI_UC_SPACE) == 0) {
                break;
            }
            begin = before;
        }
        begin = added->lstrip && begin < floor ? floor : begin;
        while (added->rstrip && end < n && (flags_at(text, n, end, &size) & DSI_UC_SPACE) != 0) {
            end += size;
        }
        return (dsi_added_match){token, begin, end > begin ? end : begin, next};
    }
    return (dsi_added_match){DSI_NO_ID, n, n, n};
}
