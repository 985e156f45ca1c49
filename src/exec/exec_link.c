/* SPDX-License-Identifier: Apache-2.0 */
/* Links a plan to memory: the addresses that its kernels and collectives are called with, once all
 * cells and arenas have their places; and again, when cells change theirs.
 */
#include "exec/exec_state.h"

#include "op/ops.h"

#include <stdio.h>

void *dsi_exec_cell_of(const dsi_exec *exec, ds_cell cell, uint32_t slot)
{
    unsigned char *data = exec->cell_data[cell];
    return data != NULL && slot > 0 && slot < dsi_exec_cell_slots(exec, cell)
               ? data + slot * dsi_exec_cell_stride(exec, cell)
               : data;
}

/* Where it lies in a slot; what is in none, always there. */
static size_t offset_in(const dsi_plan *plan, const dsi_ref *ref, uint32_t slot)
{
    size_t offset = ref->offset;
    for (uint32_t c = 0; c < DSI_PLAN_CHUNKS && slot > 0; ++c) {
        const dsi_range *range = &plan->slot[c].range;
        if (ref->offset >= range->offset && ref->offset - range->offset < range->bytes) {
            offset = plan->slot[c].at[slot] + ref->offset - range->offset;
        }
    }
    return offset;
}

void *dsi_exec_place_of(const dsi_exec *exec, const dsi_loaded *l, const dsi_ref *ref,
                        uint32_t slot)
{
    switch (ref->space) {
    case DSI_SPACE_ARENA:
        return exec->arena + offset_in(l->plan, ref, slot);
    case DSI_SPACE_SHARED:
        return l->shared + ref->offset;
    case DSI_SPACE_CELL:
        return dsi_exec_cell_of(exec, ref->cell, slot);
    case DSI_SPACE_NONE:
        break;
    }
    return NULL;
}

void *dsi_exec_peer_view(const dsi_exec *exec, void *memory)
{
    return dsi_exec_is_on_host(exec) || exec->accel->groups != NULL
               ? memory
               : exec->accel->memory->peer_view(exec->device, memory);
}

void *dsi_exec_disk_view(const dsi_exec *exec, void *memory)
{
    return exec->swap_params.mover != NULL ? memory : dsi_exec_peer_view(exec, memory);
}

/* The elements of a tensor as the communicator sees them: it knows no 8-byte reals. */
static ds_dtype carried_as(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F64 ? DS_DTYPE_I64 : dtype;
}

/* "backward: reduce_scatter of transformer.h.3.mlp.c_fc.weight and 11 more". */
static const char *name_collective(dsi_loaded *l, uint32_t s)
{
    const dsi_step *step = &l->plan->steps[s];
    char *name = l->names[s];
    const int64_t axes = ((const dsi_comm_attrs *)step->attrs)->axes;
    char along[64] = "";
    if (axes != 0) {
        const dsi_axes tuple = dsi_axes_decode(axes);
        dsi_buf text = dsi_buf_make(sizeof along);
        dsi_axes_text(&tuple, &text);
        (void)snprintf(along, sizeof along, " over %.50s", dsi_buf_text(&text));
        dsi_buf_free(&text);
    }
    const int n =
        snprintf(name, EXEC_NAME_BYTES, "%s: %s%.40s of %.80s",
                 l->plan->phases.items[step->phase].name, step->op->name, along, step->scope);
    if (step->n_parts > 1 && n > 0 && n < EXEC_NAME_BYTES) {
        (void)snprintf(name + n, (size_t)(EXEC_NAME_BYTES - n), " and %u more", step->n_parts - 1);
    }
    return name;
}

static bool carries_rows(const dsi_step *step)
{
    return step->op->role == DS_ROLE_DISPATCH_ROWS || step->op->role == DS_ROLE_RETURN_ROWS;
}

static bool is_shift(const dsi_step *step)
{
    return step->op->role == DS_ROLE_SHIFT;
}

/* Whether a rank may get another number of elements from a rank than it sends there. */
static bool is_uneven(const dsi_step *step)
{
    return carries_rows(step) || is_shift(step);
}

static size_t counts_of(const dsi_step *step)
{
    const bool exchanges = step->op->role == DS_ROLE_ALL_TO_ALL || is_uneven(step);
    return exchanges && step->kind != DSI_STEP_WAIT
               ? step->n_parts * (is_uneven(step) ? 2 : 1) *
                     (size_t)((const dsi_comm_attrs *)step->attrs)->n_ranks
               : 0;
}

size_t dsi_exec_n_counts(const dsi_plan *plan)
{
    size_t n = 0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        n += counts_of(&plan->steps[s]);
    }
    return n;
}

/* All-to-alls of a plan move equal blocks: those sent are as large as those received. A shift is
 * one in which all goes to the next rank. Those of rows get their counts when they start
 * (exec_rows.c).
 */
static void link_counts(const dsi_loaded *l, uint32_t s, uint32_t slot, size_t *counts)
{
    const dsi_step *step = &l->plan->steps[s];
    const size_t n_ranks = (size_t)((const dsi_comm_attrs *)step->attrs)->n_ranks;
    dsi_comm_part *parts = l->parts + (size_t)slot * l->plan->n_refs + step->in_at;
    for (size_t i = 0; i < step->n_parts && is_uneven(step); ++i) {
        parts[i].counts_in = counts + 2 * i * n_ranks;
        parts[i].counts_out = counts + (2 * i + 1) * n_ranks;
        for (size_t r = 0; r < n_ranks && is_shift(step); ++r) {
            const size_t rank = l->comms[s]->rank;
            counts[2 * i * n_ranks + r] = r == (rank + 1) % n_ranks ? parts[i].count : 0;
            counts[(2 * i + 1) * n_ranks + r] =
                r == (rank + n_ranks - 1) % n_ranks ? parts[i].count : 0;
        }
    }
    for (size_t i = 0; i < counts_of(step) && !is_uneven(step); ++i) {
        dsi_comm_part *part = &parts[i / n_ranks];
        counts[i] = part->count / n_ranks;
        part->counts_in = part->counts_out = counts + i / n_ranks * n_ranks;
    }
}

