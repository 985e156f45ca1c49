/* SPDX-License-Identifier: Apache-2.0 */
/* Phases as captured graphs, on accelerators that have them: a phase whose steps are all the
 * device's and whose events order nothing outside of it is captured once, for each slot, with its
 * fork and the copies of its numbers, and queued by one call from then on. The order is that of
 * exec_stream.c, whose calls are what is captured. When operands get other addresses
 * (dsi_exec_relink) all is captured again before the next phase. Phases that are joined
 * (exec_join.c) are captured together as well. Called by exec_run.c and exec_memory.c. The
 * concurrent phase is never captured.
 */
#include "exec/exec_state.h"

#include <stdio.h>
#include <stdlib.h>

/* What keeps a step out of a capture of its phase; NULL: nothing. */
static const char *why_not_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s)
{
    const dsi_plan *plan = l->plan;
    const dsi_step *step = &plan->steps[s];
    const bool waits = step->kind == DSI_STEP_WAIT;
    if (dsi_exec_is_of_host(exec, l, waits ? step->start : s)) {
        return "the host begins it and waits for its end";
    }
    if (waits && plan->steps[step->start].phase != step->phase) {
        return "it ends what another phase has started";
    }
    for (uint32_t i = 0; i < step->n_waits; ++i) {
        const uint32_t event = plan->waits[step->wait_at + i];
        if (plan->steps[plan->events[event]].phase != step->phase) {
            return "it waits for another phase";
        }
    }
    return NULL;
}

/* The step of another phase that waits for one of this; DS_NONE: there is none. */
static uint32_t awaited_outside(const dsi_plan *plan, ds_phase phase)
{
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_waits && step->phase != phase; ++i) {
            if (plan->steps[plan->events[plan->waits[step->wait_at + i]]].phase == phase) {
                return s;
            }
        }
    }
    return DS_NONE;
}

/* What keeps a phase from being captured, and the step that does; NULL: nothing. */
static const char *why_not(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase,
                           uint32_t *step_out)
{
    const dsi_plan *plan = l->plan;
    const char *why = phase == plan->side ? "it runs beside other phases" : NULL;
    *step_out = plan->phase_begin[phase];
    for (uint32_t s = *step_out; s < plan->phase_begin[phase + 1] && why == NULL; ++s) {
        *step_out = s;
        why = why_not_step(exec, l, s);
    }
    if (why == NULL && awaited_outside(plan, phase) != DS_NONE) {
        *step_out = awaited_outside(plan, phase);
        return "another phase waits for what this one starts";
    }
    return why;
}

static bool can_capture(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase)
{
    uint32_t step = 0;
    return l->plan->phase_begin[phase] < l->plan->phase_begin[phase + 1] &&
           why_not(exec, l, phase, &step) == NULL;
}

/* Other streams with steps of the phase begin behind what the computing stream has to do. */
static ds_status fork_used(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase)
{
    const ds_accel_streams *t = exec->accel->streams;
    const dsi_plan *plan = l->plan;
    bool used[DSI_PLAN_STREAM_COUNT] = {false};
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        used[plan->streams[plan->steps[s].stream].role] = true;
    }
    DS_TRY(t->record(dsi_exec_computing(exec, false), exec->forks[0]));
    for (uint32_t role = 0; role < DSI_PLAN_STREAM_COUNT; ++role) {
        if (used[role] && role != DSI_PLAN_STREAM_COMPUTE) {
            DS_TRY(t->wait(exec->queues[0][role], exec->forks[0]));
        }
    }
    return DS_OK;
}

static ds_status queue_phase(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase)
{
    bool named = false;
    DS_TRY(fork_used(exec, l, phase));
    for (uint32_t s = l->plan->phase_begin[phase]; s < l->plan->phase_begin[phase + 1]; ++s) {
        const ds_status status = dsi_exec_stream_step(exec, l, s, NULL, &named);
        if (status < 0) {
            return dsi_exec_fail_step(exec, exec->ctx, l->plan, s, status);
        }
    }
    return dsi_exec_keep_reals(exec, l, phase, dsi_exec_computing(exec, false));
}

/* Phases, one behind the other. ERR_UNSUPPORTED: the device captures nothing. */
static ds_status capture(const dsi_exec *exec, const dsi_loaded *l, const ds_phase *phases,
                         uint32_t n, ds_accel_graph **graph_out)
{
    const ds_accel_graphs *t = exec->accel->graphs;
    ds_accel_stream *stream = dsi_exec_computing(exec, false);
    ds_status status = t->begin(stream);
    DS_TRY(status);
    for (uint32_t i = 0; i < n && status >= 0; ++i) {
        status = queue_phase(exec, l, phases[i]);
    }
    if (status < 0) { /* the first failure is the one to be told, not that of its capture */
        char why[1024];
        (void)snprintf(why, sizeof why, "%s", ds_ctx_error(exec->ctx));
        (void)t->end(stream, graph_out);
        t->destroy(graph_out);
        return ds_fail(exec->ctx, status, "%s", why);
    }
    return t->end(stream, graph_out);
}

