/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as abstract steps. See plan_sim.h. */
#include "plan/plan_sim.h"

#include "op/ops.h"
#include "place/mesh.h"

#include <stdlib.h>

static ds_kernel_sig sig_of(const dsi_plan *plan, const dsi_step *step)
{
    return (ds_kernel_sig){.op = step->op,
                           .attrs = step->attrs,
                           .n_in = step->n_in,
                           .n_out = step->n_out,
                           .in = plan->metas + step->in_at,
                           .out = plan->metas + step->out_at,
                           .n_threads = plan->n_threads};
}

static bool is_collective(const dsi_step *step)
{
    return step->op->op_class == DS_CLASS_COMM;
}

/* Bytes of the whole tensors of a collective: its inputs, or what it gathers; of rows that go back
 * what a rank gets, since those that it sends have the room for the worst loads. */
static double collective_bytes(const dsi_plan *plan, const dsi_step *step)
{
    const bool gathers =
        dsi_op_collective(step->op) == DS_COMM_ALL_GATHER || step->op->role == DS_ROLE_RETURN_ROWS;
    const uint32_t at = gathers ? step->out_at : step->in_at;
    const uint32_t n = gathers ? step->n_out : step->n_in;
    double bytes = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        bytes += (double)ds_meta_bytes(plan->metas[at + i]);
    }
    return bytes;
}

/* A swap moves a value from or to its cell. */
static void make_swap(const dsi_plan *plan, const dsi_step *step,
                      const dsi_residencies *residencies, dsi_sim_step *sim)
{
    const bool in = step->op->role == DS_ROLE_SWAP_IN;
    const dsi_step *start = step->kind == DSI_STEP_WAIT ? &plan->steps[step->start] : step;
    const dsi_ref *cell = &plan->refs[start->in_at];
    const bool disk = residencies != NULL &&
                      dsi_residency_of(residencies, cell->cell).where == DSI_RESIDENCY_DISK;
    sim->stream = in ? (disk ? DSI_STREAM_DISK_READ : DSI_STREAM_HOST_IN)
                     : (disk ? DSI_STREAM_DISK_WRITE : DSI_STREAM_HOST_OUT);
    sim->work.op_class = DS_CLASS_COPY;
    for (uint32_t i = 0; i < step->n_parts && step->kind != DSI_STEP_WAIT; ++i) {
        const uint32_t at = in ? step->out_at + i : step->in_at + 2 * i + 1;
        sim->work.bytes += (double)ds_meta_bytes(plan->metas[at]);
    }
}

static dsi_sim_step make_step(const dsi_plan *plan, const dsi_step *step, uint32_t ranks_per_node,
                              const dsi_residencies *residencies)
{
    dsi_sim_step sim = {.kind = step->kind,
                        .start = step->start,
                        .phase = step->phase,
                        .stream = DSI_STREAM_COMPUTE,
                        .op = step->op->name,
                        .scope = step->scope};
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        make_swap(plan, step, residencies, &sim);
        return sim;
    }
    if (!is_collective(step)) {
        const ds_kernel_sig sig = sig_of(plan, step);
        sim.stream = step->on_host ? DSI_STREAM_HOST : DSI_STREAM_COMPUTE;
        sim.work = dsi_work_of(&sig, &step->cost);
        return sim;
    }
    const dsi_comm_attrs *attrs = step->attrs;
    const uint32_t n = (uint32_t)attrs->n_ranks;
    sim.stream = DSI_STREAM_COMM;
    sim.coll = step->op->role == DS_ROLE_SHIFT
                   ? DS_COMM_SEND /* to one rank, all at the same time */
                   : dsi_op_collective(step->op);
    const uint32_t apart = attrs->stride > 1 ? (uint32_t)attrs->stride : 1;
    const uint32_t local = ranks_per_node > apart ? ranks_per_node / apart : 1;
    sim.group = (dsi_group){n, n < local ? n : local};
    sim.axes = attrs->axes;
    sim.work.op_class = DS_CLASS_COMM;
    sim.work.bytes = step->kind == DSI_STEP_WAIT ? 0.0 : collective_bytes(plan, step);
    return sim;
}

/* The STARTs of this training step whose events a START waits for by itself. What the computing
 * stream has done by then the simulated thread has done as well. */
static void order_start(const dsi_plan *plan, uint32_t s, uint32_t *after, dsi_sim_step *sim)
{
    const dsi_step *step = &plan->steps[s];
    sim->after = after;
    for (uint32_t i = 0; i < step->n_waits && step->kind == DSI_STEP_START; ++i) {
        const uint32_t behind = plan->events[plan->waits[step->wait_at + i]];
        if (behind < s && plan->steps[behind].kind == DSI_STEP_START) {
            after[sim->n_after++] = behind;
        }
    }
}

ds_status dsi_plan_sim_steps(const dsi_plan *plan, uint32_t ranks_per_node,
                             const dsi_residencies *residencies, dsi_sim_step **steps_out)
{
    const size_t bytes = ((size_t)plan->n_steps + 1) * sizeof(dsi_sim_step);
    dsi_sim_step *steps = calloc(1, bytes + plan->n_waits * sizeof(uint32_t));
    if (steps == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for %u simulated steps", plan->n_steps);
    }
    uint32_t *after = (uint32_t *)(void *)((char *)steps + bytes); /* behind the steps */
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        steps[s] = make_step(plan, &plan->steps[s], ranks_per_node, residencies);
        order_start(plan, s, after + plan->steps[s].wait_at, &steps[s]);
    }
    *steps_out = steps;
    return DS_OK;
}

double dsi_plan_model_flops(const dsi_plan *plan)
{
    double flops = 0.0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (dsi_phase_is_forward(&plan->phases, step->phase) && step->kind != DSI_STEP_WAIT &&
            !is_collective(step)) {
            const ds_kernel_sig sig = sig_of(plan, step);
            const dsi_work work = dsi_work_of(&sig, &step->cost);
            flops += dsi_op_class_is_model(work.op_class) ? work.flops : 0.0;
        }
    }
    return 3.0 * flops;
}

double dsi_plan_clear_bytes(const dsi_plan *plan)
{
    double bytes = 0.0;
    for (ds_cell c = 0; c < plan->n_cells && c < ds_cells_count(plan->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(plan->cells, c);
        const bool whole = plan->cell_parent[c] == DS_NONE; /* a part is in it */
        bytes += cell->kind == DS_CELL_GRAD && whole ? (double)ds_meta_bytes(cell->meta) : 0.0;
    }
    return bytes;
}
