/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: rule. Its gradient is itself, with the same counters. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status dropout_infer(ds_infer *call)
{
    const dsi_dropout_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(dsi_op_need(call, 1, "rng", DS_DTYPE_I64, ds_shape_1d(4)));
    if (!(a->p >= 0.0 && a->p < 1.0)) {
        return dsi_op_bad_attr(call, "p is %g, expected in [0,1)", a->p);
    }
    if (a->site < 0 || a->site > UINT32_MAX) {
        return dsi_op_bad_attr(call, "site is %lld, expected a 32-bit number", (long long)a->site);
    }
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status dropout_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_dropout, call->attrs, call->d_out[0], call->in[1], &d));
    return dsi_grad_give(call, 0, d);
}

static const ds_attr dropout_attrs[] = {
    DSI_ATTR_REAL(dsi_dropout_attrs, p),
    DSI_ATTR_INT(dsi_dropout_attrs, site),
};

static void adapt_dropout(ds_place_case *c)
{
    const dsi_dropout_attrs *a = c->attrs;
    if (a->p > 0.0) {
        c->split[c->split[0] != '\0' ? 1 : 0] = '\0'; /* samples are the first dim */
        c->flags |= DS_PLACE_SAMPLES;
        c->hint = "dropout draws by sample, so only dim 0 may be cut, on axes where the random "
                  "state counts from the rank's own first sample";
    }
}

const ds_op dsi_op_dropout = {
    .version = DS_OP_VERSION,
    .name = "dropout",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place =
        DSI_PLACE(.in = "* _", .out = "*", .split = "*", .linear = "0", .adapt = adapt_dropout),
    .doc =
        "x (B,..), rng i64 (4) {seed, step, first global sample, 0} → x·keep/(1-p); keep is a pure "
        "function of seed, step, site, global sample and element.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .flags = DS_OP_RANDOM | DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_dropout_attrs),
    .attrs = dropout_attrs,
    .n_attrs = DSI_N(dropout_attrs),
    .infer = dropout_infer,
    .grad = dropout_grad,
    .cost = dsi_cost_elementwise,
};
