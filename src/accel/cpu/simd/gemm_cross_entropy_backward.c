/* SPDX-License-Identifier: Apache-2.0 */
/* The backward operators of linear_cross_entropy and linear_logprob on the matrix-product engine.
 *
 * A panel of logits, made again or kept by the forward operator, becomes rounded gradients; these
 * are multiplied twice: into dx, summed over panels in fp32, and into the panel's rows of dw. Of
 * kept logits either product is an operator of its own; the numbers are the same.
 *
 * Order: dx adds panels in order.
 */
#include "accel/cpu/simd/gemm_cross_entropy.h"

/* Where an operator has its operands; -1: nowhere. dloss is input 0; without a count it is dlogp, a
 * number for each row. */
typedef struct ce_operands {
    int x, w, kept, targets, lse, count, dw_in; /* inputs */
    int dx, dw;                                 /* outputs */
    int part;                                   /* input: the rows of a part; 0: of no part */
} ce_operands;

static const ce_operands both = {1, 2, -1, 3, 4, 5, 6, 0, 1, 0};
static const ce_operands of_part = {1, 2, -1, 3, 4, 5, 7, 0, 1, 6};
static const ce_operands by_rows = {1, 2, -1, 3, 4, -1, 5, 0, 1, 0};
static const ce_operands only_dx = {-1, 1, 2, 3, 4, 5, -1, 0, -1, 0};
static const ce_operands only_dw = {1, -1, 2, 3, 4, 5, 6, -1, 0, 0};

static bool has_in(const ds_kernel_sig *sig, int i)
{
    return i >= 0 && (uint32_t)i < sig->n_in && sig->in[i].dtype != DS_DTYPE_NONE;
}

static bool has_out(const ds_kernel_sig *sig, int i)
{
    return i >= 0 && (uint32_t)i < sig->n_out && sig->out[i].dtype != DS_DTYPE_NONE;
}

/* Of x and w. */
static ds_dtype type_of(const ds_kernel_sig *sig, const ce_operands *o)
{
    return sig->in[o->x >= 0 ? o->x : o->w].dtype;
}

static ce_sizes sizes_of(const ds_kernel_sig *sig, const ce_operands *o)
{
    const bool transposed = ((const dsi_ce_attrs *)sig->attrs)->transposed != 0;
    const ds_shape rows = sig->in[o->x >= 0 ? o->x : o->kept].shape;
    const ds_shape w = o->w >= 0 ? sig->in[o->w].shape : sig->out[o->dw].shape;
    return (ce_sizes){.rows = ds_shape_rows(rows),
                      .width = w.dims[transposed ? 0 : 1],
                      .vocab = w.dims[transposed ? 1 : 0],
                      .transposed = transposed};
}

typedef struct ce_backward {
    const float *logits; /* of the panel */
    int64_t stride;      /* between rows of logits */
    void *gradients;     /* (rows, PANEL) in `type` */
    ds_dtype type;
    const int32_t *targets;
    const float *lse;
    int64_t ignored;
    int64_t rows, column, n;
    int64_t first, n_all; /* number of the first column in the whole vocabulary, of so many */
    float scale;          /* dloss / count */
    const float *dlogp;   /* per row, instead of `scale`; NULL: none */
} ce_backward;

