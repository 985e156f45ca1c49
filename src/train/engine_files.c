/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of an engine. What is saved: master weights (or parameters that have none), moments,
 * and the states that the host holds; gradients never, so a save is possible at a step boundary
 * only. */
#include "base/buf.h"
#include "base/clock.h"
#include "ckpt/checkpoint_on.h"
#include "ckpt/ckpt_pool.h"
#include "io/json_load.h"
#include "train/engine.h"
#include "train/host_state.h"

#include <deepspeed/checkpoint.h>
#include <stdlib.h>
#include <string.h>

static const char *optimizer_name(const ds_engine *engine)
{
    static const char *const names[DS_OPTIMIZER_KIND_COUNT] = {
        [DS_OPTIMIZER_ADAM] = "adam",
        [DS_OPTIMIZER_SGD] = "sgd",
        [DS_OPTIMIZER_LION] = "lion",
        [DS_OPTIMIZER_ADAGRAD] = "adagrad",
        [DS_OPTIMIZER_LAMB] = "lamb",
        [DS_OPTIMIZER_ONEBIT_ADAM] = "onebitadam",
        [DS_OPTIMIZER_ONEBIT_LAMB] = "onebitlamb",
        [DS_OPTIMIZER_ZERO_ONE_ADAM] = "zerooneadam",
        [DS_OPTIMIZER_MUON] = "muon",
        [DS_OPTIMIZER_ADAFACTOR] = "adafactor",
        [DS_OPTIMIZER_SCHEDULE_FREE] = "schedulefree",
        [DS_OPTIMIZER_ADAMW_8BIT] = "adamw8bit",
        [DS_OPTIMIZER_ADEMAMIX] = "ademamix",
    };
    const dsi_train_spec *t = &engine->spec.train;
    return t->ademamix.on && t->adam_8bit.on ? "ademamix8bit" : names[t->optimizer];
}

/* Whether a cell goes into a checkpoint. A parameter with a master is its rounding, unless the
 * update that made the master is taken later (ZenFlow's overlap). */
static bool is_saved(const ds_engine *engine, const ds_cell_info *cell)
{
    switch (cell->kind) {
    case DS_CELL_PARAM:
        if (dsi_engine_is_base(engine, cell)) {
            return false;
        }
        return ds_cells_find(engine->cells, DS_CELL_MASTER, cell->name) == DS_NONE ||
               ds_cells_find(engine->cells, DS_CELL_HANDED, cell->name) != DS_NONE;
    case DS_CELL_MASTER:
    case DS_CELL_EXP_AVG:
    case DS_CELL_EXP_AVG_SQ:
    case DS_CELL_MOMENTUM:
    case DS_CELL_WAITING:
    case DS_CELL_CHOSEN:
    case DS_CELL_MASK:
    case DS_CELL_FROZEN:
    case DS_CELL_EXP_AVG_SQ_ROW:
    case DS_CELL_EXP_AVG_SQ_COL:
    case DS_CELL_Z:
    case DS_CELL_ABSMAX:
    case DS_CELL_ABSMAX_SQ:
    case DS_CELL_ABSMAX_SLOW:
    case DS_CELL_EXP_AVG_SLOW:
        return true;
    case DS_CELL_WORKER_ERROR: /* zero before */
    case DS_CELL_SERVER_ERROR:
    case DS_CELL_LOCAL:
        return dsi_onebit_saves(engine, cell->kind);
    default:
        return false;
    }
}

/* A slice of a cell that does not live in memory, or not side by side there, for the writer. */
typedef struct swapped_cell {
    const ds_engine *engine;
    ds_cell cell;
    size_t begin;     /* byte of the cell */
    bool in_blocks;   /* its elements are not side by side: */
    ds_extent extent; /* these */
} swapped_cell;

typedef struct block_read {
    const swapped_cell *s;
    size_t size; /* bytes of an element */
    unsigned char *data;
} block_read;

