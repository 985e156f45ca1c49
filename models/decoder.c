/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of the families in decoder.h, with Hugging Face's names: Llama 2 and 3 (Touvron et
 * al. 2023; Dubey et al. 2024), Mistral (Jiang et al. 2023), Qwen2/2.5 and Qwen3 (Yang et al. 2024,
 * 2025) and those that differ from them by a variant of norm, residual, positions or MLP. */
#include "decoder.h"

#include "model/delta_net.h"
#include "model/expert_layer.h"
#include "model/family.h"
#include "model/latent_attention.h"

#include <math.h>

static ds_value project(ds_nn *nn, const ds_decoder_config *c, const char *name, ds_value x,
                        int64_t n_out, bool bias)
{
    return ds_nn_linear(
        nn, name, x,
        &(ds_linear_params){.n_out = n_out, .bias = bias, .init_std = c->initializer_range});
}

/* name NULL: there is none. */
static ds_value norm(ds_nn *nn, const ds_decoder_config *c, const char *name, ds_value x)
{
    if (name == NULL) {
        return x;
    }
    switch (c->norm) {
    case DS_NORM_RMS:
        return ds_nn_rms_norm(nn, name, x, c->norm_eps);
    case DS_NORM_RMS_PLUS:
        return ds_nn_rms_norm_shifted(nn, name, x, c->norm_eps, 1.0);
    case DS_NORM_LAYER_BARE:
        return ds_nn_layer_norm(nn, NULL, x, c->norm_eps, false);
    default:
        return ds_nn_layer_norm(nn, name, x, c->norm_eps, c->norm == DS_NORM_LAYER);
    }
}

static ds_value times(ds_nn *nn, ds_value x, double factor)
{
    return factor == 1.0 ? x : ds_nn_scale(nn, x, factor);
}

/* Norm of queries or keys. */
static ds_value qk_norm(ds_nn *nn, const ds_decoder_config *c, const char *name, ds_value x)
{
    if (c->qk_norm == DS_QK_NONE || ds_nn_status(nn) < 0) {
        return x;
    }
    if (c->qk_norm == DS_QK_WHOLE) {
        return norm(nn, c, name, x);
    }
    const ds_shape flat = ds_nn_meta(nn, x).shape; /* (B,T,H·D) */
    const ds_shape heads =
        ds_shape_4d(flat.dims[0], flat.dims[1], flat.dims[2] / c->head_dim, c->head_dim);
    x = ds_nn_reshape(nn, x, heads);
    if (c->qk_norm == DS_QK_HEAD) {
        return ds_nn_reshape(nn, norm(nn, c, name, x), flat);
    }
    x = ds_nn_reshape(nn, ds_nn_layer_norm(nn, NULL, x, c->norm_eps, false), flat);
    ds_nn_push(nn, "%s", name);
    const ds_value weight = ds_nn_param(nn, "weight", ds_shape_2d(heads.dims[2], c->head_dim),
                                        (ds_init){.kind = DS_INIT_ONES}, true);
    ds_nn_pop(nn);
    return ds_nn_mul(nn, x, ds_nn_reshape(nn, weight, ds_shape_1d(flat.dims[2])));
}

/* x within the bounds of queries, keys and values. */
static ds_value clip(ds_nn *nn, const ds_decoder_config *c, ds_value x)
{
    const double bound = c->clip_qkv;
    if (isinf(bound)) {
        return x;
    }
    x = ds_nn_masked_fill(nn, x, ds_nn_compare_to(nn, x, DS_GREATER, bound), bound);
    return ds_nn_masked_fill(nn, x, ds_nn_compare_to(nn, x, DS_LESS, -bound), -bound);
}

