/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights from a model's files: what of a cell's matrix is stored, rounded to the dtype that
 * the model computes in, and then packed. Used by training and generation. */
#ifndef DSI_CKPT_PACKED_WEIGHT_H
#define DSI_CKPT_PACKED_WEIGHT_H

#include "base/packed.h"
#include "ckpt/model_weights.h"

/* Fills `data`, the bytes of a packed cell. read: gives elements of the matrix as the files store
 * it. compute: F32, BF16 or F16. A matrix that is stored (columns,rows) is read whole. Errors:
 * those of dsi_packed_write. */
ds_status dsi_packed_fill(ds_ctx *ctx, const ds_cell_info *cell, ds_dtype compute,
                          dsi_packed_fn read, void *user, void *data);
/* A dsi_packed_fn of a stored weight; user: a dsi_packed_source. */
typedef struct dsi_packed_source {
    ds_ctx *ctx;
    const dsi_weight *weight;
} dsi_packed_source;
ds_status dsi_packed_stored(void *user, int64_t first, int64_t n, float *out);
/* The same from a stored weight. */
ds_status dsi_packed_load(ds_ctx *ctx, const ds_cell_info *cell, ds_dtype compute,
                          const dsi_weight *weight, void *data);
/* The other way: all elements in fp32, as the files store them. */
ds_status dsi_packed_unpack(ds_ctx *ctx, const ds_cell_info *cell, const void *data, float *out);

#endif
