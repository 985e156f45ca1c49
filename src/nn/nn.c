/* SPDX-License-Identifier: Apache-2.0 */
/* The tracer: scopes, parameters, inputs, outputs, errors. Layers are in nn_layers.c.
 *
 * Invariant: after an error `status` is negative and every function returns DS_NONE untouched.
 */
#include "nn/nn.h"

#include "base/blocks.h"
#include "base/reserved.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ds_status ds_nn_create(ds_graph *graph, const ds_trace *trace, ds_nn **nn_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ds_graph_ctx(graph), "ds_trace", trace));
    ds_nn *nn = calloc(1, sizeof *nn);
    if (nn == NULL) {
        return ds_fail(ds_graph_ctx(graph), DS_ERR_NOMEM, "no memory for a tracer");
    }
    nn->graph = graph;
    nn->trace = *trace;
    nn->rng = DS_NONE;
    *nn_out = nn;
    return DS_OK;
}

void ds_nn_destroy(ds_nn **nn)
{
    if (nn != NULL) {
        free(*nn);
        *nn = NULL;
    }
}

ds_status ds_nn_status(const ds_nn *nn)
{
    return nn->status;
}

const ds_trace *ds_nn_trace(const ds_nn *nn)
{
    return &nn->trace;
}

ds_graph *ds_nn_graph(const ds_nn *nn)
{
    return nn->graph;
}

void ds_nn_fail(ds_nn *nn, ds_status status, const char *format, ...)
{
    char message[512];
    if (nn->status < 0) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    nn->status = ds_fail(ds_graph_ctx(nn->graph), status, "%s%s%s", nn->scope,
                         nn->scope[0] != '\0' ? ": " : "", message);
}

bool dsi_nn_ok(ds_nn *nn, ds_status status)
{
    if (nn->status >= 0 && status < 0) {
        nn->status = status;
    }
    return nn->status >= 0;
}

