/* SPDX-License-Identifier: Apache-2.0 */
/* The encoder: the scratch, and the path from a text to its ids.
 *
 * See tokenizer.h for the stages. Invariant: nothing in a scratch outlives the call but buffers and
 * remembered words, so a scratch gives the same ids whatever it encoded before.
 */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* ---- the scratch ---- */

ds_status ds_tokenizer_scratch_create(const ds_tokenizer *tok, size_t max_tokens,
                                      ds_tokenizer_scratch **scratch_out)
{
    ds_tokenizer_scratch *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory to encode with");
    }
    s->tok = tok;
    s->max_tokens = max_tokens == 0 || max_tokens > INT32_MAX ? INT32_MAX : max_tokens;
    if (!tok->bytes) {
        s->words = calloc(DSI_WORD_SLOTS, sizeof *s->words);
        if (s->words == NULL) {
            free(s);
            return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory to encode with");
        }
    }
    *scratch_out = s;
    return DS_OK;
}

static void made_free(dsi_made *made)
{
    free(made->text);
    free(made->map);
}

void ds_tokenizer_scratch_destroy(ds_tokenizer_scratch **scratch)
{
    ds_tokenizer_scratch *s = scratch != NULL ? *scratch : NULL;
    if (s == NULL) {
        return;
    }
    free(s->ids);
    free(s->ranges);
    free(s->words);
    free(s->symbols);
    free(s->ends);
    free(s->heap);
    free(s->points);
    free(s->pair);
    free(s->types);
    made_free(&s->made_norm[0]);
    made_free(&s->made_norm[1]);
    made_free(&s->spelled);
    for (size_t i = 0; i < DSI_TOK_MAX_STEPS; ++i) {
        made_free(&s->made_step[i]);
    }
    dsi_matcher_free(s->match);
    free(s);
    *scratch = NULL;
}

bool dsi_tok_grow(ds_tokenizer_scratch *s, void **data, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) {
        return true;
    }
    size_t wanted = *capacity < 64 ? 64 : *capacity * 2;
    wanted = wanted < need ? need : wanted;
    size_t bytes;
    void *grown = dsi_mul_size(wanted, size, &bytes) ? realloc(*data, bytes) : NULL;
    if (grown == NULL) {
        if (s->failed == DS_OK) {
            s->failed = ds_fail(s->tok->ctx, DS_ERR_NOMEM, "no memory to encode with");
        }
        return false;
    }
    *data = grown;
    *capacity = wanted;
    return true;
}

bool dsi_made_reserve(ds_tokenizer_scratch *s, dsi_made *made, size_t need, bool map)
{
    return dsi_tok_grow(s, (void **)&made->text, &made->capacity, need, 1) &&
           (!map ||
            dsi_tok_grow(s, (void **)&made->map, &made->map_capacity, need, sizeof *made->map));
}

/* Replacements can grow a text without end: what a stage makes is paid from an account. */
static bool pay(ds_tokenizer_scratch *s, size_t n)
{
    if (n <= s->made_account) {
        s->made_account -= n;
        return true;
    }
    if (s->failed == DS_OK) {
        s->failed =
            ds_fail(s->tok->ctx, DS_ERR_LIMIT,
                    "%s: its normalizers and pre-tokenizers make more than %d bytes of each "
                    "byte of a text and %d more; a replacement that grows the text like "
                    "that is not supported",
                    s->tok->n_files > 0 ? s->tok->files[0] : "the tokenizer", DSI_MADE_A_BYTE,
                    DSI_MADE_BYTES);
    }
    return false;
}

void dsi_tok_open_accounts(ds_tokenizer_scratch *s, size_t n)
{
    s->match_account = dsi_regex_account(n);
    s->made_account = (size_t)DSI_MADE_BYTES + n * DSI_MADE_A_BYTE;
}

bool dsi_made_append(ds_tokenizer_scratch *s, dsi_made *made, const void *text, size_t n,
                     ds_token_range range)
{
    if (!pay(s, n) || !dsi_made_reserve(s, made, made->n + n, s->want_ranges)) {
        return false;
    }
    if (n > 0) {
        memcpy(made->text + made->n, text, n);
    }
    for (size_t i = 0; s->want_ranges && i < n; ++i) {
        made->map[made->n + i] = range;
    }
    made->n += n;
    return true;
}

bool dsi_made_copy(ds_tokenizer_scratch *s, dsi_made *made, dsi_view view, size_t at, size_t n)
{
    if (!pay(s, n) || !dsi_made_reserve(s, made, made->n + n, s->want_ranges)) {
        return false;
    }
    if (n > 0) {
        memcpy(made->text + made->n, view.text + at, n);
    }
    for (size_t i = 0; s->want_ranges && i < n; ++i) {
        made->map[made->n + i] = dsi_view_range(dsi_view_part(view, at + i, 1));
    }
    made->n += n;
    return true;
}

/* ---- from text to ids ---- */

typedef void (*segment_fn)(ds_tokenizer_scratch *s, dsi_view view, bool no_special);

