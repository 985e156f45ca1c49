/* Helpers of the benchmarks: medians, random data, a thread pool's read rate. */
#ifndef DS_BENCH_TIMING_H
#define DS_BENCH_TIMING_H

#include "base/pool.h"

#include <stddef.h>
#include <stdint.h>

/* Sorts in place. */
double bench_median(double *values, size_t n);

/* Aligned to 2 MiB and zeroed; exits when there is no memory. Release with free(). */
void *bench_alloc(size_t bytes);

/* Random normal values, none zero. */
void bench_fill_f32(float *out, size_t n, uint64_t seed);
void bench_fill_bf16(uint16_t *out, size_t n, uint64_t seed);

/* Bytes a second that the pool's threads read together from `bytes` of memory, best of three. */
double bench_read_rate(dsi_pool *pool, uint32_t n_threads, size_t bytes);

#endif
