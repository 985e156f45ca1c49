/* linear_cross_entropy and its backward operator on the matrix-product engine.
 *
 * The vocabulary is walked in panels of PANEL columns: the logits of all rows for one panel exist
 * in fp32 scratch, then the running maximum and sum of each row take them in (Milakov and
 * Gimelshein, "Online normalizer calculation for softmax", 2018). The backward operator makes each
 * panel's logits again, turns them into rounded gradients, and multiplies these twice: into dx,
 * summed over panels in fp32, and into the panel's rows of dw.
 *
 * Order: a row's sum runs lane by lane within a panel, panels in order; dx adds panels in order.
 */
#include "accel/cpu/simd/gemm_kernels.h"
#include "accel/cpu/simd/vec_math.h"

#include <math.h>

enum { PANEL = 1024, ROW_TASK = 64 };

/* Shapes of one call. */
typedef struct ce_sizes {
    int64_t rows, width, vocab;
    int64_t ldw;
    bool transposed; /* w is (C,V) */
} ce_sizes;

static ce_sizes sizes_of(const ds_kernel_sig *sig, uint32_t x)
{
    const dsi_ce_attrs *a = sig->attrs;
    const ds_shape w = sig->in[x + 1].shape;
    return (ce_sizes){.rows = ds_shape_rows(sig->in[x].shape),
                      .width = ds_shape_last(sig->in[x].shape),
                      .vocab = a->transposed ? w.dims[1] : w.dims[0],
                      .ldw = w.dims[1],
                      .transposed = a->transposed != 0};
}

static int64_t panel_width(const ce_sizes *s, int64_t column)
{
    return s->vocab - column < PANEL ? s->vocab - column : PANEL;
}

static const void *panel_of(const void *w, ds_dtype type, const ce_sizes *s, int64_t column)
{
    const int64_t first = s->transposed ? column : column * s->ldw;
    return (const char *)w + (size_t)first * ds_dtype_bytes(type);
}

/* logits (rows,n) = x · panelᵀ */
static dsi_gemm_params logits_params(const ds_kernel_sig *sig, uint32_t x, const ce_sizes *s,
                                     int64_t n, ds_isa isa)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->rows;
    p.n = n;
    p.k = s->width;
    p.lda = s->width;
    p.ldb = s->ldw;
    p.ldc = PANEL;
    p.a_dtype = sig->in[x].dtype;
    p.b_dtype = sig->in[x + 1].dtype;
    p.c_dtype = DS_DTYPE_F32;
    p.b_transposed = !s->transposed;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

/* Largest workspace over full and last panel. */
static size_t logits_work(const ds_kernel_sig *sig, uint32_t x, const ce_sizes *s, ds_isa isa)
{
    const int64_t last = s->vocab % PANEL;
    dsi_gemm_params p = logits_params(sig, x, s, s->vocab < PANEL ? s->vocab : PANEL, isa);
    size_t most = dsi_gemm_work_bytes(&p);
    if (last != 0) {
        p = logits_params(sig, x, s, last, isa);
        const size_t bytes = dsi_gemm_work_bytes(&p);
        most = bytes > most ? bytes : most;
    }
    return round64(most);
}

static ds_status check_targets(const ds_kernel_call *call, const ds_tensor *targets, int64_t vocab)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const int32_t *t = targets->data;
    const int64_t n = ds_shape_count(targets->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        if (t[i] != a->ignore_index && (t[i] < 0 || t[i] >= vocab)) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: target[%lld] is %d, expected 0 to %lld, or %lld to ignore the row",
                           call->sig->op->name, (long long)i, t[i], (long long)vocab - 1,
                           (long long)a->ignore_index);
        }
    }
    return DS_OK;
}

/* ---- forward: x, w, targets → loss, lse, count
 * ---------------------------------------------------- */
typedef struct ce_forward {
    const float *logits; /* (rows, PANEL) */
    const int32_t *targets;
    int64_t rows, column, n;
    float *top, *sum, *hit; /* per row: running maximum, sum of exponentials, target's logit */
} ce_forward;

