/* SPDX-License-Identifier: Apache-2.0 */
/* Files of any kind as tokens. See data_take.h. */
#include "data/data_take.h"

#include "data/source.h"
#include "data/token_store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PART_TOKENS = 64 << 10 };

/* What a source's sink needs. */
typedef struct reading {
    ds_ctx *ctx;
    const ds_dataset_params *params;
    dsi_take *take;
    const char *path;
    uint64_t before, size, all; /* bytes of the files before this one, of it, and of all */
    ds_status status;           /* of the progress */
} reading;

ds_status dsi_take_say(const ds_dataset_params *params, ds_dataset_stage stage, uint64_t done,
                       uint64_t all, uint64_t n_tokens)
{
    const ds_dataset_progress progress = {
        .stage = stage, .done = done, .all = all, .n_tokens = n_tokens};
    return params->progress != NULL ? params->progress(params->progress_user, &progress) : DS_OK;
}

bool dsi_take_is_indexed(const char *path)
{
    return dsi_path_ends(path, ".bin") || dsi_path_ends(path, ".idx");
}

/* All files are of one kind. */
static ds_status take_kind(ds_ctx *ctx, dsi_take *take, const char *path, bool samples)
{
    if (take->has_kind && take->info.samples != samples) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: %s cannot be mixed with %s before: give one kind",
                       path, samples ? "prompts or messages" : "plain text or indexed data",
                       samples ? "the plain text or indexed data" : "the prompts or messages");
    }
    take->has_kind = true;
    take->info.samples = samples;
    return DS_OK;
}

