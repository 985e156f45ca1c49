/* SPDX-License-Identifier: Apache-2.0 */
/* cast, store and accumulate: a thread an element. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/row_args.h"

DSC_INLINE void cell_all(const dsc_cell_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float x = dsc_get(a->a, a->a_dtype, i);
        const float y = a->b != NULL ? x + dsc_get(a->b, a->b_dtype, i) : x;
        dsc_set(a->y, a->y_dtype, i, y);
    }
}

DSC_KERNEL(cell, dsc_cell_args, cell_all(a))
