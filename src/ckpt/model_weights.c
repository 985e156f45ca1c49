/* SPDX-License-Identifier: Apache-2.0 */
/* Matches stored tensors with parameters. See model_weights.h. */
#include "ckpt/model_weights.h"

#include <stdlib.h>
#include <string.h>

static const char head_name[] = "lm_head.weight";

/* The parameter's tensor. Where a tied model's file has the output projection alone, it is both. */
static const ds_safetensor *find(const ds_model *model, const ds_safetensors *st, const char *name)
{
    const ds_model_info *info = ds_model_get_info(model);
    const char *prefix = info->base_prefix;
    const size_t n = strlen(prefix);
    const ds_safetensor *tensor = ds_safetensors_find(st, name);
    if (tensor == NULL && strncmp(name, prefix, n) == 0) {
        tensor = ds_safetensors_find(st, name + n);
    }
    if (tensor == NULL && info->tied_embeddings && info->embedding != NULL &&
        strcmp(name, info->embedding) == 0) {
        tensor = ds_safetensors_find(st, head_name);
    }
    return tensor;
}

static ds_status check_meta(ds_ctx *ctx, const ds_cell_info *cell, const ds_safetensor *tensor)
{
    const ds_dtype dtype = tensor->meta.dtype;
    const bool real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
                      dtype == DS_DTYPE_F64;
    if (!real || !ds_shape_equal(tensor->meta.shape, cell->meta.shape)) {
        char want[160];
        char got[160];
        return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s is %s, the model needs the shape of %s",
                       tensor->path, tensor->name, ds_meta_text(tensor->meta, got, sizeof got),
                       ds_meta_text(cell->meta, want, sizeof want));
    }
    return DS_OK;
}

/* A tied model's files may hold the output projection a second time, but no other one: transformers
 * does not tie then, whatever config.json says. */
static ds_status check_head(ds_ctx *ctx, const ds_model *model, const ds_safetensors *st)
{
    const ds_model_info *info = ds_model_get_info(model);
    const ds_safetensor *head = ds_safetensors_find(st, head_name);
    const ds_safetensor *embedding = find(model, st, info->embedding);
    if (head == NULL || embedding == NULL || head == embedding) {
        return DS_OK;
    }
    if (head->meta.dtype == embedding->meta.dtype &&
        ds_shape_equal(head->meta.shape, embedding->meta.shape) &&
        memcmp(head->data, embedding->data, ds_meta_bytes(head->meta)) == 0) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: lm_head.weight differs from %s, but config.json has "
                   "\"tie_word_embeddings\": true: set it to false to use both, or leave "
                   "lm_head.weight out",
                   head->path, embedding->name);
}

/* Of a reward model made of a language model. */
static bool is_left_head(const ds_cells *cells, const char *name)
{
    return strcmp(name, head_name) == 0 &&
           ds_cells_find(cells, DS_CELL_PARAM, DSI_SCORE_HEAD) != DS_NONE;
}

static bool is_tied_head(const ds_model *model, const char *name)
{
    const ds_model_info *info = ds_model_get_info(model);
    return info->tied_embeddings && info->embedding != NULL && strcmp(name, head_name) == 0;
}

static ds_status check_extra(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                             const ds_safetensors *st, const bool *used)
{
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(st, i);
        if (!used[i] && is_tied_head(model, tensor->name)) {
            DS_TRY(check_head(ctx, model, st));
        } else if (!used[i] && !ds_model_ignores(model, tensor->name) &&
                   !is_left_head(cells, tensor->name)) {
            return ds_fail(ctx, DS_ERR_FORMAT,
                           "%s: the tensor %s is not part of this model (%s); does config.json "
                           "belong to these weights?",
                           tensor->path, tensor->name, ds_model_get_info(model)->architecture);
        }
    }
    return DS_OK;
}

ds_status dsi_weights_match(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                            const ds_safetensors *st, const ds_safetensor **by_cell)
{
    bool *used = calloc(ds_safetensors_count(st) + 1, sizeof *used);
    ds_status status = DS_OK;
    if (used == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to match weights");
    }
    for (ds_cell c = 0; c < ds_cells_count(cells) && status >= 0; ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        by_cell[c] = NULL;
        if (cell->kind != DS_CELL_PARAM || cell->of != DS_NONE) {
            continue; /* what belongs to a parameter is the run's, not the model's */
        }
        by_cell[c] = find(model, st, cell->name);
        if (by_cell[c] == NULL && strcmp(cell->name, DSI_SCORE_HEAD) != 0) {
            const ds_safetensor *first = ds_safetensors_at(st, 0);
            status = ds_fail(ctx, DS_ERR_NOT_FOUND, "%s: the tensor %s is missing",
                             first != NULL ? first->path : "weights", cell->name);
        } else if (by_cell[c] != NULL) {
            used[by_cell[c] - ds_safetensors_at(st, 0)] = true; /* they lie side by side */
            status = check_meta(ctx, cell, by_cell[c]);
        }
    }
    if (status >= 0) {
        status = check_extra(ctx, model, cells, st, used);
    }
    free(used);
    return status;
}

ds_safetensor dsi_weights_range(const ds_safetensor *tensor, int64_t begin, int64_t count)
{
    const size_t size = ds_dtype_bytes(tensor->meta.dtype);
    const size_t skip = (size_t)begin * size;
    ds_safetensor range = *tensor;
    range.meta.shape = ds_shape_1d(count);
    range.data = (const unsigned char *)tensor->data + skip;
    range.bytes = (size_t)count * size;
    range.file_offset += skip;
    return range;
}
