/* SPDX-License-Identifier: Apache-2.0 */
/* rope: a thread a pair, and one for each element behind the part that turns. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/row_args.h"

DSC_INLINE void rope_item(const dsc_rope_args *a, int act, int64_t head, int64_t i)
{
    const int64_t half = a->rotary / 2;
    const int64_t at = head * a->head_dim;
    if (i >= half) {
        const int64_t kept = at + i + half;
        dsc_set(a->y, act, kept, dsc_get(a->x, act, kept));
        return;
    }
    const float *row = a->table + head / a->n_heads * a->rotary;
    const int64_t first = at + (a->pairs != 0 ? 2 * i : i);
    const int64_t second = first + (a->pairs != 0 ? 1 : half);
    const float c = row[i];
    const float s = a->inverse != 0 ? -row[half + i] : row[half + i];
    const float p = dsc_get(a->x, act, first);
    const float q = dsc_get(a->x, act, second);
    dsc_set(a->y, act, first, p * c - q * s);
    dsc_set(a->y, act, second, q * c + p * s);
}

DSC_INLINE void rope_body(const dsc_rope_args *a, int act)
{
    const int64_t items = a->head_dim - a->rotary / 2; /* a head */
    const int64_t n = a->tokens * a->n_heads * items;
    for (int64_t i = dsc_index(); i < n; i += dsc_stride()) {
        rope_item(a, act, i / items, i % items);
    }
}

DSC_KERNEL_ACT(rope, dsc_rope_args)

/* The operations of accel/cpu/ref/ref_rope.c, which follow transformers: powers in double. */
DSC_INLINE float frequency_at(const dsc_rope_table_args *a, int64_t i)
{
    const float power =
        (float)pow((double)(float)a->theta, (double)((float)(2 * i) / (float)a->head_dim));
    const float plain = 1.0f / power;
    if (a->divisors != NULL) {
        return 1.0f / (a->divisors[i] * power);
    }
    if (a->scaling == 1) {
        return plain / a->factor;
    }
    if (a->scaling == 3) {
        float ramp = ((float)i - a->low) / a->high_less_low;
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        const float kept = 1.0f - ramp;
        return 1.0f / (a->factor * power) * (1.0f - kept) + plain * kept;
    }
    if (a->scaling == 4) {
        const float wavelength = (float)(2.0 * 3.14159265358979323846) / plain;
        if (wavelength > (float)a->low_bound) {
            return plain / a->factor;
        }
        if (wavelength < (float)a->high_bound) {
            return plain;
        }
        const float smooth = ((float)a->original / wavelength - a->low) / a->high_less_low;
        return (1.0f - smooth) * (plain / a->factor) + smooth * plain;
    }
    return plain;
}

/* A thread a frequency of a token. */
DSC_INLINE void rope_table_all(const dsc_rope_table_args *a)
{
    const int64_t half = a->head_dim / 2;
    for (int64_t at = dsc_index(); at < a->tokens * half; at += dsc_stride()) {
        const int64_t n = at / half;
        const int64_t i = at % half;
        const float angle = (float)a->positions[n] * frequency_at(a, i);
        a->table[n * a->head_dim + i] = (float)cos((double)angle) * a->attention;
        a->table[n * a->head_dim + half + i] = (float)sin((double)angle) * a->attention;
    }
}

DSC_KERNEL(rope_table, dsc_rope_table_args, rope_table_all(a))
