/* SPDX-License-Identifier: Apache-2.0 */
/* T5 and T5 1.1 (Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
 * Text-to-Text Transformer", 2020; Shazeer, "GLU Variants Improve Transformer", 2020): an encoder
 * that reads a source, and a decoder whose layers read what it made of it. Scores of attention are
 * q·k plus a number by the distance of the two, of a table that the layers of a half share.
 *
 * A row has a source in input_ids and its target in labels, both from a document's beginning on;
 * the shorter of the two is filled up with pad_token_id, or with -100. */
#include "t5.h"

#include "families.h"

#include <math.h>

/* What all layers of the half that is traced read. */
typedef struct half {
    const ds_t5_config *config;
    ds_value bias;       /* (B,H,T,K): of positions, and of what is not seen */
    ds_value offset;     /* of a decoder that generates; DS_NONE */
    ds_value first, end; /* of a decoder: what it sees of the source */
    ds_value source;     /* (B,S,C), or DS_NONE: keys and values of it are kept */
    bool paged;          /* many sequences in a row: bias is of ds_nn_distance_bias, */
    ds_value cells[2];   /* and these hold keys and values of the layer, of sources too */
} half;

static ds_value project(ds_nn *nn, const char *name, ds_value x, int64_t n_out, double std)
{
    return ds_nn_linear(nn, name, x,
                        &(ds_linear_params){.n_out = n_out, .init_std = std > 0.0 ? std : 1e-30});
}

static ds_value norm(ds_nn *nn, const ds_t5_config *c, const char *name, ds_value x)
{
    return ds_nn_rms_norm(nn, name, x, c->norm_eps);
}

static double width_std(const ds_t5_config *c, int64_t width)
{
    return c->init_factor / sqrt((double)width);
}

static int64_t inner(const ds_t5_config *c)
{
    return c->n_heads * c->head_dim;
}

static ds_value query(ds_nn *nn, const ds_t5_config *c, ds_value x)
{
    return project(nn, "q", x, inner(c), width_std(c, c->hidden_size * c->head_dim));
}

static ds_value key_or_value(ds_nn *nn, const ds_t5_config *c, const char *name, ds_value x)
{
    return project(nn, name, x, inner(c), width_std(c, c->hidden_size));
}

static ds_value output(ds_nn *nn, const ds_t5_config *c, ds_value x)
{
    return project(nn, "o", x, c->hidden_size, width_std(c, inner(c)));
}

/* (B,T,H·D) → (B,H,T,D) */
static ds_value heads_of(ds_nn *nn, const ds_t5_config *c, ds_value x)
{
    const ds_shape s = ds_nn_meta(nn, x).shape;
    return ds_nn_transpose(
        nn, ds_nn_reshape(nn, x, ds_shape_4d(s.dims[0], s.dims[1], c->n_heads, c->head_dim)), 1, 2);
}

/* k or v of x; of a decoder that generates all that there are so far. */
static ds_value seen(ds_nn *nn, const half *in, const char *name, ds_value x)
{
    const ds_value y = key_or_value(nn, in->config, name, x);
    return in->offset != DS_NONE ? ds_nn_kv_write(nn, name, y, in->offset) : y;
}

static ds_attention_params heads_in_blocks(const ds_t5_config *c)
{
    return (ds_attention_params){
        .n_heads = c->n_heads, .n_kv_heads = c->n_heads, .head_dim = c->head_dim, .scale = 1.0};
}

static ds_value self_attention_in_blocks(ds_nn *nn, half *in, ds_value x)
{
    const ds_t5_config *c = in->config;
    const ds_attention_params params = heads_in_blocks(c);
    ds_nn_push(nn, "SelfAttention");
    const ds_value q = query(nn, c, x);
    for (int i = 0; i < 2; ++i) {
        const char *name = i == 0 ? "k" : "v";
        in->cells[i] = ds_nn_paged_write(nn, name, key_or_value(nn, c, name, x), c->head_dim);
    }
    const ds_value y = output(
        nn, c, ds_nn_paged_attention(nn, q, in->cells[0], in->cells[1], in->bias, false, &params));
    ds_nn_pop(nn);
    return y;
}

