/* SPDX-License-Identifier: Apache-2.0 */
/* A run of the elements of a box of a tensor as boxes of the tensor. Called by
 * ckpt_deepspeed_model.c (which reads ranks' shards) and deepspeed_out_vector.c (which writes
 * them). */
#ifndef DSI_CKPT_BOX_RUNS_H
#define DSI_CKPT_BOX_RUNS_H

#include <deepspeed/checkpoint.h>

/* shape: its lengths; offset: in the tensor. */
typedef struct dsi_box {
    ds_shape shape;
    int64_t offset[DS_MAX_DIMS];
} dsi_box;

/* first: the number of the extent's first element among the box's, in row-major order. */
typedef ds_status (*dsi_box_fn)(void *user, const ds_extent *extent, int64_t first);

/* Calls fn with boxes of the tensor whose elements, one after the other, are [low, high) of the
 * box's: at most two for each dim and one. Errors: what fn returns. */
ds_status dsi_box_runs(const dsi_box *box, int64_t low, int64_t high, dsi_box_fn fn, void *user);

#endif
