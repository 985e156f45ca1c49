/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that have run in the backward pass, before the norm was known (super_offload): whether
 * they are the step's, or are undone and perhaps done again. A piece of the training program
 * (engine_program.c); the phases are those of pass/offload_speculate.c. */
#include "train/engine_actions.h"

/* Behind the numbers that they read, in the backward pass: from here on states may be ahead. */
static ds_status note_numbers(void *user)
{
    ds_engine *engine = user;
    engine->undecided = true;
    engine->numbers_at = dsi_exec_known_writes(engine->exec);
    return DS_OK;
}
const dsi_program_action dsi_engine_note_numbers = {"note_numbers", note_numbers};

/* Whether they are what the step's updates would have been: gradients are applied as they are, by
 * the numbers of then. Behind the norm, where the host waits for the device anyway. */
static ds_status judge_updates(void *user)
{
    ds_engine *engine = user;
    double factor = 0.0;
    DS_TRY(dsi_exec_real(engine->exec, engine->train_id, "grad_factor", &factor));
    engine->accepted = engine->applied &&
                       (float)factor == (float)dsi_engine_inverse_scale(engine) &&
                       engine->numbers_at == dsi_exec_known_writes(engine->exec);
    engine->undone_updates += engine->accepted ? 0 : 1;
    return DS_OK;
}
const dsi_program_action dsi_engine_judge_updates = {"judge_updates", judge_updates};

static bool is_accepted(const void *user)
{
    return ((const ds_engine *)user)->accepted;
}
static const dsi_program_test updates_accepted = {"updates_accepted", is_accepted};

static bool is_undone(const void *user)
{
    return !((const ds_engine *)user)->accepted;
}
static const dsi_program_test updates_undone = {"updates_undone", is_undone};

static bool is_redone(const void *user)
{
    const ds_engine *engine = user;
    return engine->applied && !engine->accepted;
}
static const dsi_program_test updates_redone = {"updates_redone", is_redone};

/* States are those of the step, or of before it, as far as the host knows: what a device reports
 * later is the executor's (dsi_exec_has_lost). */
static ds_status end_decision(void *user)
{
    ((ds_engine *)user)->undecided = false;
    return DS_OK;
}
static const dsi_program_action end_decision_action = {"end_decision", end_decision};

static void add_phase(dsi_program *p, const dsi_program_test *test, ds_phase phase)
{
    dsi_program_if(p, test);
    dsi_program_run(p, DSI_PLAN_TRAIN, phase, 0);
    dsi_program_end(p);
}

void dsi_engine_add_decision(const ds_engine *engine, dsi_program *p)
{
    const dsi_train_phases *phases = &engine->own.phases;
    add_phase(p, &updates_accepted, phases->accept);
    add_phase(p, &updates_undone, phases->undo);
    add_phase(p, &updates_redone, phases->redo);
    dsi_program_do(p, &end_decision_action);
}
