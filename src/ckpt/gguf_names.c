/* SPDX-License-Identifier: Apache-2.0 */
/* Where each tensor of a GGUF file goes in a Hugging Face folder. See gguf_model.h. */
#include "ckpt/gguf_model.h"

#include <stdio.h>
#include <string.h>

typedef struct pair {
    const char *file, *here; /* "": the folder has no such tensor */
    dsi_gguf_layout layout;
    bool keys; /* of PAIRS: heads are those of keys */
} pair;

#define SAME(f, h)                                                                                 \
    {                                                                                              \
        .file = (f), .here = (h)                                                                   \
    }
#define HEADS(f, h)                                                                                \
    {                                                                                              \
        .file = (f), .here = (h), .layout = DSI_GGUF_PAIRS                                         \
    }
#define KEYS(f, h)                                                                                 \
    {                                                                                              \
        .file = (f), .here = (h), .layout = DSI_GGUF_PAIRS, .keys = true                           \
    }
#define TURNED(f, h)                                                                               \
    {                                                                                              \
        .file = (f), .here = (h), .layout = DSI_GGUF_TRANSPOSED                                    \
    }

static const pair decoder[] = {
    SAME("token_embd.weight", "model.embed_tokens.weight"),
    SAME("output_norm.weight", "model.norm.weight"),
    SAME("output.weight", "lm_head.weight"),
    SAME("rope_freqs.weight", ""), /* in config.json */
    {0},
};

static const pair decoder_layer[] = {
    SAME("attn_norm.weight", "input_layernorm.weight"),
    HEADS("attn_q.weight", "self_attn.q_proj.weight"),
    KEYS("attn_k.weight", "self_attn.k_proj.weight"),
    SAME("attn_v.weight", "self_attn.v_proj.weight"),
    HEADS("attn_q.bias", "self_attn.q_proj.bias"),
    KEYS("attn_k.bias", "self_attn.k_proj.bias"),
    SAME("attn_v.bias", "self_attn.v_proj.bias"),
    SAME("attn_output.weight", "self_attn.o_proj.weight"),
    SAME("attn_output.bias", "self_attn.o_proj.bias"),
    SAME("attn_q_norm.weight", "self_attn.q_norm.weight"),
    SAME("attn_k_norm.weight", "self_attn.k_norm.weight"),
    SAME("ffn_norm.weight", "post_attention_layernorm.weight"),
    SAME("ffn_gate.weight", "mlp.gate_proj.weight"),
    SAME("ffn_up.weight", "mlp.up_proj.weight"),
    SAME("ffn_down.weight", "mlp.down_proj.weight"),
    {0},
};

static const pair gpt2[] = {
    SAME("token_embd.weight", "transformer.wte.weight"),
    SAME("position_embd.weight", "transformer.wpe.weight"),
    SAME("output_norm.weight", "transformer.ln_f.weight"),
    SAME("output_norm.bias", "transformer.ln_f.bias"),
    SAME("output.weight", ""), /* the token embedding again */
    {0},
};

static const pair gpt2_layer[] = {
    SAME("attn_norm.weight", "ln_1.weight"),
    SAME("attn_norm.bias", "ln_1.bias"),
    TURNED("attn_qkv.weight", "attn.c_attn.weight"),
    SAME("attn_qkv.bias", "attn.c_attn.bias"),
    TURNED("attn_output.weight", "attn.c_proj.weight"),
    SAME("attn_output.bias", "attn.c_proj.bias"),
    SAME("ffn_norm.weight", "ln_2.weight"),
    SAME("ffn_norm.bias", "ln_2.bias"),
    TURNED("ffn_up.weight", "mlp.c_fc.weight"),
    SAME("ffn_up.bias", "mlp.c_fc.bias"),
    TURNED("ffn_down.weight", "mlp.c_proj.weight"),
    SAME("ffn_down.bias", "mlp.c_proj.bias"),
    {0},
};

/* The layer of "blk.7.REST", whose rest is *rest_out; -1: another name. */
static int64_t layer_of(dsi_gguf_text name, dsi_gguf_text *rest_out)
{
    static const char head[] = "blk.";
    const size_t skip = sizeof head - 1;
    int64_t layer = 0;
    size_t at = skip;
    *rest_out = name;
    if (name.n <= skip || memcmp(name.data, head, skip) != 0) {
        return -1;
    }
    for (; at < name.n && at < skip + 6 && name.data[at] >= '0' && name.data[at] <= '9'; ++at) {
        layer = 10 * layer + name.data[at] - '0';
    }
    if (at == skip || at >= name.n || name.data[at] != '.') {
        return -1;
    }
    *rest_out = (dsi_gguf_text){name.data + at + 1, name.n - at - 1};
    return layer;
}

