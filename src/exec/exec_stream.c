/* SPDX-License-Identifier: Apache-2.0 */
/* A phase on an accelerator with streams: kernels on one, copies from and to the host on two more,
 * each step ordered by events as its START and WAIT say. Called by exec_run.c; where an accelerator
 * has no streams, none of this runs.
 *
 * Invariants:
 *  1. what a START queues runs behind all steps before it, and before all behind its WAIT;
 *  2. collectives and transfers of the disk are begun by the host, when their stream has come so
 *     far;
 *  3. the host touches memory that steps touch only behind dsi_exec_arrive;
 *  4. the concurrent phase has a stream of its own, which other streams never wait for: the host
 *     does, in start and finish.
 */
#include "exec/exec_state.h"

#include <stdio.h>
#include <string.h>

static ds_status make_events(const dsi_exec *exec, dsi_loaded *l)
{
    for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
        const dsi_step *step = &l->plan->steps[s];
        if ((step->op->flags & DS_OP_SWAP) != 0 && step->kind != DSI_STEP_WAIT) {
            DS_TRY(exec->accel->streams->event_create(exec->device, exec->ctx, &l->events[s]));
        }
    }
    return DS_OK;
}

ds_status dsi_exec_open_streams(dsi_exec *exec)
{
    const ds_accel_streams *t = exec->accel->streams;
    if (t == NULL) {
        return DS_OK;
    }
    DS_TRY(t->create(exec->device, exec->ctx, &exec->compute));
    DS_TRY(t->create(exec->device, exec->ctx, &exec->load));
    DS_TRY(t->create(exec->device, exec->ctx, &exec->store));
    DS_TRY(t->event_create(exec->device, exec->ctx, &exec->fence));
    if (exec->side_thread != NULL) {
        DS_TRY(t->create(exec->device, dsi_side_thread_ctx(exec->side_thread), &exec->side));
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        DS_TRY(make_events(exec, &exec->plans[i]));
    }
    return DS_OK;
}

void dsi_exec_close_streams(dsi_exec *exec)
{
    const ds_accel_streams *t = exec->accel->streams;
    if (t == NULL) {
        return;
    }
    (void)dsi_exec_arrive(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t s = 0; l->events != NULL && s < l->plan->n_steps; ++s) {
            t->event_destroy(&l->events[s]);
        }
    }
    t->event_destroy(&exec->fence);
    t->destroy(&exec->side);
    t->destroy(&exec->store);
    t->destroy(&exec->load);
    t->destroy(&exec->compute);
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

/* All streams but that of the concurrent phase. The first failure stays in `late`. */
static void wait_for_all(dsi_exec *exec)
{
    ds_accel_stream *const streams[] = {exec->compute, exec->load, exec->store};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; ++i) {
        bool named = false;
        const ds_status status =
            streams[i] != NULL ? dsi_exec_wait_stream(exec, streams[i], &named) : DS_OK;
        if (status < 0 && exec->late >= 0) {
            exec->late = status;
            (void)snprintf(exec->late_text, sizeof exec->late_text, "%s", ds_ctx_error(exec->ctx));
        }
    }
}

ds_status dsi_exec_look(dsi_exec *exec)
{
    if (exec->compute != NULL) {
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

static ds_status copy_cell(const dsi_exec *exec, ds_accel_stream *stream, ds_cell cell, bool write,
                           void *memory)
{
    void *host = dsi_swap_host(exec->swap, cell);
    return exec->accel->streams->copy(stream, write ? host : memory, write ? memory : host,
                                      ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta));
}

/* Between device memory and the host: concurrent with computation where the plan has it so. */
static ds_status host_swap(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                           ds_accel_stream *stream)
{
    const ds_accel_streams *t = exec->accel->streams;
    const dsi_step *step = &l->plan->steps[s];
    const bool write = step->op->role == DS_ROLE_SWAP_OUT;
    const uint32_t memory = write ? step->in_at + 1 : step->out_at;
    const ds_cell cell = l->plan->refs[step->in_at].cell;
    ds_accel_stream *own = write ? exec->store : exec->load;
    if (stream == exec->side) {
        return copy_cell(exec, stream, cell, write, l->tensors[memory].data);
    }
    DS_TRY(t->record(stream, exec->fence));
    DS_TRY(t->wait(own, exec->fence));
    DS_TRY(copy_cell(exec, own, cell, write, l->tensors[memory].data));
    DS_TRY(t->record(own, l->events[s]));
    return step->kind == DSI_STEP_RUN ? t->wait(stream, l->events[s]) : DS_OK;
}

ds_status dsi_exec_stream_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                               ds_accel_stream *stream, dsi_exec_times *times, bool *named_out)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->kernel != NULL) {
        return exec->accel->streams->launch(stream, step->kernel, dsi_exec_call_of(exec, l, s));
    }
    if (step->op->role == DS_ROLE_TAKE_SLICE) {
        return dsi_exec_take(exec, l, s, stream);
    }
    const bool waits = step->kind == DSI_STEP_WAIT;
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        const dsi_step *start = waits ? &l->plan->steps[step->start] : step;
        const ds_cell cell = l->plan->refs[start->in_at].cell;
        if (dsi_exec_residency_of(exec, cell).where == DSI_RESIDENCY_HOST) {
            if (!waits) {
                return host_swap(exec, l, s, stream);
            }
            return stream != exec->side ? exec->accel->streams->wait(stream, l->events[step->start])
                                        : DS_OK;
        }
    }
    DS_TRY(waits ? DS_OK : dsi_exec_wait_stream(exec, stream, named_out));
    return dsi_exec_host_step(exec, l, s, times);
}
