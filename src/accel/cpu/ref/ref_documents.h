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

/* sequence i32 (T) at input `at`, then positions: rows of a cell of n_rows, -1: none; the tokens of
 * one are neighbours at positions in a row. */
static inline ds_status ref_check_tokens(const ds_kernel_call *call, uint32_t at, int64_t n_rows,
                                         int64_t t)
{
    const int32_t *sequence = call->in[at].data;
    const int32_t *position = call->in[at + 1].data;
    for (int64_t i = 0; i < t; ++i) {
        const bool goes_on = i > 0 && sequence[i] == sequence[i - 1];
        bool known = sequence[i] >= -1 && sequence[i] < n_rows;
        known = known && (sequence[i] < 0 ||
                          (goes_on ? position[i] == position[i - 1] + 1 : position[i] >= 0));
        for (int64_t j = 0; j < i && known && !goes_on && sequence[i] >= 0; ++j) {
            known = sequence[j] != sequence[i];
        }
        if (!known) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: token %lld is position %d of sequence %d, expected one of -1 to "
                           "%lld, each with neighbours at positions in a row",
                           call->sig->op->name, (long long)i, position[i], sequence[i],
                           (long long)n_rows - 1);
        }
    }
    return DS_OK;
}

/* Whether token t is the first of its sequence, and how many of it there are. */
static inline bool ref_begins_run(const int32_t *sequence, int64_t t)
{
    return sequence[t] >= 0 && (t == 0 || sequence[t] != sequence[t - 1]);
}

static inline int64_t ref_run_length(const int32_t *sequence, int64_t t, int64_t n_tokens)
{
    int64_t n = 1;
    while (t + n < n_tokens && sequence[t + n] == sequence[t]) {
        ++n;
    }
    return n;
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
