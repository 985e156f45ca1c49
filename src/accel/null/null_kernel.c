/* SPDX-License-Identifier: Apache-2.0 */
/* One kernel for every operator. See null_kernel.h. */
#include "accel/null/null_kernel.h"

#include "accel/accel.h"

static ds_status compute_nothing(const ds_kernel_call *call)
{
    (void)call;
    return DS_OK;
}

static const ds_kernel null_kernel = {
    .version = DS_OP_VERSION,
    .name = "null",
    .op = "*",
    .needs = DS_ISA_REF,
    .run = compute_nothing,
};

const ds_kernel *dsi_null_kernel_choose(const ds_kernel_sig *sig, ds_isa has)
{
    (void)sig;
    (void)has;
    return &null_kernel;
}

static const ds_accel_kernels kernels = {.choose = dsi_null_kernel_choose};

const ds_accel dsi_accel_null = {.version = DS_ACCEL_VERSION,
                                 .name = "null",
                                 .doc = "computes nothing: plans and runs are counted alone",
                                 .memory = &dsi_host_memory,
                                 .kernels = &kernels,
                                 .counts_only = true};
