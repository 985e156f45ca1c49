/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of reductions of F32, BF16 and F16, one block at a time; a template.
 *
 * Included by comm_reduce.c (plain C) and by simd/reduce_simd.c, which is compiled once for each
 * instruction set. All of them are the same sequence of operations on each element. The additions
 * are written out for up to 8 ranks, so that the compiler makes vectors of them; more ranks go
 * through a stack of partial sums.
 */
#ifndef DSI_COMM_REDUCE_BLOCK_H
#define DSI_COMM_REDUCE_BLOCK_H

#include "base/half.h"
#include "comm/reduce.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

enum { REDUCE_BLOCK = 512, REDUCE_LEVELS = 17 };

/* Elements [begin, begin + n) of all contributions to their place in out. n <= REDUCE_BLOCK. */
typedef void (*dsi_reduce_block_fn)(const dsi_reduce_job *job, const void *const *in, size_t begin,
                                    size_t n, void *out);

static inline float load_f32(const void *in, size_t i)
{
    return ((const float *)in)[i];
}

static inline float load_bf16(const void *in, size_t i)
{
    return dsi_bf16_to_f32(((const uint16_t *)in)[i]);
}

static inline void load_f16_block(const void *in, size_t begin, size_t n, float *restrict out)
{
    const uint16_t *from = (const uint16_t *)in + begin;
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    }
#endif
    for (; i < n; ++i) {
        out[i] = dsi_f16_to_f32(from[i]);
    }
}

#define SUM_2 (X(0) + X(1))
#define SUM_3 (SUM_2 + X(2))
#define SUM_4 (SUM_2 + (X(2) + X(3)))
#define SUM_5 (SUM_4 + X(4))
#define SUM_6 (SUM_4 + (X(4) + X(5)))
#define SUM_7 (SUM_4 + ((X(4) + X(5)) + X(6)))
#define SUM_8 (SUM_4 + ((X(4) + X(5)) + (X(6) + X(7))))
#define EACH(sum)                                                                                  \
    for (size_t i = 0; i < n; ++i) {                                                               \
        acc[i] = sum;                                                                              \
    }                                                                                              \
    break
/* Pointers by value: the compiler need not read them again after each store. */
#define SUM_CASES                                                                                  \
    case 1:                                                                                        \
        EACH(X(0));                                                                                \
    case 2:                                                                                        \
        EACH(SUM_2);                                                                               \
    case 3:                                                                                        \
        EACH(SUM_3);                                                                               \
    case 4:                                                                                        \
        EACH(SUM_4);                                                                               \
    case 5:                                                                                        \
        EACH(SUM_5);                                                                               \
    case 6:                                                                                        \
        EACH(SUM_6);                                                                               \
    case 7:                                                                                        \
        EACH(SUM_7);                                                                               \
    default:                                                                                       \
        EACH(SUM_8);

static inline void sum_f32(const void *const *in, uint32_t n_in, size_t begin, size_t n,
                           float *restrict acc)
{
    const float *p[8];
    for (uint32_t r = 0; r < 8; ++r) {
        p[r] = (const float *)in[r < n_in ? r : 0] + begin;
    }
    const float *const p0 = p[0], *const p1 = p[1], *const p2 = p[2], *const p3 = p[3];
    const float *const p4 = p[4], *const p5 = p[5], *const p6 = p[6], *const p7 = p[7];
#define X(r) p##r[i]
    switch (n_in) {
        SUM_CASES
    }
#undef X
}

static inline void sum_bf16(const void *const *in, uint32_t n_in, size_t begin, size_t n,
                            float *restrict acc)
{
    const uint16_t *p[8];
    for (uint32_t r = 0; r < 8; ++r) {
        p[r] = (const uint16_t *)in[r < n_in ? r : 0] + begin;
    }
    const uint16_t *const p0 = p[0], *const p1 = p[1], *const p2 = p[2], *const p3 = p[3];
    const uint16_t *const p4 = p[4], *const p5 = p[5], *const p6 = p[6], *const p7 = p[7];
#define X(r) dsi_bf16_to_f32(p##r[i])
    switch (n_in) {
        SUM_CASES
    }
#undef X
}

