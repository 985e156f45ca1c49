/* SPDX-License-Identifier: Apache-2.0 */
/* linear_packed on the matrix-product engine: columns of y are made strip by strip, and each
 * strip's part of the weight is unpacked into the workspace for it.
 *
 * A column of y has the bits that linear gives with the unpacked weight: the order of a sum depends
 * on k and the dtypes alone (gemm.h), and no sum crosses a strip.
 */
#include "accel/cpu/simd/gemm_kernels.h"
#include "base/packed.h"

enum { STRIP_BYTES = 1 << 20, STRIP_STEP = 64, PIECE = 256 };

static ds_packed matrix_of(const ds_kernel_sig *sig)
{
    const dsi_linear_packed_attrs *a = sig->attrs;
    return (ds_packed){(ds_packing)a->format, 0, a->rows, a->columns};
}

static bool linear_packed_supports(const ds_kernel_sig *sig)
{
    const ds_dtype y = sig->out[0].dtype;
    return gemm_dtype(sig->in[0].dtype) && (y == sig->in[0].dtype || y == DS_DTYPE_F32);
}

/* Columns of y in a strip. */
static int64_t strip_of(const ds_kernel_sig *sig)
{
    const int64_t k = ds_shape_last(sig->in[0].shape);
    const int64_t n = ds_shape_last(sig->out[0].shape);
    const int64_t fit = STRIP_BYTES / (k * (int64_t)ds_dtype_bytes(sig->in[0].dtype));
    const int64_t strip = fit / STRIP_STEP > 0 ? fit / STRIP_STEP * STRIP_STEP : STRIP_STEP;
    return strip < n ? strip : n;
}

static dsi_gemm_params packed_params(const ds_kernel_sig *sig, int64_t n, ds_isa isa)
{
    const dsi_linear_packed_attrs *a = sig->attrs;
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = ds_shape_rows(sig->in[0].shape);
    p.k = ds_shape_last(sig->in[0].shape);
    p.n = n;
    p.lda = p.k;
    p.ldb = a->transposed ? n : p.k;
    p.ldc = ds_shape_last(sig->out[0].shape);
    p.a_dtype = sig->in[0].dtype;
    p.b_dtype = sig->in[0].dtype;
    p.c_dtype = sig->out[0].dtype;
    p.b_transposed = a->transposed == 0;
    p.bias_dtype = sig->n_in > 2 ? sig->in[2].dtype : DS_DTYPE_NONE;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

static size_t strip_bytes(const ds_kernel_sig *sig)
{
    const int64_t k = ds_shape_last(sig->in[0].shape);
    return round64((size_t)(strip_of(sig) * k) * ds_dtype_bytes(sig->in[0].dtype));
}

static size_t linear_packed_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const int64_t strip = strip_of(sig);
    const int64_t n = ds_shape_last(sig->out[0].shape);
    const dsi_gemm_params most = packed_params(sig, strip, isa);
    const dsi_gemm_params last = packed_params(sig, n % strip, isa);
    const size_t a = dsi_gemm_work_bytes(&most);
    const size_t b = n % strip > 0 ? dsi_gemm_work_bytes(&last) : 0;
    return strip_bytes(sig) + (a > b ? a : b);
}

/* ---- unpacking ------------------------------------------------------------------------------- */

typedef struct strip_job {
    ds_packed w;
    const void *data;
    bool transposed;
    int64_t begin, n; /* of the strip */
    ds_dtype type;
    unsigned char *out; /* (n,K); transposed: (K,n) */
} strip_job;

