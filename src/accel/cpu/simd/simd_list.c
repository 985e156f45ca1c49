/* SPDX-License-Identifier: Apache-2.0 */
/* The vector kernels of one instruction set, as the family that registry.c lists. */
#include "accel/cpu/simd/simd_kernel.h"

#define X(name) extern const ds_kernel DSI_NAME(dsi_simd_##name);
DSI_SIMD_KERNELS(X)
#undef X

extern const ds_kernel *const DSI_NAME(dsi_simd_family)[];
const ds_kernel *const DSI_NAME(dsi_simd_family)[] = {
#define X(name) &DSI_NAME(dsi_simd_##name),
    DSI_SIMD_KERNELS(X)
#undef X
        NULL,
};
