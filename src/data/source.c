/* SPDX-License-Identifier: Apache-2.0 */
/* Text files as documents. See source.h. */
#include "data/source.h"

#include "data/rows/data_bytes.h"
#include "data/rows/rows.h"

#include <deepspeed/context.h>
#include <deepspeed/op.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 1024, BYTES_AT_ONCE = 16 << 20, KEYS_NOTED = 64 };

bool dsi_path_ends(const char *path, const char *end)
{
    const size_t n = strlen(path);
    const size_t m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* ---- rows ---- */

typedef struct batch {
    const ds_dataset_params *params;
    ds_tokenizer_scratch **scratch; /* per thread */
    dsi_buf texts[ROWS_AT_ONCE];
    uint64_t places[ROWS_AT_ONCE];
    dsi_line lines[ROWS_AT_ONCE];
    uint32_t n;
    char noted[KEYS_NOTED][56]; /* unread keys, each said once */
    uint32_t n_noted;
    bool said_alpaca;
    bool any;         /* a row was read */
    uint32_t columns; /* the lines' */
} batch;

static void tokenize_task(void *arg, uint32_t task, uint32_t thread)
{
    batch *b = arg;
    dsi_line_tokenize(b->params, b->scratch[thread], dsi_buf_text(&b->texts[task]),
                      b->texts[task].size, &b->lines[task]);
}

/* Reads the next rows, until they are many or large. */
static ds_status fill(batch *b, dsi_rows *rows, bool *end_out)
{
    size_t bytes = 0;
    b->n = 0;
    *end_out = false;
    while (b->n < ROWS_AT_ONCE && bytes < BYTES_AT_ONCE && !*end_out) {
        dsi_buf *text = &b->texts[b->n];
        dsi_buf_clear(text);
        DS_TRY(dsi_rows_next(rows, text, &b->places[b->n], end_out));
        bytes += text->size;
        b->n += *end_out ? 0 : 1;
    }
    return DS_OK;
}

static bool is_noted(const batch *b, const char *key)
{
    for (uint32_t i = 0; i < b->n_noted; ++i) {
        if (strcmp(b->noted[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* Says once for each key that it is there and that nothing reads it. */
static void note_unread(ds_ctx *ctx, const char *place, batch *b, const dsi_line *line)
{
    for (uint32_t i = 0; i < line->n_unread; ++i) {
        if (b->n_noted < KEYS_NOTED && !is_noted(b, line->unread[i])) {
            memcpy(b->noted[b->n_noted++], line->unread[i], sizeof line->unread[i]);
            ds_log(ctx, DS_LOG_JOB, "%s: %s is not read, here and in later lines", place,
                   line->unread[i]);
        }
    }
}

static bool is_wanted(uint64_t rows, dsi_schema schema)
{
    return rows == DS_ROWS_TEXT       ? schema < DSI_SCHEMA_PREFERENCE
           : rows == DS_ROWS_PAIRS    ? schema == DSI_SCHEMA_PREFERENCE
           : rows == DS_ROWS_SOURCES  ? schema == DSI_SCHEMA_PAIR
           : rows == DS_ROWS_LABELLED ? schema >= DSI_SCHEMA_PREFERENCE
                                      : schema == DSI_SCHEMA_CLASSES;
}

/* Rows that the objective does not read are errors; what Alpaca's rows become is said once. */
static ds_status check_schema(ds_ctx *ctx, const char *place, batch *b, const dsi_line *line,
                              const dsi_source_sink *sink)
{
    static const char *const wanted[] = {
        [DS_ROWS_TEXT] = "which is for preference training (--objective dpo, kto and the like)",
        [DS_ROWS_PAIRS] = "but this objective needs pairs: \"chosen\" and \"rejected\", and "
                          "\"prompt\" unless both begin with it",
        [DS_ROWS_LABELLED] = "but this objective needs \"prompt\", \"completion\" and a \"label\" "
                             "true or false, or pairs",
        [DS_ROWS_CLASSES] = "but this objective needs rows of a text and its class",
        [DS_ROWS_TOKEN_CLASSES] = "but this objective needs rows of words and their classes",
        [DS_ROWS_SOURCES] = "but this model needs a source and its target, \"prompt\" and "
                            "\"completion\"",
        [DS_ROWS_VALUES] = "but this objective needs rows of a text and its numbers or classes",
        [DS_ROWS_CONTRAST] = "but this objective needs \"anchor\" and \"positive\""};
    const uint64_t rows = b->params->rows;
    if (!sink->any_schema && !is_wanted(rows, line->schema)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: a row of the schema %s, %s", place,
                       dsi_schema_name(line->schema), wanted[rows]);
    }
    if (line->schema == DSI_SCHEMA_ALPACA && !b->said_alpaca) {
        b->said_alpaca = true;
        ds_log(
            ctx, DS_LOG_JOB,
            b->params->alpaca == DS_ALPACA_CHAT
                ? "%s: \"instruction\" and \"output\" are a user's message and its answer in the "
                  "chat template, here and in later rows"
                : "%s: \"instruction\" and \"output\" are put into Alpaca's prompt, \"### "
                  "Instruction:\"; no chat template is used, here and in later rows",
            place);
    }
    return DS_OK;
}

/* A bad row is left out, or is the error. What is no fault of the row is an error always. */
static ds_status take_bad(ds_ctx *ctx, const char *place, const batch *b, const dsi_line *line,
                          const dsi_source_sink *sink)
{
    const uint64_t most = sink->n_bad != NULL ? b->params->skip_bad : 0;
    const bool fault_of_row = line->status == DS_ERR_FORMAT || line->status == DS_ERR_UNSUPPORTED ||
                              line->status == DS_ERR_LIMIT;
    if (most == 0 || !fault_of_row) {
        return ds_fail(ctx, line->status, "%s: %s", place, line->message);
    }
    if (*sink->n_bad == most) {
        return ds_fail(ctx, line->status, "%s: %s (and %llu bad rows before, as many as may be)",
                       place, line->message, (unsigned long long)most);
    }
    *sink->n_bad += 1;
    ds_log(ctx, DS_LOG_WARN, "%s: left out: %s", place, line->message);
    return DS_OK;
}

static ds_status deliver_line(ds_ctx *ctx, const char *place, batch *b, const dsi_line *line,
                              const dsi_source_sink *sink)
{
    if (line->sample && sink->no_samples != NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: %s", place, sink->no_samples);
    }
    if (line->status < 0) {
        return take_bad(ctx, place, b, line, sink);
    }
    DS_TRY(check_schema(ctx, place, b, line, sink));
    note_unread(ctx, place, b, line);
    const dsi_document document = {.ids = line->ids,
                                   .counted = line->sample ? line->counted : NULL,
                                   .n = line->n,
                                   .sample = line->sample,
                                   .cut = line->cut,
                                   .ends = line->ends,
                                   .schema = line->schema,
                                   .n_chosen = line->n_chosen,
                                   .label = line->label,
                                   .reference = line->has_reference ? line->reference : NULL};
    return line->n > 0 ? sink->document(sink->user, &document) : DS_OK;
}

static ds_status deliver(ds_ctx *ctx, const dsi_rows *rows, batch *b, const dsi_source_sink *sink)
{
    for (uint32_t i = 0; i < b->n; ++i) {
        char place[400];
        dsi_rows_place(rows, b->places[i], place, sizeof place);
        b->columns |= b->lines[i].columns;
        DS_TRY(deliver_line(ctx, place, b, &b->lines[i], sink));
    }
    return DS_OK;
}

static ds_status tokenize_rows(ds_ctx *ctx, batch *b, dsi_rows *rows, const dsi_source_sink *sink)
{
    bool end = false;
    while (!end) {
        DS_TRY(fill(b, rows, &end));
        b->any |= b->n > 0;
        ds_parallel(ctx, tokenize_task, b, b->n);
        const ds_status status = deliver(ctx, rows, b, sink);
        for (uint32_t i = 0; i < b->n; ++i) {
            dsi_line_free(&b->lines[i]);
            if (b->texts[i].capacity > BYTES_AT_ONCE) { /* a large row is no reason to keep room */
                dsi_buf_free(&b->texts[i]);
            }
        }
        DS_TRY(status);
        if (sink->progress != NULL) {
            uint64_t done = 0;
            uint64_t all = 0;
            dsi_rows_progress(rows, &done, &all);
            sink->progress(sink->user, done, all);
        }
    }
    return DS_OK;
}

static void free_batch(batch *b, uint32_t n_threads)
{
    for (uint32_t i = 0; b->scratch != NULL && i < n_threads; ++i) {
        ds_tokenizer_scratch_destroy(&b->scratch[i]);
    }
    for (uint32_t i = 0; i < ROWS_AT_ONCE; ++i) {
        dsi_buf_free(&b->texts[i]);
    }
    free(b->scratch);
    free(b);
}

static ds_status read_rows(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                           const dsi_source_sink *sink)
{
    const uint32_t n_threads = ds_ctx_n_threads(ctx);
    dsi_rows *rows = NULL;
    DS_TRY(dsi_rows_open(ctx, path, &rows));
    batch *b = calloc(1, sizeof *b);
    ds_status status = DS_OK;
    if (b != NULL) {
        b->params = params;
        b->scratch = calloc(n_threads, sizeof *b->scratch);
        for (uint32_t i = 0; i < ROWS_AT_ONCE; ++i) {
            b->texts[i] = dsi_buf_make(DSI_ROW_BYTES_MAX);
        }
    }
    if (b == NULL || b->scratch == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    for (uint32_t i = 0; i < n_threads && status >= 0; ++i) {
        status = ds_tokenizer_scratch_create(params->tokenizer, 0, &b->scratch[i]);
    }
    if (status >= 0) {
        status = tokenize_rows(ctx, b, rows, sink);
    }
    if (status >= 0 && b->any) {
        status = dsi_columns_seen(ctx, path, params->column_map, b->columns);
    }
    if (b != NULL) {
        free_batch(b, n_threads);
    }
    dsi_rows_close(&rows);
    return status;
}

static ds_status read_text(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                           const dsi_source_sink *sink)
{
    dsi_map map;
    DS_TRY(dsi_bytes_map(ctx, path, &map));
    const ds_status status = dsi_text_read(ctx, params, path, &map, DSI_PART_BYTES, sink);
    dsi_map_close(&map);
    return status;
}

ds_status dsi_source_read(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                          const dsi_source_sink *sink)
{
    const size_t n = dsi_bytes_plain_name(path);
    const bool text = n >= 4 && memcmp(path + n - 4, ".txt", 4) == 0;
    if (dsi_path_ends(path, ".bin") || dsi_path_ends(path, ".idx")) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: indexed data is tokenized already", path);
    }
    if (!text && !dsi_rows_knows(path)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: the kind of data is known by the ending: .txt, .jsonl, .json, .csv or "
                       ".tsv, each also with .gz or .zst; .parquet; .bin or .idx",
                       path);
    }
    DS_TRY(dsi_columns_check(ctx, params->column_map));
    if (params->tokenizer == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: a tokenizer is needed for text", path);
    }
    if (params->append_eos && ds_tokenizer_eos_id(params->tokenizer) < 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: an end token is to be appended, and the tokenizer names none", path);
    }
    return text ? read_text(ctx, params, path, sink) : read_rows(ctx, params, path, sink);
}
