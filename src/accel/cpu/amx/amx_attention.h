/* What the forward and backward kernels of attention on AMX share. */
#ifndef DSI_ACCEL_CPU_AMX_ATTENTION_H
#define DSI_ACCEL_CPU_AMX_ATTENTION_H

#include "accel/cpu/amx/amx_attn_tile.h"

#include <deepspeed/op.h>

extern const ds_kernel dsi_amx_attention;
extern const ds_kernel dsi_amx_attention_backward;
extern const ds_kernel *const dsi_amx_attention_family[]; /* NULL-terminated */

#endif
