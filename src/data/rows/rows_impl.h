/* SPDX-License-Identifier: Apache-2.0 */
/* What the kinds of rows share. See rows.h. */
#ifndef DSI_DATA_ROWS_IMPL_H
#define DSI_DATA_ROWS_IMPL_H

#include "data/parquet/parquet.h"
#include "data/rows/data_bytes.h"
#include "data/rows/rows.h"

typedef struct dsi_rows_kind {
    const char *ending;
    bool by_number; /* rows are named by number, not by line */
    bool is_text;   /* read by way of bytes */
    /* Appends the next row; rows->place is set. */
    ds_status (*next)(dsi_rows *rows, dsi_buf *json, bool *end_out);
} dsi_rows_kind;

struct dsi_rows {
    ds_ctx *ctx;
    char *path;
    const dsi_rows_kind *kind;
    uint64_t place; /* of the last row */
    /* text files */
    dsi_bytes *bytes;
    const char *piece; /* not read yet */
    size_t n_piece;
    uint64_t line; /* that the next byte is in, from 1 on */
    bool begun;    /* something was read: no byte order mark is expected any more */
    bool bytes_end;
    /* .json */
    bool in_list, after_item, list_over;
    /* .csv, .tsv */
    char **columns; /* names as JSON strings */
    size_t n_columns;
    dsi_buf cell;
    /* .parquet */
    dsi_parquet *parquet;
    uint64_t n_rows;
};

/* The next byte of a text file, -1 at its end or on an error (then *status_out is negative). A byte
 * order mark at the beginning is passed over. */
int dsi_rows_byte(dsi_rows *rows, ds_status *status_out);
/* The next byte again; none was taken since. */
int dsi_rows_look(dsi_rows *rows, ds_status *status_out);

/* Records ERR_FORMAT with path and `place`. */
ds_status dsi_rows_bad(const dsi_rows *rows, uint64_t place, const char *what);

ds_status dsi_rows_next_line(dsi_rows *rows, dsi_buf *json, bool *end_out);   /* rows_line.c */
ds_status dsi_rows_next_item(dsi_rows *rows, dsi_buf *json, bool *end_out);   /* rows_json.c */
ds_status dsi_rows_next_record(dsi_rows *rows, dsi_buf *json, bool *end_out); /* rows_csv.c */

#endif
