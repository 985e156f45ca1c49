/* SPDX-License-Identifier: Apache-2.0 */
/* The executor and the plans that it has. See exec.h. */
#include "exec/exec_state.h"

#include "exec/exec_group.h"
#include "op/ops.h"

#include <stdlib.h>

ds_status dsi_exec_create(ds_ctx *ctx, ds_cells *cells, dsi_comm *comm, dsi_exec **exec_out)
{
    dsi_exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    exec->ctx = ctx;
    exec->cells = cells;
    exec->comm = comm;
    exec->accel = &dsi_accel_cpu;
    exec->n_side_threads = 1;
    exec->n_host_threads = 1;
    exec->n_cells = ds_cells_count(cells);
    exec->cell_data = calloc(exec->n_cells + 1, sizeof *exec->cell_data);
    if (exec->cell_data == NULL) {
        free(exec);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    *exec_out = exec;
    return DS_OK;
}

void dsi_exec_destroy(dsi_exec **exec_inout)
{
    dsi_exec *exec = exec_inout != NULL ? *exec_inout : NULL;
    if (exec == NULL) {
        return;
    }
    if (exec->side_thread != NULL) {
        (void)dsi_side_thread_finish(exec->side_thread);
    }
    for (uint32_t i = 0; i < exec->n_groups; ++i) {
        dsi_exec_group_end(exec->groups[i].group);
    }
    dsi_exec_close_streams(exec);
    dsi_side_thread_destroy(&exec->side_thread);
    dsi_exec_close_host(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        free(exec->plans[i].sigs);
        free(exec->plans[i].tensors);
        free(exec->plans[i].calls);
        free(exec->plans[i].comm_calls);
        free(exec->plans[i].comms);
        free(exec->plans[i].names);
        free(exec->plans[i].tickets);
        free(exec->plans[i].swaps);
        free(exec->plans[i].events);
        free(exec->plans[i].host_calls);
        free(exec->plans[i].ahead);
        free(exec->plans[i].crossing);
        free(exec->plans[i].parts);
        free(exec->plans[i].counts);
        free(exec->plans[i].table);
        free(exec->plans[i].copies);
    }
    const bool drained = dsi_swap_drain(exec->swap);
    dsi_exec_unpin(exec);
    dsi_swap_destroy(&exec->swap);
    if (!drained && exec->swap_params.mover != NULL) {
        *exec_inout = NULL; /* the device itself still moves: it, its files and memory stay */
        return;
    }
    dsi_exec_unmap_memory(exec);
    if (exec->map != NULL && drained) { /* else the disk may still write into it */
        exec->accel->memory->release(exec->device, exec->map, exec->map_bytes);
    }
    if (exec->n_groups > 0 && exec->shared != NULL) {
        exec->accel->memory->release(exec->device, exec->shared, exec->shared_bytes);
    }
    for (uint32_t i = 0; i < exec->n_groups; ++i) {
        dsi_comm_destroy(&exec->groups[i].group);
    }
    if (exec->accel->close != NULL) {
        exec->accel->close(&exec->device);
    }
    free(exec->copies);
    free(exec->reals);
    free(exec->cell_data);
    free(exec);
    *exec_inout = NULL;
}

ds_status dsi_exec_set_accel(dsi_exec *exec, const dsi_accel_choice *choice)
{
    const ds_accel *accel = dsi_accel_chosen(choice);
    DS_TRY(accel->open != NULL ? accel->open(exec->ctx, choice->options, &exec->device) : DS_OK);
    exec->accel = accel;
    return DS_OK;
}

void dsi_exec_set_residencies(dsi_exec *exec, const dsi_cell_residency *residencies, uint32_t n,
                              const dsi_swap_params *params)
{
    exec->residencies = residencies;
    exec->n_residencies = n;
    exec->swap_params = *params;
}

void dsi_exec_set_mesh(dsi_exec *exec, dsi_mesh_comms *mesh)
{
    exec->mesh = mesh;
}

/* Where the devices carry out collectives: the group of a communicator's ranks, opened when a plan
 * first has one. */
static ds_status find_group(dsi_exec *exec, dsi_comm **comm_inout)
{
    dsi_comm *control = *comm_inout;
    if (dsi_exec_is_on_host(exec) || exec->accel->groups == NULL || control == NULL) {
        return DS_OK;
    }
    for (uint32_t i = 0; i < exec->n_groups; ++i) {
        if (exec->groups[i].control == control) {
            *comm_inout = exec->groups[i].group;
            return DS_OK;
        }
    }
    if (exec->n_groups == EXEC_MAX_GROUPS) {
        return ds_fail(exec->ctx, DS_ERR_UNSUPPORTED, "more than %d groups of devices",
                       EXEC_MAX_GROUPS);
    }
    DS_TRY(dsi_exec_group_open(exec->ctx, exec->accel, exec->device, control, comm_inout));
    exec->groups[exec->n_groups].control = control;
    exec->groups[exec->n_groups++].group = *comm_inout;
    return DS_OK;
}

/* The communicators that the steps of a plan name, made in the order of its steps. */
static ds_status find_comms(dsi_exec *exec, dsi_loaded *l)
{
    for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
        const dsi_step *step = &l->plan->steps[s];
        const dsi_comm_attrs *attrs = step->attrs;
        l->comms[s] = exec->comm;
        if ((step->op->flags & DS_OP_COMM) == 0) {
            continue;
        }
        if (attrs->axes == 0) {
            DS_TRY(find_group(exec, &l->comms[s]));
            continue;
        }
        if (exec->mesh == NULL) {
            return ds_fail(exec->ctx, DS_ERR_STATE,
                           "step %u (%s) is along axes of a mesh, but there is none", s,
                           step->op->name);
        }
        const dsi_axes axes = dsi_axes_decode(attrs->axes);
        DS_TRY(dsi_mesh_comms_get(exec->mesh, &axes, &l->comms[s]));
        DS_TRY(find_group(exec, &l->comms[s]));
    }
    return DS_OK;
}

