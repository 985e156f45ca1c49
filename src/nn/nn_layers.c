/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of nn.h: each a few operators with their parameters. */
#include "base/blocks.h"
#include "base/packed_parts.h"
#include "base/reserved.h"
#include "nn/nn.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>

static const ds_init zeros = {.kind = DS_INIT_ZEROS};
static const ds_init ones = {.kind = DS_INIT_ONES};

static ds_init normal(double std)
{
    return (ds_init){.kind = DS_INIT_NORMAL, .std = std > 0.0 ? std : 0.02};
}

static ds_value apply2(ds_nn *nn, const ds_op *op, const void *attrs, ds_value a, ds_value b)
{
    const ds_value in[2] = {a, b};
    return ds_nn_apply(nn, op, attrs, in, 2);
}

/* Ranks that share the features of layers, not those that share sequences by heads. */
static int64_t tensor_ranks(const ds_nn *nn)
{
    const ds_trace *t = &nn->trace;
    const bool by_heads = t->sequence_ranks > 1 && t->sequence_form == DS_SEQUENCE_HEADS;
    return t->mode == DS_TRACE_GENERATE || t->head_ranks <= 1
               ? 1
               : t->head_ranks / (by_heads ? t->sequence_ranks : 1);
}

/* The same of a weight in few bits, which has no gradient. */
static ds_value packed_linear(ds_nn *nn, ds_value x, ds_value bias, const ds_linear_params *params)
{
    char path[DSI_NN_PATH_BYTES];
    const int64_t n_in = ds_shape_last(ds_nn_meta(nn, x).shape);
    const ds_packed packed = {nn->trace.packing, params->transposed, params->n_out, n_in};
    dsi_nn_path(nn, "weight", path, sizeof path);
    const ds_cell_info info = {.name = path,
                               .kind = DS_CELL_PARAM,
                               .meta = {DS_DTYPE_U8, dsi_packed_shape(&packed, tensor_ranks(nn))},
                               .init = normal(params->init_std),
                               .of = DS_NONE,
                               .frozen = true,
                               .packed = packed};
    const dsi_linear_packed_attrs attrs = {.format = packed.format,
                                           .rows = packed.rows,
                                           .columns = packed.columns,
                                           .out_dtype = params->out_dtype};
    const ds_value in[3] = {x, dsi_nn_cell(nn, &info), bias};
    return ds_nn_apply(nn, &dsi_op_linear_packed, &attrs, in, params->bias ? 3 : 2);
}

ds_value ds_nn_linear(ds_nn *nn, const char *name, ds_value x, const ds_linear_params *params)
{
    if (!dsi_nn_ok(nn, DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_linear_params", params))) {
        return DS_NONE;
    }
    const int64_t n_in = ds_shape_last(ds_nn_meta(nn, x).shape);
    const ds_shape shape =
        params->transposed ? ds_shape_2d(n_in, params->n_out) : ds_shape_2d(params->n_out, n_in);
    const bool packs = nn->trace.packing != DS_PACKING_NONE;
    ds_nn_push(nn, "%s", name);
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, "weight", path, sizeof path);
    const ds_value weight = packs ? DS_NONE
                            : params->transposed
                                ? ds_nn_param_at(nn, path, shape, normal(params->init_std), false)
                                : dsi_nn_matrix_at(nn, path, shape, normal(params->init_std));
    const ds_value bias =
        params->bias ? ds_nn_param(nn, "bias", ds_shape_1d(params->n_out), zeros, true) : DS_NONE;
    const dsi_linear_attrs attrs = {.transposed = params->transposed,
                                    .out_dtype = params->out_dtype};
    const ds_value in[3] = {x, weight, bias};
    const ds_value y = packs ? packed_linear(nn, x, bias, params)
                             : ds_nn_apply(nn, &dsi_op_linear, &attrs, in, params->bias ? 3 : 2);
    ds_nn_pop(nn);
    return y;
}

ds_value ds_nn_matmul(ds_nn *nn, ds_value x, ds_value weight, bool transposed, ds_dtype out_dtype)
{
    const dsi_linear_attrs attrs = {.transposed = transposed, .out_dtype = out_dtype};
    return apply2(nn, &dsi_op_linear, &attrs, x, weight);
}