ds_status dsi_take_add(dsi_take *take, const uint32_t *ids, const uint8_t *counted, uint64_t n,
                       bool joins)
{
    uint32_t max = take->info.max_id;
    if (n == 0) {
        return DS_OK;
    }
    for (uint64_t i = 0; i < n; ++i) {
        max = ids[i] > max ? ids[i] : max;
    }
    DS_TRY(take->add(take->user, ids, counted, n, joins));
    take->info.max_id = max;
    take->info.n_tokens += n;
    take->info.n_documents += !joins;
    take->n_last = joins ? take->n_last + n : n;
    take->longest = take->n_last > take->longest ? take->n_last : take->longest;
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

/* The token behind a text, as [SEP], stays behind what is kept of it. */
static void keep_last(const dsi_document *document, uint64_t n)
{
    uint32_t *ids = (uint32_t *)(uintptr_t)document->ids; /* of the line, which ends with this */
    uint8_t *counted = (uint8_t *)(uintptr_t)document->counted;
    ids[n - 1] = ids[document->n - 1];
    counted[n - 1] = n > 1 ? counted[document->n - 1] : counted[0];
}

/* Where the part that begins at `at` ends: the next begins with a flag. */
static uint64_t part_end(const dsi_document *document, uint64_t at)
{
    const uint8_t *next = memchr(document->counted + at + 1, 1, document->n - at - 1);
    return next != NULL ? (uint64_t)(next - document->counted) : document->n;
}

/* A draw of contrast: a document for each part, all of it or nothing. */
static ds_status take_parts(const reading *r, const dsi_document *document)
{
    const uint64_t most = (uint64_t)r->params->seq_length;
    uint64_t end = 0;
    bool too_long = false;
    for (uint64_t at = 0; at < document->n; at = end) {
        end = part_end(document, at);
        too_long = too_long || end - at > most;
    }
    if (too_long && r->params->too_long == DS_TOO_LONG_DROP) {
        r->take->info.n_dropped += 1;
        return DS_OK;
    }
    for (uint64_t at = 0; at < document->n; at = end) {
        end = part_end(document, at);
        dsi_document part = *document;
        part.ids += at;
        part.counted += at;
        part.n = end - at;
        const uint64_t n = part.n > most ? most : part.n;
        if (n < part.n && document->ends) {
            keep_last(&part, n);
        }
        r->take->info.n_truncated += n < part.n;
        DS_TRY(dsi_take_add(r->take, part.ids, part.counted, n, false));
    }
    return DS_OK;
}

/* Takes one document: cuts or drops a sample that is too long, drops one that teaches nothing. */
static ds_status take_document(void *user, const dsi_document *document)
{
    const reading *r = user;
    ds_dataset_info *info = &r->take->info;
    if (r->params->rows == DS_ROWS_PAIRS || r->params->rows == DS_ROWS_LABELLED) {
        DS_TRY(r->status);
        DS_TRY(take_kind(r->ctx, r->take, r->path, true));
        return dsi_take_preference(r->ctx, r->params, r->path, r->take, document);
    }
    const uint64_t most = (uint64_t)r->params->seq_length + dsi_values_head(r->params);
    const bool too_long = document->sample && document->n > most;
    const bool sources = r->params->rows == DS_ROWS_SOURCES;
    const bool classes = r->params->rows >= DS_ROWS_CLASSES && !sources;
    const uint64_t n = too_long ? most : document->n;
    DS_TRY(r->status);
    DS_TRY(take_kind(r->ctx, r->take, r->path, document->sample));
    if (classes && !document->sample) {
        return ds_fail(r->ctx, DS_ERR_UNSUPPORTED,
                       "%s: plain text has no classes, which this objective needs; give rows",
                       r->path);
    }
    if (r->params->rows == DS_ROWS_CONTRAST) {
        return take_parts(r, document);
    }
    if (too_long && r->params->too_long == DS_TOO_LONG_DROP) {
        info->n_dropped += 1;
        return DS_OK;
    }
    if (sources && !document->sample) {
        return ds_fail(r->ctx, DS_ERR_UNSUPPORTED,
                       "%s: plain text has no targets, which this model needs; give rows of "
                       "\"prompt\" and \"completion\"",
                       r->path);
    }
    if (document->sample && !classes && !has_target(document, n)) {
        info->n_uncounted += 1;
        return DS_OK;
    }
    if (classes && document->n <= dsi_values_head(r->params)) { /* a text without any token */
        info->n_uncounted += 1;
        return DS_OK;
    }
    info->n_truncated += too_long || document->cut;
    if (classes && too_long && document->ends) {
        keep_last(document, n);
    }
    return dsi_take_add(r->take, document->ids, document->counted, n, document->joins);
}

/* done of all: in whatever the source counts. A failure ends the reading at the next document. */
static void note_progress(void *user, uint64_t done, uint64_t all)
{
    reading *r = user;
    const double part = all > 0 ? (double)done / (double)all : 1.0;
    const uint64_t bytes = r->before + (uint64_t)(part * (double)r->size);
    if (r->status >= 0) {
        r->status =
            dsi_take_say(r->params, DS_DATASET_READS, bytes, r->all, r->take->info.n_tokens);
    }
}

/* A document of mapped indexed data, in parts. */
static ds_status copy_document(const reading *r, const dsi_store *mapped, uint64_t begin,
                               uint64_t end, uint32_t *part)
{
    uint64_t n = 0;
    for (uint64_t at = begin; at < end; at += n) {
        for (n = 0; n < PART_TOKENS && at + n < end; ++n) {
            const int32_t id = dsi_store_get(mapped, at + n);
            if (id < 0) {
                return ds_fail(r->ctx, DS_ERR_FORMAT,
                               "%s: token %llu is a number that can be no token id", r->path,
                               (unsigned long long)(at + n));
            }
            part[n] = (uint32_t)id;
        }
        DS_TRY(dsi_take_add(r->take, part, NULL, n, at > begin));
    }
    return DS_OK;
}

static ds_status take_indexed(const reading *r)
{
    dsi_indexed x;
    DS_TRY(take_kind(r->ctx, r->take, r->path, false));
    DS_TRY(dsi_indexed_open(r->ctx, r->path, &x));
    const dsi_store mapped = {
        .mapped = x.bin.data, .mapped_bytes = x.width, .mapped_signed = x.is_signed};
    uint32_t *part = malloc(PART_TOKENS * sizeof *part);
    ds_status status =
        part != NULL ? DS_OK : ds_fail(r->ctx, DS_ERR_NOMEM, "no memory to read %s", r->path);
    for (uint64_t d = 0; d < dsi_indexed_n_documents(&x) && status >= 0; ++d) {
        status =
            copy_document(r, &mapped, dsi_indexed_begin(&x, d), dsi_indexed_begin(&x, d + 1), part);
    }
    free(part);
    dsi_indexed_close(&x);
    return status;
}

/* x.bin and x.idx are one pair: "x.*" of a shell would read it twice. */
static ds_status check_pairs(ds_ctx *ctx, const ds_dataset_params *params)
{
    for (uint32_t i = 0; i < params->n_files; ++i) {
        const char *idx = params->files[i];
        const size_t n = strlen(idx);
        for (uint32_t k = 0; k < params->n_files && dsi_path_ends(idx, ".idx"); ++k) {
            const char *bin = params->files[k];
            if (dsi_path_ends(bin, ".bin") && strlen(bin) == n && memcmp(bin, idx, n - 4) == 0) {
                return ds_fail(ctx, DS_ERR_ARG, "%s and %s are one pair: give one of them", bin,
                               idx);
            }
        }
    }
    return DS_OK;
}

static ds_status check_some(ds_ctx *ctx, const ds_dataset_params *params, const dsi_take *take)
{
    const ds_dataset_info *info = &take->info;
    const char *path = params->n_files > 0 ? params->files[0] : "no file";
    if (info->n_tokens == 0 && info->n_dropped + info->n_uncounted > 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: no sample is left: %llu are longer than %lld tokens, %llu have no "
                       "answer within them; give longer rows (--seq_length), or other samples",
                       path, (unsigned long long)info->n_dropped, (long long)params->seq_length,
                       (unsigned long long)info->n_uncounted);
    }
    return info->n_tokens > 0 ? DS_OK : ds_fail(ctx, DS_ERR_ARG, "%s: no data", path);
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

ds_status dsi_take_files(ds_ctx *ctx, const ds_dataset_params *params, dsi_take *take)
{
    reading r = {.ctx = ctx, .params = params, .take = take};
    DS_TRY(check_pairs(ctx, params));
    take->info.rows = (uint8_t)params->rows;
    if (params->rows == DS_ROWS_VALUES &&
        (params->n_classes < 1 || params->n_classes > UINT8_MAX)) {
        return ds_fail(ctx, DS_ERR_ARG, "rows of values: n_classes is %llu; expected 1 to %d",
                       (unsigned long long)params->n_classes, UINT8_MAX);
    }
    if (params->n_negatives > DSI_MOST_NEGATIVES ||
        (params->n_negatives > 0 && params->rows != DS_ROWS_CONTRAST)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "n_negatives is %llu; expected %d at most, of rows of contrast",
                       (unsigned long long)params->n_negatives, DSI_MOST_NEGATIVES);
    }
    if (params->too_long == DS_TOO_LONG_KEEP_END && params->rows == DS_ROWS_TEXT) {
        return ds_fail(ctx, DS_ERR_ARG, "the end of a too long row is kept of preferences only");
    }
    for (uint32_t i = 0; i < params->n_files; ++i) {
        r.all += size_of(params->files[i]);
    }
    for (uint32_t i = 0; i < params->n_files; ++i) {
        r.path = params->files[i];
        r.size = size_of(r.path);
        const dsi_source_sink sink = {.document = take_document,
                                      .progress = note_progress,
                                      .user = &r,
                                      .n_bad = &take->info.n_bad};
        DS_TRY(dsi_take_is_indexed(r.path) ? take_indexed(&r)
                                           : dsi_source_read(ctx, params, r.path, &sink));
        DS_TRY(r.status);
        r.before += r.size;
    }
    return check_some(ctx, params, take);
}
