/* SPDX-License-Identifier: Apache-2.0 */
/* See read_rate.h. */
#include "common/read_rate.h"
#include "base/clock.h"
#include "common/timing.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PIECE = 256, MOST_THREADS = 64 }; /* bytes of one stream before the next */

typedef struct reading {
    const char *data;
    size_t bytes;   /* of a thread */
    size_t streams; /* of a thread, side by side */
    size_t ahead;   /* bytes between a prefetch and its use */
    uint64_t sums[MOST_THREADS];
} reading;

static const struct {
    size_t streams, ahead;
} forms[] = {{2, 4096}, {2, 8192}, {4, 2048}, {4, 4096}, {8, 2048}};

enum { N_FORMS = sizeof forms / sizeof forms[0], RUNS = 2 };

/* Vectors of BYTES; four sums, so that no addition waits for another. */
#if defined(__x86_64__)
#define READ(name, isa, vec, BYTES, zero, load, add)                                               \
    __attribute__((target(isa))) static uint64_t name(const reading *r, const char *from)          \
    {                                                                                              \
        const size_t part = r->bytes / r->streams / PIECE * PIECE;                                 \
        vec sums[4] = {zero, zero, zero, zero};                                                    \
        for (size_t i = 0; i < part; i += PIECE) {                                                 \
            for (size_t stream = 0; stream < r->streams; ++stream) {                               \
                const char *p = from + stream * part + i;                                          \
                for (int line = 0; line < PIECE; line += 64) {                                     \
                    _mm_prefetch(p + r->ahead + line, _MM_HINT_T0);                                \
                }                                                                                  \
                for (int at = 0; at < PIECE; at += 4 * (BYTES)) {                                  \
                    for (int k = 0; k < 4; ++k) {                                                  \
                        sums[k] = add(sums[k], load((const void *)(p + at + k * (BYTES))));        \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        const vec all = add(add(sums[0], sums[1]), add(sums[2], sums[3]));                         \
        return (uint64_t)all[0];                                                                   \
    }

READ(read_avx512, "avx512f", __m512i, 64, _mm512_setzero_si512(), _mm512_loadu_si512,
     _mm512_add_epi64)
READ(read_avx2, "avx2", __m256i, 32, _mm256_setzero_si256(), _mm256_loadu_si256, _mm256_add_epi64)
#endif

static uint64_t read_words(const reading *r, const char *from)
{
    const size_t part = r->bytes / r->streams / PIECE * PIECE;
    uint64_t sum = 0;
    for (size_t i = 0; i < part; i += PIECE) {
        for (size_t stream = 0; stream < r->streams; ++stream) {
            const char *p = from + stream * part + i;
            uint64_t words[PIECE / 8];
            memcpy(words, p, sizeof words);
            for (int word = 0; word < PIECE / 8; ++word) {
                if (word % 8 == 0) {
                    __builtin_prefetch(p + (size_t)word * 8 + r->ahead);
                }
                sum += words[word];
            }
        }
    }
    return sum;
}

static void read_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    reading *r = arg;
    const char *from = r->data + task * r->bytes;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        r->sums[task] = read_avx512(r, from);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        r->sums[task] = read_avx2(r, from);
        return;
    }
#endif
    r->sums[task] = read_words(r, from);
}

double bench_read_rate(dsi_pool *pool, uint32_t n_threads, const void *data, size_t bytes)
{
    const uint32_t n = n_threads < 1 ? 1 : n_threads < MOST_THREADS ? n_threads : MOST_THREADS;
    reading r = {.data = data, .bytes = bytes / n / PIECE * PIECE};
    double best = 0.0;
    for (int run = 0; run < RUNS * N_FORMS; ++run) {
        r.streams = forms[run % N_FORMS].streams;
        r.ahead = forms[run % N_FORMS].ahead;
        const double start = dsi_clock_seconds();
        dsi_pool_run(pool, read_task, &r, n);
        const double rate = (double)(r.bytes * n) / (dsi_clock_seconds() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

double bench_read_rate_huge(dsi_pool *pool, uint32_t n_threads, size_t bytes)
{
    char *data = bench_alloc(bytes);
    memset(data, 1, bytes);
    const double rate = bench_read_rate(pool, n_threads, data, bytes);
    free(data);
    return rate;
}