DSI_INLINE void take_row(const ce_forward *f, int64_t row)
{
    const float *z = f->logits + row * PANEL;
    const size_t n = (size_t)f->n;
    vf tops = vf_set(-INFINITY);
    size_t i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH) {
        tops = vf_max(tops, vf_load(z + i));
    }
    float top = vf_hmax(tops);
    for (; i < n; ++i) {
        top = z[i] > top ? z[i] : top;
    }
    const float old = f->top[row];
    top = old > top ? old : top;
    const vf shift = vf_set(top);
    vf sums = vf_set(0.0f);
    for (i = 0; i + VF_WIDTH <= n; i += VF_WIDTH) {
        sums = vf_add(sums, vf_exp(vf_sub(vf_load(z + i), shift)));
    }
    float sum = vf_sum(sums);
    if (i < n) {
        float rest[VF_WIDTH];
        vf_store(rest, vf_exp(vf_sub(vf_load_n(z + i, n - i), shift)));
        for (size_t j = 0; j < n - i; ++j) {
            sum += rest[j];
        }
    }
    f->sum[row] = (f->sum[row] > 0.0f ? f->sum[row] * expf(old - top) : 0.0f) + sum;
    f->top[row] = top;
    const int64_t target = (int64_t)f->targets[row] - f->column;
    if (target >= 0 && target < f->n) {
        f->hit[row] = z[target];
    }
}

static void take_rows(void *arg, uint32_t task, uint32_t thread)
{
    const ce_forward *f = arg;
    const int64_t first = (int64_t)task * ROW_TASK;
    const int64_t last = first + ROW_TASK < f->rows ? first + ROW_TASK : f->rows;
    (void)thread;
    for (int64_t row = first; row < last; ++row) {
        take_row(f, row);
    }
}

static uint32_t row_tasks(int64_t rows)
{
    return (uint32_t)((rows + ROW_TASK - 1) / ROW_TASK);
}

static bool linear_cross_entropy_supports(const ds_kernel_sig *sig)
{
    return gemm_dtype(sig->in[0].dtype) && gemm_dtype(sig->in[1].dtype);
}

static size_t linear_cross_entropy_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const ce_sizes s = sizes_of(sig, 0);
    return logits_work(sig, 0, &s, isa) + round64((size_t)s.rows * PANEL * sizeof(float)) +
           3 * round64((size_t)s.rows * sizeof(float));
}

/* Loss, log-sum-exp and count from the rows' sums, in row order. */
static void finish_forward(const ds_kernel_call *call, const ce_forward *f)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    float *lse = call->out[1].data;
    double loss = 0.0;
    int64_t count = 0;
    for (int64_t row = 0; row < f->rows; ++row) {
        lse[row] = f->top[row] + logf(f->sum[row]);
        if (f->targets[row] != a->ignore_index) {
            loss += (double)(lse[row] - f->hit[row]);
            ++count;
        }
    }
    *(float *)call->out[0].data = count > 0 ? (float)(loss / (double)count) : 0.0f;
    *(float *)call->out[2].data = (float)count;
}

static ds_status linear_cross_entropy_run(const ds_kernel_call *call, ds_isa isa)
{
    const ce_sizes s = sizes_of(call->sig, 0);
    const size_t line = round64((size_t)s.rows * sizeof(float));
    char *work = call->work;
    float *logits = (float *)(void *)(work + logits_work(call->sig, 0, &s, isa));
    char *rows = (char *)logits + round64((size_t)s.rows * PANEL * sizeof(float));
    ce_forward f = {.logits = logits,
                    .targets = call->in[2].data,
                    .rows = s.rows,
                    .top = (float *)(void *)rows,
                    .sum = (float *)(void *)(rows + line),
                    .hit = (float *)(void *)(rows + 2 * line)};
    DS_TRY(check_targets(call, &call->in[2], s.vocab));
    for (int64_t row = 0; row < s.rows; ++row) {
        f.top[row] = -INFINITY;
        f.sum[row] = 0.0f;
        f.hit[row] = 0.0f;
    }
    for (f.column = 0; f.column < s.vocab; f.column += PANEL) {
        f.n = panel_width(&s, f.column);
        dsi_gemm_params p = logits_params(call->sig, 0, &s, f.n, isa);
        p.a = call->in[0].data;
        p.b = panel_of(call->in[1].data, p.b_dtype, &s, f.column);
        p.c = logits;
        dsi_gemm(dsi_ctx_pool(call->ctx), &p, work);
        ds_parallel(call->ctx, take_rows, &f, row_tasks(s.rows));
    }
    finish_forward(call, &f);
    return DS_OK;
}

DSI_GEMM_KERNEL(linear_cross_entropy)

