/* SPDX-License-Identifier: Apache-2.0 */
/* What the forward and backward kernels of attention in bf16 share. */
#ifndef DSI_ACCEL_CPU_BF16_ATTENTION_H
#define DSI_ACCEL_CPU_BF16_ATTENTION_H

#include "accel/cpu/bf16/bf16_attn_tile.h"

#include <deepspeed/op.h>

extern const ds_kernel DSI_NAME(dsi_bf16_attention);
extern const ds_kernel DSI_NAME(dsi_bf16_attention_backward);
extern const ds_kernel *const DSI_NAME(dsi_bf16_attention_family)[]; /* NULL-terminated */

/* The kernel of a file, from its supports(), work_bytes() and run(). */
#define DSI_BF16_KERNEL(op_name)                                                                   \
    const ds_kernel DSI_NAME(dsi_bf16_##op_name) = {                                               \
        DS_OP_VERSION, DSI_ISA_TEXT, #op_name, DSI_SIMD_ISA, supports, work_bytes, run}

#endif
