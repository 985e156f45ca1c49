/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the range of the slots: invariant 13 of plan.h. */
#include "plan/plan_check.h"

#include <stdlib.h>

/* Whether bytes of the arena lie in the first slot; broken when they lie in a copy, or half in it.
 */
static ds_status check_range(const dsi_plan *plan, uint32_t s, size_t offset, size_t bytes,
                             bool *inside_out)
{
    const dsi_range *slot = &plan->slot;
    const bool inside = offset >= slot->offset && offset + bytes <= slot->offset + slot->bytes;
    *inside_out = bytes > 0 && inside;
    return bytes > 0 && !inside &&
                   dsi_ranges_meet(offset, bytes, slot->offset, plan->n_slots * slot->bytes)
               ? dsi_plan_broken(plan, s, 13, "memory of a slot, and other memory")
               : DS_OK;
}

static ds_status check_operand(const dsi_plan *plan, uint32_t s, const dsi_ref *ref, bool out,
                               ds_phase *made)
{
    const dsi_step *step = &plan->steps[s];
    bool inside = false;
    if (ref->space == DSI_SPACE_ARENA) {
        DS_TRY(check_range(plan, s, ref->offset, ds_meta_bytes(ref->meta), &inside));
    }
    if (inside &&
        (!dsi_phase_is_micro(&plan->phases, step->phase) || (step->op->flags & DS_OP_SWAP) != 0)) {
        return dsi_plan_broken(plan, s, 13, "touches a slot, but is of none");
    }
    if (ref->space == DSI_SPACE_NONE || ref->space == DSI_SPACE_CELL || ref->value == DS_NONE) {
        return DS_OK;
    }
    const uint32_t last = dsi_phases_micro(&plan->phases) - 1;
    if (out) { /* what the last phase makes is for the step */
        made[ref->value] = step->phase < last ? step->phase : DS_NONE;
    } else if (made[ref->value] != DS_NONE && made[ref->value] != step->phase && !inside) {
        return dsi_plan_broken(
            plan, s, 13, "reads what another phase of a micro-batch left outside of its slot");
    }
    return DS_OK;
}

static ds_status check_step(const dsi_plan *plan, uint32_t s, ds_phase *made)
{
    const dsi_step *step = &plan->steps[s];
    bool inside = false;
    DS_TRY(check_range(plan, s, step->work_offset, step->work_bytes, &inside));
    for (uint32_t i = 0; i < step->n_in; ++i) {
        DS_TRY(check_operand(plan, s, &plan->refs[step->in_at + i], false, made));
    }
    for (uint32_t i = 0; i < step->n_out; ++i) {
        DS_TRY(check_operand(plan, s, &plan->refs[step->out_at + i], true, made));
    }
    return DS_OK;
}

ds_status dsi_plan_check_slots(const dsi_plan *plan, uint32_t n_values)
{
    if (plan->n_slots < 2) {
        return DS_OK;
    }
    if (plan->slot.offset + plan->n_slots * plan->slot.bytes > plan->arena_bytes) {
        return dsi_plan_broken(plan, 0, 13, "slots beyond the arena");
    }
    ds_phase *made =
        malloc(((size_t)n_values + 1) * sizeof *made); /* in which phase, that others */
    if (made == NULL) {                                /* of the micro-batch follow */
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    }
    for (uint32_t v = 0; v < n_values; ++v) {
        made[v] = DS_NONE;
    }
    ds_status status = DS_OK;
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        status = check_step(plan, s, made);
    }
    free(made);
    return status;
}
