/* SPDX-License-Identifier: Apache-2.0 */
/* linear_packed, a product with a frozen matrix in few bits: rules. See ops.h for what it computes.
 * The matrix is unpacked inside of the product, a part at a time; nobody holds it whole. */
#include "op/op_packed.h"
#include "op/op_place.h"
#include "op/op_util.h"

#include <deepspeed/packing.h>

static ds_status check_attrs(const ds_infer *call, const dsi_linear_packed_attrs *a)
{
    if (a->format <= DS_PACKING_NONE || a->format >= DS_PACKING_COUNT) {
        return dsi_op_bad_attr(call, "format is %lld, expected 1 to %d", (long long)a->format,
                               DS_PACKING_COUNT - 1);
    }
    if (a->rows < 1 || a->columns < 1) {
        return dsi_op_bad_attr(call, "a matrix of %lld x %lld", (long long)a->rows,
                               (long long)a->columns);
    }
    if (a->out_dtype != 0 && (a->out_dtype < 0 || a->out_dtype >= DS_DTYPE_COUNT ||
                              !dsi_dtype_is_float((ds_dtype)a->out_dtype))) {
        return dsi_op_bad_attr(call, "out_dtype is %lld, expected 0 or a float dtype",
                               (long long)a->out_dtype);
    }
    return DS_OK;
}

ds_status dsi_op_need_packed(const ds_infer *call, uint32_t i, size_t bytes)
{
    const ds_meta meta = dsi_op_in(call, i);
    if (meta.dtype == DS_DTYPE_U8 && meta.shape.n_dims == 2 && ds_meta_bytes(meta) >= bytes) {
        return DS_OK;
    }
    return dsi_op_need(call, i, "w", DS_DTYPE_U8, ds_shape_1d((int64_t)bytes));
}

static ds_status packed_infer(ds_infer *call)
{
    const dsi_linear_packed_attrs *a = call->attrs;
    DS_TRY(check_attrs(call, a));
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    const ds_packed w = {(ds_packing)a->format, 0, a->rows, a->columns};
    const size_t bytes = ds_packed_bytes(&w);
    const ds_meta x = call->in[0];
    const int64_t k = a->transposed != 0 ? a->rows : a->columns;
    const int64_t o = a->transposed != 0 ? a->columns : a->rows;
    if (bytes > INT64_MAX) {
        return dsi_op_bad_attr(call, "a matrix of %lld x %lld", (long long)a->rows,
                               (long long)a->columns);
    }
    if (ds_shape_last(x.shape) != k) {
        return dsi_op_bad(call, 0, "x", "%s[..,%lld]", ds_dtype_name(x.dtype), (long long)k);
    }
    DS_TRY(dsi_op_need_packed(call, 1, bytes));
    DS_TRY(dsi_op_may(call, 2, "bias", x.dtype, ds_shape_1d(o)));
    call->out[0] = dsi_meta_of(a->out_dtype != 0 ? (ds_dtype)a->out_dtype : x.dtype,
                               dsi_shape_with_last(x.shape, o));
    return DS_OK;
}

static ds_status packed_grad(ds_grad *call)
{
    const dsi_linear_packed_attrs *a = call->attrs;
    ds_value d = call->d_out[0];
    dsi_grad_clear(call);
    if (d == DS_NONE) {
        return DS_OK;
    }
    if (dsi_grad_wants(call, 1)) {
        return ds_fail(ds_graph_ctx(call->graph), DS_ERR_UNSUPPORTED,
                       "linear_packed: a packed weight has no gradient");
    }
    DS_TRY(dsi_emit_cast(call, d, dsi_grad_meta(call, call->in[0]).dtype, &d));
    if (dsi_grad_wants(call, 0)) {
        dsi_linear_packed_attrs dx = *a;
        dx.transposed = a->transposed == 0;
        dx.out_dtype = 0;
        const ds_value in[2] = {d, call->in[1]};
        ds_value outs[DS_MAX_OUT];
        DS_TRY(dsi_emit(call, &dsi_op_linear_packed, &dx, in, 2, outs));
        DS_TRY(dsi_grad_give(call, 0, outs[0]));
    }
    if (dsi_grad_wants(call, 2)) {
        DS_TRY(dsi_emit1(call, &dsi_op_sum_rows, NULL, d, &d));
        DS_TRY(dsi_grad_give(call, 2, d));
    }
    return DS_OK;
}

static void packed_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->m = ds_shape_rows(call->in[0].shape);
    cost_out->n = ds_shape_last(call->out[0].shape);
    cost_out->k = ds_shape_last(call->in[0].shape);
    cost_out->flops = 2.0 * dsi_op_count(call->out[0]) * (double)cost_out->k;
    cost_out->bytes = dsi_op_bytes(call);
}

/* Ranks share the matrix where its cell is one for several. x·w goes the other way. */
static void adapt_packed(ds_place_case *c)
{
    const dsi_linear_packed_attrs *a = c->attrs;
    if (c->in_meta[1].shape.n_dims != 2) {
        dsi_place_drop(c->split, 'o');
        dsi_place_drop(c->split, 'k');
    } else if (a->transposed != 0) {
        dsi_place_swap_dims(c->in[1]);
    }
}

static void local_packed(const ds_infer *local, void *attrs)
{
    dsi_linear_packed_attrs *a = attrs;
    const int64_t k = ds_shape_last(local->in[0].shape), o = ds_shape_last(local->out[0].shape);
    a->rows = a->transposed != 0 ? k : o;
    a->columns = a->transposed != 0 ? o : k;
}

static const ds_attr packed_attrs[] = {
    DSI_ATTR_INT(dsi_linear_packed_attrs, format),
    DSI_ATTR_INT(dsi_linear_packed_attrs, rows),
    DSI_ATTR_INT(dsi_linear_packed_attrs, columns),
    DSI_ATTR_INT(dsi_linear_packed_attrs, transposed),
    DSI_ATTR_INT(dsi_linear_packed_attrs, out_dtype),
};

const ds_op dsi_op_linear_packed = {
    .version = DS_OP_VERSION,
    .name = "linear_packed",
    .op_class = DS_CLASS_LINEAR,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*k ok o", .out = "*o<01+2", .split = "*ok", .sums = "k",
                       .linear = "02", .adapt = adapt_packed, .local = local_packed),
    .doc = "x (..,K), w u8 (N), or (R,E) of R ranks, a matrix in few bits, [bias (O)] → y (..,O): "
           "x·wᵀ + bias or, "
           "transposed, x·w, the elements of w rounded to x's dtype; w has no gradient.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_linear_packed_attrs),
    .attrs = packed_attrs,
    .n_attrs = DSI_N(packed_attrs),
    .infer = packed_infer,
    .grad = packed_grad,
    .cost = packed_cost,
};
