/* SPDX-License-Identifier: Apache-2.0 */
/* The element types of GGUF: sizes of blocks, and their values. Sources: ggml's type table and the
 * dequantization of PyPI's `gguf`, with which every type is compared bit for bit (test_gguf).
 * Fields are little-endian; lo and hi are the halves of a byte.
 */
#include "base/blocks_k.h"
#include "base/half.h"
#include "io/gguf.h"

#include <string.h>

enum { SMALL = 32, LARGE = 256 };

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float half_at(const uint8_t *p)
{
    return dsi_f16_to_f32(u16_at(p));
}

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- whole numbers --------------------------------------------------------------------------- */

static void read_f32(const uint8_t *b, size_t n, float *out)
{
    memcpy(out, b, n * sizeof *out);
}

static void read_f16(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; ++i) {
        out[i] = half_at(b + 2 * i);
    }
}

static void read_bf16(const uint8_t *b, size_t n, float *out)
{
    for (size_t i = 0; i < n; ++i) {
        out[i] = dsi_bf16_to_f32(u16_at(b + 2 * i));
    }
}

/* ---- blocks of 32: a scale, and perhaps an offset -------------------------------------------- */

/* Element i of nibbles whose low halves are the first 16 elements. */
static int nibble(const uint8_t *qs, int i)
{
    return i < SMALL / 2 ? qs[i] & 15 : qs[i - SMALL / 2] >> 4;
}

static void read_q4_0(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 18) {
        const float d = half_at(b);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)(nibble(b + 2, i) - 8);
        }
    }
}

static void read_q4_1(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 20) {
        const float d = half_at(b);
        const float m = half_at(b + 2);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)nibble(b + 4, i) + m;
        }
    }
}

static int five_bits(const uint8_t *qs, uint32_t high, int i)
{
    return nibble(qs, i) | (int)(high >> i & 1u) << 4;
}

static void read_q5_0(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 22) {
        const float d = half_at(b);
        const uint32_t high = u32_at(b + 2);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)(five_bits(b + 6, high, i) - 16);
        }
    }
}

static void read_q5_1(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 24) {
        const float d = half_at(b);
        const float m = half_at(b + 2);
        const uint32_t high = u32_at(b + 4);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)five_bits(b + 8, high, i) + m;
        }
    }
}

static void read_q8_0(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 34) {
        const float d = half_at(b);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)(int8_t)b[2 + i];
        }
    }
}

/* ---- blocks of 256: scales of sub-blocks, themselves scaled ---------------------------------- */

static int two_bits(const uint8_t *qs, int i)
{
    return qs[SMALL * (i / 128) + i % SMALL] >> 2 * (i % 128 / SMALL) & 3;
}

static void read_q2_k(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 84) {
        const float d = half_at(b + 80);
        const float dmin = half_at(b + 82);
        for (int i = 0; i < LARGE; ++i) {
            const int s = b[i / 16];
            const float scale = d * (float)(s & 15);
            const float offset = dmin * (float)(s >> 4);
            *out++ = scale * (float)two_bits(b + 16, i) - offset;
        }
    }
}

static void read_q3_k(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 110) {
        const uint8_t *sc = b + 96;
        const float d = half_at(b + 108);
        for (int i = 0; i < LARGE; ++i) {
            const int k = i / 16;
            const int s = (sc[k % 8] >> 4 * (k / 8) & 15) | (sc[8 + k % 4] >> 2 * (k / 4) & 3) << 4;
            const int has_high = b[i % SMALL] >> i / SMALL & 1;
            const int q = two_bits(b + 32, i) - (has_high ? 0 : 4);
            *out++ = d * (float)(s - 32) * (float)q;
        }
    }
}

/* d·scale·q - dmin·minimum; Q6_K has no minimum. */
static void read_k(ds_dtype dtype, const uint8_t *b, size_t n, float *out)
{
    const int part = SMALL / dsi_block_parts(dtype);
    const int offset = dsi_block_offset(dtype);
    for (; n > 0; --n, b += dsi_block_bytes(dtype), out += LARGE) {
        const float d = half_at(b + dsi_k_front_at(dtype));
        const float dmin = dtype == DS_DTYPE_Q6_K ? 0.0f : half_at(b + 2);
        for (int i = 0; i < LARGE; ++i) {
            int scale;
            int minimum;
            dsi_k_part(dtype, b, i / part, &scale, &minimum);
            out[i] = d * (float)scale * (float)(dsi_k_value(dtype, b, i) - offset);
            out[i] = dtype == DS_DTYPE_Q6_K ? out[i] : out[i] - dmin * (float)minimum;
        }
    }
}

static void read_q4_k(const uint8_t *b, size_t n, float *out)
{
    read_k(DS_DTYPE_Q4_K, b, n, out);
}

static void read_q5_k(const uint8_t *b, size_t n, float *out)
{
    read_k(DS_DTYPE_Q5_K, b, n, out);
}

static void read_q6_k(const uint8_t *b, size_t n, float *out)
{
    read_k(DS_DTYPE_Q6_K, b, n, out);
}

/* ---- tables of values ------------------------------------------------------------------------ */

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void read_iq4_nl(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 18) {
        const float d = half_at(b);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)iq4_values[nibble(b + 2, i)];
        }
    }
}

static void read_iq4_xs(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 136) {
        const float d = half_at(b);
        const unsigned high = u16_at(b + 2);
        for (int i = 0; i < LARGE; ++i) {
            const int k = i / SMALL;
            const int low = b[4 + k / 2] >> 4 * (k & 1) & 15;
            const int s = (low | (int)(high >> 2 * k & 3u) << 4) - 32;
            *out++ = d * (float)s * (float)iq4_values[nibble(b + 8 + 16 * k, i % SMALL)];
        }
    }
}

