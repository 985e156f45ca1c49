/* SPDX-License-Identifier: Apache-2.0 */
/* adafactor_rows, adafactor_columns, adafactor_direction, adafactor: Adafactor in steps (Shazeer
 * and Stern, "Adafactor", 2018), since its means are of whole rows and columns and its norms of
 * whole tensors. compile/adafactor_graph.c puts them together; docs/internals/optim.md states the
 * arithmetic. */
#include "base/exact_bins.h"
#include "op/op_place.h"
#include "op/op_update.h"

enum { IN_MOMENT, IN_GRAD, IN_HYPER, IN_FACTOR };
enum { OF_GRAD, OF_FACTOR, OF_ROWS, OF_COLUMNS };
/* of the update; operands stand where every update has them */
enum {
    IN_PARAM,
    IN_DIRECTION,
    UPDATE_HYPER,
    IN_DIRECTION_SQUARES,
    IN_MASTER,
    IN_STATE,
    IN_SQUARES
};

/* The shape without its last dim, or (columns) the one before that; of a vector its own. */
static ds_shape moment_shape(ds_shape shape, bool columns)
{
    if (shape.n_dims < 2) {
        return shape;
    }
    if (columns) {
        shape.dims[shape.n_dims - 2] = shape.dims[shape.n_dims - 1];
    }
    shape.dims[--shape.n_dims] = 0;
    return shape;
}

static ds_status moment_infer(ds_infer *call, bool columns)
{
    DS_TRY(dsi_op_need_float(call, IN_GRAD, "grad", columns ? 2 : 1));
    DS_TRY(dsi_op_need(call, IN_MOMENT, "moment", DS_DTYPE_F32,
                       moment_shape(call->in[IN_GRAD].shape, columns)));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    DS_TRY(dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, (ds_shape){0}));
    call->out[0] = call->in[IN_MOMENT];
    return DS_OK;
}

static ds_status rows_infer(ds_infer *call)
{
    return moment_infer(call, false);
}

static ds_status columns_infer(ds_infer *call)
{
    return moment_infer(call, true);
}

static ds_status direction_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, OF_GRAD, "grad", 1));
    const ds_shape shape = call->in[OF_GRAD].shape;
    DS_TRY(dsi_op_need(call, OF_FACTOR, "factor", DS_DTYPE_F32, (ds_shape){0}));
    DS_TRY(dsi_op_need(call, OF_ROWS, "rows", DS_DTYPE_F32, moment_shape(shape, false)));
    if (shape.n_dims > 1) {
        DS_TRY(dsi_op_need(call, OF_COLUMNS, "columns", DS_DTYPE_F32, moment_shape(shape, true)));
    } else {
        DS_TRY(dsi_op_need_absent(call, OF_COLUMNS, "columns"));
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, shape);
    return DS_OK;
}

static ds_status update_infer(ds_infer *call)
{
    const dsi_adafactor_attrs *a = call->attrs;
    const ds_shape bins = ds_shape_1d(DSI_EXACT_WIDE);
    DS_TRY(dsi_op_infer_weights(call));
    const ds_shape shape = call->out[0].shape;
    DS_TRY(dsi_op_need(call, IN_DIRECTION, "direction", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_hyper(call, UPDATE_HYPER));
    DS_TRY(dsi_op_need(call, IN_DIRECTION_SQUARES, "direction's squares", DS_DTYPE_F64, bins));
    DS_TRY(dsi_op_need(call, IN_SQUARES, "squares", DS_DTYPE_F64, bins));
    if (a->count < 1) {
        return dsi_op_bad_attr(call, "count is %lld, expected at least 1", (long long)a->count);
    }
    if (dsi_op_has(call, IN_STATE)) {
        DS_TRY(dsi_op_need_state(call, IN_STATE, "exp_avg", shape));
    }
    call->out[2] = dsi_op_in(call, IN_STATE);
    return DS_OK;
}

static void each_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 4.0 * dsi_op_count(call->in[1]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr attrs[] = {
    DSI_ATTR_REAL(dsi_adafactor_attrs, eps), DSI_ATTR_REAL(dsi_adafactor_attrs, scale_eps),
    DSI_ATTR_REAL(dsi_adafactor_attrs, clip_threshold), DSI_ATTR_INT(dsi_adafactor_attrs, scales),
    DSI_ATTR_INT(dsi_adafactor_attrs, count)};
static const int8_t writes[] = {IN_PARAM, IN_MASTER, IN_STATE};

#define MOMENT_OP(op_name, infer_fn, text)                                                         \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = IN_FACTOR + 1,     \
        .n_in_max = IN_FACTOR + 1, .n_out = 1, .attrs_bytes = sizeof(dsi_adafactor_attrs),         \
        .attrs = attrs, .n_attrs = DSI_N(attrs), .infer = (infer_fn), .cost = each_cost,           \
        .op_class = DS_CLASS_REDUCE, .role = DS_ROLE_COMPUTE, .again = DS_AGAIN_COSTLY,            \
        .place = DSI_PLACE(.in = "_ _ _ _", .out = "_", .flags = DSI_PLACE_WHOLE),                 \
    }

const ds_op dsi_op_adafactor_rows = MOMENT_OP(
    "adafactor_rows", rows_infer,
    "rows f32 (..,R), grad (..,R,C), hyper f32 (8), factor f32 () → rows: beta2·rows + (1 - "
    "beta2)·the mean of each row of (grad·factor)² + eps; of a grad (N) the same of each element.");
const ds_op dsi_op_adafactor_columns = MOMENT_OP(
    "adafactor_columns", columns_infer,
    "columns f32 (..,C), grad (..,R,C), hyper f32 (8), factor f32 () → columns: as adafactor_rows, "
    "of columns.");
const ds_op dsi_op_adafactor_direction = {
    .version = DS_OP_VERSION,
    .name = "adafactor_direction",
    .doc = "grad (..,R,C), factor f32 (), rows f32 (..,R), columns f32 (..,C) → f32 (..,R,C): "
           "grad·factor over the root of rows·columns / the mean of rows; of a grad (N) over the "
           "root of rows, without columns.",
    .n_in_min = OF_ROWS + 1,
    .n_in_max = OF_COLUMNS + 1,
    .n_out = 1,
    .infer = direction_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "_ _ _ _", .out = "_", .flags = DSI_PLACE_WHOLE),
};
const ds_op dsi_op_adafactor = {
    .version = DS_OP_VERSION,
    .name = "adafactor",
    .doc = "param (written), direction, hyper f32 (8), the direction's squares f64 (19), [master "
           "f32, written], [exp_avg, written], the weight's squares f64 (19) → param, [master], "
           "[exp_avg]: the direction clipped to a root mean square of clip_threshold, times the "
           "rate, which is scaled by the weight's where scales is 1.",
    .n_in_min = IN_SQUARES + 1,
    .n_in_max = IN_SQUARES + 1,
    .n_out = 3,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_adafactor_attrs),
    .attrs = attrs,
    .n_attrs = DSI_N(attrs),
    .writes = writes,
    .infer = update_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_OPTIMIZER,
    .role = DS_ROLE_UPDATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _ _ * * _", .out = "* * *", .split = "*",
                       .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
};