ds_value ds_nn_embedding(ds_nn *nn, const char *name, ds_value ids, int64_t n_rows, int64_t width,
                         double init_std)
{
    ds_nn_push(nn, "%s", name);
    const ds_value table =
        ds_nn_param(nn, "weight", ds_shape_2d(n_rows, width), normal(init_std), false);
    const ds_value x = apply2(nn, &dsi_op_embedding, NULL, table, ids);
    ds_nn_pop(nn);
    return x;
}

ds_value ds_nn_embedding_sum(ds_nn *nn, ds_value table, ds_value ids, ds_value pos_table,
                             ds_value positions)
{
    const ds_value in[4] = {table, ids, pos_table, positions};
    if (dsi_is_blocks(ds_nn_meta(nn, table).dtype)) {
        const dsi_embedding_blocks_attrs attrs = {.dtype = nn->trace.dtype};
        const ds_value rows = apply2(nn, &dsi_op_embedding_blocks, &attrs, table, ids);
        return pos_table == DS_NONE
                   ? rows
                   : ds_nn_add(nn, rows, apply2(nn, &dsi_op_embedding, NULL, pos_table, positions));
    }
    return ds_nn_apply(nn, &dsi_op_embedding, NULL, in, 4);
}

ds_value ds_nn_layer_norm(ds_nn *nn, const char *name, ds_value x, double eps, bool bias)
{
    const ds_shape shape = ds_shape_1d(ds_shape_last(ds_nn_meta(nn, x).shape));
    if (name == NULL) {
        const dsi_norm_attrs plain = {.eps = eps};
        return apply2(nn, &dsi_op_layer_norm, &plain, x, DS_NONE);
    }
    ds_nn_push(nn, "%s", name);
    const ds_value weight = ds_nn_param(nn, "weight", shape, ones, true);
    const ds_value b = bias ? ds_nn_param(nn, "bias", shape, zeros, true) : DS_NONE;
    const dsi_norm_attrs attrs = {.eps = eps};
    const ds_value in[3] = {x, weight, b};
    const ds_value y = ds_nn_apply(nn, &dsi_op_layer_norm, &attrs, in, bias ? 3 : 2);
    ds_nn_pop(nn);
    return y;
}

ds_value ds_nn_rms_norm(ds_nn *nn, const char *name, ds_value x, double eps)
{
    return ds_nn_rms_norm_shifted(nn, name, x, eps, 0.0);
}

ds_value ds_nn_rms_norm_shifted(ds_nn *nn, const char *name, ds_value x, double eps, double shift)
{
    if (shift != 0.0 && shift != 1.0) {
        ds_nn_fail(nn, DS_ERR_ARG, "ds_nn_rms_norm_shifted: shift is %g, expected 0 or 1", shift);
        return DS_NONE;
    }
    const ds_shape shape = ds_shape_1d(ds_shape_last(ds_nn_meta(nn, x).shape));
    ds_nn_push(nn, "%s", name);
    const ds_value weight = ds_nn_param(nn, "weight", shape, shift != 0.0 ? zeros : ones, true);
    const dsi_norm_attrs attrs = {.eps = eps, .shift = shift};
    const ds_value y = apply2(nn, &dsi_op_rms_norm, &attrs, x, weight);
    ds_nn_pop(nn);
    return y;
}

ds_value ds_nn_activation(ds_nn *nn, ds_value x, ds_activation kind)
{
    const dsi_act_attrs attrs = {.kind = kind};
    if (kind == DS_ACT_RELU) {
        return ds_nn_relu(nn, x);
    }
    return kind == DS_ACT_NONE ? x : ds_nn_apply(nn, &dsi_op_activation, &attrs, &x, 1);
}

ds_value ds_nn_glu(ds_nn *nn, ds_value gate, ds_value up, ds_activation kind)
{
    const dsi_act_attrs attrs = {.kind = kind};
    if (kind == DS_ACT_RELU) {
        return ds_nn_mul(nn, ds_nn_relu(nn, gate), up);
    }
    return apply2(nn, &dsi_op_glu, &attrs, gate, up);
}

ds_value ds_nn_softmax(ds_nn *nn, ds_value x)
{
    return ds_nn_apply(nn, &dsi_op_softmax, NULL, &x, 1);
}

