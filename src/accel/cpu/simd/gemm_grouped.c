/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_linear and grouped_linear_dw on the matrix-product engine: a product for each run of an
 * expert's rows.
 *
 * How many rows an expert has is known only when the kernel runs, and a product's workspace depends
 * on it, not always rising. So the workspace is the most that any of a list of sizes asks for, and
 * rows whose product asks for more are halved. Neither that nor which thread runs a product changes
 * a bit of a row (gemm.h), and sums of weight gradients are cut at DSI_GROUPED_SUM rows alone.
 */
#include "accel/cpu/grouped.h"
#include "accel/cpu/simd/gemm_kernels.h"

#include <assert.h>

/* Most rows of one product. Where products run side by side, fewer: a task each. */
enum { MOST_ROWS = 1024, TASK_ROWS = 512 };

/* With enough experts each product runs on one thread, else on all threads. */
static bool side_by_side(const ds_kernel_sig *sig)
{
    const bool sums = sig->op == &dsi_op_grouped_linear_dw;
    const int64_t n_groups = sums ? sig->out[0].shape.dims[0] : sig->in[2].shape.dims[0] - 1;
    return sig->n_threads > 1 && n_groups >= 2 * (int64_t)sig->n_threads;
}

/* The most that products of 1 to `most` rows ask for, as far as some of them say. */
static size_t most_work(dsi_gemm_params p, int64_t most)
{
    size_t bytes = 0;
    for (int64_t i = 1; i <= most; i += i < 16 ? 1 : i / 2) {
        p.m = i;
        const size_t more = dsi_gemm_work_bytes(&p);
        bytes = more > bytes ? more : bytes;
    }
    p.m = most;
    const size_t last = dsi_gemm_work_bytes(&p);
    return round64(last > bytes ? last : bytes);
}

typedef struct grouped_job {
    const ds_kernel_call *call;
    dsi_gemm_params params;
    const int32_t *offsets;
    int64_t n_groups;   /* of rows by the same weight: segments; of weight gradients experts */
    int64_t most;       /* rows of one run, 0: all rows of a group, also none */
    size_t each;        /* bytes of work of one product */
    const void *before; /* of weight gradients: what they are added to, or NULL */
    uint32_t left;      /* likewise: the operand whose columns are the rows of dw */
    int64_t n_sources;  /* likewise */
    void (*run)(const struct grouped_job *job, dsi_pool *pool, int64_t group, int64_t begin,
                int64_t end, void *work);
} grouped_job;

/* Products of a group. */
static int64_t runs_of(const grouped_job *job, int64_t group)
{
    const int64_t rows = job->most == 0 ? 0 : job->offsets[group + 1] - job->offsets[group];
    return job->most == 0 ? 1 : (rows + job->most - 1) / job->most;
}

static void run_one(const grouped_job *job, dsi_pool *pool, int64_t group, int64_t i, void *work)
{
    if (job->most == 0) {
        job->run(job, pool, group, 0, 0, work);
        return;
    }
    const int64_t begin = job->offsets[group] + i * job->most;
    const int64_t end = job->offsets[group + 1];
    job->run(job, pool, group, begin, dsi_grouped_part_end(begin, end, job->most), work);
}

static void grouped_task(void *arg, uint32_t task, uint32_t thread)
{
    const grouped_job *job = arg;
    int64_t i = task;
    for (int64_t e = 0; e < job->n_groups; i -= runs_of(job, e++)) {
        if (i < runs_of(job, e)) {
            run_one(job, NULL, e, i, (char *)job->call->work + thread * job->each);
            return;
        }
    }
}

static ds_status run_groups(grouped_job *job)
{
    const ds_kernel_sig *sig = job->call->sig;
    const uint32_t n_threads = ds_ctx_n_threads(job->call->ctx);
    const bool apart = side_by_side(sig);
    int64_t n_tasks = 0;
    for (int64_t e = 0; e < job->n_groups; ++e) {
        n_tasks += runs_of(job, e);
        for (int64_t i = 0; !apart && i < runs_of(job, e); ++i) {
            run_one(job, dsi_ctx_pool(job->call->ctx), e, i, job->call->work);
        }
    }
    if (apart && n_threads > sig->n_threads) { /* a workspace a thread */
        return ds_fail(job->call->ctx, DS_ERR_ARG,
                       "%s: the context has %u threads, but the kernel was planned for %u",
                       sig->op->name, n_threads, sig->n_threads);
    }
    if (apart) {
        ds_parallel(job->call->ctx, grouped_task, job, (uint32_t)n_tasks);
    }
    return DS_OK;
}

/* ---- grouped_linear ----------------------------------------------------------------------------
 */
static bool grouped_linear_supports(const ds_kernel_sig *sig)
{
    return gemm_dtype(sig->in[0].dtype);
}

