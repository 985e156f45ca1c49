/* SPDX-License-Identifier: Apache-2.0 */
/* weight_norms, squared lengths of the rows of an adapted weight (DoRA): rules. See ops.h. Squares,
 * since those of parts of a row add up. The gradient stops here: the lengths are taken as constants
 * (Liu et al., "DoRA", 2024, section 4.3). */
#include "op/op_packed.h"
#include "op/op_place.h"
#include "op/op_util.h"

#include <deepspeed/packing.h>

static ds_status norms_infer(ds_infer *call)
{
    const dsi_weight_norms_attrs *at = call->attrs;
    const ds_meta w = dsi_op_in(call, 0), a = dsi_op_in(call, 1);
    const bool packed = at->format != DS_PACKING_NONE;
    const ds_packed p = {(ds_packing)at->format, 0, at->rows, at->columns};
    if (at->format < 0 || at->format >= DS_PACKING_COUNT ||
        (packed && (at->rows < 1 || at->columns < 1))) {
        return dsi_op_bad_attr(call, "format %lld of %lld x %lld", (long long)at->format,
                               (long long)at->rows, (long long)at->columns);
    }
    DS_TRY(dsi_op_need_float(call, 1, "a", 2));
    if (packed) {
        DS_TRY(dsi_op_need_packed(call, 0, ds_packed_bytes(&p)));
    } else if (w.dtype != a.dtype || w.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "w", "%s of two dims", ds_dtype_name(a.dtype));
    }
    const int64_t o = packed ? at->rows : w.shape.dims[at->transposed != 0 ? 1 : 0];
    const int64_t k = packed ? at->columns : w.shape.dims[at->transposed != 0 ? 0 : 1];
    const int64_t rank = a.shape.n_dims == 2 ? a.shape.dims[0] : 0;
    DS_TRY(dsi_op_need(call, 1, "a", a.dtype, ds_shape_2d(rank, k)));
    DS_TRY(dsi_op_need(call, 2, "b", a.dtype, ds_shape_2d(o, rank)));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, ds_shape_1d(o));
    return DS_OK;
}

static ds_status no_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return DS_OK;
}

static void norms_cost(const ds_infer *call, ds_cost *cost_out)
{
    const ds_shape a = call->in[1].shape;
    cost_out->flops =
        2.0 * dsi_op_count(call->out[0]) * (double)a.dims[1] * (double)(a.dims[0] + 1);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr norms_attrs[] = {
    DSI_ATTR_REAL(dsi_weight_norms_attrs, scale),  DSI_ATTR_INT(dsi_weight_norms_attrs, transposed),
    DSI_ATTR_INT(dsi_weight_norms_attrs, format),  DSI_ATTR_INT(dsi_weight_norms_attrs, rows),
    DSI_ATTR_INT(dsi_weight_norms_attrs, columns),
};

/* A packed weight is cut where its cell is one for several ranks. */
static void adapt_norms(ds_place_case *c)
{
    const dsi_weight_norms_attrs *at = c->attrs;
    if (c->in_meta[0].shape.n_dims != 2) {
        dsi_place_drop(c->split, 'o');
        dsi_place_drop(c->split, 'k');
    } else if (at->transposed != 0) {
        dsi_place_swap_dims(c->in[0]);
    }
}

static void local_norms(const ds_infer *local, void *attrs)
{
    dsi_weight_norms_attrs *at = attrs;
    if (at->format != DS_PACKING_NONE) {
        at->rows = local->out[0].shape.dims[0];
        at->columns = ds_shape_last(local->in[1].shape);
    }
}

const ds_op dsi_op_weight_norms = {
    .version = DS_OP_VERSION,
    .name = "weight_norms",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "ok _k o_", .out = "o", .split = "ok", .sums = "k",
                       .adapt = adapt_norms, .local = local_norms),
    .doc = "w (O,K), (K,O) or u8 (N), a (R,K), b (O,R) → f32 (O): squared lengths of the rows of "
           "w + scale·b·a; no gradient goes through them.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_weight_norms_attrs),
    .attrs = norms_attrs,
    .n_attrs = DSI_N(norms_attrs),
    .infer = norms_infer,
    .grad = no_grad,
    .cost = norms_cost,
};
