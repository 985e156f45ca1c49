/* The executor. See exec.h. */
#include "exec/exec.h"

#include "base/clock.h"
#include "base/process_memory.h"
#include "exec/beside.h"
#include "op/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_PLANS = 16, ALIGN = 64, NAME_BYTES = 160 };

typedef struct loaded {
    const dsi_plan *plan;
    ds_kernel_sig *sigs;       /* per step */
    ds_tensor *tensors;        /* per ref */
    ds_kernel_call *calls;     /* per step */
    dsi_comm_call *comm_calls; /* per step; of collectives */
    char (*names)[NAME_BYTES]; /* per step; of collectives, for a diagnosis */
    dsi_comm_ticket *tickets;  /* per step; of started collectives */
    dsi_swap_ticket *swaps;    /* per step; of started swaps */
    uint32_t *ahead;           /* steps that bring what a later phase reads: n_ahead of them */
    uint32_t n_ahead;
    dsi_comm_part *parts;  /* of all collectives, one after the other */
    unsigned char *shared; /* arena of what collectives send */
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
    dsi_comm *comm;
    const dsi_home *homes; /* of the first n_homes cells */
    uint32_t n_homes;
    dsi_swap_params swap_params;
    dsi_swap *swap;        /* NULL: every cell lives on the device */
    bool written;          /* the host has written a swapped cell: what was brought may be old */
    dsi_beside *beside;    /* NULL: no plan has a phase beside others */
    uint32_t n_beside;     /* threads of its kernels */
    uint32_t beside_id;    /* whose phase was started last */
    unsigned char *shared; /* shared cells, then the shared arena of each plan */
    size_t shared_bytes;
    dsi_exec_trace_fn trace;
    void *trace_user;
};

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
        free(exec->plans[i].names);
        free(exec->plans[i].tickets);
        free(exec->plans[i].swaps);
        free(exec->plans[i].ahead);
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

void dsi_exec_set_beside(dsi_exec *exec, uint32_t n_threads)
{
    exec->n_beside = n_threads;
}

static dsi_home home_of(const dsi_exec *exec, ds_cell cell)
{
    const dsi_home device = {DSI_ON_DEVICE, DS_NONE, 0};
    return cell < exec->n_homes ? exec->homes[cell] : device;
}

/* Whether the cell needs memory of its own on the device. */
static bool needs_memory(const dsi_exec *exec, ds_cell cell)
{
    const dsi_home home = home_of(exec, cell);
    return exec->cell_data[cell] == NULL && home.residence == DSI_ON_DEVICE &&
           home.parent == DS_NONE;
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
    l->comm_calls = calloc(plan->n_steps + 1, sizeof *l->comm_calls);
    l->names = calloc(plan->n_steps + 1, sizeof *l->names);
    l->tickets = calloc(plan->n_steps + 1, sizeof *l->tickets);
    l->swaps = calloc(plan->n_steps + 1, sizeof *l->swaps);
    l->ahead = calloc(plan->n_steps + 1, sizeof *l->ahead);
    l->parts = calloc(plan->n_refs + 1, sizeof *l->parts);
    *id_out = exec->n_plans++;
    if (l->sigs == NULL || l->tensors == NULL || l->calls == NULL || l->comm_calls == NULL ||
        l->names == NULL || l->tickets == NULL || l->swaps == NULL || l->ahead == NULL ||
        l->parts == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOMEM, "no memory for the executor");
    }
    return DS_OK;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void *place_of(const dsi_exec *exec, const loaded *l, const dsi_ref *ref)
{
    switch (ref->space) {
    case DSI_SPACE_ARENA:
        return exec->arena + ref->offset;
    case DSI_SPACE_SHARED:
        return l->shared + ref->offset;
    case DSI_SPACE_CELL:
        return exec->cell_data[ref->cell];
    case DSI_SPACE_NONE:
        break;
    }
    return NULL;
}

/* The elements of a tensor as the communicator sees them: it knows no 8-byte reals. */
static ds_dtype carried_as(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F64 ? DS_DTYPE_I64 : dtype;
}

