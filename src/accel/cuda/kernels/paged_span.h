/* SPDX-License-Identifier: Apache-2.0 */
/* Of paged_attention.cu and paged_mma.cu: which keys a token sees, and what of its integers is no
 * place. Such a token is reported and sees nothing; a block that there is not is reported, and the
 * first one is read in its stead. */
#ifndef DSC_PAGED_SPAN_H
#define DSC_PAGED_SPAN_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/paged.h"

/* Whether a token belongs to a sequence at a position that there is. report: by one thread. */
DSC_INLINE bool is_token(const dsc_paged_args *a, int64_t t, bool report)
{
    const int64_t s = a->sequence[t];
    const int64_t position = a->positions[t];
    const int64_t most = a->n_table * a->block;
    if (s < 0) {
        return false;
    }
    if (s >= a->n_sequences || position < 0 || position >= most) {
        if (report) {
            const bool is_sequence = s >= a->n_sequences;
            dsc_report(a->fault, a->call, t, is_sequence ? s : position,
                       is_sequence ? a->n_sequences : most);
        }
        return false;
    }
    return true;
}

DSC_INLINE int64_t first_key(const dsc_paged_args *a, int64_t position)
{
    return a->window > 0 && position - a->window + 1 > 0 ? position - a->window + 1 : 0;
}

/* Blocks of keys [first,last) of a sequence, `thread` of n_threads reporting what there is not. */
DSC_INLINE void check_blocks(const dsc_paged_args *a, int64_t sequence, int64_t first, int64_t last,
                             uint32_t thread, uint32_t n_threads)
{
    const int64_t row = sequence * a->n_table;
    for (int64_t i = first / a->block + thread; i * a->block < last; i += n_threads) {
        const int64_t block = a->tables[row + i];
        if (block < 0 || block >= a->n_blocks) {
            dsc_report(a->fault, a->call, row + i, block, a->n_blocks);
        }
    }
}

#endif
