/* SPDX-License-Identifier: Apache-2.0 */
/* unit_matrix, muon: what Muon needs beside first_moment and products. compile/muon_graph.c puts
 * them together; docs/internals/optim.md states the arithmetic. */
#include "op/op_place.h"
#include "op/op_update.h"

/* The operands stand where every update has them. */
enum { IN_PARAM, IN_DIRECTION, IN_HYPER, IN_FACTOR, IN_MASTER };

static ds_status unit_infer(ds_infer *call)
{
    const dsi_unit_matrix_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 2));
    if (a->out_dtype != DS_DTYPE_F32 && a->out_dtype != DS_DTYPE_BF16) {
        return dsi_op_bad_attr(call, "out_dtype is %lld, expected that of f32 or bf16",
                               (long long)a->out_dtype);
    }
    call->out[0] = dsi_meta_of((ds_dtype)a->out_dtype, call->in[0].shape);
    return DS_OK;
}

static ds_status muon_infer(ds_infer *call)
{
    DS_TRY(dsi_op_infer_weights(call));
    DS_TRY(dsi_op_need_float(call, IN_DIRECTION, "direction", 0));
    DS_TRY(dsi_op_need(call, IN_DIRECTION, "direction", call->in[IN_DIRECTION].dtype,
                       call->out[0].shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    return dsi_op_need_absent(call, IN_FACTOR, "factor");
}

static void each_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 4.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr unit_attrs[] = {DSI_ATTR_INT(dsi_unit_matrix_attrs, out_dtype)};
static const int8_t writes_weights[] = {IN_PARAM, IN_MASTER};

const ds_op dsi_op_unit_matrix = {
    .version = DS_OP_VERSION,
    .name = "unit_matrix",
    .doc = "x (..,R,C) → each matrix x / (‖x‖ + 1e-7) in out_dtype, ‖x‖ from an exact sum of the "
           "squares of its elements rounded to it; matrices are whole.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_unit_matrix_attrs),
    .attrs = unit_attrs,
    .n_attrs = DSI_N(unit_attrs),
    .infer = unit_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*rc", .out = "*rc", .split = "*", .flags = DSI_PLACE_WHOLE),
};

const ds_op dsi_op_muon = {
    .version = DS_OP_VERSION,
    .name = "muon",
    .doc = "param (written), direction, hyper f32 (8), none, [master f32, written] → param, "
           "[master]: param·(1 - lr·wd) - lr·direction.",
    .n_in_min = IN_HYPER + 1,
    .n_in_max = IN_MASTER + 1,
    .n_out = 2,
    .flags = DS_OP_INPLACE,
    .writes = writes_weights,
    .infer = muon_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_OPTIMIZER,
    .role = DS_ROLE_UPDATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _ . *", .out = "* *", .split = "*",
                       .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
};