static ds_status capture_plan(dsi_exec *exec, dsi_loaded *l)
{
    const uint32_t n_phases = l->plan->phases.n;
    const uint32_t slot = exec->slot;
    ds_status status = DS_OK;
    for (ds_phase phase = 0; phase < n_phases && status >= 0; ++phase) {
        const bool can = can_capture(exec, l, phase);
        const uint32_t n_slots = dsi_phase_is_micro(&l->plan->phases, phase) ? l->plan->n_slots : 1;
        for (uint32_t k = 0; k < n_slots && can && status >= 0; ++k) {
            exec->slot = k; /* what a step is called with, and where its numbers go */
            status = capture(exec, l, &phase, 1, &l->graphs[(size_t)k * n_phases + phase]);
        }
    }
    exec->slot = slot;
    return status;
}

/* Joined phases of which each can be captured. */
static ds_status capture_joins(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_joins; ++i) {
        dsi_exec_joined *join = &exec->joins[i];
        const dsi_loaded *l = &exec->plans[join->id];
        bool can = l->plan->n_slots == 1;
        for (uint32_t k = 0; k < join->n; ++k) {
            can = can && can_capture(exec, l, join->phases[k]);
        }
        DS_TRY(can ? capture(exec, l, join->phases, join->n, &join->graph) : DS_OK);
    }
    return DS_OK;
}

static ds_status capture_all(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        dsi_loaded *l = &exec->plans[i];
        l->graphs = calloc((size_t)l->plan->n_slots * l->plan->phases.n + 1, sizeof *l->graphs);
        if (l->graphs == NULL) {
            return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for captured phases");
        }
        DS_TRY(capture_plan(exec, l));
    }
    return capture_joins(exec);
}

ds_status dsi_exec_capture(dsi_exec *exec)
{
    exec->graphs_stale = false;
    if (exec->accel->graphs == NULL) {
        return DS_OK;
    }
    DS_TRY(dsi_exec_arrive(exec));
    dsi_exec_drop_graphs(exec);
    const ds_status status = capture_all(exec);
    if (status < 0) {
        dsi_exec_drop_graphs(exec);
    }
    return status == DS_ERR_UNSUPPORTED ? DS_OK : status;
}

void dsi_exec_drop_graphs(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        dsi_loaded *l = &exec->plans[i];
        for (size_t k = 0; l->graphs != NULL && k < (size_t)l->plan->n_slots * l->plan->phases.n;
             ++k) {
            exec->accel->graphs->destroy(&l->graphs[k]);
        }
        free(l->graphs);
        l->graphs = NULL;
    }
    for (uint32_t i = 0; i < exec->n_joins && exec->accel->graphs != NULL; ++i) {
        exec->accel->graphs->destroy(&exec->joins[i].graph);
    }
}

void dsi_exec_captured_text(const dsi_exec *exec, uint32_t id, dsi_buf *text)
{
    const dsi_loaded *l = &exec->plans[id];
    const dsi_plan *plan = l->plan;
    const char *word = "captured: ";
    for (ds_phase phase = 0; phase < plan->phases.n && l->graphs != NULL; ++phase) {
        if (l->graphs[phase] != NULL) {
            dsi_buf_printf(text, "%s%s", word, plan->phases.items[phase].name);
            word = ", ";
        }
    }
    for (ds_phase phase = 0; phase < plan->phases.n && l->graphs != NULL; ++phase) {
        uint32_t step = 0;
        const bool empty = plan->phase_begin[phase] == plan->phase_begin[phase + 1];
        const char *why = empty ? NULL : why_not(exec, l, phase, &step);
        if (why != NULL) {
            dsi_buf_printf(text, "%s%s is not: step %u (%s of %s): %s",
                           dsi_buf_text(text)[0] != '\0' ? "; " : "",
                           plan->phases.items[phase].name, step, plan->steps[step].op->name,
                           plan->steps[step].scope, why);
        }
    }
    for (uint32_t i = 0; i < exec->n_joins; ++i) {
        const dsi_exec_joined *join = &exec->joins[i];
        for (uint32_t k = 0; k < join->n && join->graph != NULL && join->id == id; ++k) {
            dsi_buf_printf(text, "%s%s", k == 0 ? "; as one launch: " : " + ",
                           plan->phases.items[join->phases[k]].name);
        }
    }
}

ds_accel_graph *dsi_exec_graph_of(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase)
{
    const bool micro = dsi_phase_is_micro(&l->plan->phases, phase);
    const uint32_t slot = micro && exec->slot < l->plan->n_slots ? exec->slot : 0;
    return l->graphs != NULL && phase != l->plan->side
               ? l->graphs[(size_t)slot * l->plan->phases.n + phase]
               : NULL;
}
