/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the device reads and writes by itself, by NVIDIA's cuFile, where its library is.
 * Shared by disk_cufile.c, driver_entry.c and driver_load.c.
 *
 * Invariants:
 *  1. a file is registered while it has its name, with a descriptor that has O_DIRECT and none of
 *     the flags that cuFile refuses (O_NOFOLLOW among them);
 *  2. a transfer makes the device's context current on its thread, which is one of the library's;
 *  3. of registered memory a transfer names the base that was registered.
 */
#ifndef DSC_DISK_H
#define DSC_DISK_H

#include "accel/cuda/driver/driver_device.h"

extern const ds_accel_disks dsc_disks;

/* A line for lists: "disks: cuFile 1.14", or why the host moves what is on disk. */
void dsc_disk_say(char *text_out, size_t n);
/* cuFile's driver, where dsc_disks.check has opened it. */
void dsc_disk_close(ds_accel_device *device);

#endif
