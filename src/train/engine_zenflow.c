/* SPDX-License-Identifier: Apache-2.0 */
/* ZenFlow at run time: which of its phases a step runs, and what they are told. The schedule is a
 * function of the updates done so far, of the configuration, and, where the interval of the rest is
 * found by weighing, of exact sums: the same on every rank. docs/internals/zenflow.md.
 *
 * With overlap an update of the rest is started in one step and taken in a later one, which the
 * same schedule says: never when it happens to end. */
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dsi_zenflow_spec *spec_of(const ds_engine *engine)
{
    return &engine->spec.train.zenflow;
}

static bool is_index(const ds_cell_info *info)
{
    return info->kind == DS_CELL_CHOSEN && info->meta.dtype == DS_DTYPE_I32;
}

static bool is_weights(const ds_cell_info *info)
{
    return info->kind == DS_CELL_CHOSEN && info->meta.dtype == DS_DTYPE_F64;
}

/* What the settings come to; that columns may be chosen once only is worth a line. */
void dsi_zenflow_say(const ds_engine *engine)
{
    const dsi_zenflow_spec *z = spec_of(engine);
    if (!z->on) {
        return;
    }
    char rest[64] = "when they weigh enough";
    char chosen[80] = "once: zenflow.steps_per_epoch is not known, or select_interval is 0";
    if (!z->weighs) {
        (void)snprintf(rest, sizeof rest, "every %lld steps", (long long)z->update_every);
    }
    if (z->select_every > 0) {
        (void)snprintf(chosen, sizeof chosen, "every %lld steps", (long long)z->select_every);
    }
    ds_log(engine->ctx, DS_LOG_JOB,
           "zenflow: %g of the columns are updated each step, the others %s%s; chosen %s", z->ratio,
           rest, z->overlap ? " beside the next steps" : "", chosen);
}

/* Threads of the update that runs beside the steps: those that are not reserved for the steps; all
 * where that would be none. */
static uint32_t late_threads(const ds_engine *engine)
{
    const uint32_t all = ds_ctx_n_threads(engine->ctx);
    const uint32_t reserved = (uint32_t)ceil(engine->spec.reserved_cores * (double)all);
    return reserved < all ? all - reserved : all;
}

ds_status dsi_zenflow_open(ds_engine *engine)
{
    const uint32_t n = ds_cells_count(engine->cells);
    if (!spec_of(engine)->overlap) {
        return DS_OK;
    }
    engine->late_pairs = calloc(2 * (size_t)n + 1, sizeof *engine->late_pairs);
    if (engine->late_pairs == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    for (int handed = 0; handed < 2; ++handed) {
        uint32_t *at = &engine->n_late_pairs;
        const uint32_t first = *at;
        for (ds_cell c = 0; c < n; ++c) {
            if (ds_cells_get(engine->cells, c)->kind ==
                (handed == 0 ? DS_CELL_WAITING : DS_CELL_HANDED)) {
                engine->late_pairs[(*at)++] = c;
            }
        }
        *at = handed == 0 ? *at : first; /* as many of the one as of the other */
    }
    dsi_exec_set_beside(engine->exec, late_threads(engine));
    return DS_OK;
}

ds_status dsi_zenflow_begin(ds_engine *engine)
{
    dsi_exec_drop(engine->exec);
    engine->zenflow = (dsi_zenflow_state){0};
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        if (is_index(info)) {
            memset(dsi_exec_cell(engine->exec, c), 0xff, ds_meta_bytes(info->meta)); /* all -1 */
        } else if (info->kind == DS_CELL_CHOSEN || info->kind == DS_CELL_WAITING) {
            DS_TRY(dsi_exec_clear(engine->exec, c));
        }
    }
    if (spec_of(engine)->on) {
        *(int32_t *)dsi_exec_cell(engine->exec, engine->own.zenflow.rank) =
            (int32_t)ds_comm_rank(engine->comm);
    }
    return DS_OK;
}

