/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of a parameter that has been matched with its tensors. See model_weights.h. */
#include "ckpt/model_weights_impl.h"
#include "ckpt/mxfp4.h"
#include "io/convert.h"

#include <stdlib.h>

ds_safetensor dsi_weight_piece(const dsi_weight *weight, int64_t begin, int64_t count)
{
    const int64_t each = ds_shape_count(weight->parts[0]->meta.shape);
    ds_safetensor piece = *weight->parts[each > 0 ? begin / each : 0];
    const int64_t first = each > 0 ? begin % each : 0;
    const int64_t n = each - first < count ? each - first : count;
    const size_t size = ds_dtype_bytes(piece.meta.dtype);
    piece.meta.shape = ds_shape_1d(n);
    piece.data = (const unsigned char *)piece.data + (size_t)first * size;
    piece.bytes = (size_t)n * size;
    piece.file_offset += (size_t)first * size;
    return piece;
}

static ds_status read_mxfp4(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                            ds_dtype dtype, void *data)
{
    enum { AT_ONCE = 4096 };
    float values[AT_ONCE];
    for (int64_t at = 0; at < count;) {
        const int64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        dsi_mxfp4_read(weight->parts[0], weight->scales, begin + at, n, values);
        if (dsi_convert(DS_DTYPE_F32, values, dtype,
                        (char *)data + (size_t)at * ds_dtype_bytes(dtype), (size_t)n) > 0) {
            return ds_fail(ctx, DS_ERR_NUMERIC, "%s has values beyond the range of %s",
                           weight->parts[0]->name, ds_dtype_name(dtype));
        }
        at += n;
    }
    return DS_OK;
}

static ds_status read_gguf(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                           ds_dtype dtype, void *data)
{
    const char *name = weight->parts[0]->name;
    float *row = malloc((size_t)weight->row * sizeof *row + 1);
    ds_status status = row != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", name);
    for (int64_t at = 0, n = 0; at < count && status >= 0; at += n) {
        const int64_t first = (begin + at) % weight->row;
        n = weight->row - first < count - at ? weight->row - first : count - at;
        status = dsi_gguf_blocks_read(weight->gguf, name, (begin + at) / weight->row, row);
        if (status >= 0 &&
            dsi_convert(DS_DTYPE_F32, row + first, dtype,
                        (char *)data + (size_t)at * ds_dtype_bytes(dtype), (size_t)n) > 0) {
            status = ds_fail(ctx, DS_ERR_NUMERIC, "%s has values beyond the range of %s", name,
                             ds_dtype_name(dtype));
        }
    }
    free(row);
    return status;
}

ds_status dsi_weight_read(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                          ds_dtype dtype, void *data)
{
    if (weight->scales != NULL) {
        return read_mxfp4(ctx, weight, begin, count, dtype, data);
    }
    if (weight->gguf != NULL) {
        return read_gguf(ctx, weight, begin, count, dtype, data);
    }
    for (int64_t at = 0; at < count;) {
        const ds_safetensor piece = dsi_weight_piece(weight, begin + at, count - at);
        DS_TRY(ds_safetensors_read(ctx, &piece, dtype,
                                   (char *)data + (size_t)at * ds_dtype_bytes(dtype)));
        at += piece.meta.shape.dims[0];
    }
    return DS_OK;
}
