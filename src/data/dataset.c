/* Datasets: storage, opening by file kind, splitting. See include/deepspeed/data.h. */
#include "data/dataset.h"

#include "base/reserved.h"
#include "data/indexed.h"
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What a source's sink needs. */
typedef struct taker {
    ds_dataset *dataset;
    const ds_dataset_params *params;
    const char *path;
} taker;

int32_t dsi_tokens_get(const dsi_tokens *tokens, uint64_t at)
{
    if (tokens->ids != NULL) {
        return tokens->ids[at];
    }
    const uint32_t bytes = tokens->mapped_bytes;
    uint64_t value = 0;
    memcpy(&value, tokens->map.data + at * bytes, bytes);
    const bool negative = tokens->mapped_signed && value >> (8 * bytes - 1) != 0;
    return negative || value > INT32_MAX ? -1 : (int32_t)value;
}

uint64_t dsi_dataset_digest(const ds_dataset *dataset)
{
    enum { PROBES = 64 };
    const uint64_t first = dataset->begin[0];
    const uint64_t n = dataset->begin[dataset->n_docs] - first;
    uint64_t facts[2 * PROBES + 2] = {dataset->n_docs, n};
    for (uint64_t i = 0; i < PROBES && n > 0; ++i) {
        const uint64_t doc = dataset->n_docs / PROBES * i + dataset->n_docs % PROBES * i / PROBES;
        const uint64_t at = n / PROBES * i + n % PROBES * i / PROBES;
        facts[2 + 2 * i] = dataset->begin[doc] - first;
        facts[3 + 2 * i] = (uint64_t)dsi_tokens_get(dataset->tokens, first + at);
    }
    return XXH3_64bits(facts, sizeof facts);
}

/* Of n mapped bytes all, or 4096 blocks spread over them where they are more than 256 MiB: a start
 * takes a tenth of a second at most. */
static uint64_t hash_mapped(const uint8_t *data, uint64_t n)
{
    enum { BLOCK = 64 << 10, BLOCKS = 4096 };
    uint64_t hash = n;
    if (n <= (uint64_t)BLOCK * BLOCKS) {
        return XXH3_64bits(data, n);
    }
    for (uint64_t i = 0; i < BLOCKS; ++i) {
        const uint64_t at = (n - BLOCK) / (BLOCKS - 1) * i;
        hash = XXH3_64bits_withSeed(data + at, BLOCK, hash);
    }
    return hash;
}

