/* SPDX-License-Identifier: Apache-2.0 */
/* Whole numbers that steps begin with: documents' ends, labels, numbers of rows, counts of targets;
 * a thread an element. All of it is exact. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/select.h"

/* Behind the last position of the document that element i is in, counted in its row. */
DSC_INLINE int64_t document_end_of(const dsc_integers_args *a, int64_t i)
{
    const int64_t behind = (i / a->length + 1) * a->length;
    int64_t end = i + 1;
    while (end < behind && a->first[end] == a->first[i]) {
        ++end;
    }
    return end - i / a->length * a->length;
}

DSC_INLINE void document_ends(const dsc_integers_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        a->out[i] = (int32_t)document_end_of(a, i);
    }
}

/* Where the document of element i has its first padding. */
DSC_INLINE void filled_ends(const dsc_integers_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t row = i / a->length * a->length;
        const int64_t end = row + document_end_of(a, i);
        int64_t at = i;
        while (at > row && a->first[at - 1] == a->first[i]) {
            --at;
        }
        while (at < end && a->ids[at] != a->pad) {
            ++at;
        }
        a->out[i] = (int32_t)(at - row);
    }
}

DSC_INLINE void shifted_labels(const dsc_integers_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const bool begins = i % a->length == 0 || a->first[i] != a->first[i - 1];
        const int32_t before = begins ? (int32_t)a->start : a->ids[i - 1];
        a->out[i] = before == -100 ? (int32_t)a->pad : before;
    }
}

/* Rows of parts in their order (op/sequence_order.h), `turn` parts before. */
DSC_INLINE void number_rows(const dsc_integers_args *a)
{
    const int64_t each = a->n_rows / a->n_parts;
    const int64_t front = a->halves != 0 ? each / 2 : each;
    for (int64_t i = dsc_index(); i < each * a->n_parts; i += dsc_stride()) {
        const int64_t from = (i / each - a->turn + a->n_parts) % a->n_parts;
        const int64_t within = i % each;
        const int64_t behind =
            a->n_parts * front + (a->n_parts - 1 - from) * (each - front) + within - front;
        a->out[i] = (int32_t)(a->start + (within < front ? from * front + within : behind));
    }
}

/* One block: how many ids are not `pad`. */
DSC_INLINE void count_ids(const dsc_integers_args *a)
{
    __shared__ int64_t counts[256];
    int64_t count = 0;
    for (int64_t i = threadIdx.x; i < a->n; i += blockDim.x) {
        count += a->ids[i] != a->pad ? 1 : 0;
    }
    counts[threadIdx.x] = count;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t t = 1; t < blockDim.x; ++t) {
            count += counts[t];
        }
        a->count[0] = (float)count;
    }
}

DSC_INLINE void put_constants(const dsc_constants_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        a->out[i] = a->v[i];
    }
}

/* seed, step, sample, and one more. */
DSC_INLINE void go_ahead(const dsc_rng_args *a)
{
    const uint32_t i = threadIdx.x;
    if (i < 4) {
        a->out[i] = a->rng[i] + (i == 2 ? a->samples : 0);
    }
}

DSC_KERNEL(document_end, dsc_integers_args, document_ends(a))
DSC_KERNEL(filled_end, dsc_integers_args, filled_ends(a))
DSC_KERNEL(shift_labels, dsc_integers_args, shifted_labels(a))
DSC_KERNEL(row_numbers, dsc_integers_args, number_rows(a))
DSC_KERNEL(count_targets, dsc_integers_args, count_ids(a))
DSC_KERNEL(constants, dsc_constants_args, put_constants(a))
DSC_KERNEL(rng_ahead, dsc_rng_args, go_ahead(a))
