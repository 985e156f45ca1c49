/* SPDX-License-Identifier: Apache-2.0 */
/* Rows between tokens and experts: spread_rows, a block a pair; combine_rows, a block a token,
 * whose sum goes over the pairs in order; combine_rows_dw, a block a pair. A place that is no row
 * is reported, and left out. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/experts.h"

DSC_INLINE bool is_place(const dsc_rows_args *a, int64_t pair)
{
    const int64_t row = a->place[pair];
    const bool fits = row >= 0 && row < a->n_rows;
    if (!fits && threadIdx.x == 0) {
        dsc_report(a->fault, a->call, pair, row, a->n_rows);
    }
    return fits;
}

DSC_INLINE void spread_rows_body(const dsc_rows_args *a, int act)
{
    for (int64_t i = blockIdx.x; i < a->tokens * a->n_choices; i += gridDim.x) {
        const bool fits = is_place(a, i);
        for (int64_t j = threadIdx.x; j < a->columns && fits; j += blockDim.x) {
            const float x = dsc_get(a->x, act, i / a->n_choices * a->columns + j);
            dsc_set(a->y, act, a->place[i] * a->columns + j,
                    a->weights != NULL ? x * a->weights[i] : x);
        }
    }
}

DSC_INLINE void combine_rows_body(const dsc_rows_args *a, int act)
{
    for (int64_t token = blockIdx.x; token < a->tokens; token += gridDim.x) {
        const int64_t first = token * a->n_choices;
        bool fits = true;
        for (int64_t i = first; i < first + a->n_choices; ++i) {
            fits = is_place(a, i) && fits;
        }
        for (int64_t j = threadIdx.x; j < a->columns && fits; j += blockDim.x) {
            float sum = 0.0f;
            for (int64_t i = first; i < first + a->n_choices; ++i) {
                const float x = dsc_get(a->x, act, a->place[i] * a->columns + j);
                sum += a->weights != NULL ? x * a->weights[i] : x;
            }
            dsc_set(a->y, act, token * a->columns + j, sum);
        }
    }
}

DSC_INLINE void combine_rows_dw_body(const dsc_rows_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t i = blockIdx.x; i < a->tokens * a->n_choices; i += gridDim.x) {
        const bool fits = is_place(a, i);
        float sum = 0.0f;
        for (int64_t j = threadIdx.x; j < a->columns && fits; j += blockDim.x) {
            sum += dsc_get(a->dy, act, i / a->n_choices * a->columns + j) *
                   dsc_get(a->x, act, a->place[i] * a->columns + j);
        }
        sum = dsc_block_sum(sum, parts);
        if (threadIdx.x == 0) {
            a->dweights[i] = sum;
        }
    }
}

DSC_KERNEL_ACT(spread_rows, dsc_rows_args)
DSC_KERNEL_ACT(combine_rows, dsc_rows_args)
DSC_KERNEL_ACT(combine_rows_dw, dsc_rows_args)
