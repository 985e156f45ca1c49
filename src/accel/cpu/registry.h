/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels the CPU has, and which one a step uses.
 *
 * A family is a NULL-terminated list of kernels that one file exports; registry.c lists the
 * families. Among the kernels of an operator that the instruction set allows and that support the
 * case, the highest instruction set wins, then the earlier in the list. A custom op's own kernels
 * count too.
 */
#ifndef DSI_ACCEL_CPU_REGISTRY_H
#define DSI_ACCEL_CPU_REGISTRY_H

#include <deepspeed/op.h>

/* NULL when no kernel supports the case. cap: highest instruction set that may be used. */
const ds_kernel *dsi_cpu_kernel_choose(const ds_kernel_sig *sig, ds_isa cap);

/* Kernel `index` (0,1,…) for the operator in sig that the cap allows and that supports sig, best
 * first; NULL past the last. For the harness that compares and times all of them. */
const ds_kernel *dsi_cpu_kernel_at(const ds_kernel_sig *sig, ds_isa cap, uint32_t index);

/* Kernel `index` (0,1,…) of all that were built, for reports; NULL past the last. */
const ds_kernel *dsi_cpu_kernel_list(uint32_t index);

#endif
