/* SPDX-License-Identifier: Apache-2.0 */
/* The merges of a GGUF file's tokenizer. See gguf_model.h.
 *
 * Byte-level BPE has them in the file. SentencePiece's BPE has scores: the merges are all ways to
 * put a token together from two others, the best scores first, which gives the same ids
 * (`transformers` converts such models so).
 */
#include "ckpt/gguf_model.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* From a token to its id: open addressing; UINT32_MAX: empty. */
typedef struct table {
    const dsi_gguf_tokens *of;
    uint32_t *slots;
    size_t n;
} table;

static uint32_t *slot_of(const table *t, const char *data, size_t n)
{
    size_t at = (size_t)XXH3_64bits(data, n) & (t->n - 1);
    while (t->slots[at] != UINT32_MAX) {
        const dsi_gguf_text token = t->of->tokens->texts[t->slots[at]];
        if (token.n == n && memcmp(token.data, data, n) == 0) {
            break;
        }
        at = (at + 1) & (t->n - 1);
    }
    return &t->slots[at];
}

static ds_status index_tokens(const dsi_gguf_tokens *of, table *t)
{
    *t = (table){.of = of, .n = 16};
    while (t->n < 2 * of->tokens->n) {
        t->n *= 2;
    }
    t->slots = malloc(t->n * sizeof *t->slots);
    if (t->slots == NULL) {
        return ds_fail(of->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    memset(t->slots, 0xff, t->n * sizeof *t->slots);
    for (size_t i = 0; i < of->tokens->n; ++i) {
        const dsi_gguf_text token = of->tokens->texts[i];
        *slot_of(t, token.data, token.n) = (uint32_t)i;
    }
    return DS_OK;
}

/* Two tokens that make a third, all by their ids. */
typedef struct merge {
    float score, left_score, right_score;
    uint32_t whole, left, right;
    size_t order; /* in which it was found */
} merge;

typedef struct merges {
    merge *items;
    size_t n, capacity;
} merges;

static bool add_merge(merges *m, merge item)
{
    if (m->n == m->capacity) {
        const size_t capacity = m->capacity > 0 ? 2 * m->capacity : 4096;
        merge *items = realloc(m->items, capacity * sizeof *items);
        if (items == NULL) {
            return false;
        }
        m->items = items;
        m->capacity = capacity;
    }
    item.order = m->n;
    m->items[m->n++] = item;
    return true;
}

static float score_of(const table *t, uint32_t id)
{
    return (float)dsi_gguf_number(t->of->scores, id);
}

/* All ways to cut a token between two characters so that both parts are tokens. */
static bool cut_token(const table *t, uint32_t id, merges *m)
{
    const dsi_gguf_text token = t->of->tokens->texts[id];
    for (size_t at = 1; at < token.n; ++at) {
        if (((unsigned char)token.data[at] & 0xc0) == 0x80) {
            continue; /* inside of a character */
        }
        const uint32_t left = *slot_of(t, token.data, at);
        const uint32_t right = *slot_of(t, token.data + at, token.n - at);
        if (left != UINT32_MAX && right != UINT32_MAX &&
            !add_merge(m, (merge){.score = score_of(t, id),
                                  .left_score = score_of(t, left),
                                  .right_score = score_of(t, right),
                                  .whole = id,
                                  .left = left,
                                  .right = right})) {
            return false;
        }
    }
    return true;
}

static int falling(float a, float b)
{
    return (a < b) - (a > b);
}

/* Best scores first, tokens in their order; of one token, the cut whose parts score best. */
static int compare_merges(const void *x, const void *y)
{
    const merge *a = x;
    const merge *b = y;
    const int keys[] = {falling(a->score, b->score), (a->whole > b->whole) - (a->whole < b->whole),
                        falling(a->left_score, b->left_score),
                        falling(a->right_score, b->right_score),
                        (a->order > b->order) - (a->order < b->order)};
    size_t i = 0;
    while (i + 1 < sizeof keys / sizeof keys[0] && keys[i] == 0) {
        ++i;
    }
    return keys[i];
}

static void append(json_t *list, dsi_gguf_text left, dsi_gguf_text right)
{
    json_t *both = json_array();
    (void)json_array_append_new(both, json_stringn(left.data, left.n));
    (void)json_array_append_new(both, json_stringn(right.data, right.n));
    (void)json_array_append_new(list, both);
}

ds_status dsi_gguf_merges_of_scores(const dsi_gguf_tokens *of, json_t *list)
{
    const dsi_gguf_text *texts = of->tokens->texts;
    merges m = {0};
    table t;
    ds_status status = DS_OK;
    DS_TRY(index_tokens(of, &t));
    for (uint32_t id = 0; id < of->tokens->n && status >= 0; ++id) {
        if (!cut_token(&t, id, &m)) {
            status = ds_fail(of->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
        }
    }
    if (status >= 0 && m.n > 0) {
        qsort(m.items, m.n, sizeof *m.items, compare_merges);
    }
    for (size_t i = 0; i < m.n && status >= 0; ++i) {
        append(list, texts[m.items[i].left], texts[m.items[i].right]);
    }
    free(m.items);
    free(t.slots);
    return status;
}

/* "a b": cut at the space, of which byte-level tokens have none. */
ds_status dsi_gguf_merges_of_file(const dsi_gguf_tokens *of, json_t *list)
{
    if (of->merges == NULL || of->merges->of != DSI_GGUF_TEXT) {
        return ds_fail(of->ctx, DS_ERR_FORMAT, "%s: tokenizer: merges are missing",
                       dsi_gguf_path(of->gguf));
    }
    for (size_t i = 0; i < of->merges->n; ++i) {
        const dsi_gguf_text m = of->merges->texts[i];
        const char *space = m.n > 1 ? memchr(m.data + 1, ' ', m.n - 1) : NULL;
        if (space == NULL) {
            return ds_fail(of->ctx, DS_ERR_FORMAT,
                           "%s: tokenizer: merge %zu is not two tokens with a space between",
                           dsi_gguf_path(of->gguf), i);
        }
        const size_t left = (size_t)(space - m.data);
        append(list, (dsi_gguf_text){m.data, left}, (dsi_gguf_text){space + 1, m.n - left - 1});
    }
    return DS_OK;
}