ds_status dsi_zenflow_finish(const ds_engine *engine)
{
    const ds_status status = dsi_exec_finish(engine->exec);
    if (status == DS_OK) {
        return DS_OK;
    }
    char reason[1024];
    (void)snprintf(reason, sizeof reason, "%s", ds_ctx_error(engine->ctx));
    return ds_fail(engine->ctx, status,
                   "zero_optimization.zenflow.overlap_step: the update that runs beside the steps "
                   "failed: %s; load a checkpoint",
                   reason);
}

ds_status dsi_zenflow_settle(const ds_engine *engine)
{
    DS_TRY(dsi_zenflow_finish(engine));
    if (!engine->zenflow.chosen || engine->zenflow.fetch) {
        return DS_OK;
    }
    if (engine->state != DSI_ENGINE_IDLE) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "zero_optimization.zenflow: weights can be read and set before "
                       "ds_engine_forward and after ds_engine_step only");
    }
    return dsi_exec_run(engine->exec, engine->train_id, DS_PHASE_SETTLE);
}

ds_status dsi_zenflow_tidy(ds_engine *engine)
{
    for (uint32_t i = 0; i < engine->n_late_pairs && engine->zenflow.waiting == 0; ++i) {
        DS_TRY(dsi_exec_clear(engine->exec, engine->late_pairs[i]));
    }
    return DS_OK;
}

ds_status dsi_zenflow_check(const ds_engine *engine, const char *path)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        if (!is_index(info)) {
            continue;
        }
        const int64_t columns = ds_cells_get(engine->cells, info->of)->meta.shape.dims[1];
        const int32_t *index = dsi_exec_cell(engine->exec, c);
        for (int64_t i = 0; i < info->meta.shape.dims[0]; ++i) {
            if (index[i] < -1 || index[i] >= columns || (i > 0 && index[i] < index[i - 1])) {
                return ds_fail(
                    engine->ctx, DS_ERR_FORMAT,
                    "%s: %s names column %d, expected columns of %lld in ascending order", path,
                    info->name, index[i], (long long)columns);
            }
        }
    }
    return DS_OK;
}

/* ---- one step -------------------------------------------------------------------------------- */

static void write_real(ds_engine *engine, ds_cell cell, double value)
{
    *(float *)dsi_exec_cell(engine->exec, cell) = (float)value;
}

/* Whether the magnitudes that wait for an element of the rest are as large as those of a step for a
 * chosen one, in enough of the matrices. */
static bool weighs_enough(const ds_engine *engine)
{
    int64_t all = 0;
    int64_t due = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        if (!is_weights(info)) {
            continue;
        }
        const double *weights = dsi_exec_cell(engine->exec, c);
        const ds_cell_info *param = ds_cells_get(engine->cells, info->of);
        char name[1100];
        const ds_cell index =
            ds_cells_find(engine->cells, DS_CELL_CHOSEN,
                          dsi_zenflow_name(param->name, "index", name, sizeof name));
        const double chosen = (double)ds_cells_get(engine->cells, index)->meta.shape.dims[0];
        const double rest = (double)param->meta.shape.dims[1] - chosen;
        all += 1;
        due += weights[0] / rest >= weights[1] / chosen / (double)engine->zenflow.waiting ? 1 : 0;
    }
    const int64_t needed = (int64_t)(spec_of(engine)->auto_ratio * (double)all);
    return due >= (needed > 0 ? needed : 1);
}

static bool every(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

/* `done` updates are done, this one not counted. Warm-up updates everything; what waits is not kept
 * beyond a new choice. */
static bool rest_is_due(const ds_engine *engine, int64_t done)
{
    const dsi_zenflow_spec *z = spec_of(engine);
    if (done + 1 <= z->warm_up || every(z->select_every, done + 1)) {
        return true;
    }
    return z->weighs ? weighs_enough(engine) : every(z->update_every, done + 1 - z->warm_up);
}

static ds_status wait_for_rest(ds_engine *engine)
{
    const ds_status status = dsi_zenflow_finish(engine);
    engine->broken = engine->broken || status < 0;
    return status;
}

/* Forward passes see the update of the rest that was started last. */
static ds_status take(ds_engine *engine)
{
    if (!engine->zenflow.late) {
        return DS_OK;
    }
    DS_TRY(wait_for_rest(engine));
    DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_TAKE));
    engine->zenflow.late = false;
    return DS_OK;
}

