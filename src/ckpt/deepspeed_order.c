/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the modules of transformers have their parameters, by model type: that in
 * which DeepSpeed flattens them. Called by deepspeed_out_params.c; compared with transformers by
 * test/long/deepspeed_out.sh.
 *
 * A name is one of a module before or behind the layers, or of one inside of layer N; of a module
 * the weight stands before the bias. What is not in the list is refused: a wrong place would be
 * taken silently.
 */
#include "ckpt/deepspeed_order.h"

#include "ckpt/deepspeed_out.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MODULES = 20, MOST_LAYERS = 1 << 20 };

typedef dsi_module_order family;

#define LLAMA_ATTENTION                                                                            \
    "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj self_attn.q_norm "        \
    "self_attn.k_norm "

static const family families[] = {
    {"llama mistral qwen2 qwen3 olmo2 granite smollm3 stablelm cohere", "model.embed_tokens",
     "model.layers.",
     LLAMA_ATTENTION "mlp.gate_proj mlp.up_proj mlp.down_proj input_layernorm "
                     "post_attention_layernorm post_feedforward_layernorm",
     "model.norm lm_head"},
    {"starcoder2", "model.embed_tokens", "model.layers.",
     LLAMA_ATTENTION "mlp.c_fc mlp.c_proj input_layernorm post_attention_layernorm",
     "model.norm lm_head"},
    {"glm glm4", "model.embed_tokens", "model.layers.",
     LLAMA_ATTENTION "mlp.gate_up_proj mlp.down_proj input_layernorm post_attention_layernorm "
                     "post_self_attn_layernorm post_mlp_layernorm",
     "model.norm lm_head"},
    {"phi3", "model.embed_tokens", "model.layers.",
     "self_attn.o_proj self_attn.qkv_proj mlp.gate_up_proj mlp.down_proj input_layernorm "
     "post_attention_layernorm",
     "model.norm lm_head"},
    {"gpt2", "transformer.wte transformer.wpe", "transformer.h.",
     "ln_1 attn.c_attn attn.c_proj ln_2 mlp.c_fc mlp.c_proj", "transformer.ln_f lm_head"},
};

const dsi_module_order *dsi_module_orders(size_t *n_out)
{
    *n_out = sizeof families / sizeof families[0];
    return families;
}

/* The place of the word [name, name + n) in a list with blanks; -1. */
static int place_in(const char *list, const char *name, size_t n)
{
    int place = 0;
    while (*list != '\0') {
        const size_t length = strcspn(list, " ");
        if (length == n && strncmp(list, name, n) == 0) {
            return place;
        }
        list += length + strspn(list + length, " ");
        ++place;
    }
    return -1;
}

/* Numbers that grow in the module's order; false: the name is not known. */
static bool rank_of(const family *f, const char *name, uint32_t *rank_out)
{
    const char *dot = strrchr(name, '.');
    const bool bias = dot != NULL && strcmp(dot, ".bias") == 0;
    if (dot == NULL || (!bias && strcmp(dot, ".weight") != 0)) {
        return false;
    }
    const size_t n = strlen(f->layers);
    unsigned long layer = 0;
    int place = place_in(f->before, name, (size_t)(dot - name));
    if (place < 0 && strncmp(name, f->layers, n) == 0) {
        char *end = NULL;
        layer = name[n] >= '0' && name[n] <= '9' ? strtoul(name + n, &end, 10) : MOST_LAYERS;
        if (layer >= MOST_LAYERS || *end != '.' || end + 1 >= dot) {
            return false;
        }
        place = place_in(f->inside, end + 1, (size_t)(dot - end - 1));
        layer += 1;
    } else if (place < 0) {
        place = place_in(f->after, name, (size_t)(dot - name));
        layer = MOST_LAYERS + 1;
    }
    *rank_out =
        (uint32_t)(layer * MOST_MODULES + (unsigned long)(place > 0 ? place : 0)) * 2 + bias;
    return place >= 0;
}

static int compare(const void *a, const void *b)
{
    const dsi_out_param *x = a;
    const dsi_out_param *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

ds_status dsi_deepspeed_order(ds_ctx *ctx, const char *model_type, dsi_out_param *params, size_t n)
{
    const family *f = NULL;
    for (size_t i = 0; i < sizeof families / sizeof families[0] && model_type != NULL; ++i) {
        f = place_in(families[i].types, model_type, strlen(model_type)) >= 0 ? &families[i] : f;
    }
    for (size_t i = 0; i < n; ++i) {
        if (f == NULL || !rank_of(f, params[i].name, &params[i].rank)) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "the order in which a module of model type '%.60s' has its parameters "
                           "is not known here%s%.120s%s, and DeepSpeed takes partitions by their "
                           "place; give it: --parameter_order FILE, a name a line, as "
                           "model.named_parameters() gives them; or write a universal folder, "
                           "which goes by names",
                           model_type != NULL ? model_type : "?", f != NULL ? " (of '" : "",
                           f != NULL ? params[i].name : "", f != NULL ? "')" : "");
        }
    }
    qsort(params, n, sizeof *params, compare);
    return DS_OK;
}
