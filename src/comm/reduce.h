/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of the contributions of N ranks, the same bits whoever computes them.
 *
 * SUM: each contribution is converted to fp32 (F64: stays fp64), added in the aligned binary tree
 * over its index, ((0+1)+(2+3))+…, where a side that has no partner passes up unchanged; the sum is
 * multiplied by `factor` and rounded once to the type of the result, to nearest even. Gradual
 * underflow is on whatever the mode of the caller. Every NaN result is the positive quiet NaN with
 * an empty payload (fp32 0x7fc00000, bf16 0x7fc0, fp16 0x7e00). Integers wrap.
 * MAX: the largest; of equal ones (+0, -0) that of the lowest index; NaN when any is NaN, as above.
 * An element's result depends on that element alone: any cut of the work gives the same bits.
 *
 * Called by the transports. No allocation, any thread.
 */
#ifndef DSI_COMM_REDUCE_H
#define DSI_COMM_REDUCE_H

#include "comm/comm.h"

typedef struct dsi_reduce_job {
    ds_dtype in_dtype, out_dtype; /* equal, or both of F32, BF16, F16: a partial sum that travels is
                                     F32 on its side */
    dsi_reduction reduction;
    float factor; /* of SUM; 1 for none and for partial sums */
    uint32_t n;   /* contributions, >= 1, at most DSI_REDUCE_MAX_RANKS */
} dsi_reduce_job;

#define DSI_REDUCE_MAX_RANKS 65536u

/* in[0..n): `count` elements each, in order of rank. `out` may be the same address as any of them,
 * and no other overlap. */
void dsi_reduce(const dsi_reduce_job *job, const void *const *in, void *out, size_t count);

/* The same to several places, each of which may be the same address as one of `in`. */
void dsi_reduce_to(const dsi_reduce_job *job, const void *const *in, void *const *outs,
                   uint32_t n_outs, size_t count);

/* The same, written past the caches: for results that nobody in them reads soon. n is at most
 * DSI_REDUCE_STREAM_RANKS. */
#define DSI_REDUCE_STREAM_RANKS 256u
void dsi_reduce_stream(const dsi_reduce_job *job, const void *const *in, void *const *outs,
                       uint32_t n_outs, size_t count);

#endif
