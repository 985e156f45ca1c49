/* SPDX-License-Identifier: Apache-2.0 */
/* Matches stored tensors with an adapter's parameters. See adapter_weights.h. */
#include "ckpt/adapter_weights.h"

#include "io/file.h"
#include "model/adapter.h"

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

static ds_status match(const ds_adapter *a, const ds_cells *cells, const ds_safetensors *st,
                       const ds_safetensor **by_cell, bool *used)
{
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        char name[NAME_BYTES];
        by_cell[c] = NULL;
        if (!dsi_adapter_has(a, cell)) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%s%s", DSI_ADAPTER_PREFIX, cell->name);
        by_cell[c] = ds_safetensors_find(st, name);
        if (by_cell[c] == NULL) {
            return ds_fail(a->ctx, DS_ERR_NOT_FOUND,
                           "%s/%s: the tensor %s is missing, which %s asks for", a->folder,
                           DSI_ADAPTER_WEIGHTS, name, DSI_ADAPTER_CONFIG);
        }
        used[by_cell[c] - ds_safetensors_at(st, 0)] = true; /* they lie side by side */
        DS_TRY(check_meta(a->ctx, cell, by_cell[c]));
    }
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        if (!used[i]) {
            const ds_safetensor *tensor = ds_safetensors_at(st, i);
            return ds_fail(a->ctx, DS_ERR_FORMAT,
                           "%s: the tensor %s is of no module that %s names in this model",
                           tensor->path, tensor->name, DSI_ADAPTER_CONFIG);
        }
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
