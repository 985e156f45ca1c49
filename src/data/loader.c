/* Batches: the common part of both ways to cut a dataset. See include/deepspeed/data.h. */
#include "data/loader.h"

#include "base/arena.h"
#include "base/reserved.h"

#include <jansson.h>
#include <stdio.h>
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
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_loader_params", params));
    size_t bytes = 0;
    DS_TRY(check_params(ctx, params, &bytes));
    ds_loader *loader = calloc(1, sizeof *loader);
    if (loader == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a loader");
    }
    *loader = (ds_loader){.ctx = ctx, .dataset = dataset, .params = *params};
    loader->params.n_ranks = params->n_ranks == 0 ? 1 : params->n_ranks;
    loader->params.n_vocab = params->n_vocab == 0 ? (int64_t)INT32_MAX + 1 : params->n_vocab;
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
    loader->content = dsi_dataset_content(dataset);
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

int32_t dsi_loader_id(ds_loader *loader, uint64_t at)
{
    const int32_t id = dsi_tokens_get(loader->dataset->tokens, at);
    if (id < 0 || id >= loader->params.n_vocab) {
        loader->bad = at;
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
    loader->bad = DSI_NO_TOKEN;
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

static ds_status check_ids(const ds_loader *loader)
{
    const ds_dataset *dataset = loader->dataset;
    if (loader->bad == DSI_NO_TOKEN) {
        return DS_OK;
    }
    const uint64_t d = dsi_dataset_document(dataset, loader->bad);
    const int32_t id = dsi_tokens_get(dataset->tokens, loader->bad);
    if (id < 0) {
        return ds_fail(
            loader->ctx, DS_ERR_FORMAT,
            "token %llu of document %llu of the data is a number that can be no token id",
            (unsigned long long)(loader->bad - dataset->begin[d]), (unsigned long long)d);
    }
    return ds_fail(loader->ctx, DS_ERR_FORMAT,
                   "token %llu of document %llu of the data is %d, outside of the vocabulary of "
                   "%lld: the data was made with another tokenizer",
                   (unsigned long long)(loader->bad - dataset->begin[d]), (unsigned long long)d, id,
                   (long long)loader->params.n_vocab);
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
    loader->epoch = 0;
    loader->next = 0;
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
    return loader->dataset->info.samples ? dsi_loader_samples_rows(loader, loader->epoch)
                                         : dsi_loader_stream_rows(loader, loader->epoch);
}

uint64_t ds_loader_epoch(const ds_loader *loader)
{
    return loader->epoch;
}

/* What a cursor belongs to. */
enum { DIGEST_TEXT = 17 };

static void digest_text(const ds_loader *loader, char text[DIGEST_TEXT])
{
    (void)snprintf(text, DIGEST_TEXT, "%016llx",
                   (unsigned long long)dsi_dataset_digest(loader->dataset));
}

/* Older cursors have none. */
static void content_text(const ds_loader *loader, char text[DIGEST_TEXT])
{
    (void)snprintf(text, DIGEST_TEXT, "%016llx", (unsigned long long)loader->content);
}

ds_status ds_loader_save(const ds_loader *loader, char **json_out)
{
    char digest[DIGEST_TEXT];
    char content[DIGEST_TEXT];
    digest_text(loader, digest);
    content_text(loader, content);
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s}", "epoch",
                             (json_int_t)loader->epoch, "next", (json_int_t)loader->next, "seed",
                             (json_int_t)loader->params.seed, "seq_length",
                             (json_int_t)loader->params.seq_length, "n_tokens",
                             (json_int_t)loader->dataset->info.n_tokens, "n_documents",
                             (json_int_t)loader->dataset->n_docs, "shuffle",
                             (int)loader->params.shuffle, "digest", digest, "content", content);
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
    if (!json_is_integer(value)) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT, "the saved data cursor lacks the number \"%s\"",
                       key);
    }
    if ((uint64_t)json_integer_value(value) != own) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data or settings: %s was %lld, now it is "
                       "%llu",
                       key, (long long)json_integer_value(value), (unsigned long long)own);
    }
    return DS_OK;
}

static ds_status same_content(const ds_loader *loader, const json_t *json)
{
    char own[DIGEST_TEXT];
    const char *saved = json_string_value(json_object_get(json, "digest"));
    const json_t *shuffle = json_object_get(json, "shuffle");
    digest_text(loader, own);
    if (saved == NULL || !json_is_boolean(shuffle)) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT,
                       "the saved data cursor lacks its \"digest\" or \"shuffle\"");
    }
    if (json_is_true(shuffle) != loader->params.shuffle || strcmp(saved, own) != 0) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data or settings: %s",
                       strcmp(saved, own) != 0 ? "as many tokens and documents, but others"
                                               : "shuffle differs");
    }
    const char *content = json_string_value(json_object_get(json, "content"));
    content_text(loader, own);
    if (content != NULL && strcmp(content, own) != 0) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the saved data cursor is of other data: as many tokens and documents, but "
                       "some token, or whether it counts in the loss, is another");
    }
    return DS_OK;
}

/* A number from 0 to limit. */
static ds_status position(const ds_loader *loader, const json_t *json, const char *key,
                          json_int_t limit, uint64_t *value_out)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > limit) {
        return ds_fail(loader->ctx, DS_ERR_FORMAT,
                       "the saved data cursor lacks its position, a number \"%s\" from 0 to %lld",
                       key, (long long)limit);
    }
    *value_out = (uint64_t)json_integer_value(value);
    return DS_OK;
}

static ds_status restore(ds_loader *loader, const json_t *json)
{
    uint64_t epoch = 0;
    uint64_t next = 0;
    DS_TRY(same(loader, json, "seed", loader->params.seed));
    DS_TRY(same(loader, json, "seq_length", (uint64_t)loader->params.seq_length));
    DS_TRY(same(loader, json, "n_tokens", loader->dataset->info.n_tokens));
    DS_TRY(same(loader, json, "n_documents", loader->dataset->n_docs));
    DS_TRY(same_content(loader, json));
    DS_TRY(position(loader, json, "epoch", UINT32_MAX, &epoch)); /* the order knows 32 bits of it */
    DS_TRY(position(loader, json, "next", INT64_MAX, &next));
    loader->epoch = epoch;
    loader->next = next;
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
