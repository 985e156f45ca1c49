/* SPDX-License-Identifier: Apache-2.0 */
/* Custom operators with kernels in C and in CUDA source, and one call of either on an accelerator.
 * For tests.
 *
 * cuda_wave: x f32, bf16 or f16 of any shape → x + sin²(a·x)/a, one function.
 * cuda_shares: x f32 (R,C) → each row over the sum of its magnitudes, two functions, scratch
 * between them and a barrier in the first. Both kernels of each make the same bits.
 */
#ifndef DS_TEST_CUDA_OP_H
#define DS_TEST_CUDA_OP_H

#include <deepspeed/accel.h>
#include <deepspeed/cuda_kernel.h>

typedef struct cuda_wave_attrs {
    double a;
} cuda_wave_attrs;

extern const ds_op cuda_wave, cuda_shares;
extern const char cuda_wave_source[], cuda_shares_source[];

/* The operator on x → y of the same meta (host memory), by the kernel that the open device's
 * accelerator chooses and prepares; on the processor when accel is NULL. */
ds_status cuda_op_run(ds_ctx *ctx, const ds_accel *accel, ds_accel_device *device, const ds_op *op,
                      const void *attrs, ds_meta meta, const void *x, void *y);

#endif
