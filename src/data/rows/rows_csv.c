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

/* Reads a cell into r->cell, and what is behind it. */
static ds_status read_cell(dsi_rows *r, cell_end *end_out)
{
    ds_status status = DS_OK;
    dsi_buf_clear(&r->cell);
    if (dsi_rows_look(r, &status) == '"') {
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
    for (size_t i = 0; i < r->n_columns; ++i) {
        if (strcmp(r->columns[i], dsi_buf_text(&name)) == 0) {
            dsi_buf_free(&name);
            return ds_fail(r->ctx, DS_ERR_FORMAT, "%s:1: two columns have the name \"%.60s\"",
                           r->path, dsi_buf_text(&r->cell));
        }
    }
    if (r->n_columns == COLUMNS_MAX) {
        dsi_buf_free(&name);
        return dsi_rows_bad(r, 1, "it has more than 65536 columns");
    }
    char **grown = realloc(r->columns, (r->n_columns + 1) * sizeof *grown);
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

/* Blank lines; false at the end of the file. */
static bool skip_blank(dsi_rows *r, ds_status *status)
{
    int c = dsi_rows_look(r, status);
    while (c == '\n' || c == '\r') {
        (void)dsi_rows_byte(r, status);
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
    }
    return DS_OK;
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
    }
    dsi_buf_putc(json, '}');
    return DS_OK;
}
