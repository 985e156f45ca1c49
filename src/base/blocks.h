/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in blocks: 32 values of a row share a scale. The types are ggml's Q8_0, Q4_0,
 * Q4_1, Q5_0, Q5_1 and, of 256 values, Q4_K, Q5_K and Q6_K (github.com/ggml-org/ggml,
 * ggml-common.h); quantizing gives the bits of its reference, but for K types (blocks_k.c). A value
 * is scale·(q - offset), or scale·q + minimum; in K types scale and minimum are a whole number
 * times one of the 256, and each half of Q6_K's 32 has its own scale.
 *
 * A matrix (rows, k) of such a dtype lies in panels of DSI_BLOCK_ROWS rows, the last one filled up
 * with zero rows; a panel block by block, so that a vector's lanes are rows. In front of eight
 * blocks of a K type: scales f16 [16]; but for Q6_K minima f16 [16]. A block:
 *     scales f16 [16]; of Q4_1 and Q5_1 minima f16 [16]; of K types in place of them scales u8
 *     [16] and minima u8 [16], of Q6_K scales i8 [2][16];
 *     of Q5_0, Q5_1 and Q5_K the fifth bits, a word of row r [16], that of k = 4·step + j at bit
 *     8·j + step; of Q6_K the two high bits, words [2][16], those of k = 16·word + 4·step + j at
 *     bit 8·j + 2·step;
 *     then of Q8_0 bytes [8][16][4], q of row r at k = 4·step + j; of the others bytes
 *     [4][16][4]: the low half is that of k = 8·pair + j, the high one that of k + 4.
 * It takes as many bytes as row by row, but for Q4_K and Q5_K, whose six-bit scales and minima are
 * bytes here: 4 of 144 or 176 more.
 */
#ifndef DSI_BASE_BLOCKS_H
#define DSI_BASE_BLOCKS_H

#include <deepspeed/tensor.h>

enum { DSI_BLOCK = 32, DSI_BLOCK_LARGE = 256, DSI_BLOCK_ROWS = 16 };

static inline bool dsi_is_blocks(ds_dtype dtype)
{
    return dtype >= DS_DTYPE_Q8_0 && dtype <= DS_DTYPE_Q6_K;
}

static inline bool dsi_block_is_k(ds_dtype dtype)
{
    return dtype >= DS_DTYPE_Q4_K && dtype <= DS_DTYPE_Q6_K;
}

static inline bool dsi_block_has_minimum(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q4_1 || dtype == DS_DTYPE_Q5_1 || dtype == DS_DTYPE_Q4_K ||
           dtype == DS_DTYPE_Q5_K;
}

static inline bool dsi_block_has_fifth(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q5_0 || dtype == DS_DTYPE_Q5_1 || dtype == DS_DTYPE_Q5_K;
}

/* Parts of 32 values that have scales of their own. */
static inline int dsi_block_parts(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q6_K ? 2 : 1;
}

/* What q is above the value in scales; 0 of types with a minimum. */
static inline int dsi_block_offset(ds_dtype dtype)
{
    return dtype == DS_DTYPE_Q8_0   ? 128
           : dtype == DS_DTYPE_Q4_0 ? 8
           : dtype == DS_DTYPE_Q5_0 ? 16
           : dtype == DS_DTYPE_Q6_K ? 32
                                    : 0;
}

/* ---- row by row, as ggml has them ------------------------------------------------------------ */

/* Values of a block: rows are whole blocks. */
static inline int64_t dsi_block_length(ds_dtype dtype)
{
    return dsi_block_is_k(dtype) ? DSI_BLOCK_LARGE : DSI_BLOCK;
}

/* Of one such block. */
static inline int64_t dsi_block_bytes(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_Q8_0:
        return 34;
    case DS_DTYPE_Q4_0:
        return 18;
    case DS_DTYPE_Q4_1:
        return 20;
    case DS_DTYPE_Q5_0:
        return 22;
    case DS_DTYPE_Q5_1:
        return 24;
    case DS_DTYPE_Q4_K:
        return 144;
    case DS_DTYPE_Q5_K:
        return 176;
    default:
        return 210;
    }
}

