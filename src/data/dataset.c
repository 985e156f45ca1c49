/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: opening, splitting, what cursors ask. See include/deepspeed/data.h. */
#include "data/dataset.h"

#include "base/reserved.h"
#include "data/data_cache.h"
#include "data/data_take.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

uint64_t dsi_dataset_digest(const ds_dataset *dataset)
{
    enum { PROBES = 64 };
    const uint64_t first = dataset->first;
    const uint64_t n = dataset->end - first;
    uint64_t facts[2 * PROBES + 2] = {dataset->n_docs, n};
    for (uint64_t i = 0; i < PROBES && n > 0; ++i) {
        const uint64_t doc = dataset->n_docs / PROBES * i + dataset->n_docs % PROBES * i / PROBES;
        const uint64_t at = n / PROBES * i + n % PROBES * i / PROBES;
        facts[2 + 2 * i] = dsi_dataset_begin(dataset, doc) - first;
        facts[3 + 2 * i] = (uint64_t)dsi_store_get(dataset->tokens, first + at);
    }
    return XXH3_64bits(facts, sizeof facts);
}

uint64_t dsi_dataset_content(const ds_dataset *dataset)
{
    const uint64_t parts[3] = {dataset->tokens->content, dataset->first, dataset->end};
    return XXH3_64bits(parts, sizeof parts);
}