/* ---- backward: dloss, x, w, targets, lse, count, [dw_in] → [dx], [dw] ----------------------- */
typedef struct ce_backward {
    const float *logits; /* (rows, PANEL) */
    void *gradients;     /* (rows, PANEL) in `type` */
    ds_dtype type;
    const int32_t *targets;
    const float *lse;
    int64_t ignored;
    int64_t rows, column, n;
    float scale; /* dloss / count */
} ce_backward;

DSI_INLINE void turn_row(const ce_backward *b, ds_dtype type, int64_t row)
{
    const float *z = b->logits + row * PANEL;
    const size_t at = (size_t)row * PANEL;
    const bool counts = b->targets[row] != b->ignored;
    const vf scale = vf_set(counts ? b->scale : 0.0f);
    const vf lse = vf_set(b->lse[row]);
    const size_t n = (size_t)b->n;
    size_t i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH) {
        vf_put(b->gradients, type, at + i, vf_mul(vf_exp(vf_sub(vf_load(z + i), lse)), scale));
    }
    if (i < n) {
        vf_put_n(b->gradients, type, at + i,
                 vf_mul(vf_exp(vf_sub(vf_load_n(z + i, n - i), lse)), scale), n - i);
    }
    const int64_t target = (int64_t)b->targets[row] - b->column;
    if (counts && target >= 0 && target < b->n) {
        const vf p = vf_exp(vf_sub(vf_load_n(z + target, 1), lse));
        vf_put_n(b->gradients, type, at + (size_t)target, vf_mul(vf_sub(p, vf_set(1.0f)), scale),
                 1);
    }
}

static void turn_rows(void *arg, uint32_t task, uint32_t thread)
{
    const ce_backward *b = arg;
    const int64_t first = (int64_t)task * ROW_TASK;
    const int64_t last = first + ROW_TASK < b->rows ? first + ROW_TASK : b->rows;
    (void)thread;
    for (int64_t row = first; row < last; ++row) {
        DSI_BY_TYPE(b->type, turn_row(b, T, row));
    }
}

/* dx (rows,width) += gradients · panel */
static dsi_gemm_params dx_params(const ds_kernel_sig *sig, const ce_sizes *s, int64_t n, bool first,
                                 ds_isa isa)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->rows;
    p.n = s->width;
    p.k = n;
    p.lda = PANEL;
    p.ldb = s->ldw;
    p.ldc = s->width;
    p.a_dtype = sig->in[1].dtype;
    p.b_dtype = sig->in[2].dtype;
    p.c_dtype = DS_DTYPE_F32;
    p.b_transposed = s->transposed;
    p.accumulate = !first;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

/* the panel of dw = gradientsᵀ · x, or its transpose */
static dsi_gemm_params dw_params(const ds_kernel_sig *sig, const ce_sizes *s, int64_t n, ds_isa isa)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->transposed ? s->width : n;
    p.n = s->transposed ? n : s->width;
    p.k = s->rows;
    p.lda = s->transposed ? s->width : PANEL;
    p.ldb = s->transposed ? PANEL : s->width;
    p.ldc = s->ldw;
    p.a_dtype = sig->in[1].dtype;
    p.b_dtype = sig->in[1].dtype;
    p.c_dtype = DS_DTYPE_F32;
    p.a_transposed = true;
    p.accumulate = sig->n_in > 6 && sig->in[6].dtype != DS_DTYPE_NONE;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