static ds_status read_run(void *user, int64_t in_cell, int64_t in_data, int64_t n)
{
    const block_read *b = user;
    return dsi_exec_read(b->s->engine->exec, b->s->cell, (size_t)in_cell * b->size,
                         b->data + (size_t)in_data * b->size, (size_t)n * b->size);
}

static ds_status fill_blocks(const swapped_cell *s, size_t offset, void *data, size_t n)
{
    const ds_meta meta = ds_cells_get(s->engine->cells, s->cell)->meta;
    const dsi_part own = dsi_engine_part(s->engine, s->cell);
    block_read b = {s, ds_dtype_bytes(meta.dtype), data};
    dsi_part some = dsi_part_of_extent(&s->extent, meta.shape);
    if (offset % b.size != 0 || n % b.size != 0) {
        return ds_fail(s->engine->ctx, DS_ERR_INTERNAL,
                       "a checkpoint asks for %zu bytes from %zu of elements of %zu", n, offset,
                       b.size);
    }
    some.flat = true;
    some.begin = (int64_t)(offset / b.size);
    some.count = some.slots = (int64_t)(n / b.size);
    return dsi_part_visit(&own, &some, read_run, &b);
}

static ds_status fill_swapped(void *user, size_t offset, void *data, size_t n)
{
    const swapped_cell *s = user;
    if (s->in_blocks) {
        return fill_blocks(s, offset, data, n);
    }
    return dsi_exec_read(s->engine->exec, s->cell, s->begin + offset, data, n);
}

/* extent NULL: all of it, which every rank has. meta: of the whole tensor. kind NULL: the cell's.
 */
static ds_status add_slice(ds_engine *engine, ds_checkpoint_writer *writer, const char *kind,
                           ds_meta meta, const ds_extent *extent, swapped_cell *swapped)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, swapped->cell);
    const unsigned char *view = dsi_exec_host_view(engine->exec, swapped->cell);
    const ds_checkpoint_slice slice = {
        .kind = kind != NULL ? kind : ds_cell_kind_name(cell->kind),
        .name = cell->name,
        .meta = meta,
        .extent = extent,
        .replicated = extent == NULL,
        .data = view != NULL && !swapped->in_blocks ? view + swapped->begin : NULL,
        .fill = fill_swapped,
        .user = swapped};
    return ds_checkpoint_writer_add(writer, &slice);
}

/* What is this rank's own, as its row of a tensor. */
static ds_status add_row(ds_engine *engine, ds_checkpoint_writer *writer, ds_cell c,
                         swapped_cell *swapped)
{
    ds_extent extent;
    const ds_meta rows = dsi_engine_own_meta(engine, c, &extent);
    return add_slice(engine, writer, dsi_engine_own_kind(engine, c), rows, &extent, swapped);
}

/* What is sharded is written by its owners, of those with the same by the first; what all ranks
 * hold, by all together. swapped: DSI_PART_MOST_EXTENTS of them. */
static ds_status add_tensor(ds_engine *engine, ds_checkpoint_writer *writer, ds_cell c,
                            swapped_cell *swapped)
{
    const ds_meta meta = ds_cells_get(engine->cells, c)->meta;
    const dsi_part own = dsi_engine_part(engine, c);
    ds_extent extents[DSI_PART_MOST_EXTENTS] = {ds_extent_flat(0, 0)};
    uint32_t n = 0;
    size_t begin = 0;
    swapped[0] = (swapped_cell){.engine = engine, .cell = c};
    if (dsi_engine_is_own(engine, c)) {
        return add_row(engine, writer, c, &swapped[0]);
    }
    if (dsi_engine_is_apart(engine, c)) { /* whoever looks for one tensor finds the first rank's */
        swapped[1] = swapped[0];
        extents[0] = ds_extent_flat(0, dsi_engine_is_first(engine, c) ? own.count : 0);
        DS_TRY(add_slice(engine, writer, NULL, meta, &extents[0], &swapped[0]));
        return add_row(engine, writer, c, &swapped[1]);
    }
    if (!dsi_engine_is_cut(engine, c)) {
        return add_slice(engine, writer, NULL, meta, NULL, &swapped[0]);
    }
    if (dsi_engine_is_first(engine, c)) {
        n = dsi_part_extents(&own, meta.shape, extents);
    }
    for (uint32_t i = 0; i < n || i == 0; ++i) { /* an empty one where there is none */
        swapped[i] = (swapped_cell){engine, c, begin, own.blocks > 0, extents[i]};
        DS_TRY(add_slice(engine, writer, NULL, meta, &extents[i], &swapped[i]));
        begin += (size_t)ds_extent_count(&extents[i], meta.shape) * ds_dtype_bytes(meta.dtype);
    }
    return DS_OK;
}

