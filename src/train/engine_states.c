/* SPDX-License-Identifier: Apache-2.0 */
/* Whole and local parameters, gradients and optimizer states of an engine. See
 * deepspeed/engine_states.h.
 *
 * Where a state lies follows from its placement: LOCAL (whole on every rank), FLAT (sharded) or
 * PARTIAL (a gradient that is reduced at the boundary only: then a getter reduces a copy just as
 * the step will, and a setter gives rank 0 the whole sum). Gradients are stored with the loss
 * scale. */
#include "train/engine_same.h"
#include "train/half_copy.h"

#include <deepspeed/engine_states.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What a call asks for. */
typedef struct query {
    ds_state_kind kind;
    const char *name, *state;
    ds_cell cell; /* found */
} query;

static ds_cell_kind kind_of_state(const char *state)
{
    static const struct {
        const char *name;
        ds_cell_kind kind;
    } names[] = {{"exp_avg", DS_CELL_EXP_AVG},
                 {"exp_avg_sq", DS_CELL_EXP_AVG_SQ},
                 {"exp_avg_sq_row", DS_CELL_EXP_AVG_SQ_ROW},
                 {"exp_avg_sq_col", DS_CELL_EXP_AVG_SQ_COL},
                 {"exp_avg_slow", DS_CELL_EXP_AVG_SLOW},
                 {"z", DS_CELL_Z},
                 {"momentum", DS_CELL_MOMENTUM},
                 {"momentum_buffer", DS_CELL_MOMENTUM},
                 {"sum", DS_CELL_EXP_AVG_SQ}};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && state != NULL; ++i) {
        if (strcmp(names[i].name, state) == 0) {
            return names[i].kind;
        }
    }
    return DS_CELL_KIND_COUNT;
}

/* Names of the states that a parameter has, for a message. */
static void list_states(const ds_engine *engine, const char *name, char *text, size_t n)
{
    static const ds_cell_kind kinds[] = {DS_CELL_EXP_AVG,        DS_CELL_EXP_AVG_SQ,
                                         DS_CELL_MOMENTUM,       DS_CELL_EXP_AVG_SQ_ROW,
                                         DS_CELL_EXP_AVG_SQ_COL, DS_CELL_EXP_AVG_SLOW};
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
        if (ds_cells_find(engine->cells, kinds[i], name) != DS_NONE) {
            at += (size_t)snprintf(text + at, n - at, "%s%s", at > 0 ? ", " : "",
                                   ds_cell_kind_name(kinds[i]));
        }
    }
    if (at == 0) {
        (void)snprintf(text, n, "none");
    }
}

static ds_status find_optimizer_state(const ds_engine *engine, query *q)
{
    const ds_cell_kind kind = kind_of_state(q->state);
    q->cell = kind != DS_CELL_KIND_COUNT ? ds_cells_find(engine->cells, kind, q->name) : DS_NONE;
    if (q->cell == DS_NONE) {
        char has[128];
        list_states(engine, q->name, has, sizeof has);
        return ds_fail(engine->ctx, DS_ERR_ARG, "%s has no optimizer state \"%s\"; it has: %s",
                       q->name, q->state != NULL ? q->state : "(null)", has);
    }
    return DS_OK;
}

static ds_status find(const ds_engine *engine, query *q)
{
    q->cell = ds_cells_find(engine->cells, DS_CELL_PARAM, q->name);
    if (q->cell == DS_NONE) {
        return ds_fail(engine->ctx, DS_ERR_NOT_FOUND, "there is no parameter named %s", q->name);
    }
    DS_TRY(dsi_engine_check_settled(engine, q->name));
    if (q->kind == DS_STATE_PARAM) {
        DS_TRY(dsi_engine_check_plain(engine, q->cell));
        const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, q->name);
        q->cell = master != DS_NONE ? master : q->cell;
        return DS_OK;
    }
    if (ds_cells_get(engine->cells, q->cell)->frozen) {
        return ds_fail(engine->ctx, DS_ERR_NOT_FOUND,
                       "%s is frozen: it has no gradient and no optimizer state", q->name);
    }
    if (q->kind == DS_STATE_OPTIMIZER) {
        return find_optimizer_state(engine, q);
    }
    if (dsi_train_is_early(&engine->spec.train)) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "the gradient of %s is used up in the backward pass: nothing waits for it "
                       "with bf16.check_grad_overflow false, gradient_clipping 0 and "
                       "gradient_accumulation_steps 1",
                       q->name);
    }
    if (dsi_engine_awaits(engine) != DSI_CALL_STEP) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "the gradient of %s is there between ds_engine_backward and ds_engine_step",
                       q->name);
    }
    q->cell = ds_cells_find(engine->cells, DS_CELL_GRAD, q->name);
    return q->cell != DS_NONE
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_NOT_FOUND, "%s has no gradient", q->name);
}

