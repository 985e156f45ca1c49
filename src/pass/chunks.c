/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts sequences in chunks. See chunks.h; pieces.h does what is not attention. */
#include "pass/chunks.h"

#include "op/ops.h"
#include "pass/pieces.h"

#include <inttypes.h>
#include <string.h>

enum { POSITION_DIM = 1, MOST_CHUNKS = 1024 };
enum { Q, K, V, FIRST, OFFSET, RNG, HEADS, ROWS, KEYS, END }; /* of attention */
enum { B_DY, B_Q, B_K, B_V, B_Y, B_LSE, B_FIRST, B_RNG, B_HEADS, B_ROWS, B_KEYS, B_END, B_DLSE };
enum { LSE_DIM = 2 };

static const dsi_chunks *chunks_of(const dsi_pieces *p)
{
    return p->user;
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
    const int64_t each = c->chunk / c->ranks;
    const dsi_slice_attrs attrs = {
        .dim = shared ? dim + 1 : dim, .start = (int64_t)chunk * each, .length = each};
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

/* Numbers of the positions of a chunk. */
static ds_status numbers(dsi_pieces *p, uint32_t chunk, ds_value *value_out)
{
    const dsi_chunks *c = chunks_of(p);
    const dsi_row_numbers_attrs all = {.n_rows = (int64_t)(chunk + 1) * c->chunk};
    const dsi_slice_attrs own = {.start = (int64_t)chunk * c->chunk, .length = c->chunk};
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_row_numbers, &all, NULL, 0, out));
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_slice, &own, &out[0], 1, out));
    *value_out = out[0];
    return DS_OK;
}

/* The first chunk of whose keys a window lets the queries of a chunk see any. */
static uint32_t first_seen(const dsi_chunks *c, int64_t window, uint32_t chunk)
{
    uint32_t seen = 0;
    while (window > 0 && (int64_t)(seen + 1) * c->chunk - 1 <= (int64_t)chunk * c->chunk - window) {
        ++seen;
    }
    return seen;
}

static dsi_attention_part_attrs part_attrs(const dsi_pieces *p, const dsi_attention_attrs *a)
{
    return (dsi_attention_part_attrs){.n_heads = a->n_heads,
                                      .n_kv_heads = a->n_kv_heads,
                                      .head_dim = a->head_dim,
                                      .causal = a->causal,
                                      .window = a->window,
                                      .scale = a->scale,
                                      .dropout = a->dropout,
                                      .site = a->site,
                                      .all_heads = a->all_heads,
                                      .cap = a->cap,
                                      .alibi = a->alibi,
                                      .alibi_rounded = a->alibi_rounded,
                                      .all_keys = chunks_of(p)->seq_length,
                                      .part = chunks_of(p)->chunk};
}

/* What a piece of an operand is in the graph made; DS_NONE of what is not there. */
static ds_status piece_of(dsi_pieces *p, ds_value v, uint32_t dim, uint32_t chunk,
                          ds_value *value_out)
{
    *value_out = DS_NONE;
    return v == DS_NONE ? DS_OK : dsi_pieces_part(p, v, dim, chunk, value_out);
}

static void none(ds_value *in, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        in[i] = DS_NONE;
    }
}

static ds_status whole_of(dsi_pieces *p, ds_value v, ds_value *value_out)
{
    *value_out = DS_NONE;
    return v == DS_NONE ? DS_OK : dsi_pieces_whole(p, v, value_out);
}

/* Attention of one chunk: its own keys first, then those before. */
static ds_status forward_chunk(dsi_pieces *p, const ds_value *of, dsi_attention_part_attrs attrs,
                               uint32_t chunk, ds_value *out)
{
    enum { P_K = 1, P_V, P_ROWS, P_KEYS, P_FIRST, P_RNG, P_HEADS, P_Y, P_LSE, N_IN };
    const uint32_t first = first_seen(chunks_of(p), attrs.window, chunk);
    ds_value in[N_IN];
    none(in, N_IN);
    DS_TRY(piece_of(p, of[Q], POSITION_DIM, chunk, &in[0]));
    DS_TRY(numbers(p, chunk, &in[P_ROWS]));
    DS_TRY(piece_of(p, of[FIRST], POSITION_DIM, chunk, &in[P_FIRST]));
    DS_TRY(whole_of(p, of[RNG], &in[P_RNG]));
    DS_TRY(whole_of(p, of[HEADS], &in[P_HEADS]));
    out[0] = out[1] = DS_NONE;
    for (uint32_t keys = chunk + 1; keys-- > first;) {
        in[P_KEYS] = in[P_ROWS];
        if (keys != chunk) {
            DS_TRY(numbers(p, keys, &in[P_KEYS]));
        }
        DS_TRY(piece_of(p, of[K], POSITION_DIM, keys, &in[P_K]));
        DS_TRY(piece_of(p, of[V], POSITION_DIM, keys, &in[P_V]));
        in[P_Y] = out[0];
        in[P_LSE] = out[1];
        attrs.last = keys == first;
        DS_TRY(ds_graph_apply(p->r.to, &dsi_op_attention_part, &attrs, in,
                              keys == chunk ? P_Y : N_IN, out));
    }
    return DS_OK;
}