/* "backward: reduce_scatter of transformer.h.3.mlp.c_fc.weight and 11 more". */
static const char *name_collective(loaded *l, uint32_t s)
{
    static const char *const phases[DS_PHASE_COUNT] = {
#define X(id, name) [DS_PHASE_##id] = name,
        DS_PHASE_LIST(X)
#undef X
    };
    const dsi_step *step = &l->plan->steps[s];
    char *name = l->names[s];
    const int n = snprintf(name, NAME_BYTES, "%s: %s of %.90s", phases[step->phase], step->op->name,
                           step->scope);
    if (step->n_parts > 1 && n > 0 && n < NAME_BYTES) {
        (void)snprintf(name + n, (size_t)(NAME_BYTES - n), " and %u more", step->n_parts - 1);
    }
    return name;
}

/* The call of a collective's step; its parts stand at the place of its operands. */
static void link_collective(const dsi_exec *exec, loaded *l, uint32_t s)
{
    static const struct {
        const ds_op *op;
        dsi_coll kind;
    } kinds[] = {{&dsi_op_reduce_scatter, DSI_COLL_REDUCE_SCATTER},
                 {&dsi_op_all_reduce, DSI_COLL_ALL_REDUCE},
                 {&dsi_op_all_gather, DSI_COLL_ALL_GATHER},
                 {&dsi_op_gather_store, DSI_COLL_ALL_GATHER},
                 {&dsi_op_take_slice, DSI_COLL_COUNT}};
    const dsi_step *step = &l->plan->steps[s];
    const uint32_t n_in = step->n_in / step->n_parts;
    dsi_comm_part *parts = l->parts + step->in_at;
    dsi_comm_call *call = &l->comm_calls[s];
    *call = (dsi_comm_call){.dtype = carried_as(l->plan->refs[step->out_at].meta.dtype),
                            .factor = (float)((const dsi_comm_attrs *)step->attrs)->factor,
                            .parts = parts,
                            .n_parts = step->n_parts,
                            .symmetric = exec->comm != NULL && exec->comm->size > 1,
                            .what = name_collective(l, s)};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
        call->kind = kinds[i].op == step->op ? kinds[i].kind : call->kind;
    }
    for (uint32_t i = 0; i < step->n_parts; ++i) {
        const ds_tensor *in = &l->tensors[step->in_at + i * n_in + n_in - 1];
        const ds_tensor *out = &l->tensors[step->out_at + i];
        const bool gathers = call->kind == DSI_COLL_ALL_GATHER;
        parts[i] = (dsi_comm_part){
            .in = in->data,
            .out = out->data,
            .count = (size_t)ds_shape_count(gathers ? out->meta.shape : in->meta.shape)};
    }
}

/* Fills in the addresses of one plan's operands. */
static void link_plan(const dsi_exec *exec, loaded *l)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        l->tensors[i] = (ds_tensor){place_of(exec, l, &plan->refs[i]), plan->refs[i].meta};
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
        const bool beside = plan->rest_beside && step->phase == DS_PHASE_REST;
        l->calls[s] =
            (ds_kernel_call){.ctx = beside ? dsi_beside_ctx(exec->beside) : exec->ctx,
                             .sig = &l->sigs[s],
                             .in = l->tensors + step->in_at,
                             .out = l->tensors + step->out_at,
                             .work = step->work_bytes > 0 ? exec->arena + step->work_offset : NULL};
        if ((step->op->flags & DS_OP_COMM) != 0 && step->kind != DSI_STEP_WAIT) {
            link_collective(exec, l, s);
        }
    }
}

/* Whether a phase behind that of step s reads what it makes. */
static bool is_read_later(const dsi_plan *plan, uint32_t s)
{
    const ds_value made = plan->refs[plan->steps[s].out_at].value;
    for (uint32_t t = plan->phase_begin[plan->steps[s].phase + 1]; t < plan->n_steps; ++t) {
        for (uint32_t i = 0; i < plan->steps[t].n_in; ++i) {
            const dsi_ref *ref = &plan->refs[plan->steps[t].in_at + i];
            if (ref->space != DSI_SPACE_NONE && ref->value == made) {
                return true;
            }
        }
    }
    return false;
}

