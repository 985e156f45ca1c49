/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels the CPU has, and which one a step uses.
 *
 * A family is a NULL-terminated list of kernels that one file exports; registry.c lists the
 * families, best first. The first kernel of an operator wins that needs nothing the machine lacks
 * and that supports the case. A custom op's own kernels come before.
 */
#ifndef DSI_ACCEL_CPU_REGISTRY_H
#define DSI_ACCEL_CPU_REGISTRY_H

#include "accel/cpu/cpu_features.h"

#include <deepspeed/op.h>

/* NULL when no kernel supports the case. has: what may be used. */
const ds_kernel *dsi_cpu_kernel_choose(const ds_kernel_sig *sig, ds_isa has);

/* Kernel `index` (0,1,…) for the operator in sig that may be used and that supports sig, best
 * first; NULL past the last. For the harness that compares and times all of them. */
const ds_kernel *dsi_cpu_kernel_at(const ds_kernel_sig *sig, ds_isa has, uint32_t index);

/* Kernel `index` (0,1,…) of all that were built, for reports; NULL past the last. */
const ds_kernel *dsi_cpu_kernel_list(uint32_t index);

#endif
