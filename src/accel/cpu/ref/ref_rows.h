/* SPDX-License-Identifier: Apache-2.0 */
/* What losses of rows with a target share: targets checked, a mean over those that count. */
#ifndef DSI_ACCEL_CPU_REF_ROWS_H
#define DSI_ACCEL_CPU_REF_ROWS_H

#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

static inline ds_status ref_check_targets(const ds_kernel_call *call, const ds_tensor *targets,
                                          int64_t v)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const int32_t *t = targets->data;
    const int64_t n = ds_shape_count(targets->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        if (t[i] != a->ignore_index && (t[i] < 0 || t[i] >= v)) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: target[%lld] is %d, expected 0 to %lld, or %lld to ignore the row",
                           call->sig->op->name, (long long)i, t[i], (long long)v - 1,
                           (long long)a->ignore_index);
        }
    }
    return DS_OK;
}

static inline real ref_log_sum_exp(const real *z, int64_t n)
{
    real top = -(real)INFINITY;
    for (int64_t i = 0; i < n; ++i) {
        top = z[i] > top ? z[i] : top;
    }
    real sum = R(0.0);
    for (int64_t i = 0; i < n; ++i) {
        sum += r_exp(z[i] - top);
    }
    return top + r_log(sum);
}

/* loss and count from the rows' losses, in row order; `given`: the count, where it comes in. */
static inline void ref_finish_loss(const ds_kernel_call *call, const ds_tensor *targets,
                                   const ds_tensor *given, const real *losses)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const int32_t *t = targets->data;
    const int64_t n = ds_shape_count(targets->meta.shape);
    real sum = R(0.0);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (t[i] != a->ignore_index) {
            sum += losses[i];
            ++count;
        }
    }
    const real rows = a->counted != 0 ? ref_get(given, 0) : (real)count;
    ref_set(&call->out[0], 0, rows > R(0.0) ? sum / rows : R(0.0));
    ref_set(&call->out[2], 0, rows);
}

static inline real ref_loss_scale(const ds_tensor *dloss, const ds_tensor *count)
{
    const real n = ref_get(count, 0);
    return n > R(0.0) ? ref_get(dloss, 0) / n : R(0.0);
}

#endif
