/* SPDX-License-Identifier: Apache-2.0 */
/* Products of packed blocks by AVX-512's dot products of pairs of bf16, for bf16_attn_tile.h, which
 * alone includes this.
 *
 * A row of a tile of B is 16 pairs, one a lane; of A, 16 pairs of one row, broadcast one by one.
 * Eight rows of C against two tiles of B are sixteen sums: enough to hide an addition's latency,
 * with ten loads to sixteen products.
 */
#ifndef DSI_ACCEL_CPU_BF16_ATTN_DOTS_H
#define DSI_ACCEL_CPU_BF16_ATTN_DOTS_H

DSI_INLINE void attn_tiles_begin(void)
{
}

DSI_INLINE void attn_tiles_end(void)
{
}

/* Rows of one tile of C, and of `cols` tiles beside each other. n_rows, cols: constants. */
DSI_INLINE void attn_multiply_rows(const attn_product *x, const uint16_t *a, float *c, int n_rows,
                                   int cols, bool add)
{
    vf sum[16][2];
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; ++r) {
        for (int t = 0; t < cols; ++t) {
            sum[r][t] = add ? vf_load(c + t * x->c_col + r * 16) : vf_zero();
        }
    }
    const uint16_t *b = x->b;
    for (int64_t step = 0; step < x->n_steps; ++step) {
        for (int pair = 0; pair < 16; ++pair) {
            __m512bh right[2];
            for (int t = 0; t < cols; ++t) {
                right[t] = (__m512bh)_mm512_load_si512(b + t * x->b_col + pair * 32);
            }
#pragma GCC unroll 16
            for (int r = 0; r < n_rows; ++r) {
                int32_t left;
                memcpy(&left, a + r * 32 + pair * 2, sizeof left);
                const __m512bh both = (__m512bh)_mm512_set1_epi32(left);
                for (int t = 0; t < cols; ++t) {
                    sum[r][t] = _mm512_dpbf16_ps(sum[r][t], both, right[t]);
                }
            }
        }
        a += x->a_step;
        b += x->b_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; ++r) {
        for (int t = 0; t < cols; ++t) {
            vf_store(c + t * x->c_col + r * 16, sum[r][t]);
        }
    }
}

/* two_rows, two_cols: constants; add: C is read first. */
DSI_INLINE void attn_multiply(const attn_product *x, bool two_rows, bool two_cols, bool add)
{
    for (int row = 0; row < (two_rows ? 2 : 1); ++row) {
        const uint16_t *a = x->a + row * x->a_row;
        float *c = x->c + row * x->c_row;
        if (two_cols) {
            attn_multiply_rows(x, a, c, 8, 2, add);
            attn_multiply_rows(x, a + 8 * 32, c + 8 * 16, 8, 2, add);
        } else {
            attn_multiply_rows(x, a, c, 16, 1, add);
        }
    }
}

#endif