/* softmax(q·kᵀ + bias)·v; scores of all queries and keys are in memory. */
static ds_value self_attention(ds_nn *nn, half *in, ds_value x)
{
    const ds_t5_config *c = in->config;
    if (in->paged) {
        return self_attention_in_blocks(nn, in, x);
    }
    ds_nn_push(nn, "SelfAttention");
    const ds_value q = query(nn, c, x);
    const ds_value k = seen(nn, in, "k", x);
    const ds_value v = seen(nn, in, "v", x);
    ds_value y = DS_NONE;
    if (ds_nn_status(nn) >= 0) {
        const ds_shape flat = ds_nn_meta(nn, q).shape;
        const ds_value scores =
            ds_nn_add(nn, ds_nn_bmm(nn, heads_of(nn, c, q), heads_of(nn, c, k), true), in->bias);
        y = ds_nn_bmm(nn, ds_nn_dropout(nn, ds_nn_softmax(nn, scores), c->dropout),
                      heads_of(nn, c, v), false);
        y = output(nn, c, ds_nn_reshape(nn, ds_nn_transpose(nn, y, 1, 2), flat));
    }
    ds_nn_pop(nn);
    return y;
}

/* k or v of the source. */
static ds_value of_source(ds_nn *nn, const half *in, const char *name)
{
    return in->source != DS_NONE ? key_or_value(nn, in->config, name, in->source)
                                 : ds_nn_kv_read(nn, name, inner(in->config));
}

/* Sources lie in other blocks of the cells of the layer's own keys and values. */
static ds_value cross_attention_in_blocks(ds_nn *nn, const half *in, ds_value x)
{
    const ds_t5_config *c = in->config;
    const ds_attention_params params = heads_in_blocks(c);
    ds_nn_push(nn, "EncDecAttention");
    const ds_value q = query(nn, c, x);
    const ds_value y = output(
        nn, c, ds_nn_paged_attention(nn, q, in->cells[0], in->cells[1], DS_NONE, true, &params));
    ds_nn_pop(nn);
    return y;
}

static ds_value cross_attention(ds_nn *nn, half *in, ds_value x)
{
    const ds_t5_config *c = in->config;
    if (in->paged) {
        return cross_attention_in_blocks(nn, in, x);
    }
    const ds_attention_params params = {.n_heads = c->n_heads,
                                        .n_kv_heads = c->n_heads,
                                        .head_dim = c->head_dim,
                                        .scale = 1.0,
                                        .dropout = c->dropout,
                                        .all_keys = true};
    ds_nn_push(nn, "EncDecAttention");
    const ds_value q = query(nn, c, x);
    const ds_value k = of_source(nn, in, "k");
    const ds_value v = of_source(nn, in, "v");
    const ds_value y =
        output(nn, c, ds_nn_attention_within(nn, q, k, v, in->first, in->end, &params));
    ds_nn_pop(nn);
    return y;
}

static ds_value feed_forward(ds_nn *nn, half *in, ds_value x)
{
    const ds_t5_config *c = in->config;
    const double std = width_std(c, c->hidden_size);
    ds_value h = DS_NONE;
    ds_nn_push(nn, "DenseReluDense");
    if (c->gated) {
        const ds_value gate = project(nn, "wi_0", x, c->intermediate_size, std);
        const ds_value up = project(nn, "wi_1", x, c->intermediate_size, std);
        h = ds_nn_glu(nn, gate, up, c->activation);
    } else {
        h = ds_nn_activation(nn, project(nn, "wi", x, c->intermediate_size, std), c->activation);
    }
    const ds_value y = project(nn, "wo", ds_nn_dropout(nn, h, c->dropout), c->hidden_size,
                               width_std(c, c->intermediate_size));
    ds_nn_pop(nn);
    return y;
}

/* x + f(norm(x)) in the scope layer.I. */
static ds_value sublayer(ds_nn *nn, half *in, int index, ds_value x,
                         ds_value (*f)(ds_nn *, half *, ds_value))
{
    ds_nn_push(nn, "layer.%d", index);
    const ds_value y = f(nn, in, norm(nn, in->config, "layer_norm", x));
    ds_nn_pop(nn);
    return ds_nn_add(nn, x, ds_nn_dropout(nn, y, in->config->dropout));
}

static ds_value layers(ds_nn *nn, half *in, int64_t n, bool decodes, ds_value x)
{
    const ds_t5_config *c = in->config;
    x = ds_nn_dropout(nn, x, c->dropout);
    for (int64_t layer = 0; layer < n; ++layer) {
        ds_nn_push(nn, "block.%lld", (long long)layer);
        ds_nn_region_begin(nn);
        x = sublayer(nn, in, 0, x, self_attention);
        x = decodes ? sublayer(nn, in, 1, x, cross_attention) : x;
        x = sublayer(nn, in, decodes ? 2 : 1, x, feed_forward);
        ds_nn_region_end(nn);
        ds_nn_pop(nn);
    }
    return ds_nn_dropout(nn, norm(nn, c, "final_layer_norm", x), c->dropout);
}

static ds_relative_params relative_params(const ds_t5_config *c)
{
    return (ds_relative_params){.n_heads = c->n_heads,
                                .n_buckets = c->n_buckets,
                                .max_distance = c->max_distance,
                                .init_std = width_std(c, c->hidden_size)};
}

