/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller of an engine brings with a call: batches, gradients of outputs, the random state.
 * Actions of the engine's programs (engine_program.c). */
#include "op/sequence_order.h"
#include "train/engine_actions.h"
#include "train/engine_pipe.h"
#include "train/half_copy.h"
#include "train/run_trace.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256 };

/* This rank's part of the sequences: in halves two pieces of each, in chunks one a chunk
 * (op/sequence_order.h). */
static ds_status write_part(ds_engine *engine, ds_cell cell, ds_meta meta, const void *data)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const dsi_place_on on = engine->places[cell].at.on[DSI_AXIS_SP];
    const bool halves = engine->spec.train.sequence_form == DS_SEQUENCE_RING_HALVES;
    const dsi_chunks chunks = dsi_rank_chunks(&engine->spec);
    const int64_t chunk = chunks.chunk > 0 ? dsi_chunks_length(&chunks) : 0;
    if (!(halves || chunk > 0) || on.kind != DSI_SHARD || on.dim != 1) {
        return dsi_engine_put_cell(engine, cell, 0, ds_shape_count(meta.shape), data, meta.dtype);
    }
    const int64_t n_parts = mesh->size[DSI_AXIS_SP];
    const int64_t part = dsi_mesh_coords(mesh, ds_comm_rank(engine->comm)).at[DSI_AXIS_SP];
    const int64_t length = meta.shape.dims[1];
    const int64_t n_rows = meta.shape.dims[0];
    const int64_t width = n_rows > 0 ? ds_shape_count(meta.shape) / (n_rows * length) : 0;
    const size_t each = (size_t)width * ds_dtype_bytes(meta.dtype);
    const int64_t n_runs = chunk > 0 ? dsi_chunks_count(&chunks) : DSI_SEQUENCE_RUNS;
    for (int64_t b = 0; b < n_rows; ++b) {
        for (int64_t r = 0; r < n_runs; ++r) {
            const dsi_sequence_run run =
                chunk > 0 ? dsi_sequence_chunk_run(length, chunk, n_parts, part, r)
                          : dsi_sequence_run_of(length, n_parts, true, part, (int)r);
            const int64_t to = b * length + part * (length / n_parts) + run.at;
            const char *from = (const char *)data + (size_t)(b * length + run.from) * each;
            DS_TRY(dsi_engine_put_cell(engine, cell, to * width, run.n * width, from, meta.dtype));
        }
    }
    return DS_OK;
}

/* Whether a row's positive is looked for among the rows of all data-parallel ranks. */
static bool has_gathered_rows(const ds_engine *engine)
{
    const dsi_train_spec *spec = &engine->spec.train;
    return spec->task == DS_TASK_CONTRAST &&
           spec->task_params.contrast.gather_across_devices != 0 &&
           dsi_mesh_data_size(&engine->spec.zero.mesh) > 1;
}

/* Labels, which are rows of this rank, as rows of all: behind those of the ranks before it. */
static ds_status write_gathered_labels(ds_engine *engine, ds_cell cell,
                                       const ds_named_tensor *named)
{
    enum { PIECE = 1024 };
    int32_t moved[PIECE];
    const int32_t *labels = named->tensor.data;
    const int64_t count = ds_shape_count(named->tensor.meta.shape);
    const int64_t rows = dsi_train_rows(&engine->spec.train) - count; /* that are no anchors */
    const int64_t first =
        rows * dsi_mesh_data_rank(&engine->spec.zero.mesh, ds_comm_rank(engine->comm));
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = count - at < PIECE ? count - at : PIECE;
        for (int64_t i = 0; i < n; ++i) {
            const int32_t label = labels[at + i];
            if (label >= rows || first + rows > INT32_MAX) {
                return ds_fail(engine->ctx, DS_ERR_ARG,
                               "input labels: %d of anchor %lld, expected a row of this rank below "
                               "%lld, or -100",
                               (int)label, (long long)(at + i), (long long)rows);
            }
            moved[i] = label < 0 ? label : (int32_t)(first + label);
        }
        DS_TRY(dsi_exec_write(engine->exec, cell, (size_t)at * sizeof *moved, moved,
                              (size_t)n * sizeof *moved));
    }
    return DS_OK;
}

/* Copies one tensor into the input cell PREFIX/NAME. */
static ds_status write_input(ds_engine *engine, const char *prefix, const ds_named_tensor *named)
{
    char path[NAME_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", prefix, named->name);
    const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_INPUT, path);
    if (cell == DS_NONE) {
        return ds_fail(engine->ctx, DS_ERR_ARG, "the model has no %s input named %s", prefix,
                       named->name);
    }
    const ds_meta want = ds_cells_get(engine->cells, cell)->meta;
    const ds_meta got = named->tensor.meta;
    if (got.dtype != want.dtype || !ds_shape_equal(got.shape, want.shape) ||
        named->tensor.data == NULL) {
        char a[160];
        char b[160];
        return ds_fail(engine->ctx, DS_ERR_SHAPE, "input %s: expected %s, got %s", named->name,
                       ds_meta_text(want, a, sizeof a), ds_meta_text(got, b, sizeof b));
    }
    if (has_gathered_rows(engine) && strcmp(named->name, "labels") == 0) {
        return write_gathered_labels(engine, cell, named);
    }
    if (dsi_engine_is_cut(engine, cell)) {
        return write_part(engine, cell, want, named->tensor.data);
    }
    return dsi_exec_write(engine->exec, cell, 0, named->tensor.data, ds_meta_bytes(want));
}

