/* SPDX-License-Identifier: Apache-2.0 */
/* The independent checker: follows the contents of the arena through the plan, step by step.
 *
 * It keeps the list of byte ranges that hold something, each with the values that it holds (several
 * for views and in-place outputs). It knows nothing of how the plan was made.
 */
#include "plan/plan_check.h"

#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct held {
    dsi_space space;
    size_t offset, bytes;
    ds_value value;
} held;

typedef struct checker {
    const dsi_plan *plan;
    uint32_t *last_read;     /* per value: last step that reads it; 0 when none */
    bool *is_output;         /* per value */
    ds_phase *made_in;       /* per value: phase of its producer */
    bool *in_flight;         /* per value: a start that has not been waited for writes it */
    uint32_t *wait_of;       /* per step: the wait of a start; UINT32_MAX: none */
    uint32_t *epoch_of;      /* per value of a cell: writes of the cell before it */
    uint32_t *epoch;         /* per cell: writes so far */
    uint32_t *part_written;  /* per cell: 1 + the last phase that wrote a part of it */
    uint32_t *whole_written; /* per cell: 1 + the last phase that wrote it */
    held *held;
    uint32_t n_held, room;
} checker;

ds_status dsi_plan_broken(const dsi_plan *plan, uint32_t s, int invariant, const char *what)
{
    const dsi_step *step = &plan->steps[s];
    return ds_fail(plan->ctx, DS_ERR_GRAPH, "plan invariant %d broken at step %u (%s, %s): %s",
                   invariant, s, step->op->name, step->scope, what);
}

static ds_status broken(const checker *c, uint32_t s, int invariant, const char *what)
{
    return dsi_plan_broken(c->plan, s, invariant, what);
}

static bool in_arena(const dsi_ref *ref)
{
    return ref->space == DSI_SPACE_ARENA || ref->space == DSI_SPACE_SHARED;
}

/* Whether the contents of `h` still matter after step s. */
static bool needed_after(const checker *c, const held *h, uint32_t s)
{
    if (c->last_read[h->value] > s) {
        return true;
    }
    return c->is_output[h->value] && c->plan->steps[s].phase <= c->made_in[h->value];
}

static ds_status check_place(const checker *c, uint32_t s, const dsi_ref *ref)
{
    const size_t bytes = ds_meta_bytes(ref->meta);
    const size_t room =
        ref->space == DSI_SPACE_SHARED ? c->plan->shared_bytes : c->plan->arena_bytes;
    if (in_arena(ref) && (ref->offset > room || bytes > room - ref->offset)) {
        return broken(c, s, 2, "operand outside of the arena");
    }
    if (ref->space == DSI_SPACE_CELL) {
        if (ref->cell >= ds_cells_count(c->plan->cells)) {
            return broken(c, s, 2, "unknown cell");
        }
        const ds_cell_info *cell = ds_cells_get(c->plan->cells, ref->cell);
        if (ref->offset != 0 || bytes > ds_meta_bytes(cell->meta)) {
            return broken(c, s, 2, "operand larger than its cell");
        }
    }
    return DS_OK;
}

static ds_cell parent_of(const checker *c, ds_cell cell)
{
    return cell < c->plan->n_cells ? c->plan->cell_parent[cell] : DS_NONE;
}

/* A cell and its parts share memory. */
static ds_status check_parts(const checker *c, uint32_t s, const dsi_ref *ref)
{
    const dsi_step *step = &c->plan->steps[s];
    const uint32_t now = (uint32_t)step->phase + 1;
    if (ref->space != DSI_SPACE_CELL || step->kind == DSI_STEP_WAIT) {
        return DS_OK; /* a wait is of what its start read */
    }
    const ds_cell parent = parent_of(c, ref->cell);
    return c->part_written[ref->cell] == now ||
                   (parent != DS_NONE && c->whole_written[parent] == now)
               ? broken(c, s, 11, "reads a cell that was written through a part or its whole")
               : DS_OK;
}

static ds_status check_read(const checker *c, uint32_t s, const dsi_ref *ref)
{
    DS_TRY(check_place(c, s, ref));
    if (ref->space != DSI_SPACE_NONE && c->in_flight[ref->value]) {
        return broken(c, s, 8, "reads what a collective has not finished writing");
    }
    if (ref->space == DSI_SPACE_CELL && c->epoch_of[ref->value] != c->epoch[ref->cell]) {
        return broken(c, s, 3, "reads a version of a cell that was overwritten");
    }
    DS_TRY(check_parts(c, s, ref));
    const size_t bytes = ds_meta_bytes(ref->meta);
    if (!in_arena(ref) || bytes == 0) {
        return DS_OK;
    }
    for (uint32_t i = 0; i < c->n_held; ++i) {
        const held *h = &c->held[i];
        if (h->value == ref->value && h->space == ref->space && h->offset == ref->offset &&
            (h->bytes == bytes || h->bytes == dsi_home_bytes(bytes))) {
            return DS_OK;
        }
    }
    return broken(c, s, 3, "reads bytes that do not hold its input");
}