static size_t products_work(const ds_kernel_sig *sig, const ce_sizes *s, ds_isa isa)
{
    size_t most = logits_work(sig, 1, s, isa);
    const int64_t widths[2] = {s->vocab < PANEL ? s->vocab : PANEL, s->vocab % PANEL};
    for (int i = 0; i < 2 && widths[i] > 0; ++i) {
        const dsi_gemm_params products[3] = {dx_params(sig, s, widths[i], true, isa),
                                             dx_params(sig, s, widths[i], false, isa),
                                             dw_params(sig, s, widths[i], isa)};
        for (int j = 0; j < 3; ++j) {
            const size_t bytes = round64(dsi_gemm_work_bytes(&products[j]));
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static bool linear_cross_entropy_backward_supports(const ds_kernel_sig *sig)
{
    return gemm_dtype(sig->in[1].dtype) && gemm_dtype(sig->in[2].dtype) &&
           (sig->out[1].dtype == DS_DTYPE_F32 || sig->out[1].dtype == DS_DTYPE_NONE);
}

static size_t linear_cross_entropy_backward_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const ce_sizes s = sizes_of(sig, 1);
    const size_t cells = (size_t)s.rows * PANEL;
    return products_work(sig, &s, isa) + round64(cells * sizeof(float)) +
           round64(cells * ds_dtype_bytes(sig->in[1].dtype)) +
           (sig->out[0].dtype == DS_DTYPE_NONE
                ? 0
                : round64((size_t)(s.rows * s.width) * sizeof(float)));
}

typedef struct round_job {
    const float *from;
    void *to;
    ds_dtype type;
    size_t count;
} round_job;

enum { ROUND_TASK = 1 << 15 };

static void round_block(void *arg, uint32_t task, uint32_t thread)
{
    const round_job *job = arg;
    const size_t first = (size_t)task * ROUND_TASK;
    const size_t last = first + ROUND_TASK < job->count ? first + ROUND_TASK : job->count;
    size_t i = first;
    (void)thread;
    for (; i + VF_WIDTH <= last; i += VF_WIDTH) {
        vf_put(job->to, job->type, i, vf_load(job->from + i));
    }
    if (i < last) {
        vf_put_n(job->to, job->type, i, vf_load_n(job->from + i, last - i), last - i);
    }
}

/* One panel: logits, their gradients, and the products that are asked for. */
static void backward_panel(const ds_kernel_call *call, const ce_sizes *s, ce_backward *b,
                           float *logits, float *dx, ds_isa isa)
{
    dsi_pool *pool = dsi_ctx_pool(call->ctx);
    dsi_gemm_params p = logits_params(call->sig, 1, s, b->n, isa);
    const void *panel = panel_of(call->in[2].data, p.b_dtype, s, b->column);
    p.a = call->in[1].data;
    p.b = panel;
    p.c = logits;
    dsi_gemm(pool, &p, call->work);
    ds_parallel(call->ctx, turn_rows, b, row_tasks(s->rows));
    if (call->out[0].data != NULL) {
        p = dx_params(call->sig, s, b->n, b->column == 0, isa);
        p.a = b->gradients;
        p.b = panel;
        p.c = dx;
        dsi_gemm(pool, &p, call->work);
    }
    if (call->out[1].data == NULL) {
        return;
    }
    p = dw_params(call->sig, s, b->n, isa);
    p.a = s->transposed ? call->in[1].data : b->gradients;
    p.b = s->transposed ? b->gradients : call->in[1].data;
    p.c = (float *)call->out[1].data + (s->transposed ? b->column : b->column * s->ldw);
    dsi_gemm(pool, &p, call->work);
}

static ds_status linear_cross_entropy_backward_run(const ds_kernel_call *call, ds_isa isa)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const ce_sizes s = sizes_of(call->sig, 1);
    const float count = *(const float *)call->in[5].data;
    const bool accumulates = call->sig->n_in > 6 && call->in[6].data != NULL;
    float *logits = (float *)(void *)((char *)call->work + products_work(call->sig, &s, isa));
    char *gradients = (char *)logits + round64((size_t)s.rows * PANEL * sizeof(float));
    const ds_dtype type = call->in[1].meta.dtype;
    float *dx =
        (float *)(void *)(gradients + round64((size_t)s.rows * PANEL * ds_dtype_bytes(type)));
    ce_backward b = {.logits = logits,
                     .gradients = gradients,
                     .type = type,
                     .targets = call->in[3].data,
                     .lse = call->in[4].data,
                     .ignored = a->ignore_index,
                     .rows = s.rows,
                     .scale = count > 0.0f ? *(const float *)call->in[0].data / count : 0.0f};
    DS_TRY(check_targets(call, &call->in[3], s.vocab));
    if (accumulates && call->in[6].data != call->out[1].data) {
        memcpy(call->out[1].data, call->in[6].data, ds_meta_bytes(call->out[1].meta));
    }
    for (b.column = 0; b.column < s.vocab; b.column += PANEL) {
        b.n = panel_width(&s, b.column);
        backward_panel(call, &s, &b, logits, dx, isa);
    }
    if (call->out[0].data == NULL) {
        return DS_OK;
    }
    round_job job = {dx, call->out[0].data, type, (size_t)(s.rows * s.width)};
    ds_parallel(call->ctx, round_block, &job,
                (uint32_t)((job.count + ROUND_TASK - 1) / ROUND_TASK));
    return DS_OK;
}

DSI_GEMM_KERNEL(linear_cross_entropy_backward)