ds_status dsi_engine_add_tensors(ds_engine *engine, ds_checkpoint_writer *writer, void **keep_out)
{
    const uint32_t n = ds_cells_count(engine->cells);
    swapped_cell *swapped = calloc((size_t)n + 1, DSI_PART_MOST_EXTENTS * sizeof *swapped);
    ds_status status = DS_OK;
    if (swapped == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a checkpoint");
    }
    for (ds_cell c = 0; c < n && status >= 0; ++c) {
        if (is_saved(engine, ds_cells_get(engine->cells, c))) {
            status = add_tensor(engine, writer, c, &swapped[(size_t)c * DSI_PART_MOST_EXTENTS]);
        }
    }
    *keep_out = swapped;
    return status;
}

static ds_status add_model_state(ds_engine *engine, ds_checkpoint_writer *writer)
{
    const char *text = ds_model_config_text(engine->model);
    char *wide = dsi_json_widen(text, strlen(text));
    if (wide == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to save the model's config.json");
    }
    const ds_status status = ds_checkpoint_writer_state(writer, "model", wide);
    free(wide);
    return status;
}

ds_status dsi_engine_set_embeddings(ds_engine *engine, const char *json)
{
    char *copy = strdup(json);
    if (copy == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the files of embeddings");
    }
    free(engine->embeddings);
    engine->embeddings = copy;
    return DS_OK;
}

static ds_status add_states(ds_engine *engine, ds_checkpoint_writer *writer, const char *data_state)
{
    static const char *const sections[] = {"engine", "loss_scaler", "random"};
    const dsi_loss_scale *s = &engine->spec.loss_scale;
    const dsi_host_state state = {.global_steps = engine->global_steps,
                                  .skipped_steps = engine->skipped_steps,
                                  .global_samples = engine->global_samples,
                                  .forced_lr = engine->forced_lr,
                                  .scale = s->scale,
                                  .iteration = s->iteration,
                                  .last_overflow = s->last_overflow,
                                  .hysteresis_left = s->hysteresis_left,
                                  .seed = engine->spec.seed,
                                  .decay_all = engine->spec.decay_all,
                                  .average_targets = engine->spec.average == DS_AVERAGE_TARGETS,
                                  .zenflow = engine->spec.train.zenflow.on,
                                  .chosen = engine->zenflow.chosen,
                                  .waiting = engine->zenflow.waiting,
                                  .late = engine->zenflow.late,
                                  .chosen_updates = engine->zenflow.chosen_updates,
                                  .rest_updates = engine->zenflow.rest_updates};
    ds_status status = DS_OK;
    for (size_t i = 0; i < sizeof sections / sizeof sections[0] && status >= 0; ++i) {
        char text[DSI_HOST_STATE_BYTES];
        dsi_host_state_print(&state, sections[i], text);
        status = ds_checkpoint_writer_state(writer, sections[i], text);
    }
    if (status >= 0 && engine->config_text != NULL) {
        status = ds_checkpoint_writer_state(writer, "config", engine->config_text);
    }
    char preference[DSI_PREFERENCE_BYTES];
    dsi_engine_print_preference(engine, preference);
    if (status >= 0 && preference[0] != '\0') {
        status = ds_checkpoint_writer_state(writer, "preference", preference);
    }
    char *frozen = dsi_engine_frozen(engine);
    if (status >= 0) {
        status = frozen != NULL ? ds_checkpoint_writer_state(writer, "frozen", frozen)
                                : ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to save");
    }
    free(frozen);
    status = status >= 0 ? dsi_engine_add_adapter(engine, writer) : status;
    status = status >= 0 ? dsi_engine_add_teacher(engine, writer) : status;
    if (status >= 0 && ds_model_config_text(engine->model) != NULL) {
        status = add_model_state(engine, writer);
    }
    if (status >= 0 && engine->embeddings != NULL) {
        status = ds_checkpoint_writer_state(writer, "embeddings", engine->embeddings);
    }
    if (status >= 0 && data_state != NULL) {
        status = ds_checkpoint_writer_state(writer, "data", data_state);
    }
    return status;
}