ds_value ds_nn_rope_table(ds_nn *nn, ds_value positions, ds_value lengths,
                          const ds_rope_params *params)
{
    if (!dsi_nn_ok(nn, DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_rope_params", params))) {
        return DS_NONE;
    }
    const dsi_rope_table_attrs attrs = {.head_dim = params->head_dim,
                                        .theta = params->theta,
                                        .scaling = params->scaling,
                                        .factor = params->factor,
                                        .low_freq_factor = params->low_freq_factor,
                                        .high_freq_factor = params->high_freq_factor,
                                        .original_max_positions = params->original_max_positions,
                                        .beta_fast = params->beta_fast,
                                        .beta_slow = params->beta_slow,
                                        .attention_factor = params->attention_factor,
                                        .mscale = params->mscale,
                                        .mscale_all_dim = params->mscale_all_dim,
                                        .truncate = params->truncate};
    const ds_value in[2] = {positions, lengths};
    return ds_nn_apply(nn, &dsi_op_rope_table, &attrs, in, lengths != DS_NONE ? 2 : 1);
}

ds_value ds_nn_rope(ds_nn *nn, ds_value x, ds_value table, int64_t head_dim)
{
    const dsi_rope_attrs attrs = {.head_dim = head_dim};
    return apply2(nn, &dsi_op_rope, &attrs, x, table);
}

ds_value ds_nn_rope_pairs(ds_nn *nn, ds_value x, ds_value table, int64_t head_dim)
{
    const dsi_rope_attrs attrs = {.head_dim = head_dim, .pairs = 1};
    return apply2(nn, &dsi_op_rope, &attrs, x, table);
}

/* The random state {seed, step, first sample, 0}, written by the engine before each micro-batch. */
static ds_value random_state(ds_nn *nn)
{
    if (nn->rng == DS_NONE) {
        nn->rng = dsi_nn_whole_input(nn, "rng", DS_DTYPE_I64, ds_shape_1d(4));
    }
    return nn->rng;
}

/* Preferences compare log-probabilities with those of the start, which have none. */
bool dsi_nn_teaches(const ds_nn *nn)
{
    return nn->teaches;
}

bool dsi_nn_draws(const ds_nn *nn)
{
    return nn->trace.mode == DS_TRACE_TRAIN && nn->trace.preference == NULL && !nn->teaches;
}

static bool drops(const ds_nn *nn, double p)
{
    return p > 0.0 && dsi_nn_draws(nn);
}

/* 0, 1, 2 …: what a rank knows its part of the heads by. */
static ds_value numbers(ds_nn *nn, int64_t n)
{
    const dsi_row_numbers_attrs attrs = {.n_rows = n};
    return ds_nn_apply(nn, &dsi_op_row_numbers, &attrs, NULL, 0);
}

dsi_row_numbers_attrs dsi_nn_row_numbers(const ds_trace *trace, int64_t n)
{
    const bool shared = trace->sequence_ranks > 1;
    const bool in_parts = (shared || trace->sequence_chunk > 0) && n == trace->seq_length;
    return (dsi_row_numbers_attrs){.n_rows = n,
                                   .n_parts = !in_parts ? 0
                                              : shared  ? trace->sequence_ranks
                                                        : 1,
                                   .halves =
                                       in_parts && trace->sequence_form == DS_SEQUENCE_RING_HALVES};
}

/* The same of positions. */
static ds_value row_numbers(ds_nn *nn, int64_t n)
{
    const dsi_row_numbers_attrs attrs = dsi_nn_row_numbers(&nn->trace, n);
    return ds_nn_apply(nn, &dsi_op_row_numbers, &attrs, NULL, 0);
}

/* Numbers of the rows of dim 1, where ranks share the sequences, or chunks do; else DS_NONE. */
static ds_value shared_rows(ds_nn *nn, ds_value x, int64_t *n_rows_out)
{
    const ds_shape shape = ds_nn_meta(nn, x).shape;
    if ((nn->trace.sequence_ranks < 2 && nn->trace.sequence_chunk == 0) || shape.n_dims < 2) {
        return DS_NONE;
    }
    *n_rows_out = shape.dims[1];
    return row_numbers(nn, shape.dims[1]);
}

ds_value ds_nn_dropout(ds_nn *nn, ds_value x, double p)
{
    if (!drops(nn, p)) {
        return x;
    }
    dsi_dropout_attrs attrs = {.p = p, .site = ++nn->n_sites};
    const ds_value rows = shared_rows(nn, x, &attrs.n_rows);
    const ds_value in[3] = {x, random_state(nn), rows};
    return ds_nn_apply(nn, &dsi_op_dropout, &attrs, in, rows == DS_NONE ? 2 : 3);
}

ds_value dsi_nn_noise(ds_nn *nn, ds_value x, int64_t kind, double amount)
{
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    dsi_noise_attrs attrs = {.kind = kind, .amount = amount, .site = ++nn->n_sites};
    const ds_value rows = shared_rows(nn, x, &attrs.n_rows);
    const ds_value in[3] = {x, random_state(nn), rows};
    return ds_nn_apply(nn, &dsi_op_noise, &attrs, in, rows == DS_NONE ? 2 : 3);
}

static ds_value kv_cell(ds_nn *nn, const char *name, ds_dtype dtype, int64_t width)
{
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, name, path, sizeof path);
    const ds_cell_info info = {
        .name = path,
        .kind = DS_CELL_KV,
        .meta = {dtype, ds_shape_3d(nn->trace.batch, nn->trace.kv_length, width)},
        .of = DS_NONE};
    return dsi_nn_cell(nn, &info);
}

