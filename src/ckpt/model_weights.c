/* SPDX-License-Identifier: Apache-2.0 */
/* Matches stored tensors with parameters. See model_weights.h. */
#include "ckpt/model_weights_impl.h"
#include "nn/nn.h"

#include <stdlib.h>

ds_status dsi_weights_check_meta(ds_ctx *ctx, ds_meta want, const ds_safetensor *tensor)
{
    const ds_dtype dtype = tensor->meta.dtype;
    if (dsi_gguf_blocks_left(tensor)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: the blocks of %s stayed in the GGUF file that the folder was made of: "
                       "it is of use only beside it",
                       tensor->path, tensor->name);
    }
    const bool real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
                      dtype == DS_DTYPE_F64;
    if (!real || !ds_shape_equal(tensor->meta.shape, want.shape)) {
        char need[160];
        char got[160];
        return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s is %s, the model needs the shape of %s",
                       tensor->path, tensor->name, ds_meta_text(tensor->meta, got, sizeof got),
                       ds_meta_text(want, need, sizeof need));
    }
    return DS_OK;
}

void dsi_matching_use(dsi_matching *m, const ds_safetensor *tensor)
{
    m->used[tensor - ds_safetensors_at(m->st, 0)] = true;
}

/* The same for what is unpacked. */
void dsi_matching_take(dsi_matching *m, const ds_safetensor *tensor)
{
    dsi_matching_use(m, tensor);
    m->found->taken[tensor - ds_safetensors_at(m->st, 0)] = true;
}

/* The tensors of one parameter. Those of an open folder lie side by side. */
static ds_status match_cell(dsi_matching *m, ds_cell c, const ds_cell_info *cell)
{
    const ds_meta whole = ds_cell_unpacked(cell, DS_DTYPE_F32);
    const ds_meta want = {whole.dtype, dsi_stacked_shape(cell->name, whole.shape)};
    const int64_t n = dsi_stacked_count(cell->name, whole.shape);
    const ds_safetensor **parts = m->found->parts + m->found->n_parts;
    char name[DSI_STACKED_NAME_BYTES];
    bool stack = false;
    DS_TRY(dsi_match_stack(m, c, cell, &stack));
    for (int64_t i = 0; i < n && !stack; ++i) {
        DS_TRY(dsi_stacked_name(m->ctx, cell->name, i, name));
        parts[i] = dsi_weights_find(m->model, m->st, name);
        if (parts[i] == NULL && dsi_is_new_head(cell->name)) {
            return !cell->frozen
                       ? DS_OK
                       : ds_fail(m->ctx, DS_ERR_NOT_FOUND,
                                 "the weights lack %s, which is frozen and would stay as it was "
                                 "drawn: train it (beside an adapter: --modules_to_save), or "
                                 "begin with a model that has it",
                                 name);
        }
        bool packed = false;
        if (parts[i] == NULL) {
            DS_TRY(dsi_match_int4(m, cell, name, want.shape, &parts[i]));
            if (parts[i] != NULL) {
                m->found->made[m->found->n_parts + (size_t)i] = DSI_WEIGHT_UNPACKED;
                continue;
            }
        }
        DS_TRY(parts[i] == NULL && n == 1 ? dsi_match_mxfp4(m, c, cell, &packed) : DS_OK);
        if (packed) {
            return DS_OK;
        }
        if (parts[i] == NULL) {
            const ds_safetensor *first = ds_safetensors_at(m->st, 0);
            return ds_fail(m->ctx, DS_ERR_NOT_FOUND, "%s: the tensor %s is missing",
                           first != NULL ? first->path : "weights", name);
        }
        dsi_matching_use(m, parts[i]);
        if (m->gguf != NULL && n == 1 && dsi_gguf_blocks_left(parts[i]) &&
            dsi_gguf_blocks_type(m->gguf, parts[i]->name, want.shape) != DS_DTYPE_NONE) {
            m->found->by_cell[c] = (dsi_weight){
                .parts = parts, .n = n, .gguf = m->gguf, .row = ds_shape_last(want.shape)};
            m->found->n_parts += (size_t)n;
            return DS_OK;
        }
        const ds_safetensor *stored = parts[i];
        DS_TRY(dsi_match_bytes(m, name, want.shape, &parts[i]));
        DS_TRY(dsi_match_bnb(m, name, want.shape, &parts[i]));
        m->found->made[m->found->n_parts + (size_t)i] =
            parts[i] != stored ? DSI_WEIGHT_UNPACKED : DSI_WEIGHT_STORED;
        DS_TRY(dsi_weights_enlarge(m, name, want, &parts[i]));
        DS_TRY(dsi_weights_check_meta(m->ctx, want, parts[i]));
    }
    if (!stack) {
        m->found->by_cell[c] = (dsi_weight){.parts = parts, .n = n};
        m->found->n_parts += (size_t)n;
    }
    return DS_OK;
}

/* What belongs to a parameter is the run's, not the model's. */
static bool is_weight(const ds_cell_info *cell)
{
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE;
}

