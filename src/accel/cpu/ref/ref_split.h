/* SPDX-License-Identifier: Apache-2.0 */
/* How reference kernels split their work: contiguous ranges of items, one range a thread. What an
 * item computes never depends on the split, so the bits are the same for any number of threads. It
 * also sets the float mode (subnormals flushed) of every kernel, which is why all of them use it.
 */
#ifndef DSI_ACCEL_CPU_REF_SPLIT_H
#define DSI_ACCEL_CPU_REF_SPLIT_H

#include <deepspeed/op.h>

/* Items [begin,end); slot < dsi_ref_slots(): index of the range's own workspace. */
typedef void (*dsi_ref_fn)(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot);

uint32_t dsi_ref_slots(const ds_kernel_sig *sig);
void dsi_ref_for(const ds_kernel_call *call, int64_t n_items, dsi_ref_fn fn);
/* One range of all items, for sums in one order. */
void dsi_ref_serial(const ds_kernel_call *call, dsi_ref_fn fn);

#endif