/* Writes k or v behind what the scope's KV cell holds; the cell's new version. */
static ds_value write_kv(ds_nn *nn, const char *name, ds_value x, ds_value offset)
{
    const ds_meta meta = ds_nn_meta(nn, x);
    const ds_value in[3] = {kv_cell(nn, name, meta.dtype, ds_shape_last(meta.shape)), x, offset};
    return ds_nn_apply(nn, &dsi_op_kv_write, NULL, in, 3);
}

/* Whether the trace keeps keys and values, which else is the error. */
static bool keeps(ds_nn *nn, const char *call)
{
    if (ds_nn_status(nn) >= 0 && (nn->trace.mode != DS_TRACE_GENERATE || nn->trace.kv_length < 1 ||
                                  nn->trace.paged != NULL)) {
        ds_nn_fail(nn, DS_ERR_STATE, "%s: this trace keeps no keys and values of one sequence",
                   call);
    }
    return ds_nn_status(nn) >= 0;
}

ds_value ds_nn_kv_write(ds_nn *nn, const char *name, ds_value x, ds_value offset)
{
    return keeps(nn, "ds_nn_kv_write") ? write_kv(nn, name, x, offset) : DS_NONE;
}

ds_value ds_nn_kv_read(ds_nn *nn, const char *name, int64_t width)
{
    return keeps(nn, "ds_nn_kv_read") ? kv_cell(nn, name, nn->trace.dtype, width) : DS_NONE;
}

static ds_value slice_last(ds_nn *nn, ds_value x, int64_t start, int64_t length)
{
    const dsi_slice_attrs attrs = {
        .dim = (int64_t)ds_nn_meta(nn, x).shape.n_dims - 1, .start = start, .length = length};
    return ds_nn_apply(nn, &dsi_op_slice, &attrs, &x, 1);
}

/* Packed q, k and v as three tensors. */
static void unpack(ds_nn *nn, const dsi_attention_attrs *attrs, ds_value *q, ds_value *k,
                   ds_value *v)
{
    const int64_t q_width = attrs->n_heads * attrs->head_dim;
    const int64_t kv_width = attrs->n_kv_heads * attrs->head_dim;
    const ds_value packed = *q;
    *k = slice_last(nn, packed, q_width, kv_width);
    *v = slice_last(nn, packed, q_width + kv_width, kv_width);
    *q = slice_last(nn, packed, 0, q_width);
}

/* Whether keys and values travel among the ranks that share a sequence. */
static bool is_ring(const ds_nn *nn)
{
    return nn->trace.sequence_ranks > 1 && nn->trace.sequence_form != DS_SEQUENCE_HEADS;
}

/* Whether ranks that share sequences need q, k and v apart: packed ones are cut by heads where
 * there are as many of keys as of queries, by one axis alone. */
static bool unpacks(const ds_nn *nn, const dsi_attention_attrs *a)
{
    const int64_t ranks = nn->trace.sequence_ranks;
    if (nn->trace.sequence_chunk > 0) {
        return a->packed != 0;
    }
    return a->packed != 0 && ranks > 1 &&
           (is_ring(nn) || nn->trace.head_ranks > ranks || a->n_kv_heads != a->n_heads ||
            a->n_heads % ranks != 0);
}

/* What attention gives, less the part that sinks take of it. */
static ds_value behind_sinks(ds_nn *nn, const ds_attention_params *p, const ds_value *made)
{
    if (p->sinks == NULL || ds_nn_status(nn) < 0) {
        return ds_nn_status(nn) < 0 ? DS_NONE : made[0];
    }
    const dsi_sinks_attrs attrs = {.n_heads = p->n_heads};
    const ds_value in[3] = {
        made[0], made[1],
        ds_nn_param(nn, p->sinks, ds_shape_1d(p->n_heads), normal(p->sinks_std), false)};
    return ds_nn_apply(nn, &dsi_op_attention_sinks, &attrs, in, 3);
}

