/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a data file, each a JSON value as text, whatever holds them.
 *
 * The kind is known by the ending, before .gz or .zst:
 *   .jsonl, .ndjson   a value a line
 *   .json             a list of objects, or objects one after another
 *   .csv, .tsv        a header, then a row a record: an object of texts. As pandas reads it: quotes
 *                     and line breaks in quotes, "", NA, NaN, None, null … are null (cells
 *                     that a record lacks are left out), blank lines too; but numbers stay texts
 *   .parquet          a row (parquet.h)
 * Rows are read one after another in bounded memory; what a row means is not known here. Used by
 * source.c.
 */
#ifndef DSI_DATA_ROWS_H
#define DSI_DATA_ROWS_H

#include "base/buf.h"
#include <deepspeed/context.h>
#include <stdint.h>

enum { DSI_ROW_BYTES_MAX = 1 << 30 };

typedef struct dsi_rows dsi_rows;

/* Whether the ending is one of the above. */
bool dsi_rows_knows(const char *path);
/* Errors: ERR_ARG (an ending not known), those of the file. */
ds_status dsi_rows_open(ds_ctx *ctx, const char *path, dsi_rows **rows_out);
void dsi_rows_close(dsi_rows **rows);
/* Appends the next row; *end_out true, and nothing appended, behind the last. An empty line of a
 * .jsonl is a row of no bytes. *place_out: the line at which it begins (text files) or its number,
 * from 1 on. Errors: ERR_FORMAT, ERR_LIMIT (a row beyond json's ceiling), ERR_IO, ERR_NOMEM; with
 * path and place. */
ds_status dsi_rows_next(dsi_rows *rows, dsi_buf *json, uint64_t *place_out, bool *end_out);
/* "PATH:12" or "PATH: row 12". */
void dsi_rows_place(const dsi_rows *rows, uint64_t place, char *text_out, size_t size);
void dsi_rows_progress(const dsi_rows *rows, uint64_t *done_out, uint64_t *all_out);

#endif
