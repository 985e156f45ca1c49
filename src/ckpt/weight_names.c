/* SPDX-License-Identifier: Apache-2.0 */
/* Under which names files have a model's parameters. See model_weights_impl.h. */
#include "ckpt/model_weights_impl.h"
#include "model/adapter_experts.h"
#include "nn/nn.h"

#include <stdio.h>
#include <string.h>

const char *dsi_weights_head(const ds_model *model)
{
    const char *head = ds_model_get_info(model)->head;
    return head != NULL ? head : "lm_head.weight";
}

bool dsi_weights_is_head_bias(const ds_model *model, const char *name)
{
    const char *head = dsi_weights_head(model);
    const char *dot = strrchr(head, '.');
    const size_t n = dot != NULL ? (size_t)(dot - head) : strlen(head);
    return strncmp(name, head, n) == 0 && strcmp(name + n, ".bias") == 0;
}

/* Norms of BERT's first folders: gamma and beta. */
static const ds_safetensor *find_old(const ds_safetensors *st, const char *name)
{
    static const char *const words[2][2] = {{".LayerNorm.weight", ".LayerNorm.gamma"},
                                            {".LayerNorm.bias", ".LayerNorm.beta"}};
    const size_t n = strlen(name);
    for (size_t i = 0; i < 2; ++i) {
        const size_t own = strlen(words[i][0]);
        char old[512];
        if (n >= own && n < sizeof old && strcmp(name + n - own, words[i][0]) == 0) {
            (void)snprintf(old, sizeof old, "%.*s%s", (int)(n - own), name, words[i][1]);
            return ds_safetensors_find(st, old);
        }
    }
    return NULL;
}

/* Mixtral's router by the name that transformers' class has, beside experts in one tensor. */
static const ds_safetensor *find_router(const ds_safetensors *st, const char *name)
{
    static const char end[] = ".weight";
    const size_t n = strlen(name), k = sizeof end - 1;
    char module[512];
    if (n <= k || n >= sizeof module || strcmp(name + n - k, end) != 0) {
        return NULL;
    }
    (void)snprintf(module, sizeof module, "%.*s", (int)(n - k), name);
    dsi_router_module(module);
    (void)snprintf(module + strlen(module), sizeof module - strlen(module), "%s", end);
    return strcmp(module, name) != 0 ? ds_safetensors_find(st, module) : NULL;
}

/* The parameter's tensor. Where a tied model's file has the output projection alone, it is both. */
const ds_safetensor *dsi_weights_find(const ds_model *model, const ds_safetensors *st,
                                      const char *name)
{
    const ds_model_info *info = ds_model_get_info(model);
    const char *prefix = info->base_prefix;
    const size_t n = strlen(prefix);
    const ds_safetensor *tensor = ds_safetensors_find(st, name);
    if (tensor == NULL && strncmp(name, prefix, n) == 0) {
        tensor = ds_safetensors_find(st, name + n);
    }
    if (tensor == NULL) {
        tensor = find_old(st, name);
    }
    if (tensor == NULL) {
        tensor = find_router(st, name);
    }
    if (tensor == NULL && info->tied_embeddings && info->embedding != NULL &&
        strcmp(name, info->embedding) == 0) {
        tensor = ds_safetensors_find(st, dsi_weights_head(model));
    }
    if (tensor == NULL && info->stored_tied && strcmp(name, dsi_weights_head(model)) == 0) {
        tensor = dsi_weights_find(model, st, info->embedding);
    }
    return tensor;
}

bool dsi_is_new_head(const char *name)
{
    return strcmp(name, DSI_SCORE_HEAD) == 0 || strncmp(name, "classifier.", 11) == 0 ||
           strstr(name, ".pooler.dense.") != NULL || dsi_is_dense(name);
}
