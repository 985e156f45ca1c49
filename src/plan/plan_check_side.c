/* SPDX-License-Identifier: Apache-2.0 */
/* The phase on the side stream: invariant 10 of plan.h. */
#include "plan/plan_check.h"

#include <stdlib.h>

static bool is_side(const dsi_plan *plan, uint32_t s)
{
    return plan->steps[s].phase == plan->side;
}

/* Phases that may run while that one is under way. */
static bool runs_meanwhile(const dsi_plan *plan, ds_phase phase)
{
    return phase != plan->side && (plan->phases.items[phase].flags & DS_PHASE_ALONE) == 0;
}

static ds_status check_range(const dsi_plan *plan, uint32_t s, size_t offset, size_t bytes)
{
    const dsi_range *r = &plan->side_range;
    const bool inside = offset >= r->offset && offset + bytes <= r->offset + r->bytes;
    if (bytes > 0 &&
        (is_side(plan, s) ? !inside : dsi_ranges_meet(offset, bytes, r->offset, r->bytes))) {
        return dsi_plan_broken(plan, s, 10, "memory of the concurrent phase, or not of its own");
    }
    return DS_OK;
}

/* touched: per cell: 1 the side phase reads it, 2 it writes it. */
static ds_status check_side_step(const dsi_plan *plan, uint32_t s, const uint8_t *touched)
{
    const dsi_step *step = &plan->steps[s];
    DS_TRY(check_range(plan, s, step->work_offset, step->work_bytes));
    if (is_side(plan, s) && (step->op->flags & DS_OP_COMM) != 0) {
        return dsi_plan_broken(plan, s, 10, "a collective in the concurrent phase");
    }
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const bool out = i >= step->n_in;
        const dsi_ref *ref = &plan->refs[out ? step->out_at + i - step->n_in : step->in_at + i];
        if (ref->space == DSI_SPACE_ARENA) {
            DS_TRY(check_range(plan, s, ref->offset, ds_meta_bytes(ref->meta)));
        }
        if (ref->space == DSI_SPACE_CELL && runs_meanwhile(plan, step->phase) &&
            touched[ref->cell] > (out ? 0 : 1)) {
            return dsi_plan_broken(plan, s, 10, "touches a cell of the concurrent phase");
        }
    }
    return DS_OK;
}

/* Which cells the side phase touches. */
static void find_side(const dsi_plan *plan, uint8_t *touched)
{
    for (uint32_t s = plan->phase_begin[plan->side]; s < plan->phase_begin[plan->side + 1]; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            const dsi_ref *ref = &plan->refs[step->in_at + i];
            if (ref->space == DSI_SPACE_CELL && touched[ref->cell] == 0) {
                touched[ref->cell] = 1;
            }
        }
        for (uint32_t i = 0; i < step->n_out; ++i) {
            const dsi_ref *ref = &plan->refs[step->out_at + i];
            if (ref->space == DSI_SPACE_CELL) {
                touched[ref->cell] = 2;
            }
        }
    }
}

ds_status dsi_plan_check_side(const dsi_plan *plan)
{
    if (plan->side == DS_NONE) {
        return DS_OK;
    }
    uint8_t *touched = calloc((size_t)ds_cells_count(plan->cells) + 1, sizeof *touched);
    if (touched == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    }
    ds_status status = DS_OK;
    find_side(plan, touched);
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        status = check_side_step(plan, s, touched);
    }
    free(touched);
    return status;
}
