/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file into a Hugging Face model folder. See deepspeed/gguf.h. Values are made as they are
 * written, a row at a time; what is transposed is made whole, a tensor at a time. */
#include <deepspeed/gguf.h>

#include "base/reserved.h"
#include "ckpt/gguf_model.h"

#include <deepspeed/hf_export.h>
#include <stdlib.h>
#include <string.h>

int64_t dsi_gguf_stored_row(const dsi_gguf_source *s, int64_t r)
{
    if (s->layout != DSI_GGUF_PAIRS) {
        return r;
    }
    const dsi_gguf_tensor *t = s->tensor;
    const int64_t head = t->shape.dims[0] / s->heads;
    const int64_t half = head / 2;
    const int64_t at = r % head;
    return r / head * head + 2 * (at % half) + at / half;
}

/* Elements [first, first + n) of row r; a vector is one row, and its elements are what is permuted.
 */
static ds_status read_row(dsi_gguf_source *s, int64_t r, int64_t first, int64_t n, float *out)
{
    const dsi_gguf_tensor *t = s->tensor;
    const bool vector = t->shape.n_dims == 1;
    DS_TRY(dsi_gguf_read_rows(s->gguf, t, vector ? 0 : dsi_gguf_stored_row(s, r), 1, s->row));
    for (int64_t i = 0; i < n; ++i) {
        out[i] = s->row[vector ? dsi_gguf_stored_row(s, first + i) : first + i];
    }
    return DS_OK;
}

static ds_status read_transposed(dsi_gguf_source *s, int64_t first, int64_t n, float *out)
{
    const int64_t rows = s->tensor->shape.dims[0];
    const int64_t row = s->tensor->shape.dims[1];
    if (first == 0) {
        free(s->whole);
        s->whole = malloc((size_t)(rows * row) * sizeof *s->whole);
        if (s->whole == NULL) {
            return DS_ERR_NOMEM;
        }
        DS_TRY(dsi_gguf_read_rows(s->gguf, s->tensor, 0, rows, s->whole));
    }
    for (int64_t i = 0; i < n; ++i) { /* (row, rows) */
        out[i] = s->whole[(first + i) % rows * row + (first + i) / rows];
    }
    if (first + n == rows * row) {
        free(s->whole);
        s->whole = NULL;
    }
    return DS_OK;
}

static ds_status fill(void *user, size_t offset, void *data, size_t bytes)
{
    dsi_gguf_source *s = user;
    float *out = data;
    int64_t first = (int64_t)(offset / sizeof(float));
    int64_t n = (int64_t)(bytes / sizeof(float));
    if (s->layout == DSI_GGUF_TRANSPOSED) {
        return read_transposed(s, first, n, out);
    }
    const int64_t row = s->tensor->shape.dims[s->tensor->shape.n_dims - 1];
    while (n > 0) {
        const int64_t at = first % row;
        const int64_t part = n < row - at ? n : row - at;
        DS_TRY(read_row(s, first / row, at, part, out));
        out += part;
        first += part;
        n -= part;
    }
    return DS_OK;
}

ds_status dsi_gguf_check_layout(ds_ctx *ctx, const dsi_gguf_source *s)
{
    const ds_shape shape = s->tensor->shape;
    const bool pairs =
        s->layout == DSI_GGUF_PAIRS && (shape.n_dims > 2 || shape.dims[0] % (2 * s->heads) != 0);
    if (pairs || (s->layout == DSI_GGUF_TRANSPOSED && shape.n_dims != 2)) {
        return ds_fail(ctx, DS_ERR_SHAPE, "%s: the tensor for %s has not the shape of its heads",
                       dsi_gguf_path(s->gguf), s->name);
    }
    return DS_OK;
}

/* Everything that one writing holds. */
typedef struct work {
    dsi_gguf *gguf;
    json_t *config;
    char *config_text;
    dsi_gguf_source *sources;
    float *row;
    ds_hf_export *out;
} work;

static ds_status add_tensors(ds_ctx *ctx, bool blocks_stay, work *w)
{
    const size_t n = dsi_gguf_n_tensors(w->gguf);
    int64_t longest = 1;
    w->sources = calloc(n + 1, sizeof *w->sources);
    for (size_t i = 0; i < n; ++i) {
        const ds_shape shape = dsi_gguf_tensor_at(w->gguf, i)->shape;
        const int64_t row = shape.dims[shape.n_dims - 1];
        longest = row > longest ? row : longest;
    }
    w->row = malloc((size_t)longest * sizeof *w->row);
    if (w->sources == NULL || w->row == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a model folder");
    }
    for (size_t i = 0; i < n; ++i) {
        const dsi_gguf_tensor *t = dsi_gguf_tensor_at(w->gguf, i);
        dsi_gguf_source *s = &w->sources[i];
        DS_TRY(dsi_gguf_place(ctx, w->gguf, t, s));
        if (s->name[0] == '\0') {
            continue;
        }
        s->row = w->row;
        DS_TRY(dsi_gguf_check_layout(ctx, s));
        ds_meta meta = {DS_DTYPE_F32, t->shape};
        if (s->layout == DSI_GGUF_TRANSPOSED) {
            meta.shape = ds_shape_2d(t->shape.dims[1], t->shape.dims[0]);
        }
        if (blocks_stay && dsi_gguf_stays(s)) {
            meta = (ds_meta){DS_DTYPE_I8, ds_shape_2d(t->shape.dims[0], 0)};
        }
        const ds_tensor_source source = {.name = s->name, .meta = meta, .fill = fill, .user = s};
        DS_TRY(ds_hf_export_add(w->out, &source));
    }
    return DS_OK;
}

static ds_status write_folder(ds_ctx *ctx, const ds_gguf_params *params, work *w)
{
    DS_TRY(dsi_gguf_open(ctx, params->file, &w->gguf));
    DS_TRY(dsi_gguf_config(ctx, w->gguf, &w->config));
    w->config_text = json_dumps(w->config, JSON_INDENT(2));
    if (w->config_text == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for config.json");
    }
    const ds_hf_export_params out = {.folder = params->folder,
                                     .config_json = w->config_text,
                                     .dtype = params->dtype != DS_DTYPE_NONE ? params->dtype
                                                                             : DS_DTYPE_BF16,
                                     .max_shard_bytes = params->max_shard_bytes};
    DS_TRY(ds_hf_export_begin(ctx, &out, &w->out));
    if (!params->no_tokenizer) {
        DS_TRY(dsi_gguf_tokenizer(ctx, w->gguf, ds_hf_export_folder(w->out)));
    }
    DS_TRY(add_tensors(ctx, params->blocks_stay, w));
    return ds_hf_export_finish(&w->out);
}

ds_status ds_gguf_to_folder(ds_ctx *ctx, const ds_gguf_params *params)
{
    work w = {0};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_gguf_params", params));
    const ds_status status = write_folder(ctx, params, &w);
    ds_hf_export_abort(&w.out);
    for (size_t i = 0; w.sources != NULL && i < dsi_gguf_n_tensors(w.gguf); ++i) {
        free(w.sources[i].whole);
    }
    free(w.sources);
    free(w.row);
    free(w.config_text);
    json_decref(w.config);
    dsi_gguf_close(&w.gguf);
    return status;
}
