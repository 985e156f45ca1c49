/* SPDX-License-Identifier: Apache-2.0 */
/* base/exact_sum.h on vectors, and the largest magnitude of vectors. */
#ifndef DSI_ACCEL_CPU_SIMD_EXACT_H
#define DSI_ACCEL_CPU_SIMD_EXACT_H

#include "accel/cpu/simd/simd_kernel.h"
#include "base/exact_bins.h"
#include "base/exact_sum.h"

/* Magnitudes are compared as integers: NaN above infinity above finite, so both come through. */
DSI_INLINE vi abs_bits_max(vi top, vf x)
{
    return vi_max(top, vi_and(vf_bits(x), vi_set(0x7fffffff)));
}

DSI_INLINE float abs_bits_top(vi top)
{
    int32_t lanes[VF_WIDTH];
    int32_t most = 0;
    vi_store(lanes, top);
    for (int i = 0; i < VF_WIDTH; ++i) {
        most = lanes[i] > most ? lanes[i] : most;
    }
    float value;
    most = most > 0x7f800000 ? 0x7fc00000 : most < 0x00800000 ? 0 : most; /* subnormals are 0 */
    memcpy(&value, &most, sizeof value);
    return value;
}

/* The larger of two results of abs_bits_top; NaN when either is. */
static inline float larger_magnitude(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* Accumulators of at most DSI_EXACT_RUN elements in all. */
typedef struct exact_sums {
    vd high[2], low[2];
} exact_sums;

DSI_INLINE exact_sums exact_sums_zero(void)
{
    const vd zero = vd_set(0.0);
    return (exact_sums){{zero, zero}, {zero, zero}};
}

DSI_INLINE void exact_sums_half(const dsi_exact_grid *grid, vd x, vd *high, vd *low)
{
    const vd coarse = vd_set(grid->coarse);
    const vd fine = vd_set(grid->fine);
    const vd square = vd_mul(x, x);
    const vd h = vd_sub(vd_add(square, coarse), coarse);
    *high = vd_add(*high, h);
    *low = vd_add(*low, vd_sub(vd_add(vd_sub(square, h), fine), fine));
}

DSI_INLINE void exact_sums_add(const dsi_exact_grid *grid, vf x, exact_sums *sums)
{
    exact_sums_half(grid, vd_low(x), &sums->high[0], &sums->low[0]);
    exact_sums_half(grid, vd_high(x), &sums->high[1], &sums->low[1]);
}

/* parts += sums, carried. */
DSI_INLINE void exact_sums_close(const dsi_exact_grid *grid, const exact_sums *sums,
                                 dsi_exact_parts *parts)
{
    parts->high += vd_sum(vd_add(sums->high[0], sums->high[1]));
    parts->low += vd_sum(vd_add(sums->low[0], sums->low[1]));
    dsi_exact_carry(grid, parts);
}

static inline dsi_exact_parts exact_total(const dsi_exact_grid *grid, const dsi_exact_parts *parts,
                                          size_t n)
{
    dsi_exact_parts total = {0.0, 0.0};
    for (size_t c = 0; c < n; ++c) {
        total.high += parts[c].high;
        total.low += parts[c].low;
        dsi_exact_carry(grid, &total);
    }
    return total;
}

/* ---- bins ---- */

/* Magnitudes of normal numbers so far: the largest, and 0x7fffffff less the smallest. */
typedef struct exact_span {
    vi top, under;
} exact_span;

DSI_INLINE void exact_span_add(exact_span *span, vf x)
{
    const vi m = vi_and(vf_bits(x), vi_set(0x7fffffff));
    const vi under = vi_xor(m, vi_set(0x7fffffff));
    span->top = vi_max(span->top, m);
    span->under = vi_max(span->under, vi_select(vi_gt(m, vi_set(0x007fffff)), under, vi_set(0)));
}

/* e of a normal magnitude 2^(e-1) <= m < 2^e, as frexp says. */
static inline int exact_exponent(int32_t magnitude)
{
    return (magnitude >> 23) - 126;
}

static inline int32_t exact_most(vi lanes)
{
    int32_t item[VF_WIDTH];
    int32_t most = 0;
    vi_store(item, lanes);
    for (int i = 0; i < VF_WIDTH; ++i) {
        most = item[i] > most ? item[i] : most;
    }
    return most;
}

/* Squares of half a vector, cut at n units. */
DSI_INLINE void exact_cut(const double *magic, vd x, int n, vd *sums)
{
    vd rest = vd_mul(x, x);
    for (int k = 0; k < n; ++k) {
        const vd m = vd_set(magic[k]);
        const vd part = vd_sub(vd_add(rest, m), m);
        sums[k] = vd_add(sums[k], part);
        rest = vd_sub(rest, part);
    }
}

enum { EXACT_BIN_BLOCK = 4096 };

DSI_INLINE vf bins_get(const void *x, size_t i, size_t end, ds_dtype type)
{
    return end - i >= VF_WIDTH ? vf_get(x, type, i) : vf_get_n(x, type, i, end - i);
}

/* Adds the squares of [begin,end) to bins first, first - 1, …: n of them. */
DSI_INLINE void bins_add(const void *x, size_t begin, size_t end, int first, int n, ds_dtype type,
                         dsi_exact_bins *bins)
{
    double magic[DSI_EXACT_BINS];
    vd sums[DSI_EXACT_BINS];
    for (int k = 0; k < n; ++k) {
        magic[k] = 0x1.8p52 * dsi_exact_unit(first - k);
        sums[k] = vd_set(0.0);
    }
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const vf item = bins_get(x, i, end, type);
        exact_cut(magic, vd_low(item), n, sums);
        exact_cut(magic, vd_high(item), n, sums);
    }
    for (int k = 0; k < n; ++k) {
        bins->at[first - k] += vd_sum(sums[k]);
    }
}

/* Adds the squares of at most EXACT_BIN_BLOCK elements, carried. */
DSI_INLINE void exact_bins_block(const void *x, size_t begin, size_t end, ds_dtype type,
                                 dsi_exact_bins *bins)
{
    const int bits = type == DS_DTYPE_F32 ? 24 : type == DS_DTYPE_F16 ? 11 : 8;
    exact_span span = {vi_set(0), vi_set(0)};
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        vf_fetch(x, type, i + EXACT_BIN_BLOCK);
        exact_span_add(&span, bins_get(x, i, end, type));
    }
    const int32_t top = exact_most(span.top);
    if (top >= 0x7f800000) {
        bins->at[DSI_EXACT_BINS] += top > 0x7f800000 ? (double)NAN : (double)INFINITY;
        return; /* the sum is not asked for then */
    }
    if (top < 0x00800000) {
        return;
    }
    const int first = dsi_exact_first_bin(exact_exponent(top));
    const int32_t least = exact_most(span.under) ^ 0x7fffffff;
    const int n = first - dsi_exact_last_bin(exact_exponent(least), bits) + 1;
    if (n <= 3 && first >= 2) {
        bins_add(x, begin, end, first, 3, type, bins);
    } else if (n == 4) {
        bins_add(x, begin, end, first, 4, type, bins);
    } else {
        bins_add(x, begin, end, first, n, type, bins);
    }
    dsi_exact_bins_carry(bins);
}

#endif
