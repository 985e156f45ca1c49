/* GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019), with Hugging
 * Face's parameter names and config.json keys. */
#include "model.h"

#include <math.h>
#include <string.h>

typedef struct gpt2_config {
    int64_t vocab_size, n_positions, n_embd, n_layer, n_head, n_inner;
    double layer_norm_epsilon, initializer_range;
    double resid_pdrop, embd_pdrop, attn_pdrop;
    ds_activation activation;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx, tied;
} gpt2_config;

static ds_status read_activation(ds_ctx *ctx, const json_t *json, gpt2_config *config)
{
    const char *name = NULL;
    DS_TRY(ds_model_text(ctx, json, "activation_function", "gelu_new", &name));
    if (strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0) {
        config->activation = DS_ACT_GELU_TANH;
    } else if (strcmp(name, "gelu") == 0) {
        config->activation = DS_ACT_GELU_ERF;
    } else if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0) {
        config->activation = DS_ACT_SILU;
    } else {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "config.json: activation_function \"%s\" is not supported; supported are "
                       "gelu_new, gelu_pytorch_tanh, gelu, silu",
                       name);
    }
    return DS_OK;
}

static ds_status gpt2_read(ds_ctx *ctx, const json_t *json, void *opaque, ds_model_info *info)
{
    gpt2_config *c = opaque;
    bool cross_attention = false;
    DS_TRY(ds_model_int(ctx, json, "vocab_size", 50257, 1, &c->vocab_size));
    DS_TRY(ds_model_int(ctx, json, "n_positions", 1024, 1, &c->n_positions));
    DS_TRY(ds_model_int(ctx, json, "n_embd", 768, 1, &c->n_embd));
    DS_TRY(ds_model_layers(ctx, json, "n_layer", 12, &c->n_layer));
    DS_TRY(ds_model_int(ctx, json, "n_head", 12, 1, &c->n_head));
    DS_TRY(ds_model_int(ctx, json, "n_inner", 4 * c->n_embd, 1, &c->n_inner));
    DS_TRY(ds_model_real(ctx, json, "layer_norm_epsilon", 1e-5, &c->layer_norm_epsilon));
    DS_TRY(ds_model_real(ctx, json, "initializer_range", 0.02, &c->initializer_range));
    DS_TRY(ds_model_real(ctx, json, "resid_pdrop", 0.1, &c->resid_pdrop));
    DS_TRY(ds_model_real(ctx, json, "embd_pdrop", 0.1, &c->embd_pdrop));
    DS_TRY(ds_model_real(ctx, json, "attn_pdrop", 0.1, &c->attn_pdrop));
    DS_TRY(ds_model_bool(ctx, json, "scale_attn_weights", true, &c->scale_attn_weights));
    DS_TRY(ds_model_bool(ctx, json, "scale_attn_by_inverse_layer_idx", false,
                         &c->scale_attn_by_inverse_layer_idx));
    DS_TRY(ds_model_bool(ctx, json, "tie_word_embeddings", true, &c->tied));
    DS_TRY(ds_model_bool(ctx, json, "add_cross_attention", false, &cross_attention));
    DS_TRY(read_activation(ctx, json, c));
    if (cross_attention) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "config.json: add_cross_attention is not supported");
    }
    if (c->n_embd % c->n_head != 0) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "config.json: n_embd %lld is not a multiple of n_head %lld",
                       (long long)c->n_embd, (long long)c->n_head);
    }
    info->vocab_size = c->vocab_size;
    info->max_positions = c->n_positions;
    info->hidden_size = c->n_embd;
    info->tied_embeddings = c->tied;
    info->base_prefix = "transformer.";
    return DS_OK;
}

static ds_value attention(ds_nn *nn, const gpt2_config *c, int64_t layer, ds_value x,
                          ds_value first)
{
    const double head_dim = (double)(c->n_embd / c->n_head);
    double scale = c->scale_attn_weights ? 1.0 / sqrt(head_dim) : 1.0;
    if (c->scale_attn_by_inverse_layer_idx) {
        scale /= (double)(layer + 1);
    }
    ds_nn_push(nn, "attn");
    const ds_value qkv = ds_nn_linear(nn, "c_attn", x, /* (B,T,3C) */
                                      &(ds_linear_params){.n_out = 3 * c->n_embd,
                                                          .bias = true,
                                                          .transposed = true,
                                                          .init_std = c->initializer_range});
    const ds_value y = ds_nn_attention(nn, qkv, DS_NONE, DS_NONE, first,
                                       &(ds_attention_params){.n_heads = c->n_head,
                                                              .n_kv_heads = c->n_head,
                                                              .head_dim = c->n_embd / c->n_head,
                                                              .scale = scale,
                                                              .dropout = c->attn_pdrop});
    const ds_value out = ds_nn_linear(
        nn, "c_proj", y,
        &(ds_linear_params){.n_out = c->n_embd,
                            .bias = true,
                            .transposed = true,
                            .init_std = c->initializer_range / sqrt(2.0 * (double)c->n_layer)});
    ds_nn_pop(nn);
    return ds_nn_dropout(nn, out, c->resid_pdrop);
}

