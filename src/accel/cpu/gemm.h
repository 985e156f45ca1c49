/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on the CPU, with what surrounds them fused into the store. Called by the kernels
 * of linear, linear_dw, cross entropy and attention.
 *
 *   v       = alpha · Σ_k A[m,k]·B[k,n]  (+ addend[m,n] when accumulate)  + bias[n]      all in
 * fp32 pre     = v rounded to C's dtype, when `pre` is given; v goes on from the rounded value
 *   C[m,n]  = activation(v) + residual[m,n], rounded once to C's dtype
 *
 * Invariants:
 * 1. The order in which an element is summed depends on k, the dtypes of A and B and the
 * instruction set alone: a row of C has the same bits alone and among any others, with B packed or
 * not, for any n_threads and any pool. The split of the work depends on the fields that are not
 * pointers.
 * 2. No allocation: packed panels live in `work`, dsi_gemm_work_bytes() bytes, aligned to 64.
 * 3. C, pre and residual may be any row stride >= n; residual may be C itself (same stride), the
 *    addend where C is in F32; else
 *    nothing that is written overlaps anything that is read.
 * 4. m, n or k may be 0: k = 0 gives the epilogue of a zero sum.
 * 5. Values beyond the edges of A and B are never read into a result (they may be NaN); no byte
 *    outside the m×n elements is written.
 */
#ifndef DSI_ACCEL_CPU_GEMM_H
#define DSI_ACCEL_CPU_GEMM_H

#include "accel/cpu/cpu_features.h"
#include "base/pool.h"

#include <deepspeed/op.h>

typedef enum dsi_gemm_act { DSI_GEMM_ACT_NONE = 0, DSI_GEMM_ACT_GELU_TANH = 1 } dsi_gemm_act;

typedef struct dsi_gemm_params {
    int64_t m, n, k;
    const void *a; /* (m,k), or (k,m) when a_transposed */
    const void *b; /* (k,n), or (n,k) when b_transposed; with b_packed: dsi_gemm_pack's output */
    void *c;       /* (m,n) */
    int64_t lda;   /* elements from one stored row to the next */
    int64_t ldb;   /* not read with b_packed */
    int64_t ldc;
    ds_dtype a_dtype; /* F32, BF16 or F16; likewise all others */
    ds_dtype b_dtype;
    ds_dtype c_dtype;
    bool a_transposed;
    bool b_transposed;
    bool b_packed;
    bool accumulate;     /* no pre, no residual */
    const float *addend; /* of accumulate: (m,n) with C's stride; NULL: C, which is in F32 */
    float alpha;
    const void *bias;    /* (n) or NULL */
    ds_dtype bias_dtype; /* NONE without bias: it is part of the shape of the work */
    void *pre;           /* (m,n) in C's dtype, or NULL */
    int64_t ldpre;
    dsi_gemm_act activation;
    const void *residual; /* (m,n) in C's dtype, or NULL */
    int64_t ldres;
    ds_isa isa;         /* what may be used, where the machine has it */
    uint32_t n_threads; /* the plan's: shapes the split. 0 is 1 */
} dsi_gemm_params;

/* alpha 1, isa of every bit, n_threads 1, everything else 0. */
dsi_gemm_params dsi_gemm_params_default(void);

/* Bytes of `work`; may be 0. Depends on no pointer: a, b, c, bias, pre and residual are not read.
 */
size_t dsi_gemm_work_bytes(const dsi_gemm_params *params);

/* Computes. Pre: the dtypes are F32, BF16 or F16, strides cover the rows, work is large enough.
 * pool NULL: on this thread alone, with the same result. Not from inside a pool task, unless pool
 * is NULL and the task brings its own work. */
void dsi_gemm(dsi_pool *pool, const dsi_gemm_params *params, void *work);

/* Packing B once for several products with the same b, n, k, ldb, dtypes (of A and B), layout, isa
 * and n_threads; m, the epilogue and A's values may differ. Worth it when m is small against 1000.
 * 0: this kind of product has no packed form; then do not call dsi_gemm_pack. */
size_t dsi_gemm_pack_bytes(const dsi_gemm_params *params);
/* packed: dsi_gemm_pack_bytes() bytes aligned to 64. params->c and A's data are not read. */
void dsi_gemm_pack(dsi_pool *pool, const dsi_gemm_params *params, void *packed);

#endif