uint64_t dsi_dataset_document(const ds_dataset *dataset, uint64_t at)
{
    uint64_t low = 0;
    uint64_t high = dataset->n_docs;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (dsi_dataset_begin(dataset, middle) <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

void ds_dataset_close(ds_dataset **dataset)
{
    if (dataset != NULL && *dataset != NULL) {
        dsi_store_release((*dataset)->tokens);
        free((*dataset)->reference);
        free(*dataset);
        *dataset = NULL;
    }
}

static ds_status add_to_memory(void *user, const uint32_t *ids, const uint8_t *counted, uint64_t n,
                               bool joins)
{
    ds_dataset *dataset = user;
    return dsi_store_add(dataset->ctx, dataset->tokens, ids, counted, n, joins);
}

static ds_status add_reference(void *user, const float logps[2])
{
    ds_dataset *dataset = user;
    const uint64_t n = dataset->n_reference;
    if ((n & (n - 1)) == 0) { /* the room is full at 2^k numbers */
        float *grown = realloc(dataset->reference, (n > 0 ? 2 * n : 2) * sizeof *grown);
        if (grown == NULL) {
            return ds_fail(dataset->ctx, DS_ERR_NOMEM, "no memory for the reference");
        }
        dataset->reference = grown;
    }
    memcpy(dataset->reference + n, logps, 2 * sizeof *logps);
    dataset->n_reference = n + 2;
    return DS_OK;
}

/* The only file, of indexed data: stays mapped. Its ids are not read now. */
static ds_status map_indexed(ds_dataset *dataset, const char *path)
{
    dsi_indexed x;
    DS_TRY(dsi_indexed_open(dataset->ctx, path, &x));
    dsi_store_take_indexed(dataset->tokens, &x);
    dsi_store_seal(dataset->tokens);
    dataset->longest = UINT64_MAX;
    return dataset->tokens->n > 0 ? DS_OK : ds_fail(dataset->ctx, DS_ERR_ARG, "%s: no data", path);
}

static ds_status fill(ds_dataset *dataset, const ds_dataset_params *params)
{
    dsi_take take = {.add = add_to_memory, .reference = add_reference, .user = dataset};
    dataset->info.rows = (uint8_t)params->rows;
    dataset->n_head = (uint32_t)dsi_values_head(params);
    dataset->n_parts = 2 + (uint32_t)params->n_negatives;
    for (uint32_t i = 0; i < params->n_files && params->rows != DS_ROWS_TEXT; ++i) {
        if (dsi_take_is_indexed(params->files[i])) {
            return ds_fail(
                dataset->ctx, DS_ERR_ARG,
                "%s: indexed data has neither preferences nor classes; give rows of them",
                params->files[i]);
        }
    }
    if (params->n_files == 1 && dsi_take_is_indexed(params->files[0])) {
        return map_indexed(dataset, params->files[0]);
    }
    if (dsi_cache_wanted(params)) {
        dsi_cache_meta meta;
        DS_TRY(dsi_cache_open(dataset->ctx, params, dataset->tokens, &meta));
        dataset->info = meta.info;
        dataset->longest = meta.longest;
        return DS_OK;
    }
    DS_TRY(dsi_take_files(dataset->ctx, params, &take));
    dataset->info = take.info;
    dataset->longest = take.longest;
    dsi_store_seal(dataset->tokens);
    return DS_OK;
}

/* What the dataset holds of its store. */
static void count(ds_dataset *dataset)
{
    dataset->info.n_documents = dataset->n_docs;
    dataset->info.n_tokens =
        dataset->end - dataset->first - dataset->n_docs * (uint64_t)dataset->n_head;
}

static ds_status open_files(ds_dataset *dataset, const ds_dataset_params *params)
{
    DS_TRY(fill(dataset, params));
    dataset->end = dataset->tokens->n;
    dataset->n_docs = dataset->tokens->n_docs;
    count(dataset);
    return DS_OK;
}

ds_status ds_dataset_open(ds_ctx *ctx, const ds_dataset_params *params, ds_dataset **dataset_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_dataset_params", params));
    ds_dataset *dataset = calloc(1, sizeof *dataset);
    dsi_store *tokens = dsi_store_make();
    if (dataset == NULL || tokens == NULL) {
        free(dataset);
        dsi_store_release(tokens);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a dataset");
    }
    dataset->ctx = ctx;
    dataset->tokens = tokens;
    const ds_status status = open_files(dataset, params);
    if (status < 0) {
        ds_dataset_close(&dataset);
        return status;
    }
    *dataset_out = dataset;
    return DS_OK;
}

uint64_t ds_dataset_n_draws(const ds_dataset *dataset)
{
    return dataset->n_docs / dsi_dataset_each(dataset);
}

bool ds_dataset_has_reference(const ds_dataset *dataset)
{
    return dataset->reference != NULL;
}

ds_status ds_dataset_set_reference(ds_dataset *dataset, const float *logps, size_t count)
{
    const uint64_t want = 2 * ds_dataset_n_draws(dataset);
    if (dataset->info.rows == DS_ROWS_TEXT || count != want) {
        return ds_fail(dataset->ctx, DS_ERR_ARG,
                       "%zu log-probabilities of the reference, expected %llu, of a data set of "
                       "preferences",
                       count, (unsigned long long)want);
    }
    float *copy = malloc(count * sizeof *copy);
    if (copy == NULL) {
        return ds_fail(dataset->ctx, DS_ERR_NOMEM, "no memory for %zu log-probabilities", count);
    }
    memcpy(copy, logps, count * sizeof *copy);
    free(dataset->reference);
    dataset->reference = copy;
    dataset->n_reference = count;
    return DS_OK;
}

ds_dataset_info ds_dataset_get_info(const ds_dataset *dataset)
{
    return dataset->info;
}

/* Cuts at token `at`; a document that spans the cut becomes two. */
static void cut(ds_dataset *head, uint64_t at, ds_dataset *tail)
{
    const uint64_t d = dsi_dataset_document(head, at);
    const bool spans = dsi_dataset_begin(head, d) < at;
    tail->first = at;
    tail->first_doc = head->first_doc + d;
    tail->n_docs = head->n_docs - d;
    head->end = at;
    head->n_docs = d + spans;
    count(head);
    count(tail);
}

/* The tail's numbers into `room`. */
static void split_reference(const ds_dataset *head, ds_dataset *tail, float *room)
{
    const uint64_t first = 2 * ds_dataset_n_draws(head);
    if (tail->reference == NULL) {
        free(room);
        return;
    }
    memcpy(room, head->reference + first, (head->n_reference - first) * sizeof *room);
    tail->reference = room;
    tail->n_reference = head->n_reference - first;
}

ds_status ds_dataset_split(ds_dataset *dataset, double fraction, ds_dataset **tail_out)
{
    if (!(fraction > 0.0 && fraction < 1.0)) {
        return ds_fail(dataset->ctx, DS_ERR_ARG, "the split fraction must be between 0 and 1");
    }
    uint64_t at = dataset->end - (uint64_t)((double)(dataset->end - dataset->first) * fraction);
    if (dataset->info.samples) {
        const uint64_t each = dsi_dataset_each(dataset);
        const uint64_t n = each * (uint64_t)((double)(dataset->n_docs / each) * fraction);
        at = dsi_dataset_begin(dataset, dataset->n_docs - n);
    }
    if (at <= dataset->first || at >= dataset->end) {
        return ds_fail(dataset->ctx, DS_ERR_ARG, "the data is too small to split off %g of it",
                       fraction);
    }
    ds_dataset *tail = malloc(sizeof *tail);
    float *reference = malloc((dataset->n_reference + 1) * sizeof *reference);
    if (tail == NULL || reference == NULL) {
        free(tail);
        free(reference);
        return ds_fail(dataset->ctx, DS_ERR_NOMEM, "no memory for a dataset");
    }
    *tail = *dataset;
    dataset->tokens->n_users += 1;
    cut(dataset, at, tail);
    split_reference(dataset, tail, reference);
    *tail_out = tail;
    return DS_OK;
}
