/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of an accelerator with memory of its own under the operator harness: operands are copied
 * to the device, the kernel is launched on a stream and waited for, results are copied back. */
#ifndef DS_TEST_DEVICE_RUN_H
#define DS_TEST_DEVICE_RUN_H

#include <deepspeed/accel.h>

/* What kernels run on; once, before the harness asks. */
void device_run_on(const ds_accel *accel, ds_accel_device *device, ds_accel_stream *stream);
/* A kernel of the host's that runs `inner` so; one at a time. */
const ds_kernel *device_run_kernel(const ds_kernel *inner);

#endif
