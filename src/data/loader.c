/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: the common part of both ways to cut a dataset. See include/deepspeed/data.h. */
#include "data/loader.h"

#include "base/arena.h"
#include "base/reserved.h"

#include <deepspeed/context.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* bytes_out: of a batch. Positions are i32. */
static ds_status check_params(ds_ctx *ctx, const ds_loader_params *params, size_t *bytes_out)
{
    if (params->batch < 1 || params->seq_length < 1 || params->seq_length > INT32_MAX ||
        !dsi_mul_size((size_t)params->batch, (size_t)params->seq_length, bytes_out) ||
        !dsi_mul_size(*bytes_out, 5 * sizeof(int32_t), bytes_out) ||
        *bytes_out > (size_t)PTRDIFF_MAX) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "batch %lld and sequence length %lld must be at least 1, and together fit "
                       "in memory",
                       (long long)params->batch, (long long)params->seq_length);
    }
    if (params->alone > 1) {
        return ds_fail(ctx, DS_ERR_ARG, "ds_loader_params.alone: expected 0 or 1, found %llu",
                       (unsigned long long)params->alone);
    }
    if (params->masking != NULL && params->preference != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "rows of preferences are not masked");
    }
    if (params->masking != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_masking", params->masking));
        DS_TRY(dsi_loader_check_masking(ctx, params->masking));
    }
    if (params->rank > 0 && params->rank >= params->n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG, "rank %u must be below the number of ranks, %u",
                       params->rank, params->n_ranks);
    }
    return DS_OK;
}

static ds_status check_weight(ds_ctx *ctx, double weight)
{
    return weight > 0.0 && isfinite(weight)
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG, "the weight %g of a data source must be above 0", weight);
}

static ds_status check_lane(const ds_loader *loader, uint32_t i)
{
    const dsi_lane *lane = &loader->lanes[i];
    DS_TRY(check_weight(loader->ctx, lane->weight));
    if (loader->params.masking != NULL && lane->dataset->info.rows >= DS_ROWS_CLASSES) {
        return ds_fail(loader->ctx, DS_ERR_ARG, "rows of classes and of sources are not masked");
    }
    if (lane->dataset->info.samples != loader->samples) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "prompts or messages cannot be mixed with plain text or indexed data: give "
                       "one kind");
    }
    if (loader->params.alone != 0 && !loader->samples) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "a row for each sample (--packing false): the data is text, which is cut "
                       "into full rows; leave it out, or give rows of samples");
    }
    return loader->samples ? dsi_loader_check_samples(loader, lane)
                           : dsi_loader_check_stream(loader, lane);
}

/* The same dataset twice has two orders. */
static ds_status set_lanes(ds_loader *loader, const ds_dataset *const *datasets,
                           const double *weights)
{
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        dsi_lane *lane = &loader->lanes[i];
        lane->dataset = datasets[i];
        lane->seed = loader->params.seed + i * UINT64_C(0x9E3779B97F4A7C15);
        lane->weight = weights != NULL ? weights[i] : 1.0;
        const ds_status status = check_lane(loader, i);
        if (status < 0 && loader->n_lanes > 1) {
            char reason[512];
            (void)snprintf(reason, sizeof reason, "%s", ds_ctx_error(loader->ctx));
            return ds_fail(loader->ctx, status, "data source %u: %s", i + 1, reason);
        }
        DS_TRY(status);
        const uint64_t parts[2] = {loader->content, dsi_dataset_content(lane->dataset)};
        loader->content = i > 0 ? XXH3_64bits(parts, sizeof parts) : parts[1];
    }
    dsi_loader_share(loader);
    return DS_OK;
}

/* bytes: of a row for each draw. first: the first data set. */
static ds_status allocate(ds_loader *loader, const ds_dataset *first, size_t bytes)
{
    loader->lanes = calloc(loader->n_lanes, 2 * sizeof *loader->lanes);
    if (loader->lanes != NULL) {
        loader->lanes[0].dataset = first;
    }
    loader->data = malloc(bytes * (size_t)dsi_loader_rows_each(loader));
    return loader->data != NULL && loader->lanes != NULL
               ? DS_OK
               : ds_fail(loader->ctx, DS_ERR_NOMEM,
                         "no memory for a batch of %lld rows of %lld tokens",
                         (long long)loader->params.batch, (long long)loader->params.seq_length);
}

