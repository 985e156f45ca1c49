/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the range of the slots: invariant 13 of plan.h. */
#include "plan/plan_check.h"

#include <stdlib.h>

/* What weights' halves of backward phases read of other chunks' slots: they may be put off behind
 * phases that follow them in the plan. */
typedef struct late_reads {
    dsi_range *items;
    uint32_t n;
} late_reads;

/* The last phase of a chunk. */
static ds_phase last_of(const dsi_phases *phases, uint32_t chunk)
{
    ds_phase phase = dsi_phases_micro(phases) - 1;
    while (phase > 0 && dsi_phases_chunk(phases, phase) != chunk) {
        --phase;
    }
    return phase;
}

/* Whether bytes of the arena lie in slot 0 of a chunk; broken when they lie in the pool and not
 * there, or a step of no phase from the chunk's forward to its backward phase touches them. */
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
        *inside_out = *inside_out || inside;
    }
    if (!*inside_out && bytes > 0 &&
        dsi_ranges_meet(offset, bytes, plan->pool.offset, plan->pool.bytes)) {
        return dsi_plan_broken(plan, s, 13, "memory of a slot, and other memory");
    }
    return DS_OK;
}

/* Whether a step takes bytes that an earlier weights' half, put off behind it, has yet to read. */
static bool is_read_late(const dsi_plan *plan, uint32_t s, size_t offset, size_t bytes,
                         const late_reads *late)
{
    bool met = false;
    for (uint32_t i = 0; i < late->n && !dsi_phase_is_weights(&plan->phases, plan->steps[s].phase);
         ++i) {
        met = met || dsi_ranges_meet(offset, bytes, late->items[i].offset, late->items[i].bytes);
    }
    return met;
}

static ds_status check_operand(const dsi_plan *plan, uint32_t s, const dsi_ref *ref, bool out,
                               ds_phase *made, late_reads *late)
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
    if (inside && out && is_read_late(plan, s, ref->offset, ds_meta_bytes(ref->meta), late)) {
        return dsi_plan_broken(plan, s, 13,
                               "writes where a weights' half that may come later reads");
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
    } else if (inside && made[ref->value] != DS_NONE &&
               dsi_phase_is_weights(&plan->phases, step->phase) &&
               dsi_phases_chunk(&plan->phases, made[ref->value]) !=
                   dsi_phases_chunk(&plan->phases, step->phase)) {
        late->items[late->n++] = (dsi_range){ref->offset, ds_meta_bytes(ref->meta)};
    }
    return DS_OK;
}

static ds_status check_step(const dsi_plan *plan, uint32_t s, ds_phase *made, late_reads *late)
{
    const dsi_step *step = &plan->steps[s];
    bool inside = false;
    DS_TRY(check_range(plan, s, step->work_offset, step->work_bytes, &inside));
    for (uint32_t i = 0; i < step->n_in; ++i) {
        DS_TRY(check_operand(plan, s, &plan->refs[step->in_at + i], false, made, late));
    }
    for (uint32_t i = 0; i < step->n_out; ++i) {
        DS_TRY(check_operand(plan, s, &plan->refs[step->out_at + i], true, made, late));
    }
    return DS_OK;
}

/* Whether a slot of a chunk overlaps none of those that are taken. */
static ds_status check_apart(const dsi_plan *plan, const bool *taken, uint32_t chunk, uint32_t slot)
{
    const dsi_plan_slot *own = &plan->slot[chunk];
    for (uint32_t c = 0; c < dsi_phases_forward(&plan->phases); ++c) {
        const dsi_plan_slot *other = &plan->slot[c];
        for (uint32_t k = 0; k < plan->n_slots; ++k) {
            if (taken[c * plan->n_slots + k] && (c != chunk || k != slot) &&
                dsi_ranges_meet(own->at[slot], own->range.bytes, other->at[k],
                                other->range.bytes)) {
                return dsi_plan_broken(plan, 0, 13, "two slots in flight at once overlap");
            }
        }
    }
    return DS_OK;
}

/* What is in flight at once, in the order of the step; without one, everything. */
static ds_status check_events(const dsi_plan *plan, bool *taken)
{
    const uint32_t k = plan->n_slots;
    const uint32_t n_all = dsi_phases_forward(&plan->phases) * k;
    const bool any = plan->slot_events.items == NULL;
    uint32_t n_taken = 0;
    for (uint32_t i = 0; i < (any ? n_all : plan->slot_events.n); ++i) {
        const dsi_slot_event event =
            any ? (dsi_slot_event){.chunk = i / k, .micro = i % k} : plan->slot_events.items[i];
        const uint32_t key = event.chunk * k + event.micro % k;
        if (key >= n_all || taken[key] != event.ends) {
            return dsi_plan_broken(plan, 0, 13, "a slot is taken twice, or given back twice");
        }
        taken[key] = !event.ends;
        n_taken += event.ends ? UINT32_MAX : 1;
        DS_TRY(event.ends ? DS_OK : check_apart(plan, taken, event.chunk, event.micro % k));
    }
    return n_taken == 0 || any ? DS_OK : dsi_plan_broken(plan, 0, 13, "a slot is not given back");
}

/* Where the slots lie, whoever touches them. */
static ds_status check_pool(const dsi_plan *plan)
{
    const uint32_t n_chunks = dsi_phases_forward(&plan->phases);
    const size_t end = plan->pool.offset + plan->pool.bytes;
    bool beyond = end > plan->arena_bytes;
    for (uint32_t i = 0; i < n_chunks * plan->n_slots && !beyond; ++i) {
        const dsi_plan_slot *slot = &plan->slot[i / plan->n_slots];
        const size_t at = slot->at[i % plan->n_slots];
        beyond = at < plan->pool.offset || at + slot->range.bytes > end ||
                 slot->at[0] != slot->range.offset;
    }
    if (beyond) {
        return dsi_plan_broken(plan, 0, 13, "slots beyond the pool, or that beyond the arena");
    }
    bool *taken = calloc((size_t)n_chunks * plan->n_slots + 1, sizeof *taken);
    if (taken == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    }
    const ds_status status = check_events(plan, taken);
    free(taken);
    return status;
}

ds_status dsi_plan_check_slots(const dsi_plan *plan, uint32_t n_values)
{
    if (plan->n_slots < 2) {
        return DS_OK;
    }
    DS_TRY(check_pool(plan));
    late_reads late = {.items = malloc(((size_t)plan->n_refs + 1) * sizeof *late.items)};
    ds_phase *made =
        malloc(((size_t)n_values + 1) * sizeof *made); /* in which phase, that others */
    if (made == NULL || late.items == NULL) {          /* of the micro-batch follow */
        free(late.items);
        free(made);
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    }
    for (uint32_t v = 0; v < n_values; ++v) {
        made[v] = DS_NONE;
    }
    ds_status status = DS_OK;
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        status = check_step(plan, s, made, &late);
    }
    free(late.items);
    free(made);
    return status;
}
