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

/* Tokens [first,last) of chunk c, of one sample; c is of n in all. */
typedef struct chunk {
    int64_t first, last, sample_last;
} chunk;

DSC_INLINE chunk chunk_at(const dsc_rope_table_args *a, int64_t c)
{
    const int64_t in_sample = (a->length + DSC_ROPE_CHUNK - 1) / DSC_ROPE_CHUNK;
    const int64_t first = c / in_sample * a->length;
    chunk k;
    k.sample_last = first + a->length;
    k.first = first + c % in_sample * DSC_ROPE_CHUNK;
    k.last = k.first + DSC_ROPE_CHUNK < k.sample_last ? k.first + DSC_ROPE_CHUNK : k.sample_last;
    return k;
}

/* A sequence is as long as positions rise, and as its last one says. A thread a chunk of tokens:
 * what it says of each, 0 of those whose sequence goes on behind the chunk; ends: of the first. */
DSC_INLINE void rope_ends_all(const dsc_rope_table_args *a)
{
    for (int64_t c = dsc_index(); c < a->n_chunks; c += dsc_stride()) {
        const chunk k = chunk_at(a, c);
        int64_t end = 0;
        for (int64_t n = k.last - 1; n >= k.first; --n) {
            if (n + 1 == k.sample_last || a->positions[n + 1] <= a->positions[n]) {
                end = a->positions[n] > 0 ? (int64_t)a->positions[n] + 1 : 1;
            }
            a->sequences[n] = end;
        }
        a->ends[c] = end;
    }
}

/* A thread a chunk: what a later one knows of its last tokens. The last of a sample knows all. */
DSC_INLINE void rope_sequences_all(const dsc_rope_table_args *a)
{
    for (int64_t c = dsc_index(); c < a->n_chunks; c += dsc_stride()) {
        const chunk k = chunk_at(a, c);
        int64_t later = c;
        if (a->sequences[k.last - 1] == 0) {
            do {
                ++later;
            } while (a->ends[later] == 0);
        }
        for (int64_t n = k.last - 1; n >= k.first && a->sequences[n] == 0; --n) {
            a->sequences[n] = a->ends[later];
        }
    }
}

DSC_INLINE int64_t sequence_of(const dsc_rope_table_args *a, int64_t n)
{
    return a->lengths != NULL ? a->lengths[a->of_tokens != 0 ? n : n / a->length] : a->sequences[n];
}

/* Of dynamic scaling. */
DSC_INLINE double base_of(const dsc_rope_table_args *a, int64_t n)
{
    const double longest = (double)a->original;
    const double sequence = (double)sequence_of(a, n);
    const double length = sequence > longest ? sequence : longest;
    const double d = (double)a->head_dim;
    return a->theta *
           pow(a->whole_factor * length / longest - (a->whole_factor - 1.0), d / (d - 2.0));
}

/* The operations of accel/cpu/ref/ref_rope.c, which follow transformers: powers in double. */
DSC_INLINE float frequency_at(const dsc_rope_table_args *a, double base, int64_t i)
{
    const float power =
        (float)pow((double)(float)base, (double)((float)(2 * i) / (float)a->head_dim));
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
    const int64_t half = (a->head_dim + 1) / 2;
    for (int64_t at = dsc_index(); at < a->tokens * half; at += dsc_stride()) {
        const int64_t n = at / half;
        const int64_t i = at % half;
        const bool turns = a->scaling == 2 && a->divisors == NULL;
        const double base = turns ? base_of(a, n) : a->theta;
        const float angle = (float)a->positions[n] * frequency_at(a, base, i);
        a->table[n * 2 * half + i] = (float)cos((double)angle) * a->attention;
        a->table[n * 2 * half + half + i] = (float)sin((double)angle) * a->attention;
    }
}

DSC_KERNEL(rope_ends, dsc_rope_table_args, rope_ends_all(a))
DSC_KERNEL(rope_sequences, dsc_rope_table_args, rope_sequences_all(a))
DSC_KERNEL(rope_table, dsc_rope_table_args, rope_table_all(a))
