/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_blocks.h. */
#include "ckpt/gguf_blocks.h"

#include "ckpt/gguf_model.h"

#include <stdlib.h>
#include <string.h>

struct dsi_gguf_blocks {
    dsi_gguf *gguf;
    dsi_gguf_source *sources; /* of each tensor of the file, by name */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dsi_gguf_source *)a)->name, ((const dsi_gguf_source *)b)->name);
}

static ds_status place_all(ds_ctx *ctx, dsi_gguf_blocks *b, const char *path)
{
    DS_TRY(dsi_gguf_open(ctx, path, &b->gguf));
    const size_t n = dsi_gguf_n_tensors(b->gguf);
    b->sources = calloc(n + 1, sizeof *b->sources);
    if (b->sources == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the tensors of %s", path);
    }
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(dsi_gguf_place(ctx, b->gguf, dsi_gguf_tensor_at(b->gguf, i), &b->sources[i]));
        if (b->sources[i].name[0] != '\0') {
            DS_TRY(dsi_gguf_check_layout(ctx, &b->sources[i]));
        }
    }
    qsort(b->sources, n, sizeof *b->sources, by_name);
    return DS_OK;
}

ds_status dsi_gguf_blocks_open(ds_ctx *ctx, const char *path, dsi_gguf_blocks **blocks_out)
{
    dsi_gguf_blocks *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", path);
    }
    const ds_status status = place_all(ctx, b, path);
    if (status < 0) {
        dsi_gguf_blocks_close(&b);
        return status;
    }
    *blocks_out = b;
    return DS_OK;
}

void dsi_gguf_blocks_close(dsi_gguf_blocks **blocks)
{
    dsi_gguf_blocks *b = *blocks;
    if (b != NULL) {
        free(b->sources);
        dsi_gguf_close(&b->gguf);
        free(b);
    }
    *blocks = NULL;
}

static const dsi_gguf_source *find(const dsi_gguf_blocks *b, const char *name)
{
    size_t first = 0;
    for (size_t end = dsi_gguf_n_tensors(b->gguf); first < end;) {
        const size_t middle = first + (end - first) / 2;
        const int order = strcmp(name, b->sources[middle].name);
        if (order == 0) {
            return &b->sources[middle];
        }
        end = order < 0 ? middle : end;
        first = order > 0 ? middle + 1 : first;
    }
    return NULL;
}

static ds_dtype blocks_of(const dsi_gguf_source *s)
{
    const bool fits = s->layout != DSI_GGUF_TRANSPOSED && s->tensor->shape.n_dims == 2;
    const ds_dtype dtype = fits ? dsi_gguf_dtype_of(s->tensor->type->id) : DS_DTYPE_NONE;
    return dsi_is_blocks(dtype) ? dtype : DS_DTYPE_NONE;
}

bool dsi_gguf_stays(const dsi_gguf_source *s)
{
    return blocks_of(s) != DS_DTYPE_NONE;
}

bool dsi_gguf_blocks_left(const ds_safetensor *tensor)
{
    const ds_shape shape = tensor->meta.shape;
    return tensor->meta.dtype == DS_DTYPE_I8 && shape.n_dims == 2 && shape.dims[0] > 0 &&
           shape.dims[1] == 0;
}

ds_dtype dsi_gguf_blocks_type(const dsi_gguf_blocks *b, const char *name, ds_shape shape)
{
    const dsi_gguf_source *s = find(b, name);
    const bool fits = s != NULL && ds_shape_equal(s->tensor->shape, shape);
    return fits ? blocks_of(s) : DS_DTYPE_NONE;
}

const uint8_t *dsi_gguf_blocks_row(const dsi_gguf_blocks *b, const char *name, ds_meta meta,
                                   int64_t r)
{
    if (dsi_gguf_blocks_type(b, name, meta.shape) != meta.dtype) {
        return NULL;
    }
    const dsi_gguf_source *s = find(b, name);
    return s->tensor->data + (size_t)dsi_gguf_stored_row(s, r) *
                                 dsi_block_row_bytes(meta.dtype, ds_shape_last(meta.shape));
}

ds_status dsi_gguf_blocks_read(const dsi_gguf_blocks *b, const char *name, int64_t r,
                               float *row_out)
{
    const dsi_gguf_source *s = find(b, name);
    return s != NULL ? dsi_gguf_read_rows(b->gguf, s->tensor, dsi_gguf_stored_row(s, r), 1, row_out)
                     : DS_ERR_NOT_FOUND;
}