ds_status ds_engine_save_checkpoint(ds_engine *engine, const char *dir, const char *tag,
                                    const char *data_state)
{
    const ds_checkpoint_params params = {.dir = dir,
                                         .tag = tag,
                                         .step = engine->global_steps,
                                         .samples = engine->global_samples,
                                         .tokens = engine->global_tokens,
                                         .optimizer = optimizer_name(engine),
                                         .keep_last = engine->keep_last,
                                         .keep_tag =
                                             engine->keep_tag[0] != '\0' ? engine->keep_tag : NULL,
                                         .tag_validation = engine->spec.tag_validation};
    ds_checkpoint_writer *writer = NULL;
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_save_checkpoint"));
    if (dsi_engine_awaits(engine) != DSI_CALL_FORWARD || engine->micro_step != 0) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "a checkpoint can only be saved between optimizer steps: %lld of %lld "
                       "micro-batches are accumulated",
                       (long long)engine->micro_step, (long long)engine->spec.train.accumulation);
    }
    if (engine->spec.autotune.trial) {
        ds_log(engine->ctx, DS_LOG_JOB, "a trial of the autotuner: no checkpoint is written");
        return DS_OK;
    }
    DS_TRY(dsi_zenflow_drain(engine));
    DS_TRY(dsi_zenflow_tidy(engine));
    const double begin = dsi_clock_seconds();
    DS_TRY(dsi_engine_hold_folder(engine, dir));
    DS_TRY(engine->saver != NULL
               ? ds_checkpoint_saver_begin(engine->saver, &params, &writer)
               : dsi_checkpoint_writer_create_on(engine->ctx, &params, engine->comm, &writer));
    void *keep = NULL;
    ds_status status = dsi_engine_add_tensors(engine, writer, &keep);
    if (status >= 0) {
        status = add_states(engine, writer, data_state);
    }
    if (status < 0) {
        ds_checkpoint_writer_abort(&writer);
    } else if (engine->saver != NULL) {
        status = ds_checkpoint_saver_commit(engine->saver, &writer);
    } else {
        status = ds_checkpoint_writer_commit(&writer);
    }
    free(keep);
    if (status == DS_OK && engine->saver == NULL) {
        engine->saved.n_saves += 1;
        engine->saved.stall_seconds = dsi_clock_seconds() - begin;
        engine->saved.write_seconds = engine->saved.stall_seconds;
    }
    return status;
}

/* The stored tensor for a cell: weights may be stored as master or as parameter. late: a parameter
 * is older than its master, and the engine will take that over. */