static ds_value mlp(ds_nn *nn, const gpt2_config *c, ds_value x)
{
    ds_nn_push(nn, "mlp");
    const ds_value h = ds_nn_linear(nn, "c_fc", x,
                                    &(ds_linear_params){.n_out = c->n_inner,
                                                        .bias = true,
                                                        .transposed = true,
                                                        .init_std = c->initializer_range});
    const ds_value out = ds_nn_linear(
        nn, "c_proj", ds_nn_activation(nn, h, c->activation),
        &(ds_linear_params){.n_out = c->n_embd,
                            .bias = true,
                            .transposed = true,
                            .init_std = c->initializer_range / sqrt(2.0 * (double)c->n_layer)});
    ds_nn_pop(nn);
    return ds_nn_dropout(nn, out, c->resid_pdrop);
}

/* The half of a layer that treats each position by itself. */
static ds_value feed_forward(ds_nn *nn, ds_value x, const void *user)
{
    const gpt2_config *c = user;
    const ds_value m = ds_nn_layer_norm(nn, "ln_2", x, c->layer_norm_epsilon, true);
    return ds_nn_add(nn, x, mlp(nn, c, m));
}

static void gpt2_trace(ds_nn *nn, const void *opaque)
{
    const gpt2_config *c = opaque;
    const ds_trace *t = ds_nn_trace(nn);
    const ds_shape bt = ds_shape_2d(t->batch, t->seq_length);
    const ds_init init = {DS_INIT_NORMAL, c->initializer_range};
    const ds_value ids = ds_nn_input(nn, "input_ids", DS_DTYPE_I32, bt);
    const ds_value positions = ds_nn_input(nn, "positions", DS_DTYPE_I32, bt);
    const ds_value first =
        t->mode == DS_TRACE_GENERATE ? DS_NONE : ds_nn_input(nn, "first", DS_DTYPE_I32, bt);
    if (t->seq_length > c->n_positions) {
        ds_nn_fail(nn, DS_ERR_LIMIT, "sequence length %lld is above n_positions %lld",
                   (long long)t->seq_length, (long long)c->n_positions);
        return;
    }
    ds_nn_push(nn, "transformer");
    const ds_value wte =
        ds_nn_param(nn, "wte.weight", ds_shape_2d(c->vocab_size, c->n_embd), init, false);
    const ds_value wpe =
        ds_nn_param(nn, "wpe.weight", ds_shape_2d(c->n_positions, c->n_embd), init, false);
    ds_value x = ds_nn_embedding_sum(nn, wte, ids, wpe, positions); /* (B,T,C) */
    x = ds_nn_dropout(nn, x, c->embd_pdrop);
    for (int64_t layer = 0; layer < c->n_layer; ++layer) {
        ds_nn_push(nn, "h.%lld", (long long)layer);
        ds_nn_region_begin(nn);
        const ds_value a = ds_nn_layer_norm(nn, "ln_1", x, c->layer_norm_epsilon, true);
        x = ds_nn_add(nn, x, attention(nn, c, layer, a, first));
        x = ds_nn_tiled(nn, x, t->mlp_rows, feed_forward, c);
        ds_nn_region_end(nn);
        ds_nn_pop(nn);
    }
    x = ds_nn_layer_norm(nn, "ln_f", x, c->layer_norm_epsilon, true);
    ds_nn_pop(nn);
    ds_model_head(nn, x, c->tied ? wte : DS_NONE, c->vocab_size, c->initializer_range);
}

const ds_family ds_family_gpt2 = {
    .model_types = "gpt2",
    .ignored = ".attn.bias .attn.masked_bias",
    .config_bytes = sizeof(gpt2_config),
    .read = gpt2_read,
    .trace = gpt2_trace,
};