static ds_status create(ds_ctx *ctx, const ds_cells *cells, const ds_safetensors *st,
                        dsi_weights **weights_out)
{
    size_t n_parts = 1;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        n_parts += is_weight(cell) ? (size_t)dsi_stacked_count(cell->name, cell->meta.shape) : 0;
    }
    dsi_weights *w = calloc(1, sizeof *w);
    if (w == NULL || (w->parts = calloc(n_parts, sizeof *w->parts)) == NULL ||
        (w->made = calloc(n_parts, sizeof *w->made)) == NULL ||
        (w->taken = calloc(ds_safetensors_count(st) + 1, sizeof *w->taken)) == NULL ||
        (w->by_cell = calloc((size_t)ds_cells_count(cells) + 1, sizeof *w->by_cell)) == NULL) {
        dsi_weights_destroy(&w);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to match weights");
    }
    *weights_out = w;
    return DS_OK;
}

ds_status dsi_weights_match(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                            const ds_safetensors *st, bool teacher, dsi_weights **weights_out)
{
    return dsi_weights_match_kept(ctx, model, cells, st, teacher, NULL, NULL, weights_out);
}

ds_status dsi_weights_match_kept(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                                 const ds_safetensors *st, bool teacher, dsi_int4_blocks *kept,
                                 const dsi_gguf_blocks *gguf, dsi_weights **weights_out)
{
    dsi_matching m = {.ctx = ctx, .model = model, .st = st, .kept = kept, .gguf = gguf};
    DS_TRY(create(ctx, cells, st, &m.found));
    m.used = calloc(ds_safetensors_count(st) + 1, sizeof *m.used);
    ds_status status =
        m.used != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory to match weights");
    status = status < 0 ? status : dsi_int4_form_of(ctx, st, &m.int4);
    status = status < 0 ? status : dsi_byte_form_of(ctx, st, &m.bytes);
    status = status < 0 ? status : dsi_bnb_form_of(ctx, st, &m.bnb);
    if (status >= 0 && ds_model_get_info(model)->stored_tied) {
        status = dsi_weights_check_head(ctx, model, st);
    }
    for (ds_cell c = 0; c < ds_cells_count(cells) && status >= 0; ++c) {
        ds_cell_info cell = *ds_cells_get(cells, c);
        if (is_weight(&cell) && dsi_nn_is_teacher(&cell) == teacher) {
            cell.name += teacher ? DSI_NN_TEACHER_BYTES : 0;
            status = match_cell(&m, c, &cell);
        }
    }
    if (status >= 0 && (m.bytes.there || m.bnb != DSI_BNB_NONE) && !m.found->few_bits) {
        const ds_safetensor *first = ds_safetensors_at(st, 0);
        status = ds_fail(ctx, DS_ERR_UNSUPPORTED,
                         "%s: config.json has a quantization_config, but the weights are plain: "
                         "they are not rounded here; leave it out, or use --load_in_fp8",
                         first != NULL ? first->path : "weights");
    }
    if (status >= 0) {
        status = dsi_weights_check_extra(ctx, model, cells, st, m.used);
    }
    free(m.used);
    if (status < 0) {
        dsi_weights_destroy(&m.found);
        return status;
    }
    *weights_out = m.found;
    return DS_OK;
}

void dsi_weights_destroy(dsi_weights **weights)
{
    if (weights != NULL && *weights != NULL) {
        for (uint32_t i = 0; i < (*weights)->n_longer; ++i) {
            free((void *)(uintptr_t)(*weights)->longer[i].data);
        }
        for (dsi_unpacked_weight *u = (*weights)->unpacked; u != NULL;) {
            dsi_unpacked_weight *next = u->next;
            free(u->mapped ? NULL : (void *)(uintptr_t)u->tensor.data);
            free(u);
            u = next;
        }
        free((*weights)->parts);
        free((*weights)->made);
        free((*weights)->taken);
        free((*weights)->by_cell);
        free(*weights);
        *weights = NULL;
    }
}

bool dsi_weights_are_unpacked(const dsi_weights *weights)
{
    return weights->few_bits;
}

dsi_weight_origin dsi_weights_origin(const dsi_weights *weights, ds_cell cell, int64_t i)
{
    return weights->made[weights->by_cell[cell].parts - weights->parts + i];
}

bool dsi_weights_takes(const dsi_weights *weights, size_t i)
{
    return weights->taken[i];
}

bool dsi_weights_drop(dsi_weights *weights, const ds_safetensor *part)
{
    dsi_unpacked_weight *u = weights->unpacked;
    while (u != NULL && &u->tensor != part) {
        u = u->next;
    }
    if (u == NULL || u->mapped) {
        return false;
    }
    free((void *)(uintptr_t)u->tensor.data);
    u->tensor.data = NULL;
    return true;
}

dsi_weight dsi_weights_of(const dsi_weights *weights, ds_cell cell)
{
    return weights->by_cell[cell];
}
