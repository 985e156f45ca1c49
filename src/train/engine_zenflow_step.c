/* SPDX-License-Identifier: Apache-2.0 */
/* ZenFlow's piece of the training program: which of its phases a step runs, and with which values.
 * The schedule is a function of the updates done so far, of the configuration, and, where the
 * interval of the rest is found by weighing, of exact sums: the same on every rank.
 * docs/internals/zenflow.md.
 *
 * With overlap an update of the rest is started in one step and taken in a later one, which the
 * same schedule sets: never when it happens to end. */
#include "train/engine_actions.h"

static const dsi_zenflow_spec *spec_of(const ds_engine *engine)
{
    return &engine->spec.train.zenflow;
}

static dsi_zenflow_state *state_of(void *user)
{
    return &((ds_engine *)user)->zenflow;
}

static const dsi_zenflow_state *state_now(const void *user)
{
    return &((const ds_engine *)user)->zenflow;
}

static bool is_weights(const ds_cell_info *info)
{
    return info->kind == DS_CELL_CHOSEN && info->meta.dtype == DS_DTYPE_F64;
}

/* ---- what is due ----------------------------------------------------------------------------- */

/* Whether the magnitudes that wait for an element of the rest are as large as those of a step for a
 * chosen one, in enough of the matrices. */
static ds_status weighs_enough(const ds_engine *engine, bool *enough_out)
{
    int64_t all = 0;
    int64_t due = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        if (!is_weights(info)) {
            continue;
        }
        double weights[2] = {0.0, 0.0};
        DS_TRY(dsi_exec_read(engine->exec, c, 0, weights, sizeof weights));
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
    *enough_out = due >= (needed > 0 ? needed : 1);
    return DS_OK;
}

static bool every(int64_t interval, int64_t step)
{
    return interval > 0 && step % interval == 0;
}

/* `done` updates are done, this one not counted. Warm-up updates everything; what waits is not kept
 * beyond a new choice. */
static ds_status rest_is_due(const ds_engine *engine, int64_t done, bool *due_out)
{
    const dsi_zenflow_spec *z = spec_of(engine);
    if (done + 1 <= z->warm_up || every(z->select_every, done + 1)) {
        *due_out = true;
        return DS_OK;
    }
    if (z->weighs) {
        return weighs_enough(engine, due_out);
    }
    *due_out = every(z->update_every, done + 1 - z->warm_up);
    return DS_OK;
}

static ds_status begin(void *user)
{
    ds_engine *engine = user;
    const dsi_zenflow_spec *z = spec_of(engine);
    const int64_t done = dsi_engine_updates(engine);
    dsi_zenflow_state *s = state_of(user);
    s->choosing = done >= z->warm_up && (!s->chosen || every(z->select_every, done));
    return dsi_exec_write_real(engine->exec, engine->own.zenflow.more, s->waiting > 0 ? 1.0 : 0.0);
}
static const dsi_program_action begin_action = {"zenflow_begin", begin};

static bool is_choosing(const void *user)
{
    return state_now(user)->choosing;
}
static const dsi_program_test choosing = {"columns_are_chosen", is_choosing};

static bool is_due(const void *user)
{
    return state_now(user)->due;
}
static const dsi_program_test rest_due = {"rest_is_due", is_due};

static bool is_warm_up(const void *user)
{
    const ds_engine *engine = user;
    return dsi_engine_updates(engine) < spec_of(engine)->warm_up;
}
static const dsi_program_test warm_up = {"warm_up", is_warm_up};

/* ---- the side stream ------------------------------------------------------------------------- */

static ds_status wait_for_side(void *user)
{
    ds_engine *engine = user;
    const ds_status status = dsi_zenflow_finish(engine);
    engine->broken = engine->broken || status < 0;
    return status;
}
static const dsi_program_action wait_action = {"wait_for_side", wait_for_side};

static bool is_late(const void *user)
{
    return state_now(user)->late;
}
static const dsi_program_test late = {"rest_is_late", is_late};

static ds_status count_take(void *user)
{
    state_of(user)->late = false;
    return DS_OK;
}
static const dsi_program_action count_take_action = {"count_take", count_take};

/* What waits goes to an update on the side stream. */
static ds_status hand_over(void *user)
{
    const ds_engine *engine = user;
    const ds_cell *pairs = engine->late_pairs;
    dsi_exec_exchange(engine->exec, pairs, pairs + engine->n_late_pairs, engine->n_late_pairs);
    return DS_OK;
}
static const dsi_program_action hand_over_action = {"exchange_waiting", hand_over};

static ds_status count_start(void *user)
{
    state_of(user)->late = true;
    return DS_OK;
}
static const dsi_program_action count_start_action = {"count_start", count_start};

/* Forward passes see the update of the rest that was started last. */
static void add_take(const ds_engine *engine, dsi_program *p)
{
    if (spec_of(engine)->overlap) {
        dsi_program_if(p, &late);
        dsi_program_do(p, &wait_action);
        dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.zenflow.take, 0);
        dsi_program_do(p, &count_take_action);
        dsi_program_end(p);
    }
}