static ds_status find_tensor(const ds_engine *engine, const ds_checkpoint *ckpt,
                             const ds_cell_info *cell, bool late,
                             const ds_checkpoint_tensor **tensor_out)
{
    const bool weight = cell->kind == DS_CELL_PARAM || cell->kind == DS_CELL_MASTER;
    const ds_checkpoint_tensor *tensor =
        ds_checkpoint_find(ckpt, ds_cell_kind_name(cell->kind), cell->name);
    if (weight) {
        const ds_checkpoint_tensor *own = ds_checkpoint_find(ckpt, "param", cell->name);
        late = late && cell->kind == DS_CELL_PARAM;
        tensor = ds_checkpoint_find(ckpt, "master", cell->name);
        tensor = tensor != NULL && !(late && own != NULL) ? tensor : own;
    }
    const char *path = ds_checkpoint_get_info(ckpt)->path;
    if (tensor == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOT_FOUND, "%s: there is no %s of %s", path,
                       ds_cell_kind_name(cell->kind), cell->name);
    }
    if (!ds_shape_equal(tensor->meta.shape, cell->meta.shape)) {
        char got[160];
        char want[160];
        return ds_fail(engine->ctx, DS_ERR_SHAPE, "%s: %s of %s is %s, the model has %s", path,
                       tensor->kind, cell->name, ds_meta_text(tensor->meta, got, sizeof got),
                       ds_meta_text(cell->meta, want, sizeof want));
    }
    *tensor_out = tensor;
    return DS_OK;
}

static bool is_zenflow(const ds_cell_info *cell)
{
    return cell->kind == DS_CELL_WAITING || cell->kind == DS_CELL_CHOSEN;
}

static bool is_loaded(const ds_cell_info *cell)
{
    return cell->kind == DS_CELL_PARAM || cell->kind == DS_CELL_MASTER ||
           cell->kind == DS_CELL_EXP_AVG || cell->kind == DS_CELL_EXP_AVG_SQ ||
           cell->kind == DS_CELL_MOMENTUM || cell->kind == DS_CELL_MASK ||
           cell->kind == DS_CELL_FROZEN || cell->kind == DS_CELL_EXP_AVG_SQ_ROW ||
           cell->kind == DS_CELL_EXP_AVG_SQ_COL || cell->kind == DS_CELL_Z ||
           cell->kind == DS_CELL_ABSMAX || cell->kind == DS_CELL_ABSMAX_SQ ||
           cell->kind == DS_CELL_EXP_AVG_SLOW || cell->kind == DS_CELL_ABSMAX_SLOW ||
           is_zenflow(cell);
}

/* A stored moment of a parameter that is not trained any more would be lost by the next save. */
static ds_status check_moment(const ds_engine *engine, const ds_checkpoint *ckpt,
                              const ds_checkpoint_tensor *tensor)
{
    static const ds_cell_kind kinds[] = {DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ, DS_CELL_MOMENTUM,
                                         DS_CELL_EXP_AVG_SQ_ROW};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        if (strcmp(tensor->kind, ds_cell_kind_name(kinds[k])) == 0 &&
            ds_cells_find(engine->cells, kinds[k], tensor->name) == DS_NONE) {
            return ds_fail(engine->ctx, DS_ERR_ARG,
                           "%s has the %s of %s, which this run does not train (frozen "
                           "parameters, --freeze): it would be lost; resume with the same",
                           ds_checkpoint_get_info(ckpt)->path, tensor->kind, tensor->name);
        }
    }
    return DS_OK;
}

/* A stored weight that the model does not have means another model. */
static ds_status check_extra(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    for (size_t i = 0; i < ds_checkpoint_count(ckpt); ++i) {
        const ds_checkpoint_tensor *tensor = ds_checkpoint_at(ckpt, i);
        const bool weight =
            strcmp(tensor->kind, "master") == 0 || strcmp(tensor->kind, "param") == 0;
        if (weight && ds_cells_find(engine->cells, DS_CELL_PARAM, tensor->name) == DS_NONE) {
            const bool own = ds_checkpoint_state(ckpt, "origin") == NULL;
            return ds_fail(engine->ctx, DS_ERR_ARG,
                           "%s: the weight %s is not part of this model; it was saved from "
                           "another%s",
                           ds_checkpoint_get_info(ckpt)->path, tensor->name,
                           own ? ""
                               : ", or from a module with names of its own: map them by a file "
                                 "parameter_names.txt in the save folder, a line 'OWN NAME' each "
                                 "({n} is a number, * the rest)");
        }
    }
    for (size_t i = 0; i < ds_checkpoint_count(ckpt); ++i) {
        DS_TRY(check_moment(engine, ckpt, ds_checkpoint_at(ckpt, i)));
    }
    return DS_OK;
}

