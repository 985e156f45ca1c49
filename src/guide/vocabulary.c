/* SPDX-License-Identifier: Apache-2.0 */
/* A vocabulary's tree. See vocabulary.h. */
#include "guide/vocabulary.h"

#include "base/buf.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = UINT16_MAX, MOST_BYTES = 1 << 30 };

/* ---- bytes of tokens ---- */
/* What a token adds behind itself, where no space is left out, and what it is alone. */
static void append_word(const ds_tokenizer *tokenizer, uint32_t id, dsi_buf *all, dsi_buf *begin)
{
    char *one = NULL;
    char *two = NULL;
    size_t n_one = 0;
    size_t n_two = 0;
    const uint32_t ids[2] = {id, id};
    if (!ds_tokenizer_is_special(tokenizer, id) &&
        ds_tokenizer_decode(tokenizer, ids, 1, 0, &one, &n_one) >= 0 &&
        ds_tokenizer_decode(tokenizer, ids, 2, 0, &two, &n_two) >= 0 && n_two >= n_one) {
        dsi_buf_append(all, two + n_one, n_two - n_one);
        dsi_buf_append(begin, one, n_one);
    }
    free(one);
    free(two);
}

static ds_status read_words(ds_ctx *ctx, const ds_tokenizer *tokenizer, dsi_vocabulary *w)
{
    dsi_buf all = dsi_buf_make(MOST_BYTES);
    dsi_buf begin = dsi_buf_make(MOST_BYTES);
    w->n = ds_tokenizer_vocab_size(tokenizer);
    w->at = calloc(w->n + 1u, sizeof *w->at);
    w->begun = calloc(w->n + 1u, sizeof *w->begun);
    for (uint32_t id = 0; w->at != NULL && w->begun != NULL && id < w->n; ++id) {
        append_word(tokenizer, id, &all, &begin);
        w->at[id + 1] = (uint32_t)all.size;
        w->begun[id + 1] = (uint32_t)begin.size;
    }
    w->bytes = (uint8_t *)all.data;
    w->begin_bytes = (uint8_t *)begin.data;
    if (w->at == NULL || w->begun == NULL || all.failed || begin.failed) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the bytes of tokens");
    }
    if (all.size == begin.size && (all.size == 0 || memcmp(all.data, begin.data, all.size) == 0)) {
        free(w->begun);
        free(w->begin_bytes);
        w->begun = NULL;
        w->begin_bytes = NULL;
    }
    return DS_OK;
}

/* ---- the tree ---- */
static size_t size_of(const dsi_vocabulary *w, uint32_t id)
{
    return w->at[id + 1] - w->at[id];
}

/* By bytes, then by number. */
static int compare(const void *a, const void *b, void *words)
{
    const dsi_vocabulary *w = words;
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    const size_t n = size_of(w, x);
    const size_t m = size_of(w, y);
    const size_t both = n < m ? n : m;
    const int order = both > 0 ? memcmp(w->bytes + w->at[x], w->bytes + w->at[y], both) : 0;
    return order != 0 ? order : n != m ? (n < m ? -1 : 1) : (x > y) - (x < y);
}

/* The branch that is being made: nodes[path[d]] is at depth d + 1. */
typedef struct branch {
    const dsi_vocabulary *w;
    dsi_vocabulary_tree *tree;
    uint32_t *path; /* [longest] */
    uint32_t depth;
} branch;

static void cut(branch *b, uint32_t depth)
{
    while (b->depth > depth) {
        const uint32_t k = b->path[--b->depth];
        dsi_vocabulary_node *node = &b->tree->nodes[k];
        node->size = b->tree->n_nodes - k;
        if (b->depth > 0) {
            dsi_vocabulary_node *parent = &b->tree->nodes[b->path[b->depth - 1]];
            const uint16_t own = dsi_utf8_begins(parent->byte) ? 1 : 0;
            const uint16_t height = (uint16_t)(node->height + own);
            parent->height = height > parent->height ? height : parent->height;
            parent->text = parent->text && node->text;
        }
    }
}

static void add_word(branch *b, uint32_t at_id)
{
    const dsi_vocabulary *w = b->w;
    dsi_vocabulary_tree *t = b->tree;
    const uint32_t id = t->ids[at_id];
    const uint8_t *bytes = w->bytes + w->at[id];
    const uint32_t n = (uint32_t)size_of(w, id);
    uint32_t same = 0;
    while (same < n && same < b->depth && t->nodes[b->path[same]].byte == bytes[same]) {
        ++same;
    }
    cut(b, same);
    dsi_utf8 state = same > 0 ? t->nodes[b->path[same - 1]].state : DSI_UTF8_WHOLE;
    for (uint32_t d = same; d < n; ++d) {
        state = dsi_utf8_next(state, bytes[d]);
        t->nodes[t->n_nodes] = (dsi_vocabulary_node){.ids = at_id,
                                                     .depth = (uint16_t)(d + 1),
                                                     .height = dsi_utf8_begins(bytes[d]) ? 1 : 0,
                                                     .byte = bytes[d],
                                                     .state = (uint8_t)state,
                                                     .text = state != DSI_UTF8_WRONG};
        b->path[b->depth++] = t->n_nodes++;
    }
}