void dsi_exec_set_side_threads(dsi_exec *exec, uint32_t n_threads)
{
    exec->n_side_threads = n_threads;
}

void dsi_exec_set_host_threads(dsi_exec *exec, uint32_t n_threads)
{
    exec->n_host_threads = n_threads;
}

dsi_cell_residency dsi_exec_residency_of(const dsi_exec *exec, ds_cell cell)
{
    const dsi_cell_residency device = {.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE};
    return cell < exec->n_residencies ? exec->residencies[cell] : device;
}

bool dsi_exec_is_on_host(const dsi_exec *exec)
{
    return exec->accel->memory->on_host;
}

ds_status dsi_exec_bind(dsi_exec *exec, ds_cell cell, void *data)
{
    if (cell >= exec->n_cells || exec->map != NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "cell %u cannot be bound now", cell);
    }
    if (!dsi_exec_is_on_host(exec)) {
        return ds_fail(exec->ctx, DS_ERR_UNSUPPORTED,
                       "the accelerator %s has memory of its own: write the cell instead",
                       exec->accel->name);
    }
    exec->cell_data[cell] = data;
    return DS_OK;
}

ds_status dsi_exec_add(dsi_exec *exec, const dsi_plan *plan, uint32_t *id_out)
{
    if (exec->n_plans == EXEC_MAX_PLANS || exec->map != NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "no plan can be added: %s",
                       exec->map != NULL ? "memory is allocated" : "too many plans");
    }
    if (ds_cells_count(exec->cells) != exec->n_cells) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "cells were added after the executor was created");
    }
    dsi_loaded *l = &exec->plans[exec->n_plans];
    *l = (dsi_loaded){.plan = plan};
    l->sigs = calloc(plan->n_steps + 1, sizeof *l->sigs);
    l->tensors = calloc((size_t)plan->n_slots * plan->n_refs + 1, sizeof *l->tensors);
    l->calls = calloc((size_t)plan->n_slots * plan->n_steps + 1, sizeof *l->calls);
    exec->n_slots = plan->n_slots > exec->n_slots ? plan->n_slots : exec->n_slots;
    l->comm_calls = calloc((size_t)plan->n_slots * plan->n_steps + 1, sizeof *l->comm_calls);
    l->comms = calloc(plan->n_steps + 1, sizeof *l->comms);
    l->names = calloc(plan->n_steps + 1, sizeof *l->names);
    l->tickets = calloc(plan->n_steps + 1, sizeof *l->tickets);
    l->swaps = calloc(plan->n_steps + 1, sizeof *l->swaps);
    l->events = calloc(plan->n_events + 1, sizeof *l->events);
    l->host_calls = calloc((size_t)plan->n_slots * plan->n_steps + 1, sizeof *l->host_calls);
    l->ahead = calloc(plan->n_steps + 1, sizeof *l->ahead);
    l->crossing = calloc(plan->n_steps + 1, sizeof *l->crossing);
    l->parts = calloc((size_t)plan->n_slots * plan->n_refs + 1, sizeof *l->parts);
    l->counts = calloc(dsi_exec_n_counts(plan) + 1, sizeof *l->counts);
    l->table = calloc(dsi_exec_n_table(plan) + 1, sizeof *l->table);
    l->copies = calloc(plan->n_outputs + 1, sizeof *l->copies);
    *id_out = exec->n_plans++;
    if (l->sigs == NULL || l->tensors == NULL || l->calls == NULL || l->comm_calls == NULL ||
        l->names == NULL || l->tickets == NULL || l->swaps == NULL || l->ahead == NULL ||
        l->crossing == NULL || l->parts == NULL || l->comms == NULL || l->copies == NULL ||
        l->events == NULL || l->counts == NULL || l->table == NULL || l->host_calls == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    return find_comms(exec, l);
}

bool dsi_exec_has_lost(const dsi_exec *exec)
{
    return exec->overtook || dsi_swap_has_lost(exec->swap);
}

size_t dsi_exec_table_bytes(const dsi_plan *plan)
{
    const dsi_loaded *l = NULL;
    const size_t per_step = sizeof *l->sigs + plan->n_slots * sizeof *l->calls +
                            sizeof *l->comm_calls + sizeof *l->names + sizeof *l->tickets +
                            sizeof *l->swaps + sizeof *l->ahead + sizeof *l->crossing +
                            plan->n_slots * sizeof *l->host_calls;
    const size_t per_ref = plan->n_slots * sizeof *l->tensors + sizeof *l->parts;
    const size_t per_output = sizeof *l->copies + plan->n_slots * sizeof *l->reals;
    return (plan->n_steps + 1) * per_step + (plan->n_events + 1) * sizeof *l->events +
           (plan->n_refs + 1) * per_ref + (plan->n_outputs + 1) * per_output +
           dsi_exec_n_counts(plan) * sizeof *l->counts + dsi_exec_n_table(plan) * sizeof *l->table +
           dsi_arena_used(plan->arena) + plan->ledger->capacity * sizeof *plan->ledger->entries;
}

void dsi_exec_set_trace(dsi_exec *exec, dsi_exec_trace_fn fn, void *user)
{
    exec->trace = fn;
    exec->trace_user = user;
}