/* The call of a collective's step in a slot; its parts stand at the place of its operands. */
static void link_collective(const dsi_exec *exec, dsi_loaded *l, uint32_t s, uint32_t slot)
{
    const dsi_step *step = &l->plan->steps[s];
    const uint32_t n_in = step->n_in / step->n_parts;
    const ds_tensor *tensors = l->tensors + (size_t)slot * l->plan->n_refs;
    dsi_comm_part *parts = l->parts + (size_t)slot * l->plan->n_refs + step->in_at;
    dsi_comm_call *call = &l->comm_calls[(size_t)slot * l->plan->n_steps + s];
    *call = (dsi_comm_call){.kind = dsi_op_collective(step->op),
                            .dtype = carried_as(l->plan->refs[step->out_at].meta.dtype),
                            .factor = (float)((const dsi_comm_attrs *)step->attrs)->factor,
                            .parts = parts,
                            .n_parts = step->n_parts,
                            .symmetric = l->comms[s] == exec->comm && exec->comm != NULL &&
                                         exec->comm->size > 1, /* peers read the world's memory */
                            .what = name_collective(l, s)};
    for (uint32_t i = 0; i < step->n_parts; ++i) {
        const ds_tensor *in = &tensors[step->in_at + i * n_in + n_in - 1];
        const ds_tensor *out = &tensors[step->out_at + i];
        const bool gathers = call->kind == DS_COMM_ALL_GATHER;
        parts[i] = (dsi_comm_part){
            .in = dsi_exec_peer_view(exec, in->data),
            .out = dsi_exec_peer_view(exec, out->data),
            .count = (size_t)ds_shape_count(gathers ? out->meta.shape : in->meta.shape)};
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

static void find_ahead(dsi_loaded *l)
{
    for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
        const dsi_step *step = &l->plan->steps[s];
        if (step->op->role == DS_ROLE_SWAP_IN && step->kind != DSI_STEP_WAIT &&
            is_read_later(l->plan, s)) {
            l->ahead[l->n_ahead++] = s;
        }
    }
}

static void find_crossing(dsi_loaded *l)
{
    for (uint32_t s = 0; s < l->plan->n_steps; ++s) {
        const dsi_step *step = &l->plan->steps[s];
        if (step->kind == DSI_STEP_WAIT && l->plan->steps[step->start].phase != step->phase) {
            l->crossing[l->n_crossing++] = step->start;
        }
    }
}

static void link_operands(const dsi_exec *exec, dsi_loaded *l, uint32_t slot)
{
    const dsi_plan *plan = l->plan;
    ds_tensor *tensors = l->tensors + (size_t)slot * plan->n_refs;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        const dsi_ref *ref = &plan->refs[i];
        const bool away = ref->space == DSI_SPACE_CELL &&
                          dsi_exec_residency_of(exec, ref->cell).where == DSI_RESIDENCY_HOST;
        void *place = away ? dsi_swap_host(exec->swap, ref->cell, slot)
                           : dsi_exec_place_of(exec, l, ref, slot);
        tensors[i] = (ds_tensor){place, ref->meta};
    }
}

static ds_kernel_call call_of(const dsi_exec *exec, const dsi_loaded *l, uint32_t s, uint32_t slot)
{
    const dsi_plan *plan = l->plan;
    const dsi_step *step = &plan->steps[s];
    const ds_tensor *tensors = l->tensors + (size_t)slot * plan->n_refs;
    return (ds_kernel_call){.ctx = step->phase == plan->side
                                       ? dsi_side_thread_ctx(exec->side_thread)
                                   : step->on_host ? exec->host->ctx
                                                   : exec->ctx,
                            .sig = &l->sigs[s],
                            .in = tensors + step->in_at,
                            .out = tensors + step->out_at,
                            .work = step->work_bytes > 0 ? exec->arena + step->work_offset : NULL};
}

void dsi_exec_link(const dsi_exec *exec, dsi_loaded *l)
{
    const dsi_plan *plan = l->plan;
    size_t *counts = l->counts;
    for (uint32_t slot = 0; slot < plan->n_slots; ++slot) {
        link_operands(exec, l, slot);
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
        for (uint32_t slot = 0; slot < plan->n_slots; ++slot) {
            l->calls[(size_t)slot * plan->n_steps + s] = call_of(exec, l, s, slot);
        }
        if ((step->op->flags & DS_OP_COMM) != 0 && step->kind != DSI_STEP_WAIT) {
            for (uint32_t slot = 0; slot < plan->n_slots; ++slot) {
                link_collective(exec, l, s, slot);
                link_counts(l, s, slot, counts); /* equal in all slots */
            }
            counts += counts_of(step);
        }
    }
    find_ahead(l);
    find_crossing(l);
}

void dsi_exec_relink(dsi_exec *exec)
{
    dsi_exec_place_parts(exec);
    exec->graphs_stale = true;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        for (uint32_t slot = 0; slot < exec->plans[i].plan->n_slots; ++slot) {
            link_operands(exec, &exec->plans[i], slot);
        }
    }
}
