/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of arithmetic that no memory holds up: the limit of matrix products. */
#ifndef DS_BENCH_PEAK_H
#define DS_BENCH_PEAK_H

#include "base/pool.h"

#include <deepspeed/tensor.h>

typedef struct bench_peak {
    const char *name; /* of the instructions: "AVX2 fp32 multiply-adds" */
    double flops;     /* operations a second of all threads, two a multiply-add */
} bench_peak;

/* Measured: multiply-adds of random numbers that stay in registers, the best of several runs. By
 * the instructions that serve the dtype fastest among those of this machine (as DS_CPU_ISA lowers
 * it): of bf16 they may be tiles, dot products, or those of fp32. */
bench_peak bench_peak_measure(dsi_pool *pool, uint32_t n_threads, ds_dtype dtype);

#endif