/* q, k and v of each head side by side. */
static void split_heads(ds_nn *nn, const ds_decoder_config *c, ds_value packed, ds_value *qkv)
{
    if (ds_nn_status(nn) < 0) {
        return;
    }
    const ds_shape flat = ds_nn_meta(nn, packed).shape; /* (B,T,H·3·D) */
    const ds_shape heads =
        ds_shape_4d(flat.dims[0], flat.dims[1], c->n_heads, 3 * c->head_dim); /* (B,T,H,3·D) */
    const ds_shape each = ds_shape_3d(flat.dims[0], flat.dims[1], c->n_heads * c->head_dim);
    ds_nn_split(nn, ds_nn_reshape(nn, packed, heads), -1, 3, qkv);
    for (int i = 0; i < 3; ++i) {
        qkv[i] = ds_nn_reshape(nn, qkv[i], each);
    }
}

/* Of each head of keys the queries that share it, then k and v. */
static void split_groups(ds_nn *nn, const ds_decoder_config *c, ds_value packed, ds_value *qkv)
{
    if (ds_nn_status(nn) < 0) {
        return;
    }
    const ds_shape flat = ds_nn_meta(nn, packed).shape;
    const int64_t each = c->n_heads / c->n_kv_heads * c->head_dim;
    const ds_shape groups =
        ds_shape_4d(flat.dims[0], flat.dims[1], c->n_kv_heads, each + 2 * c->head_dim);
    const int64_t widths[3] = {each, c->head_dim, c->head_dim};
    const ds_value x = ds_nn_reshape(nn, packed, groups);
    int64_t at = 0;
    for (int i = 0; i < 3; at += widths[i++]) {
        qkv[i] = ds_nn_reshape(nn, ds_nn_slice(nn, x, -1, at, widths[i]),
                               ds_shape_3d(flat.dims[0], flat.dims[1], c->n_kv_heads * widths[i]));
    }
}

/* Of each head q and its gate, in place of q. */
static void split_gate(ds_nn *nn, const ds_decoder_config *c, ds_value *q, ds_value *gate)
{
    if (ds_nn_status(nn) < 0) {
        return;
    }
    const ds_shape flat = ds_nn_meta(nn, *q).shape;
    const ds_shape heads =
        ds_shape_4d(flat.dims[0], flat.dims[1], c->n_heads, 2 * c->head_dim); /* (B,T,H,2·D) */
    const ds_shape each = ds_shape_3d(flat.dims[0], flat.dims[1], c->n_heads * c->head_dim);
    ds_value both[2];
    ds_nn_split(nn, ds_nn_reshape(nn, *q, heads), -1, 2, both);
    *q = ds_nn_reshape(nn, both[0], each);
    *gate = ds_nn_reshape(nn, both[1], each);
}

static void project_qkv(ds_nn *nn, const ds_decoder_config *c, ds_value x, ds_value *qkv)
{
    const int64_t q = c->n_heads * c->head_dim * (c->gated_attention ? 2 : 1);
    const int64_t kv = c->n_kv_heads * c->head_dim;
    if (c->qkv == DS_QKV_APART) {
        const ds_decoder_names *n = c->names;
        qkv[0] = project(nn, c, n->q != NULL ? n->q : "q_proj", x, q, c->qkv_bias);
        qkv[1] = project(nn, c, n->k != NULL ? n->k : "k_proj", x, kv, c->qkv_bias);
        qkv[2] = project(nn, c, n->v != NULL ? n->v : "v_proj", x, kv, c->qkv_bias);
        return;
    }
    const ds_value packed = project(nn, c, c->names->packed, x, q + 2 * kv, c->qkv_bias);
    if (c->qkv == DS_QKV_HEADS) {
        split_heads(nn, c, packed, qkv);
    } else if (c->qkv == DS_QKV_GROUPS) {
        split_groups(nn, c, packed, qkv);
    } else if (q == kv) {
        ds_nn_split(nn, packed, -1, 3, qkv);
    } else {
        qkv[0] = ds_nn_slice(nn, packed, -1, 0, q);
        qkv[1] = ds_nn_slice(nn, packed, -1, q, kv);
        qkv[2] = ds_nn_slice(nn, packed, -1, q + kv, kv);
    }
}