static bool has_newer_columns(const void *user)
{
    return state_now(user)->chosen && !state_now(user)->fetch;
}
static const dsi_program_test newer_columns = {"columns_are_newer", has_newer_columns};

/* Master weights are up to date in chosen columns too. */
static void add_drain(const ds_engine *engine, dsi_program *p)
{
    dsi_program_do(p, &wait_action);
    dsi_program_if(p, &newer_columns);
    dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.zenflow.settle, 0);
    dsi_program_end(p);
}

/* ---- columns --------------------------------------------------------------------------------- */

static ds_status count_choice(void *user)
{
    dsi_zenflow_state *s = state_of(user);
    s->chosen = s->fetch = true;
    s->chosen_updates = 0;
    return DS_OK;
}
static const dsi_program_action count_choice_action = {"count_choice", count_choice};

static bool is_fetching(const void *user)
{
    return state_now(user)->fetch;
}
static const dsi_program_test fetching = {"columns_are_read_again", is_fetching};

static ds_status count_fetch(void *user)
{
    state_of(user)->fetch = false;
    return DS_OK;
}
static const dsi_program_action count_fetch_action = {"count_fetch", count_fetch};

static void add_choice(const ds_engine *engine, dsi_program *p)
{
    const dsi_zenflow_phases *phases = &engine->own.phases.zenflow;
    dsi_program_if(p, &choosing);
    add_drain(engine, p);
    add_take(engine, p); /* with what the columns were that will be of the rest */
    dsi_program_run(p, DSI_PLAN_TRAIN, phases->choose, 0);
    dsi_program_do(p, &count_choice_action);
    dsi_program_end(p);
    dsi_program_if(p, &fetching);
    dsi_program_do(p, &wait_action);
    dsi_program_run(p, DSI_PLAN_TRAIN, phases->fetch, 0);
    dsi_program_do(p, &count_fetch_action);
    dsi_program_end(p);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static ds_status count_postponed(void *user)
{
    dsi_zenflow_state *s = state_of(user);
    s->waiting += 1;
    return rest_is_due(user, dsi_engine_updates(user), &s->due);
}
static const dsi_program_action count_postponed_action = {"count_postponed", count_postponed};

static ds_status write_rest_numbers(void *user)
{
    ds_engine *engine = user;
    const dsi_zenflow_cells *own = &engine->own.zenflow;
    const dsi_zenflow_state *s = state_of(user);
    DS_TRY(dsi_engine_write_hyper(engine, own->rest_hyper, s->rest_updates + 1));
    return dsi_exec_write_real(engine->exec, own->factor, 1.0 / (double)s->waiting);
}
static const dsi_program_action rest_numbers = {"write_rest_numbers", write_rest_numbers};

static ds_status count_rest(void *user)
{
    dsi_zenflow_state *s = state_of(user);
    s->rest_updates += 1;
    s->waiting = 0;
    return DS_OK;
}
static const dsi_program_action count_rest_action = {"count_rest", count_rest};

/* With Adam's decay the moments of a chosen column in the rest depend on its master, which must not
 * depend on whether somebody has read it. */
static bool moments_see_weights(const ds_engine *engine)
{
    return !engine->spec.train.decoupled_decay && engine->spec.weight_decay != 0.0;
}

/* In the warm-up nothing is late. */
static void add_rest(const ds_engine *engine, dsi_program *p)
{
    dsi_program_if(p, &rest_due);
    add_take(engine, p);
    if (moments_see_weights(engine)) {
        add_drain(engine, p);
    }
    dsi_program_do(p, &rest_numbers);
    if (spec_of(engine)->overlap) {
        dsi_program_do(p, &hand_over_action);
        dsi_program_start(p, DSI_PLAN_TRAIN);
        dsi_program_do(p, &count_start_action);
        dsi_program_if(p, &warm_up);
        add_take(engine, p);
        dsi_program_end(p);
    } else {
        dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.zenflow.rest, 0);
    }
    dsi_program_do(p, &count_rest_action);
    dsi_program_end(p);
}

/* ---- chosen columns -------------------------------------------------------------------------- */

static ds_status write_chosen_numbers(void *user)
{
    ds_engine *engine = user;
    return dsi_engine_write_hyper(engine, engine->own.zenflow.chosen_hyper,
                                  engine->zenflow.chosen_updates + 1);
}
static const dsi_program_action chosen_numbers = {"write_chosen_numbers", write_chosen_numbers};

static ds_status count_chosen(void *user)
{
    dsi_zenflow_state *s = state_of(user);
    s->chosen_updates += s->chosen ? 1 : 0;
    return DS_OK;
}
static const dsi_program_action count_chosen_action = {"count_chosen", count_chosen};

void dsi_zenflow_program(const ds_engine *engine, dsi_program *p)
{
    dsi_program_do(p, &begin_action);
    add_choice(engine, p);
    dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.zenflow.postpone, 0);
    dsi_program_do(p, &count_postponed_action);
    add_rest(engine, p);
    dsi_program_do(p, &chosen_numbers);
    dsi_program_run(p, DSI_PLAN_TRAIN, engine->own.phases.update, 0);
    dsi_program_do(p, &count_chosen_action);
}
