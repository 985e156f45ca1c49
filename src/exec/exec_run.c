/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a phase of a plan, step by step: kernels, collectives and swaps; on the caller's thread, or
 * beside it. A step that fails is named, and swaps that its phase has started are waited for.
 */
#include "exec/exec_state.h"

#include "base/clock.h"
#include "op/ops.h"

#include <stdio.h>
#include <string.h>

/* ctx: where the kernels of the step say what failed; swaps say it to the executor's. */
static ds_status fail_step(const dsi_exec *exec, ds_ctx *ctx, const dsi_plan *plan, uint32_t s,
                           ds_status status)
{
    char reason[1024];
    const dsi_step *step = &plan->steps[s];
    const char *said = ds_ctx_error(step->kernel != NULL ? ctx : exec->ctx);
    const size_t n = strlen(said);
    memcpy(reason, said, n < sizeof reason ? n + 1 : sizeof reason - 1);
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

/* Waits for what phases of a plan have left under way, and tells of the first that failed. What did
 * not come is brought again. */
static ds_status settle_plan(dsi_exec *exec, dsi_loaded *l)
{
    char told[1024];
    ds_status first = DS_OK;
    for (uint32_t i = 0; i < l->n_crossing; ++i) {
        const uint32_t s = l->crossing[i];
        const ds_status status = dsi_swap_wait(exec->swap, &l->swaps[s], NULL);
        if (status < 0 && first >= 0) {
            first = fail_step(exec, exec->ctx, l->plan, s, status);
            (void)snprintf(told, sizeof told, "%s", ds_ctx_error(exec->ctx));
        }
        if (status < 0) {
            dsi_swap_discard(exec->swap, &l->swaps[s]);
            l->bring_again = true;
        }
    }
    return first < 0 ? ds_fail(exec->ctx, first, "%s", told) : DS_OK;
}

void dsi_exec_note_written(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        exec->plans[i].bring_again = true;
    }
}

ds_status dsi_exec_settle(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        DS_TRY(settle_plan(exec, &exec->plans[i]));
    }
    return DS_OK;
}

/* The slice that this rank owns, padded with zeros. */
static void take_slice(const dsi_comm *comm, const ds_tensor *x, const ds_tensor *slice)
{
    const size_t size = ds_dtype_bytes(x->meta.dtype);
    const size_t count = (size_t)ds_shape_count(x->meta.shape);
    const size_t length = dsi_comm_slice(count, comm->size);
    const size_t begin = length * comm->rank < count ? length * comm->rank : count;
    const size_t n = count - begin < length ? count - begin : length;
    memcpy(slice->data, (const unsigned char *)x->data + begin * size, n * size);
    memset((unsigned char *)slice->data + n * size, 0, (length - n) * size);
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
    const bool write = step->op == &dsi_op_swap_out;
    const uint32_t memory = write ? step->in_at + 1 : step->out_at;
    DS_TRY(dsi_swap_start(exec->swap, l->plan->refs[step->in_at].cell, write,
                          l->tensors[memory].data, &l->swaps[s]));
    return step->kind == DSI_STEP_RUN ? dsi_swap_wait(exec->swap, &l->swaps[s], NULL) : DS_OK;
}

/* times: work and waited are filled in; NULL: not asked for. */
static ds_status run_collective(const dsi_loaded *l, uint32_t s, dsi_exec_times *times)
{
    const dsi_step *step = &l->plan->steps[s];
    dsi_comm_times took = {0};
    if (step->kind != DSI_STEP_WAIT) {
        DS_TRY(dsi_comm_start(l->comms[s], &l->comm_calls[s], &l->tickets[s]));
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

static ds_status run_step(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                          dsi_exec_times *times)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->kernel != NULL) {
        return step->kernel->run(&l->calls[s]);
    }
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        return run_swap(exec, l, s, times);
    }
    if (step->op == &dsi_op_take_slice) {
        take_slice(l->comms[s], &l->tensors[step->in_at], &l->tensors[step->out_at]);
        return DS_OK;
    }
    return run_collective(l, s, times);
}

