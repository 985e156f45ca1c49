/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a .csv or .tsv as objects of texts. See rows.h. Source: RFC 4180, and pandas' read_csv
 * where that says nothing (missing cells, a quote within a cell, blank lines). */
#include "data/rows/rows_impl.h"

#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 1 << 16 };

typedef enum cell_end { END_CELL, END_RECORD, END_FILE } cell_end;

/* What pandas takes for a missing value unless it is told otherwise. */
static bool is_missing(const char *text)
{
    static const char *const missing[] = {"",         "#N/A", "#N/A N/A", "#NA",    "-1.#IND",
                                          "-1.#QNAN", "-NaN", "-nan",     "1.#IND", "1.#QNAN",
                                          "<NA>",     "N/A",  "NA",       "NULL",   "NaN",
                                          "None",     "n/a",  "nan",      "null"};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; ++i) {
        if (strcmp(text, missing[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_delimiter(const dsi_rows *r, int c)
{
    return c == (strcmp(r->kind->ending, ".tsv") == 0 ? '\t' : ',');
}

/* The inside of quotes, up to and with the closing one. */
static ds_status read_quoted(dsi_rows *r)
{
    ds_status status = DS_OK;
    for (;;) {
        const int c = dsi_rows_byte(r, &status);
        if (c < 0) {
            return status < 0 ? status : dsi_rows_bad(r, r->place, "a quote is never closed");
        }
        if (c == '"') {
            if (dsi_rows_look(r, &status) != '"') {
                return status;
            }
            (void)dsi_rows_byte(r, &status);
        }
        dsi_buf_putc(&r->cell, (char)c);
    }
}

/* Reads a cell into r->cell, behind blanks that are there already, and what is behind it. */
static ds_status read_cell(dsi_rows *r, cell_end *end_out)
{
    ds_status status = DS_OK;
    if (r->cell.size == 0 && dsi_rows_look(r, &status) == '"') {
        (void)dsi_rows_byte(r, &status);
        DS_TRY(read_quoted(r));
    }
    for (;;) {
        const int c = dsi_rows_byte(r, &status);
        if (status < 0) {
            return status;
        }
        if (c == '\r' && dsi_rows_look(r, &status) == '\n') {
            continue;
        }
        if (c < 0 || c == '\n' || c == '\r' || is_delimiter(r, c)) {
            *end_out = c < 0 ? END_FILE : is_delimiter(r, c) ? END_CELL : END_RECORD;
            break;
        }
        dsi_buf_putc(&r->cell, (char)c);
    }
    if (r->cell.failed) {
        return ds_fail(r->ctx, DS_ERR_LIMIT, "%s:%llu: no memory, or a cell of more than %zu bytes",
                       r->path, (unsigned long long)r->place, r->cell.ceiling);
    }
    return DS_OK;
}

static ds_status add_column(dsi_rows *r)
{
    dsi_buf name = dsi_buf_make(DSI_ROW_BYTES_MAX);
    dsi_buf_putc(&name, '"');
    dsi_buf_json(&name, dsi_buf_text(&r->cell), r->cell.size);
    dsi_buf_puts(&name, "\":");
    if (r->n_columns == COLUMNS_MAX) {
        dsi_buf_free(&name);
        return dsi_rows_bad(r, 1, "it has more than 65536 columns");
    }
    char **grown = r->columns;
    if ((r->n_columns & (r->n_columns - 1)) == 0) { /* room doubles */
        grown = realloc(r->columns, (r->n_columns == 0 ? 1 : 2 * r->n_columns) * sizeof *grown);
    }
    if (grown != NULL) {
        r->columns = grown;
    }
    if (grown == NULL || name.failed) {
        dsi_buf_free(&name);
        return ds_fail(r->ctx, DS_ERR_NOMEM, "no memory to read %s", r->path);
    }
    r->columns[r->n_columns++] = name.data; /* moved */
    return DS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static ds_status check_names(const dsi_rows *r)
{
    char **sorted = malloc(r->n_columns * sizeof *sorted);
    const char *twice = NULL;
    if (sorted == NULL) {
        return ds_fail(r->ctx, DS_ERR_NOMEM, "no memory to read %s", r->path);
    }
    memcpy(sorted, r->columns, r->n_columns * sizeof *sorted);
    qsort(sorted, r->n_columns, sizeof *sorted, by_name);
    for (size_t i = 1; i < r->n_columns && twice == NULL; ++i) {
        twice = strcmp(sorted[i - 1], sorted[i]) == 0 ? sorted[i] : NULL;
    }
    free(sorted);
    return twice == NULL ? DS_OK
                         : ds_fail(r->ctx, DS_ERR_FORMAT, "%s:%llu: two columns have the name %.*s",
                                   r->path, (unsigned long long)r->place,
                                   (int)(strlen(twice) < 60 ? strlen(twice) - 1 : 60), twice);
}

/* Blank lines, also those of blanks that delimit nothing; false at the end of the file. Blanks that
 * begin a record are left in r->cell. */
static bool skip_blank(dsi_rows *r, ds_status *status)
{
    int c = dsi_rows_look(r, status);
    dsi_buf_clear(&r->cell);
    while (c == '\n' || c == '\r' || ((c == ' ' || c == '\t') && !is_delimiter(r, c))) {
        (void)dsi_rows_byte(r, status);
        if (c == '\n' || c == '\r') {
            dsi_buf_clear(&r->cell);
        } else {
            dsi_buf_putc(&r->cell, (char)c);
        }
        c = dsi_rows_look(r, status);
    }
    return c >= 0;
}

static ds_status read_header(dsi_rows *r)
{
    cell_end end = END_CELL;
    ds_status status = DS_OK;
    if (!skip_blank(r, &status)) {
        return status;
    }
    r->place = r->line;
    while (end == END_CELL) {
        DS_TRY(read_cell(r, &end));
        DS_TRY(add_column(r));
        dsi_buf_clear(&r->cell);
    }
    return check_names(r);
}

static void put_cell(dsi_rows *r, size_t column, dsi_buf *json)
{
    const dsi_buf *cell = &r->cell;
    const bool has_nul = memchr(dsi_buf_text(cell), '\0', cell->size) != NULL;
    dsi_buf_puts(json, column > 0 ? "," : "");
    dsi_buf_puts(json, r->columns[column]);
    if (!has_nul && is_missing(dsi_buf_text(cell))) {
        dsi_buf_puts(json, "null");
        return;
    }
    dsi_buf_putc(json, '"');
    dsi_buf_json(json, cell->data, cell->size);
    dsi_buf_putc(json, '"');
}

ds_status dsi_rows_next_record(dsi_rows *r, dsi_buf *json, bool *end_out)
{
    ds_status status = DS_OK;
    cell_end end = END_CELL;
    if (r->n_columns == 0) {
        DS_TRY(read_header(r));
    }
    *end_out = !skip_blank(r, &status);
    if (status < 0 || *end_out) {
        return status;
    }
    r->place = r->line;
    dsi_buf_putc(json, '{');
    size_t n = 0;
    while (end == END_CELL) {
        DS_TRY(read_cell(r, &end));
        if (n == r->n_columns) {
            return ds_fail(r->ctx, DS_ERR_FORMAT, "%s:%llu: more than the %zu cells of the header",
                           r->path, (unsigned long long)r->place, r->n_columns);
        }
        put_cell(r, n++, json);
        dsi_buf_clear(&r->cell);
    }
    dsi_buf_putc(json, '}');
    return DS_OK;
}
