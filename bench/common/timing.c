/* Helpers of the benchmarks. See timing.h. */
#include "common/timing.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

void *bench_alloc(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    const size_t rounded = (bytes + huge - 1) / huge * huge;
    void *data = aligned_alloc(huge, rounded);
    if (data == NULL) {
        (void)fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    (void)madvise(data, rounded, MADV_HUGEPAGE);
    memset(data, 0, rounded);
    return data;
}

/* Cheap and never zero: uniform in ±[0.25,1.25). */
static float value_at(uint64_t seed, size_t i)
{
    uint64_t x = (seed + i) * 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    const float unit = dsi_rng_unit((uint32_t)(x >> 32));
    return (x & 1) != 0 ? unit + 0.25f : -unit - 0.25f;
}

void bench_fill_f32(float *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; ++i) {
        out[i] = value_at(seed, i);
    }
}

void bench_fill_bf16(uint16_t *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; ++i) {
        out[i] = dsi_f32_to_bf16(value_at(seed, i));
    }
}

typedef struct reading {
    const uint64_t *data;
    size_t n; /* words a thread */
    uint64_t sums[64];
} reading;

enum { READ_STREAMS = 4, READ_PIECE = 32, READ_AHEAD = 256 }; /* words: 256 bytes, 2 KiB */

/* Several streams a thread, with prefetch: a single one reaches two thirds of the rate. */
static void read_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    reading *r = arg;
    const size_t part = r->n / READ_STREAMS;
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + READ_PIECE <= part; i += READ_PIECE) {
        for (size_t stream = 0; stream < READ_STREAMS; ++stream) {
            const uint64_t *p = r->data + task * r->n + stream * part + i;
            for (int line = 0; line < READ_PIECE; line += 8) {
                __builtin_prefetch(p + line + READ_AHEAD);
                for (int j = 0; j < 8; ++j) {
                    sums[j] += p[line + j];
                }
            }
        }
    }
    r->sums[task] = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

double bench_read_rate(dsi_pool *pool, uint32_t n_threads, size_t bytes)
{
    const uint32_t n_tasks = n_threads < 64 ? n_threads : 64;
    reading r = {.data = bench_alloc(bytes), .n = bytes / 8 / n_tasks};
    memset((void *)r.data, 1, bytes);
    double best = 0.0;
    for (int round = 0; round < 3; ++round) {
        const double start = dsi_clock_seconds();
        dsi_pool_run(pool, read_task, &r, n_tasks);
        const double rate = (double)bytes / (dsi_clock_seconds() - start);
        best = rate > best ? rate : best;
    }
    free((void *)r.data);
    return best;
}
