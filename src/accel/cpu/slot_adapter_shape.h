/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of slot_adapter share: its sizes, and the check of its integers. */
#ifndef DSI_ACCEL_CPU_SLOT_ADAPTER_SHAPE_H
#define DSI_ACCEL_CPU_SLOT_ADAPTER_SHAPE_H

#include "op/ops.h"

typedef struct slot_shape {
    int64_t n_tokens, n_slots, n_in, n_out, rank;
} slot_shape;

static inline slot_shape slot_shape_of(const ds_kernel_sig *sig)
{
    return (slot_shape){.n_tokens = sig->in[0].shape.dims[1],
                        .n_slots = sig->in[2].shape.dims[0],
                        .n_in = sig->in[1].shape.dims[2],
                        .n_out = sig->in[0].shape.dims[2],
                        .rank = sig->in[2].shape.dims[2]};
}

static inline ds_status slot_check(const ds_kernel_call *call, const slot_shape *s)
{
    const int32_t *slots = call->in[4].data;
    for (int64_t t = 0; t < s->n_tokens; ++t) {
        if (slots[t] < -1 || slots[t] >= s->n_slots) {
            return ds_fail(call->ctx, DS_ERR_LIMIT,
                           "slot_adapter: slots[%lld] is %d, but there are %lld", (long long)t,
                           slots[t], (long long)s->n_slots);
        }
    }
    return DS_OK;
}

#endif
