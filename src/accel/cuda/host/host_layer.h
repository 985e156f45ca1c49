/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA language on the processor: what a kernel source of ../kernels needs to be compiled as C
 * and run, thread for thread. Not for speed: for proof without a device (ADR 21).
 *
 * A grid's blocks run one after another, or on several threads of the context; the threads of a
 * block are fibers that change places at barriers and shuffles, in an order drawn from a seed. Each
 * fiber is a thread of its own for the thread sanitizer, ordered with the others by barriers alone:
 * two of them that touch the same memory without one are a report. Asynchronous copies of odd
 * threads happen at once, those of even ones as late as they may, when they are waited for.
 *
 * What a device leaves undefined ends the process with a message here: a barrier that not every
 * thread of the block reaches, lanes missing in a shuffle, an asynchronous copy never waited for.
 */
#ifndef DSC_HOST_LAYER_H
#define DSC_HOST_LAYER_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <stdbool.h>

#define __shared__ static _Thread_local

typedef struct dsc_dim3 {
    uint32_t x, y, z;
} dsc_dim3;

/* Where the running thread is. */
typedef struct dsc_place {
    dsc_dim3 thread, block, block_dim, grid_dim;
} dsc_place;

const dsc_place *dsc_here(void);
#define threadIdx (dsc_here()->thread)
#define blockIdx  (dsc_here()->block)
#define blockDim  (dsc_here()->block_dim)
#define gridDim   (dsc_here()->grid_dim)

void __syncthreads(void);
void __syncwarp(void);
/* All 32 lanes take part, whatever the mask says: another mask is an error. */
float dsc_shfl_xor_f32(uint32_t mask, float value, int lanes);
float dsc_shfl_f32(uint32_t mask, float value, int lane);
/* Bit l: what lane l says. */
uint32_t dsc_ballot(uint32_t mask, bool says);
/* cp.async: 16 bytes from global to shared memory, aligned to 16; the first n of them are copied,
 * the rest become zeros. */
void dsc_copy_async(void *shared, const void *global, uint32_t n);
void dsc_copy_commit(void);
/* Until at most n of the groups that this thread has committed are under way. */
void dsc_copy_wait(uint32_t n);

/* mma.sync.aligned.m16n8k16.row.col.f32.{bf16,f16}.{bf16,f16}.f32, by its definition in PTX ISA,
 * "Warp-level matrix instructions": d = a·b + c, summed in ascending k in fp32. */
void dsc_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4]);
void dsc_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4]);

/* A kernel, as it is launched: its only argument is a struct. */
typedef void (*dsc_host_kernel)(const void *args);

/* What is launched, for messages, and in which order threads run. */
typedef struct dsc_host_grid {
    const char *name;
    dsc_dim3 grid, block;
    uint32_t seed;
} dsc_host_grid;

/* Runs block number `block` of the grid, x fastest, on this thread, until all of its threads have
 * ended. Several threads may run blocks of one grid. */
void dsc_host_run_block(const dsc_host_grid *g, dsc_host_kernel kernel, const void *args,
                        uint64_t block);

#endif
