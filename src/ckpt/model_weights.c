/* Matches stored tensors with parameters. See model_weights.h. */
#include "ckpt/model_weights.h"

#include <stdlib.h>
#include <string.h>

static const ds_safetensor *find(const ds_model *model, const ds_safetensors *st, const char *name)
{
    const char *prefix = ds_model_get_info(model)->base_prefix;
    const size_t n = strlen(prefix);
    const ds_safetensor *tensor = ds_safetensors_find(st, name);
    if (tensor == NULL && strncmp(name, prefix, n) == 0) {
        tensor = ds_safetensors_find(st, name + n);
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

/* A tied model's files may hold the output projection a second time. */
static bool may_be_extra(const ds_model *model, const char *name)
{
    return ds_model_ignores(model, name) ||
           (ds_model_get_info(model)->tied_embeddings && strcmp(name, "lm_head.weight") == 0);
}

static ds_status check_extra(ds_ctx *ctx, const ds_model *model, const ds_safetensors *st,
                             const bool *used)
{
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(st, i);
        if (!used[i] && !may_be_extra(model, tensor->name)) {
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
        if (cell->kind != DS_CELL_PARAM) {
            continue;
        }
        by_cell[c] = find(model, st, cell->name);
        if (by_cell[c] == NULL) {
            const ds_safetensor *first = ds_safetensors_at(st, 0);
            status = ds_fail(ctx, DS_ERR_NOT_FOUND, "%s: the tensor %s is missing",
                             first != NULL ? first->path : "weights", cell->name);
        } else {
            used[by_cell[c] - ds_safetensors_at(st, 0)] = true; /* they lie side by side */
            status = check_meta(ctx, cell, by_cell[c]);
        }
    }
    if (status >= 0) {
        status = check_extra(ctx, model, st, used);
    }
    free(used);
    return status;
}
