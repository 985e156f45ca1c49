/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the benchmarks: medians, random data. */
#ifndef DS_BENCH_TIMING_H
#define DS_BENCH_TIMING_H

#include <stddef.h>
#include <stdint.h>

/* Sorts in place. */
double bench_median(double *values, size_t n);

/* How often to repeat what takes `seconds`: `wanted` times, or as often as `budget` seconds allow,
 * but three times (or `wanted`) at least. */
int bench_rounds(int wanted, double seconds, double budget);

/* Aligned to 2 MiB and zeroed; exits when there is no memory. Release with free(). */
void *bench_alloc(size_t bytes);

/* Random normal values, none zero. */
void bench_fill_f32(float *out, size_t n, uint64_t seed);
void bench_fill_bf16(uint16_t *out, size_t n, uint64_t seed);

#endif
