/* SPDX-License-Identifier: Apache-2.0 */
/* Matches stored tensors with an adapter's parameters. See adapter_weights.h. */
#include "ckpt/adapter_weights.h"

#include "io/file.h"
#include "io/safetensors_internal.h"
#include "model/adapter.h"
#include "model/adapter_experts.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 1200 };

static ds_status check_meta(ds_ctx *ctx, const ds_cell_info *cell, const ds_safetensor *tensor)
{
    const ds_dtype dtype = tensor->meta.dtype;
    const bool real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
                      dtype == DS_DTYPE_F64;
    char want[160];
    char got[160];
    return real && ds_shape_equal(tensor->meta.shape, cell->meta.shape)
               ? DS_OK
               : ds_fail(ctx, DS_ERR_SHAPE,
                         "%s: tensor %s is %s, the adapter needs the shape of %s", tensor->path,
                         tensor->name, ds_meta_text(tensor->meta, got, sizeof got),
                         ds_meta_text(cell->meta, want, sizeof want));
}

/* The tensor that another one's name means without `part` in it: "X.part.weight" → "X.weight". */
static const ds_safetensor *without(const ds_safetensors *st, const char *name, const char *part)
{
    char text[NAME_BYTES];
    const char *at = strstr(name, part);
    if (at == NULL) {
        return NULL;
    }
    (void)snprintf(text, sizeof text, "%.*s%s", (int)(at - name), name, at + strlen(part));
    return ds_safetensors_find(st, text);
}

/* Where the vocabulary was enlarged, PEFT writes a module of modules_to_save three times: as it is,
 * by its inner name, and as it was before it was trained. */
static bool is_again(const ds_safetensors *st, const ds_safetensor *tensor)
{
    const ds_safetensor *same = without(st, tensor->name, ".modules_to_save");
    return without(st, tensor->name, ".original_module") != NULL ||
           (same != NULL && ds_shape_equal(same->meta.shape, tensor->meta.shape) &&
            same->meta.dtype == tensor->meta.dtype &&
            memcmp(same->data, tensor->data, tensor->bytes) == 0);
}

/* The embedding or output head that an adapter is on, which PEFT writes with it. */
static ds_cell base_of(const ds_adapter *a, const ds_cells *cells, const ds_safetensor *tensor)
{
    char prefix[DSI_ADAPTER_PREFIX_BYTES];
    static const char part[] = ".base_layer";
    const char *at = strstr(tensor->name, part);
    const size_t n = strlen(DSI_ADAPTER_PREFIX);
    char name[NAME_BYTES];
    dsi_adapter_cell_prefix(a, prefix);
    if (at == NULL || strncmp(tensor->name, DSI_ADAPTER_PREFIX, n) != 0) {
        return DS_NONE;
    }
    const int length = (int)(at - tensor->name - (int)n);
    (void)snprintf(name, sizeof name, "%s%.*s" DSI_ADAPTER_TABLE_A, prefix, length,
                   tensor->name + n);
    ds_cell own = ds_cells_find(cells, DS_CELL_PARAM, name);
    if (own == DS_NONE) {
        (void)snprintf(name, sizeof name, "%s%.*s.lora_A.weight", prefix, length, tensor->name + n);
        own = ds_cells_find(cells, DS_CELL_PARAM, name);
    }
    return own != DS_NONE ? ds_cells_get(cells, own)->of : DS_NONE;
}

static ds_status match_rest(const ds_adapter *a, const ds_cells *cells, const ds_safetensors *st,
                            const ds_safetensor *tensor, const ds_safetensor **by_cell)
{
    const ds_cell base = base_of(a, cells, tensor);
    if (base != DS_NONE) {
        by_cell[base] = tensor;
        return check_meta(a->ctx, ds_cells_get(cells, base), tensor);
    }
    return is_again(st, tensor)
               ? DS_OK
               : ds_fail(a->ctx, DS_ERR_FORMAT,
                         "%s: the tensor %s is of no module that %s names in this model",
                         tensor->path, tensor->name, DSI_ADAPTER_CONFIG);
}

static ds_status no_memory(const ds_adapter *a)
{
    return ds_fail(a->ctx, DS_ERR_NOMEM, "no memory for an adapter");
}

