/* SPDX-License-Identifier: Apache-2.0 */
/* See blocks_k.h. */
#include "base/blocks_k.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum { LARGE = DSI_BLOCK_LARGE, PARTS = 16, MOST_SCALE = 63 };

/* ---- reading --------------------------------------------------------------------------------- */

/* Six bits each of twelve bytes: those of parts 0 to 3 stand whole, those of 4 to 7 as four bits
 * behind and two above the first. */
static void six_bits(const uint8_t *sc, int p, int *scale_out, int *minimum_out)
{
    if (p < 4) {
        *scale_out = sc[p] & 63;
        *minimum_out = sc[p + 4] & 63;
    } else {
        *scale_out = (sc[p + 4] & 15) | sc[p - 4] >> 6 << 4;
        *minimum_out = sc[p + 4] >> 4 | sc[p] >> 6 << 4;
    }
}

void dsi_k_part(ds_dtype dtype, const uint8_t *block, int p, int *scale_out, int *minimum_out)
{
    if (dtype == DS_DTYPE_Q6_K) {
        *scale_out = (int8_t)block[192 + p];
        *minimum_out = 0;
    } else {
        six_bits(block + 4, p, scale_out, minimum_out);
    }
}

/* Where the low four bits of value i stand, and by how much they are shifted. */
static int low_at(ds_dtype dtype, int i, int *shift_out)
{
    if (dtype == DS_DTYPE_Q6_K) {
        *shift_out = 4 * (i % 128 / 64);
        return 64 * (i / 128) + i % 64;
    }
    *shift_out = 4 * (i / 32 & 1);
    return (dtype == DS_DTYPE_Q5_K ? 48 : 16) + 32 * (i / 64) + i % 32;
}

/* The same of the bits above. */
static int high_at(ds_dtype dtype, int i, int *shift_out)
{
    if (dtype == DS_DTYPE_Q6_K) {
        *shift_out = 2 * (i % 128 / 32);
        return 128 + 32 * (i / 128) + i % 32;
    }
    *shift_out = i / 32;
    return 16 + i % 32;
}

int dsi_k_value(ds_dtype dtype, const uint8_t *block, int i)
{
    int shift;
    const int at = low_at(dtype, i, &shift);
    const int low = block[at] >> shift & 15;
    if (dtype == DS_DTYPE_Q4_K) {
        return low;
    }
    const int above = high_at(dtype, i, &shift);
    return low | (block[above] >> shift & (dtype == DS_DTYPE_Q6_K ? 3 : 1)) << 4;
}

