/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in blocks: 32 values of a row share a scale. The types are ggml's Q8_0 and Q4_0
 * (github.com/ggml-org/ggml, ggml-common.h); quantizing gives the bits of its reference.
 *
 * A matrix (rows, k) of such a dtype lies in panels of DSI_BLOCK_ROWS rows, the last one filled up
 * with zero rows; a panel block by block, so that a vector's lanes are rows:
 *     scales f16 [16], then of Q8_0: bytes [8][16][4], value + 128 of row r at k = 4·step + j;
 *     of Q4_0: bytes [4][16][4], value + 8: the low half at k = 8·pair + j, the high at k + 4.
 * It takes as many bytes as row by row.
 */
#ifndef DSI_BASE_BLOCKS_H
#define DSI_BASE_BLOCKS_H

#include <deepspeed/tensor.h>

enum { DSI_BLOCK = 32, DSI_BLOCK_ROWS = 16, DSI_BLOCK_SCALES = 2 * DSI_BLOCK_ROWS };

static inline bool dsi_is_blocks(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q8_0 || dtype == DS_DTYPE_Q4_0;
}

/* Of one block of one row: its scale, f16, and its values. */
static inline int64_t dsi_block_bytes(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q8_0 ? 34 : 18;
}

/* Of a panel of a matrix with k columns. */
static inline size_t dsi_panel_bytes(ds_dtype dtype, int64_t k)
{
    return (size_t)(k / DSI_BLOCK * dsi_block_bytes(dtype) * DSI_BLOCK_ROWS);
}

/* n values, a multiple of 32, as ggml's blocks behind each other: scale, then values. Values that
 * are not finite give a scale that is not. */
void dsi_blocks_quantize(ds_dtype dtype, const float *x, int64_t n, uint8_t *blocks);
/* A panel of n_rows rows, 1 to 16, of ggml's blocks that stand row_bytes apart. */
void dsi_blocks_weave(ds_dtype dtype, const uint8_t *rows, int64_t n_rows, size_t row_bytes,
                      int64_t k, uint8_t *panel);

/* Row r, value i of the block at `block` of a panel, as a whole number. */
static inline int dsi_block_value(ds_dtype dtype, const uint8_t *block, int64_t r, int64_t i)
{
    const uint8_t *bytes = block + DSI_BLOCK_SCALES + 4 * r + i % 4;
    if (dtype == DS_DTYPE_Q8_0) {
        return bytes[i / 4 * 64] - 128;
    }
    const uint8_t both = bytes[i / 8 * 64];
    return (i / 4 % 2 == 0 ? both & 15 : both >> 4) - 8;
}

#endif
