/* SPDX-License-Identifier: Apache-2.0 */
/* The exact sum of base/exact_bins.h, for kernel sources: its operations one by one, so that the
 * bits are the processor's in any split of the work. */
#ifndef DSC_KERNEL_BINS_H
#define DSC_KERNEL_BINS_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/bin_layout.h"

/* 2^exponent, of a normal double. */
DSC_INLINE double dsc_power_of_two(int exponent)
{
    union {
        uint64_t bits;
        double value;
    } p;
    p.bits = (uint64_t)(exponent + 1023) << 52;
    return p.value;
}

DSC_INLINE void dsc_bins_carry(double bins[DSC_WIDE])
{
    for (int i = 0; i + 1 < DSC_BINS; ++i) {
        const double above = dsc_power_of_two(DSC_BIN_LEAST + DSC_BIN_STEP * (i + 1));
        const double moved = floor(bins[i] / above) * above;
        bins[i] -= moved;
        bins[i + 1] += moved;
    }
}

DSC_INLINE void dsc_bins_clear(double bins[DSC_WIDE])
{
    for (int i = 0; i < DSC_WIDE; ++i) {
        bins[i] = 0.0;
    }
}

/* Adds x². */
DSC_INLINE void dsc_bins_add(double bins[DSC_WIDE], float x)
{
    union {
        float value;
        uint32_t bits;
    } f;
    f.value = x;
    const int biased = (int)(f.bits >> 23 & 255);
    if (biased == 255) {
        bins[DSC_BINS] += fabs((double)x);
        return;
    }
    double rest = (double)x * (double)x;
    for (int i = (2 * (biased - 126) - DSC_BIN_LEAST) / DSC_BIN_STEP;
         i >= 0 && biased > 0 && rest != 0.0; --i) {
        const double magic = 1.5 * dsc_power_of_two(52 + DSC_BIN_LEAST + DSC_BIN_STEP * i);
        const double part = (rest + magic) - magic;
        bins[i] += part;
        rest -= part;
    }
}

/* Of bins, carried or not. */
DSC_INLINE double dsc_bins_total(double bins[DSC_WIDE])
{
    double sum = 0.0;
    dsc_bins_carry(bins);
    for (int i = 0; i < DSC_WIDE; ++i) {
        sum += bins[i];
    }
    return sum;
}

/* Carried bins of the block's threads, to those of thread 0, which alone has them. all: shared; a
 * barrier before it is used again. */
DSC_INLINE void dsc_bins_block(double bins[DSC_WIDE], double all[DSC_SUM_THREADS][DSC_WIDE])
{
    for (int i = 0; i < DSC_WIDE; ++i) {
        all[threadIdx.x][i] = bins[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t t = 1; t < blockDim.x; ++t) {
            for (int i = 0; i < DSC_WIDE; ++i) {
                bins[i] += all[t][i];
            }
            dsc_bins_carry(bins);
        }
    }
}

/* By thread 0. */
DSC_INLINE void dsc_bins_store(const double bins[DSC_WIDE], double *out)
{
    for (int i = 0; i < DSC_WIDE && threadIdx.x == 0; ++i) {
        out[i] = bins[i];
    }
}

/* Those of a thread: part t of n, or zeros. */
DSC_INLINE void dsc_bins_load(double bins[DSC_WIDE], const double *parts, int64_t n)
{
    for (int i = 0; i < DSC_WIDE; ++i) {
        bins[i] = threadIdx.x < n ? parts[(int64_t)threadIdx.x * DSC_WIDE + i] : 0.0;
    }
}

#endif
