/* SPDX-License-Identifier: Apache-2.0 */
/* adam_8bit: AdamW with states in 8 bits (Dettmers et al., "8-bit Optimizers via Block-wise
 * Quantization", 2022): rules. docs/internals/optim.md states the arithmetic.
 *
 * A block is 256 neighbours of a whole tensor, so that the operator stands in a graph that no rank
 * cuts: run_spec.c refuses the rest. */
#include "op/op_place.h"
#include "op/op_update.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_ABSMAX = IN_STATE + 2 };

static ds_status infer(ds_infer *call)
{
    static const char *const states[] = {"exp_avg", "exp_avg_sq"};
    static const char *const sizes[] = {"absmax", "absmax_sq"};
    DS_TRY(dsi_op_infer_weights(call));
    const ds_shape shape = call->out[0].shape;
    const int64_t n = ds_shape_count(shape);
    DS_TRY(dsi_op_need_float(call, IN_GRAD, "grad", 0));
    DS_TRY(dsi_op_need(call, IN_GRAD, "grad", call->in[IN_GRAD].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    DS_TRY(dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, (ds_shape){0}));
    for (uint32_t i = 0; i < 2; ++i) {
        DS_TRY(dsi_op_need(call, IN_STATE + i, states[i], DS_DTYPE_U8, shape));
        DS_TRY(dsi_op_need(call, IN_ABSMAX + i, sizes[i], DS_DTYPE_F32,
                           ds_shape_1d((n + DSI_8BIT_BLOCK - 1) / DSI_8BIT_BLOCK)));
        call->out[2 + i] = call->in[IN_STATE + i];
        call->out[4 + i] = call->in[IN_ABSMAX + i];
    }
    return DS_OK;
}

static void cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 48.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const int8_t writes[] = {IN_PARAM,     IN_MASTER, IN_STATE,
                                IN_STATE + 1, IN_ABSMAX, IN_ABSMAX + 1};

const ds_op dsi_op_adam_8bit = {
    .version = DS_OP_VERSION,
    .name = "adam_8bit",
    .doc = "param, grad, hyper f32 (8), factor f32 (), [master f32], exp_avg u8, exp_avg_sq u8, "
           "absmax f32 (ceil(N/256)), absmax_sq → the written ones: AdamW; each 256 elements of a "
           "state are entries of a table of 256 numbers times their largest magnitude.",
    .n_in_min = IN_ABSMAX + 2,
    .n_in_max = IN_ABSMAX + 2,
    .n_out = 6,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_optim_attrs),
    .attrs = attrs,
    .n_attrs = DSI_N(attrs),
    .writes = writes,
    .infer = infer,
    .cost = cost,
    .op_class = DS_CLASS_OPTIMIZER,
    .role = DS_ROLE_UPDATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "_ _ _ _ _ _ _ _ _", .out = "_ _ _ _ _ _", .flags = DS_PLACE_UPDATE),
};
