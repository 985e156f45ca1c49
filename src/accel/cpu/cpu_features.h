/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction set this process may use. Called by whoever chooses a CPU kernel.
 *
 * Answer: the highest level for which the processor, the operating system (saved register state)
 * and, for AMX, the kernel's permission for tile data all agree, and for which kernels were built.
 * DS_CPU_ISA=ref|avx2|avx512|avx512_bf16|amx in the environment lowers it (never raises it).
 * Detected once.
 */
#ifndef DSI_ACCEL_CPU_FEATURES_H
#define DSI_ACCEL_CPU_FEATURES_H

#include <deepspeed/context.h>
#include <deepspeed/op.h>

/* Any thread. The first call asks the kernel for tile permission, for the whole process. */
ds_isa dsi_cpu_isa(void);

/* ERR_CONFIG where DS_CPU_ISA is set to a word that is none of these, which dsi_cpu_isa ignores. */
ds_status dsi_cpu_isa_check(ds_ctx *ctx);

/* The lower of `cap` and dsi_cpu_isa(). */
ds_isa dsi_cpu_isa_capped(ds_isa cap);

#endif