static ds_value attention_with_cache(ds_nn *nn, ds_value q, ds_value k, ds_value v,
                                     const ds_attention_params *params,
                                     const dsi_attention_attrs *attrs)
{
    ds_value made[DS_MAX_OUT];
    const ds_value offset =
        ds_nn_input(nn, "kv_offset", DS_DTYPE_I32, ds_shape_1d(nn->trace.batch));
    if (k == DS_NONE) {
        unpack(nn, attrs, &q, &k, &v);
    }
    const ds_value heads = attrs->alibi > 0.0 ? numbers(nn, attrs->n_heads) : DS_NONE;
    const ds_value keys = write_kv(nn, "k", k, offset);
    const ds_value values = v == k ? keys : write_kv(nn, "v", v, offset);
    const ds_value in[7] = {q, keys, values, DS_NONE, offset, DS_NONE, heads};
    dsi_attention_attrs separate = *attrs;
    separate.packed = 0;
    dsi_nn_apply_all(nn, &dsi_op_attention, &separate, in, heads != DS_NONE ? 7 : 5, made);
    return behind_sinks(nn, params, made);
}

/* Each head `times` times, side by side: as many as there are ranks. Each computes the few heads
 * that there are, and takes its own of the many. */
static ds_value repeat_heads(ds_nn *nn, ds_value x, int64_t n_heads, int64_t times)
{
    const ds_shape s = ds_nn_meta(nn, x).shape;
    const dsi_concat_attrs side_by_side = {.dim = 3};
    ds_value in[DS_MAX_IN];
    if (s.n_dims != 3) {
        return x; /* attention refuses it by name */
    }
    const dsi_reshape_attrs apart = {
        .n_dims = 5, .dims = {s.dims[0], s.dims[1], n_heads, 1, s.dims[2] / n_heads}};
    const dsi_reshape_attrs together = {.n_dims = 3,
                                        .dims = {s.dims[0], s.dims[1], s.dims[2] * times}};
    x = ds_nn_apply(nn, &dsi_op_reshape, &apart, &x, 1);
    for (int64_t i = 0; i < times; ++i) {
        in[i] = x;
    }
    x = ds_nn_apply(nn, &dsi_op_concat, &side_by_side, in, (uint32_t)times);
    x = ds_nn_apply(nn, &dsi_op_reshape, &together, &x, 1);
    return ds_nn_apply(nn, &dsi_op_whole, NULL, &x, 1);
}

/* Whether ranks that share the heads of queries would each need a head of keys that they cannot
 * share: fewer of those, of which each is for as many ranks. */
static bool repeats_heads(const ds_nn *nn, int64_t n_heads, int64_t n_kv_heads)
{
    const int64_t ranks = nn->trace.head_ranks;
    return ranks > 1 && n_kv_heads > 0 && ranks > n_kv_heads && n_heads % ranks == 0 &&
           ranks % n_kv_heads == 0 && ranks / n_kv_heads <= DS_MAX_IN;
}

/* What attention is told, paged_attention is told too, or it is refused here: an attribute that is
 * new there would be left out in silence. */
_Static_assert(sizeof(dsi_attention_attrs) == 14 * sizeof(int64_t),
               "attention has a new attribute: have attention_paged pass it on or refuse it");

