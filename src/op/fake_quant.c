/* SPDX-License-Identifier: Apache-2.0 */
/* fake_quant and fake_quant_rows, numbers as they come out of a quantized format: rules. Used by
 * the compression of a model while it is trained (compile/compress_graph.c). The gradient passes
 * straight through: that of the output is that of the input. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status fake_quant_infer(ds_infer *call)
{
    const dsi_fake_quant_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "w", 2));
    DS_TRY(dsi_op_need(call, 1, "control", DS_DTYPE_F32, ds_shape_1d(DSI_QUANT_COUNT)));
    DS_TRY(dsi_op_may(call, 2, "draw", DS_DTYPE_I64, ds_shape_1d(2)));
    const ds_meta w = call->in[0];
    if (w.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "w", "two dims");
    }
    if (a->groups < 1 || ds_shape_count(w.shape) % a->groups != 0) {
        return dsi_op_bad_attr(call, "%lld groups do not divide the %lld elements of the weight",
                               (long long)a->groups, (long long)ds_shape_count(w.shape));
    }
    if (a->stochastic != 0 && !dsi_op_has(call, 2)) {
        return dsi_op_bad_attr(call, "stochastic rounding needs the input draw");
    }
    call->out[0] = w;
    return DS_OK;
}

static ds_status straight_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] != DS_NONE ? dsi_grad_give(call, 0, call->d_out[0]) : DS_OK;
}

static const ds_attr fake_quant_attrs[] = {
    DSI_ATTR_INT(dsi_fake_quant_attrs, groups),     DSI_ATTR_INT(dsi_fake_quant_attrs, asymmetric),
    DSI_ATTR_INT(dsi_fake_quant_attrs, transposed), DSI_ATTR_INT(dsi_fake_quant_attrs, stochastic),
    DSI_ATTR_INT(dsi_fake_quant_attrs, site),
};

const ds_op dsi_op_fake_quant = {
    .version = DS_OP_VERSION,
    .name = "fake_quant",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_", .out = "_"),
    .doc =
        "w (O,I), control f32 (4), [draw i64 (2)] → w as its quantized format holds it: `groups` "
        "equal parts of the flat weight with a scale each.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .flags = DS_OP_PARAMETER,
    .attrs_bytes = sizeof(dsi_fake_quant_attrs),
    .attrs = fake_quant_attrs,
    .n_attrs = DSI_N(fake_quant_attrs),
    .infer = fake_quant_infer,
    .grad = straight_grad,
    .cost = dsi_cost_elementwise,
};

static ds_status fake_quant_rows_infer(ds_infer *call)
{
    const dsi_fake_quant_rows_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(dsi_op_need(call, 1, "on", DS_DTYPE_F32, (ds_shape){0}));
    if (a->bits < 3 || a->bits > DSI_QUANT_MAX_BITS) {
        return dsi_op_bad_attr(call, "bits is %lld, expected 3 to %d", (long long)a->bits,
                               DSI_QUANT_MAX_BITS);
    }
    call->out[0] = call->in[0];
    return DS_OK;
}

static const ds_attr fake_quant_rows_attrs[] = {
    DSI_ATTR_INT(dsi_fake_quant_rows_attrs, bits),
    DSI_ATTR_INT(dsi_fake_quant_rows_attrs, asymmetric),
};

const ds_op dsi_op_fake_quant_rows = {
    .version = DS_OP_VERSION,
    .name = "fake_quant_rows",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*_ .", .out = "*_", .split = "*"),
    .doc = "x (..,C), on f32 () → x as a format of `bits` bits with a scale for each row holds it; "
           "x where on is 0.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_fake_quant_rows_attrs),
    .attrs = fake_quant_rows_attrs,
    .n_attrs = DSI_N(fake_quant_rows_attrs),
    .infer = fake_quant_rows_infer,
    .grad = straight_grad,
    .cost = dsi_cost_elementwise,
};
