/* SPDX-License-Identifier: Apache-2.0 */
/* A phase on an accelerator with streams. What the plan says of streams and events is what is done:
 * a stream of the device for each role and set, an event for each of the plan's, recorded behind
 * the step that the plan names and waited for where it says so; at the begin of a phase the fork.
 * Called by exec_run.c; where an accelerator has no streams, none of this runs.
 *
 * Invariants:
 *  1. no step is ordered but by its stream, the plan's events, the fork, and 2;
 *  2. collectives and transfers of the disk are the host's: it begins one when the stream of its
 *     START has passed what that waits for, and waits for its end where the plan has the WAIT;
 *  3. the host touches memory that steps touch only behind dsi_exec_arrive;
 *  4. streams of the concurrent phase never wait for others: the host does, in start and finish;
 *  5. steps of the host's are calls of a stream, as long as the accelerator has them; else as 2,
 * and so in the concurrent phase: its thread has nothing else to do, and a long call would keep
 *     those of the other set waiting.
 */
#include "exec/exec_state.h"

#include <stdio.h>
#include <string.h>

enum { ROLES = DSI_PLAN_STREAM_COUNT };

/* Whether some plan has a stream of this role in this set. */
static bool has_role(const dsi_exec *exec, bool side, uint32_t role)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_plan *plan = exec->plans[i].plan;
        for (uint32_t q = 0; q < plan->n_streams; ++q) {
            if (plan->streams[q].side == side && plan->streams[q].role == role) {
                return true;
            }
        }
    }
    return role == DSI_PLAN_STREAM_COMPUTE && !side;
}

static ds_status open_set(dsi_exec *exec, bool side)
{
    const ds_accel_streams *t = exec->accel->streams;
    ds_ctx *ctx = side ? dsi_side_thread_ctx(exec->side_thread) : exec->ctx;
    for (uint32_t role = 0; role < ROLES; ++role) {
        if (has_role(exec, side, role)) {
            DS_TRY(t->create(exec->device, ctx, &exec->queues[side][role]));
        }
    }
    return t->event_create(exec->device, ctx, &exec->forks[side]);
}

ds_status dsi_exec_open_streams(dsi_exec *exec)
{
    const ds_accel_streams *t = exec->accel->streams;
    if (t == NULL) {
        return DS_OK;
    }
    DS_TRY(open_set(exec, false));
    DS_TRY(exec->side_thread != NULL ? open_set(exec, true) : DS_OK);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t e = 0; e < l->plan->n_events; ++e) {
            const bool side = l->plan->steps[l->plan->events[e]].phase == l->plan->side;
            ds_ctx *ctx = side ? dsi_side_thread_ctx(exec->side_thread) : exec->ctx;
            DS_TRY(t->event_create(exec->device, ctx, &l->events[e]));
        }
    }
    return DS_OK;
}

void dsi_exec_close_streams(dsi_exec *exec)
{
    const ds_accel_streams *t = exec->accel->streams;
    if (t == NULL) {
        return;
    }
    exec->n_held = 0; /* nobody asks for it any more */
    (void)dsi_exec_arrive(exec);
    dsi_exec_drop_graphs(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t e = 0; l->events != NULL && e < l->plan->n_events; ++e) {
            t->event_destroy(&l->events[e]);
        }
    }
    for (uint32_t set = 0; set < 2; ++set) {
        t->event_destroy(&exec->forks[set]);
        for (uint32_t role = 0; role < ROLES; ++role) {
            t->destroy(&exec->queues[set][role]);
        }
    }
}

ds_accel_stream *dsi_exec_computing(const dsi_exec *exec, bool side)
{
    return exec->queues[side][DSI_PLAN_STREAM_COMPUTE];
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* The step of a call, for the message. */
static ds_status name_failed(const dsi_exec *exec, const ds_kernel_call *call, ds_status status)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        const size_t n_steps = l->plan->n_steps;
        if (call >= l->calls && call < l->calls + n_steps * l->plan->n_slots) {
            const uint32_t s = (uint32_t)((size_t)(call - l->calls) % n_steps);
            return dsi_exec_fail_step(exec, call->ctx, l->plan, s, status);
        }
    }
    return status;
}

/* *named_out: the message names a step. */
ds_status dsi_exec_wait_stream(const dsi_exec *exec, ds_accel_stream *stream, bool *named_out)
{
    const ds_kernel_call *failed = NULL;
    const ds_status status = exec->accel->streams->synchronize(stream, &failed);
    *named_out = status < 0 && failed != NULL;
    return *named_out ? name_failed(exec, failed, status) : status;
}

ds_status dsi_exec_wait_set(const dsi_exec *exec, bool side, bool *named_out)
{
    ds_status first = DS_OK;
    char text[1024] = "";
    for (uint32_t role = 0; role < ROLES; ++role) {
        ds_accel_stream *queue = exec->queues[side][role];
        bool named = false;
        const ds_status status = queue != NULL ? dsi_exec_wait_stream(exec, queue, &named) : DS_OK;
        if (status < 0 && first >= 0) {
            first = status;
            *named_out = named;
            (void)snprintf(text, sizeof text, "%s",
                           ds_ctx_error(side ? dsi_side_thread_ctx(exec->side_thread) : exec->ctx));
        }
    }
    return first < 0 ? ds_fail(side ? dsi_side_thread_ctx(exec->side_thread) : exec->ctx, first,
                               "%s", text)
                     : DS_OK;
}

