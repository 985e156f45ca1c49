/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules of operators that write parameters have in common. Their operands: 0 parameter, 1
 * the operator's own, 2 hyper, 3 factor, 4 master, 5 and 6 states. */
#ifndef DSI_OP_UPDATE_H
#define DSI_OP_UPDATE_H

#include "op/op_util.h"

/* An optimizer state: f32 or bf16, of this shape. */
ds_status dsi_op_need_state(const ds_infer *call, uint32_t i, const char *name, ds_shape shape);
/* The numbers of a step. */
ds_status dsi_op_need_hyper(const ds_infer *call, uint32_t i);
ds_status dsi_op_need_absent(const ds_infer *call, uint32_t i, const char *name);
/* Parameter (f32, bf16 or f16) and master (beside 16 bits only), the first two outputs. */
ds_status dsi_op_infer_weights(ds_infer *call);
/* The same with hyper, without a factor, and with both states of Adam. */
ds_status dsi_op_infer_adam(ds_infer *call);

#endif
