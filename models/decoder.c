/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder of the families in decoder.h, with Hugging Face's names: Llama 2 and 3 (Touvron et
 * al. 2023; Dubey et al. 2024), Mistral (Jiang et al. 2023), Qwen2/2.5 and Qwen3 (Yang et al. 2024,
 * 2025) and those that differ from them by a variant of norm, residual, positions or MLP. */
#include "decoder.h"

#include "model/expert_layer.h"
#include "model/family.h"

#include <math.h>

static ds_value project(ds_nn *nn, const ds_decoder_config *c, const char *name, ds_value x,
                        int64_t n_out, bool bias)
{
    return ds_nn_linear(
        nn, name, x,
        &(ds_linear_params){.n_out = n_out, .bias = bias, .init_std = c->initializer_range});
}

static ds_value norm(ds_nn *nn, const ds_decoder_config *c, const char *name, ds_value x)
{
    return c->layer_norm ? ds_nn_layer_norm(nn, name, x, c->norm_eps, true)
                         : ds_nn_rms_norm(nn, name, x, c->norm_eps);
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
    return ds_nn_reshape(nn, norm(nn, c, name, ds_nn_reshape(nn, x, heads)), flat);
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

static ds_value attention(ds_nn *nn, const ds_decoder_config *c, int64_t layer, ds_value x,
                          ds_value first, ds_value table)
{
    ds_nn_push(nn, "self_attn");
    ds_value q = project(nn, c, "q_proj", x, c->n_heads * c->head_dim, c->qkv_bias);
    ds_value k = project(nn, c, "k_proj", x, c->n_kv_heads * c->head_dim, c->qkv_bias);
    ds_value v = project(nn, c, "v_proj", x, c->n_kv_heads * c->head_dim, c->qkv_bias);
    q = clip(nn, c, qk_norm(nn, c, "q_norm", q));
    k = clip(nn, c, qk_norm(nn, c, "k_norm", k));
    v = clip(nn, c, v);
    if (!c->unrotated[layer]) {
        q = ds_nn_rope(nn, q, table, c->head_dim);
        k = ds_nn_rope(nn, k, table, c->head_dim);
    }
    const ds_value y = ds_nn_attention(nn, q, k, v, first,
                                       &(ds_attention_params){.n_heads = c->n_heads,
                                                              .n_kv_heads = c->n_kv_heads,
                                                              .head_dim = c->head_dim,
                                                              .window = ds_decoder_window(c, layer),
                                                              .scale = c->attention_scale,
                                                              .dropout = c->attention_dropout});
    const ds_value out = project(nn, c, "o_proj", y, c->hidden_size, c->o_bias);
    ds_nn_pop(nn);
    return ds_nn_dropout(nn, out, c->residual_dropout);
}

static ds_value mlp(ds_nn *nn, const ds_decoder_config *c, ds_value x)
{
    const int64_t width = c->intermediate_size;
    ds_value out;
    ds_nn_push(nn, "mlp");
    if (c->plain_mlp) {
        const ds_value h =
            ds_nn_activation(nn, project(nn, c, "c_fc", x, width, c->mlp_bias), c->activation);
        out = project(nn, c, "c_proj", h, c->hidden_size, c->mlp_bias);
    } else {
        const ds_value gate = project(nn, c, "gate_proj", x, width, c->mlp_bias);
        const ds_value up = project(nn, c, "up_proj", x, width, c->mlp_bias);
        out = project(nn, c, "down_proj", ds_nn_glu(nn, gate, up, c->activation), c->hidden_size,
                      c->mlp_bias);
    }
    ds_nn_pop(nn);
    return ds_nn_dropout(nn, out, c->residual_dropout);
}

static ds_value experts(ds_nn *nn, const ds_decoder_config *c, ds_value x, ds_router_load *load)
{
    const ds_expert_names *names = c->expert_names;
    if (c->router_noise > 0.0 && ds_nn_trace(nn)->mode == DS_TRACE_TRAIN) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "config.json: \"router_jitter_noise\" is %g: noise on what routers read is not "
                   "built; set it to 0.0 to train",
                   c->router_noise);
    }
    const ds_experts_params params = {
        .n_experts = c->n_experts,
        .n_chosen = c->n_chosen,
        .width = c->expert_width,
        .normalise = c->normalise,
        .activation = c->activation,
        .init_std = c->initializer_range,
        .router = names->router,
        .gate = names->gate,
        .up = names->up,
        .down = names->down,
        .gate_up = names->gate_up,
        .shared_gate = names->shared_gate,
        .shared_width = c->shared_width,
        .shared = {names->shared[0], names->shared[1], names->shared[2]}};
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
    if (c->residual == DS_RESIDUAL_POST) {
        return ds_nn_add(nn, x, norm(nn, c, "post_feedforward_layernorm", sublayer(nn, job, x)));
    }
    const ds_value m = norm(nn, c, "post_attention_layernorm", x);
    return ds_nn_add(nn, x, times(nn, sublayer(nn, job, m), c->residual_scale));
}

