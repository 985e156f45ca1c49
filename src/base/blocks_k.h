/* SPDX-License-Identifier: Apache-2.0 */
/* One of ggml's blocks of 256 values: Q4_K, Q5_K, Q6_K. Parts of 32 values, of Q6_K 16, have a
 * scale and a minimum that are whole numbers times those of the block. For blocks.c and for
 * io/gguf_types.c, which has the values. */
#ifndef DSI_BASE_BLOCKS_K_H
#define DSI_BASE_BLOCKS_K_H

#include "base/blocks.h"

/* Where the block's own scale stands, a half; of Q4_K and Q5_K one of minima follows. */
static inline int64_t dsi_k_front_at(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q6_K ? 208 : 0;
}

/* Scale and minimum of part p; the minimum is what is taken away, 0 in Q6_K. */
void dsi_k_part(ds_dtype dtype, const uint8_t *block, int p, int *scale_out, int *minimum_out);
/* q of value i, not less than 0. */
int dsi_k_value(ds_dtype dtype, const uint8_t *block, int i);
/* The same of 32 values from `first` on, a multiple of 32. */
void dsi_k_values(ds_dtype dtype, const uint8_t *block, int first, uint8_t out[DSI_BLOCK]);
/* Our own search, which makes the squares of what is lost small: within steps of a tenth around
 * the plain scales of each part, by least squares, and once more among the rounded ones. */
void dsi_k_quantize(ds_dtype dtype, const float *x, uint8_t *block);

#endif