/* Of the scope of a half. */
static ds_value bias_of(ds_nn *nn, const ds_t5_config *c, ds_value first, ds_value end,
                        ds_value offset)
{
    const ds_relative_params params = relative_params(c);
    ds_nn_push(nn, "block.0.layer.0.SelfAttention");
    const ds_value bias =
        ds_nn_relative_bias(nn, "relative_attention_bias", first, end, offset, &params);
    ds_nn_pop(nn);
    return bias;
}

static ds_value bias_by_distance(ds_nn *nn, const ds_t5_config *c)
{
    const ds_relative_params params = relative_params(c);
    ds_nn_push(nn, "block.0.layer.0.SelfAttention");
    const ds_value bias = ds_nn_distance_bias(nn, "relative_attention_bias", &params);
    ds_nn_pop(nn);
    return bias;
}

static ds_value input(ds_nn *nn, const char *name)
{
    const ds_trace *t = ds_nn_trace(nn);
    return ds_nn_input(nn, name, DS_DTYPE_I32, ds_shape_2d(t->batch, t->seq_length));
}

static ds_value table_of(ds_nn *nn, const ds_t5_config *c)
{
    return ds_nn_table_at(nn, "shared.weight", ds_shape_2d(c->vocab_size, c->hidden_size),
                          (ds_init){DS_INIT_NORMAL, c->init_factor}, c->tied);
}

static ds_value embed(ds_nn *nn, ds_value table, ds_value ids)
{
    return ds_nn_embedding_sum(nn, table, ids, DS_NONE, DS_NONE);
}

/* (B,T,C) */
static ds_value encode(ds_nn *nn, const ds_t5_config *c, ds_value x, ds_value first, ds_value end)
{
    ds_nn_push(nn, "encoder");
    half in = {.config = c,
               .bias = bias_of(nn, c, first, end, DS_NONE),
               .offset = DS_NONE,
               .source = DS_NONE};
    x = layers(nn, &in, c->n_layers, false, x);
    ds_nn_pop(nn);
    return x;
}

static void head(ds_nn *nn, const ds_t5_config *c, ds_value x, ds_value table)
{
    const bool generates = ds_nn_trace(nn)->mode == DS_TRACE_GENERATE;
    x = c->scaled ? ds_nn_scale(nn, x, 1.0 / sqrt((double)c->hidden_size)) : x;
    ds_model_head(nn, x,
                  &(ds_head_params){.embedding = c->tied ? table : DS_NONE,
                                    .name = "lm_head.weight",
                                    .vocab_size = c->vocab_size,
                                    .init_std = c->init_factor,
                                    .extra = DS_NONE,
                                    .unshifted = !generates});
}

/* Keys and values of each layer of the decoder, for the traces of pieces that it makes. */
static void keep_source(ds_nn *nn, const ds_t5_config *c, ds_value x)
{
    const ds_value offset =
        ds_nn_input(nn, "kv_offset", DS_DTYPE_I32, ds_shape_1d(ds_nn_trace(nn)->batch));
    ds_nn_push(nn, "decoder");
    for (int64_t layer = 0; layer < c->n_decoder_layers; ++layer) {
        ds_nn_push(nn, "block.%lld.layer.1.EncDecAttention", (long long)layer);
        (void)ds_nn_kv_write(nn, "k", key_or_value(nn, c, "k", x), offset);
        (void)ds_nn_kv_write(nn, "v", key_or_value(nn, c, "v", x), offset);
        ds_nn_pop(nn);
    }
    ds_nn_pop(nn);
}

/* The same in blocks of the cells of the layer's own keys and values. */
static void keep_source_in_blocks(ds_nn *nn, const ds_t5_config *c, ds_value x)
{
    ds_nn_push(nn, "decoder");
    for (int64_t layer = 0; layer < c->n_decoder_layers; ++layer) {
        ds_value kept[2];
        ds_nn_push(nn, "block.%lld.layer.1.EncDecAttention", (long long)layer);
        kept[0] = key_or_value(nn, c, "k", x);
        kept[1] = key_or_value(nn, c, "v", x);
        ds_nn_pop(nn);
        ds_nn_push(nn, "block.%lld.layer.0.SelfAttention", (long long)layer);
        (void)ds_nn_paged_write(nn, "k", kept[0], c->head_dim);
        (void)ds_nn_paged_write(nn, "v", kept[1], c->head_dim);
        ds_nn_pop(nn);
    }
    ds_nn_pop(nn);
}

