/* The executor. See exec.h. */
#include "exec/exec.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_PLANS = 16, ALIGN = 64 };

typedef struct loaded {
    const dsi_plan *plan;
    ds_kernel_sig *sigs;   /* per step */
    ds_tensor *tensors;    /* per ref */
    ds_kernel_call *calls; /* per step */
} loaded;

struct dsi_exec {
    ds_ctx *ctx;
    ds_cells *cells;
    void **cell_data; /* per cell */
    uint32_t n_cells; /* entries of cell_data */
    loaded plans[MAX_PLANS];
    uint32_t n_plans;
    unsigned char *map; /* cells, then the arena */
    unsigned char *arena;
    size_t map_bytes;
    dsi_exec_trace_fn trace;
    void *trace_user;
};

ds_status dsi_exec_create(ds_ctx *ctx, ds_cells *cells, dsi_exec **exec_out)
{
    dsi_exec *exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    exec->ctx = ctx;
    exec->cells = cells;
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
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        free(exec->plans[i].sigs);
        free(exec->plans[i].tensors);
        free(exec->plans[i].calls);
    }
    if (exec->map != NULL) {
        (void)munmap(exec->map, exec->map_bytes);
    }
    free(exec->cell_data);
    free(exec);
    *exec_inout = NULL;
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
    if (exec->n_plans == MAX_PLANS || exec->map != NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "no plan can be added: %s",
                       exec->map != NULL ? "memory is allocated" : "too many plans");
    }
    if (ds_cells_count(exec->cells) != exec->n_cells) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "cells were added after the executor was created");
    }
    loaded *l = &exec->plans[exec->n_plans];
    *l = (loaded){.plan = plan};
    l->sigs = calloc(plan->n_steps + 1, sizeof *l->sigs);
    l->tensors = calloc(plan->n_refs + 1, sizeof *l->tensors);
    l->calls = calloc(plan->n_steps + 1, sizeof *l->calls);
    *id_out = exec->n_plans++;
    if (l->sigs == NULL || l->tensors == NULL || l->calls == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    return DS_OK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void *place_of(const dsi_exec *exec, const dsi_ref *ref)
{
    switch (ref->space) {
    case DSI_SPACE_ARENA:
        return exec->arena + ref->offset;
    case DSI_SPACE_CELL:
        return exec->cell_data[ref->cell];
    case DSI_SPACE_NONE:
        break;
    }
    return NULL;
}

/* Fills in the addresses of one plan's operands. */
static void link_plan(const dsi_exec *exec, loaded *l)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        l->tensors[i] = (ds_tensor){place_of(exec, &plan->refs[i]), plan->refs[i].meta};
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        l->sigs[s] = (ds_kernel_sig){.op = step->op,
                                     .attrs = step->attrs,
                                     .n_in = step->n_in,
                                     .n_out = step->n_out,
                                     .in = plan->metas + step->in_at,
                                     .out = plan->metas + step->out_at,
                                     .n_threads = plan->n_threads};
        l->calls[s] =
            (ds_kernel_call){.ctx = exec->ctx,
                             .sig = &l->sigs[s],
                             .in = l->tensors + step->in_at,
                             .out = l->tensors + step->out_at,
                             .work = step->work_bytes > 0 ? exec->arena + step->work_offset : NULL};
    }
}

ds_status dsi_exec_allocate(dsi_exec *exec)
{
    size_t cell_bytes = 0;
    size_t arena_bytes = 0;
    for (ds_cell c = 0; c < exec->n_cells; ++c) {
        if (exec->cell_data[c] == NULL) {
            cell_bytes += aligned(ds_meta_bytes(ds_cells_get(exec->cells, c)->meta));
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const size_t bytes = exec->plans[i].plan->arena_bytes;
        arena_bytes = bytes > arena_bytes ? bytes : arena_bytes;
    }
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
        if (exec->cell_data[c] == NULL) {
            exec->cell_data[c] = exec->map + at;
            at += aligned(ds_meta_bytes(ds_cells_get(exec->cells, c)->meta));
        }
    }
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        link_plan(exec, &exec->plans[i]);
    }
    return DS_OK;
}

static ds_status fail_step(const dsi_exec *exec, const dsi_plan *plan, uint32_t s, ds_status status)
{
    char reason[1024];
    const size_t n = strlen(ds_ctx_error(exec->ctx));
    memcpy(reason, ds_ctx_error(exec->ctx), n < sizeof reason ? n + 1 : sizeof reason - 1);
    reason[sizeof reason - 1] = '\0';
    return ds_fail(exec->ctx, status, "step %u (%s/%s, %s): %s", s, plan->steps[s].op->name,
                   plan->steps[s].kernel->name, plan->steps[s].scope, reason);
}

ds_status dsi_exec_run(dsi_exec *exec, uint32_t id, ds_phase phase)
{
    if (id >= exec->n_plans || exec->map == NULL) {
        return ds_fail(exec->ctx, DS_ERR_STATE, "plan %u cannot run yet", id);
    }
    const loaded *l = &exec->plans[id];
    const dsi_plan *plan = l->plan;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const double start = exec->trace != NULL ? dsi_clock_seconds() : 0.0;
        const ds_status status = plan->steps[s].kernel->run(&l->calls[s]);
        if (status < 0) {
            return fail_step(exec, plan, s, status);
        }
        if (exec->trace != NULL) {
            exec->trace(exec->trace_user, &plan->steps[s], dsi_clock_seconds() - start);
        }
    }
    return DS_OK;
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
    *tensor_out = (ds_tensor){place_of(exec, &output->ref), output->ref.meta};
    return DS_OK;
}

size_t dsi_exec_bytes(const dsi_exec *exec)
{
    return exec->map_bytes;
}

void dsi_exec_set_trace(dsi_exec *exec, dsi_exec_trace_fn fn, void *user)
{
    exec->trace = fn;
    exec->trace_user = user;
}
