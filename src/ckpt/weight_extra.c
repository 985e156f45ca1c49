/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a folder that are no parameter's. See model_weights_impl.h. */
#include "ckpt/model_weights_impl.h"

#include <stdio.h>
#include <string.h>

/* One of two tensors that a tied model must have alike. */
static ds_status refuse_other(ds_ctx *ctx, const ds_safetensor *one, const ds_safetensor *other)
{
    char got[160];
    char own[160];
    if (one->meta.dtype == other->meta.dtype &&
        ds_shape_equal(one->meta.shape, other->meta.shape)) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: %s differs from %s, but config.json has \"tie_word_embeddings\": true: "
                       "set it to false to use both, or leave %s out",
                       one->path, one->name, other->name, one->name);
    }
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: %s is %s and %s %s, but config.json has \"tie_word_embeddings\": true, by "
                   "which they are one: leave %s out",
                   one->path, one->name, ds_meta_text(one->meta, got, sizeof got), other->name,
                   ds_meta_text(other->meta, own, sizeof own), one->name);
}

static bool are_alike(const ds_safetensor *a, const ds_safetensor *b)
{
    return a->meta.dtype == b->meta.dtype && ds_shape_equal(a->meta.shape, b->meta.shape) &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

ds_status dsi_weights_check_head(ds_ctx *ctx, const ds_model *model, const ds_safetensors *st)
{
    const ds_model_info *info = ds_model_get_info(model);
    const ds_safetensor *head = ds_safetensors_find(st, dsi_weights_head(model));
    const ds_safetensor *embedding = dsi_weights_find(model, st, info->embedding);
    if (head == NULL || embedding == NULL || head == embedding ||
        (!dsi_gguf_blocks_left(head) && are_alike(head, embedding))) {
        return DS_OK;
    }
    return refuse_other(ctx, head, embedding);
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
    return other == NULL || are_alike(other, bias) ? DS_OK : refuse_other(ctx, bias, other);
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
