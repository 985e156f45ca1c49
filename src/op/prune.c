/* SPDX-License-Identifier: Apache-2.0 */
/* top_mask, mask_weight and mask_scores, weights of which a part counts as 0: rules. Used by the
 * compression of a model while it is trained (compile/compress_graph.c). A mask's gradient passes
 * straight through to the scores that it was made of. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status top_mask_infer(ds_infer *call)
{
    const dsi_top_mask_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    const ds_meta x = call->in[0];
    if (!(a->ratio >= 0.0 && a->ratio <= 1.0)) {
        return dsi_op_bad_attr(call, "ratio is %g, expected 0 to 1", a->ratio);
    }
    if (a->by < DSI_TOP_VALUE || a->by > DSI_TOP_ROW) {
        return dsi_op_bad_attr(call, "by is %lld, expected 0 to %d", (long long)a->by, DSI_TOP_ROW);
    }
    if (a->by == DSI_TOP_ROW && x.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "x", "two dims");
    }
    const int64_t rows = a->by == DSI_TOP_ROW ? x.shape.dims[a->transposed != 0 ? 1 : 0] : 0;
    call->out[0] = a->by == DSI_TOP_VALUE       ? dsi_meta_of(dsi_stat_dtype(x.dtype), x.shape)
                   : a->by == DSI_TOP_MAGNITUDE ? dsi_meta_of(DS_DTYPE_BOOL, x.shape)
                                                : dsi_meta_of(DS_DTYPE_BOOL, ds_shape_1d(rows));
    return DS_OK;
}

static ds_status top_mask_grad(ds_grad *call)
{
    const dsi_top_mask_attrs *a = call->attrs;
    dsi_grad_clear(call);
    return a->by == DSI_TOP_VALUE && call->d_out[0] != DS_NONE
               ? dsi_grad_give(call, 0, call->d_out[0])
               : DS_OK;
}

static const ds_attr top_mask_attrs[] = {
    DSI_ATTR_REAL(dsi_top_mask_attrs, ratio),
    DSI_ATTR_INT(dsi_top_mask_attrs, by),
    DSI_ATTR_INT(dsi_top_mask_attrs, transposed),
};

const ds_op dsi_op_top_mask = {
    .version = DS_OP_VERSION,
    .name = "top_mask",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_", .out = "_"),
    .doc = "x → mask: 1 at the largest elements of x (by 0, f32), at those of the largest "
           "magnitudes (by 1, bool), or for each row of a matrix that has the largest sum of "
           "magnitudes (by 2, bool); 0 elsewhere. Of equal ones the first.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_top_mask_attrs),
    .attrs = top_mask_attrs,
    .n_attrs = DSI_N(top_mask_attrs),
    .infer = top_mask_infer,
    .grad = top_mask_grad,
    .cost = dsi_cost_elementwise,
};

/* The shape of the mask of a weight. */
static ds_status mask_shape(const ds_infer *call, const dsi_mask_attrs *a, ds_shape w,
                            ds_shape *shape_out)
{
    const uint32_t out_dim = a->transposed != 0 ? 1 : 0;
    if (a->along == DSI_MASK_ELEMENTS) {
        *shape_out = w;
        return DS_OK;
    }
    if (a->along < 0 || a->along > DSI_MASK_HEADS || w.n_dims != 2) {
        return dsi_op_bad_attr(call, "along is %lld, expected 0 for any, 1 or 2 for a matrix",
                               (long long)a->along);
    }
    if (a->along == DSI_MASK_ROWS) {
        *shape_out = ds_shape_1d(w.dims[out_dim]);
        return DS_OK;
    }
    if (a->heads < 1 || w.dims[1 - out_dim] % a->heads != 0) {
        return dsi_op_bad_attr(call, "%lld heads do not divide the %lld inputs of the weight",
                               (long long)a->heads, (long long)w.dims[1 - out_dim]);
    }
    *shape_out = ds_shape_1d(a->heads);
    return DS_OK;
}