/* A tensor in the order of a cell of experts, in memory that st has. */
static ds_status turn(const ds_adapter *a, const ds_cell_info *cell,
                      const dsi_expert_stored *stored, ds_safetensors *st,
                      const ds_safetensor **tensor)
{
    const int64_t n = ds_shape_count(cell->meta.shape);
    const size_t size = ds_dtype_bytes((*tensor)->meta.dtype);
    if (st->turned == NULL) {
        size_t bytes = 1 << 20;
        for (size_t i = 0; i < st->n_entries; ++i) {
            bytes += 2 * (st->entries[i].bytes + sizeof *st->entries);
        }
        DS_TRY(dsi_arena_create(bytes, &st->turned) < 0 ? no_memory(a) : DS_OK);
    }
    ds_safetensor *made = dsi_arena_alloc(st->turned, sizeof *made);
    unsigned char *data = dsi_arena_alloc(st->turned, (size_t)n * size);
    if (made == NULL || data == NULL) {
        return no_memory(a);
    }
    *made = **tensor;
    made->meta.shape = cell->meta.shape;
    made->data = data;
    made->bytes = (size_t)n * size;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t at = dsi_expert_stored_at(stored, cell->meta.shape, i);
        memcpy(data + (size_t)i * size, (const unsigned char *)(*tensor)->data + (size_t)at * size,
               size);
    }
    *tensor = made;
    return DS_OK;
}

static ds_status match(const ds_adapter *a, const ds_cells *cells, ds_safetensors *st,
                       const ds_safetensor **by_cell, bool *used)
{
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        char name[NAME_BYTES];
        by_cell[c] = NULL;
        if (!dsi_adapter_has(a, cell)) {
            continue;
        }
        dsi_expert_stored stored;
        const bool expert = cell->of != DS_NONE &&
                            dsi_expert_stored_of(cell, ds_cells_get(cells, cell->of), &stored);
        const ds_cell_info as = {.name = expert ? stored.name : dsi_adapter_plain_name(cell->name),
                                 .meta = expert ? stored.meta : cell->meta};
        (void)snprintf(name, sizeof name, "%s%s", DSI_ADAPTER_PREFIX, as.name);
        by_cell[c] = ds_safetensors_find(st, name);
        if (by_cell[c] == NULL) {
            return ds_fail(a->ctx, DS_ERR_NOT_FOUND,
                           "%s/%s: the tensor %s is missing, which %s asks for", a->folder,
                           DSI_ADAPTER_WEIGHTS, name, DSI_ADAPTER_CONFIG);
        }
        used[by_cell[c] - ds_safetensors_at(st, 0)] = true; /* they lie side by side */
        DS_TRY(check_meta(a->ctx, &as, by_cell[c]));
        DS_TRY(expert ? turn(a, cell, &stored, st, &by_cell[c]) : DS_OK);
    }
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        DS_TRY(used[i] ? DS_OK : match_rest(a, cells, st, ds_safetensors_at(st, i), by_cell));
    }
    return DS_OK;
}

static ds_status open_file(const ds_adapter *a, ds_safetensors **st_out)
{
    char *path = dsi_path_join(a->folder, DSI_ADAPTER_WEIGHTS);
    char *torch = dsi_path_join(a->folder, "adapter_model.bin");
    ds_status status = path != NULL && torch != NULL
                           ? DS_OK
                           : ds_fail(a->ctx, DS_ERR_NOMEM, "no memory for an adapter");
    if (status == DS_OK && access(path, F_OK) != 0 && access(torch, F_OK) == 0) {
        status = ds_fail(a->ctx, DS_ERR_UNSUPPORTED,
                         "%s: weights are read from %s here; let PEFT write it (save_pretrained)",
                         torch, DSI_ADAPTER_WEIGHTS);
    }
    status = status == DS_OK ? ds_safetensors_open(a->ctx, path, st_out) : status;
    free(path);
    free(torch);
    return status;
}

ds_status dsi_adapter_weights_open(const ds_adapter *a, const ds_cells *cells,
                                   ds_safetensors **st_out, const ds_safetensor **by_cell)
{
    ds_safetensors *st = NULL;
    DS_TRY(open_file(a, &st));
    bool *used = calloc(ds_safetensors_count(st) + 1, sizeof *used);
    const ds_status status = used != NULL
                                 ? match(a, cells, st, by_cell, used)
                                 : ds_fail(a->ctx, DS_ERR_NOMEM, "no memory for an adapter");
    free(used);
    if (status < 0) {
        ds_safetensors_close(&st);
        return status;
    }
    *st_out = st;
    return DS_OK;
}