static ds_value attention_paged(ds_nn *nn, ds_value q, ds_value k, ds_value v,
                                const ds_attention_params *params, const dsi_attention_attrs *attrs)
{
    const ds_paged *paged = nn->trace.paged;
    const int64_t n = nn->trace.seq_length;
    dsi_paged_attrs own = {.n_heads = attrs->n_heads,
                           .n_kv_heads = attrs->n_kv_heads,
                           .head_dim = attrs->head_dim,
                           .window = attrs->window,
                           .scale = attrs->scale,
                           .cap = attrs->cap,
                           .alibi = attrs->alibi,
                           .alibi_rounded = attrs->alibi_rounded,
                           .all_heads = attrs->all_heads};
    ds_value made[DS_MAX_OUT];
    const ds_value heads = attrs->all_heads > 0 ? numbers(nn, attrs->n_heads) : DS_NONE;
    const ds_value tables =
        ds_nn_input(nn, "tables", DS_DTYPE_I32, ds_shape_2d(paged->sequences, paged->table));
    const ds_value sequence = ds_nn_input(nn, "sequence", DS_DTYPE_I32, ds_shape_1d(n));
    const ds_value positions = ds_nn_input(nn, "positions", DS_DTYPE_I32, ds_shape_2d(1, n));
    if (k == DS_NONE) {
        unpack(nn, attrs, &q, &k, &v);
    }
    if (repeats_heads(nn, attrs->n_heads, attrs->n_kv_heads)) {
        const int64_t times = nn->trace.head_ranks / attrs->n_kv_heads;
        const bool same = v == k;
        k = repeat_heads(nn, k, attrs->n_kv_heads, times);
        v = same ? k : repeat_heads(nn, v, attrs->n_kv_heads, times);
        own.n_kv_heads = nn->trace.head_ranks;
    }
    const ds_value keys = ds_nn_paged_write(nn, "k", k, attrs->head_dim);
    const ds_value values = v == k ? keys : ds_nn_paged_write(nn, "v", v, attrs->head_dim);
    const ds_value in[7] = {q, keys, values, tables, sequence, positions, heads};
    dsi_nn_apply_all(nn, &dsi_op_paged_attention, &own, in, heads != DS_NONE ? 7 : 6, made);
    return behind_sinks(nn, params, made);
}

enum { RNG = 5, HEADS = 6, ROWS = 7, KEYS = 8, END = 9 }; /* inputs of attention */

ds_value ds_nn_attention(ds_nn *nn, ds_value q, ds_value k, ds_value v, ds_value first,
                         const ds_attention_params *params)
{
    return ds_nn_attention_within(nn, q, k, v, first, DS_NONE, params);
}

ds_value ds_nn_document_end(ds_nn *nn, ds_value first)
{
    return ds_nn_apply(nn, &dsi_op_document_end, NULL, &first, 1);
}

ds_value ds_nn_filled_end(ds_nn *nn, ds_value first, ds_value ids, int64_t pad)
{
    const dsi_filled_attrs attrs = {.pad = pad};
    const ds_value in[2] = {first, ids};
    return ds_nn_apply(nn, &dsi_op_filled_end, &attrs, in, 2);
}

ds_value ds_nn_shift_labels(ds_nn *nn, ds_value labels, ds_value first, int64_t start, int64_t pad)
{
    const dsi_shift_labels_attrs attrs = {.start = start, .pad = pad};
    const ds_value in[2] = {labels, first};
    return ds_nn_apply(nn, &dsi_op_shift_labels, &attrs, in, 2);
}

