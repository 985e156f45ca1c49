/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a phase of a plan, step by step: kernels, collectives and swaps; on the caller's thread, or
 * on the side thread. A step that fails is named, and swaps that its phase has started are waited
 * for.
 */
#include "exec/exec_state.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

/* ctx: where the kernels of the step report; swaps report to the executor's. */
ds_status dsi_exec_fail_step(const dsi_exec *exec, ds_ctx *ctx, const dsi_plan *plan, uint32_t s,
                             ds_status status)
{
    char reason[1024];
    const dsi_step *step = &plan->steps[s];
    const char *cause = ds_ctx_error(step->kernel != NULL ? ctx : exec->ctx);
    const size_t n = strlen(cause);
    memcpy(reason, cause, n < sizeof reason ? n + 1 : sizeof reason - 1);
    reason[sizeof reason - 1] = '\0';
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        const dsi_step *start = step->kind == DSI_STEP_WAIT ? &plan->steps[step->start] : step;
        const ds_cell_info *cell = ds_cells_get(exec->cells, plan->refs[start->in_at].cell);
        return ds_fail(ctx, status, "step %u (%s of %s %s): %s", s, step->op->name,
                       ds_cell_kind_name(cell->kind), cell->name, reason);
    }
    return ds_fail(ctx, status, "step %u (%s/%s, %s): %s", s, step->op->name,
                   step->kernel != NULL ? step->kernel->name : "comm", step->scope, reason);
}

/* Transfers of a phase that failed, and those that earlier ones have left under way: none may write
 * into the arena when another plan uses it. Those of the step before go on: they are of states that
 * are whole. Other phases' own may belong to another thread. */
static void discard_swaps(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase)
{
    const uint32_t *begin = l->plan->phase_begin;
    for (uint32_t s = begin[phase]; s < begin[phase + 1]; ++s) {
        dsi_swap_discard(exec->swap, &l->swaps[s]);
    }
    for (uint32_t i = 0; i < l->n_crossing; ++i) {
        if (l->crossing[i] < begin[phase]) {
            dsi_swap_discard(exec->swap, &l->swaps[l->crossing[i]]);
        }
    }
}

/* Waits for the swaps that phases of a plan have left in flight, and reports the first that failed.
 * What did not arrive is fetched again. */
static ds_status drain_plan(dsi_exec *exec, dsi_loaded *l)
{
    char text[1024];
    ds_status first = DS_OK;
    for (uint32_t i = 0; i < l->n_crossing; ++i) {
        const uint32_t s = l->crossing[i];
        const ds_status status = dsi_swap_wait(exec->swap, &l->swaps[s], NULL);
        if (status < 0 && first >= 0) {
            first = dsi_exec_fail_step(exec, exec->ctx, l->plan, s, status);
            (void)snprintf(text, sizeof text, "%s", ds_ctx_error(exec->ctx));
        }
        if (status < 0) {
            dsi_swap_discard(exec->swap, &l->swaps[s]);
            l->refetch = true;
        }
    }
    return first < 0 ? ds_fail(exec->ctx, first, "%s", text) : DS_OK;
}

void dsi_exec_note_written(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        exec->plans[i].refetch = true;
    }
}

ds_status dsi_exec_drain(dsi_exec *exec)
{
    DS_TRY(dsi_exec_arrive(exec));
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        DS_TRY(drain_plan(exec, &exec->plans[i]));
    }
    return DS_OK;
}

static ds_status wait_for_swap(const dsi_exec *exec, dsi_swap_ticket *ticket, dsi_exec_times *times)
{
    if (times != NULL && ticket->aio != 0) {
        times->since = times->begin - ticket->begin;
    }
    return dsi_swap_wait(exec->swap, ticket, times != NULL ? &times->work : NULL);
}