static ds_value rotate(ds_nn *nn, const ds_decoder_config *c, ds_value x, ds_value table)
{
    return c->rope_pairs ? ds_nn_rope_pairs(nn, x, table, c->head_dim)
                         : ds_nn_rope(nn, x, table, c->head_dim);
}

/* What all layers read. */
typedef struct decoder_inputs {
    ds_value first, end;   /* visible positions of each query; end: of encoders */
    ds_value table, local; /* rotary positions; local: of layers with a window */
} decoder_inputs;

static ds_value latent_attention(ds_nn *nn, const ds_decoder_config *c, ds_value x,
                                 const decoder_inputs *in)
{
    return ds_model_latent_attention(nn, x, in->table, in->first,
                                     &(ds_latent_params){.n_heads = c->n_heads,
                                                         .q_rank = c->q_rank,
                                                         .kv_rank = c->kv_rank,
                                                         .plain = c->plain_dim,
                                                         .rotated = c->head_dim,
                                                         .value = c->value_dim,
                                                         .eps = 1e-6, /* whatever rms_norm_eps is */
                                                         .scale = c->attention_scale,
                                                         .dropout = c->attention_dropout,
                                                         .init_std = c->initializer_range,
                                                         .pairs = c->rope_pairs,
                                                         .bias = c->qkv_bias});
}

static ds_value full_attention(ds_nn *nn, const ds_decoder_config *c, int64_t layer, ds_value x,
                               const decoder_inputs *in)
{
    ds_value qkv[3] = {DS_NONE, DS_NONE, DS_NONE};
    ds_value gate = DS_NONE;
    project_qkv(nn, c, x, qkv);
    if (c->gated_attention) {
        split_gate(nn, c, &qkv[0], &gate);
    }
    const ds_decoder_names *names = c->names;
    ds_value q =
        clip(nn, c, qk_norm(nn, c, names->q_norm != NULL ? names->q_norm : "q_norm", qkv[0]));
    ds_value k =
        clip(nn, c, qk_norm(nn, c, names->k_norm != NULL ? names->k_norm : "k_norm", qkv[1]));
    const ds_value v = clip(nn, c, qkv[2]);
    const ds_value table = c->local && c->windowed[layer] ? in->local : in->table;
    if (!c->unrotated[layer] && table != DS_NONE) {
        q = rotate(nn, c, q, table);
        k = rotate(nn, c, k, table);
    }
    const ds_attention_params params = {.n_heads = c->n_heads,
                                        .n_kv_heads = c->n_kv_heads,
                                        .head_dim = c->head_dim,
                                        .window = ds_decoder_window(c, layer),
                                        .scale = c->attention_scale,
                                        .dropout = c->attention_dropout,
                                        .all_keys = c->encoder,
                                        .cap = c->attention_cap,
                                        .alibi = c->alibi,
                                        .alibi_rounded = c->alibi_rounded,
                                        .sinks = c->sinks,
                                        .sinks_std = c->initializer_range};
    const ds_value y = ds_nn_attention_within(nn, q, k, v, in->first, in->end, &params);
    return gate != DS_NONE ? ds_nn_mul(nn, y, ds_nn_sigmoid(nn, gate)) : y;
}

static ds_value linear_attention(ds_nn *nn, const ds_decoder_config *c, ds_value x,
                                 const decoder_inputs *in)
{
    return ds_model_delta_net(nn, x, in->first,
                              &(ds_delta_net_params){.n_heads = c->delta_heads,
                                                     .n_key_heads = c->delta_key_heads,
                                                     .key_dim = c->delta_key_dim,
                                                     .value_dim = c->delta_value_dim,
                                                     .kernel = c->delta_kernel,
                                                     .activation = c->activation,
                                                     .eps = c->norm_eps,
                                                     .init_std = c->initializer_range});
}