ds_status ds_loader_create_mixed(ds_ctx *ctx, const ds_dataset *const *datasets,
                                 const double *weights, uint32_t n_datasets,
                                 const ds_loader_params *params, ds_loader **loader_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_loader_params", params));
    size_t bytes = 0;
    DS_TRY(check_params(ctx, params, &bytes));
    if (n_datasets == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "a loader needs data");
    }
    ds_loader *loader = calloc(1, sizeof *loader);
    if (loader == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a loader");
    }
    *loader = (ds_loader){.ctx = ctx, .params = *params, .n_lanes = n_datasets};
    if (params->masking != NULL) {
        loader->masking = *params->masking;
        loader->params.masking = &loader->masking;
    }
    loader->params.n_ranks = params->n_ranks == 0 ? 1 : params->n_ranks;
    loader->params.n_vocab = params->n_vocab == 0 ? (int64_t)INT32_MAX + 1 : params->n_vocab;
    loader->samples = datasets[0]->info.samples;
    ds_status status = allocate(loader, datasets[0], bytes);
    if (status >= 0) {
        status = set_lanes(loader, datasets, weights);
    }
    if (status >= 0) {
        status = dsi_loader_open_preference(loader);
    }
    if (status >= 0) {
        status = dsi_loader_open_task(loader);
    }
    if (status < 0) {
        ds_loader_destroy(&loader);
        return status;
    }
    *loader_out = loader;
    return DS_OK;
}

ds_status ds_loader_create(ds_ctx *ctx, const ds_dataset *dataset, const ds_loader_params *params,
                           ds_loader **loader_out)
{
    return ds_loader_create_mixed(ctx, &dataset, NULL, 1, params, loader_out);
}

void ds_loader_destroy(ds_loader **loader)
{
    if (loader != NULL && *loader != NULL) {
        dsi_loader_close_preference(*loader);
        dsi_loader_close_task(*loader);
        free((*loader)->lanes);
        free((*loader)->data);
        free(*loader);
        *loader = NULL;
    }
}

int32_t dsi_loader_id(ds_loader *loader, const ds_dataset *dataset, uint64_t at)
{
    const int32_t id = dsi_store_get(dataset->tokens, at);
    if (id < 0 || id >= loader->params.n_vocab) {
        loader->bad = at;
        loader->bad_dataset = dataset;
    }
    return id;
}

/* A row without content: padding that neither counts nor is seen. */
void dsi_loader_clear_row(dsi_row row, int64_t from, int64_t length)
{
    for (int64_t i = from; i < length; ++i) {
        row.input_ids[i] = 0;
        row.targets[i] = -100;
        row.positions[i] = (int32_t)(i - from);
        row.first[i] = (int32_t)from;
    }
    for (int64_t i = from; i < length && row.sources != NULL; ++i) {
        row.sources[i] = -1;
    }
}

void dsi_loader_mark_source(const ds_loader *loader, const dsi_lane *lane, dsi_row row,
                            int64_t origin, int64_t n)
{
    for (int64_t i = 0; i < n && row.sources != NULL; ++i) {
        row.sources[origin + i] = (int32_t)(lane - loader->lanes);
    }
}

dsi_row dsi_loader_row_at(ds_loader *loader, int64_t index)
{
    const int64_t length = loader->params.seq_length;
    const int64_t plane = loader->params.batch * dsi_loader_rows_each(loader) * length;
    int32_t *base = loader->data + index * length;
    return (dsi_row){base, base + plane, base + 2 * plane, base + 3 * plane,
                     loader->n_lanes > 1 ? base + 4 * plane : NULL};
}

/* The lanes of a mixture go on where they are. */
static void begin_epoch(ds_loader *loader)
{
    if (loader->n_lanes == 1 || !loader->params.shuffle) {
        dsi_loader_rewind_to(loader, loader->epoch + 1, 0);
    } else {
        loader->epoch += 1;
        loader->next = 0;
    }
}

static bool is_contrast(const ds_loader *loader)
{
    return loader->lanes[0].dataset->info.rows == DS_ROWS_CONTRAST;
}

/* index below 0: another rank's. False: the epoch is over, and another is not to begin. */
static bool fill_row(ds_loader *loader, int64_t index, bool once)
{
    const dsi_row own = dsi_loader_row_at(loader, index < 0 ? 0 : index);
    const dsi_row *row = index < 0 ? NULL : &own;
    if (loader->next >= dsi_loader_draws(loader)) {
        if (once) {
            return false;
        }
        begin_epoch(loader);
    }
    if (loader->preference != NULL) {
        dsi_loader_draw_preference(loader, index);
    } else if (is_contrast(loader)) {
        dsi_loader_draw_contrast(loader, index);
    } else if (loader->samples) {
        dsi_loader_row_samples(loader, row);
    } else {
        dsi_loader_row_stream(loader, row);
    }
    return true;
}

