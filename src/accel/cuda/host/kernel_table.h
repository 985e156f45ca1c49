/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of kernels/ on the host layer, by number and name. */
#ifndef DSC_KERNEL_TABLE_H
#define DSC_KERNEL_TABLE_H

#include "accel/cuda/host/host_layer.h"
#include "accel/cuda/kernel_list.h"

typedef struct dsc_host_row {
    const char *name;
    dsc_host_kernel run;
} dsc_host_row;

extern const dsc_host_row dsc_host_table[DSC_FN_COUNT];

#endif