static ds_value attention(ds_nn *nn, const ds_decoder_config *c, int64_t layer, ds_value x,
                          const decoder_inputs *in)
{
    const bool recurs = c->recurs[layer];
    ds_nn_push(nn, "%s", recurs ? c->names->linear : c->names->attention);
    const ds_value y = recurs           ? linear_attention(nn, c, x, in)
                       : c->kv_rank > 0 ? latent_attention(nn, c, x, in)
                                        : full_attention(nn, c, layer, x, in);
    const ds_value out = project(nn, c, recurs ? c->names->linear_out : c->names->out, y,
                                 c->hidden_size, !recurs && c->o_bias);
    ds_nn_pop(nn);
    return ds_nn_dropout(nn, out, c->residual_dropout);
}

static ds_value gated(ds_nn *nn, const ds_decoder_config *c, ds_value x)
{
    const int64_t width = c->intermediate_size;
    ds_value both[2];
    if (c->mlp == DS_MLP_PACKED) {
        ds_nn_split(nn,
                    project(nn, c, c->names->gate_up != NULL ? c->names->gate_up : "gate_up_proj",
                            x, 2 * width, c->mlp_bias),
                    -1, 2, both);
    } else {
        both[0] = project(nn, c, "gate_proj", x, width, c->mlp_bias);
        both[1] = project(nn, c, "up_proj", x, width, c->mlp_bias);
    }
    return ds_nn_glu(nn, both[0], both[1], c->activation);
}

static ds_value mlp(ds_nn *nn, const ds_decoder_config *c, ds_value x)
{
    const bool plain = c->mlp == DS_MLP_PLAIN;
    const char *scope = c->names->mlp != NULL ? c->names->mlp : "mlp";
    if (scope[0] != '\0') {
        ds_nn_push(nn, "%s", scope);
    }
    const ds_value h =
        plain ? ds_nn_activation(nn,
                                 project(nn, c, c->names->up, x, c->intermediate_size, c->mlp_bias),
                                 c->activation)
              : gated(nn, c, x);
    const ds_value out =
        project(nn, c, c->names->down != NULL ? c->names->down : "down_proj",
                ds_nn_dropout(nn, h, c->inner_dropout), c->hidden_size, c->mlp_bias);
    if (scope[0] != '\0') {
        ds_nn_pop(nn);
    }
    return ds_nn_dropout(nn, out, c->mlp_dropout);
}

static ds_value experts(ds_nn *nn, const ds_decoder_config *c, ds_value x, ds_router_load *load)
{
    const ds_expert_names *names = c->expert_names;
    const ds_experts_params params = {
        .n_experts = c->n_experts,
        .n_chosen = c->n_chosen,
        .width = c->expert_width,
        .normalise = c->normalise,
        .activation = c->activation,
        .init_std = c->initializer_range,
        .jitter = c->router_noise,
        .router = names->router,
        .gate = names->gate,
        .up = names->up,
        .down = names->down,
        .gate_up = names->gate_up,
        .shared_gate = names->shared_gate,
        .shared_width = c->shared_width,
        .shared = {names->shared[0], names->shared[1], names->shared[2]},
        .sigmoid = c->sigmoid,
        .choice_bias = names->choice_bias,
        .factor = c->expert_factor,
        .n_groups = c->n_groups,
        .top_groups = c->top_groups,
        .group_by_two = c->group_by_two,
        .router_bias = names->router_bias,
        .gate_up_bias = names->gate_up_bias,
        .down_bias = names->down_bias,
        .transposed = names->transposed,
        .alternate = names->alternate,
        .limit = c->glu_limit,
        .alpha = c->glu_alpha};
    ds_nn_push(nn, "%s", names->scope);
    const bool balances = c->balance && ds_nn_trace(nn)->mode != DS_TRACE_GENERATE;
    const ds_value y = ds_model_experts(nn, x, &params, balances ? load : NULL);
    ds_nn_pop(nn);
    return ds_nn_dropout(nn, y, c->residual_dropout);
}

/* What feed_forward is called with. */
typedef struct position_job {
    const ds_decoder_config *config;
    int64_t layer;
    ds_router_load *load; /* of all layers so far */
} position_job;

