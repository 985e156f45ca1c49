/* SPDX-License-Identifier: Apache-2.0 */
/* What memory the executor has, and where each cell lies in it: one map for cells and the arena,
 * memory that peers may read for what collectives send, storage of cells that live elsewhere.
 * Nothing is mapped behind dsi_exec_allocate.
 */
#include "exec/exec_state.h"

#include "exec/exec_group.h"

#include "base/process_memory.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, PAGE = 4096 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t dsi_exec_cell_stride(const dsi_exec *exec, ds_cell cell)
{
    return aligned(ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta));
}

uint32_t dsi_exec_cell_slots(const dsi_exec *exec, ds_cell cell)
{
    return ds_cells_get(exec->cells, cell)->kind == DS_CELL_INPUT && exec->n_slots > 1
               ? exec->n_slots
               : 1;
}

static size_t own_bytes(const dsi_exec *exec, ds_cell cell)
{
    return dsi_exec_cell_slots(exec, cell) * dsi_exec_cell_stride(exec, cell);
}

/* Whether the cell needs memory of its own on the device. */
static bool needs_memory(const dsi_exec *exec, ds_cell cell)
{
    const dsi_cell_residency residency = dsi_exec_residency_of(exec, cell);
    return exec->cell_data[cell] == NULL && residency.where == DSI_RESIDENCY_DEVICE &&
           residency.parent == DS_NONE;
}

static bool is_shared(const dsi_exec *exec, ds_cell cell)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_plan *plan = exec->plans[i].plan;
        if (cell < plan->n_cells && plan->cell_shared[cell]) {
            return true;
        }
    }
    return false;
}

/* Stages of a pipeline have plans of their own, and yet as much memory that peers may read. */
static ds_status agree_on_shared(const dsi_exec *exec, size_t *bytes)
{
    if (exec->mesh == NULL || exec->mesh->mesh.size[DSI_AXIS_PP] <= 1) {
        return DS_OK;
    }
    uint64_t own = *bytes;
    uint64_t *all = calloc(exec->comm->size, sizeof *all);
    if (all == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    const ds_status status =
        dsi_comm_gather(exec->comm, &own, all, sizeof own, "bytes that peers may read");
    for (uint32_t r = 0; r < exec->comm->size && status >= 0; ++r) {
        *bytes = all[r] > *bytes ? (size_t)all[r] : *bytes;
    }
    free(all);
    return status;
}

/* Memory that peers may read, for the cells and values that collectives send. */
static ds_status allocate_shared(dsi_exec *exec)
{
    size_t bytes = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (is_shared(exec, c)) {
            bytes += own_bytes(exec, c);
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        bytes += aligned(exec->plans[i].plan->shared_bytes);
    }
    DS_TRY(agree_on_shared(exec, &bytes));
    if (bytes == 0) {
        return DS_OK;
    }
    if (exec->comm == NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE,
                       "the plans have collectives, but there is no "
                       "communicator");
    }
    void *memory = NULL;
    const ds_accel_memory *table = exec->accel->memory;
    if (!dsi_exec_is_on_host(exec) && exec->accel->groups != NULL) {
        DS_TRY(table->alloc(exec->device, exec->ctx, bytes, "what collectives send", &memory));
    } else {
        DS_TRY(dsi_comm_symmetric(exec->comm, bytes, &memory));
    }
    if (!dsi_exec_is_on_host(exec) && exec->accel->groups == NULL) {
        if (table->adopt == NULL || table->peer_view == NULL) {
            return ds_fail(exec->ctx, DS_ERR_UNSUPPORTED,
                           "the accelerator %s shares no memory with communicators; use one rank, "
                           "or the accelerator cpu",
                           exec->accel->name);
        }
        DS_TRY(table->adopt(exec->device, exec->ctx, memory, bytes));
    }
    exec->shared = memory;
    exec->shared_bytes = bytes;
    size_t at = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (is_shared(exec, c)) {
            exec->cell_data[c] = exec->shared + at;
            at += own_bytes(exec, c);
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        exec->plans[i].shared = exec->shared + at;
        at += aligned(exec->plans[i].plan->shared_bytes);
    }
    return DS_OK;
}