/* Input of step s that output i may lie on: a view, or the stated in-place operand. */
static bool allowed_overlap(const checker *c, const dsi_step *step, uint32_t i, const held *h)
{
    const bool view = (step->op->flags & DS_OP_VIEW) != 0;
    const bool inplace = (step->op->flags & DS_OP_INPLACE) != 0;
    const int8_t *writes = step->op->writes;
    const uint32_t at = view ? 0 : writes != NULL ? (uint32_t)writes[i] : step->op->inplace_in;
    if ((i != 0 && writes == NULL) || (!view && !inplace) || at >= step->n_in) {
        return false;
    }
    const dsi_ref *in = &c->plan->refs[step->in_at + at];
    const dsi_ref *out = &c->plan->refs[step->out_at + i];
    return in_arena(in) && in->space == out->space && in->offset == out->offset &&
           h->space == in->space && h->offset == in->offset && (view || h->value == in->value);
}

static ds_status check_write(checker *c, uint32_t s, uint32_t i)
{
    const dsi_step *step = &c->plan->steps[s];
    const dsi_ref *ref = &c->plan->refs[step->out_at + i];
    const bool blocks = (step->op->flags & DS_OP_SWAP) != 0;
    const size_t content = ds_meta_bytes(ref->meta);
    const size_t bytes = blocks ? dsi_home_bytes(content) : content;
    const bool view = (step->op->flags & DS_OP_VIEW) != 0;
    DS_TRY(check_place(c, s, ref));
    if (ref->space == DSI_SPACE_CELL) {
        c->epoch[ref->cell] += view ? 0 : 1;
        c->whole_written[ref->cell] = (uint32_t)step->phase + 1;
        if (parent_of(c, ref->cell) != DS_NONE) {
            c->part_written[parent_of(c, ref->cell)] = (uint32_t)step->phase + 1;
        }
        c->epoch_of[ref->value] = c->epoch[ref->cell];
        return DS_OK;
    }
    if (!in_arena(ref) || bytes == 0) {
        return DS_OK;
    }
    uint32_t kept = 0;
    for (uint32_t h = 0; h < c->n_held; ++h) {
        const held *old = &c->held[h];
        const bool hit = old->space == ref->space &&
                         dsi_ranges_meet(old->offset, old->bytes, ref->offset, bytes);
        if (hit && !view) {
            const bool read_now = c->last_read[old->value] == s;
            if (needed_after(c, old, s)) {
                return broken(c, s, 4, "overwrites a value that is read later");
            }
            if (read_now && !allowed_overlap(c, step, i, old)) {
                return broken(c, s, 4, "overwrites its own input");
            }
            continue; /* dead: forget it */
        }
        c->held[kept++] = *old;
    }
    c->n_held = kept;
    if (c->n_held == c->room) {
        return broken(c, s, 1, "too many live values to check");
    }
    c->held[c->n_held++] = (held){ref->space, ref->offset, bytes, ref->value};
    return DS_OK;
}

static ds_status check_work(const checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    if (step->work_bytes == 0) {
        return DS_OK;
    }
    if (step->work_offset > c->plan->arena_bytes ||
        step->work_bytes > c->plan->arena_bytes - step->work_offset) {
        return broken(c, s, 2, "scratch outside of the arena");
    }
    for (uint32_t i = 0; i < c->n_held; ++i) {
        const held *h = &c->held[i];
        if (h->space == DSI_SPACE_ARENA &&
            dsi_ranges_meet(h->offset, h->bytes, step->work_offset, step->work_bytes) &&
            (needed_after(c, h, s) || c->last_read[h->value] == s)) {
            return broken(c, s, 5, "scratch overlaps a live value");
        }
    }
    for (uint32_t i = 0; i < step->n_out; ++i) {
        const dsi_ref *ref = &c->plan->refs[step->out_at + i];
        if (ref->space == DSI_SPACE_ARENA && dsi_ranges_meet(ref->offset, ds_meta_bytes(ref->meta),
                                                             step->work_offset, step->work_bytes)) {
            return broken(c, s, 5, "scratch overlaps an output");
        }
    }
    return DS_OK;
}