static ds_status make_forward(dsi_pieces *p, const dsi_node_info *node, const ds_value *of)
{
    const dsi_attention_part_attrs attrs = part_attrs(p, node->attrs);
    const ds_value *to = dsi_node_out(p->r.from, node);
    ds_value y[MOST_CHUNKS];
    ds_value lse[MOST_CHUNKS];
    for (uint32_t i = 0; i < p->n; ++i) {
        const uint32_t chunk = dsi_pieces_turn(p, node, i);
        ds_value out[DS_MAX_OUT];
        p->r.to->half = chunk + 1;
        DS_TRY(forward_chunk(p, of, attrs, chunk, out));
        y[chunk] = out[0];
        lse[chunk] = out[1];
    }
    dsi_pieces_made(p, to[0], POSITION_DIM, y);
    dsi_pieces_made(p, to[1], LSE_DIM, lse);
    return DS_OK;
}

/* What has been added up of the gradients of each chunk's keys and values. */
typedef struct running {
    ds_value dq[MOST_CHUNKS], dk[MOST_CHUNKS], dv[MOST_CHUNKS];
} running;

/* The gradient of one chunk's queries, and its share of those of the keys that they see. */
static ds_status backward_chunk(dsi_pieces *p, const ds_value *of, dsi_attention_part_attrs attrs,
                                uint32_t chunk, running *sums)
{
    enum { P_K = 2, P_V, P_Y, P_LSE, P_ROWS, P_KEYS, P_FIRST, P_RNG, P_HEADS };
    enum { P_DQ = P_HEADS + 1, P_DK, P_DV, P_END, P_DLSE, N_IN };
    const uint32_t first = first_seen(chunks_of(p), attrs.window, chunk);
    ds_value in[N_IN];
    ds_value out[DS_MAX_OUT];
    none(in, N_IN);
    DS_TRY(piece_of(p, of[B_DY], POSITION_DIM, chunk, &in[0]));
    DS_TRY(piece_of(p, of[B_Q], POSITION_DIM, chunk, &in[1]));
    DS_TRY(piece_of(p, of[B_Y], POSITION_DIM, chunk, &in[P_Y]));
    DS_TRY(piece_of(p, of[B_LSE], LSE_DIM, chunk, &in[P_LSE]));
    DS_TRY(numbers(p, chunk, &in[P_ROWS]));
    DS_TRY(piece_of(p, of[B_FIRST], POSITION_DIM, chunk, &in[P_FIRST]));
    DS_TRY(whole_of(p, of[B_RNG], &in[P_RNG]));
    DS_TRY(whole_of(p, of[B_HEADS], &in[P_HEADS]));
    DS_TRY(piece_of(p, of[B_DLSE], LSE_DIM, chunk, &in[P_DLSE]));
    for (uint32_t keys = chunk + 1; keys-- > first;) {
        in[P_KEYS] = in[P_ROWS];
        if (keys != chunk) {
            DS_TRY(numbers(p, keys, &in[P_KEYS]));
        }
        DS_TRY(piece_of(p, of[B_K], POSITION_DIM, keys, &in[P_K]));
        DS_TRY(piece_of(p, of[B_V], POSITION_DIM, keys, &in[P_V]));
        in[P_DQ] = keys == chunk ? DS_NONE : out[0];
        in[P_DK] = sums->dk[keys];
        in[P_DV] = sums->dv[keys];
        attrs.last = keys == first;
        DS_TRY(ds_graph_apply(p->r.to, &dsi_op_attention_part_backward, &attrs, in,
                              in[P_DLSE] != DS_NONE ? N_IN : P_END, out));
        sums->dk[keys] = out[1];
        sums->dv[keys] = out[2];
    }
    sums->dq[chunk] = out[0];
    return DS_OK;
}