static ds_status open_side_thread(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        if (exec->plans[i].plan->side != DS_NONE) {
            return dsi_side_thread_create(exec->ctx, exec->n_side_threads, &exec->side_thread);
        }
    }
    return DS_OK;
}

static ds_status open_swap(dsi_exec *exec)
{
    bool any = false;
    bool disk = false;
    for (uint32_t c = 0; c < exec->n_residencies; ++c) {
        any = any || exec->residencies[c].where != DSI_RESIDENCY_DEVICE;
        disk = disk || exec->residencies[c].where == DSI_RESIDENCY_DISK;
    }
    DS_TRY(dsi_exec_find_mover(exec, disk));
    exec->swap_params.n_slots = exec->n_slots;
    return any ? dsi_swap_create(exec->ctx, exec->cells, exec->residencies, exec->n_residencies,
                                 &exec->swap_params, &exec->swap)
               : DS_OK;
}

void dsi_exec_place_parts(dsi_exec *exec)
{
    for (ds_cell c = 0; c < exec->n_residencies; ++c) {
        const dsi_cell_residency *residency = &exec->residencies[c];
        if (residency->where == DSI_RESIDENCY_DEVICE && residency->parent != DS_NONE) {
            exec->cell_data[c] =
                (unsigned char *)exec->cell_data[residency->parent] + residency->offset;
        }
    }
}

/* Outputs of all plans, one after the other; none where the host reads them in place. */
static ds_status allocate_copies(dsi_exec *exec)
{
    size_t bytes = 0;
    if (dsi_exec_is_on_host(exec)) {
        return DS_OK;
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        for (uint32_t o = 0; o < exec->plans[i].plan->n_outputs; ++o) {
            bytes += aligned(ds_meta_bytes(exec->plans[i].plan->outputs[o].ref.meta));
        }
    }
    exec->copies = malloc(bytes + 1);
    if (exec->copies == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for %.1f MiB of outputs on the host",
                       (double)bytes / 1048576.0);
    }
    size_t at = 0;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        for (uint32_t o = 0; o < exec->plans[i].plan->n_outputs; ++o) {
            exec->plans[i].copies[o] = exec->copies + at;
            at += aligned(ds_meta_bytes(exec->plans[i].plan->outputs[o].ref.meta));
        }
    }
    return DS_OK;
}

static ds_status pin(dsi_exec *exec, uint32_t which, void *memory, size_t bytes)
{
    const ds_accel_memory *table = exec->accel->memory;
    if (memory == NULL || table->pin == NULL) {
        return DS_OK;
    }
    DS_TRY(table->pin(exec->device, exec->ctx, memory, bytes));
    exec->pinned[which].memory = memory;
    exec->pinned[which].bytes = bytes;
    return DS_OK;
}

void dsi_exec_unpin(dsi_exec *exec)
{
    for (uint32_t i = 0; i < sizeof exec->pinned / sizeof exec->pinned[0]; ++i) {
        if (exec->pinned[i].memory != NULL) {
            exec->accel->memory->unpin(exec->device, exec->pinned[i].memory, exec->pinned[i].bytes);
            exec->pinned[i].memory = NULL;
        }
    }
}

/* Numbers of all plans' outputs on the host, in pages of their own: those are pinned whole. */
static ds_status allocate_reals(dsi_exec *exec)
{
    size_t n = 0;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        n += (size_t)exec->plans[i].plan->n_slots * exec->plans[i].plan->n_outputs;
    }
    const size_t bytes = (n * sizeof *exec->reals + PAGE) / PAGE * PAGE;
    exec->reals = aligned_alloc(PAGE, bytes);
    if (exec->reals == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    memset(exec->reals, 0, bytes);
    float *at = exec->reals;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        exec->plans[i].reals = at;
        at += (size_t)exec->plans[i].plan->n_slots * exec->plans[i].plan->n_outputs;
    }
    DS_TRY(pin(exec, 0, exec->reals, bytes));
    return pin(exec, 1, dsi_swap_host_memory(exec->swap), dsi_swap_host_bytes(exec->swap));
}

