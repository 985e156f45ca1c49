/* SPDX-License-Identifier: Apache-2.0 */
/* Targets of rows are in the vocabulary, or the one that is ignored. */
#ifndef DSI_ACCEL_CPU_SIMD_TARGETS_H
#define DSI_ACCEL_CPU_SIMD_TARGETS_H

#include "accel/cpu/simd/simd_kernel.h"

/* Attributes begin with dsi_ce_attrs. */
DSI_INLINE ds_status ce_check_targets(const ds_kernel_call *call, const ds_tensor *targets,
                                      int64_t vocab)
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

#endif
