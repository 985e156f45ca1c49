/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a folder that are no parameter's. See model_weights_impl.h. */
#include "ckpt/model_weights_impl.h"

#include <stdio.h>
#include <string.h>

ds_status dsi_weights_check_head(ds_ctx *ctx, const ds_model *model, const ds_safetensors *st)
{
    const ds_model_info *info = ds_model_get_info(model);
    const ds_safetensor *head = ds_safetensors_find(st, dsi_weights_head(model));
    const ds_safetensor *embedding = dsi_weights_find(model, st, info->embedding);
    if (head == NULL || embedding == NULL || head == embedding) {
        return DS_OK;
    }
    if (head->meta.dtype == embedding->meta.dtype &&
        ds_shape_equal(head->meta.shape, embedding->meta.shape) && !dsi_gguf_blocks_left(head) &&
        memcmp(head->data, embedding->data, ds_meta_bytes(head->meta)) == 0) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: %s differs from %s, but config.json has "
                   "\"tie_word_embeddings\": true: set it to false to use both, or leave "
                   "%s out",
                   head->path, head->name, embedding->name, head->name);
}

/* Of a reward model made of a language model, or of one that learns embeddings (ds_contrast). */
static bool is_left_head(const ds_model *model, const ds_cells *cells, const char *name)
{
    return strcmp(name, dsi_weights_head(model)) == 0 &&
           (ds_cells_find(cells, DS_CELL_PARAM, DSI_SCORE_HEAD) != DS_NONE ||
            ds_cells_find(cells, DS_CELL_INPUT, "train/pool") != DS_NONE);
}

static bool is_tied_head(const ds_model *model, const char *name)
{
    const ds_model_info *info = ds_model_get_info(model);
    return info->tied_embeddings && info->embedding != NULL &&
           strcmp(name, dsi_weights_head(model)) == 0;
}

/* The bias of a tied output projection, which some folders have twice: it must be the same. */
static ds_status check_head_bias(ds_ctx *ctx, const ds_safetensors *st, const ds_safetensor *bias)
{
    static const char twice[] = ".decoder.bias";
    const size_t n = strlen(bias->name);
    const size_t m = sizeof twice - 1;
    char name[512];
    if (n < m || n >= sizeof name || strcmp(bias->name + n - m, twice) != 0) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "%.*s.bias", (int)(n - m), bias->name);
    const ds_safetensor *other = ds_safetensors_find(st, name);
    if (other == NULL || (other->bytes == bias->bytes && other->meta.dtype == bias->meta.dtype &&
                          memcmp(other->data, bias->data, bias->bytes) == 0)) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: %s differs from %s, but config.json has \"tie_word_embeddings\": true: set "
                   "it to false to use it, or leave it out",
                   bias->path, bias->name, other->name);
}

ds_status dsi_weights_check_extra(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                                  const ds_safetensors *st, const bool *used)
{
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(st, i);
        if (!used[i] && is_tied_head(model, tensor->name)) {
            DS_TRY(dsi_weights_check_head(ctx, model, st));
        } else if (!used[i] && ds_model_ignores(model, tensor->name)) {
            DS_TRY(check_head_bias(ctx, st, tensor));
        } else if (!used[i] && !is_left_head(model, cells, tensor->name)) {
            return ds_fail(ctx, DS_ERR_FORMAT,
                           "%s: the tensor %s is not part of this model (%s); does config.json "
                           "belong to these weights?",
                           tensor->path, tensor->name, ds_model_get_info(model)->architecture);
        }
    }
    return DS_OK;
}
