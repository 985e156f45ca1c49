/* base/exact_sum.h on vectors, and the largest magnitude of vectors. */
#ifndef DSI_ACCEL_CPU_SIMD_EXACT_H
#define DSI_ACCEL_CPU_SIMD_EXACT_H

#include "accel/cpu/simd/simd_kernel.h"
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

#endif
