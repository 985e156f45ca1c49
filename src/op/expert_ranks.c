/* SPDX-License-Identifier: Apache-2.0 */
/* Rows sorted by expert, between the ranks that they come from and those that have their experts:
 * rules. localize makes collectives along ep and sp of them (localize_experts.c), so that only
 * expert_segments has kernels; a graph of one rank has none of them. See ops.h. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status check_attrs(const ds_infer *call)
{
    const dsi_expert_ranks_attrs *a = call->attrs;
    if (a->n_ranks < 1 || a->n_ranks > INT32_MAX || a->n_rows < 0 || a->copies > INT32_MAX) {
        return dsi_op_bad_attr(call, "n_ranks is %lld and n_rows %lld, expected at least 1 and 0",
                               (long long)a->n_ranks, (long long)a->n_rows);
    }
    return DS_OK;
}

static int64_t n_copies(const ds_infer *call)
{
    const dsi_expert_ranks_attrs *a = call->attrs;
    return a->copies > 1 ? a->copies : 1;
}

/* Input i: offsets of each rank, for experts that the ranks share evenly. */
static ds_status check_table(const ds_infer *call, uint32_t i)
{
    const dsi_expert_ranks_attrs *a = call->attrs;
    const ds_meta table = dsi_op_in(call, i);
    DS_TRY(check_attrs(call));
    if (table.dtype != DS_DTYPE_I32 || table.shape.n_dims != 2 ||
        table.shape.dims[0] != a->n_ranks * n_copies(call) || table.shape.dims[1] < 2 ||
        (table.shape.dims[1] - 1) % a->n_ranks != 0) {
        return dsi_op_bad(call, i, "table", "i32[%lld,E+1], E a multiple of %lld",
                          (long long)(a->n_ranks * n_copies(call)), (long long)a->n_ranks);
    }
    return DS_OK;
}

static ds_status gather_infer(ds_infer *call)
{
    const dsi_expert_ranks_attrs *a = call->attrs;
    const ds_meta offsets = dsi_op_in(call, 0);
    const int64_t parts = a->parts > 1 ? a->parts : 1;
    DS_TRY(check_attrs(call));
    if (offsets.dtype != DS_DTYPE_I32 || offsets.shape.n_dims != 1 ||
        offsets.shape.dims[0] < 2 * parts || offsets.shape.dims[0] % parts != 0) {
        return dsi_op_bad(call, 0, "offsets", "i32 (E+1), or such a list for each part");
    }
    call->out[0] = dsi_meta_of(
        DS_DTYPE_I32, ds_shape_2d(a->n_ranks * n_copies(call), offsets.shape.dims[0] / parts));
    return DS_OK;
}

static ds_status segments_infer(ds_infer *call)
{
    DS_TRY(check_table(call, 0));
    const ds_shape table = call->in[0].shape;
    call->out[0] = dsi_meta_of(DS_DTYPE_I32, ds_shape_1d(table.dims[0] * table.dims[1]));
    return DS_OK;
}

static ds_status rows_infer(ds_infer *call)
{
    const dsi_expert_ranks_attrs *a = call->attrs;
    const bool sends = call->op == &dsi_op_to_experts;
    DS_TRY(dsi_op_need_float(call, 0, "rows", 2));
    DS_TRY(check_table(call, 1));
    const ds_meta rows = call->in[0];
    const int64_t all = sends ? 1 : a->n_ranks * n_copies(call);
    if (rows.shape.n_dims != 2 || rows.shape.dims[0] % all != 0) {
        return dsi_op_bad(call, 0, "rows", "rows (R,C), of as many for each of %lld ranks",
                          (long long)all);
    }
    const int64_t n = sends ? a->n_ranks * n_copies(call) * a->n_rows : a->n_rows;
    call->out[0] = dsi_meta_of(rows.dtype, ds_shape_2d(n, rows.shape.dims[1]));
    return DS_OK;
}

/* Each goes back by the other. */
static ds_status rows_grad(ds_grad *call, const ds_op *back)
{
    const dsi_expert_ranks_attrs *a = call->attrs;
    const int64_t n = dsi_grad_meta(call, call->in[0]).shape.dims[0];
    const int64_t all = a->n_ranks * (a->copies > 1 ? a->copies : 1);
    const dsi_expert_ranks_attrs attrs = {.n_ranks = a->n_ranks,
                                          .n_rows = back == &dsi_op_to_experts ? n / all : n,
                                          .gradient = 1,
                                          .copies = a->copies,
                                          .tokens = a->tokens};
    const ds_value in[2] = {call->d_out[0], call->in[1]};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (in[0] != DS_NONE && dsi_grad_wants(call, 0)) {
        DS_TRY(dsi_emit(call, back, &attrs, in, 2, out));
        DS_TRY(dsi_grad_give(call, 0, out[0]));
    }
    return DS_OK;
}

static ds_status to_experts_grad(ds_grad *call)
{
    return rows_grad(call, &dsi_op_from_experts);
}

static ds_status from_experts_grad(ds_grad *call)
{
    return rows_grad(call, &dsi_op_to_experts);
}

