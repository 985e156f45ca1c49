/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of this machine and process, for reports. */
#ifndef DSI_TOOLS_MACHINE_H
#define DSI_TOOLS_MACHINE_H

#include <deepspeed/context.h>
#include <deepspeed/tensor.h>

/* Floating-point operations a second that a matrix product of this dtype reaches here on the
 * context's threads, data in cache: best of a few runs, some 50 ms in all. 0 when it cannot be
 * measured. */
double machine_peak_flops(ds_ctx *ctx, ds_dtype dtype);

/* Largest resident memory of this process so far. */
uint64_t machine_peak_bytes(void);

#endif
