/* SPDX-License-Identifier: Apache-2.0 */
/* The attention kernels in bf16, as the family that registry.c lists. */
#include "accel/cpu/bf16/bf16_attention.h"

const ds_kernel *const DSI_NAME(dsi_bf16_attention_family)[] = {
    &DSI_NAME(dsi_bf16_attention), &DSI_NAME(dsi_bf16_attention_backward), NULL};
