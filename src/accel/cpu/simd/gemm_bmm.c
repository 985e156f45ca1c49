/* SPDX-License-Identifier: Apache-2.0 */
/* bmm on the matrix-product engine: many items one a task, few items one after the other on all
 * threads. A product has the same bits either way (gemm.h). */
#include "accel/cpu/simd/gemm_kernels.h"

static bool bmm_supports(const ds_kernel_sig *sig)
{
    const ds_dtype y = sig->out[0].dtype;
    return gemm_dtype(sig->in[0].dtype) && (y == sig->in[0].dtype || y == DS_DTYPE_F32);
}

static int64_t items_of(const ds_kernel_sig *sig)
{
    int64_t n = 1;
    for (uint32_t i = 0; i + 2 < sig->out[0].shape.n_dims; ++i) {
        n *= sig->out[0].shape.dims[i];
    }
    return n;
}

static bool task_an_item(const ds_kernel_sig *sig)
{
    return items_of(sig) >= (int64_t)sig->n_threads;
}

static dsi_gemm_params bmm_params(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_bmm_attrs *t = sig->attrs;
    const ds_shape a = sig->in[0].shape;
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = sig->out[0].shape.dims[a.n_dims - 2];
    p.n = ds_shape_last(sig->out[0].shape);
    p.k = a.dims[a.n_dims - (t->a_transposed != 0 ? 2 : 1)];
    p.lda = ds_shape_last(a);
    p.ldb = ds_shape_last(sig->in[1].shape);
    p.ldc = p.n;
    p.a_dtype = sig->in[0].dtype;
    p.b_dtype = sig->in[1].dtype;
    p.c_dtype = sig->out[0].dtype;
    p.a_transposed = t->a_transposed != 0;
    p.b_transposed = t->b_transposed != 0;
    p.isa = isa;
    p.n_threads = task_an_item(sig) ? 1 : sig->n_threads;
    return p;
}

static size_t bmm_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_gemm_params p = bmm_params(sig, isa);
    return round64(dsi_gemm_work_bytes(&p)) * (task_an_item(sig) ? sig->n_threads : 1);
}

typedef struct bmm_job {
    const ds_kernel_call *call;
    dsi_gemm_params params;
    size_t each; /* bytes of work of one product */
} bmm_job;

static void run_item(const bmm_job *job, dsi_pool *pool, size_t item, void *work)
{
    const ds_kernel_call *call = job->call;
    dsi_gemm_params p = job->params;
    const size_t mk = (size_t)(p.m * p.k) * ds_dtype_bytes(p.a_dtype);
    const size_t kn = (size_t)(p.k * p.n) * ds_dtype_bytes(p.b_dtype);
    const size_t mn = (size_t)(p.m * p.n) * ds_dtype_bytes(p.c_dtype);
    p.a = (const char *)call->in[0].data + item * mk;
    p.b = (const char *)call->in[1].data + item * kn;
    p.c = (char *)call->out[0].data + item * mn;
    dsi_gemm(pool, &p, work);
}

static void bmm_task(void *arg, uint32_t task, uint32_t thread)
{
    const bmm_job *job = arg;
    run_item(job, NULL, task, (char *)job->call->work + thread * job->each);
}

static ds_status bmm_run(const ds_kernel_call *call, ds_isa isa)
{
    const ds_kernel_sig *sig = call->sig;
    const int64_t n_items = items_of(sig);
    bmm_job job = {.call = call, .params = bmm_params(sig, isa)};
    job.each = round64(dsi_gemm_work_bytes(&job.params));
    if (n_items > (int64_t)UINT32_MAX) {
        return ds_fail(call->ctx, DS_ERR_LIMIT, "bmm: %lld items, at most %u", (long long)n_items,
                       UINT32_MAX);
    }
    if (!task_an_item(sig)) {
        for (int64_t i = 0; i < n_items; ++i) {
            run_item(&job, dsi_ctx_pool(call->ctx), (size_t)i, call->work);
        }
        return DS_OK;
    }
    const uint32_t n = ds_ctx_n_threads(call->ctx);
    if (n > sig->n_threads) { /* a workspace a thread */
        return ds_fail(call->ctx, DS_ERR_ARG,
                       "bmm: the context has %u threads, but the kernel was planned for %u", n,
                       sig->n_threads);
    }
    ds_parallel(call->ctx, bmm_task, &job, (uint32_t)n_items);
    return DS_OK;
}

DSI_GEMM_KERNEL(bmm)