ds_status dsi_gguf_place(ds_ctx *ctx, const dsi_gguf *g, const dsi_gguf_tensor *t,
                         dsi_gguf_source *source)
{
    const dsi_gguf_arch *a = NULL;
    dsi_gguf_text rest;
    DS_TRY(dsi_gguf_arch_of(ctx, g, &a));
    const int64_t layer = layer_of(t->name, &rest);
    const pair *p = layer < 0 ? (a->gpt2 ? gpt2 : decoder) : a->gpt2 ? gpt2_layer : decoder_layer;
    while (p->file != NULL && !dsi_gguf_text_is(rest, p->file)) {
        ++p;
    }
    if (p->file == NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: a %s model has no tensor %.*s here",
                       dsi_gguf_path(g), a->name, (int)(t->name.n < 100 ? t->name.n : 100),
                       t->name.data);
    }
    *source = (dsi_gguf_source){.gguf = g, .tensor = t, .layout = p->layout};
    if (p->layout == DSI_GGUF_PAIRS) {
        const bool few = p->keys && dsi_gguf_field(g, "attention.head_count_kv") != NULL;
        source->layout = a->pairs ? DSI_GGUF_PAIRS : DSI_GGUF_SAME;
        DS_TRY(dsi_gguf_count(ctx, g, few ? "attention.head_count_kv" : "attention.head_count",
                              &source->heads));
    }
    if (layer < 0) {
        (void)snprintf(source->name, sizeof source->name, "%s", p->here);
    } else {
        (void)snprintf(source->name, sizeof source->name, "%s.%lld.%s",
                       a->gpt2 ? "transformer.h" : "model.layers", (long long)layer, p->here);
    }
    return DS_OK;
}

/* The layer of a folder's "HEAD.7.REST"; -1: another name. */
static int64_t folder_layer(const char *name, const char *head, const char **rest_out)
{
    const size_t skip = strlen(head);
    int64_t layer = 0;
    size_t at = skip + 1;
    if (strncmp(name, head, skip) != 0 || name[skip] != '.') {
        return -1;
    }
    for (; at < skip + 7 && name[at] >= '0' && name[at] <= '9'; ++at) {
        layer = 10 * layer + name[at] - '0';
    }
    if (at == skip + 1 || name[at] != '.') {
        return -1;
    }
    *rest_out = name + at + 1;
    return layer;
}

/* Buffers that old files of GPT-2 hold beside its parameters. */
static bool is_buffer(const dsi_gguf_arch *a, const char *rest)
{
    return a->gpt2 ? strcmp(rest, "attn.bias") == 0 || strcmp(rest, "attn.masked_bias") == 0
                   : strcmp(rest, "self_attn.rotary_emb.inv_freq") == 0;
}

ds_status dsi_gguf_place_back(ds_ctx *ctx, const dsi_gguf_arch *a, const char *name,
                              dsi_gguf_target *target)
{
    static const char stem[] = "transformer.";
    char whole[DSI_GGUF_NAME_BYTES];
    const bool short_name =
        a->gpt2 && strncmp(name, stem, sizeof stem - 1) != 0 && strcmp(name, "lm_head.weight") != 0;
    (void)snprintf(whole, sizeof whole, "%s%s", short_name ? stem : "", name);
    const char *rest = whole;
    const int64_t layer = folder_layer(whole, a->gpt2 ? "transformer.h" : "model.layers", &rest);
    const pair *p = layer < 0 ? (a->gpt2 ? gpt2 : decoder) : a->gpt2 ? gpt2_layer : decoder_layer;
    while (p->file != NULL && strcmp(rest, p->here) != 0) {
        ++p;
    }
    *target = (dsi_gguf_target){.layout = p->layout, .of_keys = p->keys};
    if (p->file == NULL) {
        return layer >= 0 && is_buffer(a, rest)
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_UNSUPPORTED,
                             "the tensor %s has no name in a GGUF file of %s that is known here",
                             name, a->name);
    }
    if (p->layout == DSI_GGUF_PAIRS && !a->pairs) {
        target->layout = DSI_GGUF_SAME;
    }
    if (layer < 0) {
        (void)snprintf(target->name, sizeof target->name, "%s", p->file);
    } else {
        (void)snprintf(target->name, sizeof target->name, "blk.%lld.%s", (long long)layer, p->file);
    }
    return DS_OK;
}