static ds_status check_count(const ds_engine *engine, const query *q, int64_t want, size_t count)
{
    return (size_t)want == count
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_SHAPE, "%s: expected room for %lld elements, got %zu",
                         q->name, (long long)want, count);
}

static int64_t whole_count(const ds_engine *engine, ds_cell cell)
{
    return ds_shape_count(ds_cells_get(engine->cells, cell)->meta.shape);
}

/* Finds the cell, checks the count, and agrees with the other ranks about the call. */
static ds_status open_full(const ds_engine *engine, query *q, const char *verb, const float *given,
                           size_t count)
{
    static const char *const kinds[] = {"the parameter", "the gradient of", "a state of"};
    char what[256];
    (void)snprintf(what, sizeof what, "%s %s %s%s%s", verb, kinds[q->kind], q->name,
                   q->state != NULL ? ", " : "", q->state != NULL ? q->state : "");
    ds_status status = find(engine, q);
    if (status == DS_OK) {
        status = check_count(engine, q, whole_count(engine, q->cell), count);
    }
    uint64_t digest = 0;
    if (status == DS_OK && given != NULL && engine->comm != NULL) {
        digest = XXH3_64bits(given, count * sizeof *given);
    }
    return dsi_engine_same(engine, what, digest, status);
}

static double grad_scale(const ds_engine *engine)
{
    return 1.0 / dsi_engine_inverse_scale(engine);
}

/* ---- getting ---- */

/* A gradient that every rank has a part of the sum of, reduced as the step does it. */
static ds_status get_partial(const ds_engine *engine, ds_cell cell, float *data, size_t count)
{
    const dsi_zero_spec *zero = &engine->spec.zero;
    const ds_meta meta = ds_cells_get(engine->cells, cell)->meta;
    void *own = malloc(count * ds_dtype_bytes(meta.dtype) + 1);
    void *sent = malloc(count * ds_dtype_bytes(zero->comm_dtype) + 1);
    if (own == NULL || sent == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for a gradient");
        free(own);
        free(sent);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to reduce a gradient");
    }
    ds_status status =
        dsi_exec_read(engine->exec, cell, 0, own, count * ds_dtype_bytes(meta.dtype));
    dsi_half_copy(engine->ctx, sent, zero->comm_dtype, own, meta.dtype, count, 1.0f);
    const dsi_axes axes = dsi_axes_of(engine->places[cell].averaged);
    const float n = (float)dsi_axes_size(&zero->mesh, &axes);
    const dsi_comm_part part = {.in = sent, .out = sent, .count = count};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = zero->comm_dtype,
                                .factor = zero->sum ? 1.0f : 1.0f / n,
                                .parts = &part,
                                .n_parts = 1,
                                .what = ds_cells_get(engine->cells, cell)->name};
    dsi_comm *group = NULL; /* the ranks that have terms */
    ds_status run = dsi_mesh_comms_get(engine->mesh, &axes, &group);
    run = run < 0 ? run : dsi_comm_run(group, &call);
    status = status < 0 ? status : run;
    if (status >= 0) {
        dsi_half_copy(engine->ctx, data, DS_DTYPE_F32, sent, zero->comm_dtype, count, 1.0f);
    }
    free(own);
    free(sent);
    return status;
}

static void scale_by(float *data, size_t count, float factor)
{
    for (size_t i = 0; i < count && factor != 1.0f; ++i) {
        data[i] *= factor;
    }
}

/* What is asked for may be read and set. */
static ds_status make_ready(const ds_engine *engine, const query *q)
{
    switch (q->kind) {
    case DS_STATE_PARAM:
        return dsi_zenflow_drain(engine);
    case DS_STATE_OPTIMIZER:
        return dsi_zenflow_finish(engine);
    default:
        return DS_OK;
    }
}

static ds_status get_full(ds_engine *engine, query q, float *data, size_t count)
{
    DS_TRY(open_full(engine, &q, "get", NULL, count));
    DS_TRY(make_ready(engine, &q));
    if (engine->places[q.cell].averaged != 0) {
        DS_TRY(get_partial(engine, q.cell, data, count));
    } else {
        DS_TRY(dsi_engine_get_cell(engine, q.cell, data));
    }
    if (q.kind == DS_STATE_GRAD) {
        scale_by(data, count, (float)(1.0 / grad_scale(engine)));
    }
    return DS_OK;
}