/* Of all tokens with bytes, or of those of them that are not text. */
static ds_status make_tree(ds_ctx *ctx, const dsi_vocabulary *w, bool others,
                           dsi_vocabulary_tree *t)
{
    const uint64_t *text = w->texts[DSI_VOCABULARY_TEXTS - 1];
    uint32_t n = 0;
    size_t bytes = 0;
    t->ids = malloc((w->n + 1u) * sizeof *t->ids);
    for (uint32_t id = 0; id < w->n && t->ids != NULL; ++id) {
        const bool is_text = (text[id / 64] >> id % 64 & 1) != 0;
        if (size_of(w, id) > 0 && !(others && is_text)) {
            t->ids[n++] = id;
            bytes += size_of(w, id);
        }
    }
    t->nodes = malloc((bytes + 1) * sizeof *t->nodes);
    branch b = {.w = w, .tree = t, .path = malloc((w->longest + 1u) * sizeof *b.path)};
    if (t->ids == NULL || t->nodes == NULL || b.path == NULL) {
        free(b.path);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the bytes of tokens");
    }
    qsort_r(t->ids, n, sizeof *t->ids, compare, (void *)w);
    for (uint32_t i = 0; i < n; ++i) {
        add_word(&b, i);
    }
    cut(&b, 0);
    t->nodes[t->n_nodes] = (dsi_vocabulary_node){.ids = n};
    free(b.path);
    return DS_OK;
}

static ds_status measure(ds_ctx *ctx, dsi_vocabulary *w)
{
    for (uint32_t id = 0; id < w->n; ++id) {
        const uint32_t size = (uint32_t)size_of(w, id);
        w->longest = size > w->longest ? size : w->longest;
    }
    return w->longest <= MOST_DEPTH
               ? DS_OK
               : ds_fail(ctx, DS_ERR_LIMIT,
                         "the vocabulary has a token of %u bytes, at most %d are "
                         "possible with structured output",
                         w->longest, MOST_DEPTH);
}

static ds_status make_texts(ds_ctx *ctx, dsi_vocabulary *w)
{
    enum { N = DSI_VOCABULARY_TEXTS };
    const size_t words = (w->n + 63u) / 64;
    w->texts[0] = calloc(N * words + 1, sizeof *w->texts[0]);
    if (w->texts[0] == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for sets of tokens");
    }
    for (int i = 1; i < N; ++i) {
        w->texts[i] = w->texts[0] + (size_t)i * words;
    }
    for (uint32_t id = 0; id < w->n; ++id) {
        dsi_utf8 state = DSI_UTF8_WHOLE;
        int n = 0;
        for (uint32_t at = w->at[id]; at < w->at[id + 1]; ++at) {
            n += dsi_utf8_begins(w->bytes[at]) ? 1 : 0;
            state = dsi_utf8_next(state, w->bytes[at]);
        }
        const bool text = state != DSI_UTF8_WRONG && w->at[id] < w->at[id + 1];
        for (int i = n < N - 1 ? n : N - 1; text && i < N; ++i) {
            w->texts[i][id / 64] |= 1ull << id % 64;
        }
    }
    return DS_OK;
}

static ds_status finish(ds_ctx *ctx, dsi_vocabulary *w, ds_status status,
                        dsi_vocabulary **words_out)
{
    status = status < 0 ? status : measure(ctx, w);
    status = status < 0 ? status : make_texts(ctx, w);
    status = status < 0 ? status : make_tree(ctx, w, false, &w->all);
    status = status < 0 ? status : make_tree(ctx, w, true, &w->others);
    if (status < 0) {
        dsi_vocabulary_destroy(&w);
        return status;
    }
    *words_out = w;
    return DS_OK;
}

ds_status dsi_vocabulary_create(ds_ctx *ctx, const ds_tokenizer *tokenizer,
                                dsi_vocabulary **words_out)
{
    dsi_vocabulary *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the bytes of tokens");
    }
    return finish(ctx, w, read_words(ctx, tokenizer, w), words_out);
}

ds_status dsi_vocabulary_of(ds_ctx *ctx, const char *const *texts, const size_t *sizes, uint32_t n,
                            dsi_vocabulary **words_out)
{
    dsi_buf all = dsi_buf_make(MOST_BYTES);
    dsi_vocabulary *w = calloc(1, sizeof *w);
    if (w != NULL) {
        w->n = n;
        w->at = calloc(n + 1u, sizeof *w->at);
    }
    for (uint32_t i = 0; i < n && w != NULL && w->at != NULL; ++i) {
        dsi_buf_append(&all, texts[i], sizes[i]);
        w->at[i + 1] = (uint32_t)all.size;
    }
    if (w == NULL || w->at == NULL || all.failed) {
        dsi_buf_free(&all);
        dsi_vocabulary_destroy(&w);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the bytes of tokens");
    }
    w->bytes = (uint8_t *)all.data;
    return finish(ctx, w, DS_OK, words_out);
}

void dsi_vocabulary_destroy(dsi_vocabulary **words)
{
    dsi_vocabulary *w = *words;
    if (w != NULL) {
        free(w->at);
        free(w->bytes);
        free(w->begun);
        free(w->begin_bytes);
        free(w->all.nodes);
        free(w->all.ids);
        free(w->others.nodes);
        free(w->others.ids);
        free(w->texts[0]);
        free(w);
        *words = NULL;
    }
}