static ds_status cast_to(dsi_pieces *p, ds_dtype dtype, ds_value *value)
{
    const dsi_cast_attrs attrs = {.dtype = dtype};
    ds_value out[DS_MAX_OUT];
    if (ds_graph_meta(p->r.to, *value).dtype == dtype) {
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_cast, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}

/* Last chunk first: when a chunk's queries have had their turn, all that see its keys have. */
static ds_status make_backward(dsi_pieces *p, const dsi_node_info *node, const ds_value *of)
{
    const dsi_attention_part_attrs attrs = part_attrs(p, node->attrs);
    const ds_value *to = dsi_node_out(p->r.from, node);
    const ds_dtype act = p->r.from->values[of[B_Q]].meta.dtype;
    running sums;
    for (uint32_t i = 0; i < p->n; ++i) {
        sums.dq[i] = sums.dk[i] = sums.dv[i] = DS_NONE;
    }
    for (uint32_t chunk = p->n; chunk-- > 0;) {
        p->r.to->half = chunk + 1;
        DS_TRY(backward_chunk(p, of, attrs, chunk, &sums));
        DS_TRY(cast_to(p, act, &sums.dk[chunk]));
        DS_TRY(cast_to(p, act, &sums.dv[chunk]));
    }
    dsi_pieces_made(p, to[0], POSITION_DIM, sums.dq);
    dsi_pieces_made(p, to[1], POSITION_DIM, sums.dk);
    dsi_pieces_made(p, to[2], POSITION_DIM, sums.dv);
    return DS_OK;
}

static ds_status refuse(const dsi_pieces *p, const dsi_node_info *node, const char *what,
                        const char *remedy)
{
    return ds_fail(p->r.from->ctx, DS_ERR_UNSUPPORTED,
                   "sequence_parallel.chunk_size does not go with %s (%s); %s", what, node->scope,
                   remedy);
}

static ds_status check_attention(const dsi_pieces *p, const dsi_node_info *node, const ds_value *of,
                                 bool is_forward)
{
    const dsi_attention_attrs *a = node->attrs;
    if (a->causal == 0 || of[is_forward ? END : B_END] != DS_NONE) {
        return refuse(p, node, "attention to keys behind the query", "set it to 0");
    }
    if (of[is_forward ? ROWS : B_ROWS] != DS_NONE) {
        return refuse(p, node, "heads that the ranks of a sequence do not divide",
                      "choose a sequence_parallel_size that does, or set it to 0");
    }
    if (a->packed != 0 || (is_forward && of[OFFSET] != DS_NONE)) {
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
    ds_value of[DS_MAX_IN];
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        of[i] = i < node->n_in ? dsi_node_in(p->r.from, node)[i] : DS_NONE;
    }
    *made_out = true;
    if (is_forward || node->op == &dsi_op_attention_backward) {
        DS_TRY(check_attention(p, node, of, is_forward));
        return is_forward ? make_forward(p, node, of) : make_backward(p, node, of);
    }
    if (node->op == &dsi_op_row_numbers &&
        ((const dsi_row_numbers_attrs *)node->attrs)->n_parts > 0) {
        return make_numbers(p, node);
    }
    if (node->op == &dsi_op_grouped_linear) {
        return refuse(p, node, "experts, whose rows are grouped over all positions", "set it to 0");
    }
    if (node->op == &dsi_op_relative_bias) {
        return refuse(p, node, "biases by distance, which are of all positions", "set it to 0");
    }
    *made_out = false;
    return DS_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* The nearest chunk that goes, of at most so many positions. */
static int64_t nearest_chunk(const dsi_chunks *c)
{
    int64_t chunk = c->chunk < c->seq_length ? c->chunk : c->seq_length;
    while (chunk > c->ranks && (c->seq_length % chunk != 0 || chunk % c->ranks != 0)) {
        --chunk;
    }
    return chunk;
}

ds_status dsi_chunks_check(ds_ctx *ctx, const dsi_chunks *chunks)
{
    const dsi_chunks *c = chunks;
    if (c->chunk >= c->seq_length || (c->seq_length % c->chunk == 0 && c->chunk % c->ranks == 0)) {
        if (c->seq_length / c->chunk <= MOST_CHUNKS) {
            return DS_OK;
        }
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "sequence_parallel.chunk_size is %" PRId64 ", of a seq_length of %" PRId64
                       ": more than %d chunks; raise it",
                       c->chunk, c->seq_length, MOST_CHUNKS);
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "sequence_parallel.chunk_size is %" PRId64 ", expected a divisor of the "
                   "seq_length %" PRId64 " and a multiple of sequence_parallel_size %" PRId64
                   "; the nearest below that goes is %" PRId64,
                   c->chunk, c->seq_length, c->ranks, nearest_chunk(c));
}

ds_status dsi_chunks_cut(const ds_graph *graph, const dsi_chunks *chunks, ds_graph **made_out)
{
    static const dsi_pieces_how how = {.backward_last_first = true,
                                       .begins = begins,
                                       .may_slice = is_along,
                                       .may_make = is_along,
                                       .slice = slice,
                                       .join = join,
                                       .special = special};
    DS_TRY(dsi_chunks_check(graph->ctx, chunks));
    return dsi_pieces_cut(graph, (uint32_t)(chunks->seq_length / chunks->chunk), &how, chunks,
                          made_out);
}
