/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels check that carry something from position to position of a document: the same words
 * as accel/cpu/ref/ref_documents.h. */
#ifndef DSC_DOCUMENT_H
#define DSC_DOCUMENT_H

#include "accel/cuda/cuda_device.h"

/* Of row `row` of a sample's T positions: the first of its document. What is neither the position
 * nor what that before it has is reported. */
DSC_INLINE void dsc_check_first(dsc_fault *fault, uint64_t call, const int32_t *first, int64_t row,
                                int64_t length)
{
    const int64_t at = row % length;
    if (first != NULL && first[row] != at && (at == 0 || first[row] != first[row - 1])) {
        dsc_report(fault, call, row, first[row], at + 1);
    }
}

/* Whether sample b of a step has numbers that fit; what does not is reported. */
DSC_INLINE bool dsc_check_step(dsc_fault *fault, uint64_t call, const int32_t *offset,
                               const int32_t *last, int64_t b, int64_t length)
{
    if (offset[b] < 0 || last[b] < 0 || last[b] >= length) {
        dsc_report(fault, call, b, offset[b] < 0 ? offset[b] : last[b], length);
        return false;
    }
    return true;
}

/* Tokens of the run that begins at t: 0 where none begins. What is of no row of the cell, a second
 * run of a sequence, which another block would carry on at the same time, and positions that do
 * not follow each other are reported, at the token that is wrong; 0 then. */
DSC_INLINE int64_t dsc_run_at(dsc_fault *fault, uint64_t call, const int32_t *sequence,
                              const int32_t *position, int64_t t, int64_t length, int64_t n_cells)
{
    int64_t n = 1;
    if (sequence[t] < -1 || sequence[t] >= n_cells) {
        dsc_report(fault, call, t, sequence[t], n_cells);
        return 0;
    }
    if (sequence[t] < 0 || (t > 0 && sequence[t] == sequence[t - 1])) {
        return 0;
    }
    for (int64_t before = 0; before < t; ++before) {
        if (sequence[before] == sequence[t]) {
            dsc_report(fault, call, t, sequence[t], n_cells);
            return 0;
        }
    }
    if (position[t] < 0) {
        dsc_report(fault, call, t, position[t], n_cells);
        return 0;
    }
    for (; t + n < length && sequence[t + n] == sequence[t]; ++n) {
        if (position[t + n] != position[t + n - 1] + 1) {
            dsc_report(fault, call, t + n, position[t + n], n_cells);
            return 0;
        }
    }
    return n;
}

#endif