/* The rows of all ranks: own ones are filled, others passed over. Returns whether any rank got one;
 * without `once` all do. */
static bool fill_batch(ds_loader *loader, bool once)
{
    const ds_loader_params *p = &loader->params;
    bool any = false;
    loader->batch_tokens = 0;
    loader->bad = DSI_NO_TOKEN;
    dsi_loader_clear_task(loader);
    for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
        for (int64_t i = 0; i < p->batch; ++i) {
            const bool own = rank == p->rank;
            if (fill_row(loader, own ? i : -1, once)) {
                any = true;
            } else if (own && loader->preference != NULL) {
                dsi_loader_clear_preference(loader, i);
            } else if (own && is_contrast(loader)) {
                dsi_loader_clear_contrast(loader, i);
            } else if (own) {
                dsi_loader_clear_row(dsi_loader_row_at(loader, i), 0, p->seq_length);
            }
        }
    }
    return any;
}

static ds_loader_batch view(ds_loader *loader)
{
    const int64_t rows = loader->params.batch * dsi_loader_rows_each(loader);
    const ds_meta meta = {DS_DTYPE_I32, ds_shape_2d(rows, loader->params.seq_length)};
    const bool marks = loader->n_lanes > 1 && loader->preference == NULL && !is_contrast(loader);
    const dsi_row row = dsi_loader_row_at(loader, 0);
    loader->sources = (ds_tensor){row.sources, meta};
    return (ds_loader_batch){.input_ids = {row.input_ids, meta},
                             .targets = {row.targets, meta},
                             .positions = {row.positions, meta},
                             .first = {row.first, meta},
                             .n_tokens = loader->batch_tokens,
                             .sources = marks ? &loader->sources : NULL,
                             .preference = dsi_loader_view_preference(loader),
                             .task = dsi_loader_view_task(loader)};
}

static ds_status check_ids(const ds_loader *loader)
{
    const ds_dataset *dataset = loader->bad_dataset;
    if (loader->bad == DSI_NO_TOKEN) {
        return DS_OK;
    }
    const uint64_t d = dsi_dataset_document(dataset, loader->bad);
    const int32_t id = dsi_store_get(dataset->tokens, loader->bad);
    if (id < 0) {
        return ds_fail(
            loader->ctx, DS_ERR_FORMAT,
            "token %llu of document %llu of the data is a number that can be no token id",
            (unsigned long long)(loader->bad - dsi_dataset_begin(dataset, d)),
            (unsigned long long)d);
    }
    return ds_fail(loader->ctx, DS_ERR_FORMAT,
                   "token %llu of document %llu of the data is %d, outside of the vocabulary of "
                   "%lld: the data was made with another tokenizer",
                   (unsigned long long)(loader->bad - dsi_dataset_begin(dataset, d)),
                   (unsigned long long)d, id, (long long)loader->params.n_vocab);
}

ds_status ds_loader_next(ds_loader *loader, ds_loader_batch *batch_out)
{
    (void)fill_batch(loader, false);
    DS_TRY(check_ids(loader));
    *batch_out = view(loader);
    return DS_OK;
}

void ds_loader_rewind(ds_loader *loader)
{
    dsi_loader_rewind_to(loader, 0, 0);
}

ds_status ds_loader_next_once(ds_loader *loader, ds_loader_batch *batch_out, bool *done_out)
{
    const bool any = fill_batch(loader, true);
    DS_TRY(check_ids(loader));
    *done_out = !any;
    *batch_out = view(loader);
    return DS_OK;
}

uint64_t ds_loader_epoch_rows(const ds_loader *loader)
{
    ds_loader at = *loader;
    if (!loader->samples || loader->preference != NULL || is_contrast(loader)) {
        return dsi_loader_draws(loader);
    }
    at.lanes += loader->n_lanes;
    memcpy(at.lanes, loader->lanes, loader->n_lanes * sizeof *at.lanes);
    at.next = 0;
    if (loader->n_lanes == 1) {
        dsi_loader_rewind_to(&at, loader->epoch, 0);
    }
    return dsi_loader_pack_epoch(&at);
}

uint64_t ds_loader_epoch(const ds_loader *loader)
{
    return loader->epoch;
}
