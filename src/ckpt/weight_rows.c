/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tokens that were added to a vocabulary, behind those that are stored. See
 * model_weights_impl.h. */
#include "ckpt/model_weights_impl.h"
#include "io/convert.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Rows behind the stored ones: their mean, summed in fp64 and rounded to the dtype once. */
static ds_status add_rows(ds_ctx *ctx, const ds_safetensor *from, int64_t n_rows, ds_safetensor *to)
{
    const int64_t stored = from->meta.shape.dims[0];
    const int64_t width = ds_shape_count(from->meta.shape) / (stored > 0 ? stored : 1);
    const size_t row_bytes = (size_t)width * ds_dtype_bytes(from->meta.dtype);
    double *sums = calloc((size_t)width + 1, sizeof *sums);
    float *row = malloc(((size_t)width + 1) * sizeof *row);
    unsigned char *data = malloc((size_t)n_rows * row_bytes + 1);
    if (sums == NULL || row == NULL || data == NULL) {
        free(sums);
        free(row);
        free(data);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s with %lld rows", from->name,
                       (long long)n_rows);
    }
    memcpy(data, from->data, (size_t)stored * row_bytes);
    for (int64_t r = 0; r < stored; ++r) {
        (void)dsi_convert(from->meta.dtype, data + (size_t)r * row_bytes, DS_DTYPE_F32, row,
                          (size_t)width);
        for (int64_t i = 0; i < width; ++i) {
            sums[i] += (double)row[i];
        }
    }
    for (int64_t i = 0; i < width && stored > 0; ++i) {
        row[i] = (float)(sums[i] / (double)stored);
    }
    for (int64_t r = stored; r < n_rows; ++r) {
        (void)dsi_convert(DS_DTYPE_F32, row, from->meta.dtype, data + (size_t)r * row_bytes,
                          (size_t)width);
    }
    free(sums);
    free(row);
    *to = *from;
    to->meta.shape.dims[0] = n_rows;
    to->bytes = (size_t)n_rows * row_bytes;
    to->data = data;
    return DS_OK;
}

static bool has_token_rows(const ds_model *model, const char *name)
{
    return strcmp(name, ds_model_get_info(model)->embedding) == 0 ||
           strcmp(name, dsi_weights_head(model)) == 0 || dsi_weights_is_head_bias(model, name);
}

ds_status dsi_weights_enlarge(dsi_matching *m, const char *name, ds_meta want,
                              const ds_safetensor **tensor)
{
    const ds_model_info *info = ds_model_get_info(m->model);
    const bool grows = info->stored_vocab > 0 && info->stored_vocab < info->vocab_size;
    if (!grows || !has_token_rows(m->model, name)) {
        return DS_OK;
    }
    ds_meta stored = want;
    stored.shape.dims[0] = info->stored_vocab;
    DS_TRY(dsi_weights_check_meta(m->ctx, stored, *tensor));
    assert(m->found->n_longer < DSI_MOST_LONGER);
    ds_safetensor *longer = &m->found->longer[m->found->n_longer];
    DS_TRY(add_rows(m->ctx, *tensor, info->vocab_size, longer));
    m->found->n_longer += 1;
    *tensor = longer;
    return DS_OK;
}