static void find_ahead(loaded *l)
{
    for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
        const dsi_step *step = &l->plan->steps[s];
        if (step->op == &dsi_op_swap_in && step->kind != DSI_STEP_WAIT &&
            is_read_later(l->plan, s)) {
            l->ahead[l->n_ahead++] = s;
        }
    }
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

/* Parts of cells that live on the device lie inside of them. */
static void place_parts(dsi_exec *exec)
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
    place_parts(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        link_plan(exec, &exec->plans[i]);
        find_ahead(&exec->plans[i]);
    }
    return DS_OK;
}

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

/* Transfers of a phase that failed: none may write into the arena when another plan uses it. */
static void discard_swaps(const dsi_exec *exec, const loaded *l, ds_phase phase)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        dsi_swap_discard(exec->swap, &l->swaps[s]);
    }
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

static ds_status run_swap(const dsi_exec *exec, const loaded *l, uint32_t s, double *work_out)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->kind == DSI_STEP_WAIT) {
        return dsi_swap_wait(exec->swap, &l->swaps[step->start], work_out);
    }
    const bool write = step->op == &dsi_op_swap_out;
    const uint32_t memory = write ? step->in_at + 1 : step->out_at;
    DS_TRY(dsi_swap_start(exec->swap, l->plan->refs[step->in_at].cell, write,
                          l->tensors[memory].data, &l->swaps[s]));
    return step->kind == DSI_STEP_RUN ? dsi_swap_wait(exec->swap, &l->swaps[s], NULL) : DS_OK;
}

/* times: work and waited are filled in; NULL: not asked for. */
static ds_status run_collective(const dsi_exec *exec, const loaded *l, uint32_t s,
                                dsi_exec_times *times)
{
    const dsi_step *step = &l->plan->steps[s];
    dsi_comm_times took = {0};
    if (step->kind != DSI_STEP_WAIT) {
        DS_TRY(dsi_comm_start(exec->comm, &l->comm_calls[s], &l->tickets[s]));
    }
    if (step->kind != DSI_STEP_START) {
        const uint32_t start = step->kind == DSI_STEP_WAIT ? step->start : s;
        DS_TRY(dsi_comm_wait(exec->comm, l->tickets[start], times != NULL ? &took : NULL));
    }
    if (times != NULL) {
        times->work = took.seconds;
        times->waited = took.waited;
    }
    return DS_OK;
}

static ds_status run_step(const dsi_exec *exec, const loaded *l, uint32_t s, dsi_exec_times *times)
{
    const dsi_step *step = &l->plan->steps[s];
    if (step->kernel != NULL) {
        return step->kernel->run(&l->calls[s]);
    }
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        return run_swap(exec, l, s, times != NULL ? &times->work : NULL);
    }
    if (step->op == &dsi_op_take_slice) {
        take_slice(exec->comm, &l->tensors[step->in_at], &l->tensors[step->out_at]);
        return DS_OK;
    }
    return run_collective(exec, l, s, times);
}

static ds_status run_traced(const dsi_exec *exec, const loaded *l, uint32_t s)
{
    dsi_exec_times times = {.begin = dsi_clock_seconds()};
    DS_TRY(run_step(exec, l, s, &times));
    times.end = dsi_clock_seconds();
    exec->trace(exec->trace_user, &l->plan->steps[s], &times);
    return DS_OK;
}

/* What an earlier phase brought for this one, once more: the host has written cells since then. */
static ds_status bring_again(dsi_exec *exec, const loaded *l, ds_phase phase)
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
    exec->written = false;
    return DS_OK;
}

/* ctx: as of fail_step. */
static ds_status run_phase(const dsi_exec *exec, const loaded *l, ds_phase phase, ds_ctx *ctx,
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
    if (exec->written && phase == DS_PHASE_BACKWARD) {
        DS_TRY(bring_again(exec, &exec->plans[id], phase));
    }
    return run_phase(exec, &exec->plans[id], phase, exec->ctx, exec->trace != NULL);
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
}

