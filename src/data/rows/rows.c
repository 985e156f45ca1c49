/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a data file. See rows.h. */
#include "data/rows/rows_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status next_parquet(dsi_rows *rows, dsi_buf *json, bool *end_out);

static const dsi_rows_kind kinds[] = {
    {".jsonl", false, true, dsi_rows_next_line}, {".ndjson", false, true, dsi_rows_next_line},
    {".json", true, true, dsi_rows_next_item},   {".csv", false, true, dsi_rows_next_record},
    {".tsv", false, true, dsi_rows_next_record}, {".parquet", true, false, next_parquet},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static const dsi_rows_kind *kind_of(const char *path)
{
    const size_t n = dsi_bytes_plain_name(path);
    for (size_t i = 0; i < N_KINDS; ++i) {
        const size_t m = strlen(kinds[i].ending);
        if (n >= m && memcmp(path + n - m, kinds[i].ending, m) == 0 &&
            (kinds[i].is_text || path[n] == '\0')) {
            return &kinds[i];
        }
    }
    return NULL;
}

bool dsi_rows_knows(const char *path)
{
    return kind_of(path) != NULL;
}

void dsi_rows_close(dsi_rows **rows)
{
    if (rows == NULL || *rows == NULL) {
        return;
    }
    dsi_rows *r = *rows;
    for (size_t i = 0; i < r->n_columns; ++i) {
        free(r->columns[i]);
    }
    free(r->columns);
    dsi_buf_free(&r->cell);
    dsi_bytes_close(&r->bytes);
    dsi_parquet_close(&r->parquet);
    free(r->path);
    free(r);
    *rows = NULL;
}

static ds_status open_kind(dsi_rows *r)
{
    if (r->kind->is_text) {
        return dsi_bytes_open(r->ctx, r->path, &r->bytes);
    }
    DS_TRY(dsi_parquet_open(r->ctx, r->path, &r->parquet));
    r->n_rows = dsi_parquet_n_rows(r->parquet);
    return DS_OK;
}

ds_status dsi_rows_open(ds_ctx *ctx, const char *path, dsi_rows **rows_out)
{
    const dsi_rows_kind *kind = kind_of(path);
    if (kind == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: its ending names no kind of rows", path);
    }
    dsi_rows *r = calloc(1, sizeof *r);
    if (r != NULL) {
        r->path = strdup(path);
        r->kind = kind;
        r->ctx = ctx;
        r->line = 1;
        r->cell = dsi_buf_make(DSI_ROW_BYTES_MAX);
    }
    if (r == NULL || r->path == NULL) {
        dsi_rows_close(&r);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    const ds_status status = open_kind(r);
    if (status < 0) {
        dsi_rows_close(&r);
        return status;
    }
    *rows_out = r;
    return DS_OK;
}

static ds_status next_parquet(dsi_rows *r, dsi_buf *json, bool *end_out)
{
    DS_TRY(dsi_parquet_next(r->parquet, json, end_out));
    r->place += *end_out ? 0 : 1;
    return DS_OK;
}

ds_status dsi_rows_next(dsi_rows *r, dsi_buf *json, uint64_t *place_out, bool *end_out)
{
    DS_TRY(r->kind->next(r, json, end_out));
    if (json->failed) {
        char place[400];
        dsi_rows_place(r, r->place, place, sizeof place);
        return ds_fail(r->ctx, DS_ERR_LIMIT, "%s: no memory, or a row of more than %zu bytes",
                       place, json->ceiling);
    }
    *place_out = r->place;
    return DS_OK;
}

void dsi_rows_place(const dsi_rows *r, uint64_t place, char *text_out, size_t size)
{
    (void)snprintf(text_out, size, r->kind->by_number ? "%s: row %llu" : "%s:%llu", r->path,
                   (unsigned long long)place);
}

void dsi_rows_progress(const dsi_rows *r, uint64_t *done_out, uint64_t *all_out)
{
    if (r->bytes == NULL) {
        *done_out = r->place;
        *all_out = r->n_rows;
        return;
    }
    dsi_bytes_progress(r->bytes, done_out, all_out);
    *done_out -=
        *done_out > r->n_piece ? r->n_piece : *done_out; /* exact where nothing is packed */
}

ds_status dsi_rows_bad(const dsi_rows *r, uint64_t place, const char *what)
{
    char text[400];
    dsi_rows_place(r, place, text, sizeof text);
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s: %s", text, what);
}

/* ---- bytes of text files ---- */

static bool refill(dsi_rows *r, ds_status *status_out)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors begin a file with it */
    if (r->bytes_end) {
        return false;
    }
    *status_out = dsi_bytes_next(r->bytes, &r->piece, &r->n_piece);
    r->bytes_end = *status_out < 0 || r->n_piece == 0;
    if (!r->begun && !r->bytes_end && r->n_piece >= 3 && memcmp(r->piece, mark, 3) == 0) {
        r->piece += 3;
        r->n_piece -= 3;
    }
    r->begun = true;
    return !r->bytes_end;
}

int dsi_rows_look(dsi_rows *r, ds_status *status_out)
{
    while (r->n_piece == 0) {
        if (!refill(r, status_out)) {
            return -1;
        }
    }
    return (unsigned char)*r->piece;
}

int dsi_rows_byte(dsi_rows *r, ds_status *status_out)
{
    const int c = dsi_rows_look(r, status_out);
    if (c >= 0) {
        ++r->piece;
        --r->n_piece;
        r->line += c == '\n';
    }
    return c;
}
