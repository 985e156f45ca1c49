/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts sequences in chunks. See chunks.h; pieces.h does what is not attention. */
#include "pass/chunks.h"

#include "op/ops.h"
#include "op/sequence_order.h"
#include "pass/part_attention.h"
#include "pass/piece_experts.h"
#include "pass/pieces.h"

#include <inttypes.h>
#include <string.h>

#define KEY "sequence_parallel.chunk_size"
enum { POSITION_DIM = 1, LSE_DIM = 2, MOST_CHUNKS = 1024 };

static const dsi_chunks *chunks_of(const dsi_pieces *p)
{
    return p->user;
}

int64_t dsi_chunks_length(const dsi_chunks *c)
{
    return dsi_sequence_chunk(c->chunk, c->ranks * c->token_ranks);
}

uint32_t dsi_chunks_count(const dsi_chunks *c)
{
    const int64_t each = dsi_chunks_length(c);
    return (uint32_t)((c->seq_length + each - 1) / each);
}

/* Positions of a chunk: the last has what is left. */
static int64_t positions(const dsi_chunks *c, uint32_t chunk)
{
    const int64_t each = dsi_chunks_length(c);
    const int64_t left = c->seq_length - (int64_t)chunk * each;
    return left < each ? left : each;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_along(const dsi_pieces *p, ds_value v, uint32_t dim)
{
    const ds_shape shape = p->r.from->values[v].meta.shape;
    return dim < shape.n_dims && shape.dims[dim] == chunks_of(p)->seq_length;
}

static bool begins(const dsi_pieces *p, ds_value v, uint32_t dim)
{
    return dim == POSITION_DIM && is_along(p, v, dim);
}

/* Of positions, or of rows, so many for each. */
static int64_t length(const dsi_pieces *p, int64_t whole, uint32_t chunk)
{
    return whole * positions(chunks_of(p), chunk) / chunks_of(p)->seq_length;
}

static ds_status reshape(dsi_pieces *p, const ds_shape *shape, ds_value *value)
{
    dsi_reshape_attrs attrs = {.n_dims = shape->n_dims};
    ds_value out[DS_MAX_OUT];
    memcpy(attrs.dims, shape->dims, shape->n_dims * sizeof attrs.dims[0]);
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_reshape, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}

/* The dim as ranks by what each has of it. */
static ds_status by_ranks(dsi_pieces *p, uint32_t dim, ds_value *value)
{
    const ds_shape whole = ds_graph_meta(p->r.to, *value).shape;
    const int64_t ranks = chunks_of(p)->ranks;
    ds_shape apart = {.n_dims = whole.n_dims + 1};
    for (uint32_t d = 0, to = 0; d < whole.n_dims; ++d) {
        if (d == dim) {
            apart.dims[to++] = ranks;
        }
        apart.dims[to++] = d == dim ? whole.dims[d] / ranks : whole.dims[d];
    }
    return reshape(p, &apart, value);
}

static ds_status ranks_joined(dsi_pieces *p, uint32_t dim, ds_value *value)
{
    const ds_shape apart = ds_graph_meta(p->r.to, *value).shape;
    ds_shape whole = {.n_dims = apart.n_dims - 1};
    for (uint32_t d = 0; d < whole.n_dims; ++d) {
        whole.dims[d] = d < dim    ? apart.dims[d]
                        : d == dim ? apart.dims[d] * apart.dims[d + 1]
                                   : apart.dims[d + 1];
    }
    return reshape(p, &whole, value);
}

/* A chunk has a part of each rank's positions. */
static ds_status slice(dsi_pieces *p, ds_value whole, uint32_t dim, uint32_t chunk,
                       ds_value *value_out)
{
    const dsi_chunks *c = chunks_of(p);
    const bool shared = c->ranks > 1;
    const int64_t each = dsi_chunks_length(c) / c->ranks;
    const dsi_slice_attrs attrs = {.dim = shared ? dim + 1 : dim,
                                   .start = (int64_t)chunk * each,
                                   .length = positions(c, chunk) / c->ranks};
    ds_value x = whole;
    ds_value out[DS_MAX_OUT];
    if (shared) {
        DS_TRY(by_ranks(p, dim, &x));
    }
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_slice, &attrs, &x, 1, out));
    *value_out = out[0];
    return shared ? ranks_joined(p, dim, value_out) : DS_OK;
}

