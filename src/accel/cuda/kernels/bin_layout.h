/* SPDX-License-Identifier: Apache-2.0 */
/* The bins of base/exact_bins.h, which cuda_gradnorm.c compares, and how kernels share the work of
 * a sum in them: a block's threads, and most blocks of one sum. */
#ifndef DSC_BIN_LAYOUT_H
#define DSC_BIN_LAYOUT_H

enum {
    DSC_BINS = 18,
    DSC_WIDE = DSC_BINS + 1,
    DSC_BIN_STEP = 34,
    DSC_BIN_LEAST = -306,
    DSC_BIN_BLOCK = 1 << 18,
    DSC_SUM_THREADS = 128,
    DSC_SUM_BLOCKS = 64
};

#endif
