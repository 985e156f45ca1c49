/* SPDX-License-Identifier: Apache-2.0 */
/* One text as one document, tokenized on all threads. See source.h.
 *
 * The text is cut where the tokenizer shows that nothing reaches across (tokenizer_cut.c); the
 * parts of a batch are encoded at once and given to the sink in order. Memory: a few parts for each
 * thread, whatever the size of the text. A tokenizer that has no safe place encodes the text as a
 * whole, on one thread.
 */
#include "data/source.h"
#include "data/tokenizer.h"

#include <deepspeed/context.h>
#include <deepspeed/op.h>
#include <stdlib.h>

enum {
    PARTS_A_THREAD = 4,
    SLOW_BYTES = 16 << 20 /* a text whose reading by one thread is worth a word */
};

typedef struct part {
    const char *text;
    size_t size;
    uint32_t flags; /* of the encoder */
    uint32_t *ids;  /* [room], n in use */
    size_t n, room;
    ds_status status;
} part;

typedef struct work {
    const ds_dataset_params *params;
    ds_tokenizer_scratch **scratch; /* per thread, made when first used */
    part *parts;
    uint32_t n, n_max, n_threads;
} work;

static ds_status encode_part(const ds_tokenizer *tok, ds_tokenizer_scratch **scratch, part *p)
{
    ds_tokens tokens;
    if (*scratch == NULL) {
        DS_TRY(ds_tokenizer_scratch_create(tok, 0, scratch));
    }
    DS_TRY(ds_tokenizer_encode(tok, *scratch, p->text, p->size, p->flags, &tokens));
    uint32_t *ids = dsi_tok_take_ids(*scratch, p->ids, &p->room);
    if (ids == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for %zu tokens", tokens.n);
    }
    p->ids = ids;
    p->n = tokens.n;
    return DS_OK;
}

static void encode_task(void *arg, uint32_t task, uint32_t thread)
{
    work *w = arg;
    part *p = &w->parts[task];
    p->status = encode_part(w->params->tokenizer, &w->scratch[thread], p);
}

/* Fills a batch with the parts from `at` on; the new position. */
static size_t cut_parts(work *w, const dsi_map *map, size_t at, size_t part_bytes)
{
    const char *text = (const char *)map->data;
    w->n = 0;
    do {
        part *p = &w->parts[w->n++];
        const size_t left = map->size - at;
        p->text = text != NULL ? text + at : "";
        p->size = left <= part_bytes
                      ? left
                      : dsi_tok_next_cut(w->params->tokenizer, p->text, left, part_bytes);
        p->flags = DS_ENCODE_ADD_SPECIAL | DS_ENCODE_NO_SPECIAL_PARSE |
                   (at > 0 ? DSI_ENCODE_CONTINUES : 0u) |
                   (p->size < left ? DSI_ENCODE_GOES_ON : 0u);
        at += p->size;
    } while (w->n < w->n_max && at < map->size);
    return at;
}

static ds_status give_part(work *w, part *p, bool *begun, const dsi_source_sink *sink)
{
    if ((p->flags & DSI_ENCODE_GOES_ON) == 0 && w->params->append_eos) {
        p->ids[p->n++] = (uint32_t)ds_tokenizer_eos_id(w->params->tokenizer);
    }
    if (p->n == 0) {
        return DS_OK;
    }
    const dsi_document document = {.ids = p->ids, .n = p->n, .joins = *begun};
    *begun = true;
    return sink->document(sink->user, &document);
}

static ds_status read_parts(ds_ctx *ctx, work *w, const char *path, const dsi_map *map,
                            size_t part_bytes, const dsi_source_sink *sink)
{
    bool begun = false;
    size_t at = 0;
    do {
        at = cut_parts(w, map, at, part_bytes);
        for (uint32_t i = 0; i < w->n; ++i) {
            if (w->parts[i].size > INT32_MAX) {
                return ds_fail(ctx, DS_ERR_LIMIT,
                               "%s: %zu bytes must be tokenized at once, and the limit is 2 GiB: "
                               "this tokenizer finds no place to cut them; split the file, or make "
                               "it a .jsonl of documents",
                               path, w->parts[i].size);
            }
        }
        ds_parallel(ctx, encode_task, w, w->n);
        for (uint32_t i = 0; i < w->n; ++i) {
            DS_TRY(w->parts[i].status);
            DS_TRY(give_part(w, &w->parts[i], &begun, sink));
        }
        if (sink->progress != NULL) {
            sink->progress(sink->user, at, map->size);
        }
    } while (at < map->size);
    return DS_OK;
}

static void free_work(work *w)
{
    for (uint32_t i = 0; w->scratch != NULL && i < w->n_threads; ++i) {
        ds_tokenizer_scratch_destroy(&w->scratch[i]);
    }
    for (uint32_t i = 0; w->parts != NULL && i < w->n_max; ++i) {
        free(w->parts[i].ids);
    }
    free(w->scratch);
    free(w->parts);
}

ds_status dsi_text_read(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                        const dsi_map *text, size_t part_bytes, const dsi_source_sink *sink)
{
    const uint32_t n_threads = ds_ctx_n_threads(ctx);
    work w = {.params = params, .n_threads = n_threads, .n_max = n_threads * PARTS_A_THREAD};
    if (n_threads > 1 && text->size > SLOW_BYTES && !dsi_tok_can_cut(params->tokenizer)) {
        ds_log(ctx, DS_LOG_JOB,
               "%s: with this tokenizer a text can be cut nowhere with the same ids: one thread "
               "reads it; a .jsonl of documents is read by all",
               path);
    }
    w.scratch = calloc(n_threads, sizeof(*w.scratch));
    w.parts = calloc(w.n_max, sizeof *w.parts);
    const ds_status status = w.scratch != NULL && w.parts != NULL
                                 ? read_parts(ctx, &w, path, text, part_bytes, sink)
                                 : ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    free_work(&w);
    return status;
}