/* The most extents that a rank has of a cell. */
static uint32_t most_extents(const ds_engine *engine, ds_cell c)
{
    const ds_shape shape = ds_cells_get(engine->cells, c)->meta.shape;
    ds_extent extents[DSI_PART_MOST_EXTENTS];
    uint32_t most = 1;
    if (engine->places == NULL || dsi_placement_shard_axes(&engine->places[c].at) == 0) {
        return 1;
    }
    for (uint32_t r = 0; r < engine->spec.zero.mesh.n_ranks; ++r) {
        const dsi_part part =
            dsi_placement_part(&engine->spec.zero.mesh, &engine->places[c].at, shape, r);
        const uint32_t n = dsi_part_extents(&part, shape, extents);
        most = n > most ? n : most;
    }
    return most;
}

/* A box of a part that is in blocks: read as it is, then to its places. */
static ds_status read_block(const ds_engine *engine, dsi_ckpt_pool *pool,
                            const ds_checkpoint_tensor *tensor, ds_cell c, const ds_extent *wanted,
                            unsigned char *data)
{
    const ds_meta meta = ds_cells_get(engine->cells, c)->meta;
    const size_t size = ds_dtype_bytes(meta.dtype);
    const dsi_part own = dsi_engine_part(engine, c);
    const dsi_part box = dsi_part_of_extent(wanted, meta.shape);
    void *room = malloc((size_t)box.count * size + 1);
    if (room == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to load %s", tensor->name);
    }
    const ds_status status = dsi_ckpt_pool_read(pool, tensor, wanted, meta.dtype, room);
    if (status >= 0) {
        (void)dsi_part_copy(&box, room, &own, data, size);
    }
    free(room);
    return status;
}

/* This rank's part of a tensor. All ranks take part, and read as often as the one with most. */
static ds_status read_part(const ds_engine *engine, dsi_ckpt_pool *pool,
                           const ds_checkpoint_tensor *tensor, ds_cell c, unsigned char *data)
{
    const ds_meta meta = ds_cells_get(engine->cells, c)->meta;
    const dsi_part own = dsi_engine_part(engine, c);
    ds_extent extents[DSI_PART_MOST_EXTENTS];
    const uint32_t n = dsi_part_extents(&own, meta.shape, extents);
    const uint32_t most = most_extents(engine, c);
    for (uint32_t i = 0; i < most; ++i) {
        const ds_extent *wanted = i < n ? &extents[i] : NULL;
        if (wanted != NULL && own.blocks > 0) {
            DS_TRY(read_block(engine, pool, tensor, c, wanted, data));
            continue;
        }
        DS_TRY(dsi_ckpt_pool_read(pool, tensor, wanted, meta.dtype, data));
        data += wanted != NULL
                    ? (size_t)ds_extent_count(wanted, meta.shape) * ds_dtype_bytes(meta.dtype)
                    : 0;
    }
    return DS_OK;
}

/* Reads what this rank holds of a tensor to where it lives. */
static ds_status load_tensor(ds_engine *engine, dsi_ckpt_pool *pool,
                             const ds_checkpoint_tensor *tensor, ds_cell c)
{
    const dsi_part own = dsi_engine_part(engine, c);
    const size_t bytes =
        (size_t)own.count * ds_dtype_bytes(ds_cells_get(engine->cells, c)->meta.dtype);
    void *view = dsi_exec_host_view(engine->exec, c);
    if (view != NULL) {
        return read_part(engine, pool, tensor, c, view);
    }
    void *room = malloc(bytes + 1);
    if (room == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to load %s", tensor->name);
    }
    ds_status status = read_part(engine, pool, tensor, c, room);
    if (status >= 0) {
        status = dsi_exec_write(engine->exec, c, 0, room, bytes);
    }
    free(room);
    return status;
}