/* Twice the values of E2M1: the scale is halved for that. */
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void read_mxfp4(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 17) {
        const uint32_t e = b[0];
        const float d = float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        for (int i = 0; i < SMALL; ++i) {
            *out++ = d * (float)e2m1_values[nibble(b + 1, i)];
        }
    }
}

/* Half of an unsigned E4M3: the table holds doubles. */
static float half_ue4m3(uint8_t byte)
{
    const int exponent = byte >> 3 & 15;
    const float fraction = (float)(byte & 7);
    if (byte == 0x7f) {
        return 0.0f;
    }
    return exponent == 0
               ? fraction * 0x1p-10f
               : (1.0f + fraction / 8.0f) * float_of_bits((uint32_t)(exponent - 8 + 127) << 23);
}

static void read_nvfp4(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 36) {
        for (int i = 0; i < 64; ++i) {
            const uint8_t byte = b[4 + 8 * (i / 16) + i % 8];
            *out++ = half_ue4m3(b[i / 16]) * (float)e2m1_values[i % 16 < 8 ? byte & 15 : byte >> 4];
        }
    }
}

/* ---- three values a digit -------------------------------------------------------------------- */

/* Digit k of a byte that holds five numbers to base three as a fraction. */
static int digit(uint8_t byte, int k)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t shifted = (uint8_t)(byte * power[k]);
    return (shifted * 3 >> 8) - 1;
}

static void read_tq1_0(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 54) {
        const float d = half_at(b + 52);
        for (int i = 0; i < 160; ++i) {
            *out++ = d * (float)digit(b[i % 32], i / 32);
        }
        for (int i = 0; i < 80; ++i) {
            *out++ = d * (float)digit(b[32 + i % 16], i / 16);
        }
        for (int i = 0; i < 16; ++i) {
            *out++ = d * (float)digit(b[48 + i % 4], i / 4);
        }
    }
}

static void read_tq2_0(const uint8_t *b, size_t n, float *out)
{
    for (; n > 0; --n, b += 66) {
        const float d = half_at(b + 64);
        for (int i = 0; i < LARGE; ++i) {
            *out++ = d * (float)(two_bits(b, i) - 1);
        }
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static const dsi_gguf_type types[] = {
    {0, "F32", 1, 4, read_f32},
    {1, "F16", 1, 2, read_f16},
    {2, "Q4_0", 32, 18, read_q4_0},
    {3, "Q4_1", 32, 20, read_q4_1},
    {6, "Q5_0", 32, 22, read_q5_0},
    {7, "Q5_1", 32, 24, read_q5_1},
    {8, "Q8_0", 32, 34, read_q8_0},
    {9, "Q8_1", 32, 36, NULL},
    {10, "Q2_K", 256, 84, read_q2_k},
    {11, "Q3_K", 256, 110, read_q3_k},
    {12, "Q4_K", 256, 144, read_q4_k},
    {13, "Q5_K", 256, 176, read_q5_k},
    {14, "Q6_K", 256, 210, read_q6_k},
    {15, "Q8_K", 256, 292, NULL},
    {16, "IQ2_XXS", 256, 66, NULL},
    {17, "IQ2_XS", 256, 74, NULL},
    {18, "IQ3_XXS", 256, 98, NULL},
    {19, "IQ1_S", 256, 50, NULL},
    {20, "IQ4_NL", 32, 18, read_iq4_nl},
    {21, "IQ3_S", 256, 110, NULL},
    {22, "IQ2_S", 256, 82, NULL},
    {23, "IQ4_XS", 256, 136, read_iq4_xs},
    {24, "I8", 1, 1, NULL},
    {25, "I16", 1, 2, NULL},
    {26, "I32", 1, 4, NULL},
    {27, "I64", 1, 8, NULL},
    {28, "F64", 1, 8, NULL},
    {29, "IQ1_M", 256, 56, NULL},
    {30, "BF16", 1, 2, read_bf16},
    {34, "TQ1_0", 256, 54, read_tq1_0},
    {35, "TQ2_0", 256, 66, read_tq2_0},
    {39, "MXFP4", 32, 17, read_mxfp4},
    {40, "NVFP4", 64, 36, read_nvfp4},
    {41, "Q1_0", 128, 18, NULL},
};

enum { N_TYPES = sizeof types / sizeof types[0] };

const dsi_gguf_type *dsi_gguf_type_find(uint32_t id)
{
    for (size_t i = 0; i < N_TYPES; ++i) {
        if (types[i].id == id) {
            return &types[i];
        }
    }
    return NULL;
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

static const struct {
    ds_dtype dtype;
    uint32_t type;
} dtypes[] = {
    {DS_DTYPE_F32, 0},   {DS_DTYPE_F16, 1},   {DS_DTYPE_BF16, 30}, {DS_DTYPE_Q4_0, 2},
    {DS_DTYPE_Q4_1, 3},  {DS_DTYPE_Q5_0, 6},  {DS_DTYPE_Q5_1, 7},  {DS_DTYPE_Q8_0, 8},
    {DS_DTYPE_Q4_K, 12}, {DS_DTYPE_Q5_K, 13}, {DS_DTYPE_Q6_K, 14},
};

uint32_t dsi_gguf_type_of(ds_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].type;
        }
    }
    return UINT32_MAX;
}

ds_dtype dsi_gguf_dtype_of(uint32_t type)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        if (dtypes[i].type == type) {
            return dtypes[i].dtype;
        }
    }
    return DS_DTYPE_NONE;
}
