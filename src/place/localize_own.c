/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes between what each rank has of its own and what all ranks have. See localize_impl.h.
 *
 * rows_of_ranks is an all_gather, its gradient a reduce_scatter.
 * A rank's own value is a term of a maximum or of an exact sum as it is: only the name of its
 * placement changes, and whoever reads the whole combines the terms. mean_by_signs is an exchange
 * (docs/internals/optim.md), x of P elements padded to N on W ranks:
 *
 *   1. compress_signs of x and the worker error (N): signs (N/8), a scale (1)
 *   2. all_to_all of signs, all_gather of scales: the ranks' signs of the own slice, scales (W)
 *   3. average_signs of those: the mean of the slice (N/W)
 *   4. compress_signs of the mean and the server error: signs (N/8W), a scale (1)
 *   5. all_gather of both: signs (N/8), scales (W)
 *   6. expand_signs of those: the mean, everywhere (P)
 */
#include "place/localize_impl.h"

enum { BITS = 8 };
enum { X, WORKER_ERROR, SERVER_ERROR, N_OUT };
enum { SIGNS, SCALE, ERROR };

static ds_status check_ranks(const dsi_localizing *l, const dsi_node_info *node,
                             const dsi_axes *axes)
{
    const dsi_ranks_attrs *a = node->attrs;
    const uint32_t n = dsi_axes_size(&l->placed->mesh, axes);
    return n == a->n_ranks
               ? DS_OK
               : ds_fail(l->r.from->ctx, DS_ERR_INTERNAL, "%s: %s of %u ranks, expected %lld",
                         node->scope, node->op->name, n, (long long)a->n_ranks);
}

static const dsi_spread *need_of(const dsi_localizing *l, const dsi_node_info *node)
{
    return &l->placed->use[node->in_at];
}

/* A tensor's part of an exchange: its bucket's collectives carry those of other tensors too. */
typedef struct exchange_of {
    const dsi_axes *axes;
    int64_t bucket;
} exchange_of;

/* All ranks' parts. reader: of what comes; what different readers need is carried apart. */
static ds_status gather(dsi_localizing *l, const exchange_of *e, const ds_op *reader, int64_t count,
                        ds_value *value)
{
    dsi_comm_attrs attrs = dsi_localize_comm(l, e->axes, -1);
    attrs.n_dims = 1;
    attrs.dims[0] = count;
    DS_TRY(dsi_bucket_number(l, e->bucket, reader, ds_graph_meta(l->r.to, *value).dtype, &attrs));
    return dsi_localize_apply(l, &dsi_op_all_gather, &attrs, *value, value);
}

/* x in place of signs and a scale: made[], of which the error is the cell's next version. */
static ds_status compress(dsi_localizing *l, ds_value x, ds_value error, ds_value *made)
{
    const dsi_signs_attrs attrs = {0};
    const ds_value in[2] = {x, error};
    return ds_graph_apply(l->r.to, &dsi_op_compress_signs, &attrs, in, 2, made);
}

/* Signs and scales of `in` together, of `count` elements. */
static ds_status read_signs(dsi_localizing *l, const ds_op *op, int64_t count, const ds_value *in,
                            ds_value *value_out)
{
    const dsi_signs_attrs attrs = {.count = count};
    ds_value made[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(l->r.to, op, &attrs, in, 2, made));
    *value_out = made[0];
    return DS_OK;
}

static ds_status exchange(dsi_localizing *l, const dsi_axes *axes, const ds_value *in,
                          ds_value *out)
{
    const ds_shape shape = ds_graph_meta(l->r.to, in[X]).shape;
    const int64_t n = ds_shape_count(ds_graph_meta(l->r.to, in[WORKER_ERROR]).shape);
    const exchange_of e = {axes,
                           dsi_bucket_next(&l->bucket, n, DS_DTYPE_U8, l->params->reduce_bucket)};
    dsi_comm_attrs attrs = dsi_localize_comm(l, axes, -1);
    const int64_t ranks = attrs.n_ranks;
    ds_value made[DS_MAX_OUT];
    DS_TRY(dsi_bucket_number(l, e.bucket, &dsi_op_all_to_all, DS_DTYPE_U8, &attrs));
    DS_TRY(compress(l, in[X], in[WORKER_ERROR], made));
    out[WORKER_ERROR] = made[ERROR];
    DS_TRY(dsi_localize_reshape(l, ds_shape_2d(ranks, n / BITS / ranks), &made[SIGNS]));
    DS_TRY(dsi_localize_apply(l, &dsi_op_all_to_all, &attrs, made[SIGNS], &made[SIGNS]));
    DS_TRY(gather(l, &e, &dsi_op_average_signs, ranks, &made[SCALE]));
    DS_TRY(read_signs(l, &dsi_op_average_signs, 0, made, &made[X]));
    DS_TRY(compress(l, made[X], in[SERVER_ERROR], made));
    out[SERVER_ERROR] = made[ERROR];
    DS_TRY(gather(l, &e, &dsi_op_all_gather, n / BITS, &made[SIGNS]));
    DS_TRY(gather(l, &e, &dsi_op_expand_signs, ranks, &made[SCALE]));
    DS_TRY(read_signs(l, &dsi_op_expand_signs, ds_shape_count(shape), made, &out[X]));
    return dsi_localize_reshape(l, shape, &out[X]);
}

ds_status dsi_localize_own(dsi_localizing *l, const dsi_node_info *node)
{
    const dsi_axes axes = dsi_axes_of(dsi_placement_own_axes(&need_of(l, node)->at));
    const ds_value *logical = dsi_node_in(l->r.from, node);
    ds_value in[N_OUT];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        in[i] = out[i] = l->r.map[logical[i]];
    }
    if (node->op == &dsi_op_mean_by_signs) {
        DS_TRY(check_ranks(l, node, &axes));
        DS_TRY(exchange(l, &axes, in, out));
    }
    dsi_rewrite_made(&l->r, node, out);
    return DS_OK;
}

ds_status dsi_localize_rows(dsi_localizing *l, const dsi_node_info *node, ds_value x,
                            ds_value *value_out)
{
    const dsi_axes axes = dsi_axes_of(dsi_placement_own_axes(&need_of(l, node)->at));
    const ds_shape shape = ds_graph_meta(l->r.from, dsi_node_out(l->r.from, node)[0]).shape;
    const dsi_comm_attrs attrs = dsi_localize_comm(l, &axes, -1);
    *value_out = x;
    DS_TRY(check_ranks(l, node, &axes));
    if (node->op == &dsi_op_rows_of_ranks) {
        return dsi_localize_gather(l, &axes, shape, value_out);
    }
    DS_TRY(dsi_localize_apply(l, &dsi_op_reduce_scatter, &attrs, x, value_out));
    return dsi_localize_reshape(l, shape, value_out);
}
