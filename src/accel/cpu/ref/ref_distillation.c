/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of distillation. Formulas: deepspeed/distillation.h. */
#include "accel/cpu/ref/ref_rows.h"

#include <math.h>

/* log p of the teacher and log q of the model, at the temperature, of one token. */
typedef struct chances {
    real lp, lq;
} chances;

/* A row as it is read: logits z, teacher's t. */
typedef struct row_state {
    const real *z, *t;
    int64_t v;
    real lse, hot_lse, teacher_lse, inner; /* as the operator gives them */
} row_state;

static chances chances_of(const row_state *r, real temperature, int64_t i)
{
    return (chances){r->t[i] / temperature - r->teacher_lse, r->z[i] / temperature - r->hot_lse};
}

/* log of m = b p + (1-b) q. */
static real log_mixture(chances c, real mix)
{
    const real a = r_log(mix) + c.lp;
    const real b = r_log(R(1.0) - mix) + c.lq;
    const real top = a > b ? a : b;
    return top + r_log(r_exp(a - top) + r_exp(b - top));
}

/* log q - log m, m being p where mix is 1; 0 where it is 0. */
static real against(chances c, real mix)
{
    return mix == R(0.0) ? R(0.0) : c.lq - (mix == R(1.0) ? c.lp : log_mixture(c, mix));
}

/* What a token adds to the divergence. */
static real divergence(chances c, real mix)
{
    if (mix == R(0.0)) {
        return r_exp(c.lp) * (c.lp - c.lq);
    }
    if (mix == R(1.0)) {
        return r_exp(c.lq) * (c.lq - c.lp);
    }
    const real lm = log_mixture(c, mix);
    return mix * r_exp(c.lp) * (c.lp - lm) + (R(1.0) - mix) * r_exp(c.lq) * (c.lq - lm);
}

/* ---- forward ------------------------------------------------------------------------------------
 */
/* Three rows of reals a slot: logits, the teacher's, and one of them divided by the temperature. */
static size_t distillation_work(const ds_kernel_sig *sig)
{
    const ds_shape x = sig->in[0].shape;
    return ref_slot_bytes(sig, 3 * ds_shape_last(x)) + (size_t)ds_shape_rows(x) * sizeof(real);
}

static real hot_log_sum_exp(const real *z, real temperature, int64_t v, real *buffer)
{
    for (int64_t i = 0; i < v; ++i) {
        buffer[i] = z[i] / temperature;
    }
    return ref_log_sum_exp(buffer, v);
}

static real row_loss(const dsi_distillation_attrs *a, row_state *r, int32_t target)
{
    const real temperature = (real)a->temperature;
    const real weight = (real)a->weight;
    const real mix = (real)a->mix;
    real sum = R(0.0);
    r->inner = R(0.0);
    for (int64_t i = 0; i < r->v; ++i) {
        const chances c = chances_of(r, temperature, i);
        sum += divergence(c, mix);
        r->inner += mix == R(0.0) ? R(0.0) : r_exp(c.lq) * against(c, mix);
    }
    return (R(1.0) - weight) * (r->lse - r->z[target]) + weight * temperature * temperature * sum;
}

static void distillation_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_distillation_attrs *a = call->sig->attrs;
    const int32_t *targets = call->in[2].data;
    const int64_t v = ds_shape_last(call->in[0].meta.shape);
    real *buffer = ref_slot(call, slot, 3 * v);
    real *losses = ref_slot(call, dsi_ref_slots(call->sig), 3 * v);
    for (int64_t n = begin; n < end; ++n) {
        row_state r = {.v = v};
        r.z = ref_row(&call->in[0], n * v, v, buffer);
        r.t = ref_row(&call->in[1], n * v, v, buffer + v);
        r.lse = ref_log_sum_exp(r.z, v);
        r.hot_lse = hot_log_sum_exp(r.z, (real)a->temperature, v, buffer + 2 * v);
        r.teacher_lse = hot_log_sum_exp(r.t, (real)a->temperature, v, buffer + 2 * v);
        losses[n] = targets[n] == a->ce.ignore_index ? R(0.0) : row_loss(a, &r, targets[n]);
        ref_set(&call->out[1], n, r.lse);
        ref_set(&call->out[3], n, r.hot_lse);
        ref_set(&call->out[4], n, r.teacher_lse);
        ref_set(&call->out[5], n, r.inner);
    }
}

