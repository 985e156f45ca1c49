/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in blocks: 32 values of a row share a scale. The types are ggml's Q8_0, Q4_0,
 * Q4_1, Q5_0 and Q5_1 (github.com/ggml-org/ggml, ggml-common.h); quantizing gives the bits of its
 * reference. A value is scale·(q - offset), or scale·q + minimum.
 *
 * A matrix (rows, k) of such a dtype lies in panels of DSI_BLOCK_ROWS rows, the last one filled up
 * with zero rows; a panel block by block, so that a vector's lanes are rows:
 *     scales f16 [16]; of Q4_1 and Q5_1 minima f16 [16]; of Q5_0 and Q5_1 the fifth bits, a word
 *     of row r [16], that of k = 4·step + j at bit 8·j + step; then of Q8_0 bytes [8][16][4], q of
 *     row r at k = 4·step + j; of the others bytes [4][16][4]: the low half is that of
 *     k = 8·pair + j, the high one that of k + 4.
 * It takes as many bytes as row by row.
 */
#ifndef DSI_BASE_BLOCKS_H
#define DSI_BASE_BLOCKS_H

#include <deepspeed/tensor.h>

enum { DSI_BLOCK = 32, DSI_BLOCK_ROWS = 16 };

static inline bool dsi_is_blocks(ds_dtype dtype)
{
    return dtype >= DS_DTYPE_Q8_0 && dtype <= DS_DTYPE_Q5_1;
}

static inline bool dsi_block_has_minimum(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q4_1 || dtype == DS_DTYPE_Q5_1;
}

static inline bool dsi_block_has_fifth(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q5_0 || dtype == DS_DTYPE_Q5_1;
}

/* What q is above the value in scales; 0 of types with a minimum. */
static inline int dsi_block_offset(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q8_0   ? 128
           : dtype == DS_DTYPE_Q4_0 ? 8
           : dtype == DS_DTYPE_Q5_0 ? 16
                                    : 0;
}

/* Of one row of a block: scale and minimum; then the fifth bits. */
static inline int64_t dsi_block_head(ds_dtype dtype)
{
    return dsi_block_has_minimum(dtype) ? 4 : 2;
}

static inline int64_t dsi_block_values(ds_dtype dtype)
{
    return dsi_block_head(dtype) + (dsi_block_has_fifth(dtype) ? 4 : 0);
}

/* Of one block of one row. */
static inline int64_t dsi_block_bytes(ds_dtype dtype)
{
    return dsi_block_values(dtype) + (dtype == DS_DTYPE_Q8_0 ? DSI_BLOCK : DSI_BLOCK / 2);
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

/* Row r, value i of the block at `block` of a panel, as a whole number: q - offset. */
static inline int dsi_block_value(ds_dtype dtype, const uint8_t *block, int64_t r, int64_t i)
{
    const uint8_t *bytes = block + dsi_block_values(dtype) * DSI_BLOCK_ROWS + 4 * r + i % 4;
    if (dtype == DS_DTYPE_Q8_0) {
        return bytes[i / 4 * 64] - 128;
    }
    const uint8_t both = bytes[i / 8 * 64];
    int q = i / 4 % 2 == 0 ? both & 15 : both >> 4;
    if (dsi_block_has_fifth(dtype)) {
        const uint8_t *fifth = block + dsi_block_head(dtype) * DSI_BLOCK_ROWS + 4 * r;
        q |= (fifth[i % 4] >> (i / 4) & 1) << 4;
    }
    return q - dsi_block_offset(dtype);
}

#endif
