/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the host layer runs threads of a block, for tests. */
#ifndef DSC_LAUNCH_HOST_H
#define DSC_LAUNCH_HOST_H

#include "accel/cuda/cuda_launch.h"

/* 0: in their order; else one drawn for each block. Not while kernels run. */
void dsc_host_set_order(uint32_t seed);

#endif
