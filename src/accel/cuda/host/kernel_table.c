/* SPDX-License-Identifier: Apache-2.0 */
/* See kernel_table.h. */
#include "accel/cuda/host/kernel_table.h"

#define DSC_ONE(name)   void dsc_kernel_##name(const void *args);
#define DSC_THREE(name) DSC_ONE(name##_f32) DSC_ONE(name##_bf16) DSC_ONE(name##_f16)
DSC_KERNEL_LIST(DSC_ONE, DSC_THREE)
#undef DSC_ONE
#undef DSC_THREE

const dsc_host_row dsc_host_table[DSC_FN_COUNT] = {
#define DSC_ONE(name)   [DSC_FN_##name] = {#name, dsc_kernel_##name},
#define DSC_THREE(name) DSC_ONE(name##_f32) DSC_ONE(name##_bf16) DSC_ONE(name##_f16)
    DSC_KERNEL_LIST(DSC_ONE, DSC_THREE)
#undef DSC_ONE
#undef DSC_THREE
};
