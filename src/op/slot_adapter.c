/* SPDX-License-Identifier: Apache-2.0 */
/* slot_adapter: to each token's output of a linear layer its own low-rank adapter's (Hu et al.,
 * "LoRA", 2021; several in a batch: Chen et al., "Punica", 2023). Rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status slot_adapter_infer(ds_infer *call)
{
    const ds_meta y = dsi_op_in(call, 0);
    const ds_meta x = dsi_op_in(call, 1);
    DS_TRY(dsi_op_need_float(call, 0, "y", 3));
    DS_TRY(dsi_op_need_float(call, 1, "x", 3));
    if (y.shape.n_dims != 3 || y.shape.dims[0] != 1) {
        return dsi_op_bad(call, 0, "y", "a float tensor (1,T,N)");
    }
    const int64_t n_tokens = y.shape.dims[1];
    if (x.shape.n_dims != 3 || x.shape.dims[0] != 1 || x.shape.dims[1] != n_tokens) {
        return dsi_op_bad(call, 1, "x", "a float tensor (1,%lld,C)", (long long)n_tokens);
    }
    const ds_meta a = dsi_op_in(call, 2);
    if (a.dtype != x.dtype || a.shape.n_dims != 3 || a.shape.dims[1] != x.shape.dims[2]) {
        return dsi_op_bad(call, 2, "a", "%s (S,%lld,R)", ds_dtype_name(x.dtype),
                          (long long)x.shape.dims[2]);
    }
    DS_TRY(dsi_op_need(call, 3, "b", x.dtype,
                       ds_shape_3d(a.shape.dims[0], a.shape.dims[2], y.shape.dims[2])));
    DS_TRY(dsi_op_need(call, 4, "slots", DS_DTYPE_I32, ds_shape_1d(n_tokens)));
    call->out[0] = y;
    return DS_OK;
}

/* As if each token had an adapter. */
static void slot_adapter_cost(const ds_infer *call, ds_cost *cost_out)
{
    const ds_shape a = call->in[2].shape;
    const ds_shape y = call->in[0].shape;
    const double each = (double)a.dims[2] * (double)(a.dims[1] + y.dims[2]);
    cost_out->flops = 2.0 * (double)y.dims[1] * each;
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->in[0]) +
                      (double)ds_meta_bytes(call->in[1]) +
                      each * (double)ds_dtype_bytes(call->in[2].dtype);
}

const ds_op dsi_op_slot_adapter = {
    .version = DS_OP_VERSION,
    .name = "slot_adapter",
    .op_class = DS_CLASS_LINEAR,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "__o __k _k_ __o _", .out = "__o<1234+0", .split = "ok", .sums = "k",
                       .linear = "01"),
    .doc = "y (1,T,N), x (1,T,C), a (S,C,R), b (S,R,N), slots i32 (T) → y + (x·a[s])·b[s] with s "
           "the token's slot; y itself where that is -1. The sum is in fp32 and rounded once. A "
           "slot of no adapter is an error.",
    .n_in_min = 5,
    .n_in_max = 5,
    .n_out = 1,
    .infer = slot_adapter_infer,
    .cost = slot_adapter_cost,
};
