/* SPDX-License-Identifier: Apache-2.0 */
/* The exact sum of squares of fp32 numbers, when the largest magnitude is not known beforehand.
 *
 * Bins with fixed units, 2^34 apart, that cover the squares of all normal fp32 numbers: every
 * square is cut at the units without a rest, so the sum is exact and no order or split of the work
 * changes it. Used by the kernels of sum_squares without `top`. docs/internals/optim.md.
 */
#ifndef DSI_BASE_EXACT_BINS_H
#define DSI_BASE_EXACT_BINS_H

#include <float.h>
#include <math.h>

enum {
    DSI_EXACT_BINS = 18,
    DSI_EXACT_WIDE = DSI_EXACT_BINS + 1, /* numbers: the bins, and what is not finite */
    DSI_EXACT_STEP = 34,                 /* log2 of a unit over the one below */
    DSI_EXACT_LEAST = -306,              /* log2 of the unit of bin 0 */
    DSI_EXACT_BLOCK = 1 << 18            /* elements that may be added between two carries */
};

/* at[i]: a multiple of unit i, from 0 to below unit i + 1 after a carry. at[DSI_EXACT_BINS]: 0, or
 * Inf or NaN when an element is. */
typedef struct dsi_exact_bins {
    double at[DSI_EXACT_WIDE];
} dsi_exact_bins;

static inline double dsi_exact_unit(int bin)
{
    return ldexp(1.0, DSI_EXACT_LEAST + DSI_EXACT_STEP * bin);
}

/* The bin whose unit is at least 2^-33 of squares of numbers below 2^exponent. */
static inline int dsi_exact_first_bin(int exponent)
{
    return (2 * exponent - DSI_EXACT_LEAST) / DSI_EXACT_STEP;
}

/* The bin whose unit divides squares of numbers of at least 2^(exponent - 1) with so many bits. */
static inline int dsi_exact_last_bin(int exponent, int bits)
{
    return (2 * (exponent - bits) - DSI_EXACT_LEAST) / DSI_EXACT_STEP;
}

static inline void dsi_exact_bins_carry(dsi_exact_bins *bins)
{
    double above = dsi_exact_unit(1);
    for (int i = 0; i + 1 < DSI_EXACT_BINS; ++i) {
        const double carry = floor(bins->at[i] / above) * above;
        bins->at[i] -= carry;
        bins->at[i + 1] += carry;
        above *= 0x1p34;
    }
}

/* Adds x²; subnormal numbers count as 0. A carry at least every DSI_EXACT_BLOCK elements. */
static inline void dsi_exact_bins_add(dsi_exact_bins *bins, float x)
{
    int exponent = 0;
    if (!isfinite(x)) {
        bins->at[DSI_EXACT_BINS] += fabs((double)x);
        return;
    }
    if (fabsf(x) < FLT_MIN) {
        return;
    }
    (void)frexp((double)x, &exponent);
    double rest = (double)x * (double)x;
    for (int i = dsi_exact_first_bin(exponent); i >= 0 && rest != 0.0; --i) {
        const double magic = 0x1.8p52 * dsi_exact_unit(i);
        const double part = (rest + magic) - magic;
        bins->at[i] += part;
        rest -= part;
    }
}

/* total += part; exact for 2^18 carried parts between two carries. */
static inline void dsi_exact_bins_join(dsi_exact_bins *total, const double *part)
{
    for (int i = 0; i < DSI_EXACT_WIDE; ++i) {
        total->at[i] += part[i];
    }
    dsi_exact_bins_carry(total);
}

/* Of carried bins: the sum, rounded the same way whatever made them; Inf or NaN where one is. */
static inline double dsi_exact_bins_total(const double *at)
{
    double total = 0.0;
    for (int i = 0; i < DSI_EXACT_WIDE; ++i) {
        total += at[i];
    }
    return total;
}

#endif
