/* SPDX-License-Identifier: Apache-2.0 */
/* The piece of the training program of the optimizers that exchange signs (1-bit Adam, 1-bit LAMB,
 * 0/1 Adam): which of their phases a step runs in place of the update. Their states are those of
 * engine_onebit.c, which decides what is due. */
#include "train/engine_actions.h"

static bool is_by_mean(const void *user)
{
    return dsi_onebit_due(user) == DSI_ONEBIT_MEAN;
}
const dsi_program_test dsi_onebit_by_mean = {"by_mean_gradient", is_by_mean};

static bool is_by_own(const void *user)
{
    return dsi_onebit_due(user) != DSI_ONEBIT_MEAN;
}
const dsi_program_test dsi_onebit_by_own = {"by_own_gradient", is_by_own};

static bool is_by_signs(const void *user)
{
    return dsi_onebit_due(user) == DSI_ONEBIT_SIGNS;
}
static const dsi_program_test by_signs = {"by_signs", is_by_signs};

static bool is_local(const void *user)
{
    return dsi_onebit_due(user) == DSI_ONEBIT_LOCAL;
}
static const dsi_program_test local = {"local", is_local};

static bool is_sync(const void *user)
{
    return dsi_onebit_syncs(user);
}
static const dsi_program_test sync_due = {"sync_due", is_sync};

static ds_status clear_errors(void *user)
{
    return dsi_onebit_clear_errors(user);
}
const dsi_program_action dsi_onebit_clear = {"clear_errors", clear_errors};

static ds_status count_onebit(void *user)
{
    dsi_onebit_count(user);
    return DS_OK;
}
static const dsi_program_action count_onebit_action = {"count_intervals", count_onebit};

static bool is_first_frozen(const void *user)
{
    return dsi_onebit_freezes(user);
}
static const dsi_program_test first_frozen = {"first_frozen", is_first_frozen};

/* A phase where the test holds. */
static void add_phase(dsi_program *p, const dsi_program_test *test, ds_phase phase)
{
    dsi_program_if(p, test);
    dsi_program_run(p, DSI_PLAN_TRAIN, phase, 0);
    dsi_program_end(p);
}

void dsi_onebit_program(const ds_engine *engine, dsi_program *p)
{
    const dsi_train_phases *phases = &engine->own.phases;
    const bool zero_one = phases->onebit.local != DS_NONE;
    add_phase(p, &dsi_onebit_by_mean, phases->update);
    if (phases->onebit.freeze != DS_NONE) {
        add_phase(p, &first_frozen, phases->onebit.freeze);
    }
    add_phase(p, &by_signs, phases->onebit.frozen);
    if (zero_one) {
        dsi_program_if(p, &first_frozen);
        dsi_program_do(p, &dsi_onebit_clear); /* they were of gradients */
        dsi_program_end(p);
        add_phase(p, &local, phases->onebit.local);
        add_phase(p, &sync_due, phases->onebit.sync);
        dsi_program_do(p, &count_onebit_action);
    }
}