static inline void load_block(ds_dtype dtype, const void *in, size_t begin, size_t n,
                              float *restrict out)
{
    if (dtype == DS_DTYPE_F16) {
        load_f16_block(in, begin, n, out);
    } else if (dtype == DS_DTYPE_BF16) {
        for (size_t i = 0; i < n; ++i) {
            out[i] = load_bf16(in, begin + i);
        }
    } else {
        for (size_t i = 0; i < n; ++i) {
            out[i] = load_f32(in, begin + i);
        }
    }
}

static inline void add_block(float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        a[i] = a[i] + b[i];
    }
}

/* Partial sums as a binary counter: level k holds the sum of an aligned block of ranks; two of the
 * same size are joined at once; what is left is joined from the smallest up. */
static inline void sum_many(const dsi_reduce_job *job, const void *const *in, size_t begin,
                            size_t n, float *restrict acc)
{
    float stack[REDUCE_LEVELS][REDUCE_BLOCK];
    uint32_t depth = 0;
    for (uint32_t r = 0; r < job->n; ++r) {
        load_block(job->in_dtype, in[r], begin, n, stack[depth++]);
        for (uint32_t rest = r + 1; rest % 2 == 0; rest /= 2) {
            add_block(stack[depth - 2], stack[depth - 1], n);
            --depth;
        }
    }
    for (; depth > 1; --depth) {
        add_block(stack[depth - 2], stack[depth - 1], n);
    }
    for (size_t i = 0; i < n; ++i) {
        acc[i] = stack[0][i];
    }
}

static inline void max_many(const dsi_reduce_job *job, const void *const *in, size_t begin,
                            size_t n, float *restrict acc)
{
    float next[REDUCE_BLOCK];
    load_block(job->in_dtype, in[0], begin, n, acc);
    for (uint32_t r = 1; r < job->n; ++r) {
        load_block(job->in_dtype, in[r], begin, n, next);
        for (size_t i = 0; i < n; ++i) {
            const float x = next[i];
            acc[i] = (x > acc[i]) | (x != x) ? x : acc[i];
        }
    }
}

static inline float finish(float value, float factor)
{
    const float scaled = value * factor;
    return scaled == scaled ? scaled : dsi_bits_f32(0x7fc00000u);
}

static inline void store_f16_block(const float *restrict acc, float factor, uint16_t *to, size_t n)
{
    size_t i = 0;
#if defined(__F16C__)
    const __m256 times = _mm256_set1_ps(factor);
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(acc + i), times);
        const __m256 y = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (; i < n; ++i) {
        to[i] = dsi_f32_to_f16(finish(acc[i], factor));
    }
}

static inline void store_block(ds_dtype dtype, const float *restrict acc, float factor, void *out,
                               size_t begin, size_t n)
{
    if (dtype == DS_DTYPE_F16) {
        store_f16_block(acc, factor, (uint16_t *)out + begin, n);
    } else if (dtype == DS_DTYPE_BF16) {
        uint16_t *to = (uint16_t *)out + begin;
        for (size_t i = 0; i < n; ++i) {
            const uint32_t bits = dsi_f32_bits(finish(acc[i], factor)); /* no NaN but 0x7fc00000 */
            to[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
        }
    } else {
        float *to = (float *)out + begin;
        for (size_t i = 0; i < n; ++i) {
            to[i] = finish(acc[i], factor);
        }
    }
}

static inline void reduce_block(const dsi_reduce_job *job, const void *const *in, size_t begin,
                                size_t n, void *out)
{
    float acc[REDUCE_BLOCK];
    const bool sum = job->reduction == DSI_REDUCE_SUM;
    if (!sum) {
        max_many(job, in, begin, n, acc);
    } else if (job->n > 8 || job->in_dtype == DS_DTYPE_F16) {
        sum_many(job, in, begin, n, acc);
    } else if (job->in_dtype == DS_DTYPE_BF16) {
        sum_bf16(in, job->n, begin, n, acc);
    } else {
        sum_f32(in, job->n, begin, n, acc);
    }
    store_block(job->out_dtype, acc, sum ? job->factor : 1.0f, out, begin, n);
}

#endif