DSI_INLINE void turn_row(const ce_backward *b, ds_dtype type, int64_t row)
{
    const float *z = b->logits + row * b->stride;
    const size_t at = (size_t)row * PANEL;
    const bool counts = b->targets[row] != b->ignored;
    const float factor = b->dlogp != NULL ? -b->dlogp[row] : b->scale;
    const vf scale = vf_set(counts ? factor : 0.0f);
    const vf lse = vf_set(b->lse[row]);
    const int64_t real = ce_real_width(b->n, b->column, b->first, b->n_all);
    const size_t n = (size_t)real;
    size_t i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH) {
        vf_put(b->gradients, type, at + i, vf_mul(vf_exp(vf_sub(vf_load(z + i), lse)), scale));
    }
    if (i < n) {
        vf_put_n(b->gradients, type, at + i,
                 vf_mul(vf_exp(vf_sub(vf_load_n(z + i, n - i), lse)), scale), n - i);
    }
    for (i = n; i < (size_t)b->n; ++i) { /* padding */
        vf_put_n(b->gradients, type, at + i, vf_set(0.0f), 1);
    }
    const int64_t target = (int64_t)b->targets[row] - b->first - b->column;
    if (counts && target >= 0 && target < real) {
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
static dsi_gemm_params dx_params(const ds_kernel_sig *sig, ds_dtype type, const ce_sizes *s,
                                 int64_t n, bool first, ds_isa isa)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->rows;
    p.n = s->width;
    p.k = n;
    p.lda = PANEL;
    p.ldb = ce_ldw(s);
    p.ldc = s->width;
    p.a_dtype = type;
    p.b_dtype = type;
    p.c_dtype = DS_DTYPE_F32;
    p.b_transposed = s->transposed;
    p.accumulate = !first;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

/* the panel of dw = gradientsᵀ · x, or its transpose */
static dsi_gemm_params dw_params(const ds_kernel_sig *sig, ds_dtype type, const ce_sizes *s,
                                 int64_t n, bool adds, ds_isa isa)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = s->transposed ? s->width : n;
    p.n = s->transposed ? n : s->width;
    p.k = s->rows;
    p.lda = s->transposed ? s->width : PANEL;
    p.ldb = s->transposed ? PANEL : s->width;
    p.ldc = ce_ldw(s);
    p.a_dtype = type;
    p.b_dtype = type;
    p.c_dtype = DS_DTYPE_F32;
    p.a_transposed = true;
    p.accumulate = adds;
    p.isa = isa;
    p.n_threads = sig->n_threads;
    return p;
}

static size_t larger(size_t most, const dsi_gemm_params *p)
{
    const size_t bytes = round64(dsi_gemm_work_bytes(p));
    return bytes > most ? bytes : most;
}

static size_t products_work(const ds_kernel_sig *sig, const ce_operands *o, const ce_sizes *s,
                            ds_isa isa)
{
    const ds_dtype type = type_of(sig, o);
    size_t most = o->kept >= 0 ? 0 : ce_logits_work(sig, type, s, isa);
    const int64_t widths[2] = {s->vocab < PANEL ? s->vocab : PANEL, s->vocab % PANEL};
    for (int i = 0; i < 2 && widths[i] > 0; ++i) {
        if (has_out(sig, o->dx)) {
            const dsi_gemm_params first = dx_params(sig, type, s, widths[i], true, isa);
            const dsi_gemm_params next = dx_params(sig, type, s, widths[i], false, isa);
            most = larger(larger(most, &first), &next);
        }
        if (has_out(sig, o->dw)) {
            const bool adds = has_in(sig, o->dw_in);
            const dsi_gemm_params dw = dw_params(sig, type, s, widths[i], adds, isa);
            most = larger(most, &dw);
        }
    }
    return most;
}

/* The workspace: products, logits unless kept, their gradients, the sums of dx. */
typedef struct ce_work {
    size_t logits, gradients, dx, end;
} ce_work;

