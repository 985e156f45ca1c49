/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels check that carry something from position to position of a document. */
#ifndef DSI_ACCEL_CPU_REF_DOCUMENTS_H
#define DSI_ACCEL_CPU_REF_DOCUMENTS_H

#include "accel/cpu/ref/ref_real.h"

/* first (B,T), or NULL: each position begins a document or belongs to that of the one before. */
static inline ds_status ref_check_documents(const ds_kernel_call *call, const int32_t *first,
                                            int64_t b, int64_t t)
{
    for (int64_t row = 0; first != NULL && row < b * t; ++row) {
        const int64_t at = row % t;
        if (first[row] != at && (at == 0 || first[row] != first[row - 1])) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: first of position %lld of sample %lld is %d, expected the position "
                           "or what that before it has",
                           call->sig->op->name, (long long)at, (long long)(row / t), first[row]);
        }
    }
    return DS_OK;
}

/* offset i32 (B) at input `at`, then last. */
static inline ds_status ref_check_step(const ds_kernel_call *call, uint32_t at, int64_t b,
                                       int64_t t)
{
    const int32_t *offset = call->in[at].data;
    const int32_t *last = call->in[at + 1].data;
    for (int64_t i = 0; i < b; ++i) {
        if (offset[i] < 0 || last[i] < 0 || last[i] >= t) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: sample %lld has offset %d, expected 0 or more, and last %d, "
                           "expected 0 to %lld",
                           call->sig->op->name, (long long)i, offset[i], last[i], (long long)t - 1);
        }
    }
    return DS_OK;
}

#endif
