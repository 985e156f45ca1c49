/* SPDX-License-Identifier: Apache-2.0 */
/* Rows out of columns: the entries of all columns of a row, put together by their levels. */
#ifndef DSI_DATA_PARQUET_ASSEMBLE_H
#define DSI_DATA_PARQUET_ASSEMBLE_H

#include "base/buf.h"
#include "data/parquet/parquet_page.h"
#include "data/parquet/parquet_shape.h"

/* What went wrong, and in which column. */
typedef struct dsi_assemble {
    dsi_parquet_column *columns; /* [n_leaves] */
    const dsi_shape_leaf *leaves;
    dsi_buf *json;
    const char *bad; /* NULL: nothing */
    uint32_t bad_column;
} dsi_assemble;

/* Appends the next row of the columns, which are at its beginning. Each column's entries are taken
 * up to the next row; columns that tell of different structures are an error. */
void dsi_assemble_row(dsi_assemble *a, const dsi_shape *root);

/* parquet_json.c */
void dsi_parquet_put_value(const dsi_parquet_element *element, const dsi_parquet_value *value,
                           dsi_buf *json);

#endif
