/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a Parquet file as JSON objects, one after another, in bounded memory.
 *
 * Read are what data sets use: truth values, numbers, texts, dates and timestamps, in structs,
 * lists and maps with text keys, nested at will; every encoding of the format but the retired
 * BIT_PACKED levels; pages of both versions; snappy, gzip, zstd or no compression. A column of
 * another type (decimals, times, fixed-size bytes …) is left out and named in one line. Numbers are
 * written as Python writes them; a number that JSON has not (NaN, infinity) and bytes that are no
 * UTF-8 are null where the
 * column does not say that it holds text; a text that is no UTF-8 is an error. Used by rows.c.
 * Nothing of the file is trusted.
 */
#ifndef DSI_DATA_PARQUET_H
#define DSI_DATA_PARQUET_H

#include "base/buf.h"
#include <deepspeed/context.h>
#include <stdint.h>

typedef struct dsi_parquet dsi_parquet;

/* Maps the file and reads its footer. Errors: ERR_NOT_FOUND, ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED
 * (encrypted, or no column that can be read), ERR_NOMEM. */
ds_status dsi_parquet_open(ds_ctx *ctx, const char *path, dsi_parquet **file_out);
void dsi_parquet_close(dsi_parquet **file);
/* Sets what its pages and dictionaries may take at once, for tests; otherwise 1 GiB. */
void dsi_parquet_limit(dsi_parquet *file, size_t bytes);
uint64_t dsi_parquet_n_rows(const dsi_parquet *file);
/* Appends the next row; *end_out true, and nothing appended, behind the last. Errors: ERR_FORMAT
 * and ERR_UNSUPPORTED (name row group and column), ERR_LIMIT (a row beyond the buffer's ceiling),
 * ERR_NOMEM. */
ds_status dsi_parquet_next(dsi_parquet *file, dsi_buf *json, bool *end_out);

#endif