static ds_value sublayer(ds_nn *nn, const position_job *job, ds_value x)
{
    const ds_decoder_config *c = job->config;
    return c->n_experts > 0 && !c->dense[job->layer] ? experts(nn, c, x, job->load) : mlp(nn, c, x);
}

/* The half of a layer that treats each position by itself. */
static ds_value feed_forward(ds_nn *nn, ds_value x, const void *user)
{
    const position_job *job = user;
    const ds_decoder_config *c = job->config;
    const ds_value m = sublayer(nn, job, norm(nn, c, c->names->before_mlp, x));
    return times(nn, norm(nn, c, c->names->after_mlp, m), c->residual_scale);
}

static ds_value add_feed_forward(ds_nn *nn, ds_value x, const void *user)
{
    const position_job *job = user;
    const ds_decoder_config *c = job->config;
    if (!c->residual_normed) {
        return norm(nn, c, c->names->behind_mlp, ds_nn_add(nn, x, feed_forward(nn, x, user)));
    }
    const ds_value normed = norm(nn, c, c->names->before_mlp, x);
    return ds_nn_add(nn, normed, sublayer(nn, job, normed));
}

static ds_value decoder_layer(ds_nn *nn, const position_job *job, ds_value x,
                              const decoder_inputs *inputs)
{
    const ds_decoder_config *c = job->config;
    const int64_t rows = ds_nn_trace(nn)->mlp_rows;
    const bool drops = c->joint_dropout > 0.0 && ds_nn_trace(nn)->mode == DS_TRACE_TRAIN;
    const bool bare = c->first_bare && job->layer == 0;
    const ds_value normed = norm(nn, c, bare ? NULL : c->names->before_attention, x);
    const ds_value a =
        norm(nn, c, c->names->after_attention, attention(nn, c, job->layer, normed, inputs));
    const ds_value sum =
        drops ? x : ds_nn_add(nn, c->residual_normed ? normed : x, times(nn, a, c->residual_scale));
    if (!c->parallel) {
        return ds_nn_tiled(nn, norm(nn, c, c->names->behind_attention, sum), rows, add_feed_forward,
                           job);
    }
    const ds_value in = c->names->before_mlp != NULL ? x : normed;
    const ds_value m = ds_nn_tiled(nn, in, rows, feed_forward, job);
    return drops ? ds_nn_add(nn, x, ds_nn_dropout(nn, ds_nn_add(nn, a, m), c->joint_dropout))
                 : ds_nn_add(nn, sum, m);
}

/* (B,T,C) by the input of types; or of the first type (C). */
static ds_value of_types(ds_nn *nn, const ds_decoder_config *c, ds_value table)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (t->task_params == NULL || t->task_params->token_types == 0) {
        return ds_nn_reshape(nn, ds_nn_slice(nn, table, 0, 0, 1), ds_shape_1d(c->hidden_size));
    }
    const ds_value ids =
        ds_nn_input(nn, "token_type_ids", DS_DTYPE_I32, ds_shape_2d(t->batch, t->seq_length));
    return ds_nn_embedding_sum(nn, table, ids, DS_NONE, DS_NONE);
}

