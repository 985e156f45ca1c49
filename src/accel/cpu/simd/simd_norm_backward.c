/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm_backward and rms_norm_backward.
 *
 * Rows go in a number of blocks that depends on the shape only; each block sums its dw and db in
 * row order into its own partial row, and the partials are added in block order: the same bits on
 * any number of threads.
 */
#include "accel/cpu/simd/simd_rows.h"

typedef struct norm_backward_job {
    const void *dy, *x, *dres; /* dres NULL when absent */
    void *dx;
    const float *w, *mean, *rstd; /* mean NULL: rms */
    float *partial;               /* n_blocks rows of dw, db */
    size_t C;
    ds_dtype type;
} norm_backward_job;

/* What one row's first pass leaves for its second. */
typedef struct row_terms {
    vf mu, r, m1, m2;
} row_terms;

/* Adds the row to dw and db; m1 and m2 are the means of dy·w and of dy·w·x̂. */
DSI_INLINE row_terms row_first_pass(const norm_backward_job *job, const void *dy, const void *x,
                                    size_t row, float *dw, ds_dtype type, bool centered)
{
    const size_t C = job->C;
    float *db = dw + C;
    row_terms t = {vf_zero(), vf_set(job->rstd[row]), vf_zero(), vf_zero()};
    if (centered) {
        t.mu = vf_set(job->mean[row]);
    }
    row_sum s1 = row_sum_zero();
    row_sum s2 = row_sum_zero();
#define STEP(i, u, GET, LOAD, STORE)                                                               \
    do {                                                                                           \
        vf_fetch(dy, type, i);                                                                     \
        vf_fetch(x, type, i);                                                                      \
        const vf d = GET(dy, i);                                                                   \
        const vf v = GET(x, i);                                                                    \
        const vf hat = vf_mul(centered ? vf_sub(v, t.mu) : v, t.r);                                \
        const vf dyw = vf_mul(d, LOAD(job->w, i));                                                 \
        STORE(dw, i, vf_fma(d, hat, LOAD(dw, i)));                                                 \
        if (centered) {                                                                            \
            STORE(db, i, vf_add(d, LOAD(db, i)));                                                  \
            s1.part[u] = vf_add(s1.part[u], dyw);                                                  \
        }                                                                                          \
        s2.part[u] = vf_fma(dyw, hat, s2.part[u]);                                                 \
    } while (0)
#define GET_FULL(p, i)      vf_get(p, type, i)
#define LOAD_FULL(p, i)     vf_load((p) + (i))
#define STORE_FULL(p, i, v) vf_store((p) + (i), v)
#define FULL(i, u)          STEP(i, u, GET_FULL, LOAD_FULL, STORE_FULL)
#define GET_TAIL(p, i)      vf_get_n(p, type, i, left_)
#define LOAD_TAIL(p, i)     vf_load_n((p) + (i), left_)
#define STORE_TAIL(p, i, v) vf_store_n((p) + (i), v, left_)
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        const size_t left_ = (n);                                                                  \
        STEP(i, 0, GET_TAIL, LOAD_TAIL, STORE_TAIL);                                               \
    } while (0)
    FOR_ROW(C, FULL, TAIL);
#undef STEP
    t.m1 = vf_set(row_sum_total(s1) / (float)C);
    t.m2 = vf_set(row_sum_total(s2) / (float)C);
    return t;
}

/* dx = rstd·(dy·w - m1 - x̂·m2) + dres */
DSI_INLINE void row_second_pass(const norm_backward_job *job, const void *dy, const void *x,
                                size_t offset, row_terms t, ds_dtype type, bool centered)
{
    const size_t C = job->C;
    const size_t bytes = type == DS_DTYPE_F32 ? 4 : 2;
    const void *dres = job->dres != NULL ? (const char *)job->dres + offset * bytes : NULL;
    void *dx = (char *)job->dx + offset * bytes;
#define STEP(i, GET, LOAD, PUT)                                                                    \
    do {                                                                                           \
        const vf v = GET(x, i);                                                                    \
        const vf hat = vf_mul(centered ? vf_sub(v, t.mu) : v, t.r);                                \
        const vf dyw = vf_mul(GET(dy, i), LOAD(job->w, i));                                        \
        const vf inner = vf_fnma(hat, t.m2, centered ? vf_sub(dyw, t.m1) : dyw);                   \
        PUT(i, dres != NULL ? vf_fma(inner, t.r, GET(dres, i)) : vf_mul(inner, t.r));              \
    } while (0)
#define PUT_FULL(i, v)                                                                             \
    do {                                                                                           \
        vf_fetch(dx, type, i);                                                                     \
        if (dres != NULL) {                                                                        \
            vf_fetch(dres, type, i);                                                               \
        }                                                                                          \
        vf_put(dx, type, i, v);                                                                    \
    } while (0)
#define PUT_TAIL(i, v) vf_put_n(dx, type, i, v, left_)
#undef FULL
#undef TAIL
#define FULL(i, u) STEP(i, GET_FULL, LOAD_FULL, PUT_FULL)
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        const size_t left_ = (n);                                                                  \
        STEP(i, GET_TAIL, LOAD_TAIL, PUT_TAIL);                                                    \
    } while (0)
    FOR_ROW(C, FULL, TAIL);
}

