/* SPDX-License-Identifier: Apache-2.0 */
/* A packed matrix that ranks share: each holds the rows (outputs) or the columns (inputs) of its
 * product, as a packed matrix of its own with the bits that the whole one has there.
 *
 * The cell is u8 (R,E): cut along dim 0 a rank holds its rows, along dim 1 its columns, E being
 * large enough for either and a multiple of 4·R. Filled by split, since the bytes of the whole
 * matrix are in another order; who asks for the matrix joins them again. Not cut, it begins with
 * the whole matrix. Formats: deepspeed/packing.h.
 */
#ifndef DSI_BASE_PACKED_PARTS_H
#define DSI_BASE_PACKED_PARTS_H

#include <deepspeed/context.h>
#include <deepspeed/packing.h>

typedef enum dsi_packed_cut {
    DSI_PACKED_WHOLE,
    DSI_PACKED_ROWS,
    DSI_PACKED_COLUMNS,
} dsi_packed_cut;

typedef struct dsi_packed_parts {
    const ds_packed *whole; /* borrowed */
    dsi_packed_cut cut;
    int64_t ranks;
} dsi_packed_parts;

/* Of the cell: u8 (N) for one rank, else u8 (ranks,E). */
ds_shape dsi_packed_shape(const ds_packed *whole, int64_t ranks);

/* Whether no block of the format is divided between ranks. */
bool dsi_packed_can_cut(const dsi_packed_parts *parts);

/* whole: ds_packed_bytes(); cell: the bytes of its shape. The cut must be possible.
 * Errors: ERR_NOMEM. */
ds_status dsi_packed_split(ds_ctx *ctx, const dsi_packed_parts *parts, const void *whole,
                           void *cell);
ds_status dsi_packed_join(ds_ctx *ctx, const dsi_packed_parts *parts, const void *cell,
                          void *whole);

#endif
