/* SPDX-License-Identifier: Apache-2.0 */
/* What the vector kernels of attention share: products of small fp32 matrices, copies in and out.
 *
 * Every product is C(rows × lanes) (+)= A(rows × n)·B(n × lanes) with B and C contiguous along the
 * lanes and A read one element at a time, so A may be transposed for free.
 */
#ifndef DSI_ACCEL_CPU_SIMD_ATTENTION_H
#define DSI_ACCEL_CPU_SIMD_ATTENTION_H

#include "accel/cpu/simd/attn_vec.h"
#include "accel/cpu/simd/simd_kernel.h"

enum {
    ATTN_VECTORS = 3, /* of queries in a block */
    ATTN_QUERIES = ATTN_VECTORS * VF_WIDTH,
    ATTN_KEYS = 64,                    /* in a block */
    ATTN_ROWS = VF_WIDTH == 16 ? 8 : 4 /* rows of C in registers */
};

typedef struct attn_matrices {
    const float *a;
    int64_t a_row, a_step; /* floats between rows, and along the sum */
    const float *b;
    int64_t b_step;
    float *c;
    int64_t c_row;
    int64_t n; /* terms of the sum */
} attn_matrices;

/* rows, vectors, add: constants. */
DSI_INLINE void attn_product_block(const attn_matrices *m, int rows, int vectors, bool add)
{
    vf c[ATTN_ROWS][ATTN_VECTORS];
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) {
            c[r][v] = add ? vf_load(m->c + r * m->c_row + v * VF_WIDTH) : vf_zero();
        }
    }
    const float *a = m->a;
    const float *b = m->b;
    for (int64_t k = 0; k < m->n; ++k) {
        vf x[ATTN_VECTORS];
        for (int v = 0; v < vectors; ++v) {
            x[v] = vf_load(b + v * VF_WIDTH);
        }
        for (int r = 0; r < rows; ++r) {
            const vf y = vf_set(a[r * m->a_row]);
            for (int v = 0; v < vectors; ++v) {
                c[r][v] = vf_fma(y, x[v], c[r][v]);
            }
        }
        a += m->a_step;
        b += m->b_step;
    }
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) {
            vf_store(m->c + r * m->c_row + v * VF_WIDTH, c[r][v]);
        }
    }
}

DSI_INLINE void attn_product_rows(attn_matrices m, int64_t rows, int vectors, bool add)
{
    for (; rows >= ATTN_ROWS; rows -= ATTN_ROWS) {
        attn_product_block(&m, ATTN_ROWS, vectors, add);
        m.a += ATTN_ROWS * m.a_row;
        m.c += ATTN_ROWS * m.c_row;
    }
    for (; rows > 0; --rows) {
        attn_product_block(&m, 1, vectors, add);
        m.a += m.a_row;
        m.c += m.c_row;
    }
}

/* The whole product: `vectors` vectors of lanes. */
static inline void attn_product_all(attn_matrices m, int64_t rows, int64_t vectors, bool add)
{
    while (vectors > 0) {
        const int64_t now = vectors >= 3 && vectors != 4 ? 3 : vectors >= 2 ? 2 : 1;
        if (now == 3) {
            attn_product_rows(m, rows, 3, add);
        } else if (now == 2) {
            attn_product_rows(m, rows, 2, add);
        } else {
            attn_product_rows(m, rows, 1, add);
        }
        vectors -= now;
        m.b += now * VF_WIDTH;
        m.c += now * VF_WIDTH;
    }
}

/* to[row][0..d) = row `row` of the operand as fp32, `width` floats a row, the rest zero. */
static inline void attn_widen_rows(const void *from, ds_dtype type, int64_t at, int64_t stride,
                                   int64_t n_rows, int64_t d, float *to, int64_t width)
{
    for (int64_t i = 0; i < n_rows; ++i) {
        for (int64_t c = 0; c < width; c += VF_WIDTH) {
            const size_t left = c < d ? (size_t)attn_min(VF_WIDTH, d - c) : 0;
            const size_t index = (size_t)(at + i * stride + c);
            const vf v = left == VF_WIDTH ? vf_get(from, type, index)
                         : left > 0       ? vf_get_n(from, type, index, left)
                                          : vf_zero();
            vf_store(to + i * width + c, v);
        }
    }
}

/* to[c][lane] = rows[lane][c], ATTN_QUERIES lanes; lanes from n on are zero. */
static inline void attn_to_lanes(const float *rows, int64_t width, int64_t n, int64_t d, float *to)
{
    for (int64_t c = 0; c < d; ++c) {
        for (int64_t lane = 0; lane < ATTN_QUERIES; ++lane) {
            to[c * ATTN_QUERIES + lane] = lane < n ? rows[lane * width + c] : 0.0f;
        }
    }
}

/* Row of n floats times scale into elements at.. of a tensor. */
static inline void attn_narrow_row(const float *from, float scale, int64_t n, void *to,
                                   ds_dtype type, int64_t at)
{
    for (int64_t c = 0; c < n; c += VF_WIDTH) {
        const size_t left = (size_t)attn_min(VF_WIDTH, n - c);
        /* plus zero: the sign of a zero depends on keys that the query does not see */
        const vf v = vf_fma(vf_load_n(from + c, left), vf_set(scale), vf_zero());
        vf_put_n(to, type, (size_t)(at + c), v, left);
    }
}

static inline int64_t attn_width(int64_t d)
{
    return attn_round_up(d, VF_WIDTH);
}

/* Few queries against many keys: simd_attention_decode.c. */
bool DSI_NAME(dsi_attn_decodes)(const ds_kernel_sig *sig);
size_t DSI_NAME(dsi_attn_decode_work)(const ds_kernel_sig *sig);
ds_status DSI_NAME(dsi_attn_decode)(const ds_kernel_call *call);

#endif
