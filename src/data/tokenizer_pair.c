/* SPDX-License-Identifier: Apache-2.0 */
/* Two texts as one sequence: both encoded by themselves, the longer one cut, then the template.
 * Called as ds_tokenizer_encode is. Source of the cut: truncate_encodings of the `tokenizers`
 * package, strategy LongestFirst. */
#include "data/tokenizer.h"

#include <string.h>

/* Tokens that the template adds. */
static size_t n_added(const ds_tokenizer *tok, uint32_t flags)
{
    size_t n = 0;
    for (uint32_t i = 0; i < tok->n_pair && (flags & DS_ENCODE_ADD_SPECIAL) != 0; ++i) {
        n += tok->pair_pieces[i].n_ids;
    }
    return n;
}

/* The shorter text stays whole where half of the room is enough for it. */
static void cut(size_t n[2], size_t room)
{
    if (n[0] + n[1] <= room) {
        return;
    }
    const int longer = n[0] > n[1] ? 0 : 1;
    const size_t least = n[1 - longer];
    n[longer] = least > room || least > room - least ? least : room - least;
    if (least + n[longer] > room) {
        n[1 - longer] = room / 2;
        n[longer] = room / 2 + room % 2;
    }
}

static void emit(ds_tokenizer_scratch *s, const uint32_t *ids, size_t n, uint8_t type)
{
    if (!dsi_tok_grow(s, (void **)&s->types, &s->types_capacity, s->n + n + 1, 1)) {
        return;
    }
    memset(s->types + s->n, type, n);
    for (size_t i = 0; i < n && s->failed == DS_OK; ++i) {
        dsi_tok_emit(s, ids[i], (ds_token_range){0, 0});
    }
}

/* texts: s->pair has all ids of the first, then those of the second, at `second`. */
static void emit_all(ds_tokenizer_scratch *s, const size_t n[2], size_t second, uint32_t flags)
{
    static const dsi_template_piece plain[2] = {{.sequence = true},
                                                {.sequence = true, .second = true, .type = 1}};
    const ds_tokenizer *tok = s->tok;
    const bool around = tok->n_pair > 0 && (flags & DS_ENCODE_ADD_SPECIAL) != 0;
    const dsi_template_piece *pieces = around ? tok->pair_pieces : plain;
    for (uint32_t i = 0; i < (around ? tok->n_pair : 2); ++i) {
        const dsi_template_piece *p = &pieces[i];
        if (p->sequence) {
            emit(s, s->pair + (p->second ? second : 0), n[p->second], p->type);
        } else {
            emit(s, p->ids, p->n_ids, p->type);
        }
    }
}

static ds_status check(const ds_tokenizer *tok, const ds_tokenizer_scratch *s,
                       const ds_two_texts *pair, uint32_t flags)
{
    if (s->tok != tok) {
        return ds_fail(tok->ctx, DS_ERR_ARG, "the scratch belongs to another tokenizer");
    }
    if ((flags & DS_ENCODE_RANGES) != 0) {
        return ds_fail(tok->ctx, DS_ERR_ARG, "ranges are of single texts, not of pairs");
    }
    for (int i = 0; i < 2; ++i) {
        if (pair->n[i] > INT32_MAX) {
            return ds_fail(tok->ctx, DS_ERR_LIMIT,
                           "a text of %zu bytes is too long to encode at once; the limit is 2 GiB",
                           pair->n[i]);
        }
    }
    const size_t added = n_added(tok, flags);
    return pair->max_length == 0 || pair->max_length >= added
               ? DS_OK
               : ds_fail(tok->ctx, DS_ERR_ARG,
                         "%zu tokens have no room for the %zu that stand around a pair of texts",
                         pair->max_length, added);
}

ds_status ds_tokenizer_encode_pair(const ds_tokenizer *tok, ds_tokenizer_scratch *scratch,
                                   const ds_two_texts *pair, uint32_t flags, ds_tokens *tokens_out)
{
    ds_tokenizer_scratch *s = scratch;
    size_t n[2] = {0, 0};
    DS_TRY(check(tok, s, pair, flags));
    s->n = 0;
    s->failed = DS_OK;
    s->want_ranges = s->continues = false;
    for (int i = 0; i < 2 && s->failed == DS_OK; ++i) {
        dsi_tok_append(s, pair->text[i], pair->n[i], flags);
        n[i] = s->n - n[0];
    }
    const size_t second = n[0];
    if (s->failed == DS_OK &&
        dsi_tok_grow(s, (void **)&s->pair, &s->pair_capacity, s->n + 1, sizeof *s->pair)) {
        if (s->n > 0) {
            memcpy(s->pair, s->ids, s->n * sizeof *s->ids);
        }
        s->n = 0;
        if (pair->max_length > 0) {
            cut(n, pair->max_length - n_added(tok, flags));
        }
        emit_all(s, n, second, flags);
    }
    if (s->failed != DS_OK) {
        return s->failed;
    }
    *tokens_out = (ds_tokens){.ids = s->ids, .n = s->n, .types = s->types};
    return DS_OK;
}