/* Master weights are up to date in chosen columns too. */
static ds_status settle(ds_engine *engine)
{
    const dsi_zenflow_state *s = &engine->zenflow;
    DS_TRY(wait_for_rest(engine));
    return s->chosen && !s->fetch ? dsi_engine_run_phase(engine, DS_PHASE_SETTLE) : DS_OK;
}

static ds_status choose(ds_engine *engine, int64_t done)
{
    const dsi_zenflow_spec *z = spec_of(engine);
    dsi_zenflow_state *s = &engine->zenflow;
    if (done >= z->warm_up && (!s->chosen || every(z->select_every, done))) {
        DS_TRY(settle(engine));
        DS_TRY(take(engine)); /* with what the columns were that will be of the rest */
        DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_CHOOSE));
        s->chosen = s->fetch = true;
        s->chosen_updates = 0;
    }
    if (s->fetch) {
        DS_TRY(wait_for_rest(engine));
        DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_FETCH));
        s->fetch = false;
    }
    return DS_OK;
}

/* With Adam's decay the moments of a chosen column in the rest depend on its master, which must not
 * depend on whether somebody has read it. */
static bool moments_see_weights(const ds_engine *engine)
{
    return !engine->spec.train.decoupled_decay && engine->spec.weight_decay != 0.0;
}

/* Hands what waits to an update that runs beside the next steps. */
static ds_status start_rest(ds_engine *engine)
{
    const ds_cell *pairs = engine->late_pairs;
    dsi_exec_exchange(engine->exec, pairs, pairs + engine->n_late_pairs, engine->n_late_pairs);
    DS_TRY(dsi_exec_start(engine->exec, engine->train_id));
    engine->phases_run |= 1u << DS_PHASE_REST;
    engine->zenflow.late = true;
    return DS_OK;
}

/* `done` updates are done, this one not counted: in the warm-up nothing is late. */
static ds_status update_rest(ds_engine *engine, int64_t done)
{
    const bool late = spec_of(engine)->overlap;
    dsi_zenflow_state *s = &engine->zenflow;
    DS_TRY(take(engine));
    DS_TRY(moments_see_weights(engine) ? settle(engine) : DS_OK);
    dsi_engine_write_hyper(engine, engine->own.zenflow.rest_hyper, s->rest_updates + 1);
    write_real(engine, engine->own.zenflow.factor, 1.0 / (double)s->waiting);
    DS_TRY(late ? start_rest(engine) : dsi_engine_run_phase(engine, DS_PHASE_REST));
    DS_TRY(done < spec_of(engine)->warm_up ? take(engine) : DS_OK);
    s->rest_updates += 1;
    s->waiting = 0;
    return DS_OK;
}

ds_status dsi_zenflow_update(ds_engine *engine)
{
    const int64_t done = dsi_engine_updates(engine);
    dsi_zenflow_state *s = &engine->zenflow;
    write_real(engine, engine->own.zenflow.more, s->waiting > 0 ? 1.0 : 0.0);
    DS_TRY(choose(engine, done));
    DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_POSTPONE));
    s->waiting += 1;
    if (rest_is_due(engine, done)) {
        DS_TRY(update_rest(engine, done));
    }
    dsi_engine_write_hyper(engine, engine->own.zenflow.chosen_hyper, s->chosen_updates + 1);
    DS_TRY(dsi_engine_run_phase(engine, DS_PHASE_UPDATE));
    s->chosen_updates += s->chosen ? 1 : 0;
    return DS_OK;
}