static void distillation_loss(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t v = ds_shape_last(call->in[0].meta.shape);
    (void)begin;
    (void)end;
    (void)slot;
    ref_finish_loss(call, &call->in[2], &call->in[3],
                    ref_slot(call, dsi_ref_slots(call->sig), 3 * v));
}

static ds_status distillation_run(const ds_kernel_call *call)
{
    const ds_shape x = call->in[0].meta.shape;
    DS_TRY(ref_check_targets(call, &call->in[2], ds_shape_last(x)));
    dsi_ref_for(call, ds_shape_rows(x), distillation_rows);
    dsi_ref_serial(call, distillation_loss);
    return DS_OK;
}

/* ---- backward -----------------------------------------------------------------------------------
 */
static size_t distillation_backward_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, 2 * ds_shape_last(sig->in[1].shape));
}

/* dD/dz, times the temperature. */
static real slope(const row_state *r, chances c, real mix)
{
    if (mix == R(0.0)) {
        return r_exp(c.lq) - r_exp(c.lp);
    }
    const real share = mix == R(1.0) ? R(1.0) : R(1.0) - mix;
    return share * r_exp(c.lq) * (against(c, mix) - r->inner);
}

static void backward_row(const ds_kernel_call *call, const row_state *r, int64_t n, int32_t target,
                         real scale)
{
    const dsi_distillation_attrs *a = call->sig->attrs;
    const real temperature = (real)a->temperature;
    const real weight = (real)a->weight;
    for (int64_t i = 0; i < r->v; ++i) {
        const real hard = r_exp(r->z[i] - r->lse) - (i == target ? R(1.0) : R(0.0));
        const real soft = slope(r, chances_of(r, temperature, i), (real)a->mix);
        ref_set(&call->out[0], n * r->v + i,
                ((R(1.0) - weight) * hard + weight * temperature * soft) * scale);
    }
}

static void distillation_backward_rows(const ds_kernel_call *call, int64_t begin, int64_t end,
                                       uint32_t slot)
{
    const dsi_distillation_attrs *a = call->sig->attrs;
    const int32_t *targets = call->in[3].data;
    const int64_t v = ds_shape_last(call->in[1].meta.shape);
    const real scale = ref_loss_scale(&call->in[0], &call->in[5]);
    real *buffer = ref_slot(call, slot, 2 * v);
    for (int64_t n = begin; n < end; ++n) {
        const row_state r = {.z = ref_row(&call->in[1], n * v, v, buffer),
                             .t = ref_row(&call->in[2], n * v, v, buffer + v),
                             .v = v,
                             .lse = ref_get(&call->in[4], n),
                             .hot_lse = ref_get(&call->in[6], n),
                             .teacher_lse = ref_get(&call->in[7], n),
                             .inner = ref_get(&call->in[8], n)};
        if (targets[n] != a->ce.ignore_index) {
            backward_row(call, &r, n, targets[n], scale);
            continue;
        }
        for (int64_t i = 0; i < v; ++i) {
            ref_set(&call->out[0], n * v + i, R(0.0));
        }
    }
}

static ds_status distillation_backward_run(const ds_kernel_call *call)
{
    const ds_shape x = call->in[1].meta.shape;
    DS_TRY(ref_check_targets(call, &call->in[3], ds_shape_last(x)));
    dsi_ref_for(call, ds_shape_rows(x), distillation_backward_rows);
    return DS_OK;
}

REF_KERNEL(distillation, distillation_run, distillation_work);
REF_KERNEL(distillation_backward, distillation_backward_run, distillation_backward_work);
const ds_kernel *const DSI_REF(distillation)[] = {&distillation_kernel,
                                                  &distillation_backward_kernel, NULL};