/* (B,T,C) */
static ds_value embed(ds_nn *nn, const ds_decoder_config *c, ds_value table, ds_value ids,
                      ds_value positions)
{
    const ds_decoder_names *names = c->names;
    const double scale = c->rounded_scale
                             ? ds_model_rounded(ds_nn_trace(nn)->dtype, c->embedding_scale)
                             : c->embedding_scale;
    ds_value places = DS_NONE;
    if (names->positions != NULL) {
        places = ds_nn_param_at(nn, names->positions,
                                ds_shape_2d(c->max_positions + c->position_offset, c->hidden_size),
                                (ds_init){DS_INIT_NORMAL, c->initializer_range}, false);
        if (c->position_offset > 0) {
            places = ds_nn_slice(nn, places, 0, c->position_offset, c->max_positions);
        }
    }
    if (c->embedding_width != c->hidden_size) {
        ds_nn_push(nn, "%s", names->base);
        const ds_value tokens =
            project(nn, c, names->project_in, ds_nn_embedding_sum(nn, table, ids, DS_NONE, DS_NONE),
                    c->hidden_size, false);
        ds_nn_pop(nn);
        return ds_nn_add(nn, tokens, ds_nn_embedding_sum(nn, places, positions, DS_NONE, DS_NONE));
    }
    ds_value x =
        ds_nn_embedding_sum(nn, table, ids, places, places != DS_NONE ? positions : DS_NONE);
    if (names->token_types != NULL) {
        const ds_value types =
            ds_nn_param_at(nn, names->token_types, ds_shape_2d(c->token_types, c->hidden_size),
                           (ds_init){DS_INIT_NORMAL, c->initializer_range}, false);
        x = ds_nn_add(nn, x, of_types(nn, c, types));
    }
    return times(nn, x, scale);
}

/* Whether this is built for the family. */
static bool is_built(ds_nn *nn, const ds_decoder_config *c)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (c->layer_dropout > 0.0 && t->mode == DS_TRACE_TRAIN) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "config.json: \"layerdrop\" is %g: leaving out layers is not built; set it to "
                   "0.0 to train",
                   c->layer_dropout);
    } else if (c->encoder && t->preference != NULL) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the model is an encoder: preference losses are of decoders");
    }
    return ds_nn_status(nn) >= 0;
}

static decoder_inputs read_inputs(ds_nn *nn, const ds_decoder_config *c, ds_value positions)
{
    const ds_trace *t = ds_nn_trace(nn);
    const bool generates = t->mode == DS_TRACE_GENERATE;
    const bool in_pieces = generates && (c->rope.scaling == DS_ROPE_DYNAMIC ||
                                         c->local_rope.scaling == DS_ROPE_DYNAMIC);
    decoder_inputs in = {.end = DS_NONE, .table = DS_NONE, .local = DS_NONE};
    in.first = generates && !c->encoder
                   ? DS_NONE
                   : ds_nn_input(nn, "first", DS_DTYPE_I32, ds_shape_2d(t->batch, t->seq_length));
    if (c->encoder) {
        in.end = ds_nn_document_end(nn, in.first);
    }
    /* of many sequences in a row each token's own */
    const ds_shape each =
        t->paged != NULL ? ds_shape_2d(t->batch, t->seq_length) : ds_shape_1d(t->batch);
    const ds_value lengths = in_pieces ? ds_nn_input(nn, "length", DS_DTYPE_I32, each) : DS_NONE;
    if (c->rope.head_dim > 0) {
        in.table = c->longrope.max_positions > 0
                       ? ds_model_longrope_table(nn, positions, &c->rope, &c->longrope)
                       : ds_nn_rope_table(nn, positions, lengths, &c->rope); /* (B,T,D) */
    }
    if (c->local) {
        in.local = ds_nn_rope_table(nn, positions, lengths, &c->local_rope);
    }
    return in;
}