ds_value ds_nn_relative_bias(ds_nn *nn, const char *name, ds_value first, ds_value end,
                             ds_value offset, const ds_relative_params *params)
{
    if (!dsi_nn_ok(nn, DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_relative_params", params)) ||
        (offset != DS_NONE && !keeps(nn, "ds_nn_relative_bias"))) {
        return DS_NONE;
    }
    const dsi_relative_attrs attrs = {.n_buckets = params->n_buckets,
                                      .max_distance = params->max_distance,
                                      .both = end != DS_NONE ? 1 : 0,
                                      .n_keys = offset != DS_NONE ? nn->trace.kv_length : 0};
    ds_nn_push(nn, "%s", name);
    const ds_value in[4] = {ds_nn_param(nn, "weight",
                                        ds_shape_2d(params->n_buckets, params->n_heads),
                                        normal(params->init_std), false),
                            first, end, offset};
    ds_nn_pop(nn);
    return ds_nn_apply(nn, &dsi_op_relative_bias, &attrs, in,
                       offset != DS_NONE ? 4
                       : end != DS_NONE  ? 3
                                         : 2);
}

/* How many inputs there are up to the last that is there; those of the layout in use. */
static uint32_t n_inputs(const ds_value *in)
{
    return in[END] != DS_NONE     ? END + 1
           : in[HEADS] != DS_NONE ? ROWS
           : in[RNG] != DS_NONE   ? HEADS
                                  : 4;
}

ds_value ds_nn_attention_within(ds_nn *nn, ds_value q, ds_value k, ds_value v, ds_value first,
                                ds_value end, const ds_attention_params *params)
{
    if (!dsi_nn_ok(nn,
                   DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_attention_params", params))) {
        return DS_NONE;
    }
    if (end != DS_NONE && !params->all_keys) {
        ds_nn_fail(nn, DS_ERR_ARG,
                   "ds_nn_attention_within: causal attention ends at each query; set all_keys");
        return DS_NONE;
    }
    const bool dropout = drops(nn, params->dropout);
    dsi_attention_attrs attrs = {
        .n_heads = params->n_heads,
        .n_kv_heads = params->n_kv_heads,
        .head_dim = params->head_dim,
        .packed = k == DS_NONE,
        .causal = params->all_keys ? 0 : 1,
        .window = params->window,
        .scale = params->scale > 0.0 ? params->scale : 1.0 / sqrt((double)params->head_dim),
        .dropout = dropout ? params->dropout : 0.0,
        .site = dropout ? ++nn->n_sites : 0,
        .cap = params->cap,
        .alibi = params->alibi,
        .alibi_rounded = params->alibi_rounded,
        .all_heads = params->alibi > 0.0 ? params->n_heads : 0};
    if (nn->trace.mode == DS_TRACE_GENERATE && nn->trace.paged != NULL) {
        if (params->all_keys) {
            ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                       "ds_nn_attention: all_keys is true, but sequences that share a batch see "
                       "their own keys up to each position only");
            return DS_NONE;
        }
        return attention_paged(nn, q, k, v, params, &attrs);
    }
    if (nn->trace.mode == DS_TRACE_GENERATE && !params->all_keys) {
        return attention_with_cache(nn, q, k, v, params, &attrs);
    }
    if (unpacks(nn, &attrs)) {
        unpack(nn, &attrs, &q, &k, &v);
        attrs.packed = 0;
    }
    if (attrs.packed == 0 && repeats_heads(nn, attrs.n_heads, attrs.n_kv_heads)) {
        const int64_t times = nn->trace.head_ranks / attrs.n_kv_heads;
        k = repeat_heads(nn, k, attrs.n_kv_heads, times);
        v = repeat_heads(nn, v, attrs.n_kv_heads, times);
        attrs.n_kv_heads = nn->trace.head_ranks;
    }
    ds_value in[END + 1] = {
        q,       k,       v,       first, DS_NONE, dropout ? random_state(nn) : DS_NONE,
        DS_NONE, DS_NONE, DS_NONE, end};
    if ((dropout && nn->trace.head_ranks > 1) || params->alibi > 0.0) {
        attrs.all_heads = attrs.n_heads;
        in[HEADS] = numbers(nn, attrs.n_heads);
    }
    ds_value made[DS_MAX_OUT];
    if (nn->trace.sequence_ranks < 2) {
        dsi_nn_apply_all(nn, &dsi_op_attention, &attrs, in, n_inputs(in), made);
        return behind_sinks(nn, params, made);
    }
    if (is_ring(nn) || attrs.n_heads % nn->trace.head_ranks != 0 ||
        attrs.n_kv_heads % nn->trace.head_ranks != 0) {
        in[ROWS] = row_numbers(nn, nn->trace.seq_length); /* not by heads: a part of the queries */
    }
    dsi_nn_apply_all(nn, &dsi_op_attention, &attrs, in, end != DS_NONE ? END + 1 : KEYS, made);
    return behind_sinks(nn, params, made);
}

/* extra: what is added to the loss, or DS_NONE. */
static ds_value declare_loss(ds_nn *nn, const ds_value *out, ds_value extra)
{
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    const ds_value loss = extra != DS_NONE ? ds_nn_add(nn, out[0], extra) : out[0];
    ds_nn_output(nn, "loss", loss);
    ds_nn_output(nn, "count", out[2]);
    return loss;
}

/* Where ranks share sequences: the targets of all of them; else DS_NONE. */
static ds_value count_targets(ds_nn *nn, ds_value targets, dsi_ce_attrs *attrs)
{
    if (nn->trace.sequence_ranks < 2) {
        return DS_NONE;
    }
    const ds_value count = ds_nn_apply(nn, &dsi_op_count_targets, attrs, &targets, 1);
    attrs->counted = 1;
    return count;
}

ds_value ds_nn_linear_cross_entropy(ds_nn *nn, ds_value x, ds_value weight, ds_value targets)
{
    return dsi_nn_linear_cross_entropy(nn, x, weight, targets, DS_NONE);
}

ds_value dsi_nn_linear_cross_entropy(ds_nn *nn, ds_value x, ds_value weight, ds_value targets,
                                     ds_value extra)
{
    if (nn->trace.preference != NULL && nn->trace.sequence_ranks > 1) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the preference loss \"%s\" is of whole sequences; with sequence_parallel_size "
                   "%lld it is not built: set it to 1",
                   ds_preference_loss_name(nn->trace.preference->loss),
                   (long long)nn->trace.sequence_ranks);
        return DS_NONE;
    }
    if (nn->trace.preference != NULL) {
        return dsi_nn_preference(nn, x, weight, targets);
    }
    dsi_linear_ce_attrs attrs = {.ce.ignore_index = -100};
    const ds_value in[4] = {x, weight, targets, count_targets(nn, targets, &attrs.ce)};
    ds_value out[DS_MAX_OUT];
    dsi_nn_apply_all(nn, &dsi_op_linear_cross_entropy, &attrs, in, attrs.ce.counted != 0 ? 4 : 3,
                     out);
    return declare_loss(nn, out, extra);
}