/* ---- setting ---- */

/* Writes a gradient, with the loss scale, from element `begin` on. */
static ds_status put_grad(ds_engine *engine, ds_cell cell, int64_t begin, const float *data,
                          size_t count)
{
    const dsi_zero_spec *zero = &engine->spec.zero;
    float factor = (float)grad_scale(engine);
    float *scaled = malloc((count + 1) * sizeof *scaled);
    if (scaled == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to set a gradient");
    }
    if (engine->places[cell].averaged != 0) {
        const dsi_axes axes = dsi_axes_of(engine->places[cell].averaged);
        const dsi_rank_group terms = dsi_mesh_group(&zero->mesh, &axes, ds_comm_rank(engine->comm));
        factor *= zero->sum ? 1.0f : (float)terms.size;
        factor = terms.index == 0 ? factor : 0.0f;
    }
    for (size_t i = 0; i < count; ++i) {
        scaled[i] = factor != 0.0f ? data[i] * factor : 0.0f;
    }
    const ds_status status =
        dsi_engine_put_cell(engine, cell, begin, (int64_t)count, scaled, DS_DTYPE_F32);
    free(scaled);
    return status;
}

static ds_status put(ds_engine *engine, const query *q, int64_t begin, const float *data,
                     size_t count)
{
    if (q->kind == DS_STATE_GRAD) {
        return put_grad(engine, q->cell, begin, data, count);
    }
    if (q->kind == DS_STATE_PARAM) {
        return dsi_engine_put(engine, ds_cells_find(engine->cells, DS_CELL_PARAM, q->name), begin,
                              (int64_t)count, data, DS_DTYPE_F32);
    }
    return dsi_engine_put_cell(engine, q->cell, begin, (int64_t)count, data, DS_DTYPE_F32);
}

static ds_status set_full(ds_engine *engine, query q, const float *data, size_t count)
{
    DS_TRY(open_full(engine, &q, "set", data, count));
    DS_TRY(q.kind == DS_STATE_PARAM ? dsi_engine_check_set(engine, DS_CELL_PARAM) : DS_OK);
    DS_TRY(make_ready(engine, &q));
    if (q.kind == DS_STATE_PARAM) {
        engine->zenflow.fetch = engine->zenflow.chosen;
    }
    return put(engine, &q, 0, data, count);
}

/* ---- this rank's part ---- */

static ds_status open_local(const ds_engine *engine, query *q, dsi_part *part_out)
{
    DS_TRY(find(engine, q));
    if (engine->places[q->cell].averaged != 0) {
        return ds_fail(engine->ctx, DS_ERR_UNSUPPORTED,
                       "the gradient of %s is not reduced before the step "
                       "(gradient_accumulation_steps above 1 in zero_optimization.stage %u); get "
                       "the full one, or set \"deterministic\"",
                       q->name, engine->spec.zero.stage);
    }
    *part_out = dsi_engine_part(engine, q->cell);
    return DS_OK;
}

static ds_status get_local(ds_engine *engine, query q, float *data, size_t count)
{
    dsi_part own;
    DS_TRY(open_local(engine, &q, &own));
    DS_TRY(check_count(engine, &q, own.count, count));
    DS_TRY(make_ready(engine, &q));
    const ds_dtype dtype = ds_cells_get(engine->cells, q.cell)->meta.dtype;
    const size_t bytes = count * ds_dtype_bytes(dtype);
    void *copy = malloc(bytes + 1);
    if (copy == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to get a part of %s", q.name);
    }
    const ds_status status = dsi_exec_read(engine->exec, q.cell, 0, copy, bytes);
    if (status >= 0) {
        const float factor = q.kind == DS_STATE_GRAD ? (float)(1.0 / grad_scale(engine)) : 1.0f;
        dsi_half_copy(engine->ctx, data, DS_DTYPE_F32, copy, dtype, count, factor);
    }
    free(copy);
    return status;
}