/* The source alone: what the encoder gives, and what a decoder of this generator reads of it. */
static void trace_source(ds_nn *nn, const ds_t5_config *c)
{
    const ds_value ids = input(nn, "input_ids");
    (void)input(nn, "positions");
    const ds_value first = input(nn, "first");
    const ds_value x =
        encode(nn, c, embed(nn, table_of(nn, c), ids), first, ds_nn_document_end(nn, first));
    if (ds_nn_trace(nn)->paged != NULL) {
        keep_source_in_blocks(nn, c, x);
    } else if (ds_nn_trace(nn)->kv_length > 0) {
        keep_source(nn, c, x);
    }
    ds_nn_output(nn, "hidden", ds_nn_cast(nn, x, DS_DTYPE_F32));
}

/* The next token of a source that is kept. */
static void trace_next(ds_nn *nn, const ds_t5_config *c)
{
    const ds_value ids = input(nn, "input_ids");
    (void)input(nn, "positions");
    const ds_value first = input(nn, "first");
    const ds_value end = input(nn, "source_end");
    const ds_value table = table_of(nn, c);
    const ds_value offset =
        ds_nn_input(nn, "kv_offset", DS_DTYPE_I32, ds_shape_1d(ds_nn_trace(nn)->batch));
    ds_nn_push(nn, "decoder");
    half in = {.config = c,
               .bias = bias_of(nn, c, first, DS_NONE, offset),
               .offset = offset,
               .first = first,
               .end = end,
               .source = DS_NONE};
    const ds_value x = layers(nn, &in, c->n_decoder_layers, true, embed(nn, table, ids));
    ds_nn_pop(nn);
    head(nn, c, x, table);
}

/* Tokens of many sequences in a row. */
static void trace_next_of_many(ds_nn *nn, const ds_t5_config *c)
{
    const ds_value ids = input(nn, "input_ids");
    const ds_value table = table_of(nn, c);
    ds_nn_push(nn, "decoder");
    half in = {.config = c, .bias = bias_by_distance(nn, c), .paged = true};
    const ds_value x = layers(nn, &in, c->n_decoder_layers, true, embed(nn, table, ids));
    ds_nn_pop(nn);
    head(nn, c, x, table);
}

static void trace_pairs(ds_nn *nn, const ds_t5_config *c)
{
    const ds_value ids = input(nn, "input_ids");
    (void)input(nn, "positions");
    const ds_value first = input(nn, "first");
    const ds_value labels = input(nn, "labels");
    const ds_value end = ds_nn_filled_end(nn, first, ids, c->pad_id);
    const ds_value table = table_of(nn, c);
    const ds_value source = encode(nn, c, embed(nn, table, ids), first, end);
    const ds_value shifted = ds_nn_shift_labels(nn, labels, first, c->start_id, c->pad_id);
    ds_nn_push(nn, "decoder");
    half in = {.config = c,
               .bias = bias_of(nn, c, first, DS_NONE, DS_NONE),
               .offset = DS_NONE,
               .first = first,
               .end = end,
               .source = source};
    const ds_value x = layers(nn, &in, c->n_decoder_layers, true, embed(nn, table, shifted));
    ds_nn_pop(nn);
    head(nn, c, x, table);
}

static bool is_built(ds_nn *nn)
{
    const ds_trace *t = ds_nn_trace(nn);
    const char *what =
        t->dtype == DS_DTYPE_F16 ? "fp16, in which T5's sums overflow; take bf16 or fp32"
        : t->preference != NULL  ? "a preference loss"
        : t->sequence_ranks > 1  ? "sequence parallelism: its scores are of all keys"
        : t->head_ranks > 1 && t->mode != DS_TRACE_GENERATE
            ? "tensor parallelism in training: its scores are of all heads"
        : t->task != DS_TASK_TOKENS && (t->task != DS_TASK_HIDDEN || t->mode != DS_TRACE_GENERATE)
            ? "a task with classes"
            : NULL;
    if (what != NULL) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED, "not built for t5: %s", what);
    }
    return what == NULL;
}

static void t5_trace(ds_nn *nn, const void *opaque)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (!is_built(nn)) {
        return;
    }
    if (t->mode != DS_TRACE_GENERATE) {
        trace_pairs(nn, opaque);
    } else if (t->task == DS_TASK_HIDDEN) {
        trace_source(nn, opaque);
    } else if (t->paged != NULL) {
        trace_next_of_many(nn, opaque);
    } else {
        trace_next(nn, opaque);
    }
}

const ds_family ds_family_t5 = {
    .model_types = "t5",
    .ignored = "encoder.embed_tokens.weight decoder.embed_tokens.weight "
               "layer.1.EncDecAttention.relative_attention_bias.weight",
    .config_bytes = sizeof(ds_t5_config),
    .read = ds_t5_read,
    .ignores = ds_t5_ignores,
    .trace = t5_trace,
    .print = ds_t5_print,
    .set_tied = ds_t5_set_tied,
};