/* A wait holds the operands of its start. */
static bool is_of_start(const dsi_plan *plan, const dsi_step *wait, const dsi_step *start)
{
    bool same = wait->op == start->op && wait->n_in == start->n_in + start->n_out;
    for (uint32_t i = 0; same && i < wait->n_in; ++i) {
        const dsi_ref *got = &plan->refs[wait->in_at + i];
        const dsi_ref *want =
            &plan->refs[i < start->n_in ? start->in_at + i : start->out_at + i - start->n_in];
        const bool gone = got->space == DSI_SPACE_NONE && want->space == DSI_SPACE_CELL;
        same = gone || /* the version of the cell that was overwritten */
               (got->value == want->value && got->space == want->space &&
                got->offset == want->offset && got->cell == want->cell);
    }
    return same && wait->n_out == 0;
}

/* Each start has one wait: of a collective in its phase, of a swap in that or another one. */
static ds_status check_waits(checker *c)
{
    const dsi_plan *plan = c->plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->kind != DSI_STEP_WAIT) {
            continue;
        }
        if (step->start >= plan->n_steps || plan->steps[step->start].kind != DSI_STEP_START ||
            c->wait_of[step->start] != UINT32_MAX ||
            !is_of_start(plan, step, &plan->steps[step->start])) {
            return broken(c, s, 8, "does not hold the operands of its start");
        }
        c->wait_of[step->start] = s;
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const uint32_t wait = c->wait_of[s];
        const bool swap = (step->op->flags & DS_OP_SWAP) != 0;
        if (step->kind == DSI_STEP_START &&
            (wait == UINT32_MAX ||
             (!swap && (wait < s || plan->steps[wait].phase != step->phase)))) {
            return broken(c, s, 8, "a collective is not waited for in its phase");
        }
    }
    return DS_OK;
}

/* Marks what a START writes, and clears it at its WAIT. */
static void note_flight(checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    const dsi_step *start = step->kind == DSI_STEP_WAIT ? &c->plan->steps[step->start] : step;
    for (uint32_t i = 0; i < start->n_out && step->kind != DSI_STEP_RUN; ++i) {
        c->in_flight[c->plan->refs[start->out_at + i].value] = step->kind == DSI_STEP_START;
    }
}

/* What a swap moves to or from an arena comes in whole blocks. */
static ds_status check_blocks(const checker *c, uint32_t s, const dsi_ref *ref)
{
    const size_t room =
        ref->space == DSI_SPACE_SHARED ? c->plan->shared_bytes : c->plan->arena_bytes;
    const size_t bytes = dsi_home_bytes(ds_meta_bytes(ref->meta));
    return in_arena(ref) && (ref->offset % DSI_HOME_ALIGN != 0 || ref->offset > room ||
                             bytes > room - ref->offset)
               ? broken(c, s, 9, "a swap moves whole blocks")
               : DS_OK;
}

/* A swapped cell is touched by swaps alone, and they by nothing else. */
static ds_status check_swap(const checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    const bool swap = (step->op->flags & DS_OP_SWAP) != 0;
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const dsi_ref *ref = i < step->n_in ? &c->plan->refs[step->in_at + i]
                                            : &c->plan->refs[step->out_at + i - step->n_in];
        const bool swapped = ref->space == DSI_SPACE_CELL && c->plan->cell_swapped[ref->cell];
        if (ref->space == DSI_SPACE_CELL && swapped != swap) {
            return broken(c, s, 9, "touches a cell where it does not live");
        }
        DS_TRY(swap ? check_blocks(c, s, ref) : DS_OK);
    }
    if (swap && (step->kernel != NULL || step->work_bytes != 0)) {
        return broken(c, s, 9, "a swap with a kernel");
    }
    return DS_OK;
}

/* A collective has no scratch and no kernel, and sends only what peers can read. */
static ds_status check_collective(const checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    if ((step->op->flags & DS_OP_SWAP) != 0) {
        return DS_OK;
    }
    const uint32_t n_each = step->n_parts > 0 ? step->n_in / step->n_parts : 0;
    if (step->kernel != NULL || step->kind == DSI_STEP_WAIT) {
        return DS_OK;
    }
    if ((step->op->flags & DS_OP_COMM) == 0 || n_each == 0 || step->work_bytes != 0) {
        return broken(c, s, 7, "a step without a kernel that is no collective");
    }
    for (uint32_t i = n_each - 1; i < step->n_in && step->op != &dsi_op_take_slice; i += n_each) {
        const dsi_ref *ref = &c->plan->refs[step->in_at + i];
        const bool cell = ref->space == DSI_SPACE_CELL && c->plan->cell_shared[ref->cell];
        if (ref->space != DSI_SPACE_SHARED && !cell) {
            return broken(c, s, 7, "sends what peers cannot read");
        }
    }
    return DS_OK;
}

static ds_status check_phases(const checker *c)
{
    const dsi_plan *plan = c->plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const ds_phase phase = plan->steps[s].phase;
        if (s < plan->phase_begin[phase] || s >= plan->phase_begin[phase + 1]) {
            return broken(c, s, 1, "step outside of its phase's range");
        }
    }
    return DS_OK;
}