/* Two codes a byte to elements of 16 bits, whose 16 values in this block are a table. */
static void unpack_halves(const strip_job *job, int64_t first, int64_t n, uint16_t *out)
{
    const unsigned char *codes = dsi_packed_codes(&job->w, job->data);
    const int64_t end = first + n;
    for (int64_t i = first; i < end;) {
        const int64_t block = i / DSI_PACKED_BLOCK;
        const int64_t next = (block + 1) * DSI_PACKED_BLOCK;
        const int64_t stop = next < end ? next : end;
        float values[16];
        uint16_t table[2 * 16]; /* room for the fp32 that it never holds */
        dsi_packed_values(&job->w, job->data, block, values);
        for (size_t k = 0; k < 16; k += VF_WIDTH) {
            DSI_BY_TYPE(job->type, vf_put(table, T, k, vf_get(values, DS_DTYPE_F32, k)));
        }
        if (i % 2 != 0) {
            *out++ = table[codes[i++ / 2] & 15];
        }
        for (; i + 2 <= stop; i += 2, out += 2) {
            out[0] = table[codes[i / 2] >> 4];
            out[1] = table[codes[i / 2] & 15];
        }
        if (i < stop) {
            *out++ = table[codes[i++ / 2] >> 4];
        }
    }
}

/* Elements [first, first + n) of the matrix, from element `at` of the strip on. */
static void unpack(const strip_job *job, int64_t first, int64_t n, int64_t at)
{
    float piece[PIECE];
    if (job->type == DS_DTYPE_F32) {
        dsi_packed_read(&job->w, job->data, first, n, (float *)(void *)job->out + at);
    } else if (job->w.format == DS_PACKING_NF4 || job->w.format == DS_PACKING_NF4_DOUBLE) {
        unpack_halves(job, first, n, (uint16_t *)(void *)job->out + at);
    } else {
        for (int64_t i = 0; i < n; i += PIECE) {
            const int64_t count = n - i < PIECE ? n - i : PIECE;
            dsi_packed_read(&job->w, job->data, first + i, count, piece);
            for (int64_t j = 0; j < count; j += VF_WIDTH) {
                const size_t left = (size_t)(count - j) < VF_WIDTH ? (size_t)(count - j) : VF_WIDTH;
                const vf v = vf_get_n(piece, DS_DTYPE_F32, (size_t)j, left);
                DSI_BY_TYPE(job->type, vf_put_n(job->out, T, (size_t)(at + i + j), v, left));
            }
        }
    }
}

/* A row of what the strip holds of the matrix. */
static void unpack_task(void *arg, uint32_t task, uint32_t thread)
{
    const strip_job *job = arg;
    (void)thread;
    if (job->transposed) {
        unpack(job, task * job->w.columns + job->begin, job->n, task * job->n);
    } else {
        unpack(job, (job->begin + task) * job->w.columns, job->w.columns, task * job->w.columns);
    }
}

/* ---- the product ----------------------------------------------------------------------------- */

static ds_status linear_packed_run(const ds_kernel_call *call, ds_isa isa)
{
    const ds_kernel_sig *sig = call->sig;
    const dsi_linear_packed_attrs *a = sig->attrs;
    const int64_t n = ds_shape_last(sig->out[0].shape);
    const int64_t strip = strip_of(sig);
    const bool has_bias = sig->n_in > 2 && call->in[2].data != NULL;
    strip_job job = {.w = matrix_of(sig),
                     .data = call->in[1].data,
                     .transposed = a->transposed != 0,
                     .type = sig->in[0].dtype,
                     .out = call->work};
    for (int64_t at = 0; at < n; at += strip) {
        job.begin = at;
        job.n = n - at < strip ? n - at : strip;
        ds_parallel(call->ctx, unpack_task, &job, (uint32_t)(job.transposed ? job.w.rows : job.n));
        dsi_gemm_params p = packed_params(sig, job.n, isa);
        p.a = call->in[0].data;
        p.b = call->work;
        p.c = (unsigned char *)call->out[0].data + (size_t)at * ds_dtype_bytes(p.c_dtype);
        p.bias = has_bias ? (const unsigned char *)call->in[2].data +
                                (size_t)at * ds_dtype_bytes(p.bias_dtype)
                          : NULL;
        dsi_gemm(dsi_ctx_pool(call->ctx), &p, (unsigned char *)call->work + strip_bytes(sig));
    }
    return DS_OK;
}

DSI_GEMM_KERNEL(linear_packed)
