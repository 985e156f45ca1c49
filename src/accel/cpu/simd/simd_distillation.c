/* SPDX-License-Identifier: Apache-2.0 */
/* distillation and distillation_backward of logits in fp32. Formulas: deepspeed/distillation.h. */
#include "accel/cpu/simd/simd_exp_rows.h"
#include "accel/cpu/simd/targets.h"

#include <string.h>

typedef struct distil_job {
    const float *logits, *teacher;
    const int32_t *targets;
    const dsi_distillation_attrs *attrs;
    const float *lse_in, *hot_in, *taught_in, *inner_in; /* backward */
    float *lse, *hot, *taught, *inner, *losses;          /* forward */
    float *dx;
    float scale; /* dloss/count */
    size_t V;
} distil_job;

/* What a row's tokens share. */
typedef struct distil_row {
    vf rate; /* 1/temperature */
    vf hot, taught;
    vf mix, rest, log_mix, log_rest;
    bool forward, reverse;
} distil_row;

static distil_row row_of(const dsi_distillation_attrs *a, float hot, float taught)
{
    const float mix = (float)a->mix;
    return (distil_row){.rate = vf_set((float)(1.0 / a->temperature)),
                        .hot = vf_set(hot),
                        .taught = vf_set(taught),
                        .mix = vf_set(mix),
                        .rest = vf_set(1.0f - mix),
                        .log_mix = vf_set(logf(mix)),
                        .log_rest = vf_set(logf(1.0f - mix)),
                        .forward = mix == 0.0f,
                        .reverse = mix == 1.0f};
}

/* log m of the mixture. */
DSI_INLINE vf log_mixture(const distil_row *r, vf lp, vf lq)
{
    const vf a = vf_add(r->log_mix, lp);
    const vf b = vf_add(r->log_rest, lq);
    const vf top = vf_max(a, b);
    return vf_add(top, vf_log(vf_add(vf_exp(vf_sub(a, top)), vf_exp(vf_sub(b, top)))));
}

/* A token's part of the divergence, from log-chances lp of the teacher and lq of the model; and of
 * `inner` in *inner_out. */
DSI_INLINE vf divergence(const distil_row *r, vf z, vf t, vf *inner_out)
{
    const vf lq = vf_sub(vf_mul(z, r->rate), r->hot);
    const vf lp = vf_sub(vf_mul(t, r->rate), r->taught);
    *inner_out = vf_zero();
    if (r->forward) {
        return vf_mul(vf_exp(lp), vf_sub(lp, lq));
    }
    const vf q = vf_exp(lq);
    if (r->reverse) {
        *inner_out = vf_mul(q, vf_sub(lq, lp));
        return *inner_out;
    }
    const vf lm = log_mixture(r, lp, lq);
    *inner_out = vf_mul(q, vf_sub(lq, lm));
    const vf of_teacher = vf_mul(vf_mul(r->mix, vf_exp(lp)), vf_sub(lp, lm));
    return vf_add(of_teacher, vf_mul(r->rest, *inner_out));
}

/* Log of the sum of e^(x·rate), its largest element given. */
DSI_INLINE float hot_log_sum(const float *x, size_t V, float top, vf rate)
{
    row_sum sum = row_sum_zero();
    const vf high = vf_set(top);
#define FULL(i, u)                                                                                 \
    sum.part[u] = vf_add(sum.part[u], vf_exp(vf_mul(vf_sub(vf_load(x + (i)), high), rate)))
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        const vf e = vf_exp(vf_mul(vf_sub(vf_load_n(x + (i), n), high), rate));                    \
        sum.part[0] = vf_add(sum.part[0], vf_select(vm_first(n), e, vf_zero()));                   \
    } while (0)
    FOR_ROW(V, FULL, TAIL);
#undef FULL
#undef TAIL
    return logf(row_sum_total(sum));
}

DSI_INLINE float row_divergence(const distil_row *r, const float *z, const float *t, size_t V,
                                float *inner_out)
{
    row_sum sum = row_sum_zero();
    row_sum inner = row_sum_zero();
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        vf part;                                                                                   \
        sum.part[u] =                                                                              \
            vf_add(sum.part[u], divergence(r, vf_load(z + (i)), vf_load(t + (i)), &part));         \
        inner.part[u] = vf_add(inner.part[u], part);                                               \
    } while (0)
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        vf part;                                                                                   \
        const vf d = divergence(r, vf_load_n(z + (i), n), vf_load_n(t + (i), n), &part);           \
        sum.part[0] = vf_add(sum.part[0], vf_select(vm_first(n), d, vf_zero()));                   \
        inner.part[0] = vf_add(inner.part[0], vf_select(vm_first(n), part, vf_zero()));            \
    } while (0)
    FOR_ROW(V, FULL, TAIL);
#undef FULL
#undef TAIL
    *inner_out = row_sum_total(inner);
    return row_sum_total(sum);
}

static void distil_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const distil_job *job = opaque;
    const dsi_distillation_attrs *a = job->attrs;
    const float rate = (float)(1.0 / a->temperature);
    (void)block;
    for (size_t row = first; row < last; ++row) {
        const float *z = job->logits + row * job->V;
        const float *t = job->teacher + row * job->V;
        const int32_t target = job->targets[row];
        const float top = row_max(z, DS_DTYPE_F32, job->V);
        const float teacher_top = row_max(t, DS_DTYPE_F32, job->V);
        job->lse[row] = top + logf(row_exp_sum(z, DS_DTYPE_F32, job->V, vf_set(top)));
        job->hot[row] = top * rate + hot_log_sum(z, job->V, top, vf_set(rate));
        job->taught[row] = teacher_top * rate + hot_log_sum(t, job->V, teacher_top, vf_set(rate));
        job->inner[row] = 0.0f;
        job->losses[row] = 0.0f;
        if (target != (int32_t)a->ce.ignore_index) {
            const distil_row r = row_of(a, job->hot[row], job->taught[row]);
            const float soft = row_divergence(&r, z, t, job->V, &job->inner[row]);
            job->losses[row] = (float)(1.0 - a->weight) * (job->lse[row] - z[target]) +
                               (float)(a->weight * a->temperature * a->temperature) * soft;
        }
    }
}

