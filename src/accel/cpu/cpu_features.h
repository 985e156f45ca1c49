/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction set this process may use. Called by whoever chooses a CPU kernel.
 *
 * Answer: the bits for which the processor, the operating system (saved register state) and, for
 * AMX, the kernel's permission for tile data all agree, and for which kernels were built.
 * DS_CPU_ISA=ref|avx2|avx512|avx512_vnni|avx512_bf16|amx in the environment leaves those of that
 * level (op/isa.h; never more than there are). Detected once.
 */
#ifndef DSI_ACCEL_CPU_FEATURES_H
#define DSI_ACCEL_CPU_FEATURES_H

#include <deepspeed/context.h>
#include <deepspeed/op.h>

/* What files that are compiled for a vector set need. */
#define DSI_NEEDS_AVX2        DS_ISA_AVX2
#define DSI_NEEDS_AVX512      (DSI_NEEDS_AVX2 | DS_ISA_AVX512)
#define DSI_NEEDS_AVX512_VNNI (DSI_NEEDS_AVX512 | DS_ISA_AVX512_VNNI)
#define DSI_NEEDS_AVX512_BF16 (DSI_NEEDS_AVX512_VNNI | DS_ISA_AVX512_BF16)
#define DSI_NEEDS_AMX         (DSI_NEEDS_AVX512_BF16 | DS_ISA_AMX)

/* Any thread. The first call asks the kernel for tile permission, for the whole process. */
ds_isa dsi_cpu_isa(void);

/* ERR_CONFIG where DS_CPU_ISA is set to a word that is none of these, which dsi_cpu_isa ignores. */
ds_status dsi_cpu_isa_check(ds_ctx *ctx);

/* Whether the process has all of a level of op/isa.h; false past the last. */
bool dsi_cpu_has_level(uint32_t index);

/* What is in both `cap` and dsi_cpu_isa(). */
ds_isa dsi_cpu_isa_capped(ds_isa cap);

#endif
