/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator that computes nothing: plans for it need no kernels, its runs touch no memory.
 *
 * Used to see what a plan costs, whatever the operators: steps, floating-point operations and bytes
 * stand in the plan's steps, and an executor with a trace function counts the steps that a run
 * takes. Every operator and every dtype is supported, with no scratch memory; outputs keep what
 * their memory held.
 */
#ifndef DSI_ACCEL_NULL_KERNEL_H
#define DSI_ACCEL_NULL_KERNEL_H

#include <deepspeed/op.h>

/* The chooser of dsi_plan_env. Never NULL. Any thread. */
const ds_kernel *dsi_null_kernel_choose(const ds_kernel_sig *sig, ds_isa has);

#endif
