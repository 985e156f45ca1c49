/* SPDX-License-Identifier: Apache-2.0 */
/* The glue's lists, and which kernel a step gets. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/bin_layout.h"

#include <string.h>

static const ds_kernel *const *const lists[] = {
#define X(name) dsc_##name##_kernels,
    DSC_GLUE_LIST(X)
#undef X
};

static bool fits(const ds_kernel *kernel, const ds_kernel_sig *sig)
{
    return strcmp(kernel->op, sig->op->name) == 0 && kernel->supports(sig);
}

const ds_kernel *dsc_kernel_at(const ds_kernel_sig *sig, uint32_t index)
{
    for (uint32_t l = 0; l < sizeof lists / sizeof lists[0]; ++l) {
        for (uint32_t i = 0; lists[l][i] != NULL; ++i) {
            if (fits(lists[l][i], sig) && index-- == 0) {
                return lists[l][i];
            }
        }
    }
    return NULL;
}

dsc_shape dsc_over_items(int64_t n)
{
    return dsc_block_an_item((n + DSC_BLOCK - 1) / DSC_BLOCK, n);
}

dsc_shape dsc_block_an_item(int64_t n, int64_t width)
{
    const int64_t blocks = n < 1 ? 1 : n < DSC_MOST_BLOCKS ? n : DSC_MOST_BLOCKS;
    const int64_t warps = width < 1 ? 1 : width < DSC_BLOCK ? (width + 31) / 32 : DSC_BLOCK / 32;
    return (dsc_shape){{(uint32_t)blocks, 1, 1}, {(uint32_t)warps * 32, 1, 1}};
}

dsc_shape dsc_sum_blocks(int64_t n)
{
    const int64_t blocks = (n + DSC_SUM_THREADS - 1) / DSC_SUM_THREADS;
    const int64_t some = blocks < 1 ? 1 : blocks < DSC_SUM_BLOCKS ? blocks : DSC_SUM_BLOCKS;
    return (dsc_shape){{(uint32_t)some, 1, 1}, {DSC_SUM_THREADS, 1, 1}};
}

bool dsc_is_act(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16;
}

dsc_fn dsc_of_dtype(dsc_fn first, ds_dtype dtype)
{
    return first + (dtype == DS_DTYPE_BF16 ? 1 : dtype == DS_DTYPE_F16 ? 2 : 0);
}
