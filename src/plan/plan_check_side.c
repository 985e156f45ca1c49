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

/* Bytes of a storage that the side phase touches. Cells that are parts share that of their parent.
 */
typedef struct touch {
    size_t begin, end;
    bool written;
    uint32_t next; /* of the same storage, + 1; 0: none */
} touch;

typedef struct side_touches {
    touch *items;
    uint32_t n;
    uint32_t *first; /* per cell that is a storage, + 1; 0: none */
} side_touches;

static ds_cell storage_of(const dsi_plan *plan, const dsi_ref *ref, touch *range_out)
{
    const ds_cell parent = ref->cell < plan->n_cells ? plan->cell_parent[ref->cell] : DS_NONE;
    const size_t begin = parent != DS_NONE ? plan->cell_offset[ref->cell] : 0;
    *range_out = (touch){.begin = begin, .end = begin + ds_meta_bytes(ref->meta)};
    return parent != DS_NONE ? parent : ref->cell;
}

/* Whether the side phase writes what is read here, or touches what is written. */
static bool meets_side(const dsi_plan *plan, const side_touches *side, const dsi_ref *ref,
                       bool write)
{
    touch own;
    const ds_cell storage = storage_of(plan, ref, &own);
    for (uint32_t i = side->first[storage]; i > 0; i = side->items[i - 1].next) {
        const touch *t = &side->items[i - 1];
        if ((write || t->written) && own.begin < t->end && t->begin < own.end) {
            return true;
        }
    }
    return false;
}

static ds_status check_side_step(const dsi_plan *plan, uint32_t s, const side_touches *side)
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
            meets_side(plan, side, ref, out)) {
            return dsi_plan_broken(plan, s, 10, "touches a cell of the concurrent phase");
        }
    }
    return DS_OK;
}

/* A touch that the newest one of its storage has is not kept again. */
static void add_touch(const dsi_plan *plan, const dsi_ref *ref, bool write, side_touches *side)
{
    touch own;
    const ds_cell storage = storage_of(plan, ref, &own);
    const uint32_t newest = side->first[storage];
    const touch *t = newest > 0 ? &side->items[newest - 1] : NULL;
    if (t != NULL && t->begin == own.begin && t->end == own.end && (t->written || !write)) {
        return;
    }
    own.written = write;
    own.next = newest;
    side->items[side->n++] = own;
    side->first[storage] = side->n;
}

static void find_side(const dsi_plan *plan, side_touches *side)
{
    for (uint32_t s = plan->phase_begin[plan->side]; s < plan->phase_begin[plan->side + 1]; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
            const bool out = i >= step->n_in;
            const dsi_ref *ref = &plan->refs[out ? step->out_at + i - step->n_in : step->in_at + i];
            if (ref->space == DSI_SPACE_CELL) {
                add_touch(plan, ref, out, side);
            }
        }
    }
}

static size_t count_operands(const dsi_plan *plan)
{
    size_t n = 0;
    for (uint32_t s = plan->phase_begin[plan->side]; s < plan->phase_begin[plan->side + 1]; ++s) {
        n += plan->steps[s].n_in + plan->steps[s].n_out;
    }
    return n;
}

ds_status dsi_plan_check_side(const dsi_plan *plan)
{
    if (plan->side == DS_NONE) {
        return DS_OK;
    }
    side_touches side = {.items = calloc(count_operands(plan) + 1, sizeof *side.items),
                         .first =
                             calloc((size_t)ds_cells_count(plan->cells) + 1, sizeof *side.first)};
    ds_status status = side.items != NULL && side.first != NULL
                           ? DS_OK
                           : ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    if (status >= 0) {
        find_side(plan, &side);
    }
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        status = check_side_step(plan, s, &side);
    }
    free(side.items);
    free(side.first);
    return status;
}
