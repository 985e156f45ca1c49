/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to experts and back. See nn_experts.h. */
#include "nn/nn_experts.h"

static int64_t or_one(int64_t n)
{
    return n > 1 ? n : 1;
}

int64_t dsi_nn_parts(const ds_nn *nn)
{
    const ds_trace *t = &nn->trace;
    const int64_t parts = or_one(t->sequence_ranks) * or_one(t->token_ranks);
    return parts > 1 && t->expert_ranks > 1 ? parts : 0;
}

ds_value dsi_nn_split_tokens(ds_nn *nn, ds_value x)
{
    const dsi_expert_ranks_attrs attrs = {.n_ranks = nn->trace.token_ranks};
    return attrs.n_ranks > 1 ? ds_nn_apply(nn, &dsi_op_split_tokens, &attrs, &x, 1) : x;
}

ds_value dsi_nn_join_tokens(ds_nn *nn, ds_value x)
{
    const dsi_expert_ranks_attrs attrs = {.n_ranks = nn->trace.token_ranks};
    return attrs.n_ranks > 1 ? ds_nn_apply(nn, &dsi_op_join_tokens, &attrs, &x, 1) : x;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Ranks with parts of the same sequences that each have all of the experts that the others have:
 * where all ranks together do not divide the experts, but would without those. */
static int64_t n_copies(const ds_nn *nn, const dsi_experts_of *of)
{
    const int64_t ranks = nn->trace.expert_ranks;
    const int64_t parts = or_one(nn->trace.sequence_ranks);
    return of->n_experts % ranks != 0 && of->n_experts % (ranks / parts) == 0 ? parts : 1;
}

/* A token goes to an expert once, so that a rank gets at most all ranks' tokens for each of its
 * experts, and of a token's K experts no more than it has. */
static ds_value on_ranks(ds_nn *nn, const dsi_experts_of *of, ds_value rows, ds_value offsets,
                         dsi_experts_fn fn, const void *user)
{
    const int64_t copies = n_copies(nn, of);
    const int64_t ranks = nn->trace.expert_ranks / copies;
    const int64_t own = of->n_experts / ranks;
    const int64_t parts = dsi_nn_parts(nn);
    const int64_t n_rows = ds_nn_meta(nn, rows).shape.dims[0];
    const int64_t n_tokens = n_rows / of->n_chosen / or_one(parts); /* of a rank */
    int64_t each = n_tokens * least(own, of->n_chosen);
    each = of->capacity > 0 ? least(each, own * of->capacity) : each;
    const dsi_expert_ranks_attrs there = {.n_ranks = ranks,
                                          .n_rows = ranks * each,
                                          .parts = parts,
                                          .copies = copies,
                                          .tokens = nn->trace.token_ranks};
    dsi_expert_ranks_attrs back = there;
    back.n_rows = n_rows;
    const dsi_grouped_attrs how = {.sources = ranks,
                                   .parts = ranks * copies,
                                   .copies = copies,
                                   .expected = least(n_tokens * of->n_chosen, ranks * each)};
    if (of->n_experts % ranks != 0) {
        ds_nn_fail(nn, DS_ERR_CONFIG,
                   "%lld ranks (expert_parallel.autoep_size) do not divide the %lld experts of a "
                   "layer; change one of the two",
                   (long long)(ranks / or_one(nn->trace.sequence_ranks)), (long long)of->n_experts);
        return DS_NONE;
    }
    if (ranks == 1) {
        const dsi_grouped_attrs here = {.parts = copies, .copies = copies};
        return fn(nn, rows, offsets, &here, user);
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