/* What the largest sum over a group's ranks needs beside its operands. */
static ds_status reserve_groups(const dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_groups; ++i) {
        size_t most = 0;
        uint32_t n_parts = 0;
        for (uint32_t p = 0; p < exec->n_plans; ++p) {
            const dsi_loaded *l = &exec->plans[p];
            for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
                const dsi_comm_call *call = &l->comm_calls[s];
                size_t bytes = 0;
                for (uint32_t k = 0; l->comms[s] == exec->groups[i].group && k < call->n_parts;
                     ++k) {
                    bytes += dsi_comm_slice(call->parts[k].count, l->comms[s]->size) *
                             l->comms[s]->size * ds_dtype_bytes(call->dtype);
                }
                most = bytes > most ? bytes : most;
                n_parts = call->n_parts > n_parts ? call->n_parts : n_parts;
            }
        }
        DS_TRY(dsi_exec_group_reserve(exec->groups[i].group, most, n_parts));
    }
    return DS_OK;
}

/* What the accelerator makes at first use. */
static ds_status prepare_kernels(const dsi_exec *exec)
{
    const ds_accel_kernels *kernels = exec->accel->kernels;
    for (uint32_t i = 0; i < exec->n_plans && kernels->prepare != NULL; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
            const ds_kernel *kernel = l->plan->steps[s].kernel;
            DS_TRY(kernel != NULL && !l->plan->steps[s].on_host
                       ? kernels->prepare(exec->device, exec->ctx, kernel, &l->sigs[s])
                       : DS_OK);
        }
    }
    return DS_OK;
}

ds_status dsi_exec_allocate(dsi_exec *exec)
{
    size_t cell_bytes = 0;
    size_t arena_bytes = 0;
    DS_TRY(open_side_thread(exec));
    DS_TRY(dsi_exec_open_host(exec));
    DS_TRY(open_swap(exec));
    DS_TRY(allocate_shared(exec));
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (needs_memory(exec, c)) {
            cell_bytes += own_bytes(exec, c);
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const size_t bytes = exec->plans[i].plan->arena_bytes;
        arena_bytes = bytes > arena_bytes ? bytes : arena_bytes;
    }
    cell_bytes =
        exec->swap != NULL ? dsi_swap_block_bytes(cell_bytes) : cell_bytes; /* aligns the arena */
    const size_t map_bytes = cell_bytes + aligned(arena_bytes) + ALIGN;
    void *map = NULL;
    DS_TRY(exec->accel->memory->alloc(exec->device, exec->ctx, map_bytes, "cells and arena", &map));
    exec->map = map;
    exec->map_bytes = map_bytes;
    exec->arena = exec->map + cell_bytes;
    DS_TRY(dsi_exec_map_memory(exec));
    size_t at = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (needs_memory(exec, c)) {
            exec->cell_data[c] = exec->map + at;
            at += own_bytes(exec, c);
        }
    }
    dsi_exec_place_parts(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        dsi_exec_link(exec, &exec->plans[i]);
    }
    DS_TRY(reserve_groups(exec));
    DS_TRY(allocate_copies(exec));
    DS_TRY(allocate_reals(exec));
    DS_TRY(dsi_exec_open_streams(exec));
    DS_TRY(prepare_kernels(exec));
    return dsi_exec_capture(exec);
}

size_t dsi_exec_resident_bytes(const dsi_exec *exec)
{
    const bool seen = dsi_exec_is_on_host(exec); /* else all of it is taken */
    const size_t own = exec->map == NULL ? 0
                       : seen            ? dsi_resident_bytes(exec->map, exec->map_bytes)
                                         : exec->map_bytes;
    const bool shared_is_own = !seen && exec->accel->groups != NULL;
    return own + (exec->shared == NULL ? 0
                  : shared_is_own      ? exec->shared_bytes
                                       : dsi_resident_bytes(exec->shared, exec->shared_bytes));
}

size_t dsi_exec_bytes(const dsi_exec *exec)
{
    return exec->map_bytes + exec->shared_bytes;
}