/* Every input of the prefix is in the batch, the random state apart. */
static ds_status check_complete(const ds_engine *engine, const char *prefix, const ds_batch *batch)
{
    const size_t n = strlen(prefix);
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind != DS_CELL_INPUT || strncmp(cell->name, prefix, n) != 0 ||
            cell->name[n] != '/' || strcmp(cell->name + n, "/rng") == 0) {
            continue;
        }
        bool found = false;
        for (uint32_t i = 0; i < batch->n_tensors && !found; ++i) {
            found = strcmp(batch->tensors[i].name, cell->name + n + 1) == 0;
        }
        if (!found) {
            const bool labels = strcmp(cell->name + n, "/labels") == 0;
            return ds_fail(engine->ctx, DS_ERR_ARG, "the batch lacks the input %s%s",
                           cell->name + n + 1,
                           labels ? ": an encoder learns what the token at each position is, not "
                                    "the next one as `targets` say"
                                  : "");
        }
    }
    return DS_OK;
}

static ds_status write_batch(ds_engine *engine, const char *prefix, const ds_batch *batch)
{
    DS_TRY(check_complete(engine, prefix, batch));
    for (uint32_t i = 0; i < batch->n_tensors; ++i) {
        DS_TRY(write_input(engine, prefix, &batch->tensors[i]));
    }
    return DS_OK;
}

/* {seed, step, first global sample of the micro-batch, 0}. */
static ds_status write_rng(ds_engine *engine)
{
    const int64_t batch = engine->spec.train.batch;
    const int64_t micro = engine->pipe != NULL ? engine->pipe->fed : engine->micro_step;
    const int64_t first =
        dsi_mesh_first_sample(&engine->spec.zero.mesh, ds_comm_rank(engine->comm), micro, batch);
    const int64_t sample = (int64_t)engine->global_samples + first;
    const int64_t rng[] = {(int64_t)engine->spec.seed, (int64_t)engine->global_steps, sample};
    const ds_cell cell = engine->rng[0];
    return cell != DS_NONE ? dsi_exec_write(engine->exec, cell, 0, rng, sizeof rng) : DS_OK;
}

static ds_status load_batch(void *user)
{
    ds_engine *engine = user;
    const double begin = dsi_run_trace_begin(engine);
    DS_TRY(write_batch(engine, "train", engine->call.batch));
    DS_TRY(write_rng(engine));
    dsi_run_trace_end(engine, DSI_HOST_BATCH, begin);
    return DS_OK;
}
const dsi_program_action dsi_engine_load_batch = {"load_batch", load_batch};

static ds_status load_eval_batch(void *user)
{
    ds_engine *engine = user;
    return write_batch(engine, "eval", engine->call.batch);
}
const dsi_program_action dsi_engine_load_eval_batch = {"load_batch", load_eval_batch};

/* Gives a gradient of an output to the backward phase, with the loss scale on it. */
static ds_status write_gradient(ds_engine *engine, const ds_named_tensor *gradient)
{
    enum { PIECE = 4096 };
    uint64_t room[PIECE / sizeof(uint64_t)];
    char path[NAME_BYTES];
    DS_TRY(write_input(engine, "gradient", gradient));
    (void)snprintf(path, sizeof path, "gradient/%s", gradient->name);
    const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_INPUT, path);
    const ds_dtype dtype = gradient->tensor.meta.dtype;
    const size_t size = ds_dtype_bytes(dtype);
    const size_t count = (size_t)ds_shape_count(gradient->tensor.meta.shape);
    const float scale = (float)engine->spec.loss_scale.scale;
    const unsigned char *data = gradient->tensor.data;
    void *view = dsi_exec_host_view(engine->exec, cell);
    if (view != NULL) {
        dsi_half_copy(engine->ctx, view, dtype, data, dtype, count, scale);
        return DS_OK;
    }
    for (size_t at = 0; at < count; at += PIECE / size) {
        const size_t n = count - at < PIECE / size ? count - at : PIECE / size;
        dsi_half_copy(engine->ctx, room, dtype, data + at * size, dtype, n, scale);
        DS_TRY(dsi_exec_write(engine->exec, cell, at * size, room, n * size));
    }
    return DS_OK;
}

static ds_status load_gradients(void *user)
{
    ds_engine *engine = user;
    for (uint32_t i = 0; i < engine->spec.train.n_gradient_outputs; ++i) {
        char path[NAME_BYTES];
        (void)snprintf(path, sizeof path, "gradient/%s", engine->spec.train.gradient_outputs[i]);
        const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_INPUT, path);
        DS_TRY(dsi_exec_clear(engine->exec, cell));
    }
    for (uint32_t i = 0; i < engine->call.n_gradients; ++i) {
        DS_TRY(write_gradient(engine, &engine->call.gradients[i]));
    }
    return DS_OK;
}
const dsi_program_action dsi_engine_load_gradients = {"load_gradients", load_gradients};
