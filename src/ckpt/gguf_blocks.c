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

/* ggml's number of a dtype of blocks. */
static uint32_t type_id(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_Q8_0:
        return 8;
    case DS_DTYPE_Q4_0:
        return 2;
    case DS_DTYPE_Q4_1:
        return 3;
    case DS_DTYPE_Q5_0:
        return 6;
    case DS_DTYPE_Q5_1:
        return 7;
    default:
        return UINT32_MAX; /* none */
    }
}

const uint8_t *dsi_gguf_blocks_row(const dsi_gguf_blocks *b, const char *name, ds_meta meta,
                                   int64_t r)
{
    const size_t row_bytes =
        (size_t)(ds_shape_last(meta.shape) / DSI_BLOCK * dsi_block_bytes(meta.dtype));
    for (size_t i = 0; i < dsi_gguf_n_tensors(b->gguf); ++i) {
        const dsi_gguf_source *s = &b->sources[i];
        if (strcmp(s->name, name) == 0) {
            const bool same = s->layout != DSI_GGUF_TRANSPOSED && meta.shape.n_dims == 2 &&
                              s->tensor->type->id == type_id(meta.dtype) &&
                              ds_shape_equal(s->tensor->shape, meta.shape);
            return same ? s->tensor->data + (size_t)dsi_gguf_stored_row(s, r) * row_bytes : NULL;
        }
    }
    return NULL;
}