void ds_nn_push(ds_nn *nn, const char *format, ...)
{
    if (nn->depth == DSI_NN_MAX_DEPTH) {
        ds_nn_fail(nn, DS_ERR_LIMIT, "more than %d scopes inside each other", DSI_NN_MAX_DEPTH);
        return;
    }
    char part[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(part, sizeof part, format, args);
    va_end(args);
    const size_t at = strlen(nn->scope);
    nn->scope_length[nn->depth++] = at;
    const int length =
        snprintf(nn->scope + at, sizeof nn->scope - at, "%s%s", at > 0 ? "." : "", part);
    if (length < 0 || (size_t)length >= sizeof nn->scope - at) {
        ds_nn_fail(nn, DS_ERR_LIMIT, "a scope's path is longer than %zu bytes",
                   sizeof nn->scope - 1);
    }
    if (nn->status >= 0) {
        (void)dsi_nn_ok(nn, ds_graph_set_scope(nn->graph, nn->scope));
    }
}

void ds_nn_pop(ds_nn *nn)
{
    if (nn->depth == 0) {
        ds_nn_fail(nn, DS_ERR_STATE, "scope popped without push");
        return;
    }
    nn->scope[nn->scope_length[--nn->depth]] = '\0';
    if (nn->status >= 0) {
        (void)dsi_nn_ok(nn, ds_graph_set_scope(nn->graph, nn->scope));
    }
}

void ds_nn_region_begin(ds_nn *nn)
{
    if (nn->whole_batch > 0) { /* a mini-batch is one region */
        return;
    }
    if (nn->in_region) {
        ds_nn_fail(nn, DS_ERR_STATE, "a region begins inside a region");
        return;
    }
    nn->in_region = true;
    ds_graph_set_region(nn->graph, ++nn->n_regions);
}

void ds_nn_region_end(ds_nn *nn)
{
    if (nn->whole_batch > 0) {
        return;
    }
    if (!nn->in_region) {
        ds_nn_fail(nn, DS_ERR_STATE, "a region ends that did not begin");
        return;
    }
    nn->in_region = false;
    ds_graph_set_region(nn->graph, 0);
}

bool dsi_is_dense(const char *parameter)
{
    return strncmp(parameter, DSI_DENSE_SCOPE, sizeof DSI_DENSE_SCOPE - 1) == 0;
}

bool dsi_nn_is_teacher(const ds_cell_info *cell)
{
    return cell->kind == DS_CELL_PARAM && cell->frozen &&
           strncmp(cell->name, DSI_NN_TEACHER, DSI_NN_TEACHER_BYTES) == 0;
}

static ds_value cell_of(ds_nn *nn, const ds_cell_info *info);

/* The cell (kind, path), made when absent; its value. */
ds_value dsi_nn_cell(ds_nn *nn, const ds_cell_info *info)
{
    char path[DSI_NN_PATH_BYTES + DSI_NN_TEACHER_BYTES];
    if (!nn->teaches || info->kind != DS_CELL_PARAM) {
        return cell_of(nn, info);
    }
    ds_cell_info own = *info;
    (void)snprintf(path, sizeof path, "%s%s", DSI_NN_TEACHER, info->name);
    own.name = path;
    own.frozen = true;
    return cell_of(nn, &own);
}

static ds_value cell_of(ds_nn *nn, const ds_cell_info *info)
{
    ds_cells *cells = ds_graph_cells(nn->graph);
    ds_cell cell = ds_cells_find(cells, info->kind, info->name);
    ds_value value = DS_NONE;
    if (nn->status < 0) {
        return DS_NONE;
    }
    if (cell != DS_NONE) {
        const ds_meta old = ds_cells_get(cells, cell)->meta;
        if (old.dtype != info->meta.dtype || !ds_shape_equal(old.shape, info->meta.shape)) {
            char a[160];
            char b[160];
            ds_nn_fail(nn, DS_ERR_SHAPE, "%s is used as %s, but it is %s", info->name,
                       ds_meta_text(info->meta, a, sizeof a), ds_meta_text(old, b, sizeof b));
            return DS_NONE;
        }
    } else if (!dsi_nn_ok(nn, ds_cells_add(cells, info, &cell))) {
        return DS_NONE;
    }
    return dsi_nn_ok(nn, ds_graph_read(nn->graph, cell, &value)) ? value : DS_NONE;
}

ds_value ds_nn_param_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init, bool no_decay)
{
    const ds_cell_info info = {.name = path,
                               .kind = DS_CELL_PARAM,
                               .meta = {nn->trace.dtype, shape},
                               .init = init,
                               .of = DS_NONE,
                               .no_decay = no_decay};
    return dsi_nn_cell(nn, &info);
}

void dsi_nn_path(ds_nn *nn, const char *name, char *path, size_t n)
{
    const int length =
        snprintf(path, n, "%s%s%s", nn->scope, nn->scope[0] != '\0' ? "." : "", name);
    if (length < 0 || (size_t)length >= n) {
        ds_nn_fail(nn, DS_ERR_LIMIT, "a parameter's path is longer than %zu bytes", n - 1);
    }
}

/* The type of blocks of a matrix; NONE: it has none. */
static ds_dtype blocks_of(const ds_trace *t, const char *path, ds_shape shape, bool is_table)
{
    const int64_t k = ds_shape_last(shape);
    if (t->types != NULL) {
        const ds_dtype dtype = t->types->of(t->types->user, path, shape);
        return dsi_is_blocks(dtype) && k % dsi_block_length(dtype) == 0 ? dtype : DS_DTYPE_NONE;
    }
    return t->weights == DS_DTYPE_NONE
               ? DS_DTYPE_NONE
               : dsi_blocks_fitting(is_table ? DS_DTYPE_Q8_0 : t->weights, k);
}