void dsi_k_values(ds_dtype dtype, const uint8_t *block, int first, uint8_t out[DSI_BLOCK])
{
    int shift;
    const uint8_t *low = block + low_at(dtype, first, &shift);
    for (int i = 0; i < DSI_BLOCK; ++i) { /* 32 stand side by side */
        out[i] = low[i] >> shift & 15;
    }
    if (dtype != DS_DTYPE_Q4_K) {
        const uint8_t *high = block + high_at(dtype, first, &shift);
        const int mask = dtype == DS_DTYPE_Q6_K ? 3 : 1;
        for (int i = 0; i < DSI_BLOCK; ++i) {
            out[i] |= (uint8_t)((high[i] >> shift & mask) << 4);
        }
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_value(ds_dtype dtype, uint8_t *block, int i, int q)
{
    int shift;
    const int at = low_at(dtype, i, &shift);
    block[at] = (uint8_t)(block[at] | (q & 15) << shift);
    if (dtype != DS_DTYPE_Q4_K) {
        const int above = high_at(dtype, i, &shift);
        block[above] = (uint8_t)(block[above] | q >> 4 << shift);
    }
}

static void put_part(ds_dtype dtype, uint8_t *block, int p, int scale, int minimum)
{
    uint8_t *sc = block + 4;
    if (dtype == DS_DTYPE_Q6_K) {
        block[192 + p] = (uint8_t)(int8_t)scale;
    } else if (p < 4) {
        sc[p] = (uint8_t)(sc[p] | scale);
        sc[p + 4] = (uint8_t)(sc[p + 4] | minimum);
    } else {
        sc[p + 4] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
        sc[p - 4] = (uint8_t)(sc[p - 4] | scale >> 4 << 6);
        sc[p] = (uint8_t)(sc[p] | minimum >> 4 << 6);
    }
}

/* Rounds to the half; returns what it stands for. */
static float put_half(uint8_t *at, float value)
{
    const uint16_t half = dsi_f32_to_f16(value);
    at[0] = (uint8_t)half;
    at[1] = (uint8_t)(half >> 8);
    return dsi_f16_to_f32(half);
}

/* To the nearest even; |x| below 2^22. */
static inline float nearest(float x)
{
    return x + 12582912.0f - 12582912.0f;
}

static inline float between(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

/* Values of a part, and the whole numbers that they may become. */
typedef struct part {
    const float *x;
    int n;
    float lowest, highest; /* of q */
    bool has_minimum;
} part;

static inline float rounded(const part *p, int i, float inverse, float minimum)
{
    return between(nearest(between((p->x[i] - minimum) * inverse, -64.0f, 64.0f)), p->lowest,
                   p->highest);
}

/* The squares of what is lost with this scale and minimum. */
static float lost(const part *p, float scale, float minimum)
{
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    float sum = 0.0f;
    for (int i = 0; i < p->n; ++i) {
        const float off = scale * rounded(p, i, inverse, minimum) + minimum - p->x[i];
        sum += off * off;
    }
    return sum;
}

/* Scale and minimum (not above 0) of least squares for the q of these. */
static void fit(const part *p, float *scale, float *minimum)
{
    const float inverse = *scale != 0.0f ? 1.0f / *scale : 0.0f;
    float q1 = 0.0f;
    float q2 = 0.0f;
    float x1 = 0.0f;
    float qx = 0.0f;
    for (int i = 0; i < p->n; ++i) {
        const float q = rounded(p, i, inverse, *minimum);
        q1 += q;
        q2 += q * q;
        x1 += p->x[i];
        qx += q * p->x[i];
    }
    const float n = (float)p->n;
    const float all = n * q2 - q1 * q1;
    if (p->has_minimum && all > 0.0f && q2 * x1 - q1 * qx < 0.0f) {
        *scale = (n * qx - q1 * x1) / all;
        *minimum = (q2 * x1 - q1 * qx) / all;
    } else {
        *scale = q2 > 0.0f ? qx / q2 : 0.0f;
        *minimum = 0.0f;
    }
}

static void search(const part *p, float *scale_out, float *minimum_out)
{
    float low = 0.0f;
    float high = 0.0f;
    for (int i = 0; i < p->n; ++i) {
        low = p->x[i] < low ? p->x[i] : low;
        high = p->x[i] > high ? p->x[i] : high;
    }
    /* without a minimum the largest magnitude becomes the lowest number */
    const float range = p->has_minimum ? high - low : high > -low ? -high : -low;
    const float steps = p->has_minimum ? p->highest : -p->lowest;
    float best = INFINITY;
    *scale_out = *minimum_out = 0.0f;
    for (int i = -10; i <= 10 && range != 0.0f; ++i) {
        float scale = range / (steps + 0.1f * (float)i);
        float minimum = p->has_minimum ? low : 0.0f;
        fit(p, &scale, &minimum);
        const float now = lost(p, scale, minimum);
        if (now < best) {
            best = now;
            *scale_out = scale;
            *minimum_out = minimum;
        }
    }
}

/* The best of the whole numbers around scale/d and -minimum/dmin. */
static void round_part(const part *p, float d, float dmin, float scale, float minimum, int *sc,
                       int *mn)
{
    const float least = p->has_minimum ? 0.0f : -128.0f;
    const float most = p->has_minimum ? (float)MOST_SCALE : 127.0f;
    const float s = d != 0.0f ? nearest(between(scale / d, -200.0f, 200.0f)) : 0.0f;
    const float m = dmin != 0.0f ? nearest(between(-minimum / dmin, 0.0f, 100.0f)) : 0.0f;
    const int reach = p->has_minimum && dmin != 0.0f ? 1 : 0;
    float best = INFINITY;
    *sc = *mn = 0;
    for (int i = -1; i <= 1; ++i) {
        for (int j = -reach; j <= reach; ++j) {
            const float a = between(s + (float)i, least, most);
            const float b = between(m + (float)j, 0.0f, (float)MOST_SCALE);
            const float now = lost(p, d * a, -(dmin * b));
            if (now < best) {
                best = now;
                *sc = (int)a;
                *mn = (int)b;
            }
        }
    }
}

/* Scales and minima of all parts; false: there is none, for a value is not finite. */
static bool search_all(ds_dtype dtype, const float *x, part *parts, float *scale, float *minimum)
{
    const bool six = dtype == DS_DTYPE_Q6_K;
    const int n = six ? LARGE / 16 : LARGE / 32;
    for (int i = 0; i < LARGE; ++i) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    for (int p = 0; p < n; ++p) {
        parts[p] = (part){.x = x + p * (LARGE / n),
                          .n = LARGE / n,
                          .lowest = six ? -32.0f : 0.0f,
                          .highest = dtype == DS_DTYPE_Q4_K ? 15.0f : 31.0f,
                          .has_minimum = !six};
        search(&parts[p], &scale[p], &minimum[p]);
    }
    return true;
}

void dsi_k_quantize(ds_dtype dtype, const float *x, uint8_t *block)
{
    const bool six = dtype == DS_DTYPE_Q6_K;
    const int n = six ? LARGE / 16 : LARGE / 32;
    part parts[PARTS];
    float scale[PARTS];
    float minimum[PARTS];
    float top = 0.0f;
    float bottom = 0.0f;
    memset(block, 0, (size_t)dsi_block_bytes(dtype));
    if (!search_all(dtype, x, parts, scale, minimum)) {
        (void)put_half(block + dsi_k_front_at(dtype), NAN);
        return;
    }
    for (int p = 0; p < n; ++p) {
        top = fabsf(scale[p]) > fabsf(top) ? scale[p] : top;
        bottom = minimum[p] < bottom ? minimum[p] : bottom;
    }
    uint8_t *front = block + dsi_k_front_at(dtype);
    const float d = put_half(front, six ? top / -128.0f : top / (float)MOST_SCALE);
    const float dmin = six ? 0.0f : put_half(front + 2, -bottom / (float)MOST_SCALE);
    for (int p = 0; p < n && isfinite(d) && isfinite(dmin); ++p) {
        int sc;
        int mn;
        round_part(&parts[p], d, dmin, scale[p], minimum[p], &sc, &mn);
        put_part(dtype, block, p, sc, mn);
        const float step = d * (float)sc;
        for (int i = 0; i < LARGE / n; ++i) {
            const float q =
                rounded(&parts[p], i, step != 0.0f ? 1.0f / step : 0.0f, -(dmin * (float)mn));
            put_value(dtype, block, p * (LARGE / n) + i, (int)q + dsi_block_offset(dtype));
        }
    }
}
