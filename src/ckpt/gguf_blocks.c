/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_blocks.h. */
#include "ckpt/gguf_blocks.h"

#include "ckpt/gguf_model.h"

#include <stdlib.h>
#include <string.h>

struct dsi_gguf_blocks {
    dsi_gguf *gguf;
    dsi_gguf_source *sources; /* of each tensor of the file */
};

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
    for (size_t i = 0; i < dsi_gguf_n_tensors(b->gguf); ++i) {
        if (strcmp(b->sources[i].name, name) == 0) {
            return &b->sources[i];
        }
    }
    return NULL;
}

ds_dtype dsi_gguf_blocks_type(const dsi_gguf_blocks *b, const char *name, ds_shape shape)
{
    const dsi_gguf_source *s = find(b, name);
    const bool fits = s != NULL && s->layout != DSI_GGUF_TRANSPOSED && shape.n_dims == 2 &&
                      ds_shape_equal(s->tensor->shape, shape);
    const ds_dtype dtype = fits ? dsi_gguf_dtype_of(s->tensor->type->id) : DS_DTYPE_NONE;
    return dsi_is_blocks(dtype) ? dtype : DS_DTYPE_NONE;
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
