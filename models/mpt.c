/* SPDX-License-Identifier: Apache-2.0 */
/* MPT (MosaicML 2023): linear position biases, norms and layers without biases, all of q, of k and
 * of v in one matrix. Several of its keys are read by no layer of transformers. */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),
    DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),
    DS_FIELD_CHECK("pad_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_DECODER_SWITCH("tie_word_embeddings", tied, true),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50368),
    DS_DECODER_SIZE("d_model", hidden_size, 2048),
    DS_DECODER_ALIAS_SIZE("hidden_size", hidden_size),
    DS_DECODER_SIZE("n_heads", n_heads, 16),
    DS_DECODER_ALIAS_SIZE("num_attention_heads", n_heads),
    DS_DECODER_SIZE("n_layers", n_layers, 24),
    DS_DECODER_ALIAS_SIZE("num_hidden_layers", n_layers),
    DS_DECODER_SIZE("max_seq_len", max_positions, 2048),
    DS_DECODER_REAL("layer_norm_epsilon", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_FIELD_CHECK("expansion_ratio", DS_FIELD_INT), /* it is 4 */
    DS_FIELD_CHECK("resid_pdrop", DS_FIELD_NUMBER),
    DS_FIELD_CHECK("emb_pdrop", DS_FIELD_NUMBER),
    DS_FIELD_CHECK("learned_pos_emb", DS_FIELD_BOOL),
    DS_FIELD_CHECK("init_device", DS_FIELD_TEXT),
    DS_FIELD_CHECK("logit_scale", DS_FIELD_REAL | DS_FIELD_TEXT | DS_FIELD_NULL),
    DS_FIELD_CHECK("no_bias", DS_FIELD_BOOL),
    DS_FIELD_CHECK("embedding_fraction", DS_FIELD_REAL),
    DS_FIELD_CHECK("norm_type", DS_FIELD_TEXT),
    DS_FIELD_CHECK("attn_config", DS_FIELD_OBJECT | DS_FIELD_NULL), /* read by resolve() */
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("rope_scaling", "null {}", "it has no effect in transformers"),
    DS_FIELD_REFUSE("rope_parameters", "null {}", "it has no effect in transformers"),
    DS_DECODER_EAGER,
};

/* Of attn_config. */
static const ds_field attention_fields[] = {
    DS_FIELD_REFUSE("attn_pdrop", "0",
                    "it is a whole number in transformers, and 1 leaves nothing"),
    DS_DECODER_CLIP,
    DS_DECODER_APPLIED("softmax_scale", DS_FIELD_REAL | DS_FIELD_NULL, attention_scale, 0.0, 0.0,
                       1e4),
    DS_FIELD_REFUSE("attn_type", "\"multihead_attention\" \"multiquery_attention\"",
                    "there is no other"),
    DS_FIELD_CHECK("attn_impl", DS_FIELD_TEXT),
    DS_FIELD_REFUSE("prefix_lm", "false", "attention to later positions"),
    DS_FIELD_REFUSE("qk_ln", "false", "no layer of transformers has these norms"),
    DS_FIELD_REFUSE("attn_uses_sequence_id", "false", "no layer of transformers reads them"),
    DS_FIELD_REFUSE("alibi", "true", "transformers has no other positions for it"),
    DS_FIELD_REFUSE("alibi_bias_max", "8", "transformers takes 8"),
};

static const ds_decoder_names names = {.base = "transformer",
                                       .base_prefix = "transformer.",
                                       .embedding = "transformer.wte.weight",
                                       .layer = "blocks",
                                       .final_norm = "norm_f",
                                       .head = "lm_head.weight",
                                       .attention = "attn",
                                       .packed = "Wqkv",
                                       .out = "out_proj",
                                       .mlp = "ffn",
                                       .up = "up_proj",
                                       .down = "down_proj",
                                       .before_attention = "norm_1",
                                       .before_mlp = "norm_2"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    const json_t *attention = json_object_get(reader->json, "attn_config");
    json_t *none = json_object();
    ds_reader inner = *reader;
    inner.json = json_is_object(attention) ? attention : none;
    ds_status status =
        none == NULL ? ds_fail(reader->ctx, DS_ERR_NOMEM, "no memory")
                     : ds_fields_read(&inner, attention_fields, DS_DECODER_N(attention_fields), c);
    if (status >= 0) {
        const json_t *scale = json_object_get(inner.json, "softmax_scale");
        ds_decoder_clip(&inner, c);
        if (scale != NULL && !json_is_null(scale) && c->attention_scale < 1e-6) {
            status = ds_field_bad(&inner, "softmax_scale", "null, or 1e-6 to 10000");
        }
    }
    json_decref(none);
    DS_TRY(status);
    c->clip_qkv = c->clip_qkv == 0.0 ? HUGE_VAL : c->clip_qkv; /* as null there */
    c->pad_id = DS_NO_INT;
    c->norm = DS_NORM_LAYER_WEIGHT;
    c->qkv = DS_QKV_SIDE;
    c->mlp = DS_MLP_PLAIN;
    c->activation = DS_ACT_GELU_ERF;
    c->intermediate_size = 4 * c->hidden_size;
    c->alibi = 8.0;
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_mpt = {.model_type = "mpt",
                                     .fields = fields,
                                     .n_fields = DS_DECODER_N(fields),
                                     .names = &names,
                                     .no_rope = true,
                                     .whole_heads = true,
                                     .resolve = resolve};
