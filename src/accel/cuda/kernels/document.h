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

/* Tokens of the run that begins at t: 0 where none begins, or what it is of is no row of the cell,
 * which is reported. */
DSC_INLINE int64_t dsc_run_at(dsc_fault *fault, uint64_t call, const int32_t *sequence, int64_t t,
                              int64_t length, int64_t n_cells)
{
    int64_t n = 1;
    if (sequence[t] < -1 || sequence[t] >= n_cells) {
        dsc_report(fault, call, t, sequence[t], n_cells);
        return 0;
    }
    if (sequence[t] < 0 || (t > 0 && sequence[t] == sequence[t - 1])) {
        return 0;
    }
    while (t + n < length && sequence[t + n] == sequence[t]) {
        ++n;
    }
    return n;
}

#endif
