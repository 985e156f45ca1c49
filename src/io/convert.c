/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion through fp32 (or fp64 where one side is), in blocks that stay in the cache. f64 to a
 * 16-bit type goes by way of f32 with rounding to odd, so that the result is rounded once. */
#include "io/convert.h"

#include "base/half.h"
#include <math.h>
#include <string.h>

enum { BLOCK = 1024 };

static bool is_real(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_F64 || dtype == DS_DTYPE_BF16 ||
           dtype == DS_DTYPE_F16;
}

bool dsi_can_convert(ds_dtype from, ds_dtype to)
{
    return from == to ? from != DS_DTYPE_NONE : is_real(from) && is_real(to);
}

/* Rounds toward zero and sets the last bit when inexact: a later rounding to 16 bits is right. */
static float f64_to_f32_odd(double x)
{
    float f = (float)x;
    if (isnan(x) || (double)f == x) {
        return f;
    }
    if (isinf(f)) { /* beyond fp32: infinite in 16 bits too */
        return f;
    }
    uint32_t bits = dsi_f32_bits(f);
    if (fabs((double)f) > fabs(x)) {
        bits -= 1;
    }
    return dsi_bits_f32(bits | 1u);
}

static void widen(ds_dtype from, const void *in, float *out, size_t n)
{
    uint16_t half[BLOCK];
    if (from == DS_DTYPE_F32) {
        memcpy(out, in, n * sizeof *out);
        return;
    }
    memcpy(half, in, n * sizeof *half);
    if (from == DS_DTYPE_BF16) {
        for (size_t i = 0; i < n; ++i) {
            out[i] = dsi_bf16_to_f32(half[i]);
        }
    } else {
        for (size_t i = 0; i < n; ++i) {
            out[i] = dsi_f16_to_f32(half[i]);
        }
    }
}

static size_t narrow(const float *in, ds_dtype to, void *out, size_t n)
{
    uint16_t half[BLOCK];
    size_t overflows = 0;
    if (to == DS_DTYPE_F32) {
        memcpy(out, in, n * sizeof *in);
        return 0;
    }
    const bool bf16 = to == DS_DTYPE_BF16;
    const uint16_t infinity = bf16 ? 0x7f80u : 0x7c00u;
    for (size_t i = 0; i < n; ++i) {
        half[i] = bf16 ? dsi_f32_to_bf16(in[i]) : dsi_f32_to_f16(in[i]);
        overflows += (half[i] & 0x7fffu) == infinity && (dsi_f32_bits(in[i]) << 1) != 0xff000000u;
    }
    memcpy(out, half, n * sizeof *half);
    return overflows;
}

static size_t from_f64(const void *in, ds_dtype to, void *out, size_t n)
{
    double wide[BLOCK];
    float value[BLOCK];
    size_t overflows = 0;
    memcpy(wide, in, n * sizeof *wide);
    for (size_t i = 0; i < n; ++i) {
        value[i] = to == DS_DTYPE_F32 ? (float)wide[i] : f64_to_f32_odd(wide[i]);
        overflows += isinf(value[i]) && !isinf(wide[i]);
    }
    return overflows + narrow(value, to, out, n);
}

static size_t convert_block(ds_dtype from, const void *in, ds_dtype to, void *out, size_t n)
{
    float value[BLOCK];
    double wide[BLOCK];
    if (from == DS_DTYPE_F64) {
        return from_f64(in, to, out, n);
    }
    widen(from, in, value, n);
    if (to != DS_DTYPE_F64) {
        return narrow(value, to, out, n);
    }
    for (size_t i = 0; i < n; ++i) {
        wide[i] = (double)value[i];
    }
    memcpy(out, wide, n * sizeof *wide);
    return 0;
}

size_t dsi_convert(ds_dtype from, const void *in, ds_dtype to, void *out, size_t n)
{
    const size_t size_in = ds_dtype_bytes(from);
    const size_t size_out = ds_dtype_bytes(to);
    if (from == to) {
        if (n > 0) {
            memcpy(out, in, n * size_in);
        }
        return 0;
    }
    size_t overflows = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = n - i < BLOCK ? n - i : BLOCK;
        overflows +=
            convert_block(from, (const char *)in + i * size_in, to, (char *)out + i * size_out, m);
    }
    return overflows;
}

size_t dsi_round(ds_dtype dtype, float *x, size_t n)
{
    enum { AT_ONCE = 512 };
    double rounded[AT_ONCE]; /* room for any of them */
    size_t overflows = 0;
    for (size_t at = 0; at < n && dtype != DS_DTYPE_F32; at += AT_ONCE) {
        const size_t k = n - at < AT_ONCE ? n - at : AT_ONCE;
        overflows += dsi_convert(DS_DTYPE_F32, x + at, dtype, rounded, k);
        (void)dsi_convert(dtype, rounded, DS_DTYPE_F32, x + at, k);
    }
    return overflows;
}