static const ds_attr rank_attrs[] = {
    DSI_ATTR_INT(dsi_expert_ranks_attrs, n_ranks),  DSI_ATTR_INT(dsi_expert_ranks_attrs, n_rows),
    DSI_ATTR_INT(dsi_expert_ranks_attrs, gradient), DSI_ATTR_INT(dsi_expert_ranks_attrs, parts),
    DSI_ATTR_INT(dsi_expert_ranks_attrs, copies),   DSI_ATTR_INT(dsi_expert_ranks_attrs, tokens)};

#define EXPERT_RANKS_OP(op_name, n, flags_are, infer_fn, grad_fn, place_is, text)                  \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n),               \
        .n_in_max = (n), .n_out = 1, .flags = (flags_are),                                         \
        .attrs_bytes = sizeof(dsi_expert_ranks_attrs), .attrs = rank_attrs,                        \
        .n_attrs = DSI_N(rank_attrs), .infer = (infer_fn), .grad = (grad_fn),                      \
        .op_class = DS_CLASS_ELEMENTWISE, .role = DS_ROLE_COMPUTE, .again = DS_AGAIN_COSTLY,       \
        .place = (place_is), .cost = dsi_cost_elementwise,                                         \
    }

const ds_op dsi_op_gather_offsets =
    EXPERT_RANKS_OP("gather_offsets", 1, DS_OP_RANKS, gather_infer, NULL,
                    DSI_PLACE(.in = "_", .out = "__", .flags = DSI_PLACE_EXPERTS),
                    "offsets i32 (E+1), each rank's own → i32 (copies·n_ranks,E+1), which all of "
                    "a copy's ranks have.");
const ds_op dsi_op_expert_segments = EXPERT_RANKS_OP(
    "expert_segments", 1, 0, segments_infer, NULL,
    DSI_PLACE(.in = "__", .out = "_", .flags = DSI_PLACE_EXPERTS),
    "table i32 (n_ranks,E+1) of offsets → i32 (n_ranks·(E+1)): for each rank the offsets of the "
    "rows that it gets, by where they come from, then by which of its E/n_ranks experts they are "
    "for.");
const ds_op dsi_op_to_experts = EXPERT_RANKS_OP(
    "to_experts", 2, DS_OP_RANKS, rows_infer, to_experts_grad,
    DSI_PLACE(.in = "_c __", .out = "_c", .split = "c", .linear = "0", .flags = DSI_PLACE_EXPERTS),
    "rows (R,C) sorted by expert, each rank's own, table i32 (n_ranks,E+1) of all "
    "ranks' offsets → (n_ranks·n_rows,C): on each rank the rows for its experts, "
    "by where they come from; then anything. gradient: what comes is still to be "
    "divided by the ranks.");
const ds_op dsi_op_from_experts = EXPERT_RANKS_OP(
    "from_experts", 2, DS_OP_RANKS, rows_infer, from_experts_grad,
    DSI_PLACE(.in = "_c __", .out = "_c", .split = "c", .linear = "0", .flags = DSI_PLACE_EXPERTS),
    "rows (n_ranks·N,C) as to_experts sends them, table → (n_rows,C): each rank's own again, as it "
    "had sent them. gradient: what goes back is of each rank's own loss.");

/* ---- split_tokens, join_tokens ----------------------------------------------------------------
 */
static ds_status tokens_infer(ds_infer *call)
{
    DS_TRY(check_attrs(call));
    call->out[0] = dsi_op_in(call, 0);
    const ds_shape x = call->in[0].shape;
    const int64_t ranks = ((const dsi_expert_ranks_attrs *)call->attrs)->n_ranks;
    return x.n_dims == 3 && x.dims[1] % ranks == 0
               ? DS_OK
               : dsi_op_bad(call, 0, "x", "(B,T,..), T a multiple of the %lld ranks that share it",
                            (long long)ranks);
}

static ds_status split_grad(ds_grad *call)
{
    return dsi_grad_by(call, &dsi_op_join_tokens, call->attrs);
}

static ds_status join_grad(ds_grad *call)
{
    return dsi_grad_by(call, &dsi_op_split_tokens, call->attrs);
}

static void tokens_cost(const ds_infer *call, ds_cost *cost_out)
{
    (void)call;
    *cost_out = (ds_cost){0};
}

#define TOKENS_OP(op_name, again_is, grad_fn, text)                                                \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 1, .n_in_max = 1,  \
        .n_out = 1, .flags = DS_OP_VIEW | DS_OP_RANKS,                                             \
        .attrs_bytes = sizeof(dsi_expert_ranks_attrs), .attrs = rank_attrs,                        \
        .n_attrs = DSI_N(rank_attrs), .infer = tokens_infer, .grad = (grad_fn),                    \
        .op_class = DS_CLASS_VIEW, .role = DS_ROLE_COMPUTE, .again = (again_is),                   \
        .place = DSI_PLACE(.in = "bt_", .out = "bt_", .split = "bt", .linear = "0",                \
                           .flags = DSI_PLACE_TOKENS),                                             \
        .cost = tokens_cost,                                                                       \
    }

const ds_op dsi_op_split_tokens =
    TOKENS_OP("split_tokens", DS_AGAIN_CHEAP, split_grad,
              "x (B,T,C), which n_ranks ranks have alike → x, of which each has its part along T.");
const ds_op dsi_op_join_tokens =
    TOKENS_OP("join_tokens", DS_AGAIN_COSTLY, join_grad,
              "x (B,T,C), of which n_ranks ranks have parts along T → x, which all of them have.");