static ds_status run_swap(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                          dsi_exec_times *times)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->kind == DSI_STEP_WAIT) {
        return wait_for_swap(exec, &l->swaps[step->start], times);
    }
    const bool write = step->op->role == DS_ROLE_SWAP_OUT;
    const uint32_t slot = dsi_exec_slot_of(exec, l, step);
    const size_t memory = (size_t)slot * l->plan->n_refs + (write ? step->in_at + 1 : step->out_at);
    DS_TRY(dsi_swap_start(exec->swap, l->plan->refs[step->in_at].cell, slot, write,
                          dsi_exec_disk_view(exec, l->tensors[memory].data), &l->swaps[s]));
    return step->kind == DSI_STEP_RUN ? dsi_swap_wait(exec->swap, &l->swaps[s], NULL) : DS_OK;
}

uint32_t dsi_exec_slot_of(const dsi_exec *exec, const dsi_loaded *l, const dsi_step *step)
{
    return dsi_phase_is_micro(&l->plan->phases, step->phase) && exec->slot < l->plan->n_slots
               ? exec->slot
               : 0;
}

/* times: work and waited are filled in; NULL: not asked for. */
static ds_status run_collective(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                                dsi_exec_times *times)
{
    const dsi_step *step = &l->plan->steps[s];
    dsi_comm_times took = {0};
    if (step->kind != DSI_STEP_WAIT) {
        const uint32_t slot = dsi_exec_slot_of(exec, l, step);
        DS_TRY(dsi_exec_count_rows(exec, l, s, slot));
        DS_TRY(dsi_comm_start(l->comms[s], &l->comm_calls[(size_t)slot * l->plan->n_steps + s],
                              &l->tickets[s]));
    }
    if (step->kind != DSI_STEP_START) {
        const uint32_t start = step->kind == DSI_STEP_WAIT ? step->start : s;
        DS_TRY(dsi_comm_wait(l->comms[start], l->tickets[start], times != NULL ? &took : NULL));
    }
    if (times != NULL) {
        times->work = took.seconds;
        times->waited = took.waited;
    }
    return DS_OK;
}

ds_kernel_call *dsi_exec_call_of(const dsi_exec *exec, const dsi_loaded *l, uint32_t s)
{
    const uint32_t slot = dsi_exec_slot_of(exec, l, &l->plan->steps[s]);
    return &l->calls[(size_t)slot * l->plan->n_steps + s];
}

ds_status dsi_exec_host_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                             dsi_exec_times *times)
{
    if (l->plan->steps[s].on_host) {
        return dsi_exec_run_on_host(exec, l, s);
    }
    return (l->plan->steps[s].op->flags & DS_OP_SWAP) != 0 ? run_swap(exec, l, s, times)
                                                           : run_collective(exec, l, s, times);
}

/* stream: NULL where the accelerator has none. */
static ds_status run_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                          ds_accel_stream *stream, dsi_exec_times *times, bool *named_out)
{
    const dsi_step *step = &l->plan->steps[s];
    if (stream != NULL) {
        return dsi_exec_stream_step(exec, l, s, times, named_out);
    }
    if (step->on_host) {
        return dsi_exec_run_on_host(exec, l, s);
    }
    if (step->kernel != NULL) {
        return step->kernel->run(dsi_exec_call_of(exec, l, s));
    }
    if (step->op->role == DS_ROLE_TAKE_SLICE) {
        return dsi_exec_take(exec, l, s, NULL);
    }
    return dsi_exec_host_step(exec, l, s, times);
}

/* On a stream, its time is that until it is done. */
static ds_status run_traced(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                            ds_accel_stream *stream, bool *named_out)
{
    dsi_exec_times times = {.begin = dsi_clock_seconds()};
    DS_TRY(run_step(exec, l, s, stream, &times, named_out));
    DS_TRY(stream != NULL ? dsi_exec_wait_stream(exec, stream, named_out) : DS_OK);
    times.end = dsi_clock_seconds();
    exec->trace(exec->trace_user, &l->plan->steps[s], &times);
    return DS_OK;
}

