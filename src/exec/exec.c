/* SPDX-License-Identifier: Apache-2.0 */
/* The executor, the plans that it has, and the cells that its caller reads, writes and exchanges
 * between phases. See exec.h.
 */
#include "exec/exec_state.h"

#include "op/ops.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

ds_status dsi_exec_create(ds_ctx *ctx, ds_cells *cells, dsi_comm *comm, dsi_exec **exec_out)
{
    dsi_exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    exec->ctx = ctx;
    exec->cells = cells;
    exec->comm = comm;
    exec->n_beside = 1;
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
    dsi_beside_destroy(&exec->beside);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        free(exec->plans[i].sigs);
        free(exec->plans[i].tensors);
        free(exec->plans[i].calls);
        free(exec->plans[i].comm_calls);
        free(exec->plans[i].comms);
        free(exec->plans[i].names);
        free(exec->plans[i].tickets);
        free(exec->plans[i].swaps);
        free(exec->plans[i].ahead);
        free(exec->plans[i].crossing);
        free(exec->plans[i].parts);
    }
    const bool settled = dsi_swap_settle(exec->swap);
    dsi_swap_destroy(&exec->swap);
    if (exec->map != NULL && settled) { /* else the disk may still write into it */
        (void)munmap(exec->map, exec->map_bytes);
    }
    free(exec->cell_data);
    free(exec);
    *exec_inout = NULL;
}

void dsi_exec_set_homes(dsi_exec *exec, const dsi_home *homes, uint32_t n,
                        const dsi_swap_params *params)
{
    exec->homes = homes;
    exec->n_homes = n;
    exec->swap_params = *params;
}

void dsi_exec_set_mesh(dsi_exec *exec, dsi_mesh_comms *mesh)
{
    exec->mesh = mesh;
}

/* The communicators that the steps of a plan name, made in the order of its steps. */
static ds_status find_comms(dsi_exec *exec, dsi_loaded *l)
{
    for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
        const dsi_step *step = &l->plan->steps[s];
        const dsi_comm_attrs *attrs = step->attrs;
        l->comms[s] = exec->comm;
        if ((step->op->flags & DS_OP_COMM) == 0 || attrs->axes == 0) {
            continue;
        }
        if (exec->mesh == NULL) {
            return ds_fail(exec->ctx, DS_ERR_STATE,
                           "step %u (%s) is along axes of a mesh, but there is none", s,
                           step->op->name);
        }
        const dsi_axes axes = dsi_axes_decode(attrs->axes);
        DS_TRY(dsi_mesh_comms_get(exec->mesh, &axes, &l->comms[s]));
    }
    return DS_OK;
}

void dsi_exec_set_beside(dsi_exec *exec, uint32_t n_threads)
{
    exec->n_beside = n_threads;
}

dsi_home dsi_exec_home_of(const dsi_exec *exec, ds_cell cell)
{
    const dsi_home device = {DSI_ON_DEVICE, DS_NONE, 0};
    return cell < exec->n_homes ? exec->homes[cell] : device;
}

ds_status dsi_exec_bind(dsi_exec *exec, ds_cell cell, void *data)
{
    if (cell >= exec->n_cells || exec->map != NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "cell %u cannot be bound now", cell);
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
    l->tensors = calloc(plan->n_refs + 1, sizeof *l->tensors);
    l->calls = calloc(plan->n_steps + 1, sizeof *l->calls);
    l->comm_calls = calloc(plan->n_steps + 1, sizeof *l->comm_calls);
    l->comms = calloc(plan->n_steps + 1, sizeof *l->comms);
    l->names = calloc(plan->n_steps + 1, sizeof *l->names);
    l->tickets = calloc(plan->n_steps + 1, sizeof *l->tickets);
    l->swaps = calloc(plan->n_steps + 1, sizeof *l->swaps);
    l->ahead = calloc(plan->n_steps + 1, sizeof *l->ahead);
    l->crossing = calloc(plan->n_steps + 1, sizeof *l->crossing);
    l->parts = calloc(plan->n_refs + 1, sizeof *l->parts);
    *id_out = exec->n_plans++;
    if (l->sigs == NULL || l->tensors == NULL || l->calls == NULL || l->comm_calls == NULL ||
        l->names == NULL || l->tickets == NULL || l->swaps == NULL || l->ahead == NULL ||
        l->crossing == NULL || l->parts == NULL || l->comms == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    return find_comms(exec, l);
}

bool dsi_exec_has_lost(const dsi_exec *exec)
{
    return dsi_swap_has_lost(exec->swap);
}

void dsi_exec_exchange(dsi_exec *exec, const ds_cell *a, const ds_cell *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (dsi_exec_is_swapped(exec, a[i])) {
            dsi_exec_note_written(exec);
            dsi_swap_exchange(exec->swap, a[i], b[i]);
        } else {
            void *data = exec->cell_data[a[i]];
            exec->cell_data[a[i]] = exec->cell_data[b[i]];
            exec->cell_data[b[i]] = data;
        }
    }
    if (exec->swap != NULL) {
        dsi_swap_place_parts(exec->swap, exec->homes);
    }
    dsi_exec_relink(exec);
}

