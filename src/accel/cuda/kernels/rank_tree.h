/* SPDX-License-Identifier: Apache-2.0 */
/* The aligned binary tree over ranks of comm/comm_reduce.c, ((0+1)+(2+3))+…: for what tree_sum.cu
 * and collective_blocks.cu add. Partial sums of aligned blocks of ranks, the largest first; as a
 * counter carries. */
#ifndef DSC_RANK_TREE_H
#define DSC_RANK_TREE_H

#include "accel/cuda/cuda_device.h"

/* Adds that of rank r; *n: partial sums, 0 before the first rank. */
DSC_INLINE void dsc_tree_add(float *parts, uint32_t *n, uint32_t r, float value)
{
    for (uint32_t bits = r; (bits & 1u) != 0; bits >>= 1) {
        value = parts[--*n] + value;
    }
    parts[(*n)++] = value;
}

DSC_INLINE float dsc_tree_total(const float *parts, uint32_t n)
{
    float sum = parts[--n];
    while (n > 0) {
        sum = parts[--n] + sum;
    }
    return sum;
}

#endif
