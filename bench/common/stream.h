/* SPDX-License-Identifier: Apache-2.0 */
/* A loop that only reads and writes the arrays of an optimizer step: the limit of such a step. */
#ifndef DS_BENCH_STREAM_H
#define DS_BENCH_STREAM_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

enum { BENCH_STREAM_CHUNK = 65536 }; /* elements of a task; n is a multiple */

/* What Adam reads (gradient, weights, two moments) and writes (weights, moments, the rounded
 * parameter where there is one). */
typedef struct bench_stream {
    size_t n;
    size_t grad_bytes, moment_bytes; /* an element: 4 or 2 */
    const void *grad;
    void *param; /* bf16, or NULL: the weights are the parameter */
    float *weight;
    void *m, *v;
} bench_stream;

/* Seconds of one pass. It swaps the weights and the first moment where both are fp32. */
double bench_stream_run(ds_ctx *ctx, const bench_stream *stream, bool prefetch);

/* Bytes that a pass reads and writes. */
double bench_stream_bytes(const bench_stream *stream);

#endif
