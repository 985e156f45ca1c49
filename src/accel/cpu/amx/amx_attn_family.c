/* The attention kernels on AMX, as the family that registry.c lists. */
#include "accel/cpu/amx/amx_attention.h"

const ds_kernel *const dsi_amx_attention_family[] = {&dsi_amx_attention,
                                                     &dsi_amx_attention_backward, NULL};
