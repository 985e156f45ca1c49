/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of a model of sources and what is made of them: an encoder reads one whole, and what each
 * layer of the decoder sees of it lies in blocks of the pool.
 *
 * Invariants:
 *  1. Sequences whose sources are the same ids, read with the same adapter, have one dsi_source
 *     while any of them lives.
 *  2. It has blocks while a sequence holds it, which is while that one runs; then they are given
 *     back, and the next holder has the encoder read it again, to the same bits.
 *  3. The encoder's bits are a function of the ids, the adapter and the longest source alone: it
 *     reads one source at a time, in a plan that its length chooses (generator_pairs.c).
 */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>

struct dsi_source {
    dsi_source *next;
    uint32_t *ids;
    int64_t n;
    uint64_t adapter; /* of the request; 0: none */
    int32_t *blocks;
    int64_t n_blocks;  /* that the source takes */
    int64_t n_owners;  /* sequences that have it, */
    int64_t n_holders; /* and those of them that run; 0: there are no blocks */
    bool is_read;
};

static dsi_source *find(const ds_server *s, const ds_serve_request *r)
{
    dsi_source *source = s->sources;
    while (source != NULL && (source->n != (int64_t)r->n || source->adapter != r->adapter ||
                              memcmp(source->ids, r->ids, r->n * sizeof *r->ids) != 0)) {
        source = source->next;
    }
    return source;
}

static void destroy(dsi_source *source)
{
    if (source != NULL) {
        free(source->ids);
        free(source->blocks);
        free(source);
    }
}

static dsi_source *make(const ds_server *s, const ds_serve_request *r)
{
    dsi_source *source = calloc(1, sizeof *source);
    if (source == NULL) {
        return NULL;
    }
    source->n = (int64_t)r->n;
    source->adapter = r->adapter;
    source->n_blocks = (source->n + s->block - 1) / s->block;
    source->ids = malloc(r->n * sizeof *r->ids);
    source->blocks = malloc((size_t)source->n_blocks * sizeof *source->blocks);
    if (source->ids == NULL || source->blocks == NULL) {
        destroy(source);
        return NULL;
    }
    memcpy(source->ids, r->ids, r->n * sizeof *r->ids);
    return source;
}

ds_status dsi_sequence_of_request(ds_server *s, uint64_t uid, const ds_serve_request *r,
                                  dsi_sequence **sequence_out)
{
    if (!s->pairs) {
        return dsi_sequence_create(s, uid, r->ids, r->n, (int64_t)r->n + r->max_new_tokens,
                                   sequence_out);
    }
    dsi_source *source = find(s, r);
    const bool is_new = source == NULL;
    dsi_sequence *q = NULL;
    source = is_new ? make(s, r) : source;
    if (source == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a source of %zu ids", r->n);
    }
    const uint32_t start = (uint32_t)ds_model_get_info(s->generator->model)->start_id;
    const ds_status status = dsi_sequence_create(s, uid, &start, 1, 1 + r->max_new_tokens, &q);
    if (status < 0) {
        if (is_new) {
            destroy(source);
        }
        return status;
    }
    if (is_new) {
        source->next = s->sources;
        s->sources = source;
    }
    source->n_owners += 1;
    q->source = source;
    q->server = s;
    *sequence_out = q;
    return DS_OK;
}

ds_status dsi_source_shadow(ds_server *d, const dsi_sequence *q, int64_t most,
                            dsi_sequence **shadow_out)
{
    const ds_serve_request r = {
        .ids = q->source->ids, .n = (size_t)q->source->n, .max_new_tokens = most - 1};
    bool fits = q->source->n <= d->max_length;
    for (size_t i = 0; i < r.n && fits; ++i) {
        fits = (int64_t)r.ids[i] < d->vocab_size;
    }
    if (!fits) {
        return DS_OK;
    }
    DS_TRY(dsi_sequence_of_request(d, q->uid, &r, shadow_out));
    (*shadow_out)->n_ids = 0;
    return DS_OK;
}

void dsi_source_leave(dsi_sequence *q)
{
    dsi_source *source = q->source;
    q->source = NULL;
    if (source == NULL || --source->n_owners > 0) {
        return;
    }
    dsi_source **at = &q->server->sources;
    while (*at != source) {
        at = &(*at)->next;
    }
    *at = source->next;
    destroy(source);
}

int64_t dsi_source_length(const dsi_sequence *q)
{
    return q->source != NULL ? q->source->n : 0;
}

int64_t dsi_source_lacks(const dsi_sequence *q)
{
    return q->source != NULL && q->source->n_holders == 0 ? q->source->n_blocks : 0;
}

int64_t dsi_source_to_read(const dsi_sequence *q)
{
    return dsi_source_lacks(q) > 0 ? q->source->n : 0;
}

bool dsi_source_hold(ds_server *s, dsi_sequence *q)
{
    dsi_source *source = q->source;
    if (source == NULL || q->holds_source) {
        return true;
    }
    if (dsi_source_lacks(q) > dsi_block_pool_n_free(s->pool)) {
        return false;
    }
    for (int64_t i = 0; i < source->n_blocks && source->n_holders == 0; ++i) {
        source->blocks[i] = dsi_block_pool_take(s->pool);
    }
    source->n_holders += 1;
    q->holds_source = true;
    return true;
}

void dsi_source_release(ds_server *s, dsi_sequence *q)
{
    dsi_source *source = q->source;
    if (source == NULL || !q->holds_source) {
        return;
    }
    q->holds_source = false;
    source->n_holders -= 1;
    for (int64_t i = source->n_blocks - 1; i >= 0 && source->n_holders == 0; --i) {
        dsi_block_pool_release(s->pool, source->blocks[i]);
    }
    source->is_read = source->is_read && source->n_holders > 0;
}

void dsi_source_table(const dsi_sequence *q, int32_t *table)
{
    if (q->source != NULL) {
        memcpy(table, q->source->blocks, (size_t)q->source->n_blocks * sizeof *table);
    }
}

ds_status dsi_serve_source_read(ds_server *s, const dsi_sequence *q)
{
    dsi_source *source = q->source;
    const float *rows = NULL;
    int32_t *slots = s->batch.source_slots;
    if (source == NULL || source->is_read) {
        return DS_OK;
    }
    for (int64_t i = 0; i < source->n; ++i) {
        slots[i] = (int32_t)(source->blocks[i / s->block] * s->block + i % s->block);
    }
    DS_TRY(dsi_pairs_read_source(s->generator, source->ids, source->n, slots, q->slot, &rows));
    source->is_read = true;
    s->stats.n_tokens += source->n;
    return DS_OK;
}

ds_status dsi_sources_read(ds_server *s)
{
    for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        DS_TRY(dsi_serve_source_read(s, q));
    }
    return DS_OK;
}