static ds_status set_local(ds_engine *engine, query q, const float *data, size_t count)
{
    dsi_part own;
    DS_TRY(open_local(engine, &q, &own));
    DS_TRY(check_count(engine, &q, own.count, count));
    DS_TRY(q.kind == DS_STATE_PARAM ? dsi_engine_check_set(engine, DS_CELL_PARAM) : DS_OK);
    const ds_cell param = ds_cells_find(engine->cells, DS_CELL_PARAM, q.name);
    const ds_cell held = q.kind == DS_STATE_PARAM ? param : q.cell;
    if (q.kind == DS_STATE_PARAM && engine->zenflow.chosen) {
        return ds_fail(engine->ctx, DS_ERR_UNSUPPORTED,
                       "zero_optimization.zenflow: every rank holds the chosen columns of %s: set "
                       "the full one",
                       q.name);
    }
    if (engine->comm != NULL && !dsi_engine_is_cut(engine, held)) {
        return ds_fail(engine->ctx, DS_ERR_UNSUPPORTED,
                       "every rank holds %s of %s whole: set the full one",
                       ds_cell_kind_name(ds_cells_get(engine->cells, held)->kind), q.name);
    }
    DS_TRY(make_ready(engine, &q));
    const ds_shape shape = ds_cells_get(engine->cells, q.cell)->meta.shape;
    for (dsi_run run = {0}; dsi_part_next_run(&own, shape, &run);) {
        DS_TRY(put(engine, &q, run.begin, data + run.local, (size_t)run.count));
    }
    return DS_OK;
}

/* ---- the public functions ---- */

static query param_of(const char *name)
{
    return (query){DS_STATE_PARAM, name, NULL, DS_NONE};
}

static query grad_of(const char *name)
{
    return (query){DS_STATE_GRAD, name, NULL, DS_NONE};
}

static query state_of(const char *name, const char *state)
{
    return (query){DS_STATE_OPTIMIZER, name, state, DS_NONE};
}

ds_status ds_engine_get_full_fp32_param(ds_engine *engine, const char *name, float *data,
                                        size_t count)
{
    return get_full(engine, param_of(name), data, count);
}

ds_status ds_engine_set_full_fp32_param(ds_engine *engine, const char *name, const float *data,
                                        size_t count)
{
    return set_full(engine, param_of(name), data, count);
}

ds_status ds_engine_get_full_grad(ds_engine *engine, const char *name, float *data, size_t count)
{
    return get_full(engine, grad_of(name), data, count);
}

ds_status ds_engine_set_full_grad(ds_engine *engine, const char *name, const float *data,
                                  size_t count)
{
    return set_full(engine, grad_of(name), data, count);
}

ds_status ds_engine_get_full_optimizer_state(ds_engine *engine, const char *name, const char *state,
                                             float *data, size_t count)
{
    return get_full(engine, state_of(name, state), data, count);
}

ds_status ds_engine_set_full_optimizer_state(ds_engine *engine, const char *name, const char *state,
                                             const float *data, size_t count)
{
    return set_full(engine, state_of(name, state), data, count);
}

ds_status ds_engine_local_range(const ds_engine *engine, ds_state_kind kind, const char *name,
                                const char *state, int64_t *begin_out, int64_t *count_out)
{
    query q = {kind, name, state, DS_NONE};
    dsi_part own;
    dsi_run run = {0};
    DS_TRY(open_local(engine, &q, &own));
    (void)dsi_part_next_run(&own, ds_cells_get(engine->cells, q.cell)->meta.shape, &run);
    if (run.count != own.count) {
        return ds_fail(engine->ctx, DS_ERR_UNSUPPORTED,
                       "%s is sharded along a dim: this rank's part is not one range of elements",
                       q.name);
    }
    *begin_out = own.count > 0 ? run.begin : own.begin;
    *count_out = own.count;
    return DS_OK;
}

ds_status ds_engine_get_local_fp32_param(ds_engine *engine, const char *name, float *data,
                                         size_t count)
{
    return get_local(engine, param_of(name), data, count);
}

ds_status ds_engine_set_local_fp32_param(ds_engine *engine, const char *name, const float *data,
                                         size_t count)
{
    return set_local(engine, param_of(name), data, count);
}

ds_status ds_engine_get_local_grad(ds_engine *engine, const char *name, float *data, size_t count)
{
    return get_local(engine, grad_of(name), data, count);
}

ds_status ds_engine_set_local_grad(ds_engine *engine, const char *name, const float *data,
                                   size_t count)
{
    return set_local(engine, grad_of(name), data, count);
}

ds_status ds_engine_get_local_optimizer_state(ds_engine *engine, const char *name,
                                              const char *state, float *data, size_t count)
{
    return get_local(engine, state_of(name, state), data, count);
}

ds_status ds_engine_set_local_optimizer_state(ds_engine *engine, const char *name,
                                              const char *state, const float *data, size_t count)
{
    return set_local(engine, state_of(name, state), data, count);
}
