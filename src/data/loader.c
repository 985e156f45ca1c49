/* Batches: the common part of both ways to cut a dataset. See include/deepspeed/data.h. */
#include "data/loader.h"

#include "base/arena.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* bytes_out: of a batch. Positions are i32. */
static ds_status check_params(ds_ctx *ctx, const ds_loader_params *params, size_t *bytes_out)
{
    if (params->batch < 1 || params->seq_length < 1 || params->seq_length > INT32_MAX ||
        !dsi_mul_size((size_t)params->batch, (size_t)params->seq_length, bytes_out) ||
        !dsi_mul_size(*bytes_out, 4 * sizeof(int32_t), bytes_out) ||
        *bytes_out > (size_t)PTRDIFF_MAX) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "batch %lld and sequence length %lld must be at least 1, and together fit "
                       "in memory",
                       (long long)params->batch, (long long)params->seq_length);
    }
    if (params->rank > 0 && params->rank >= params->n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG, "rank %u must be below the number of ranks, %u",
                       params->rank, params->n_ranks);
    }
    return DS_OK;
}

ds_status ds_loader_create(ds_ctx *ctx, const ds_dataset *dataset, const ds_loader_params *params,
                           ds_loader **loader_out)
{
    size_t bytes = 0;
    DS_TRY(check_params(ctx, params, &bytes));
    ds_loader *loader = calloc(1, sizeof *loader);
    if (loader == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a loader");
    }
    *loader = (ds_loader){.ctx = ctx, .dataset = dataset, .params = *params};
    loader->params.n_ranks = params->n_ranks == 0 ? 1 : params->n_ranks;
    loader->data = malloc(bytes);
    if (loader->data == NULL) {
        ds_loader_destroy(&loader);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a batch of %lld rows of %lld tokens",
                       (long long)params->batch, (long long)params->seq_length);
    }
    const ds_status status =
        dataset->info.samples ? dsi_loader_check_samples(loader) : dsi_loader_check_stream(loader);
    if (status < 0) {
        ds_loader_destroy(&loader);
        return status;
    }
    *loader_out = loader;
    return DS_OK;
}

void ds_loader_destroy(ds_loader **loader)
{
    if (loader != NULL && *loader != NULL) {
        free((*loader)->data);
        free(*loader);
        *loader = NULL;
    }
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
}

static dsi_row row_at(ds_loader *loader, int64_t index)
{
    const int64_t length = loader->params.seq_length;
    const int64_t plane = loader->params.batch * length;
    int32_t *base = loader->data + index * length;
    return (dsi_row){base, base + plane, base + 2 * plane, base + 3 * plane};
}

static bool fill_row(ds_loader *loader, const dsi_row *row, bool once)
{
    return loader->dataset->info.samples ? dsi_loader_row_samples(loader, row, once)
                                         : dsi_loader_row_stream(loader, row, once);
}

/* The rows of all ranks: own ones are filled, others passed over. Returns whether any rank got one;
 * without `once` all do. */
static bool fill_batch(ds_loader *loader, bool once)
{
    const ds_loader_params *p = &loader->params;
    bool any = false;
    loader->batch_tokens = 0;
    for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
        for (int64_t i = 0; i < p->batch; ++i) {
            const dsi_row row = row_at(loader, i);
            const bool own = rank == p->rank;
            if (fill_row(loader, own ? &row : NULL, once)) {
                any = true;
            } else if (own) {
                dsi_loader_clear_row(row, 0, p->seq_length);
            }
        }
    }
    return any;
}

static ds_loader_batch view(ds_loader *loader)
{
    const ds_meta meta = {DS_DTYPE_I32,
                          ds_shape_2d(loader->params.batch, loader->params.seq_length)};
    const dsi_row row = row_at(loader, 0);
    return (ds_loader_batch){.input_ids = {row.input_ids, meta},
                             .targets = {row.targets, meta},
                             .positions = {row.positions, meta},
                             .first = {row.first, meta},
                             .n_tokens = loader->batch_tokens};
}

ds_status ds_loader_next(ds_loader *loader, ds_loader_batch *batch_out)
{
    (void)fill_batch(loader, false);
    *batch_out = view(loader);
    return DS_OK;
}

void ds_loader_rewind(ds_loader *loader)
{
    loader->epoch = 0;
    loader->next = 0;
}

ds_status ds_loader_next_once(ds_loader *loader, ds_loader_batch *batch_out, bool *done_out)
{
    *done_out = !fill_batch(loader, true);
    *batch_out = view(loader);
    return DS_OK;
}

uint64_t ds_loader_epoch_rows(const ds_loader *loader)
{
    const uint64_t length = (uint64_t)loader->params.seq_length;
    if (!loader->dataset->info.samples) {
        return dsi_loader_stream_rows(loader, 0);
    }
    return (loader->dataset->info.n_tokens + length - 1) / length;
}

uint64_t ds_loader_epoch(const ds_loader *loader)
{
    return loader->epoch;
}

ds_status ds_loader_save(const ds_loader *loader, char **json_out)
{
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "epoch", (json_int_t)loader->epoch, "next",
                  (json_int_t)loader->next, "seed", (json_int_t)loader->params.seed, "seq_length",
                  (json_int_t)loader->params.seq_length, "n_tokens",
                  (json_int_t)loader->dataset->info.n_tokens, "n_documents",
                  (json_int_t)loader->dataset->n_docs, "shuffle", (int)loader->params.shuffle);
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL) {
        return ds_fail(loader->ctx, DS_ERR_NOMEM, "no memory for the data cursor");
    }
    *json_out = text;
    return DS_OK;
}

static ds_status same(const ds_loader *loader, const json_t *json, const char *key, uint64_t own)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value) || (uint64_t)json_integer_value(value) != own) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data or settings: %s was %lld, now it is "
                       "%llu",
                       key, (long long)json_integer_value(value), (unsigned long long)own);
    }
    return DS_OK;
}

static ds_status restore(ds_loader *loader, const json_t *json)
{
    const json_t *epoch = json_object_get(json, "epoch");
    const json_t *next = json_object_get(json, "next");
    DS_TRY(same(loader, json, "seed", loader->params.seed));
    DS_TRY(same(loader, json, "seq_length", (uint64_t)loader->params.seq_length));
    DS_TRY(same(loader, json, "n_tokens", loader->dataset->info.n_tokens));
    DS_TRY(same(loader, json, "n_documents", loader->dataset->n_docs));
    if (!json_is_integer(epoch) || !json_is_integer(next) || json_integer_value(epoch) < 0 ||
        json_integer_value(next) < 0) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT, "the saved data cursor lacks its position");
    }
    loader->epoch = (uint64_t)json_integer_value(epoch);
    loader->next = (uint64_t)json_integer_value(next);
    return DS_OK;
}

ds_status ds_loader_restore(ds_loader *loader, const char *text)
{
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    if (json == NULL) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT, "the saved data cursor is no JSON: %s",
                       error.text);
    }
    const ds_status status = restore(loader, json);
    json_decref(json);
    return status;
}
