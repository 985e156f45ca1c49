/* Datasets: storage, opening by file kind, splitting. See include/deepspeed/data.h. */
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int32_t dsi_tokens_get(const dsi_tokens *tokens, uint64_t at)
{
    if (tokens->ids != NULL) {
        return tokens->ids[at];
    }
    uint64_t value = 0;
    memcpy(&value, tokens->mapped + at * tokens->mapped_bytes, tokens->mapped_bytes);
    return (int32_t)value;
}

uint64_t dsi_dataset_document(const ds_dataset *dataset, uint64_t at)
{
    uint64_t low = 0;
    uint64_t high = dataset->n_docs;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (dataset->begin[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void release(dsi_tokens *tokens)
{
    if (tokens == NULL || --tokens->n_users > 0) {
        return;
    }
    if (tokens->map != NULL) {
        (void)munmap(tokens->map, tokens->map_bytes);
    }
    free(tokens->ids);
    free(tokens->counted);
    free(tokens);
}

void ds_dataset_close(ds_dataset **dataset)
{
    if (dataset != NULL && *dataset != NULL) {
        release((*dataset)->tokens);
        free((*dataset)->begin);
        free(*dataset);
        *dataset = NULL;
    }
}

static ds_status no_memory(const ds_dataset *dataset)
{
    return ds_fail(dataset->ctx, DS_ERR_NOMEM, "no memory for %llu tokens",
                   (unsigned long long)dataset->tokens->n);
}

static ds_status reserve(ds_dataset *dataset, uint64_t n)
{
    dsi_tokens *tokens = dataset->tokens;
    if (tokens->n + n <= tokens->room) {
        return DS_OK;
    }
    const uint64_t room = tokens->room * 2 > tokens->n + n ? tokens->room * 2 : tokens->n + n;
    int32_t *ids = realloc(tokens->ids, room * sizeof *ids);
    if (ids == NULL) {
        return no_memory(dataset);
    }
    tokens->ids = ids;
    uint8_t *counted = tokens->counted == NULL ? NULL : realloc(tokens->counted, room);
    if (tokens->counted != NULL) {
        if (counted == NULL) {
            return no_memory(dataset);
        }
        tokens->counted = counted;
    }
    tokens->room = room;
    return DS_OK;
}

/* Makes the flags of what is there so far, when the first document with flags arrives. */
static ds_status need_flags(ds_dataset *dataset)
{
    dsi_tokens *tokens = dataset->tokens;
    if (tokens->counted == NULL) {
        tokens->counted = malloc(tokens->room + 1);
        if (tokens->counted == NULL) {
            return no_memory(dataset);
        }
        memset(tokens->counted, 1, tokens->n);
    }
    return DS_OK;
}

ds_status dsi_dataset_append(ds_dataset *dataset, const uint32_t *ids, const uint8_t *counted,
                             uint64_t n)
{
    dsi_tokens *tokens = dataset->tokens;
    if (n == 0) {
        return DS_OK;
    }
    DS_TRY(reserve(dataset, n));
    if (counted != NULL) {
        DS_TRY(need_flags(dataset));
    }
    if ((dataset->n_docs & (dataset->n_docs + 1)) == 0) { /* begin is full at 2^k - 1 documents */
        uint64_t *begin =
            realloc(dataset->begin, (dataset->n_docs + 1) * 2 * sizeof *dataset->begin);
        if (begin == NULL) {
            return no_memory(dataset);
        }
        begin[0] = 0;
        dataset->begin = begin;
    }
    for (uint64_t i = 0; i < n; ++i) {
        tokens->ids[tokens->n + i] = (int32_t)ids[i];
        dataset->info.max_id = ids[i] > dataset->info.max_id ? ids[i] : dataset->info.max_id;
    }
    if (tokens->counted != NULL && counted != NULL) {
        memcpy(tokens->counted + tokens->n, counted, n);
    } else if (tokens->counted != NULL) {
        memset(tokens->counted + tokens->n, 1, n);
    }
    tokens->n += n;
    dataset->begin[++dataset->n_docs] = tokens->n;
    return DS_OK;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text);
    const size_t m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static ds_status read_file(ds_dataset *dataset, const ds_dataset_params *params, const char *path)
{
    if (params->tokenizer == NULL) {
        return ds_fail(dataset->ctx, DS_ERR_ARG, "%s: a tokenizer is needed for text", path);
    }
    if (ends_with(path, ".txt")) {
        return dsi_dataset_read_text(dataset, params, path);
    }
    return ds_fail(dataset->ctx, DS_ERR_ARG, "%s: the kind of data is told by the ending .txt",
                   path);
}

static ds_status open_files(ds_dataset *dataset, const ds_dataset_params *params)
{
    bool samples = false;
    for (uint32_t i = 0; i < params->n_files; ++i) {
        DS_TRY(read_file(dataset, params, params->files[i]));
        if (i > 0 && samples != dataset->info.samples) {
            return ds_fail(dataset->ctx, DS_ERR_ARG,
                           "%s holds another kind of data than the files before it: plain text and "
                           "prompts or messages cannot be mixed",
                           params->files[i]);
        }
        samples = dataset->info.samples;
    }
    dataset->info.n_documents = dataset->n_docs;
    dataset->info.n_tokens = dataset->tokens->n;
    if (dataset->tokens->n == 0) {
        return ds_fail(dataset->ctx, DS_ERR_ARG, "%s: no data",
                       params->n_files > 0 ? params->files[0] : "no file");
    }
    return DS_OK;
}

ds_status ds_dataset_open(ds_ctx *ctx, const ds_dataset_params *params, ds_dataset **dataset_out)
{
    ds_dataset *dataset = calloc(1, sizeof *dataset);
    dsi_tokens *tokens = calloc(1, sizeof *tokens);
    if (dataset == NULL || tokens == NULL) {
        free(dataset);
        free(tokens);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a dataset");
    }
    dataset->ctx = ctx;
    dataset->tokens = tokens;
    tokens->n_users = 1;
    const ds_status status = open_files(dataset, params);
    if (status < 0) {
        ds_dataset_close(&dataset);
        return status;
    }
    *dataset_out = dataset;
    return DS_OK;
}

ds_dataset_info ds_dataset_get_info(const ds_dataset *dataset)
{
    return dataset->info;
}

/* Cuts at token `at`; a document that spans the cut becomes two. */
static ds_status cut(ds_dataset *head, uint64_t at, ds_dataset *tail)
{
    const uint64_t d = dsi_dataset_document(head, at);
    const uint64_t n_tail = head->n_docs - d;
    tail->begin = malloc((n_tail + 2) * sizeof *tail->begin);
    if (tail->begin == NULL) {
        return no_memory(head);
    }
    memcpy(tail->begin, head->begin + d, (n_tail + 1) * sizeof *tail->begin);
    tail->begin[0] = at;
    tail->n_docs = n_tail;
    if (head->begin[d] < at) {
        head->begin[d + 1] = at;
        head->n_docs = d + 1;
    } else {
        head->n_docs = d;
    }
    return DS_OK;
}

static void recount(ds_dataset *dataset)
{
    dataset->info.n_documents = dataset->n_docs;
    dataset->info.n_tokens =
        dataset->n_docs == 0 ? 0 : dataset->begin[dataset->n_docs] - dataset->begin[0];
}

ds_status ds_dataset_split(ds_dataset *dataset, double fraction, ds_dataset **tail_out)
{
    if (!(fraction > 0.0 && fraction < 1.0)) {
        return ds_fail(dataset->ctx, DS_ERR_ARG, "the split fraction must be between 0 and 1");
    }
    const uint64_t start = dataset->begin[0];
    uint64_t at =
        dataset->begin[dataset->n_docs] - (uint64_t)((double)dataset->info.n_tokens * fraction);
    if (dataset->info.samples) {
        const uint64_t n = (uint64_t)((double)dataset->n_docs * fraction);
        at = dataset->begin[dataset->n_docs - n];
    }
    if (at <= start || at >= dataset->begin[dataset->n_docs]) {
        return ds_fail(dataset->ctx, DS_ERR_ARG, "the data is too small to split off %g of it",
                       fraction);
    }
    ds_dataset *tail = calloc(1, sizeof *tail);
    if (tail == NULL) {
        return no_memory(dataset);
    }
    *tail = (ds_dataset){.ctx = dataset->ctx, .tokens = dataset->tokens, .info = dataset->info};
    dataset->tokens->n_users += 1;
    const ds_status status = cut(dataset, at, tail);
    if (status < 0) {
        ds_dataset_close(&tail);
        return status;
    }
    recount(dataset);
    recount(tail);
    *tail_out = tail;
    return DS_OK;
}