static void decoder_trace(ds_nn *nn, const void *opaque)
{
    const ds_decoder_config *c = opaque;
    const ds_trace *t = ds_nn_trace(nn);
    const ds_shape bt = ds_shape_2d(t->batch, t->seq_length);
    const ds_init init = {DS_INIT_NORMAL, c->initializer_range};
    const ds_value ids = ds_nn_input(nn, "input_ids", DS_DTYPE_I32, bt);
    const ds_value positions = ds_nn_input(nn, "positions", DS_DTYPE_I32, bt);
    if (!is_built(nn, c)) {
        return;
    }
    const decoder_inputs inputs = read_inputs(nn, c, positions);
    const ds_value embedding = ds_nn_table_at(
        nn, c->names->embedding, ds_shape_2d(c->vocab_size, c->embedding_width), init, c->tied);
    ds_value x = embed(nn, c, embedding, ids, positions);
    ds_router_load load = {.sizes = DS_NONE, .chances = DS_NONE};
    ds_nn_push(nn, "%s", c->names->base);
    x = ds_nn_dropout(nn, norm(nn, c, c->names->embedding_norm, x), c->embedding_dropout);
    for (int64_t layer = 0; layer < c->n_layers; ++layer) {
        const position_job job = {c, layer, &load};
        ds_nn_push(nn, "%s.%lld", c->names->layer != NULL ? c->names->layer : "layers",
                   (long long)layer);
        ds_nn_region_begin(nn);
        x = decoder_layer(nn, &job, x, &inputs);
        ds_nn_region_end(nn);
        ds_nn_pop(nn);
    }
    x = norm(nn, c, c->names->final_norm, x);
    const uint32_t task = ds_nn_trace(nn)->task;
    x = task == DS_TASK_HIDDEN || task == DS_TASK_CONTRAST ? x
                                                           : times(nn, x, 1.0 / c->logits_divisor);
    if (c->embedding_width != c->hidden_size) {
        x = project(nn, c, c->names->project_out, x, c->embedding_width, false);
    }
    ds_nn_pop(nn);
    if (c->encoder) {
        ds_encoder_head(nn, c, x, embedding);
        return;
    }
    const ds_value extra =
        load.n_tokens > 0 ? ds_nn_scale(nn, ds_model_balance_loss(nn, &load), c->balance_factor)
                          : DS_NONE;
    ds_model_head(nn, x,
                  &(ds_head_params){.embedding = c->tied ? embedding : DS_NONE,
                                    .name = c->names->head,
                                    .vocab_size = c->vocab_size,
                                    .init_std = c->initializer_range,
                                    .extra = extra,
                                    .cap = c->logits_cap,
                                    .bias = c->names->head_bias});
}

/* Of a folder that was trained with more heads, the parts that this one has not. */
const ds_family ds_family_encoder = {
    .model_types = "bert roberta modernbert",
    .ignored =
        "embeddings.position_ids pooler.dense.weight pooler.dense.bias "
        "cls.seq_relationship.weight cls.seq_relationship.bias "
        "cls.predictions.transform.dense.weight cls.predictions.transform.dense.bias "
        "cls.predictions.transform.LayerNorm.weight cls.predictions.transform.LayerNorm.bias "
        "cls.predictions.transform.LayerNorm.gamma cls.predictions.transform.LayerNorm.beta "
        "cls.predictions.decoder.weight cls.predictions.decoder.bias cls.predictions.bias "
        "decoder.weight decoder.bias "
        "lm_head.dense.weight lm_head.dense.bias lm_head.layer_norm.weight "
        "lm_head.layer_norm.bias lm_head.decoder.weight lm_head.decoder.bias lm_head.bias "
        "classifier.weight classifier.bias classifier.dense.weight classifier.dense.bias "
        "classifier.out_proj.weight classifier.out_proj.bias",
    .config_bytes = sizeof(ds_decoder_config),
    .read = ds_decoder_read,
    .trace = decoder_trace,
    .print = ds_decoder_print,
};

const ds_family ds_family_decoder = {
    .model_types = "llama mistral qwen2 qwen3 olmo2 granite smollm3 starcoder2 mixtral qwen2_moe "
                   "qwen3_moe olmoe granitemoe stablelm phi3 glm glm4 gpt_neox cohere gemma gemma2 "
                   "gemma3_text olmo gptj opt falcon bloom mpt cohere2 glm4_moe "
                   "deepseek_v2 deepseek_v3 gpt_oss qwen3_next",
    .ignored = "rotary_emb.inv_freq attention.masked_bias attention.bias",
    .config_bytes = sizeof(ds_decoder_config),
    .read = ds_decoder_read,
    .ignores = ds_decoder_ignores,
    .trace = decoder_trace,
    .print = ds_decoder_print,
};