static dsi_gemm_params grouped_params(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_grouped_attrs *a = sig->attrs;
    dsi_gemm_params p = dsi_gemm_params_default();
    p.k = ds_shape_last(sig->in[0].shape);
    p.n = ds_shape_last(sig->out[0].shape);
    p.lda = p.k;
    p.ldb = a->transposed != 0 ? p.n : p.k;
    p.ldc = p.n;
    p.a_dtype = sig->in[0].dtype;
    p.b_dtype = sig->in[1].dtype;
    p.c_dtype = sig->out[0].dtype;
    p.b_transposed = a->transposed == 0;
    p.isa = isa;
    p.n_threads = side_by_side(sig) ? 1 : sig->n_threads;
    return p;
}

static int64_t rows_at_once(const ds_kernel_sig *sig)
{
    const int64_t most = side_by_side(sig) ? TASK_ROWS : MOST_ROWS;
    const int64_t rows = sig->in[0].shape.dims[0];
    return rows < most ? (rows > 0 ? rows : 1) : most;
}

static size_t grouped_linear_work(const ds_kernel_sig *sig, ds_isa isa)
{
    return most_work(grouped_params(sig, isa), rows_at_once(sig)) *
           (side_by_side(sig) ? sig->n_threads : 1);
}

static void run_rows(const grouped_job *job, dsi_pool *pool, int64_t group, int64_t begin,
                     int64_t end, void *work)
{
    const ds_kernel_call *call = job->call;
    const int64_t expert = group % call->in[1].meta.shape.dims[0];
    dsi_gemm_params p = job->params;
    p.m = end - begin;
    if (p.m > 1 && dsi_gemm_work_bytes(&p) > job->each) {
        const int64_t middle = begin + (p.m + 1) / 2;
        run_rows(job, pool, group, begin, middle, work);
        run_rows(job, pool, group, middle, end, work);
        return;
    }
    p.a = (const char *)call->in[0].data + (size_t)(begin * p.k) * ds_dtype_bytes(p.a_dtype);
    p.b = (const char *)call->in[1].data + (size_t)(expert * p.k * p.n) * ds_dtype_bytes(p.b_dtype);
    p.c = (char *)call->out[0].data + (size_t)(begin * p.n) * ds_dtype_bytes(p.c_dtype);
    dsi_gemm(pool, &p, work);
}

static ds_status grouped_linear_run(const ds_kernel_call *call, ds_isa isa)
{
    const ds_kernel_sig *sig = call->sig;
    const int64_t n_rows = sig->in[0].shape.dims[0];
    grouped_job job = {.call = call,
                       .params = grouped_params(sig, isa),
                       .offsets = call->in[2].data,
                       .n_groups = sig->in[2].shape.dims[0] - 1,
                       .most = rows_at_once(sig),
                       .run = run_rows};
    job.each = most_work(job.params, job.most);
    DS_TRY(dsi_grouped_check_offsets(call, &call->in[2], n_rows));
    DS_TRY(run_groups(&job));
    const size_t row_bytes = (size_t)job.params.n * ds_dtype_bytes(job.params.c_dtype);
    const size_t kept = (size_t)job.offsets[job.n_groups];
    memset((char *)call->out[0].data + kept * row_bytes, 0, ((size_t)n_rows - kept) * row_bytes);
    return DS_OK;
}

DSI_GEMM_KERNEL(grouped_linear)

/* ---- grouped_linear_dw -------------------------------------------------------------------------
 */
static bool grouped_linear_dw_supports(const ds_kernel_sig *sig)
{
    return gemm_dtype(sig->in[0].dtype) && sig->out[0].dtype == DS_DTYPE_F32;
}

static dsi_gemm_params grouped_dw_params(const ds_kernel_sig *sig, ds_isa isa)
{
    const dsi_grouped_attrs *a = sig->attrs;
    const uint32_t left = a->transposed != 0 ? 0 : 1; /* dw = leftᵀ · right */
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = ds_shape_last(sig->in[left].shape);
    p.n = ds_shape_last(sig->in[1 - left].shape);
    p.lda = p.m;
    p.ldb = p.n;
    p.ldc = p.n;
    p.a_dtype = sig->in[left].dtype;
    p.b_dtype = sig->in[1 - left].dtype;
    p.c_dtype = DS_DTYPE_F32;
    p.a_transposed = true;
    p.accumulate = true;
    p.isa = isa;
    p.n_threads = side_by_side(sig) ? 1 : sig->n_threads;
    return p;
}

static int64_t rows_summed(const ds_kernel_sig *sig)
{
    const int64_t rows = sig->in[0].shape.dims[0];
    return rows < DSI_GROUPED_SUM ? (rows > 0 ? rows : 1) : DSI_GROUPED_SUM;
}

/* Of one product. The length of a sum counts in steps of 32 at least, in every implementation. */
static size_t dw_work(const ds_kernel_sig *sig, dsi_gemm_params p)
{
    size_t bytes = 0;
    for (p.k = 32; p.k < rows_summed(sig) + 32; p.k += 32) {
        for (int adds = 0; adds < 2; ++adds) {
            p.accumulate = adds != 0;
            const size_t more = dsi_gemm_work_bytes(&p);
            bytes = more > bytes ? more : bytes;
        }
    }
    return round64(bytes);
}