static ds_status run_traced(const dsi_exec *exec, const dsi_loaded *l, uint32_t s)
{
    dsi_exec_times times = {.begin = dsi_clock_seconds()};
    DS_TRY(run_step(exec, l, s, &times));
    times.end = dsi_clock_seconds();
    exec->trace(exec->trace_user, &l->plan->steps[s], &times);
    return DS_OK;
}

/* What an earlier phase brought for this one, once more. Nothing of it is under way: whoever wrote
 * a cell, or was told that one did not come, has waited. */
static ds_status bring_again(dsi_exec *exec, dsi_loaded *l, ds_phase phase)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t i = 0; i < l->n_ahead && l->ahead[i] < plan->phase_begin[phase]; ++i) {
        const uint32_t s = l->ahead[i];
        const dsi_step *step = &plan->steps[s];
        ds_status status = dsi_swap_start(exec->swap, plan->refs[step->in_at].cell, false,
                                          l->tensors[step->out_at].data, &l->swaps[s]);
        status = status < 0 ? status : dsi_swap_wait(exec->swap, &l->swaps[s], NULL);
        if (status < 0) {
            return fail_step(exec, exec->ctx, plan, s, status);
        }
    }
    l->bring_again = false;
    return DS_OK;
}

/* ctx: as of fail_step. */
static ds_status run_phase(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase, ds_ctx *ctx,
                           bool traced)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const ds_status status = traced ? run_traced(exec, l, s) : run_step(exec, l, s, NULL);
        if (status < 0) {
            const ds_status told = fail_step(exec, ctx, plan, s, status);
            discard_swaps(exec, l, phase);
            return told;
        }
    }
    return DS_OK;
}

ds_status dsi_exec_run(dsi_exec *exec, uint32_t id, ds_phase phase)
{
    if (id >= exec->n_plans || exec->map == NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "plan %u cannot run yet", id);
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        DS_TRY(i != id ? settle_plan(exec, &exec->plans[i]) : DS_OK); /* they share the arena */
    }
    dsi_loaded *l = &exec->plans[id];
    if (phase == DS_PHASE_FORWARD) {
        l->bring_again = false; /* it brings what is there now */
    } else if (l->bring_again && phase == DS_PHASE_BACKWARD) {
        DS_TRY(bring_again(exec, l, phase));
    }
    return run_phase(exec, l, phase, exec->ctx, exec->trace != NULL);
}

/* On the thread of its own. */
static ds_status run_rest(void *user)
{
    const dsi_exec *exec = user;
    return run_phase(exec, &exec->plans[exec->beside_id], DS_PHASE_REST,
                     dsi_beside_ctx(exec->beside), false);
}

ds_status dsi_exec_start(dsi_exec *exec, uint32_t id)
{
    if (id >= exec->n_plans || exec->beside == NULL || !exec->plans[id].plan->rest_beside) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "plan %u has no phase beside others", id);
    }
    exec->beside_id = id;
    dsi_beside_start(exec->beside, run_rest, exec);
    return DS_OK;
}

ds_status dsi_exec_finish(dsi_exec *exec)
{
    const ds_status status = exec->beside != NULL ? dsi_beside_finish(exec->beside) : DS_OK;
    return status < 0 ? ds_fail(exec->ctx, status, "%s", ds_ctx_error(dsi_beside_ctx(exec->beside)))
                      : DS_OK;
}

void dsi_exec_drop(dsi_exec *exec)
{
    if (exec->beside != NULL) {
        dsi_beside_drop(exec->beside);
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t at = 0; at < l->n_crossing; ++at) {
            dsi_swap_discard(exec->swap, &l->swaps[l->crossing[at]]);
        }
    }
    dsi_swap_forgive(exec->swap);
}
