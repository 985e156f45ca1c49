/* SPDX-License-Identifier: Apache-2.0 */
/* See stream.h. Without AVX2 there is no loop and the time means nothing. */
#include "common/stream.h"
#include "base/clock.h"

#include <deepspeed/op.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { STEP = 32, AHEAD = 256 }; /* elements of a turn; between a prefetch and its use */

typedef struct job {
    const bench_stream *s;
    bool prefetch;
} job;

#if defined(__x86_64__)
/* Lines of STEP elements behind element i of an array. */
static inline __attribute__((always_inline)) void fetch(const void *array, size_t bytes, size_t i)
{
    const char *at = (const char *)array + (i + AHEAD) * bytes;
    _mm_prefetch(at, _MM_HINT_T1);
    if (bytes == 4) {
        _mm_prefetch(at + 64, _MM_HINT_T1);
    }
}

static inline __attribute__((always_inline)) void fetch_all(const bench_stream *s, size_t i)
{
    fetch(s->grad, s->grad_bytes, i);
    fetch(s->weight, 4, i);
    fetch(s->m, s->moment_bytes, i);
    fetch(s->v, s->moment_bytes, i);
    if (s->param != NULL) {
        fetch(s->param, 2, i);
    }
}

/* A step of STEP elements with vectors of BYTES; one body for both widths. */
#define STREAM(name, isa, vec, BYTES, load, store, mix)                                            \
    __attribute__((target(isa))) static void name(const bench_stream *s, bool prefetch, size_t i,  \
                                                  size_t end)                                      \
    {                                                                                              \
        for (; i < end; i += STEP) {                                                               \
            if (prefetch) {                                                                        \
                fetch_all(s, i);                                                                   \
            }                                                                                      \
            const char *g = (const char *)s->grad + i * s->grad_bytes;                             \
            vec sum = load((const void *)g);                                                       \
            for (size_t at = BYTES; at < STEP * s->grad_bytes; at += BYTES) {                      \
                sum = mix(sum, load((const void *)(g + at)));                                      \
            }                                                                                      \
            char *w = (char *)(s->weight + i);                                                     \
            char *m = (char *)s->m + i * s->moment_bytes;                                          \
            char *v = (char *)s->v + i * s->moment_bytes;                                          \
            for (size_t at = 0; at < STEP * s->moment_bytes; at += BYTES) {                        \
                const vec x = load((const void *)(m + at));                                        \
                const vec y = load((const void *)(v + at));                                        \
                store((void *)(m + at), y);                                                        \
                store((void *)(v + at), x);                                                        \
            }                                                                                      \
            for (size_t at = 0; at < STEP * sizeof(float); at += 2 * (BYTES)) {                    \
                const vec x = load((const void *)(w + at));                                        \
                const vec y = load((const void *)(w + at + (BYTES)));                              \
                store((void *)(w + at), y);                                                        \
                store((void *)(w + at + (BYTES)), x);                                              \
            }                                                                                      \
            for (size_t at = 0; s->param != NULL && at < STEP * 2; at += BYTES) {                  \
                store((void *)((char *)s->param + i * 2 + at), sum);                               \
            }                                                                                      \
            __asm__ volatile("" : : "x"(sum));                                                     \
        }                                                                                          \
    }

STREAM(stream_avx512, "avx512f", __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512,
       _mm512_xor_si512)
STREAM(stream_avx2, "avx2", __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_xor_si256)
#endif

static void task(void *arg, uint32_t index, uint32_t thread)
{
    const job *j = arg;
    const size_t i = (size_t)index * BENCH_STREAM_CHUNK;
    (void)thread;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        stream_avx512(j->s, j->prefetch, i, i + BENCH_STREAM_CHUNK);
    } else {
        stream_avx2(j->s, j->prefetch, i, i + BENCH_STREAM_CHUNK);
    }
#else
    (void)i;
    (void)j;
#endif
}

double bench_stream_run(ds_ctx *ctx, const bench_stream *stream, bool prefetch)
{
    job j = {stream, prefetch};
    const double start = dsi_clock_seconds();
    ds_parallel(ctx, task, &j, (uint32_t)(stream->n / BENCH_STREAM_CHUNK));
    return dsi_clock_seconds() - start;
}

double bench_stream_bytes(const bench_stream *s)
{
    const size_t each =
        s->grad_bytes + 2 * sizeof(float) + 4 * s->moment_bytes + (s->param != NULL ? 2 : 0);
    return (double)s->n * (double)each;
}
