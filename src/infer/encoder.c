/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders at work: a plan for each of a few lengths over the generator's cells and weights. See
 * deepspeed/encoder.h. Tokens behind a document's last are a document of their own. */
#include <deepspeed/encoder.h>

#include "base/reserved.h"
#include "infer/generator.h"
#include "infer/pooling.h"

#include <stdlib.h>
#include <string.h>

struct ds_encoder {
    ds_generator *g;
    ds_tensor rows; /* of the newest run; data NULL before */
    double *pooled; /* [hidden size or classes] */
};

static ds_status check(ds_ctx *ctx, const ds_encoder_params *params)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_encoder_params", params));
    if (params->model == NULL || params->weights == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "ds_encoder_params: expected a model with weights");
    }
    const ds_model_info *info = ds_model_get_info(params->model);
    return info->encoder
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG, "%s is no encoder; see ds_generator", info->architecture);
}

static const char *output_of(const ds_encoder *e)
{
    return e->g->task.task == DS_TASK_HIDDEN ? "hidden" : "logits";
}

static int64_t width_of(const ds_encoder *e)
{
    ds_tensor rows;
    return dsi_exec_output(e->g->exec, e->g->pieces[0].id, output_of(e), &rows) < 0
               ? 0
               : ds_shape_last(rows.meta.shape);
}

ds_status ds_encoder_create(ds_ctx *ctx, const ds_encoder_params *params, ds_encoder **encoder_out)
{
    DS_TRY(check(ctx, params));
    const ds_generator_params own = {.model = params->model,
                                     .weights = params->weights,
                                     .dtype = params->dtype,
                                     .max_length = params->max_length,
                                     .accelerator = params->accelerator,
                                     .adapter = params->adapter};
    static const ds_task_params with_types = {.token_types = 1};
    const bool typed = ds_model_get_info(params->model)->token_types > 1;
    const dsi_encoder_task task = {.task = params->task,
                                   .n_classes = params->n_classes,
                                   .task_params = typed ? &with_types : NULL};
    ds_encoder *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an encoder");
    }
    const ds_status status = dsi_encoder_create(ctx, &own, &task, &e->g);
    e->pooled = status < 0 ? NULL : malloc((size_t)width_of(e) * sizeof *e->pooled);
    if (e->pooled == NULL) {
        ds_encoder_destroy(&e);
        return status < 0 ? status : ds_fail(ctx, DS_ERR_NOMEM, "no memory for an encoder");
    }
    *encoder_out = e;
    return DS_OK;
}

void ds_encoder_destroy(ds_encoder **encoder)
{
    if (encoder != NULL && *encoder != NULL) {
        ds_generator_destroy(&(*encoder)->g);
        free((*encoder)->pooled);
        free(*encoder);
        *encoder = NULL;
    }
}

int64_t ds_encoder_max_length(const ds_encoder *encoder)
{
    return encoder->g->max_length;
}

int64_t ds_encoder_width(const ds_encoder *encoder)
{
    return width_of(encoder);
}

static ds_status write_ints(ds_generator *g, ds_cell cell, const int32_t *data, int64_t n)
{
    return dsi_exec_write(g->exec, cell, 0, data, (size_t)n * sizeof *data);
}

/* The shortest piece that holds n tokens. */
static const dsi_piece *piece_of(const ds_generator *g, int64_t n)
{
    uint32_t i = 0;
    while (i + 1 < g->n_pieces && g->pieces[i].length < n) {
        ++i;
    }
    return &g->pieces[i];
}

static ds_status check_ids(const ds_generator *g, const uint32_t *ids, size_t n)
{
    if (n < 1 || n > (size_t)g->max_length) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "%zu tokens; 1 to %lld are possible", n,
                       (long long)g->max_length);
    }
    for (size_t i = 0; i < n; ++i) {
        if ((int64_t)ids[i] >= g->vocab_size) {
            return ds_fail(g->ctx, DS_ERR_ARG, "token %u is outside of the vocabulary of %lld",
                           ids[i], (long long)g->vocab_size);
        }
    }
    return DS_OK;
}

/* Types of n tokens, NULL: all the first. */
static ds_status write_types(ds_generator *g, const dsi_piece *piece, const uint8_t *types,
                             int64_t n)
{
    const int64_t n_types = ds_model_get_info(g->model)->token_types;
    for (int64_t i = 0; i < piece->length; ++i) {
        g->ids[i] = types != NULL && i < n && n_types > 1 ? types[i] : 0;
        if (g->ids[i] >= n_types && g->ids[i] > 0) {
            return ds_fail(g->ctx, DS_ERR_ARG,
                           "token %lld is of type %d; the model has %lld types (type_vocab_size)",
                           (long long)i, g->ids[i], (long long)n_types);
        }
    }
    return piece->types != DS_NONE ? write_ints(g, piece->types, g->ids, piece->length) : DS_OK;
}

/* Inputs of n tokens in a piece: ids, then positions, then where documents begin. */
static ds_status write_inputs(ds_generator *g, const dsi_piece *piece, const uint32_t *ids,
                              const uint8_t *types, int64_t n)
{
    const int64_t length = piece->length;
    DS_TRY(write_types(g, piece, types, n));
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = i < n ? (int32_t)ids[i] : 0;
    }
    DS_TRY(write_ints(g, piece->input_ids, g->ids, length));
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = (int32_t)(i < n ? i : i - n);
    }
    DS_TRY(write_ints(g, piece->positions, g->ids, length));
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = i < n ? 0 : (int32_t)n;
    }
    return write_ints(g, piece->first, g->ids, length);
}

ds_status ds_encoder_run(ds_encoder *encoder, const uint32_t *ids, size_t n, ds_tensor *rows_out)
{
    return ds_encoder_run_typed(encoder, ids, NULL, n, rows_out);
}

ds_status ds_encoder_run_typed(ds_encoder *encoder, const uint32_t *ids, const uint8_t *types,
                               size_t n, ds_tensor *rows_out)
{
    ds_generator *g = encoder->g;
    encoder->rows.data = NULL;
    DS_TRY(check_ids(g, ids, n));
    const dsi_piece *piece = piece_of(g, (int64_t)n);
    ds_tensor all;
    DS_TRY(write_inputs(g, piece, ids, types, (int64_t)n));
    DS_TRY(dsi_exec_run(g->exec, piece->id, DS_PHASE_FORWARD));
    DS_TRY(dsi_exec_output(g->exec, piece->id, output_of(encoder), &all));
    all.meta.shape = ds_shape_2d((int64_t)n, ds_shape_last(all.meta.shape));
    encoder->rows = all;
    *rows_out = all;
    return DS_OK;
}

ds_status ds_encoder_pool(const ds_encoder *encoder, ds_pool pool, float *out)
{
    const float *rows = encoder->rows.data;
    if (rows == NULL) {
        return ds_fail(encoder->g->ctx, DS_ERR_STATE, "ds_encoder_pool: nothing was run");
    }
    const int64_t n = encoder->rows.meta.shape.dims[0];
    const int64_t width = encoder->rows.meta.shape.dims[1];
    for (int64_t i = 0; i < n; ++i) {
        dsi_pool_add(pool, encoder->pooled, width, i, rows + i * width);
    }
    dsi_pool_end(pool, encoder->pooled, width, n, out);
    return DS_OK;
}