/* The addresses of cells in the plans' operands, after some have changed. */
static void relink(dsi_exec *exec)
{
    place_parts(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const loaded *l = &exec->plans[i];
        for (uint32_t r = 0; r < l->plan->n_refs; ++r) {
            if (l->plan->refs[r].space == DSI_SPACE_CELL) {
                l->tensors[r].data = exec->cell_data[l->plan->refs[r].cell];
            }
        }
    }
}

void dsi_exec_exchange(dsi_exec *exec, const ds_cell *a, const ds_cell *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (dsi_exec_is_swapped(exec, a[i])) {
            exec->written = true;
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
    relink(exec);
}

ds_status dsi_exec_read(const dsi_exec *exec, ds_cell cell, size_t offset, void *data, size_t bytes)
{
    if (dsi_exec_is_swapped(exec, cell)) {
        return dsi_swap_read(exec->swap, cell, offset, data, bytes);
    }
    memcpy(data, (const unsigned char *)exec->cell_data[cell] + offset, bytes);
    return DS_OK;
}

ds_status dsi_exec_write(dsi_exec *exec, ds_cell cell, size_t offset, const void *data,
                         size_t bytes)
{
    if (dsi_exec_is_swapped(exec, cell)) {
        exec->written = true;
        return dsi_swap_write(exec->swap, cell, offset, data, bytes);
    }
    memcpy((unsigned char *)exec->cell_data[cell] + offset, data, bytes);
    return DS_OK;
}

ds_status dsi_exec_clear(dsi_exec *exec, ds_cell cell)
{
    const size_t bytes = ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta);
    if (dsi_exec_is_swapped(exec, cell)) {
        exec->written = true;
        return dsi_swap_clear(exec->swap, cell);
    }
    memset(exec->cell_data[cell], 0, bytes);
    return DS_OK;
}

bool dsi_exec_is_swapped(const dsi_exec *exec, ds_cell cell)
{
    return home_of(exec, cell).residence != DSI_ON_DEVICE;
}

size_t dsi_exec_host_bytes(const dsi_exec *exec)
{
    return dsi_swap_host_bytes(exec->swap);
}

size_t dsi_exec_disk_bytes(const dsi_exec *exec)
{
    return dsi_swap_disk_bytes(exec->swap);
}

double dsi_exec_swap_waited(const dsi_exec *exec)
{
    return dsi_swap_waited(exec->swap);
}

size_t dsi_exec_resident_bytes(const dsi_exec *exec)
{
    const size_t own = exec->map != NULL ? dsi_resident_bytes(exec->map, exec->map_bytes) : 0;
    return own + (exec->shared != NULL ? dsi_resident_bytes(exec->shared, exec->shared_bytes) : 0);
}

const void *dsi_exec_host_cell(const dsi_exec *exec, ds_cell cell)
{
    return home_of(exec, cell).residence == DSI_ON_HOST ? dsi_swap_host(exec->swap, cell) : NULL;
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
    *tensor_out = (ds_tensor){place_of(exec, &exec->plans[id], &output->ref), output->ref.meta};
    return DS_OK;
}

size_t dsi_exec_bytes(const dsi_exec *exec)
{
    return exec->map_bytes + exec->shared_bytes;
}

size_t dsi_exec_table_bytes(const dsi_plan *plan)
{
    const loaded *l = NULL;
    const size_t per_step = sizeof *l->sigs + sizeof *l->calls + sizeof *l->comm_calls +
                            sizeof *l->names + sizeof *l->tickets + sizeof *l->swaps +
                            sizeof *l->ahead;
    const size_t per_ref = sizeof *l->tensors + sizeof *l->parts;
    return (plan->n_steps + 1) * per_step + (plan->n_refs + 1) * per_ref +
           dsi_arena_used(plan->arena) + plan->ledger->capacity * sizeof *plan->ledger->entries;
}

void dsi_exec_set_trace(dsi_exec *exec, dsi_exec_trace_fn fn, void *user)
{
    exec->trace = fn;
    exec->trace_user = user;
}
