/* SPDX-License-Identifier: Apache-2.0 */
/* What runs beside other phases: invariant 10 of plan.h. */
#include "plan/plan_check.h"

#include <stdlib.h>

static bool is_rest(const dsi_plan *plan, uint32_t s)
{
    return plan->steps[s].phase == DS_PHASE_REST;
}

/* Phases that may run while the rest is under way. */
static bool runs_meanwhile(ds_phase phase)
{
    return phase < DS_PHASE_SETTLE || phase == DS_PHASE_POSTPONE || phase == DS_PHASE_UPDATE;
}

static ds_status check_range(const dsi_plan *plan, uint32_t s, size_t offset, size_t bytes)
{
    const dsi_range *r = &plan->beside;
    const bool inside = offset >= r->offset && offset + bytes <= r->offset + r->bytes;
    if (bytes > 0 &&
        (is_rest(plan, s) ? !inside : dsi_ranges_meet(offset, bytes, r->offset, r->bytes))) {
        return dsi_plan_broken(plan, s, 10, "memory of what runs beside it, or not of its own");
    }
    return DS_OK;
}

/* rest: per cell: 1 the phase rest reads it, 2 it writes it. */
static ds_status check_beside_step(const dsi_plan *plan, uint32_t s, const uint8_t *rest)
{
    const dsi_step *step = &plan->steps[s];
    DS_TRY(check_range(plan, s, step->work_offset, step->work_bytes));
    if (is_rest(plan, s) && (step->op->flags & DS_OP_COMM) != 0) {
        return dsi_plan_broken(plan, s, 10, "a collective beside others");
    }
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const bool out = i >= step->n_in;
        const dsi_ref *ref = &plan->refs[out ? step->out_at + i - step->n_in : step->in_at + i];
        if (ref->space == DSI_SPACE_ARENA) {
            DS_TRY(check_range(plan, s, ref->offset, ds_meta_bytes(ref->meta)));
        }
        if (ref->space == DSI_SPACE_CELL && runs_meanwhile(step->phase) &&
            rest[ref->cell] > (out ? 0 : 1)) {
            return dsi_plan_broken(plan, s, 10, "touches a cell of what runs beside it");
        }
    }
    return DS_OK;
}

/* Which cells the phase rest touches. */
static void find_beside(const dsi_plan *plan, uint8_t *rest)
{
    for (uint32_t s = plan->phase_begin[DS_PHASE_REST]; s < plan->phase_begin[DS_PHASE_REST + 1];
         ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            const dsi_ref *ref = &plan->refs[step->in_at + i];
            if (ref->space == DSI_SPACE_CELL && rest[ref->cell] == 0) {
                rest[ref->cell] = 1;
            }
        }
        for (uint32_t i = 0; i < step->n_out; ++i) {
            const dsi_ref *ref = &plan->refs[step->out_at + i];
            if (ref->space == DSI_SPACE_CELL) {
                rest[ref->cell] = 2;
            }
        }
    }
}

ds_status dsi_plan_check_beside(const dsi_plan *plan)
{
    if (!plan->rest_beside) {
        return DS_OK;
    }
    uint8_t *rest = calloc((size_t)ds_cells_count(plan->cells) + 1, sizeof *rest);
    if (rest == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    }
    ds_status status = DS_OK;
    find_beside(plan, rest);
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        status = check_beside_step(plan, s, rest);
    }
    free(rest);
    return status;
}
