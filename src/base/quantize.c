/* SPDX-License-Identifier: Apache-2.0 */
/* See quantize.h. Plain loops that the compiler turns into vector code; every element and every
 * lane is one stated sequence of IEEE operations. */
#include "base/quantize.h"

#include <math.h>
#include <string.h>

enum { LANES = 8, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

dsi_quant_part dsi_quant_nothing(void)
{
    return (dsi_quant_part){.low = INFINITY, .high = -INFINITY};
}

static double add_lanes(const double lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static float smaller(float a, float b)
{
    return a < b ? a : b;
}

static float larger(float a, float b)
{
    return a > b ? a : b;
}

dsi_quant_part dsi_quant_measure(const float *x, size_t n)
{
    double sum[LANES] = {0};
    float low[LANES], high[LANES];
    dsi_quant_part part = dsi_quant_nothing();
    size_t i = 0;
    for (size_t l = 0; l < LANES; ++l) {
        low[l] = INFINITY;
        high[l] = -INFINITY;
    }
    for (; i + LANES <= n; i += LANES) {
        for (size_t l = 0; l < LANES; ++l) {
            low[l] = smaller(x[i + l], low[l]);
            high[l] = larger(x[i + l], high[l]);
            sum[l] += (double)fabsf(x[i + l]);
        }
    }
    for (size_t l = 0; i < n; ++i, ++l) {
        low[l] = smaller(x[i], low[l]);
        high[l] = larger(x[i], high[l]);
        sum[l] += (double)fabsf(x[i]);
    }
    for (size_t l = 0; l < LANES; ++l) {
        part.low = smaller(low[l], part.low);
        part.high = larger(high[l], part.high);
    }
    part.sum = add_lanes(sum);
    return part;
}

dsi_quant_part dsi_quant_measure_kept(const float *x, size_t n, float threshold)
{
    double sum[LANES] = {0}, count[LANES] = {0};
    dsi_quant_part part = dsi_quant_nothing();
    for (size_t i = 0; i < n; ++i) {
        const float a = fabsf(x[i]);
        sum[i % LANES] += a > threshold ? (double)a : 0.0;
        count[i % LANES] += a > threshold ? 1.0 : 0.0;
    }
    part.kept = add_lanes(sum);
    part.n_kept = add_lanes(count);
    return part;
}

void dsi_quant_join(dsi_quant_part *part, const dsi_quant_part *next)
{
    part->low = smaller(next->low, part->low);
    part->high = larger(next->high, part->high);
    part->sum += next->sum;
    part->kept += next->kept;
    part->n_kept += next->n_kept;
}

static float mean(const dsi_quant_part *part, size_t n)
{
    return n > 0 ? (float)(part->sum / (double)n) : 0.0f;
}

dsi_quant_scale dsi_quant_scale_of(const dsi_quant_part *part, size_t n, int bits, bool asymmetric)
{
    dsi_quant_scale s = {.bits = bits};
    if (bits == 1) {
        s.level = mean(part, n);
    } else if (bits == 2) {
        s.threshold = 0.7f * mean(part, n);
        s.level = part->n_kept > 0.0 ? (float)(part->kept / part->n_kept) : 0.0f;
    } else {
        const float levels = ldexpf(1.0f, bits);
        const float top = larger(fabsf(part->low), fabsf(part->high));
        s.step = (asymmetric ? part->high - part->low : 2.0f * top) / levels;
        s.zero = asymmetric && s.step > 0.0f ? rintf(part->low / s.step) * s.step : 0.0f;
        s.low = asymmetric ? 0.0f : -levels * 0.5f;
        s.high = s.low + levels - 1.0f;
    }
    return s;
}

/* To the nearest whole number, ties to even, for magnitudes below 2^22. */
static float to_whole(float x)
{
    const float shift = 0x1.8p23f;
    return (x + shift) - shift;
}

/* Indices are cut off at the grid's ends before they are rounded: the ends are whole numbers, so
 * that is the same as behind it. */
static float on_grid(const dsi_quant_scale *s, float x, float noise)
{
    float index = (x - s->zero) / s->step + noise;
    index = index < s->low ? s->low : index;
    index = index > s->high ? s->high : index;
    return to_whole(index) * s->step + s->zero;
}

static void apply_grid(const dsi_quant_scale *scale, const float *x, const float *noise, float *out,
                       size_t n)
{
    const dsi_quant_scale s = *scale;
    if (noise != NULL) {
        for (size_t i = 0; i < n; ++i) {
            out[i] = on_grid(&s, x[i], noise[i]);
        }
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        out[i] = on_grid(&s, x[i], 0.0f);
    }
}

void dsi_quant_apply(const dsi_quant_scale *scale, const float *x, const float *noise, float *out,
                     size_t n)
{
    if (scale->bits > 2 && scale->step > 0.0f) {
        apply_grid(scale, x, noise, out, n);
    } else if (scale->bits > 2) { /* all alike, or not numbers */
        memmove(out, x, n * sizeof *x);
    } else {
        const float threshold = scale->bits == 2 ? scale->threshold : 0.0f;
        for (size_t i = 0; i < n; ++i) {
            const float up = x[i] > threshold ? scale->level : 0.0f;
            const float down = x[i] < -threshold ? scale->level : 0.0f;
            out[i] = isnan(x[i]) ? x[i] : up - down;
        }
    }
}

size_t dsi_top_count(double ratio, size_t n)
{
    const double count = ceil(ratio * (double)n);
    return count < (double)n ? (size_t)count : n;
}

/* A number that grows with x. */
static uint32_t key_of(float x)
{
    uint32_t bits;
    const float y = x + 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &y, sizeof bits);
    if (isnan(x)) {
        return UINT32_MAX;
    }
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The key of the count-th largest (from 1), digit by digit from the top; *equal_out: how many of
 * those with that key belong to the count. */
static uint32_t key_of_last(const float *x, size_t n, size_t count, size_t *equal_out)
{
    uint32_t key = 0, known = 0;
    for (int shift = 32 - DIGIT_BITS; known != UINT32_MAX; shift -= DIGIT_BITS) {
        const int low = shift > 0 ? shift : 0;
        const uint32_t mask = (uint32_t)(DIGITS - 1) >> (low - shift);
        size_t counts[DIGITS] = {0};
        uint32_t digit = mask;
        for (size_t i = 0; i < n; ++i) {
            const uint32_t k = key_of(x[i]);
            counts[k >> low & mask] += (k & known) == key;
        }
        while (counts[digit] < count) {
            count -= counts[digit--];
        }
        key |= digit << low;
        known |= mask << low;
    }
    *equal_out = count;
    return key;
}

void dsi_top_mask(const float *x, size_t n, size_t count, unsigned char *mask)
{
    size_t equal = 0;
    if (count == 0 || count >= n) {
        memset(mask, count == 0 ? 0 : 1, n);
        return;
    }
    const uint32_t last = key_of_last(x, n, count, &equal);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t key = key_of(x[i]);
        const bool is_equal = key == last;
        mask[i] = key > last || (is_equal && equal > 0);
        equal -= is_equal && equal > 0;
    }
}