/* Checks that everything is there before the first byte is changed, then reads. All ranks read the
 * same tensors in the same order: what a host lacks comes from another. */
static ds_status load_tensors(ds_engine *engine, ds_checkpoint *ckpt, dsi_ckpt_pool *pool,
                              const dsi_host_state *state)
{
    const bool zenflow = state->zenflow;
    const bool late = state->late && engine->spec.train.zenflow.overlap;
    for (int pass = 0; pass < 2; ++pass) {
        for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
            const ds_cell_info *cell = ds_cells_get(engine->cells, c);
            const ds_checkpoint_tensor *tensor = NULL;
            if (!is_loaded(cell) || dsi_engine_is_base(engine, cell) ||
                (is_zenflow(cell) && !zenflow)) {
                continue;
            }
            DS_TRY(find_tensor(engine, ckpt, cell, late, &tensor));
            if (pass == 1) {
                DS_TRY(load_tensor(engine, pool, tensor, c));
            }
        }
    }
    return DS_OK;
}

static ds_status read_states(const ds_engine *engine, const ds_checkpoint *ckpt,
                             dsi_host_state *state_out)
{
    const bool scaled = engine->spec.loss_scale.dynamic;
    const dsi_host_state_texts texts = {
        .engine = ds_checkpoint_state(ckpt, "engine"),
        .loss_scaler = scaled ? ds_checkpoint_state(ckpt, "loss_scaler") : NULL,
        .random = ds_checkpoint_state(ckpt, "random")};
    const char *path = ds_checkpoint_get_info(ckpt)->path;
    if (scaled && texts.loss_scaler == NULL) {
        return ds_fail(engine->ctx, DS_ERR_FORMAT, "%s: the state \"loss_scaler\" is missing",
                       path);
    }
    if (texts.random == NULL && ds_checkpoint_state(ckpt, "origin") == NULL) {
        return ds_fail(engine->ctx, DS_ERR_FORMAT, "%s: the state \"random\" is missing", path);
    }
    return dsi_host_state_parse(engine->ctx, path, &texts, state_out);
}

/* What changes the run and is in no configuration must be what it was. */
static ds_status check_rules(const ds_engine *engine, const char *path, const dsi_host_state *state)
{
    const bool targets = engine->spec.average == DS_AVERAGE_TARGETS;
    if (state->has_decay && state->decay_all != engine->spec.decay_all) {
        return ds_fail(engine->ctx, DS_ERR_CONFIG,
                       "%s was trained with weight decay on %s (decay_all), this run has it on %s; "
                       "resume with the same",
                       path, state->decay_all ? "all parameters" : "all but norms and biases",
                       engine->spec.decay_all ? "all" : "all but these");
    }
    if (state->has_average && state->average_targets != targets) {
        return ds_fail(engine->ctx, DS_ERR_CONFIG,
                       "%s was trained with the loss averaged over %s (loss_average), this run "
                       "averages over %s; resume with the same",
                       path, state->average_targets ? "targets" : "micro-batches",
                       targets ? "targets" : "micro-batches");
    }
    return DS_OK;
}

static void take_states(ds_engine *engine, const dsi_host_state *state)
{
    dsi_loss_scale *s = &engine->spec.loss_scale;
    engine->global_steps = state->global_steps;
    engine->skipped_steps = state->skipped_steps;
    engine->nonfinite_steps = 0;
    engine->global_samples = state->global_samples;
    engine->forced_lr = state->forced_lr;
    engine->spec.seed = state->has_seed ? state->seed : engine->spec.seed;
    if (engine->spec.train.zenflow.on) {
        engine->zenflow =
            (dsi_zenflow_state){.chosen = state->chosen,
                                .fetch = state->chosen, /* weights may have been set */
                                .waiting = state->waiting,
                                .late = state->late && engine->spec.train.zenflow.overlap,
                                .chosen_updates = state->chosen_updates,
                                .rest_updates = state->rest_updates};
    } else if (state->waiting > 0) {
        ds_log(engine->ctx, DS_LOG_WARN,
               "the gradients of %lld steps that wait in the checkpoint are dropped: "
               "zero_optimization.zenflow is off now",
               (long long)state->waiting);
    }
    if (s->dynamic) {
        s->scale = state->scale;
        s->iteration = state->iteration;
        s->last_overflow = state->last_overflow;
        s->hysteresis_left = state->hysteresis_left;
    }
}

