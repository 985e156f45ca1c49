/* SPDX-License-Identifier: Apache-2.0 */
/* linear and linear_dw on the matrix-product engine; the column sums of dy for the bias. */
#include "accel/cpu/simd/gemm_kernels.h"

/* ---- linear: x, w, [bias], [residual] → y, [pre]
 * ------------------------------------------------- */
static bool linear_supports(const ds_kernel_sig *sig)
{
    const dsi_linear_attrs *a = sig->attrs;
    const ds_dtype y = sig->out[0].dtype;
    const bool narrow = y == sig->in[0].dtype || y == DS_DTYPE_F32;
    return gemm_dtype(sig->in[0].dtype) && gemm_dtype(sig->in[1].dtype) && narrow &&
           (a->activation == DSI_ACT_NONE || a->activation == DSI_ACT_GELU_TANH);
}

static dsi_gemm_params linear_params(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_linear_attrs *a = sig->attrs;
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = ds_shape_rows(sig->in[0].shape);
    p.k = ds_shape_last(sig->in[0].shape);
    p.n = ds_shape_last(sig->out[0].shape);
    p.lda = p.k;
    p.ldb = a->transposed ? p.n : p.k;
    p.ldc = p.n;
    p.a_dtype = sig->in[0].dtype;
    p.b_dtype = sig->in[1].dtype;
    p.c_dtype = sig->out[0].dtype;
    p.b_transposed = a->transposed == 0;
    p.bias_dtype = sig->n_in > 2 ? sig->in[2].dtype : DS_DTYPE_NONE;
    p.activation = a->activation == DSI_ACT_GELU_TANH ? DSI_GEMM_ACT_GELU_TANH : DSI_GEMM_ACT_NONE;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

static size_t linear_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_gemm_params p = linear_params(sig, isa);
    return dsi_gemm_work_bytes(&p);
}

static ds_status linear_run(const ds_kernel_call *call, ds_isa isa)
{
    dsi_gemm_params p = linear_params(call->sig, isa);
    p.a = call->in[0].data;
    p.b = call->in[1].data;
    p.c = call->out[0].data;
    p.bias = call->sig->n_in > 2 ? call->in[2].data : NULL;
    p.residual = call->sig->n_in > 3 ? call->in[3].data : NULL;
    p.ldres = p.n;
    p.pre = call->out[1].data;
    p.ldpre = p.n;
    dsi_gemm(dsi_ctx_pool(call->ctx), &p, call->work);
    return DS_OK;
}

DSI_GEMM_KERNEL(linear)

/* ---- column sums of dy, in row order
 * -------------------------------------------------------------- A task owns a strip of columns;
 * its sums stay in registers or L1. */
enum { STRIP = 64, STRIP_VECTORS = STRIP / VF_WIDTH };

typedef struct column_job {
    const void *dy;
    ds_dtype type;
    size_t n_rows, n_columns;
    void *sum;
    ds_dtype sum_type;
    const float *addend; /* to the finished sums; NULL: nothing */
} column_job;

DSI_INLINE void sum_strip(const column_job *job, ds_dtype type, size_t column)
{
    vf sums[STRIP_VECTORS];
    for (int j = 0; j < STRIP_VECTORS; ++j) {
        sums[j] = vf_set(0.0f);
    }
    for (size_t row = 0; row < job->n_rows; ++row) {
        const size_t at = row * job->n_columns + column;
        for (size_t j = 0; j < STRIP_VECTORS; ++j) {
            sums[j] = vf_add(sums[j], vf_get(job->dy, type, at + j * VF_WIDTH));
        }
    }
    for (size_t j = 0; j < STRIP_VECTORS; ++j) {
        const size_t at = column + j * VF_WIDTH;
        if (job->addend != NULL) {
            sums[j] = vf_add(sums[j], vf_get(job->addend, DS_DTYPE_F32, at));
        }
        vf_put(job->sum, job->sum_type, at, sums[j]);
    }
}

DSI_INLINE void sum_rest(const column_job *job, ds_dtype type, size_t column)
{
    for (; column < job->n_columns; column += VF_WIDTH) {
        const size_t left = job->n_columns - column;
        const size_t n = left < VF_WIDTH ? left : VF_WIDTH;
        vf sum = vf_set(0.0f);
        for (size_t row = 0; row < job->n_rows; ++row) {
            sum = vf_add(sum, vf_get_n(job->dy, type, row * job->n_columns + column, n));
        }
        if (job->addend != NULL) {
            sum = vf_add(sum, vf_get_n(job->addend, DS_DTYPE_F32, column, n));
        }
        vf_put_n(job->sum, job->sum_type, column, sum, n);
    }
}

static void column_task(void *arg, uint32_t task, uint32_t thread)
{
    const column_job *job = arg;
    const size_t column = (size_t)task * STRIP;
    (void)thread;
    if (column + STRIP <= job->n_columns) {
        DSI_BY_TYPE(job->type, sum_strip(job, T, column));
    } else {
        DSI_BY_TYPE(job->type, sum_rest(job, T, column));
    }
}

/* ---- linear_dw: x, dy, [dw_in], [dbias_in] → dw, [dbias]
 * ------------------------------------------------------- */
static bool linear_dw_supports(const ds_kernel_sig *sig)
{
    return gemm_dtype(sig->in[0].dtype) && gemm_dtype(sig->in[1].dtype) &&
           gemm_dtype(sig->out[0].dtype);
}

static dsi_gemm_params linear_dw_params(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_linear_dw_attrs *a = sig->attrs;
    const int64_t width = ds_shape_last(sig->in[0].shape);
    const int64_t n_out = ds_shape_last(sig->in[1].shape);
    const uint32_t left = a->transposed ? 0 : 1; /* dw = leftᵀ · right */
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = a->transposed ? width : n_out;
    p.n = a->transposed ? n_out : width;
    p.k = ds_shape_rows(sig->in[0].shape);
    p.lda = p.m;
    p.ldb = p.n;
    p.ldc = p.n;
    p.a_dtype = sig->in[left].dtype;
    p.b_dtype = sig->in[1 - left].dtype;
    p.c_dtype = sig->out[0].dtype;
    p.a_transposed = true;
    p.accumulate = sig->n_in > 2 && sig->in[2].dtype != DS_DTYPE_NONE;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

static size_t linear_dw_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_gemm_params p = linear_dw_params(sig, isa);
    return dsi_gemm_work_bytes(&p);
}

static ds_status linear_dw_run(const ds_kernel_call *call, ds_isa isa)
{
    const dsi_linear_dw_attrs *a = call->sig->attrs;
    const uint32_t left = a->transposed ? 0 : 1;
    dsi_gemm_params p = linear_dw_params(call->sig, isa);
    p.a = call->in[left].data;
    p.b = call->in[1 - left].data;
    p.c = call->out[0].data;
    p.addend = p.accumulate ? call->in[2].data : NULL;
    dsi_gemm(dsi_ctx_pool(call->ctx), &p, call->work);
    if (call->out[1].data != NULL) {
        column_job job = {.dy = call->in[1].data,
                          .type = call->in[1].meta.dtype,
                          .n_rows = (size_t)p.k,
                          .n_columns = (size_t)ds_shape_last(call->in[1].meta.shape),
                          .sum = call->out[1].data,
                          .sum_type = call->out[1].meta.dtype,
                          .addend = call->sig->n_in > 3 ? call->in[3].data : NULL};
        ds_parallel(call->ctx, column_task, &job, (uint32_t)((job.n_columns + STRIP - 1) / STRIP));
    }
    return DS_OK;
}

DSI_GEMM_KERNEL(linear_dw)
