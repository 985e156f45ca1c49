/* SPDX-License-Identifier: Apache-2.0 */
/* Swaps that end in the next step: invariant 12 of plan.h. */
#include "plan/plan_check.h"

#include "op/ops.h"

static ds_cell parent_of(const dsi_plan *plan, ds_cell cell)
{
    return cell < plan->n_cells ? plan->cell_parent[cell] : DS_NONE;
}

/* Whether the two cells have storage in common; two parts of one may. */
static bool is_same_storage(const dsi_plan *plan, ds_cell a, ds_cell b)
{
    return a == b || parent_of(plan, a) == b || parent_of(plan, b) == a;
}

/* Whether step s touches the cell of a carried swap, or writes over what it takes home. */
static ds_status check_step(const dsi_plan *plan, uint32_t s, const dsi_ref *cell, const dsi_ref *x)
{
    const dsi_step *step = &plan->steps[s];
    const size_t bytes = ds_meta_bytes(x->meta);
    if (x->space == DSI_SPACE_ARENA && step->work_bytes > 0 &&
        dsi_ranges_meet(step->work_offset, step->work_bytes, x->offset, bytes)) {
        return dsi_plan_broken(plan, s, 12, "scratch over what is on its way home");
    }
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const bool out = i >= step->n_in;
        const dsi_ref *ref = &plan->refs[out ? step->out_at + i - step->n_in : step->in_at + i];
        if (ref->space == DSI_SPACE_CELL && step->kind != DSI_STEP_WAIT &&
            is_same_storage(plan, ref->cell, cell->cell)) {
            return dsi_plan_broken(plan, s, 12, "touches a cell that is on its way home");
        }
        if (out && ref->space == x->space &&
            dsi_ranges_meet(ref->offset, ds_meta_bytes(ref->meta), x->offset, bytes)) {
            return dsi_plan_broken(plan, s, 12, "overwrites what is on its way home");
        }
    }
    return DS_OK;
}

static ds_status check_swap(const dsi_plan *plan, uint32_t wait)
{
    const uint32_t s = plan->steps[wait].start;
    const dsi_step *start = &plan->steps[s];
    const dsi_ref *cell = &plan->refs[start->in_at];
    const dsi_ref *x = &plan->refs[start->in_at + 1];
    if (start->op != &dsi_op_swap_out || plan->steps[wait].phase != DS_PHASE_FORWARD ||
        start->phase == DS_PHASE_FORWARD || cell->space != DSI_SPACE_CELL) {
        return dsi_plan_broken(plan, wait, 12, "only swaps to a home end in the next step");
    }
    for (uint32_t t = 0; t < wait; ++t) {
        DS_TRY(check_step(plan, t, cell, x));
    }
    for (uint32_t t = s + 1; t < plan->n_steps; ++t) {
        DS_TRY(check_step(plan, t, cell, x));
    }
    return DS_OK;
}

ds_status dsi_plan_check_carried(const dsi_plan *plan)
{
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        if (plan->steps[s].kind == DSI_STEP_WAIT && plan->steps[s].start > s) {
            DS_TRY(check_swap(plan, s));
        }
    }
    return DS_OK;
}