/* Of a row of k values. */
static inline size_t dsi_block_row_bytes(ds_dtype dtype, int64_t k)
{
    return (size_t)(k / dsi_block_length(dtype) * dsi_block_bytes(dtype));
}

/* `dtype`, or where rows of k are no whole blocks of a K type, the type of blocks of 32 that
 * llama.cpp takes in its place; NONE: k is no whole blocks of 32. */
ds_dtype dsi_blocks_fitting(ds_dtype dtype, int64_t k);
/* n values, whole blocks, as ggml's blocks behind each other. Values that are not finite give a
 * scale that is not. */
void dsi_blocks_quantize(ds_dtype dtype, const float *x, int64_t n, uint8_t *blocks);

/* ---- panels ---------------------------------------------------------------------------------- */

/* All of one row. Scales and minima of a block of 32; then the high bits; then four or eight. */
static inline int64_t dsi_block_head(ds_dtype dtype)
{
    return dsi_block_has_minimum(dtype) && !dsi_block_is_k(dtype) ? 4 : 2;
}

static inline int64_t dsi_block_values(ds_dtype dtype)
{
    return dsi_block_head(dtype) + (dsi_block_has_fifth(dtype) ? 4
                                    : dtype == DS_DTYPE_Q6_K   ? 8
                                                               : 0);
}

static inline int64_t dsi_block_woven(ds_dtype dtype)
{
    return dsi_block_values(dtype) + (dtype == DS_DTYPE_Q8_0 ? DSI_BLOCK : DSI_BLOCK / 2);
}

/* In front of eight blocks. */
static inline int64_t dsi_block_front(ds_dtype dtype)
{
    return !dsi_block_is_k(dtype) ? 0 : dtype == DS_DTYPE_Q6_K ? 2 : 4;
}

/* Of a panel of a matrix with k columns. */
static inline size_t dsi_panel_bytes(ds_dtype dtype, int64_t k)
{
    return (size_t)((k / DSI_BLOCK * dsi_block_woven(dtype) +
                     (k + DSI_BLOCK_LARGE - 1) / DSI_BLOCK_LARGE * dsi_block_front(dtype)) *
                    DSI_BLOCK_ROWS);
}

/* Block b of a panel, and what stands in front of its eight. */
static inline int64_t dsi_block_at(ds_dtype dtype, int64_t b)
{
    enum { EIGHT = DSI_BLOCK_LARGE / DSI_BLOCK };
    return (b * dsi_block_woven(dtype) + (b / EIGHT + 1) * dsi_block_front(dtype)) * DSI_BLOCK_ROWS;
}

static inline int64_t dsi_block_front_at(ds_dtype dtype, int64_t b)
{
    enum { EIGHT = DSI_BLOCK_LARGE / DSI_BLOCK };
    return b / EIGHT * (EIGHT * dsi_block_woven(dtype) + dsi_block_front(dtype)) * DSI_BLOCK_ROWS;
}

/* A panel of n_rows rows, 1 to 16, of ggml's blocks that stand row_bytes apart. */
void dsi_blocks_weave(ds_dtype dtype, const uint8_t *rows, int64_t n_rows, size_t row_bytes,
                      int64_t k, uint8_t *panel);

/* Of row r of block b: the scale of its part, and its minimum or 0. */
float dsi_block_scale(ds_dtype dtype, const uint8_t *panel, int64_t b, int64_t r, int part);
float dsi_block_minimum(ds_dtype dtype, const uint8_t *panel, int64_t b, int64_t r);
/* Of value i of that row and block, a whole number: q - offset. */
int dsi_block_value(ds_dtype dtype, const uint8_t *panel, int64_t b, int64_t r, int64_t i);

#endif
