/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of embeddings in mini-batches (Gao et al., "Scaling Deep Contrastive Learning Batch Size
 * under Memory Limited Setup", 2021): see ds_contrast.mini_batch. Called by ds_model_trace.
 *
 * Each mini-batch is traced by itself and is one region, of which recomputation keeps nothing but
 * the vectors (run_spec.c asks for it): the backward pass makes one mini-batch again, uses it and
 * lets it go before the next. What the paper caches is the vectors' gradient, a value of the graph.
 */
#include "model/family.h"
#include "nn/nn.h"

/* Rows side by side; an operator takes a few. */
static ds_value join(ds_nn *nn, const ds_value *rows, uint32_t n)
{
    ds_value parts[DS_MAX_IN];
    const uint32_t each = (n + DS_MAX_IN - 1) / DS_MAX_IN;
    uint32_t n_parts = 0;
    if (n == 1) {
        return rows[0];
    }
    for (uint32_t at = 0; at < n; at += each) {
        parts[n_parts++] = join(nn, rows + at, each < n - at ? each : n - at);
    }
    return ds_nn_concat(nn, parts, n_parts, 0);
}

static ds_value trace_one(ds_nn *nn, ds_model_fn trace, const void *config, int64_t begin,
                          int64_t rows)
{
    const int64_t whole = nn->trace.batch;
    nn->whole_batch = whole;
    nn->mini_begin = begin;
    nn->trace.batch = rows;
    nn->embedded = DS_NONE;
    ds_graph_set_region(nn->graph, ++nn->n_regions);
    trace(nn, config);
    ds_graph_set_region(nn->graph, 0);
    nn->trace.batch = whole;
    nn->whole_batch = 0;
    return nn->embedded;
}

void ds_model_mini_batches(ds_nn *nn, ds_model_fn trace, const void *config)
{
    const int64_t each = (int64_t)nn->trace.task_params->contrast.mini_batch;
    const int64_t n = (nn->trace.batch + each - 1) / each;
    ds_value rows[DS_MODEL_MAX_MINI_BATCHES];
    if (n > DS_MODEL_MAX_MINI_BATCHES) {
        ds_nn_fail(nn, DS_ERR_LIMIT,
                   "the loss of embeddings: %lld rows in mini-batches of %lld are %lld; at most %d "
                   "are possible: take larger ones",
                   (long long)nn->trace.batch, (long long)each, (long long)n,
                   (int)DS_MODEL_MAX_MINI_BATCHES);
        return;
    }
    /* last first: the backward pass begins with the first, in the order of the rows */
    for (int64_t i = n; i-- > 0 && ds_nn_status(nn) >= 0;) {
        const int64_t begin = i * each;
        const int64_t left = nn->trace.batch - begin;
        rows[i] = trace_one(nn, trace, config, begin, each < left ? each : left);
    }
    if (ds_nn_status(nn) >= 0) {
        ds_model_contrast_rows(nn, join(nn, rows, (uint32_t)n));
    }
}
