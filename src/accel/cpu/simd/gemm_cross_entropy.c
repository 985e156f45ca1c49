/* SPDX-License-Identifier: Apache-2.0 */
/* linear_cross_entropy and linear_logprob on the matrix-product engine.
 *
 * The logits of all rows for one panel of columns exist in fp32, in scratch or where they are kept;
 * then the running maximum and sum of each row take them in (Milakov and Gimelshein, "Online
 * normalizer calculation for softmax", 2018).
 *
 * Order: a row's sum runs lane by lane within a panel, panels in order.
 */
#include "accel/cpu/simd/gemm_cross_entropy.h"

#include <math.h>

typedef struct ce_forward {
    const float *logits; /* of the panel */
    int64_t stride;      /* between rows of logits */
    const int32_t *targets;
    int64_t rows, column, n;
    int64_t first;          /* number of the first column in the whole vocabulary */
    float *top, *sum, *hit; /* per row: running maximum, sum of exponentials, target's logit */
} ce_forward;

DSI_INLINE void take_row(const ce_forward *f, int64_t row)
{
    const float *z = f->logits + row * f->stride;
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
    const int64_t target = (int64_t)f->targets[row] - f->first - f->column;
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

static ce_sizes sizes_of(const ds_kernel_sig *sig)
{
    const dsi_ce_attrs *a = sig->attrs;
    const ds_shape w = sig->in[1].shape;
    return (ce_sizes){.rows = ds_shape_rows(sig->in[0].shape),
                      .width = ds_shape_last(sig->in[0].shape),
                      .vocab = w.dims[a->transposed != 0 ? 1 : 0],
                      .transposed = a->transposed != 0};
}

static bool keeps(const ds_kernel_sig *sig)
{
    return sig->op == &dsi_op_linear_cross_entropy &&
           ((const dsi_linear_ce_attrs *)sig->attrs)->keep != 0;
}

static bool linear_cross_entropy_supports(const ds_kernel_sig *sig)
{
    return gemm_dtype(sig->in[0].dtype) && gemm_dtype(sig->in[1].dtype);
}

static size_t linear_cross_entropy_work(const ds_kernel_sig *sig, ds_isa isa)
{
    const ce_sizes s = sizes_of(sig);
    const size_t logits = keeps(sig) ? 0 : round64((size_t)s.rows * PANEL * sizeof(float));
    return ce_logits_work(sig, sig->in[0].dtype, &s, isa) + logits +
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
    const float n = a->counted != 0 ? *(const float *)call->in[3].data : (float)count;
    *(float *)call->out[0].data = n > 0.0f ? (float)(loss / (double)n) : 0.0f;
    *(float *)call->out[2].data = n;
}

/* Of a part of the vocabulary: what the others' terms are joined with. */
static void finish_part(const ds_kernel_call *call, const ce_forward *f)
{
    float *terms = call->out[0].data;
    for (int64_t row = 0; row < f->rows; ++row) {
        terms[2 * row] = f->top[row] + logf(f->sum[row]);
        terms[2 * row + 1] = f->hit[row];
    }
    memcpy(call->out[1].data, call->in[3].data, ds_meta_bytes(call->in[3].meta));
}

/* Of linear_logprob: a number for each row. */
static void finish_rows(const ds_kernel_call *call, const ce_forward *f)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    float *logp = call->out[0].data;
    float *lse = call->out[1].data;
    for (int64_t row = 0; row < f->rows; ++row) {
        lse[row] = f->top[row] + logf(f->sum[row]);
        logp[row] = f->targets[row] != a->ignore_index ? f->hit[row] - lse[row] : 0.0f;
    }
}

/* A part is told by its `rows`, NULL: the whole vocabulary. */
static ds_status run(const ds_kernel_call *call, const ds_tensor *part, ds_isa isa)
{
    const ce_sizes s = sizes_of(call->sig);
    const ds_dtype type = call->in[0].meta.dtype;
    const size_t line = round64((size_t)s.rows * sizeof(float));
    char *work = call->work;
    char *rows = work + ce_logits_work(call->sig, type, &s, isa);
    float *scratch = (float *)(void *)(rows + 3 * line);
    ce_forward f = {.stride = keeps(call->sig) ? s.vocab : PANEL,
                    .targets = call->in[2].data,
                    .rows = s.rows,
                    .first = part != NULL ? ((const int32_t *)part->data)[0] : 0,
                    .top = (float *)(void *)rows,
                    .sum = (float *)(void *)(rows + line),
                    .hit = (float *)(void *)(rows + 2 * line)};
    const int64_t n_all =
        part != NULL ? ((const dsi_ce_part_attrs *)call->sig->attrs)->n_rows : s.vocab;
    DS_TRY(ce_check_targets(call, &call->in[2], n_all));
    for (int64_t row = 0; row < s.rows; ++row) {
        f.top[row] = -INFINITY;
        f.sum[row] = 0.0f;
        f.hit[row] = part != NULL ? -0.0f : 0.0f;
    }
    for (f.column = 0; f.column < s.vocab; f.column += PANEL) {
        float *logits = keeps(call->sig) ? (float *)call->out[3].data + f.column : scratch;
        const int64_t width = ce_panel_width(&s, f.column);
        f.n = ce_real_width(width, f.column, f.first, n_all);
        f.logits = logits;
        dsi_gemm_params p = ce_logits_params(call->sig, type, &s, width, f.stride, isa);
        p.a = call->in[0].data;
        p.b = ce_panel_of(call->in[1].data, type, &s, f.column);
        p.c = logits;
        dsi_gemm(dsi_ctx_pool(call->ctx), &p, work);
        ds_parallel(call->ctx, take_rows, &f, f.n > 0 ? ce_row_tasks(s.rows) : 0);
    }
    if (part != NULL) {
        finish_part(call, &f);
    } else if (call->sig->op == &dsi_op_linear_logprob) {
        finish_rows(call, &f);
    } else {
        finish_forward(call, &f);
    }
    return DS_OK;
}

static ds_status linear_cross_entropy_run(const ds_kernel_call *call, ds_isa isa)
{
    return run(call, NULL, isa);
}

static ds_status linear_cross_entropy_part_run(const ds_kernel_call *call, ds_isa isa)
{
    return run(call, &call->in[3], isa);
}

#define linear_cross_entropy_part_supports linear_cross_entropy_supports
#define linear_cross_entropy_part_work     linear_cross_entropy_work
#define linear_logprob_supports            linear_cross_entropy_supports
#define linear_logprob_work                linear_cross_entropy_work
#define linear_logprob_run                 linear_cross_entropy_run

DSI_GEMM_KERNEL(linear_cross_entropy)
DSI_GEMM_KERNEL(linear_cross_entropy_part)
DSI_GEMM_KERNEL(linear_logprob)
