/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3-Next (Qwen team, 2025): three layers of linear attention by the gated delta rule, then one
 * of attention with a gate behind it; experts, with one that every token goes to. */
#include "decoder.h"

#include <math.h>
#include <string.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 151936),
    DS_DECODER_SIZE("hidden_size", hidden_size, 2048),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 5632),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 48),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 16),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 2),
    DS_DECODER_SIZE("head_dim", head_dim, 256),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 32768),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_SIZE("linear_conv_kernel_dim", delta_kernel, 4),
    DS_DECODER_SIZE("linear_key_head_dim", delta_key_dim, 128),
    DS_DECODER_SIZE("linear_value_head_dim", delta_value_dim, 128),
    DS_DECODER_SIZE("linear_num_key_heads", delta_key_heads, 16),
    DS_DECODER_SIZE("linear_num_value_heads", delta_heads, 32),
    DS_DECODER_ANY_INT("full_attention_interval", DS_FIELD_INT, interval, 4),
    DS_DECODER_ANY_INT("decoder_sparse_step", DS_FIELD_INT, sparse_step, 1),
    DS_DECODER_SIZE("moe_intermediate_size", expert_width, 512),
    DS_DECODER_SIZE("shared_expert_intermediate_size", shared_width, 512),
    DS_DECODER_SIZE("num_experts", n_experts, 512),
    DS_DECODER_SWITCH("norm_topk_prob", normalise, true),
    DS_DECODER_EXPERTS(10, 0.001),
    DS_FIELD_CHECK("mlp_only_layers", DS_FIELD_INTS | DS_FIELD_NULL),
};

static const ds_decoder_names names = {DS_DECODER_LLAMA_NAMES, .linear = "linear_attn",
                                       .linear_out = "out_proj", .ahead = "mtp."};

/* Linear attention but for every interval-th layer, or where layer_types says so. */
static ds_status read_types(const ds_reader *reader, ds_decoder_config *c)
{
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        if (type == NULL && c->interval == 0) {
            return ds_field_bad(reader, "full_attention_interval", "not 0");
        }
        c->recurs[i] =
            type != NULL ? strcmp(type, "linear_attention") == 0 : (i + 1) % c->interval != 0;
    }
    return DS_OK;
}

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->norm = DS_NORM_RMS_PLUS;
    c->qk_norm = DS_QK_HEAD;
    c->qkv_bias = c->o_bias;
    c->gated_attention = true;
    c->expert_names = &ds_qwen_experts;
    if (c->delta_heads % c->delta_key_heads != 0) {
        return ds_field_bad(reader, "linear_num_value_heads", "a multiple of linear_num_key_heads");
    }
    DS_TRY(read_types(reader, c));
    DS_TRY(ds_decoder_experts(reader, c));
    return ds_decoder_sparse(reader, c);
}

const ds_decoder_kind ds_kind_qwen3_next = {.model_type = "qwen3_next",
                                            .fields = fields,
                                            .n_fields = DS_DECODER_N(fields),
                                            .activation = "silu",
                                            .rope = {.theta = 10000.0, .partial = 0.25},
                                            .names = &names,
                                            .recurs = true,
                                            .resolve = resolve};
