/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the range of the slots: invariant 13 of plan.h. */
#include "plan/plan_check.h"

#include <stdlib.h>

/* The last phase of a chunk. */
static ds_phase last_of(const dsi_phases *phases, uint32_t chunk)
{
    ds_phase phase = dsi_phases_micro(phases) - 1;
    while (phase > 0 && dsi_phases_chunk(phases, phase) != chunk) {
        --phase;
    }
    return phase;
}

/* Whether bytes of the arena lie in the first copy of a chunk's slot; broken when they lie in
 * another copy, or half in it, or a step of no phase from the chunk's forward to its backward phase
 * touches them. */
static ds_status check_range(const dsi_plan *plan, uint32_t s, size_t offset, size_t bytes,
                             bool *inside_out)
{
    const ds_phase phase = plan->steps[s].phase;
    const uint32_t n_micro = dsi_phases_micro(&plan->phases);
    *inside_out = false;
    for (uint32_t c = 0; c < dsi_phases_forward(&plan->phases) && bytes > 0; ++c) {
        const dsi_range *slot = &plan->slot[c].range;
        const bool inside = offset >= slot->offset && offset + bytes <= slot->offset + slot->bytes;
        const bool of_chunk = phase >= c && phase <= last_of(&plan->phases, c);
        if (inside && phase < n_micro && !of_chunk) {
            return dsi_plan_broken(plan, s, 13, "touches the slot of a chunk that is not begun");
        }
        if (!inside &&
            dsi_ranges_meet(offset, bytes, slot->offset, plan->slot[c].copies * slot->bytes)) {
            return dsi_plan_broken(plan, s, 13, "memory of a slot, and other memory");
        }
        *inside_out = *inside_out || inside;
    }
    return DS_OK;
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
    for (uint32_t c = 0; c < dsi_phases_forward(&plan->phases); ++c) {
        const dsi_plan_slot *slot = &plan->slot[c];
        if (slot->copies < 1 || slot->copies > plan->n_slots ||
            slot->range.offset + slot->copies * slot->range.bytes > plan->arena_bytes) {
            return dsi_plan_broken(plan, 0, 13, "slots beyond the arena");
        }
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