static ds_status mask_weight_infer(ds_infer *call)
{
    ds_shape shape;
    DS_TRY(dsi_op_need_float(call, 0, "w", 1));
    const ds_meta w = call->in[0];
    const ds_meta mask = dsi_op_in(call, 1);
    DS_TRY(mask_shape(call, call->attrs, w.shape, &shape));
    const bool known = mask.dtype == DS_DTYPE_BOOL || dsi_dtype_is_float(mask.dtype);
    if (!known || ds_shape_count(mask.shape) != ds_shape_count(shape)) {
        return dsi_op_bad(call, 1, "mask", "bool or a float, %lld elements",
                          (long long)ds_shape_count(shape));
    }
    DS_TRY(dsi_op_need(call, 2, "on", DS_DTYPE_F32, (ds_shape){0}));
    call->out[0] = w;
    return DS_OK;
}

static ds_status mask_weight_grad(ds_grad *call)
{
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    if (dsi_grad_wants(call, 0)) {
        const ds_value in[3] = {call->d_out[0], call->in[1], call->in[2]};
        DS_TRY(dsi_emit(call, &dsi_op_mask_weight, call->attrs, in, 3, out));
        DS_TRY(dsi_grad_give(call, 0, out[0]));
    }
    if (dsi_grad_wants(call, 1)) {
        const ds_value in[4] = {call->d_out[0], call->in[0], call->in[2], call->in[1]};
        DS_TRY(dsi_emit(call, &dsi_op_mask_scores, call->attrs, in, 4, out));
        DS_TRY(dsi_grad_give(call, 1, out[0]));
    }
    return DS_OK;
}

static const ds_attr mask_attrs[] = {
    DSI_ATTR_INT(dsi_mask_attrs, along),
    DSI_ATTR_INT(dsi_mask_attrs, heads),
    DSI_ATTR_INT(dsi_mask_attrs, transposed),
};

const ds_op dsi_op_mask_weight = {
    .version = DS_OP_VERSION,
    .name = "mask_weight",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_", .out = "_", .linear = "0"),
    .doc =
        "w, mask, on f32 () → w where the mask is not 0, else 0; w where on is 0. The mask has an "
        "element for each of w (along 0), for each row (O) (1), or for each of `heads` equal "
        "blocks of the inputs (2).",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .flags = DS_OP_PARAMETER,
    .attrs_bytes = sizeof(dsi_mask_attrs),
    .attrs = mask_attrs,
    .n_attrs = DSI_N(mask_attrs),
    .infer = mask_weight_infer,
    .grad = mask_weight_grad,
    .cost = dsi_cost_elementwise,
};

static ds_status mask_scores_infer(ds_infer *call)
{
    ds_shape shape;
    DS_TRY(dsi_op_need_float(call, 0, "dy", 1));
    DS_TRY(dsi_op_need_float(call, 1, "w", 1));
    const ds_meta dy = call->in[0];
    DS_TRY(dsi_op_need(call, 1, "w", call->in[1].dtype, dy.shape));
    DS_TRY(dsi_op_need(call, 2, "on", DS_DTYPE_F32, (ds_shape){0}));
    DS_TRY(mask_shape(call, call->attrs, dy.shape, &shape));
    const ds_meta mask = dsi_op_in(call, 3);
    if (!dsi_dtype_is_float(mask.dtype) || ds_shape_count(mask.shape) != ds_shape_count(shape)) {
        return dsi_op_bad(call, 3, "mask", "a float, %lld elements",
                          (long long)ds_shape_count(shape));
    }
    call->out[0] = dsi_meta_of(dsi_stat_dtype(dy.dtype), mask.shape);
    return DS_OK;
}

const ds_op dsi_op_mask_scores = {
    .version = DS_OP_VERSION,
    .name = "mask_scores",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "_", .out = "_", .linear = "0"),
    .doc = "dy, w, on f32 (), mask → gradient of mask_weight's mask: sums of dy·w over what each "
           "element of the mask stands for; 0 where on is 0. The mask gives the shape alone.",
    .n_in_min = 4,
    .n_in_max = 4,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_mask_attrs),
    .attrs = mask_attrs,
    .n_attrs = DSI_N(mask_attrs),
    .infer = mask_scores_infer,
    .cost = dsi_cost_elementwise,
};
