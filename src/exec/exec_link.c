/* SPDX-License-Identifier: Apache-2.0 */
/* Links a plan to memory: the addresses that its kernels and collectives are called with, once all
 * cells and arenas have their places; and again, when cells change theirs.
 */
#include "exec/exec_state.h"

#include "op/ops.h"

#include <stdio.h>

void *dsi_exec_place_of(const dsi_exec *exec, const dsi_loaded *l, const dsi_ref *ref)
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
static const char *name_collective(dsi_loaded *l, uint32_t s)
{
    static const char *const phases[DS_PHASE_COUNT] = {
#define X(id, name) [DS_PHASE_##id] = name,
        DS_PHASE_LIST(X)
#undef X
    };
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
    const int n = snprintf(name, EXEC_NAME_BYTES, "%s: %s%.40s of %.80s", phases[step->phase],
                           step->op->name, along, step->scope);
    if (step->n_parts > 1 && n > 0 && n < EXEC_NAME_BYTES) {
        (void)snprintf(name + n, (size_t)(EXEC_NAME_BYTES - n), " and %u more", step->n_parts - 1);
    }
    return name;
}

/* The call of a collective's step; its parts stand at the place of its operands. */
static void link_collective(const dsi_exec *exec, dsi_loaded *l, uint32_t s)
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
                            .symmetric = l->comms[s] == exec->comm && exec->comm != NULL &&
                                         exec->comm->size > 1, /* peers read the world's memory */
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
        if (step->op == &dsi_op_swap_in && step->kind != DSI_STEP_WAIT &&
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

void dsi_exec_link(const dsi_exec *exec, dsi_loaded *l)
{
    const dsi_plan *plan = l->plan;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        l->tensors[i] = (ds_tensor){dsi_exec_place_of(exec, l, &plan->refs[i]), plan->refs[i].meta};
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
    find_ahead(l);
    find_crossing(l);
}

void dsi_exec_relink(dsi_exec *exec)
{
    dsi_exec_place_parts(exec);
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t r = 0; r < l->plan->n_refs; ++r) {
            if (l->plan->refs[r].space == DSI_SPACE_CELL) {
                l->tensors[r].data = exec->cell_data[l->plan->refs[r].cell];
            }
        }
    }
}
