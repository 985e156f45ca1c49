/* SPDX-License-Identifier: Apache-2.0 */
/* bmm, a matrix product for each item of a batch: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <string.h>

/* Length of a matrix's rows (which 0) or columns (1) as the product reads it. */
static int64_t side(ds_shape shape, int64_t transposed, uint32_t which)
{
    const uint32_t at = transposed != 0 ? 1 - which : which;
    return shape.dims[shape.n_dims - 2 + at];
}

static ds_status check_dtype(const ds_infer *call, int64_t dtype)
{
    if (dtype != 0 &&
        (dtype < 0 || dtype >= DS_DTYPE_COUNT || !dsi_dtype_is_float((ds_dtype)dtype))) {
        return dsi_op_bad_attr(call, "out_dtype is %lld, expected 0 or a float dtype",
                               (long long)dtype);
    }
    return DS_OK;
}

static ds_status bmm_infer(ds_infer *call)
{
    const dsi_bmm_attrs *t = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "a", 2));
    DS_TRY(check_dtype(call, t->out_dtype));
    const ds_meta a = call->in[0];
    const ds_meta b = dsi_op_in(call, 1);
    const int64_t k = side(a.shape, t->a_transposed, 1);
    ds_meta want = a; /* b's shape but for its columns */
    const uint32_t k_dim = a.shape.n_dims - (t->b_transposed != 0 ? 1 : 2);
    const uint32_t n_dim = a.shape.n_dims - (t->b_transposed != 0 ? 2 : 1);
    want.shape.dims[k_dim] = k;
    want.shape.dims[n_dim] = b.shape.n_dims == a.shape.n_dims ? b.shape.dims[n_dim] : 0;
    if (b.dtype != a.dtype || !ds_shape_equal(b.shape, want.shape)) {
        char text[96];
        return dsi_op_bad(call, 1, "b", "the dtype and leading dims of a (%s) and %lld %s",
                          ds_meta_text(a, text, sizeof text), (long long)k,
                          t->b_transposed != 0 ? "columns" : "rows");
    }
    ds_shape y = a.shape;
    y.dims[y.n_dims - 2] = side(a.shape, t->a_transposed, 0);
    y.dims[y.n_dims - 1] = side(b.shape, t->b_transposed, 1);
    call->out[0] = dsi_meta_of(t->out_dtype != 0 ? (ds_dtype)t->out_dtype : a.dtype, y);
    return DS_OK;
}

static void bmm_cost(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_bmm_attrs *t = call->attrs;
    const ds_shape y = call->out[0].shape;
    cost_out->m = y.dims[y.n_dims - 2];
    cost_out->n = y.dims[y.n_dims - 1];
    cost_out->k = side(call->in[0].shape, t->a_transposed, 1);
    cost_out->flops = 2.0 * dsi_op_count(call->out[0]) * (double)cost_out->k;
    cost_out->bytes = dsi_op_bytes(call);
}

/* A parameter's gradient leaves the product in fp32, as that of linear. */
static int64_t grad_dtype(const ds_grad *call, uint32_t input)
{
    const ds_value in = call->in[input];
    return ds_graph_cell_of(call->graph, in) == DS_NONE
               ? 0
               : (int64_t)dsi_stat_dtype(dsi_grad_meta(call, in).dtype);
}

static ds_status give(ds_grad *call, uint32_t input, ds_value left, ds_value right,
                      int64_t left_transposed, int64_t right_transposed)
{
    const dsi_bmm_attrs t = {left_transposed, right_transposed, grad_dtype(call, input)};
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_bmm, &t, left, right, &d));
    return dsi_grad_give(call, input, d);
}

/* y = A·B: dA = dy·Bᵀ and dB = Aᵀ·dy, each transposed as a whole where its operand is. */
static ds_status bmm_grad(ds_grad *call)
{
    const dsi_bmm_attrs *t = call->attrs;
    const ds_value a = call->in[0];
    const ds_value b = call->in[1];
    ds_value d = call->d_out[0];
    dsi_grad_clear(call);
    if (d == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_emit_cast(call, d, dsi_grad_meta(call, a).dtype, &d));
    if (dsi_grad_wants(call, 0)) {
        DS_TRY(t->a_transposed != 0 ? give(call, 0, b, d, t->b_transposed, 1)
                                    : give(call, 0, d, b, 0, t->b_transposed == 0));
    }
    if (dsi_grad_wants(call, 1)) {
        DS_TRY(t->b_transposed != 0 ? give(call, 1, d, a, 1, t->a_transposed)
                                    : give(call, 1, a, d, t->a_transposed == 0, 0));
    }
    return DS_OK;
}

static void swap_last(char *label)
{
    dsi_place_swap_dims(label + strlen(label) - 2);
}

static void adapt_bmm(ds_place_case *c)
{
    const dsi_bmm_attrs *t = c->attrs;
    if (t->a_transposed != 0) {
        swap_last(c->in[0]);
    }
    if (t->b_transposed != 0) {
        swap_last(c->in[1]);
    }
}

static const ds_attr bmm_attrs[] = {
    DSI_ATTR_INT(dsi_bmm_attrs, a_transposed),
    DSI_ATTR_INT(dsi_bmm_attrs, b_transposed),
    DSI_ATTR_INT(dsi_bmm_attrs, out_dtype),
};

const ds_op dsi_op_bmm = {
    .version = DS_OP_VERSION,
    .name = "bmm",
    .op_class = DS_CLASS_LINEAR,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*mk *kn", .out = "*mn", .split = "*mnk", .sums = "k", .linear = "0|1",
                       .adapt = adapt_bmm),
    .doc = "a (..,M,K) or, transposed, (..,K,M), b (..,K,N) or, transposed, (..,N,K) → (..,M,N): "
           "a matrix product for each item of the leading dims, which are alike.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_bmm_attrs),
    .attrs = bmm_attrs,
    .n_attrs = DSI_N(bmm_attrs),
    .infer = bmm_infer,
    .grad = bmm_grad,
    .cost = bmm_cost,
};