static ds_value attend(ds_nn *nn, const ds_decoder_config *c, int64_t layer, ds_value x,
                       ds_value first, ds_value table)
{
    if (c->residual == DS_RESIDUAL_POST) {
        const ds_value a = attention(nn, c, layer, x, first, table);
        return ds_nn_add(nn, x, norm(nn, c, "post_attention_layernorm", a));
    }
    const ds_value a = attention(nn, c, layer, norm(nn, c, "input_layernorm", x), first, table);
    return ds_nn_add(nn, x, times(nn, a, c->residual_scale));
}

static void decoder_trace(ds_nn *nn, const void *opaque)
{
    const ds_decoder_config *c = opaque;
    const ds_trace *t = ds_nn_trace(nn);
    const ds_shape bt = ds_shape_2d(t->batch, t->seq_length);
    const ds_init init = {DS_INIT_NORMAL, c->initializer_range};
    const ds_value ids = ds_nn_input(nn, "input_ids", DS_DTYPE_I32, bt);
    const ds_value positions = ds_nn_input(nn, "positions", DS_DTYPE_I32, bt);
    const ds_value first =
        t->mode == DS_TRACE_GENERATE ? DS_NONE : ds_nn_input(nn, "first", DS_DTYPE_I32, bt);
    const bool in_pieces = t->mode == DS_TRACE_GENERATE && c->rope.scaling == DS_ROPE_DYNAMIC;
    const ds_value lengths =
        in_pieces ? ds_nn_input(nn, "length", DS_DTYPE_I32, ds_shape_1d(t->batch)) : DS_NONE;
    const ds_value table = ds_nn_rope_table(nn, positions, lengths, &c->rope); /* (B,T,D) */
    ds_nn_push(nn, "model");
    const ds_value embedding = ds_nn_param(nn, "embed_tokens.weight",
                                           ds_shape_2d(c->vocab_size, c->hidden_size), init, false);
    ds_value x = ds_nn_embedding_sum(nn, embedding, ids, DS_NONE, DS_NONE); /* (B,T,C) */
    x = ds_nn_dropout(nn, times(nn, x, c->embedding_scale), c->embedding_dropout);
    ds_router_load load = {.sizes = DS_NONE, .chances = DS_NONE};
    for (int64_t layer = 0; layer < c->n_layers; ++layer) {
        const position_job job = {c, layer, &load};
        ds_nn_push(nn, "layers.%lld", (long long)layer);
        ds_nn_region_begin(nn);
        x = attend(nn, c, layer, x, first, table);
        x = ds_nn_tiled(nn, x, t->mlp_rows, feed_forward, &job);
        ds_nn_region_end(nn);
        ds_nn_pop(nn);
    }
    x = times(nn, norm(nn, c, "norm", x), 1.0 / c->logits_divisor);
    ds_nn_pop(nn);
    const ds_value extra =
        load.n_tokens > 0 ? ds_nn_scale(nn, ds_model_balance_loss(nn, &load), c->balance_factor)
                          : DS_NONE;
    ds_model_head(nn, x, c->tied ? embedding : DS_NONE, c->vocab_size, c->initializer_range, extra);
}

const ds_family ds_family_decoder = {
    .model_types = "llama mistral qwen2 qwen3 olmo2 granite smollm3 starcoder2 mixtral qwen2_moe "
                   "qwen3_moe olmoe granitemoe",
    .ignored = "rotary_emb.inv_freq",
    .config_bytes = sizeof(ds_decoder_config),
    .read = ds_decoder_read,
    .trace = decoder_trace,
    .print = ds_decoder_print,
};
