/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of documents: batches of their own, over the same blocks, in turn with those of texts.
 *
 * A document takes all its blocks, and its state, before it begins, so that it always comes to its
 * end; where the first that waits finds too few, no text is admitted beside those that run, so that
 * it gets them. A batch takes documents in order of arrival, the last one in pieces.
 */
#include "infer/pooling.h"
#include "serve/server.h"

#include <math.h>
#include <stdlib.h>

int64_t dsi_embed_width(const ds_generator *g)
{
    ds_tensor rows;
    if (!g->embeds || dsi_exec_output(g->exec, g->pieces[g->n_texts].id, "hidden", &rows) < 0) {
        return 0;
    }
    return ds_shape_last(rows.meta.shape);
}

ds_status ds_serve_embed(ds_server *s, const uint32_t *ids, size_t n, ds_pool pool,
                         uint64_t adapter, uint64_t *uid_out)
{
    DS_TRY(dsi_serve_check_leads(s));
    DS_TRY(dsi_serve_adapter_check(s, adapter));
    if (s->width == 0) {
        return ds_fail(s->ctx, DS_ERR_STATE,
                       "ds_serve_embed: the server was made without ds_serve_params.embeddings");
    }
    if (n < 1 || n > (size_t)s->max_length) {
        return ds_fail(s->ctx, DS_ERR_LIMIT, "a document of %zu tokens; 1 to %lld are possible", n,
                       (long long)s->max_length);
    }
    if ((unsigned)pool >= DS_POOLS) {
        return ds_fail(s->ctx, DS_ERR_ARG, "ds_serve_embed: pool is %d, no ds_pool", (int)pool);
    }
    for (size_t i = 0; i < n; ++i) {
        if ((int64_t)ids[i] >= s->vocab_size) {
            return ds_fail(s->ctx, DS_ERR_ARG,
                           "token %u is outside of the model's vocabulary of %lld", ids[i],
                           (long long)s->vocab_size);
        }
    }
    dsi_sequences_clear(&s->done);
    dsi_beams_clear(s, false);
    dsi_sequence *q = NULL;
    DS_TRY(dsi_sequence_create(s, s->last_uid + 1, ids, n, (int64_t)n, &q));
    dsi_serve_adapter_begin(s, q, adapter);
    q->embeds = true;
    q->pool = pool;
    q->pooled = malloc((size_t)s->width * sizeof *q->pooled);
    q->vector = malloc((size_t)s->width * sizeof *q->vector);
    if (q->pooled == NULL || q->vector == NULL) {
        dsi_sequence_destroy(&q);
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a vector of %lld numbers",
                       (long long)s->width);
    }
    s->last_uid += 1;
    dsi_sequences_append(&s->embedding, q);
    *uid_out = q->uid;
    return DS_OK;
}

/* Of a model that reads sources its encoder's rows, which take no blocks: the first that waits. */
static ds_status read_document(ds_server *s)
{
    dsi_sequence *q = s->embedding.first;
    const float *row = NULL;
    dsi_batch_begin(s);
    DS_TRY(dsi_pairs_read_source(s->generator, q->ids, q->n_ids, NULL, q->slot, &row));
    for (int64_t i = 0; i < q->n_ids; ++i) {
        dsi_pool_add(q->pool, q->pooled, s->width, i, row + i * s->width);
    }
    q->n_computed = s->batch.n = q->n_ids;
    s->n_embedding += 1;
    s->stats.n_prompt_tokens += q->n_prompt;
    s->stats.n_steps += 1;
    s->stats.n_tokens += q->n_ids;
    return DS_OK;
}

/* Blocks that were computed already serve where only the last row counts. */
static int64_t match(const ds_server *s, const dsi_sequence *q, int64_t *n_free_out)
{
    *n_free_out = 0;
    return q->pool == DS_POOL_LAST ? dsi_sequence_match(s, q, n_free_out) : 0;
}

static bool has_room(const ds_server *s, const dsi_sequence *q, int64_t *shared_out)
{
    int64_t n_free = 0;
    *shared_out = match(s, q, &n_free);
    const int64_t own = (q->n_ids + s->block - 1) / s->block - *shared_out;
    return own <= dsi_block_pool_n_free(s->pool) - n_free && dsi_sequence_may_run(s, q);
}

static bool begin(ds_server *s, dsi_sequence *q)
{
    int64_t shared = 0;
    if (!has_room(s, q, &shared)) {
        return false;
    }
    (void)dsi_sequence_take_state(s, q);
    dsi_sequence_share(s, q, shared);
    (void)dsi_sequence_grow(s, q, q->n_ids - q->n_computed);
    q->n_cached = q->n_computed;
    s->stats.n_prompt_tokens += q->n_prompt;
    s->stats.n_cached_tokens += q->n_cached;
    s->n_embedding += 1;
    return true;
}

bool dsi_embed_waits(const ds_server *s)
{
    int64_t shared = 0;
    return !s->pairs && s->embedding.n > 0 && s->n_embedding == 0 &&
           !has_room(s, s->embedding.first, &shared);
}

static void make_batch(ds_server *s)
{
    dsi_batch_begin(s);
    for (dsi_sequence *q = s->embedding.first; q != NULL; q = q->next) {
        const int64_t budget = s->max_batch_tokens - s->batch.n;
        if (budget == 0 || s->batch.n_members == s->max_sequences ||
            (q->n_blocks == 0 && !begin(s, q))) {
            return;
        }
        const int64_t n = q->n_ids - q->n_computed;
        dsi_batch_add(s, q, n < budget ? n : budget);
    }
}

static void end(ds_server *s, dsi_sequence *q, ds_serve_event *event)
{
    bool finite = true;
    dsi_pool_end(q->pool, q->pooled, s->width, q->n_ids, q->vector);
    for (int64_t i = 0; i < s->width; ++i) {
        finite = finite && isfinite(q->vector[i]);
    }
    *event = (ds_serve_event){.uid = q->uid,
                              .n_cached = q->n_cached,
                              .finish = finite ? DS_SERVE_VECTOR : DS_SERVE_ERROR,
                              .vector = finite ? q->vector : NULL};
    dsi_sequence_drop_blocks(s, q);
    dsi_sequences_remove(&s->embedding, q);
    dsi_sequences_append(&s->done, q);
    s->n_embedding -= 1;
}

ds_status dsi_embed_step(ds_server *s, ds_serve_event *events, size_t *n_out)
{
    const float *row = NULL;
    if (s->pairs) {
        DS_TRY(read_document(s));
        end(s, s->embedding.first, &events[(*n_out)++]);
        return DS_OK;
    }
    make_batch(s);
    if (s->batch.n == 0) {
        return DS_OK;
    }
    DS_TRY(dsi_batch_run(s, true, &row));
    for (int64_t i = 0; i < s->batch.n_members; ++i) {
        dsi_sequence *q = s->batch.members[i];
        for (int64_t at = q->n_computed - q->n_batch; at < q->n_computed; ++at) {
            dsi_pool_add(q->pool, q->pooled, s->width, at, row);
            row += s->width;
        }
        if (q->n_computed == q->n_ids) {
            end(s, q, &events[(*n_out)++]);
        }
    }
    return DS_OK;
}
