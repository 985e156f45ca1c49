/* SPDX-License-Identifier: Apache-2.0 */
/* What compiled code of a custom operator calls of the host layer, passed to its function
 * standin_bind when the stand-in of the driver loads it. Each kernel NAME is its function
 * standin_kernel_NAME. Read as C by standin_driver.c, as C++ by standin_nvrtc/device_language.h. */
#ifndef DS_TEST_DEVICE_TABLE_H
#define DS_TEST_DEVICE_TABLE_H

#include "accel/cuda/host/host_layer.h"

typedef struct standin_device {
    const dsc_place *(*here)(void);
    void (*syncthreads)(void);
    void (*syncwarp)(void);
    float (*shfl_xor)(uint32_t mask, float value, int lanes);
    float (*shfl)(uint32_t mask, float value, int lane);
} standin_device;

#endif