DSI_INLINE void backward_rows(const norm_backward_job *job, size_t first, size_t last, float *dw,
                              ds_dtype type, bool centered)
{
    const size_t bytes = type == DS_DTYPE_F32 ? 4 : 2;
    for (size_t row = first; row < last; ++row) {
        const size_t offset = row * job->C;
        const void *dy = (const char *)job->dy + offset * bytes;
        const void *x = (const char *)job->x + offset * bytes;
        const row_terms t = row_first_pass(job, dy, x, row, dw, type, centered);
        row_second_pass(job, dy, x, offset, t, type, centered);
    }
}

static void norm_backward_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const norm_backward_job *job = opaque;
    float *dw = job->partial + block * 2 * job->C;
    memset(dw, 0, 2 * job->C * sizeof *dw);
    if (job->mean != NULL) {
        DSI_BY_TYPE(job->type, backward_rows(job, first, last, dw, T, true))
    } else {
        DSI_BY_TYPE(job->type, backward_rows(job, first, last, dw, T, false))
    }
}

/* Blocks of at least 32 rows, at most 64. */
static size_t backward_blocks(const ds_meta *x)
{
    const size_t n_rows = (size_t)ds_shape_rows(x->shape);
    const size_t blocks = (n_rows + 31) / 32;
    return blocks < 1 ? 1 : blocks < 64 ? blocks : 64;
}

static size_t norm_backward_work(const ds_kernel_sig *sig)
{
    const size_t C = (size_t)ds_shape_last(sig->in[1].shape);
    return sizeof(float) * C * (1 + 2 * backward_blocks(&sig->in[1]));
}

static ds_status run_norm_backward(const ds_kernel_call *call, const float *mean, const float *rstd,
                                   const ds_tensor *dres, double shift)
{
    const ds_tensor *x = &call->in[1];
    const size_t C = (size_t)ds_shape_last(x->meta.shape);
    const size_t n_rows = (size_t)ds_shape_rows(x->meta.shape);
    const size_t n_blocks = backward_blocks(&x->meta);
    float *w = call->work;
    float *partial = w + C;
    if (C == 0) {
        return DS_OK;
    }
    widen_weight(w, input_at(call, 2), C, shift);
    const norm_backward_job job = {call->in[0].data,
                                   x->data,
                                   dres != NULL ? dres->data : NULL,
                                   call->out[0].data,
                                   w,
                                   mean,
                                   rstd,
                                   partial,
                                   C,
                                   x->meta.dtype};
    if (n_rows > 0) {
        for_rows(call->ctx, n_rows, n_blocks, norm_backward_block, &job);
    } else {
        memset(partial, 0, 2 * C * sizeof *partial);
    }
    if (input_at(call, 2) != NULL) {
        const block_sum_job dw = {partial, n_blocks, 2 * C, call->out[1].data};
        for_ranges(call->ctx, C, 1024, block_sum_range, &dw);
    }
    if (call->sig->n_out > 2 && call->out[2].meta.dtype != DS_DTYPE_NONE) {
        const block_sum_job db = {partial + C, n_blocks, 2 * C, call->out[2].data};
        for_ranges(call->ctx, C, 1024, block_sum_range, &db);
    }
    return DS_OK;
}

static ds_status layer_norm_backward_run(const ds_kernel_call *call)
{
    return run_norm_backward(call, call->in[3].data, call->in[4].data, input_at(call, 5), 0.0);
}

static ds_status rms_norm_backward_run(const ds_kernel_call *call)
{
    return run_norm_backward(call, NULL, call->in[3].data, input_at(call, 4),
                             ((const dsi_norm_attrs *)call->sig->attrs)->shift);
}

DSI_SIMD_KERNEL(layer_norm_backward, all_act_types, norm_backward_work, layer_norm_backward_run);
DSI_SIMD_KERNEL(rms_norm_backward, all_act_types, norm_backward_work, rms_norm_backward_run);
