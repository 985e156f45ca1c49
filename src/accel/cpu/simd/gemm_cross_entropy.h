/* SPDX-License-Identifier: Apache-2.0 */
/* What linear_cross_entropy and its backward operators share on the matrix-product engine: the
 * vocabulary is walked in panels of PANEL columns. */
#ifndef DSI_ACCEL_CPU_GEMM_CROSS_ENTROPY_H
#define DSI_ACCEL_CPU_GEMM_CROSS_ENTROPY_H

#include "accel/cpu/simd/gemm_kernels.h"
#include "accel/cpu/simd/targets.h"
#include "accel/cpu/simd/vec_math.h"

enum { PANEL = 1024, ROW_TASK = 64 };

/* Shapes of one call. */
typedef struct ce_sizes {
    int64_t rows, width, vocab;
    bool transposed; /* w is (C,V) */
} ce_sizes;

DSI_INLINE int64_t ce_panel_width(const ce_sizes *s, int64_t column)
{
    return s->vocab - column < PANEL ? s->vocab - column : PANEL;
}

/* Columns of a panel that are of the vocabulary: behind the last row of all, a part is padded. */
DSI_INLINE int64_t ce_real_width(int64_t n, int64_t column, int64_t first, int64_t n_all)
{
    const int64_t left = n_all - first - column;
    return left < 0 ? 0 : left < n ? left : n;
}

/* Between rows of w. */
DSI_INLINE int64_t ce_ldw(const ce_sizes *s)
{
    return s->transposed ? s->vocab : s->width;
}

DSI_INLINE const void *ce_panel_of(const void *w, ds_dtype type, const ce_sizes *s, int64_t column)
{
    const int64_t first = s->transposed ? column : column * s->width;
    return (const char *)w + (size_t)first * ds_dtype_bytes(type);
}

/* logits (rows,n), `stride` between rows, = x · panelᵀ, of operands of type `type` */
DSI_INLINE dsi_gemm_params ce_logits_params(const ds_kernel_sig *sig, ds_dtype type,
                                            const ce_sizes *s, int64_t n, int64_t stride,
                                            ds_isa isa)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->rows;
    p.n = n;
    p.k = s->width;
    p.lda = s->width;
    p.ldb = ce_ldw(s);
    p.ldc = stride;
    p.a_dtype = type;
    p.b_dtype = type;
    p.c_dtype = DS_DTYPE_F32;
    p.b_transposed = !s->transposed;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

/* Largest workspace over full and last panel. */
DSI_INLINE size_t ce_logits_work(const ds_kernel_sig *sig, ds_dtype type, const ce_sizes *s,
                                 ds_isa isa)
{
    const int64_t widths[2] = {s->vocab < PANEL ? s->vocab : PANEL, s->vocab % PANEL};
    size_t most = 0;
    for (int i = 0; i < 2 && widths[i] > 0; ++i) {
        const dsi_gemm_params p = ce_logits_params(sig, type, s, widths[i], PANEL, isa);
        const size_t bytes = dsi_gemm_work_bytes(&p);
        most = bytes > most ? bytes : most;
    }
    return round64(most);
}

DSI_INLINE uint32_t ce_row_tasks(int64_t rows)
{
    return (uint32_t)((rows + ROW_TASK - 1) / ROW_TASK);
}

#endif