static ce_work work_of(const ds_kernel_sig *sig, const ce_operands *o, ds_isa isa)
{
    const ce_sizes s = sizes_of(sig, o);
    const size_t cells = (size_t)s.rows * PANEL;
    ce_work w = {.logits = products_work(sig, o, &s, isa)};
    w.gradients = w.logits + (o->kept >= 0 ? 0 : round64(cells * sizeof(float)));
    w.dx = w.gradients + round64(cells * ds_dtype_bytes(type_of(sig, o)));
    w.end = w.dx + (has_out(sig, o->dx) ? round64((size_t)(s.rows * s.width) * sizeof(float)) : 0);
    return w;
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

/* One run: what a panel needs. */
typedef struct ce_run {
    const ds_kernel_call *call;
    const ce_operands *o;
    ce_sizes s;
    ds_dtype type;
    float *logits; /* scratch, or all that were kept */
    float *dx;     /* NULL: not asked for */
    float *dw;     /* likewise */
    bool adds;     /* to dw */
    ds_isa isa;
} ce_run;

/* One panel: logits, their gradients, and the products that are asked for. */
static void run_panel(const ce_run *r, ce_backward *b)
{
    const ds_kernel_call *call = r->call;
    const ce_sizes *s = &r->s;
    dsi_pool *pool = dsi_ctx_pool(call->ctx);
    const void *x = r->o->x >= 0 ? call->in[r->o->x].data : NULL;
    const void *w =
        r->o->w >= 0 ? ce_panel_of(call->in[r->o->w].data, r->type, s, b->column) : NULL;
    b->logits = r->o->kept >= 0 ? r->logits + b->column : r->logits;
    if (r->o->kept < 0) {
        dsi_gemm_params p = ce_logits_params(call->sig, r->type, s, b->n, PANEL, r->isa);
        p.a = x;
        p.b = w;
        p.c = r->logits;
        dsi_gemm(pool, &p, call->work);
    }
    ds_parallel(call->ctx, turn_rows, b, ce_row_tasks(s->rows));
    if (r->dx != NULL) {
        dsi_gemm_params p = dx_params(call->sig, r->type, s, b->n, b->column == 0, r->isa);
        p.a = b->gradients;
        p.b = w;
        p.c = r->dx;
        dsi_gemm(pool, &p, call->work);
    }
    if (r->dw != NULL) {
        dsi_gemm_params p = dw_params(call->sig, r->type, s, b->n, r->adds, r->isa);
        p.a = s->transposed ? x : b->gradients;
        p.b = s->transposed ? b->gradients : x;
        p.c = r->dw + (s->transposed ? b->column : b->column * s->width);
        dsi_gemm(pool, &p, call->work);
    }
}

static ds_status run(const ds_kernel_call *call, const ce_operands *o, ds_isa isa)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const ce_work at = work_of(call->sig, o, isa);
    const float *dloss = call->in[0].data;
    const float count = o->count >= 0 ? *(const float *)call->in[o->count].data : 0.0f;
    char *work = call->work;
    ce_run r = {.call = call,
                .o = o,
                .s = sizes_of(call->sig, o),
                .type = type_of(call->sig, o),
                .logits = o->kept >= 0 ? call->in[o->kept].data : (void *)(work + at.logits),
                .dx = has_out(call->sig, o->dx) ? (void *)(work + at.dx) : NULL,
                .dw = has_out(call->sig, o->dw) ? call->out[o->dw].data : NULL,
                .adds = has_in(call->sig, o->dw_in),
                .isa = isa};
    ce_backward b = {.stride = o->kept >= 0 ? r.s.vocab : PANEL,
                     .gradients = work + at.gradients,
                     .type = r.type,
                     .targets = call->in[o->targets].data,
                     .lse = call->in[o->lse].data,
                     .ignored = a->ignore_index,
                     .rows = r.s.rows,
                     .first = o->part > 0 ? ((const int32_t *)call->in[o->part].data)[0] : 0,
                     .n_all = o->part > 0 ? ((const dsi_ce_part_attrs *)call->sig->attrs)->n_rows
                                          : r.s.vocab,
                     .scale = count > 0.0f ? *dloss / count : 0.0f,
                     .dlogp = o->count < 0 ? dloss : NULL};
    DS_TRY(ce_check_targets(call, &call->in[o->targets], b.n_all));
    if (r.adds && call->in[o->dw_in].data != r.dw) {
        memcpy(r.dw, call->in[o->dw_in].data, ds_meta_bytes(call->out[o->dw].meta));
    }
    for (b.column = 0; b.column < r.s.vocab; b.column += PANEL) {
        b.n = ce_panel_width(&r.s, b.column);
        run_panel(&r, &b);
    }
    if (r.dx == NULL) {
        return DS_OK;
    }
    round_job job = {r.dx, call->out[o->dx].data, r.type, (size_t)(r.s.rows * r.s.width)};
    ds_parallel(call->ctx, round_block, &job,
                (uint32_t)((job.count + ROUND_TASK - 1) / ROUND_TASK));
    return DS_OK;
}

/* The operators. */
static bool supports(const ds_kernel_sig *sig, const ce_operands *o)
{
    return gemm_dtype(type_of(sig, o)) &&
           (!has_out(sig, o->dw) || sig->out[o->dw].dtype == DS_DTYPE_F32);
}

#define CE_BACKWARD(name, operands)                                                                \
    static bool name##_supports(const ds_kernel_sig *sig)                                          \
    {                                                                                              \
        return supports(sig, operands);                                                            \
    }                                                                                              \
    static size_t name##_work(const ds_kernel_sig *sig, ds_isa isa)                                \
    {                                                                                              \
        return work_of(sig, operands, isa).end;                                                    \
    }                                                                                              \
    static ds_status name##_run(const ds_kernel_call *call, ds_isa isa)                            \
    {                                                                                              \
        return run(call, operands, isa);                                                           \
    }                                                                                              \
    DSI_GEMM_KERNEL(name)

CE_BACKWARD(linear_cross_entropy_backward, &both)
CE_BACKWARD(linear_cross_entropy_dx, &only_dx)
CE_BACKWARD(linear_cross_entropy_dw, &only_dw)
CE_BACKWARD(linear_cross_entropy_part_backward, &of_part)
CE_BACKWARD(linear_logprob_backward, &by_rows)
