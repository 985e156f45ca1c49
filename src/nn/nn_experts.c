/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to experts and back. See nn_experts.h. */
#include "nn/nn_experts.h"

int64_t dsi_nn_parts(const ds_nn *nn)
{
    return nn->trace.sequence_ranks > 1 && nn->trace.expert_ranks > 1 ? nn->trace.sequence_ranks
                                                                      : 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A token goes to an expert once, so that a rank gets at most all ranks' tokens for each of its
 * experts, and of a token's K experts no more than it has. */
static ds_value on_ranks(ds_nn *nn, const dsi_experts_of *of, ds_value rows, ds_value offsets,
                         dsi_experts_fn fn, const void *user)
{
    const int64_t ranks = nn->trace.expert_ranks;
    const int64_t own = of->n_experts / ranks;
    const int64_t parts = dsi_nn_parts(nn);
    const int64_t n_rows = ds_nn_meta(nn, rows).shape.dims[0];
    const int64_t n_tokens = n_rows / of->n_chosen / (parts > 1 ? parts : 1); /* of a rank */
    int64_t each = n_tokens * least(own, of->n_chosen);
    each = of->capacity > 0 ? least(each, own * of->capacity) : each;
    const dsi_expert_ranks_attrs there = {.n_ranks = ranks, .n_rows = ranks * each, .parts = parts};
    const dsi_expert_ranks_attrs back = {.n_ranks = ranks, .n_rows = n_rows};
    const dsi_grouped_attrs how = {
        .sources = ranks, .parts = ranks, .expected = least(n_tokens * of->n_chosen, ranks * each)};
    if (of->n_experts % ranks != 0) {
        ds_nn_fail(
            nn, DS_ERR_CONFIG,
            "%lld ranks (expert_parallel.autoep_size x sequence_parallel_size) do not divide "
            "the %lld experts of a layer; change one of the two",
            (long long)ranks, (long long)of->n_experts);
        return DS_NONE;
    }
    const ds_value table = ds_nn_apply(nn, &dsi_op_gather_offsets, &there, &offsets, 1);
    const ds_value segments = ds_nn_apply(nn, &dsi_op_expert_segments, &there, &table, 1);
    ds_value in[2] = {rows, table};
    in[0] = ds_nn_apply(nn, &dsi_op_to_experts, &there, in, 2);
    in[0] = fn(nn, in[0], segments, &how, user);
    return ds_nn_apply(nn, &dsi_op_from_experts, &back, in, 2);
}

ds_value dsi_nn_experts(ds_nn *nn, const dsi_experts_of *of, ds_value rows, ds_value offsets,
                        dsi_experts_fn fn, const void *user)
{
    const dsi_grouped_attrs here = {0};
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    return nn->trace.expert_ranks > 1 ? on_ranks(nn, of, rows, offsets, fn, user)
                                      : fn(nn, rows, offsets, &here, user);
}
