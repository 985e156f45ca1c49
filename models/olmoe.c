/* SPDX-License-Identifier: Apache-2.0 */
/* OLMoE (Muennighoff et al. 2024): many small experts, norms of q and k over all heads together. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(1),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50304),
    DS_DECODER_SIZE("hidden_size", hidden_size, 2048),
    DS_DECODER_SIZE("intermediate_size", expert_width, 2048),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 16),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 16),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 4096),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_CLIP,
    DS_DECODER_SIZE("num_experts", n_experts, 64),
    DS_DECODER_ALIAS_SIZE("num_local_experts", n_experts),
    DS_DECODER_EXPERTS(8, 0.01),
    DS_DECODER_SWITCH("norm_topk_prob", normalise, false),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_expert_names names = {.scope = "mlp",
                                      .router = "gate.weight",
                                      .gate = "experts.*.gate_proj.weight",
                                      .up = "experts.*.up_proj.weight",
                                      .down = "experts.*.down_proj.weight"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->expert_names = &names;
    c->qkv_bias = c->o_bias;
    c->qk_norm = DS_QK_WHOLE;
    ds_decoder_clip(reader, c);
    if (c->head_dim * c->n_heads != c->hidden_size) { /* the norms' width */
        return ds_field_bad(reader, "head_dim", "hidden_size / num_attention_heads");
    }
    DS_TRY(ds_decoder_experts(reader, c));
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_olmoe = {.model_type = "olmoe",
                                       .fields = fields,
                                       .n_fields = DS_DECODER_N(fields),
                                       .activation = "silu",
                                       .rope = {.theta = 10000.0},
                                       .resolve = resolve};