/* A checkpoint of another program lacks what only ours save. */
static void say_origin(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *origin = ds_checkpoint_state(ckpt, "origin");
    if (origin != NULL && ds_comm_rank(engine->comm) == 0) {
        ds_log(engine->ctx, DS_LOG_WARN,
               "%s was saved by %s: the seed is this run's, and it holds no place in the data",
               ds_checkpoint_get_info(ckpt)->path, origin);
    }
}

static ds_status load(ds_engine *engine, ds_checkpoint *ckpt, dsi_ckpt_pool *pool,
                      char **data_state_out)
{
    const ds_checkpoint_info *info = ds_checkpoint_get_info(ckpt);
    dsi_host_state state;
    if (strcmp(info->optimizer, optimizer_name(engine)) != 0) {
        return ds_fail(engine->ctx, DS_ERR_ARG,
                       "%s was saved with the optimizer %s, the configuration asks for %s",
                       info->path, info->optimizer, optimizer_name(engine));
    }
    DS_TRY(dsi_engine_check_model(engine, ckpt));
    DS_TRY(dsi_engine_check_adapter(engine, ckpt));
    DS_TRY(dsi_engine_check_teacher(engine, ckpt));
    DS_TRY(check_extra(engine, ckpt));
    DS_TRY(read_states(engine, ckpt, &state));
    DS_TRY(check_rules(engine, info->path, &state));
    DS_TRY(dsi_engine_check_config(engine, ckpt));
    DS_TRY(dsi_engine_check_frozen(engine, ckpt));
    DS_TRY(dsi_engine_check_preference(engine, ckpt));
    engine->broken = true; /* until all of it is there */
    DS_TRY(dsi_zenflow_begin(engine));
    DS_TRY(load_tensors(engine, ckpt, pool, &state));
    take_states(engine, &state);
    DS_TRY(dsi_onebit_load(engine, ckpt, pool));
    engine->global_tokens = info->tokens;
    DS_TRY(dsi_zenflow_check(engine, info->path));
    engine->broken = false;
    engine->undecided = false;
    engine->at = 0;
    engine->micro_step = 0;
    say_origin(engine, ckpt);
    const char *data = ds_checkpoint_state(ckpt, "data");
    if (data_state_out != NULL) {
        *data_state_out = data != NULL ? strdup(data) : NULL;
        if (data != NULL && *data_state_out == NULL) {
            return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the data cursor");
        }
    }
    return DS_OK;
}

ds_status ds_engine_load_checkpoint(ds_engine *engine, const char *dir, const char *tag,
                                    char **data_state_out)
{
    ds_checkpoint *ckpt = NULL;
    dsi_ckpt_pool *pool = NULL;
    DS_TRY(ds_engine_checkpoint_wait(engine));
    ds_status status = dsi_checkpoint_open_on(engine->ctx, dir, tag, engine->comm, &ckpt);
    if (status >= 0) {
        status = dsi_ckpt_pool_open(engine->ctx, ckpt, engine->comm, &pool);
    }
    if (status >= 0) {
        status = load(engine, ckpt, pool, data_state_out);
    }
    dsi_ckpt_pool_close(&pool);
    ds_checkpoint_close(&ckpt);
    ds_status agreed = ds_comm_agree(engine->comm, engine->ctx, status);
    agreed = agreed < 0 ? agreed : dsi_engine_set_average(engine, false);
    engine->broken = engine->broken || (agreed < 0 && status >= 0); /* others have not loaded it */
    return agreed;
}
