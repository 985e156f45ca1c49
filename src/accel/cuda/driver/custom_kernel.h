/* SPDX-License-Identifier: Apache-2.0 */
/* Custom operators whose kernels are CUDA source (include/deepspeed/cuda_kernel.h, ADR 28). Shared
 * by custom_kernel.c (which kernel a step has, what is compiled for a device, launches),
 * custom_source.c (what is compiled, and whether it may be) and driver_entry.c.
 *
 * Invariants:
 *  1. choosing asks neither a device nor the compiler;
 *  2. what a launch uses was made by prepare, on that device, for those element types;
 *  3. all that machine code depends on is in the cache's key.
 */
#ifndef DSC_CUSTOM_KERNEL_H
#define DSC_CUSTOM_KERNEL_H

#include "accel/cuda/driver/driver_device.h"
#include "accel/cuda/driver/nvrtc.h"

#include <deepspeed/cuda_kernel.h>

/* ds_accel_kernels.choose for an operator with CUDA source; NULL: none of its rows fits. */
const ds_kernel *dsc_custom_kernel(const ds_kernel_sig *sig);
/* ds_accel_kernels.prepare: other kernels need nothing. */
ds_status dsc_custom_prepare(ds_accel_device *device, ds_ctx *ctx, const ds_kernel *kernel,
                             const ds_kernel_sig *sig);
/* Unloads what prepare has loaded. */
void dsc_custom_close(ds_accel_device *device);
/* A line for lists: "custom operators: NVRTC 13.0, cached in …", or why there are none. */
void dsc_custom_say(char *text_out, size_t n);

/* custom_source.c: the row's text, from malloc. op: for messages. */
ds_status dsc_custom_read(ds_ctx *ctx, const ds_op *op, const ds_cuda_kernel *row,
                          char **source_out);
/* custom_source.c: options of a row for the element types of a step, and the key. It points into
 * itself and borrows row and source. */
typedef struct dsc_custom_build {
    dsc_nvrtc_job job;
    char defines[DSC_NVRTC_MOST_OPTIONS][48];
    char *key; /* from malloc */
    size_t key_bytes;
} dsc_custom_build;
ds_status dsc_custom_describe(ds_ctx *ctx, const ds_cuda_kernel *row, const ds_kernel_sig *sig,
                              const char *source, int arch, dsc_custom_build *build_out);

#endif