/* Emits the added tokens in view and gives what lies between them to `rest`. */
static void cut_added(ds_tokenizer_scratch *s, const dsi_trie *trie, dsi_view view, bool no_special,
                      segment_fn rest)
{
    size_t done = 0;
    size_t from = 0;
    while (trie->nodes != NULL && from < view.n && s->failed == DS_OK) {
        const dsi_added_match match =
            dsi_added_find(s->tok, trie, view.text, view.n, from, done, no_special);
        if (match.token == DSI_NO_ID) {
            break;
        }
        if (match.begin > done) {
            rest(s, dsi_view_part(view, done, match.begin - done), no_special);
        }
        if (match.end > match.begin) { /* else all of it went with the one before */
            dsi_tok_emit(s, s->tok->added[match.token].id,
                         dsi_view_range(dsi_view_part(view, match.begin, match.end - match.begin)));
        }
        done = match.end;
        from = match.next;
    }
    if (done < view.n && s->failed == DS_OK) {
        rest(s, dsi_view_part(view, done, view.n - done), no_special);
    }
}

static void split_segment(ds_tokenizer_scratch *s, dsi_view view, bool no_special)
{
    (void)no_special;
    dsi_tok_pretokenize(s, 0, view);
}

static void normalize_segment(ds_tokenizer_scratch *s, dsi_view view, bool no_special)
{
    const dsi_view normalized = dsi_tok_normalize(s, view);
    cut_added(s, &s->tok->trie_normalized, normalized, no_special, split_segment);
}

static void encode_text(ds_tokenizer_scratch *s, dsi_view view, uint32_t flags)
{
    if (s->tok->bytes) {
        for (size_t i = 0; i < view.n && s->failed == DS_OK; ++i) {
            dsi_tok_emit(s, view.text[i], (ds_token_range){i, i + 1});
        }
        return;
    }
    const bool no_special = s->tok->split_special || (flags & DS_ENCODE_NO_SPECIAL_PARSE) != 0;
    cut_added(s, &s->tok->trie_raw, view, no_special, normalize_segment);
}

void dsi_tok_append(ds_tokenizer_scratch *s, const char *text, size_t n, uint32_t flags)
{
    dsi_tok_open_accounts(s, n);
    encode_text(s, (dsi_view){.text = (const unsigned char *)text, .n = n}, flags);
}

/* The text with what the post-processor adds before and after it. */
static void encode_template(ds_tokenizer_scratch *s, dsi_view view, uint32_t flags)
{
    const ds_tokenizer *tok = s->tok;
    bool wanted = (flags & DSI_ENCODE_CONTINUES) == 0;
    for (uint32_t i = 0; i < tok->n_template; ++i) {
        const dsi_template_piece *piece = &tok->template_pieces[i];
        if (piece->sequence) {
            encode_text(s, view, flags);
            wanted = (flags & DSI_ENCODE_GOES_ON) == 0;
        }
        for (uint32_t k = 0; wanted && k < piece->n_ids; ++k) {
            const size_t at = s->n > 0 && s->want_ranges ? s->ranges[s->n - 1].end : 0;
            dsi_tok_emit(s, piece->ids[k], (ds_token_range){at, at});
        }
    }
}

uint32_t *dsi_tok_take_ids(ds_tokenizer_scratch *s, uint32_t *array, size_t *room)
{
    if (!dsi_tok_grow(s, (void **)&s->ids, &s->capacity, s->n + 1, sizeof *s->ids)) {
        return NULL;
    }
    uint32_t *taken = s->ids;
    const size_t capacity = s->capacity;
    s->ids = array;
    s->capacity = *room;
    s->n = 0;
    *room = capacity;
    return taken;
}

ds_status ds_tokenizer_encode(const ds_tokenizer *tok, ds_tokenizer_scratch *scratch,
                              const char *text, size_t n, uint32_t flags, ds_tokens *tokens_out)
{
    ds_tokenizer_scratch *s = scratch;
    if (s->tok != tok) {
        return ds_fail(tok->ctx, DS_ERR_ARG, "the scratch belongs to another tokenizer");
    }
    if (n > INT32_MAX) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT,
                       "a text of %zu bytes is too long to encode at once; the limit is 2 GiB", n);
    }
    s->n = 0;
    s->failed = DS_OK;
    dsi_tok_open_accounts(s, n);
    s->want_ranges = (flags & DS_ENCODE_RANGES) != 0;
    s->continues = (flags & DSI_ENCODE_CONTINUES) != 0;
    const dsi_view all = {.text = (const unsigned char *)text, .n = n};
    if (tok->n_template == 0 || (flags & DS_ENCODE_ADD_SPECIAL) == 0) {
        encode_text(s, all, flags);
    } else {
        encode_template(s, all, flags);
    }
    if (s->failed != DS_OK) {
        return s->failed;
    }
    *tokens_out =
        (ds_tokens){.ids = s->ids, .ranges = s->want_ranges ? s->ranges : NULL, .n = s->n};
    return DS_OK;
}