/* Moves a cell to device memory at once. */
static ds_status fetch(const dsi_exec *exec, const dsi_loaded *l, uint32_t s)
{
    const dsi_step *step = &l->plan->steps[s];
    const ds_cell cell = l->plan->refs[step->in_at].cell;
    void *memory = l->tensors[step->out_at].data;
    if (dsi_exec_residency_of(exec, cell).where == DSI_RESIDENCY_HOST) {
        return exec->accel->memory->copy(exec->device, memory, dsi_swap_host(exec->swap, cell, 0),
                                         ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta));
    }
    DS_TRY(
        dsi_swap_start(exec->swap, cell, 0, false, dsi_exec_disk_view(exec, memory), &l->swaps[s]));
    return dsi_swap_wait(exec->swap, &l->swaps[s], NULL);
}

/* What an earlier phase fetched for this one, once more. Nothing of it is under way: whoever wrote
 * a cell, or got the error of one that did not arrive, has waited. */
static ds_status refetch(dsi_exec *exec, dsi_loaded *l, ds_phase phase)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t i = 0; i < l->n_ahead && l->ahead[i] < plan->phase_begin[phase]; ++i) {
        const uint32_t s = l->ahead[i];
        const ds_status status = fetch(exec, l, s);
        if (status < 0) {
            return dsi_exec_fail_step(exec, exec->ctx, plan, s, status);
        }
    }
    l->refetch = false;
    return DS_OK;
}

/* Where a phase runs. */
typedef struct place_of_run {
    ds_ctx *ctx;             /* as of dsi_exec_fail_step */
    ds_accel_stream *stream; /* NULL: the accelerator has none */
    bool traced;
} place_of_run;

/* What has failed, and what is done about that: transfers still in flight end. */
static ds_status give_up(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase, uint32_t s,
                         const place_of_run *at, ds_status status, bool named)
{
    if (at->stream != NULL && !named) { /* what was queued before may be the reason */
        char reason[1024];
        (void)snprintf(reason, sizeof reason, "%s", ds_ctx_error(at->ctx));
        const ds_status queued = dsi_exec_wait_stream(exec, at->stream, &named);
        status = queued < 0 ? queued : ds_fail(at->ctx, status, "%s", reason);
    }
    const ds_status reported =
        named ? status : dsi_exec_fail_step(exec, at->ctx, l->plan, s, status);
    discard_swaps(exec, l, phase);
    return reported;
}

/* graph: of this phase, and perhaps of others behind it; NULL: it is queued step by step. */
static ds_status run_phase(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase,
                           ds_accel_graph *graph, const place_of_run *at)
{
    const dsi_plan *plan = l->plan;
    const uint32_t begin = plan->phase_begin[phase];
    if (graph != NULL) {
        const ds_status queued = exec->accel->graphs->launch(at->stream, graph);
        return queued < 0 ? give_up(exec, l, phase, begin, at, queued, false) : DS_OK;
    }
    const ds_status forked = at->stream != NULL ? dsi_exec_fork(exec, phase == plan->side) : DS_OK;
    if (forked < 0) {
        return give_up(exec, l, phase, begin < plan->n_steps ? begin : 0, at, forked, false);
    }
    for (uint32_t s = begin; s < plan->phase_begin[phase + 1]; ++s) {
        bool named = false;
        const ds_status status = at->traced ? run_traced(exec, l, s, at->stream, &named)
                                            : run_step(exec, l, s, at->stream, NULL, &named);
        if (status < 0) {
            return give_up(exec, l, phase, s, at, status, named);
        }
    }
    return dsi_exec_keep_reals(exec, l, phase, at->stream);
}

ds_status dsi_exec_run(dsi_exec *exec, uint32_t id, ds_phase phase)
{
    bool put_off = false;
    if (id >= exec->n_plans || exec->map == NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "plan %u cannot run yet", id);
    }
    DS_TRY(dsi_exec_put_off(exec, id, phase, &put_off));
    if (!put_off && exec->n_held > 0) { /* it does not go on with that, and may begin anew */
        DS_TRY(dsi_exec_release(exec));
        DS_TRY(dsi_exec_put_off(exec, id, phase, &put_off));
    }
    return put_off ? DS_OK : dsi_exec_run_now(exec, id, phase, NULL);
}