static ds_status check_outputs(const checker *c, ds_phase phase, uint32_t s)
{
    for (uint32_t i = 0; i < c->plan->n_outputs; ++i) {
        const dsi_plan_output *output = &c->plan->outputs[i];
        bool found = output->phase != phase || !in_arena(&output->ref) ||
                     ds_meta_bytes(output->ref.meta) == 0;
        for (uint32_t h = 0; h < c->n_held && !found; ++h) {
            found = c->held[h].value == output->ref.value &&
                    c->held[h].space == output->ref.space &&
                    c->held[h].offset == output->ref.offset;
        }
        if (!found) {
            return broken(c, s, 6, "a named output is lost before its phase ends");
        }
    }
    return DS_OK;
}

static ds_status follow(checker *c)
{
    const dsi_plan *plan = c->plan;
    DS_TRY(check_phases(c));
    DS_TRY(dsi_plan_check_beside(plan));
    DS_TRY(check_waits(c));
    DS_TRY(dsi_plan_check_carried(plan));
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const bool carried = step->kind == DSI_STEP_WAIT && step->start > s;
        if (step->kind == DSI_STEP_WAIT) {
            note_flight(c, s);
        }
        for (uint32_t i = 0; i < step->n_in && !carried; ++i) {
            DS_TRY(check_read(c, s, &plan->refs[step->in_at + i]));
        }
        DS_TRY(check_swap(c, s));
        DS_TRY(check_collective(c, s));
        DS_TRY(check_work(c, s));
        for (uint32_t i = 0; i < step->n_out; ++i) {
            DS_TRY(check_write(c, s, i));
        }
        if (step->kind == DSI_STEP_START) {
            note_flight(c, s);
        }
        if (s + 1 == plan->n_steps || plan->steps[s + 1].phase != step->phase) {
            DS_TRY(check_outputs(c, step->phase, s));
        }
    }
    return DS_OK;
}

static uint32_t count_values(const dsi_plan *plan)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        const dsi_ref *ref = &plan->refs[i];
        n = ref->space != DSI_SPACE_NONE && ref->value >= n ? ref->value + 1 : n;
    }
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        n = plan->outputs[i].ref.value >= n ? plan->outputs[i].ref.value + 1 : n;
    }
    return n;
}

static void gather_facts(checker *c)
{
    const dsi_plan *plan = c->plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            const dsi_ref *ref = &plan->refs[step->in_at + i];
            if (ref->space != DSI_SPACE_NONE) {
                c->last_read[ref->value] = s;
            }
        }
        for (uint32_t i = 0; i < step->n_out; ++i) {
            const dsi_ref *ref = &plan->refs[step->out_at + i];
            if (ref->space != DSI_SPACE_NONE) {
                c->made_in[ref->value] = step->phase;
            }
        }
    }
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        c->is_output[plan->outputs[i].ref.value] = true;
    }
}

ds_status dsi_plan_check(const dsi_plan *plan)
{
    const uint32_t n_values = count_values(plan);
    checker c = {.plan = plan, .room = plan->n_refs + 1};
    c.last_read = calloc(n_values + 1, sizeof *c.last_read);
    c.is_output = calloc(n_values + 1, sizeof *c.is_output);
    c.made_in = calloc(n_values + 1, sizeof *c.made_in);
    c.in_flight = calloc(n_values + 1, sizeof *c.in_flight);
    c.wait_of = malloc((plan->n_steps + 1) * sizeof *c.wait_of);
    c.epoch_of = calloc(n_values + 1, sizeof *c.epoch_of);
    c.epoch = calloc(ds_cells_count(plan->cells) + 1, sizeof *c.epoch);
    c.part_written = calloc(ds_cells_count(plan->cells) + 1, sizeof *c.part_written);
    c.whole_written = calloc(ds_cells_count(plan->cells) + 1, sizeof *c.whole_written);
    c.held = calloc(c.room, sizeof *c.held);
    ds_status status = DS_OK;
    if (c.last_read == NULL || c.is_output == NULL || c.made_in == NULL || c.in_flight == NULL ||
        c.wait_of == NULL || c.epoch_of == NULL || c.epoch == NULL || c.part_written == NULL ||
        c.whole_written == NULL || c.held == NULL) {
        status = ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    } else {
        memset(c.wait_of, 0xff, (plan->n_steps + 1) * sizeof *c.wait_of);
        gather_facts(&c);
        status = follow(&c);
    }
    free(c.last_read);
    free(c.is_output);
    free(c.made_in);
    free(c.in_flight);
    free(c.wait_of);
    free(c.epoch_of);
    free(c.epoch);
    free(c.part_written);
    free(c.whole_written);
    free(c.held);
    return status;
}