/* All streams but those of the concurrent phase. The first failure stays in `late`; what was queued
 * behind it has computed with what it left. */
static void wait_for_all(dsi_exec *exec)
{
    bool named = false;
    const ds_kernel_call *failed = NULL;
    ds_status status = dsi_exec_wait_set(exec, false, &named);
    const ds_status of_host = dsi_exec_take_host_failure(exec, &failed);
    if (of_host < 0) {
        status = name_failed(exec, failed, of_host);
        status = ds_fail(exec->ctx, status, "%s", ds_ctx_error(exec->host->ctx));
    }
    if (status < 0 && exec->late >= 0) {
        exec->late = status;
        (void)snprintf(exec->late_text, sizeof exec->late_text, "%s", ds_ctx_error(exec->ctx));
    }
    exec->overtook = exec->overtook || (status < 0 && exec->changes);
    exec->changes = false;
}

ds_status dsi_exec_look(dsi_exec *exec)
{
    const ds_status released = dsi_exec_release(exec);
    if (released < 0 && exec->late >= 0) {
        exec->late = released;
        (void)snprintf(exec->late_text, sizeof exec->late_text, "%s", ds_ctx_error(exec->ctx));
    }
    if (dsi_exec_computing(exec, false) != NULL) {
        wait_for_all(exec);
    }
    return exec->late < 0 ? ds_fail(exec->ctx, exec->late, "%s", exec->late_text) : DS_OK;
}

ds_status dsi_exec_arrive(dsi_exec *exec)
{
    const ds_status status = dsi_exec_look(exec);
    exec->late = DS_OK;
    return status;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A transfer between device memory and the host's. */
static ds_status copy_cell(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                           ds_accel_stream *queue)
{
    const dsi_step *step = &l->plan->steps[s];
    const bool write = step->op->role == DS_ROLE_SWAP_OUT;
    const ds_cell cell = l->plan->refs[step->in_at].cell;
    const uint32_t slot = dsi_exec_slot_of(exec, l, step);
    const size_t at = (size_t)slot * l->plan->n_refs + (write ? step->in_at + 1 : step->out_at);
    void *memory = l->tensors[at].data;
    void *host = dsi_swap_host(exec->swap, cell, slot);
    return exec->accel->streams->copy(queue, write ? host : memory, write ? memory : host,
                                      ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta));
}

bool dsi_exec_is_of_host(const dsi_exec *exec, const dsi_loaded *l, uint32_t s)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->on_host) {
        return exec->accel->streams->call == NULL || step->phase == l->plan->side;
    }
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        const ds_cell cell = l->plan->refs[step->in_at].cell;
        return dsi_exec_residency_of(exec, cell).where != DSI_RESIDENCY_HOST;
    }
    return step->kernel == NULL && step->op->role != DS_ROLE_TAKE_SLICE;
}

static ds_status queue_work(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                            ds_accel_stream *queue)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->on_host) {
        return dsi_exec_queue_on_host(exec, l, s, queue);
    }
    if (step->kernel != NULL) {
        return exec->accel->streams->launch(queue, step->kernel, dsi_exec_call_of(exec, l, s));
    }
    return step->op->role == DS_ROLE_TAKE_SLICE ? dsi_exec_take(exec, l, s, queue)
                                                : copy_cell(exec, l, s, queue);
}

ds_status dsi_exec_stream_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                               dsi_exec_times *times, bool *named_out)
{
    const ds_accel_streams *t = exec->accel->streams;
    const dsi_plan *plan = l->plan;
    const dsi_step *step = &plan->steps[s];
    const dsi_plan_stream *stream = &plan->streams[step->stream];
    ds_accel_stream *queue = exec->queues[stream->side][stream->role];
    const bool waits = step->kind == DSI_STEP_WAIT;
    const bool of_host = dsi_exec_is_of_host(exec, l, waits ? step->start : s);
    for (uint32_t i = 0; i < step->n_waits && !(waits && of_host); ++i) {
        DS_TRY(t->wait(queue, l->events[plan->waits[step->wait_at + i]]));
    }
    if (of_host) {
        DS_TRY(waits ? DS_OK : dsi_exec_wait_stream(exec, queue, named_out));
        DS_TRY(dsi_exec_host_step(exec, l, s, times));
    } else if (!waits) {
        DS_TRY(queue_work(exec, l, s, queue));
    }
    return step->event != DS_NONE ? t->record(queue, l->events[step->event]) : DS_OK;
}

ds_status dsi_exec_fork(const dsi_exec *exec, bool side)
{
    const ds_accel_streams *t = exec->accel->streams;
    DS_TRY(t->record(dsi_exec_computing(exec, side), exec->forks[side]));
    for (uint32_t role = 0; role < ROLES; ++role) {
        ds_accel_stream *queue = exec->queues[side][role];
        if (queue != NULL && role != DSI_PLAN_STREAM_COMPUTE) {
            DS_TRY(t->wait(queue, exec->forks[side]));
        }
    }
    return DS_OK;
}