/* dD/dz, times the temperature. */
DSI_INLINE vf slope(const distil_row *r, vf z, vf t, vf inner)
{
    const vf lq = vf_sub(vf_mul(z, r->rate), r->hot);
    const vf lp = vf_sub(vf_mul(t, r->rate), r->taught);
    const vf q = vf_exp(lq);
    if (r->forward) {
        return vf_sub(q, vf_exp(lp));
    }
    if (r->reverse) {
        return vf_mul(q, vf_sub(vf_sub(lq, lp), inner));
    }
    return vf_mul(vf_mul(r->rest, q), vf_sub(vf_sub(lq, log_mixture(r, lp, lq)), inner));
}

static void distil_backward_row(const distil_job *job, size_t row)
{
    const dsi_distillation_attrs *a = job->attrs;
    const float *z = job->logits + row * job->V;
    const float *t = job->teacher + row * job->V;
    float *dx = job->dx + row * job->V;
    const distil_row r = row_of(a, job->hot_in[row], job->taught_in[row]);
    const vf lse = vf_set(job->lse_in[row]);
    const vf inner = vf_set(job->inner_in[row]);
    const float hard = (float)(1.0 - a->weight) * job->scale;
    const vf hard_scale = vf_set(hard);
    const vf soft_scale = vf_set((float)(a->weight * a->temperature) * job->scale);
#define DLOGIT(z, t)                                                                               \
    vf_fma(hard_scale, vf_exp(vf_sub(z, lse)), vf_mul(soft_scale, slope(&r, z, t, inner)))
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        const vf own = vf_load(z + (i));                                                           \
        vf_store(dx + (i), DLOGIT(own, vf_load(t + (i))));                                         \
    } while (0)
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        const vf own = vf_load_n(z + (i), n);                                                      \
        vf_store_n(dx + (i), DLOGIT(own, vf_load_n(t + (i), n)), n);                               \
    } while (0)
    FOR_ROW(job->V, FULL, TAIL);
#undef FULL
#undef TAIL
#undef DLOGIT
    dx[job->targets[row]] -= hard;
}

static void distil_backward_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const distil_job *job = opaque;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        if (job->targets[row] == (int32_t)job->attrs->ce.ignore_index) {
            memset(job->dx + row * job->V, 0, job->V * sizeof *job->dx);
        } else {
            distil_backward_row(job, row);
        }
    }
}

static size_t distillation_work(const ds_kernel_sig *sig)
{
    return (size_t)ds_shape_rows(sig->in[0].shape) * sizeof(float);
}

static ds_status distillation_run(const ds_kernel_call *call)
{
    const dsi_distillation_attrs *a = call->sig->attrs;
    const size_t n = (size_t)ds_shape_rows(call->in[0].meta.shape);
    const distil_job job = {.logits = call->in[0].data,
                            .teacher = call->in[1].data,
                            .targets = call->in[2].data,
                            .attrs = a,
                            .lse = call->out[1].data,
                            .hot = call->out[3].data,
                            .taught = call->out[4].data,
                            .inner = call->out[5].data,
                            .losses = call->work,
                            .V = (size_t)ds_shape_last(call->in[0].meta.shape)};
    double sum = 0.0;
    size_t count = 0;
    DS_TRY(ce_check_targets(call, &call->in[2], (int64_t)job.V));
    for_rows(call->ctx, n, row_blocks(n, job.V, ELEMENT_GRAIN, 1024), distil_block, &job);
    for (size_t i = 0; i < n; ++i) {
        sum += (double)job.losses[i];
        count += job.targets[i] != (int32_t)a->ce.ignore_index;
    }
    const float rows = a->ce.counted != 0 ? *(const float *)call->in[3].data : (float)count;
    *(float *)call->out[0].data = rows > 0.0f ? (float)(sum / (double)rows) : 0.0f;
    *(float *)call->out[2].data = rows;
    return DS_OK;
}

static ds_status distillation_backward_run(const ds_kernel_call *call)
{
    const size_t n = (size_t)ds_shape_rows(call->in[1].meta.shape);
    const float count = *(const float *)call->in[5].data;
    const distil_job job = {.logits = call->in[1].data,
                            .teacher = call->in[2].data,
                            .targets = call->in[3].data,
                            .attrs = call->sig->attrs,
                            .lse_in = call->in[4].data,
                            .hot_in = call->in[6].data,
                            .taught_in = call->in[7].data,
                            .inner_in = call->in[8].data,
                            .dx = call->out[0].data,
                            .scale = count > 0.0f ? *(const float *)call->in[0].data / count : 0.0f,
                            .V = (size_t)ds_shape_last(call->in[1].meta.shape)};
    DS_TRY(ce_check_targets(call, &call->in[3], (int64_t)job.V));
    for_rows(call->ctx, n, row_blocks(n, job.V, ELEMENT_GRAIN, 1024), distil_backward_block, &job);
    return DS_OK;
}

static bool distillation_supports(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32;
}

static bool distillation_backward_supports(const ds_kernel_sig *sig)
{
    return sig->in[1].dtype == DS_DTYPE_F32;
}

DSI_SIMD_KERNEL(distillation, distillation_supports, distillation_work, distillation_run);
DSI_SIMD_KERNEL(distillation_backward, distillation_backward_supports, NULL,
                distillation_backward_run);