static int64_t sources_of(const ds_kernel_sig *sig)
{
    const dsi_grouped_attrs *a = sig->attrs;
    return a->sources > 1 ? a->sources : 1;
}

/* Sums of several sources: those that are open at a time, beside the work of one product. */
static size_t open_sums(const ds_kernel_sig *sig)
{
    const int64_t n = sources_of(sig);
    const int64_t open = dsi_grouped_depth(n) + (n > 1 && sig->n_in > 3 ? 1 : 0);
    const ds_shape out = sig->out[0].shape;
    return (size_t)open * round64((size_t)(out.dims[1] * out.dims[2]) * sizeof(float));
}

static size_t grouped_linear_dw_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const size_t each = dw_work(sig, grouped_dw_params(sig, isa)) + open_sums(sig);
    return each * (side_by_side(sig) ? sig->n_threads : 1);
}

/* to = the sum of the rows of one source for an expert, in the order of rows; adds: to what is
 * there. */
static void sum_source(const grouped_job *job, dsi_pool *pool, int64_t expert, int64_t source,
                       float *to, bool adds, void *work)
{
    const ds_kernel_call *call = job->call;
    const uint32_t left = job->left;
    const int32_t *offsets = job->offsets + source * job->n_groups + expert;
    const int64_t begin = offsets[0];
    const int64_t end = offsets[1];
    dsi_gemm_params p = job->params;
    p.c = to;
    for (int64_t row = begin; row < end; row += p.k) {
        p.k = dsi_grouped_part_end(row, end, DSI_GROUPED_SUM) - row;
        p.a = (const char *)call->in[left].data + (size_t)(row * p.lda) * ds_dtype_bytes(p.a_dtype);
        p.b = (const char *)call->in[1 - left].data +
              (size_t)(row * p.ldb) * ds_dtype_bytes(p.b_dtype);
        p.accumulate = adds || row > begin;
        assert(dsi_gemm_work_bytes(&p) <= job->each);
        dsi_gemm(pool, &p, work);
    }
    if (begin == end && !adds) {
        memset(to, 0, (size_t)(p.m * p.n) * sizeof(float));
    }
}

static void add_sum(float *to, const float *more, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        to[i] += more[i];
    }
}

/* to = the sums of sources [begin,end), added in the canonical order; open: matrices for those that
 * are computed meanwhile. */
static void sum_sources(const grouped_job *job, dsi_pool *pool, int64_t expert, int64_t begin,
                        int64_t end, float *to, char *open, void *work)
{
    const size_t n = (size_t)(job->params.m * job->params.n);
    if (end - begin == 1) {
        sum_source(job, pool, expert, begin, to, false, work);
        return;
    }
    const int64_t middle = begin + dsi_grouped_left(end - begin);
    sum_sources(job, pool, expert, begin, middle, to, open, work);
    float *right = (float *)(void *)open;
    sum_sources(job, pool, expert, middle, end, right, open + round64(n * sizeof(float)), work);
    add_sum(to, right, n);
}

/* An expert. */
static void run_sums(const grouped_job *job, dsi_pool *pool, int64_t expert, int64_t begin,
                     int64_t end, void *work)
{
    const dsi_gemm_params *p = &job->params;
    const size_t n = (size_t)(p->m * p->n);
    float *to = (float *)job->call->out[0].data + (size_t)expert * n;
    const float *before =
        job->before != NULL ? (const float *)job->before + (size_t)expert * n : NULL;
    char *open = (char *)work + dw_work(job->call->sig, *p);
    (void)begin;
    (void)end;
    if (before != NULL && before != to) {
        memcpy(to, before, n * sizeof(float));
    }
    if (job->n_sources == 1) {
        sum_source(job, pool, expert, 0, to, before != NULL, work);
    } else if (before == NULL) {
        sum_sources(job, pool, expert, 0, job->n_sources, to, open, work);
    } else {
        float *all = (float *)(void *)open;
        sum_sources(job, pool, expert, 0, job->n_sources, all, open + round64(n * sizeof(float)),
                    work);
        add_sum(to, all, n);
    }
}

static ds_status grouped_linear_dw_run(const ds_kernel_call *call, ds_isa isa)
{
    const ds_kernel_sig *sig = call->sig;
    const dsi_grouped_attrs *a = sig->attrs;
    const dsi_gemm_params p = grouped_dw_params(sig, isa);
    grouped_job job = {.call = call,
                       .params = p,
                       .offsets = call->in[2].data,
                       .n_groups = sig->out[0].shape.dims[0],
                       .n_sources = sources_of(sig),
                       .most = 0,
                       .each = dw_work(sig, p) + open_sums(sig),
                       .left = a->transposed != 0 ? 0 : 1,
                       .before = sig->n_in > 3 ? call->in[3].data : NULL,
                       .run = run_sums};
    DS_TRY(dsi_grouped_check_offsets(call, &call->in[2], sig->in[0].shape.dims[0]));
    return run_groups(&job);
}

DSI_GEMM_KERNEL(grouped_linear_dw)