static ds_value matrix_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init, bool is_table)
{
    const ds_dtype blocks = blocks_of(&nn->trace, path, shape, is_table);
    const ds_cell_info info = {.name = path,
                               .kind = DS_CELL_PARAM,
                               .meta = {blocks != DS_DTYPE_NONE ? blocks : nn->trace.dtype, shape},
                               .init = init,
                               .of = DS_NONE};
    return dsi_nn_cell(nn, &info);
}

ds_value dsi_nn_matrix_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init)
{
    return matrix_at(nn, path, shape, init, false);
}

ds_value ds_nn_table_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init, bool of_head)
{
    return of_head ? matrix_at(nn, path, shape, init, true)
                   : ds_nn_param_at(nn, path, shape, init, false);
}

ds_value ds_nn_param(ds_nn *nn, const char *name, ds_shape shape, ds_init init, bool no_decay)
{
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, name, path, sizeof path);
    return ds_nn_param_at(nn, path, shape, init, no_decay);
}

ds_value dsi_nn_whole_input(ds_nn *nn, const char *name, ds_dtype dtype, ds_shape shape)
{
    static const char *const prefix[] = {"train", "eval"};
    char path[DSI_NN_PATH_BYTES];
    if (nn->trace.mode == DS_TRACE_GENERATE && nn->trace.paged != NULL) {
        (void)snprintf(path, sizeof path, "%s.%lld.%lld/%.900s",
                       nn->trace.task == DS_TASK_HIDDEN ? "embed" : "serve",
                       (long long)nn->trace.seq_length, (long long)nn->trace.paged->rows, name);
    } else if (nn->trace.mode == DS_TRACE_GENERATE) {
        (void)snprintf(path, sizeof path, "generate.%lld/%.900s", (long long)nn->trace.seq_length,
                       name);
    } else {
        (void)snprintf(path, sizeof path, "%s/%.900s", prefix[nn->trace.mode], name);
    }
    const ds_cell_info info = {
        .name = path, .kind = DS_CELL_INPUT, .meta = {dtype, shape}, .of = DS_NONE};
    return dsi_nn_cell(nn, &info);
}

ds_value ds_nn_input(ds_nn *nn, const char *name, ds_dtype dtype, ds_shape shape)
{
    if (nn->whole_batch == 0) {
        return dsi_nn_whole_input(nn, name, dtype, shape);
    }
    if (shape.n_dims == 0 || shape.dims[0] != nn->trace.batch) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "mini-batches of a model with the input %s, which has no dim of rows, are not "
                   "built: set mini_batch to 0",
                   name);
        return DS_NONE;
    }
    shape.dims[0] = nn->whole_batch;
    return ds_nn_slice(nn, dsi_nn_whole_input(nn, name, dtype, shape), 0, nn->mini_begin,
                       nn->trace.batch);
}

void ds_nn_output(ds_nn *nn, const char *name, ds_value value)
{
    if (nn->status >= 0 && value != DS_NONE) {
        (void)dsi_nn_ok(nn, ds_graph_output(nn->graph, name, value));
    }
}

ds_meta ds_nn_meta(const ds_nn *nn, ds_value value)
{
    return value == DS_NONE ? (ds_meta){0} : ds_graph_meta(nn->graph, value);
}

void dsi_nn_apply_all(ds_nn *nn, const ds_op *op, const void *attrs, const ds_value *in,
                      uint32_t n_in, ds_value *out)
{
    for (uint32_t i = 0; i < DS_MAX_OUT; ++i) {
        out[i] = DS_NONE;
    }
    if (nn->status >= 0) {
        (void)dsi_nn_ok(nn, ds_graph_apply(nn->graph, op, attrs, in, n_in, out));
    }
}

ds_value ds_nn_apply(ds_nn *nn, const ds_op *op, const void *attrs, const ds_value *in,
                     uint32_t n_in)
{
    ds_value out[DS_MAX_OUT];
    dsi_nn_apply_all(nn, op, attrs, in, n_in, out);
    return nn->status >= 0 ? out[0] : DS_NONE;
}