/* Side by side, a few at a time. */
static ds_status concat(dsi_pieces *p, ds_value *parts, uint32_t n, uint32_t dim,
                        ds_value *value_out)
{
    const dsi_concat_attrs attrs = {.dim = dim};
    const uint32_t in_group = (n + DS_MAX_IN - 1) / DS_MAX_IN;
    ds_value groups[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    uint32_t n_groups = 0;
    if (n == 1) {
        *value_out = parts[0];
        return DS_OK;
    }
    for (uint32_t at = 0; at < n; at += in_group) {
        const uint32_t own = n - at < in_group ? n - at : in_group;
        DS_TRY(concat(p, parts + at, own, dim, &groups[n_groups++]));
    }
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_concat, &attrs, groups, n_groups, out));
    *value_out = out[0];
    return DS_OK;
}

static ds_status join(dsi_pieces *p, const ds_value *made, uint32_t dim, ds_value *value_out)
{
    const bool shared = chunks_of(p)->ranks > 1;
    ds_value parts[MOST_CHUNKS];
    for (uint32_t i = 0; i < p->n; ++i) {
        parts[i] = made[i];
        if (shared) {
            DS_TRY(by_ranks(p, dim, &parts[i]));
        }
    }
    DS_TRY(concat(p, parts, p->n, shared ? dim + 1 : dim, value_out));
    return shared ? ranks_joined(p, dim, value_out) : DS_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Keys and values of a chunk, of which ranks have parts that travel, or all of some heads. */
static dsi_part_round round_of(const dsi_pieces *p, uint32_t chunk)
{
    const dsi_chunks *c = chunks_of(p);
    return (dsi_part_round){.k = DS_NONE,
                            .v = DS_NONE,
                            .numbers = DS_NONE,
                            .start = (int64_t)chunk * dsi_chunks_length(c),
                            .length = positions(c, chunk),
                            .ranks = c->ring ? c->ranks : 1};
}

/* Numbers of the positions of a chunk. */
static ds_status numbers(dsi_pieces *p, uint32_t chunk, ds_value *value_out)
{
    const dsi_part_round round = round_of(p, chunk);
    return dsi_part_numbers(p->r.to, &round, 0, value_out);
}

/* The first chunk of whose keys a window lets the queries of a chunk see any. */
static uint32_t first_seen(const dsi_chunks *c, int64_t window, uint32_t chunk)
{
    const int64_t each = dsi_chunks_length(c);
    uint32_t seen = 0;
    while (window > 0 && (int64_t)(seen + 1) * each - 1 <= (int64_t)chunk * each - window) {
        ++seen;
    }
    return seen;
}

/* A chunk's queries: its part of what is cut along positions, all of what is not. q_of: of the
 * node; whole: a mask of operands. */
static ds_status queries_of(dsi_pieces *p, const dsi_node_info *node, const ds_value *node_in,
                            uint32_t chunk, ds_value *of, dsi_part_queries *queries_out)
{
    const bool is_forward = node->op == &dsi_op_attention;
    const uint32_t n = is_forward ? DSI_AT_N : DSI_ATB_N;
    const uint32_t k = is_forward ? DSI_AT_K : DSI_ATB_K;
    const uint32_t rng = is_forward ? DSI_AT_RNG : DSI_ATB_RNG;
    const uint32_t heads = is_forward ? DSI_AT_HEADS : DSI_ATB_HEADS;
    for (uint32_t i = 0; i < n; ++i) {
        const bool whole = i == rng || i == heads;
        const bool of_lse = !is_forward && (i == DSI_ATB_LSE || i == DSI_ATB_DLSE);
        of[i] = DS_NONE;
        if (node_in[i] == DS_NONE || i == k || i == k + 1) {
            continue;
        }
        DS_TRY(
            whole ? dsi_pieces_whole(p, node_in[i], &of[i])
                  : dsi_pieces_part(p, node_in[i], of_lse ? LSE_DIM : POSITION_DIM, chunk, &of[i]));
    }
    *queries_out = (dsi_part_queries){.attrs = *(const dsi_attention_attrs *)node->attrs,
                                      .of = of,
                                      .all_keys = chunks_of(p)->seq_length,
                                      .length = positions(chunks_of(p), chunk)};
    return numbers(p, chunk, &of[is_forward ? DSI_AT_ROWS : DSI_ATB_ROWS]);
}

/* The keys of a chunk. own: whose queries they meet, with their numbers. */
static ds_status keys_of(dsi_pieces *p, const ds_value *kv, uint32_t chunk, uint32_t own,
                         ds_value own_numbers, dsi_part_round *round_out)
{
    *round_out = round_of(p, chunk);
    round_out->numbers = own_numbers;
    if (chunk != own) {
        round_out->numbers = DS_NONE;
        DS_TRY(numbers(p, chunk, &round_out->numbers));
    }
    DS_TRY(dsi_pieces_part(p, kv[0], POSITION_DIM, chunk, &round_out->k));
    return dsi_pieces_part(p, kv[1], POSITION_DIM, chunk, &round_out->v);
}

/* Attention of each chunk: its own keys first, then those before. */
static ds_status make_forward(dsi_pieces *p, const dsi_node_info *node, const ds_value *in)
{
    const int64_t window = ((const dsi_attention_attrs *)node->attrs)->window;
    const ds_value *to = dsi_node_out(p->r.from, node);
    ds_value y[MOST_CHUNKS];
    ds_value lse[MOST_CHUNKS];
    for (uint32_t i = 0; i < p->n; ++i) {
        const uint32_t chunk = dsi_pieces_turn(p, node, i);
        const uint32_t first = first_seen(chunks_of(p), window, chunk);
        dsi_part_queries queries;
        ds_value of[DSI_AT_N];
        ds_value seen[2] = {DS_NONE, DS_NONE};
        p->r.to->half = chunk + 1;
        DS_TRY(queries_of(p, node, in, chunk, of, &queries));
        for (uint32_t keys = chunk + 1; keys-- > first;) {
            dsi_part_round round;
            DS_TRY(keys_of(p, in + DSI_AT_K, keys, chunk, of[DSI_AT_ROWS], &round));
            round.last = keys == first;
            DS_TRY(dsi_part_forward(p->r.to, &queries, &round, seen));
        }
        y[chunk] = seen[0];
        lse[chunk] = seen[1];
    }
    dsi_pieces_made(p, to[0], POSITION_DIM, y);
    dsi_pieces_made(p, to[1], LSE_DIM, lse);
    return DS_OK;
}

/* Last chunk first: when a chunk's queries have had their turn, all that see its keys have. */
static ds_status make_backward(dsi_pieces *p, const dsi_node_info *node, const ds_value *in)
{
    enum { DQ, DK, DV, N };
    const int64_t window = ((const dsi_attention_attrs *)node->attrs)->window;
    const ds_dtype act = p->r.from->values[in[DSI_ATB_Q]].meta.dtype;
    const ds_value *to = dsi_node_out(p->r.from, node);
    ds_value sums[N][MOST_CHUNKS];
    for (uint32_t i = 0; i < N * p->n; ++i) {
        sums[i / p->n][i % p->n] = DS_NONE;
    }
    for (uint32_t chunk = p->n; chunk-- > 0;) {
        const uint32_t first = first_seen(chunks_of(p), window, chunk);
        dsi_part_queries queries;
        ds_value of[DSI_ATB_N];
        ds_value dq = DS_NONE;
        p->r.to->half = chunk + 1;
        DS_TRY(queries_of(p, node, in, chunk, of, &queries));
        for (uint32_t keys = chunk + 1; keys-- > first;) {
            ds_value d[N] = {dq, sums[DK][keys], sums[DV][keys]};
            dsi_part_round round;
            DS_TRY(keys_of(p, in + DSI_ATB_K, keys, chunk, of[DSI_ATB_ROWS], &round));
            round.last = keys == first;
            DS_TRY(dsi_part_backward(p->r.to, &queries, &round, d));
            dq = d[DQ];
            sums[DK][keys] = d[DK];
            sums[DV][keys] = d[DV];
        }
        sums[DQ][chunk] = dq;
        DS_TRY(dsi_part_cast(p->r.to, act, &sums[DK][chunk]));
        DS_TRY(dsi_part_cast(p->r.to, act, &sums[DV][chunk]));
    }
    for (uint32_t o = 0; o < N; ++o) {
        dsi_pieces_made(p, to[o], POSITION_DIM, sums[o]);
    }
    return DS_OK;
}

static ds_status refuse(const dsi_pieces *p, const dsi_node_info *node, const char *what,
                        const char *remedy)
{
    return ds_fail(p->r.from->ctx, DS_ERR_UNSUPPORTED, KEY " does not go with %s (%s); %s", what,
                   node->scope, remedy);
}

static ds_status check_attention(const dsi_pieces *p, const dsi_node_info *node, const ds_value *in,
                                 bool is_forward)
{
    const dsi_attention_attrs *a = node->attrs;
    if (a->causal == 0 || in[is_forward ? DSI_AT_END : DSI_ATB_END] != DS_NONE) {
        return refuse(p, node, "attention to keys behind the query", "set it to 0");
    }
    if (in[is_forward ? DSI_AT_ROWS : DSI_ATB_ROWS] != DS_NONE && !chunks_of(p)->ring) {
        return refuse(p, node, "heads that the ranks of a sequence do not divide",
                      "set sequence_parallel.attention to \"ring\", choose a "
                      "sequence_parallel_size that divides them, or set it to 0");
    }
    if (a->packed != 0 || (is_forward && in[DSI_AT_OFFSET] != DS_NONE)) {
        return ds_fail(p->r.from->ctx, DS_ERR_INTERNAL,
                       "%s: q, k and v that are cut are packed or cached, expected three tensors",
                       node->scope);
    }
    return DS_OK;
}

/* Numbers of positions, not of heads or rows of a table: the trace says parts of those alone. */
static ds_status make_numbers(dsi_pieces *p, const dsi_node_info *node)
{
    ds_value made[MOST_CHUNKS];
    for (uint32_t chunk = 0; chunk < p->n; ++chunk) {
        p->r.to->half = chunk + 1;
        DS_TRY(numbers(p, chunk, &made[chunk]));
    }
    dsi_pieces_made(p, dsi_node_out(p->r.from, node)[0], 0, made);
    return DS_OK;
}

static ds_status special(dsi_pieces *p, const dsi_node_info *node, bool *made_out)
{
    const bool is_forward = node->op == &dsi_op_attention;
    ds_value in[DS_MAX_IN];
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        in[i] = i < node->n_in ? dsi_node_in(p->r.from, node)[i] : DS_NONE;
    }
    if (is_forward || node->op == &dsi_op_attention_backward) {
        *made_out = true;
        DS_TRY(check_attention(p, node, in, is_forward));
        return is_forward ? make_forward(p, node, in) : make_backward(p, node, in);
    }
    if (node->op == &dsi_op_row_numbers &&
        ((const dsi_row_numbers_attrs *)node->attrs)->n_parts > 0) {
        *made_out = true;
        return make_numbers(p, node);
    }
    if (node->op == &dsi_op_relative_bias) {
        return refuse(p, node, "biases by distance, which are of all positions", "set it to 0");
    }
    return dsi_pieces_experts(p, node, made_out);
}

