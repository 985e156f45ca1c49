/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019), with Hugging
 * Face's parameter names and config.json keys. */
#include "gpt2.h"

#include <math.h>

static ds_value attention(ds_nn *nn, const ds_gpt2_config *c, int64_t layer, ds_value x,
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

static ds_value mlp(ds_nn *nn, const ds_gpt2_config *c, ds_value x)
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
    const ds_gpt2_config *c = user;
    const ds_value m = ds_nn_layer_norm(nn, "ln_2", x, c->layer_norm_epsilon, true);
    return ds_nn_add(nn, x, mlp(nn, c, m));
}

static void gpt2_trace(ds_nn *nn, const void *opaque)
{
    const ds_gpt2_config *c = opaque;
    const ds_trace *t = ds_nn_trace(nn);
    const ds_shape bt = ds_shape_2d(t->batch, t->seq_length);
    const ds_init init = {DS_INIT_NORMAL, c->initializer_range};
    const ds_value ids = ds_nn_input(nn, "input_ids", DS_DTYPE_I32, bt);
    const ds_value positions = ds_nn_input(nn, "positions", DS_DTYPE_I32, bt);
    const ds_value first =
        t->mode == DS_TRACE_GENERATE ? DS_NONE : ds_nn_input(nn, "first", DS_DTYPE_I32, bt);
    if (t->seq_length > c->n_positions && t->paged == NULL) { /* that is of many sequences */
        ds_nn_fail(nn, DS_ERR_LIMIT, "sequence length %lld is above n_positions %lld",
                   (long long)t->seq_length, (long long)c->n_positions);
        return;
    }
    ds_nn_push(nn, "transformer");
    const ds_value wte = ds_nn_table_at(nn, "transformer.wte.weight",
                                        ds_shape_2d(c->vocab_size, c->n_embd), init, c->tied);
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
    ds_model_head(nn, x,
                  &(ds_head_params){.embedding = c->tied ? wte : DS_NONE,
                                    .name = "lm_head.weight",
                                    .vocab_size = c->vocab_size,
                                    .init_std = c->initializer_range,
                                    .extra = DS_NONE});
}

const ds_family ds_family_gpt2 = {
    .model_types = "gpt2",
    .ignored = ".attn.bias .attn.masked_bias",
    .config_bytes = sizeof(ds_gpt2_config),
    .read = ds_gpt2_read,
    .trace = gpt2_trace,
    .print = ds_gpt2_print,
};