ds_status dsi_exec_read(dsi_exec *exec, ds_cell cell, size_t offset, void *data, size_t bytes)
{
    if (dsi_exec_is_swapped(exec, cell)) {
        DS_TRY(dsi_exec_settle(exec));
        return dsi_swap_read(exec->swap, cell, offset, data, bytes);
    }
    memcpy(data, (const unsigned char *)exec->cell_data[cell] + offset, bytes);
    return DS_OK;
}

ds_status dsi_exec_write(dsi_exec *exec, ds_cell cell, size_t offset, const void *data,
                         size_t bytes)
{
    if (dsi_exec_is_swapped(exec, cell)) {
        dsi_exec_note_written(exec);
        DS_TRY(dsi_exec_settle(exec));
        return dsi_swap_write(exec->swap, cell, offset, data, bytes);
    }
    memcpy((unsigned char *)exec->cell_data[cell] + offset, data, bytes);
    return DS_OK;
}

ds_status dsi_exec_clear(dsi_exec *exec, ds_cell cell)
{
    const size_t bytes = ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta);
    if (dsi_exec_is_swapped(exec, cell)) {
        dsi_exec_note_written(exec);
        DS_TRY(dsi_exec_settle(exec));
        return dsi_swap_clear(exec->swap, cell);
    }
    memset(exec->cell_data[cell], 0, bytes);
    return DS_OK;
}

bool dsi_exec_is_swapped(const dsi_exec *exec, ds_cell cell)
{
    return dsi_exec_home_of(exec, cell).residence != DSI_ON_DEVICE;
}

size_t dsi_exec_host_bytes(const dsi_exec *exec)
{
    return dsi_swap_host_bytes(exec->swap);
}

size_t dsi_exec_disk_bytes_of(const dsi_exec *exec, dsi_swap_content content)
{
    return dsi_swap_disk_bytes_of(exec->swap, content);
}

size_t dsi_exec_disk_bytes(const dsi_exec *exec)
{
    return dsi_swap_disk_bytes(exec->swap);
}

double dsi_exec_swap_waited(const dsi_exec *exec)
{
    return dsi_swap_waited(exec->swap);
}

const void *dsi_exec_host_cell(const dsi_exec *exec, ds_cell cell)
{
    return dsi_exec_home_of(exec, cell).residence == DSI_ON_HOST ? dsi_swap_host(exec->swap, cell)
                                                                 : NULL;
}

void *dsi_exec_cell(const dsi_exec *exec, ds_cell cell)
{
    return cell < exec->n_cells ? exec->cell_data[cell] : NULL;
}

ds_status dsi_exec_output(const dsi_exec *exec, uint32_t id, const char *name,
                          ds_tensor *tensor_out)
{
    const dsi_plan *plan = exec->plans[id].plan;
    const dsi_plan_output *output = dsi_plan_find_output(plan, name);
    if (output == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOT_FOUND, "the plan has no output named %s", name);
    }
    *tensor_out =
        (ds_tensor){dsi_exec_place_of(exec, &exec->plans[id], &output->ref), output->ref.meta};
    return DS_OK;
}

size_t dsi_exec_table_bytes(const dsi_plan *plan)
{
    const dsi_loaded *l = NULL;
    const size_t per_step = sizeof *l->sigs + sizeof *l->calls + sizeof *l->comm_calls +
                            sizeof *l->names + sizeof *l->tickets + sizeof *l->swaps +
                            sizeof *l->ahead + sizeof *l->crossing;
    const size_t per_ref = sizeof *l->tensors + sizeof *l->parts;
    return (plan->n_steps + 1) * per_step + (plan->n_refs + 1) * per_ref +
           dsi_arena_used(plan->arena) + plan->ledger->capacity * sizeof *plan->ledger->entries;
}

void dsi_exec_set_trace(dsi_exec *exec, dsi_exec_trace_fn fn, void *user)
{
    exec->trace = fn;
    exec->trace_user = user;
}
