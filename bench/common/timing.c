/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the benchmarks. See timing.h. */
#include "common/timing.h"
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

int bench_rounds(int wanted, double seconds, double budget)
{
    enum { LEAST = 3 };
    const double fit = budget / seconds;
    if (fit >= wanted) {
        return wanted;
    }
    const int least = wanted < LEAST ? wanted : LEAST;
    return fit > least ? (int)fit : least;
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
