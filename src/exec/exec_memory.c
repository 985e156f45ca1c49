/* SPDX-License-Identifier: Apache-2.0 */
/* What memory the executor has, and where each cell lies in it: one map for cells and the arena,
 * memory that peers may read for what collectives send, storage of cells that live elsewhere.
 * Nothing is mapped behind dsi_exec_allocate.
 */
#include "exec/exec_state.h"

#include "base/process_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 64 };

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Whether the cell needs memory of its own on the device. */
static bool needs_memory(const dsi_exec *exec, ds_cell cell)
{
    const dsi_home home = dsi_exec_home_of(exec, cell);
    return exec->cell_data[cell] == NULL && home.residence == DSI_ON_DEVICE &&
           home.parent == DS_NONE;
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

/* Memory that peers may read, for the cells and values that collectives send. */
static ds_status allocate_shared(dsi_exec *exec)
{
    size_t bytes = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (is_shared(exec, c)) {
            bytes += aligned(ds_meta_bytes(ds_cells_get(exec->cells, c)->meta));
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        bytes += aligned(exec->plans[i].plan->shared_bytes);
    }
    if (bytes == 0) {
        return DS_OK;
    }
    if (exec->comm == NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE,
                       "the plans have collectives, but there is no "
                       "communicator");
    }
    void *memory = NULL;
    DS_TRY(dsi_comm_symmetric(exec->comm, bytes, &memory));
    exec->shared = memory;
    exec->shared_bytes = bytes;
    size_t at = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (is_shared(exec, c)) {
            exec->cell_data[c] = exec->shared + at;
            at += aligned(ds_meta_bytes(ds_cells_get(exec->cells, c)->meta));
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        exec->plans[i].shared = exec->shared + at;
        at += aligned(exec->plans[i].plan->shared_bytes);
    }
    return DS_OK;
}

static ds_status open_beside(dsi_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        if (exec->plans[i].plan->rest_beside) {
            return dsi_beside_create(exec->ctx, exec->n_beside, &exec->beside);
        }
    }
    return DS_OK;
}

static ds_status open_swap(dsi_exec *exec)
{
    bool any = false;
    for (uint32_t c = 0; c < exec->n_homes; ++c) {
        any = any || exec->homes[c].residence != DSI_ON_DEVICE;
    }
    return any ? dsi_swap_create(exec->ctx, exec->cells, exec->homes, exec->n_homes,
                                 &exec->swap_params, &exec->swap)
               : DS_OK;
}

void dsi_exec_place_parts(dsi_exec *exec)
{
    for (ds_cell c = 0; c < exec->n_homes; ++c) {
        const dsi_home *home = &exec->homes[c];
        if (home->residence == DSI_ON_DEVICE && home->parent != DS_NONE) {
            exec->cell_data[c] = (unsigned char *)exec->cell_data[home->parent] + home->offset;
        }
    }
}

ds_status dsi_exec_allocate(dsi_exec *exec)
{
    size_t cell_bytes = 0;
    size_t arena_bytes = 0;
    DS_TRY(open_beside(exec));
    DS_TRY(open_swap(exec));
    DS_TRY(allocate_shared(exec));
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (needs_memory(exec, c)) {
            cell_bytes += aligned(ds_meta_bytes(ds_cells_get(exec->cells, c)->meta));
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const size_t bytes = exec->plans[i].plan->arena_bytes;
        arena_bytes = bytes > arena_bytes ? bytes : arena_bytes;
    }
    cell_bytes =
        exec->swap != NULL ? dsi_home_bytes(cell_bytes) : cell_bytes; /* aligns the arena */
    exec->map_bytes = cell_bytes + aligned(arena_bytes) + ALIGN;
    void *map =
        mmap(NULL, exec->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        exec->map_bytes = 0;
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "cannot map %.1f MiB for cells and arena: %s",
                       (double)(cell_bytes + arena_bytes) / 1048576.0, strerror(errno));
    }
    (void)madvise(map, exec->map_bytes, MADV_HUGEPAGE);
    exec->map = map;
    exec->arena = exec->map + cell_bytes;
    size_t at = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (needs_memory(exec, c)) {
            exec->cell_data[c] = exec->map + at;
            at += aligned(ds_meta_bytes(ds_cells_get(exec->cells, c)->meta));
        }
    }
    dsi_exec_place_parts(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        dsi_exec_link(exec, &exec->plans[i]);
    }
    return DS_OK;
}

size_t dsi_exec_resident_bytes(const dsi_exec *exec)
{
    const size_t own = exec->map != NULL ? dsi_resident_bytes(exec->map, exec->map_bytes) : 0;
    return own + (exec->shared != NULL ? dsi_resident_bytes(exec->shared, exec->shared_bytes) : 0);
}

size_t dsi_exec_bytes(const dsi_exec *exec)
{
    return exec->map_bytes + exec->shared_bytes;
}