ds_status dsi_exec_run_now(dsi_exec *exec, uint32_t id, ds_phase phase, const dsi_exec_joined *join)
{
    dsi_loaded *l = &exec->plans[id];
    const dsi_phase_info *info = &l->plan->phases.items[phase];
    const bool fetches = l->refetch && info->like == DS_PHASE_BACKWARD;
    if (id != exec->last_id || exec->late < 0 || fetches) { /* plans share the arena */
        DS_TRY(dsi_exec_arrive(exec));
    }
    DS_TRY(exec->graphs_stale ? dsi_exec_capture(exec) : DS_OK);
    exec->changes = exec->changes || dsi_exec_changes(exec, id, phase, join);
    exec->n_launches += l->plan->phase_begin[phase] < l->plan->phase_begin[phase + 1] ? 1 : 0;
    exec->last_id = id;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        DS_TRY(i != id ? drain_plan(exec, &exec->plans[i]) : DS_OK);
    }
    if (info->like == DS_PHASE_FORWARD) {
        l->refetch = false; /* it fetches what is there now */
    } else if (fetches) {
        DS_TRY(refetch(exec, l, phase));
    }
    const place_of_run at = {exec->ctx, dsi_exec_computing(exec, false), exec->trace != NULL};
    if (join != NULL && join->graph == NULL) { /* captured anew, and not this time */
        return ds_fail(exec->ctx, DS_ERR_INTERNAL, "joined phases are captured no longer");
    }
    ds_accel_graph *own = at.traced ? NULL : dsi_exec_graph_of(exec, l, phase);
    const ds_status status = run_phase(exec, l, phase, join != NULL ? join->graph : own, &at);
    /* It may be that of an earlier phase, which a step of this one has waited for. */
    exec->overtook = exec->overtook || (status < 0 && at.stream != NULL && exec->changes);
    return status;
}

/* On the thread of its own. */
static ds_status run_side(void *user)
{
    const dsi_exec *exec = user;
    const dsi_loaded *l = &exec->plans[exec->side_id];
    const place_of_run at = {dsi_side_thread_ctx(exec->side_thread), dsi_exec_computing(exec, true),
                             false};
    bool named = false;
    const ds_status status = run_phase(exec, l, l->plan->side, NULL, &at);
    char reason[1024] = "";
    (void)snprintf(reason, sizeof reason, "%s", status < 0 ? ds_ctx_error(at.ctx) : "");
    /* Also of a phase that failed: nothing of it writes states that are loaded behind it. */
    const ds_status ended = at.stream != NULL ? dsi_exec_wait_set(exec, true, &named) : DS_OK;
    return status < 0 ? ds_fail(at.ctx, status, "%s", reason) : ended;
}

ds_status dsi_exec_start(dsi_exec *exec, uint32_t id)
{
    if (id >= exec->n_plans || exec->side_thread == NULL || exec->plans[id].plan->side == DS_NONE) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "plan %u has no phase on the side stream", id);
    }
    DS_TRY(dsi_exec_arrive(exec));
    exec->side_id = id;
    dsi_side_thread_start(exec->side_thread, run_side, exec);
    return DS_OK;
}

ds_status dsi_exec_finish(dsi_exec *exec)
{
    const ds_status status =
        exec->side_thread != NULL ? dsi_side_thread_finish(exec->side_thread) : DS_OK;
    return status < 0 ? ds_fail(exec->ctx, status, "%s",
                                ds_ctx_error(dsi_side_thread_ctx(exec->side_thread)))
                      : DS_OK;
}

void dsi_exec_drop(dsi_exec *exec)
{
    if (exec->side_thread != NULL) {
        dsi_side_thread_drop(exec->side_thread);
    }
    (void)dsi_exec_arrive(exec);
    exec->overtook = false;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t at = 0; at < l->n_crossing; ++at) {
            dsi_swap_discard(exec->swap, &l->swaps[l->crossing[at]]);
        }
    }
    dsi_swap_forgive(exec->swap);
}
