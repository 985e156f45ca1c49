/* SPDX-License-Identifier: Apache-2.0 */
/* Phases that are launched together: where the caller says that nothing of the host's comes between
 * some phases of a plan, and each of them is captured, they are captured as one piece as well.
 * While the executor holds, a phase that such a piece begins with is put off until the piece is
 * complete, or until the host touches memory or another phase is run: then what was put off runs
 * first, phase by phase where it is no whole piece. Results do not depend on that. Called by
 * exec_run.c and exec_stream.c.
 */
#include "exec/exec_state.h"

#include <string.h>

ds_status dsi_exec_join(dsi_exec *exec, uint32_t id, const ds_phase *phases, uint32_t n)
{
    if (id >= exec->n_plans || n == 0 || n > EXEC_MAX_JOINED || exec->n_joins == EXEC_MAX_JOINS ||
        exec->map != NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "%u phases of plan %u cannot be joined", n, id);
    }
    dsi_exec_joined *join = &exec->joins[exec->n_joins++];
    *join = (dsi_exec_joined){.id = id, .n = n};
    memcpy(join->phases, phases, n * sizeof *phases);
    return DS_OK;
}

static bool begins_with(const dsi_exec_joined *join, uint32_t id, const ds_phase *phases,
                        uint32_t n)
{
    return join->graph != NULL && join->id == id && join->n >= n &&
           memcmp(join->phases, phases, n * sizeof *phases) == 0;
}

ds_status dsi_exec_put_off(dsi_exec *exec, uint32_t id, ds_phase phase, bool *put_off_out)
{
    ds_phase phases[EXEC_MAX_JOINED + 1];
    const uint32_t n = exec->n_held + 1;
    bool goes_on = false;
    *put_off_out = false;
    if (!exec->holds || exec->trace != NULL || (n > 1 && exec->held_id != id)) {
        return DS_OK;
    }
    memcpy(phases, exec->held, exec->n_held * sizeof *phases);
    phases[n - 1] = phase;
    for (uint32_t i = 0; i < exec->n_joins && n <= EXEC_MAX_JOINED; ++i) {
        if (begins_with(&exec->joins[i], id, phases, n)) {
            *put_off_out = true;
            goes_on = goes_on || exec->joins[i].n > n;
        }
    }
    if (*put_off_out) {
        exec->held_id = id;
        exec->held[exec->n_held++] = phase;
    }
    return *put_off_out && !goes_on ? dsi_exec_release(exec) : DS_OK;
}

bool dsi_exec_changes(const dsi_exec *exec, uint32_t id, ds_phase phase,
                      const dsi_exec_joined *join)
{
    const dsi_phases *phases = &exec->plans[id].plan->phases;
    bool any = !dsi_phase_is_forward(phases, phase);
    for (uint32_t i = 0; join != NULL && i < join->n; ++i) {
        any = any || !dsi_phase_is_forward(phases, join->phases[i]);
    }
    return any;
}

/* Of those that were put off, the caller takes all for done. */
static ds_status run_held(dsi_exec *exec, const ds_phase *phases, uint32_t n)
{
    for (uint32_t i = 0; i < exec->n_joins && n > 1; ++i) {
        if (exec->joins[i].n == n && begins_with(&exec->joins[i], exec->held_id, phases, n)) {
            return dsi_exec_run_now(exec, exec->held_id, phases[0], &exec->joins[i]);
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        DS_TRY(dsi_exec_run_now(exec, exec->held_id, phases[i], NULL));
    }
    return DS_OK;
}

ds_status dsi_exec_release(dsi_exec *exec)
{
    ds_phase phases[EXEC_MAX_JOINED];
    const uint32_t n = exec->n_held;
    memcpy(phases, exec->held, n * sizeof *phases);
    exec->n_held = 0; /* what runs now asks for it too */
    const ds_status status = run_held(exec, phases, n);
    for (uint32_t i = 0; i < n && status < 0; ++i) {
        exec->overtook = exec->overtook || dsi_exec_changes(exec, exec->held_id, phases[i], NULL);
    }
    return status;
}

ds_status dsi_exec_hold(dsi_exec *exec, bool holds)
{
    exec->holds = holds;
    return holds ? DS_OK : dsi_exec_release(exec);
}