/* ---- the pass -------------------------------------------------------------------------------- */

ds_status dsi_chunks_check(ds_ctx *ctx, const dsi_chunks *c)
{
    const int64_t ranks = c->ranks * c->token_ranks;
    if (c->chunk < ranks) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       KEY " is %" PRId64 ", expected a position or more for each of the %" PRId64
                           " ranks that share a chunk; raise it to %" PRId64,
                       c->chunk, ranks, ranks);
    }
    const int64_t least = (c->seq_length + MOST_CHUNKS - 1) / MOST_CHUNKS;
    if (dsi_chunks_count(c) > MOST_CHUNKS) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       KEY " is %" PRId64 ", of a seq_length of %" PRId64
                           ": more than %d chunks; raise it to %" PRId64,
                       c->chunk, c->seq_length, MOST_CHUNKS, (least + ranks - 1) / ranks * ranks);
    }
    return DS_OK;
}

ds_status dsi_chunks_cut(const ds_graph *graph, const dsi_chunks *chunks, ds_graph **made_out)
{
    static const dsi_pieces_how how = {.key = KEY,
                                       .dim = POSITION_DIM,
                                       .backward_last_first = true,
                                       .begins = begins,
                                       .may_slice = is_along,
                                       .may_make = is_along,
                                       .length = length,
                                       .slice = slice,
                                       .join = join,
                                       .special = special};
    DS_TRY(dsi_chunks_check(graph->ctx, chunks));
    return dsi_pieces_cut(graph, dsi_chunks_count(chunks), &how, chunks, made_out);
}