uint64_t dsi_dataset_content(const ds_dataset *dataset)
{
    const dsi_tokens *t = dataset->tokens;
    const uint64_t first = dataset->begin[0];
    const uint64_t n = dataset->begin[dataset->n_docs] - first;
    uint64_t parts[4] = {first, dsi_dataset_digest(dataset), 0, 0};
    parts[0] =
        XXH3_64bits_withSeed(dataset->begin, (dataset->n_docs + 1) * sizeof *dataset->begin, first);
    if (t->ids != NULL) {
        parts[2] = XXH3_64bits(t->ids + first, n * sizeof *t->ids);
    } else {
        parts[2] = hash_mapped(t->map.data + first * t->mapped_bytes, n * t->mapped_bytes);
    }
    if (t->counted != NULL) {
        parts[3] = XXH3_64bits(t->counted + first, n);
    }
    return XXH3_64bits(parts, sizeof parts);
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
    dsi_map_close(&tokens->map);
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

static ds_status reserve_document(ds_dataset *dataset)
{
    if ((dataset->n_docs & (dataset->n_docs + 1)) == 0) { /* begin is full at 2^k - 1 documents */
        uint64_t *begin =
            realloc(dataset->begin, (dataset->n_docs + 1) * 2 * sizeof *dataset->begin);
        if (begin == NULL) {
            return no_memory(dataset);
        }
        begin[0] = 0;
        dataset->begin = begin;
    }
    return DS_OK;
}

/* The last document ends behind n more tokens. */
static ds_status append_tokens(ds_dataset *dataset, const uint32_t *ids, const uint8_t *counted,
                               uint64_t n)
{
    dsi_tokens *tokens = dataset->tokens;
    DS_TRY(reserve(dataset, n));
    if (counted != NULL) {
        DS_TRY(need_flags(dataset));
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
    dataset->begin[dataset->n_docs] = tokens->n;
    return DS_OK;
}

ds_status dsi_dataset_append(ds_dataset *dataset, const uint32_t *ids, const uint8_t *counted,
                             uint64_t n)
{
    if (n == 0) {
        return DS_OK;
    }
    DS_TRY(reserve_document(dataset));
    dataset->begin[++dataset->n_docs] = dataset->tokens->n;
    const ds_status status = append_tokens(dataset, ids, counted, n);
    dataset->n_docs -= status < 0;
    return status;
}

/* All files of a dataset are of one kind, and all lines of a file. */
static ds_status be_of_kind(ds_dataset *dataset, const char *path, bool samples)
{
    if (dataset->has_kind && dataset->info.samples != samples) {
        return ds_fail(dataset->ctx, DS_ERR_ARG,
                       "%s: %s cannot be mixed with %s before: give one kind", path,
                       samples ? "prompts or messages" : "plain text or indexed data",
                       samples ? "the plain text or indexed data" : "the prompts or messages");
    }
    dataset->has_kind = true;
    dataset->info.samples = samples;
    return DS_OK;
}

/* Whether any of the first n tokens is a target that counts. The first token is no target. */
static bool has_target(const dsi_document *document, uint64_t n)
{
    if (document->counted == NULL || n < 2) {
        return n >= 2;
    }
    return memchr(document->counted + 1, 1, n - 1) != NULL;
}

/* Takes one document: cuts or drops a sample that is too long, drops one that teaches nothing. */
static ds_status take_document(void *user, const dsi_document *document)
{
    taker *t = user;
    ds_dataset *dataset = t->dataset;
    const bool too_long = document->sample && document->n > (uint64_t)t->params->seq_length;
    const uint64_t n = too_long ? (uint64_t)t->params->seq_length : document->n;
    DS_TRY(be_of_kind(dataset, t->path, document->sample));
    if (too_long && t->params->too_long == DS_TOO_LONG_DROP) {
        dataset->info.n_dropped += 1;
        return DS_OK;
    }
    if (document->sample && !has_target(document, n)) {
        dataset->info.n_uncounted += 1;
        return DS_OK;
    }
    dataset->info.n_truncated += too_long;
    if (document->joins) {
        return append_tokens(dataset, document->ids, document->counted, n);
    }
    return dsi_dataset_append(dataset, document->ids, document->counted, n);
}

/* Copies an indexed document behind what is there. */
static ds_status copy_document(ds_dataset *dataset, const char *path, const dsi_tokens *mapped,
                               uint64_t begin, uint64_t n)
{
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    if (ids == NULL) {
        return no_memory(dataset);
    }
    ds_status status = DS_OK;
    for (uint64_t i = 0; i < n && status >= 0; ++i) {
        const int32_t id = dsi_tokens_get(mapped, begin + i);
        if (id < 0) {
            status = ds_fail(dataset->ctx, DS_ERR_FORMAT,
                             "%s: token %llu is a number that can be no token id", path,
                             (unsigned long long)(begin + i));
        }
        ids[i] = (uint32_t)id;
    }
    if (status >= 0) {
        status = dsi_dataset_append(dataset, ids, NULL, n);
    }
    free(ids);
    return status;
}

/* The only file: stays mapped. Of several, each is copied behind the others. */
static ds_status take_indexed(ds_dataset *dataset, const ds_dataset_params *params,
                              const char *path)
{
    dsi_indexed x;
    ds_status status = DS_OK;
    DS_TRY(be_of_kind(dataset, path, false));
    DS_TRY(dsi_indexed_open(dataset->ctx, path, &x));
    const uint64_t n_docs = dsi_indexed_n_documents(&x);
    if (params->n_files == 1) {
        dataset->begin = malloc((n_docs + 1) * sizeof *dataset->begin);
        if (dataset->begin == NULL) {
            dsi_indexed_close(&x);
            return no_memory(dataset);
        }
        for (uint64_t d = 0; d <= n_docs; ++d) {
            dataset->begin[d] = dsi_indexed_begin(&x, d);
        }
        dataset->n_docs = n_docs;
        dataset->tokens->n = x.n_tokens;
        dataset->tokens->mapped_bytes = x.width;
        dataset->tokens->mapped_signed = x.is_signed;
        dataset->tokens->map = x.bin;
        dsi_map_close(&x.idx);
        return DS_OK;
    }
    const dsi_tokens mapped = {.map = x.bin, .mapped_bytes = x.width, .mapped_signed = x.is_signed};
    for (uint64_t d = 0; d < n_docs && status >= 0; ++d) {
        const uint64_t begin = dsi_indexed_begin(&x, d);
        status = copy_document(dataset, path, &mapped, begin, dsi_indexed_begin(&x, d + 1) - begin);
    }
    dsi_indexed_close(&x);
    return status;
}

static ds_status read_file(ds_dataset *dataset, const ds_dataset_params *params, const char *path)
{
    if (dsi_path_ends(path, ".bin") || dsi_path_ends(path, ".idx")) {
        return take_indexed(dataset, params, path);
    }
    taker t = {.dataset = dataset, .params = params, .path = path};
    const dsi_source_sink sink = {
        .document = take_document, .user = &t, .n_bad = &dataset->info.n_bad};
    return dsi_source_read(dataset->ctx, params, path, &sink);
}

/* x.bin and x.idx are one pair: "x.*" of a shell would read it twice. */
static ds_status check_pairs(const ds_dataset *dataset, const ds_dataset_params *params)
{
    for (uint32_t i = 0; i < params->n_files; ++i) {
        const char *idx = params->files[i];
        const size_t n = strlen(idx);
        for (uint32_t k = 0; k < params->n_files && dsi_path_ends(idx, ".idx"); ++k) {
            const char *bin = params->files[k];
            if (dsi_path_ends(bin, ".bin") && strlen(bin) == n && memcmp(bin, idx, n - 4) == 0) {
                return ds_fail(dataset->ctx, DS_ERR_ARG, "%s and %s are one pair: give one of them",
                               bin, idx);
            }
        }
    }
    return DS_OK;
}

static ds_status check_some(const ds_dataset *dataset, const ds_dataset_params *params)
{
    const ds_dataset_info *info = &dataset->info;
    const char *path = params->n_files > 0 ? params->files[0] : "no file";
    if (dataset->tokens->n == 0 && info->n_dropped + info->n_uncounted > 0) {
        return ds_fail(dataset->ctx, DS_ERR_ARG,
                       "%s: no sample is left: %llu are longer than %lld tokens, %llu have no "
                       "answer within them",
                       path, (unsigned long long)info->n_dropped, (long long)params->seq_length,
                       (unsigned long long)info->n_uncounted);
    }
    return dataset->tokens->n > 0 ? DS_OK : ds_fail(dataset->ctx, DS_ERR_ARG, "%s: no data", path);
}

static ds_status open_files(ds_dataset *dataset, const ds_dataset_params *params)
{
    DS_TRY(check_pairs(dataset, params));
    for (uint32_t i = 0; i < params->n_files; ++i) {
        DS_TRY(read_file(dataset, params, params->files[i]));
    }
    dataset->info.n_documents = dataset->n_docs;
    dataset->info.n_tokens = dataset->tokens->n;
    return check_some(dataset, params);
}

ds_status ds_dataset_open(ds_ctx *ctx, const ds_dataset_params *params, ds_dataset **dataset_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_dataset_params", params));
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