ds_value dsi_nn_distillation(ds_nn *nn, ds_value logits, ds_value targets, ds_value extra)
{
    const ds_distillation *d = nn->trace.distillation;
    dsi_distillation_attrs attrs = {
        .ce.ignore_index = -100, .weight = d->weight, .temperature = d->temperature, .mix = d->mix};
    const ds_value in[4] = {logits, nn->lesson, targets, count_targets(nn, targets, &attrs.ce)};
    ds_value out[DS_MAX_OUT];
    dsi_nn_apply_all(nn, &dsi_op_distillation, &attrs, in, attrs.ce.counted != 0 ? 4 : 3, out);
    return declare_loss(nn, out, extra);
}

ds_value ds_nn_cross_entropy(ds_nn *nn, ds_value logits, ds_value targets)
{
    if (nn->trace.preference != NULL) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the preference loss \"%s\" is made of ds_nn_linear_cross_entropy; this model "
                   "calls ds_nn_cross_entropy",
                   ds_preference_loss_name(nn->trace.preference->loss));
        return DS_NONE;
    }
    dsi_ce_attrs attrs = {.ignore_index = -100};
    const ds_value in[3] = {logits, targets, count_targets(nn, targets, &attrs)};
    ds_value out[DS_MAX_OUT];
    dsi_nn_apply_all(nn, &dsi_op_cross_entropy, &attrs, in, attrs.counted != 0 ? 3 : 2, out);
    return declare_loss(nn, out, DS_NONE);
}

ds_value ds_nn_add(ds_nn *nn, ds_value a, ds_value b)
{
    return apply2(nn, &dsi_op_add, NULL, a, b);
}

ds_value ds_nn_sub(ds_nn *nn, ds_value a, ds_value b)
{
    return apply2(nn, &dsi_op_sub, NULL, a, b);
}

ds_value ds_nn_mul(ds_nn *nn, ds_value a, ds_value b)
{
    return apply2(nn, &dsi_op_mul, NULL, a, b);
}

ds_value ds_nn_div(ds_nn *nn, ds_value a, ds_value b)
{
    return apply2(nn, &dsi_op_div, NULL, a, b);
}

ds_value ds_nn_scale(ds_nn *nn, ds_value x, double factor)
{
    const dsi_scale_attrs attrs = {.factor = factor};
    return ds_nn_apply(nn, &dsi_op_scale, &attrs, &x, 1);
}

ds_value ds_nn_cast(ds_nn *nn, ds_value x, ds_dtype dtype)
{
    const dsi_cast_attrs attrs = {.dtype = dtype};
    return ds_nn_meta(nn, x).dtype == dtype ? x : ds_nn_apply(nn, &dsi_op_cast, &attrs, &x, 1);
}

ds_value ds_nn_reshape(ds_nn *nn, ds_value x, ds_shape shape)
{
    dsi_reshape_attrs attrs = {.n_dims = shape.n_dims};
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        attrs.dims[i] = shape.dims[i];
    }
    return ds_nn_apply(nn, &dsi_op_reshape, &attrs, &x, 1);
}

ds_value ds_nn_mean_all(ds_nn *nn, ds_value x)
{
    return ds_nn_apply(nn, &dsi_op_mean_all, NULL, &x, 1);
}

ds_value ds_nn_sum_all(ds_nn *nn, ds_value x)
{
    return ds_nn_apply(nn, &dsi_op_sum_all, NULL, &x, 1);
}

ds_value ds_nn_take_rows(ds_nn *nn, ds_value x, ds_value index)
{
    return apply2(nn, &dsi_op_take_rows, NULL, x, index);
}
