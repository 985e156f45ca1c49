/* SPDX-License-Identifier: Apache-2.0 */
/* The independent checker: follows the contents of the arena through the plan, step by step.
 *
 * It keeps the list of byte ranges that hold something, each with the values that it holds (several
 * for views and in-place outputs). It knows nothing of how the plan was made.
 */
#include "plan/plan_check.h"

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
    bool *made;              /* per value: a step has made it */
    const dsi_ref **lies;    /* per value: where its bytes are, NULL: nowhere in an arena */
    ds_cell *from;           /* per value: the swapped cell that it is the content of, or DS_NONE */
    bool *kept_result;       /* per value: it is swapped out, or updated in place */
    uint32_t *epoch_of;      /* per value of a cell: writes of the cell before it */
    uint32_t *epoch;         /* per cell: writes so far */
    uint32_t *part_written;  /* per cell: 1 + the last phase that wrote a part of it */
    uint32_t *whole_written; /* per cell: 1 + the last phase that wrote it */
    held *held;
    uint32_t n_held, room, n_values;
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
    if (ref->space != DSI_SPACE_CELL) {
        return DS_OK;
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
    if (ref->space == DSI_SPACE_CELL && !ref->initial && !c->made[ref->value]) {
        return broken(c, s, 3, "reads a version of a cell that nobody made");
    }
    if (ref->space == DSI_SPACE_CELL && c->epoch_of[ref->value] != c->epoch[ref->cell]) {
        return broken(c, s, 3, "reads a version of a cell that was overwritten");
    }
    DS_TRY(check_parts(c, s, ref));
    if (!in_arena(ref) || ds_meta_bytes(ref->meta) == 0) {
        return DS_OK;
    }
    const dsi_ref *lies = c->lies[ref->value];
    return lies != NULL && lies->space == ref->space && lies->offset == ref->offset &&
                   ds_meta_bytes(lies->meta) == ds_meta_bytes(ref->meta)
               ? DS_OK
               : broken(c, s, 3, "reads bytes that do not hold its input");
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
    const size_t bytes = blocks ? dsi_swap_block_bytes(content) : content;
    const bool view = (step->op->flags & DS_OP_VIEW) != 0;
    DS_TRY(check_place(c, s, ref));
    if (ref->space != DSI_SPACE_NONE) {
        c->made[ref->value] = true;
    }
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
            c->lies[old->value] = NULL; /* dead: forget it */
            continue;
        }
        if (kept != h) {
            c->held[kept] = *old;
        }
        kept += 1;
    }
    c->n_held = kept;
    if (c->n_held == c->room) {
        return broken(c, s, 1, "too many live values to check");
    }
    c->held[c->n_held++] = (held){ref->space, ref->offset, bytes, ref->value};
    c->lies[ref->value] = ref;
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

/* What a swap moves to or from an arena comes in whole blocks. */
static ds_status check_blocks(const checker *c, uint32_t s, const dsi_ref *ref)
{
    const size_t room =
        ref->space == DSI_SPACE_SHARED ? c->plan->shared_bytes : c->plan->arena_bytes;
    const size_t bytes = dsi_swap_block_bytes(ds_meta_bytes(ref->meta));
    return in_arena(ref) && (ref->offset % DSI_SWAP_BLOCK != 0 || ref->offset > room ||
                             bytes > room - ref->offset)
               ? broken(c, s, 9, "a swap moves whole blocks")
               : DS_OK;
}

/* A step of the host's: what it touches lies in host memory, and it has no scratch. */
static ds_status check_host(const checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const dsi_ref *ref = &c->plan->refs[step->in_at + i];
        const bool there = ref->space == DSI_SPACE_CELL && c->plan->cell_on_host[ref->cell];
        if (ref->space != DSI_SPACE_NONE && !there) {
            return broken(c, s, 9, "the host touches what does not lie in its memory");
        }
    }
    return step->work_bytes == 0 && (step->kernel != NULL || step->kind == DSI_STEP_WAIT)
               ? DS_OK
               : broken(c, s, 9, "a step of the host's with scratch, or without a kernel");
}

/* A swapped cell is touched by swaps alone, and they by nothing else but what they move out of the
 * device. */
static ds_status check_swap(const checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    const bool swap = (step->op->flags & DS_OP_SWAP) != 0;
    if (step->on_host) {
        return check_host(c, s);
    }
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const dsi_ref *ref = i < step->n_in ? &c->plan->refs[step->in_at + i]
                                            : &c->plan->refs[step->out_at + i - step->n_in];
        const bool swapped = ref->space == DSI_SPACE_CELL && c->plan->cell_swapped[ref->cell];
        const bool moved = step->op->role == DS_ROLE_SWAP_OUT && i == 1 && step->n_parts == 1 &&
                           c->plan->cell_on_host[c->plan->refs[step->in_at].cell];
        if (ref->space == DSI_SPACE_CELL && swapped != swap && !(moved && !swapped)) {
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
    for (uint32_t i = n_each - 1; i < step->n_in && step->op->op_class == DS_CLASS_COMM;
         i += n_each) {
        const dsi_ref *ref = &c->plan->refs[step->in_at + i];
        if (ref->meta.dtype != c->plan->refs[step->in_at + n_each - 1].meta.dtype) {
            return broken(c, s, 7, "carries numbers of two dtypes as those of one");
        }
        const bool cell = ref->space == DSI_SPACE_CELL && c->plan->cell_shared[ref->cell];
        if (ref->space != DSI_SPACE_SHARED && !cell) {
            return broken(c, s, 7, "sends what peers cannot read");
        }
    }
    return DS_OK;
}

/* Whether somebody sees output i of step s. */
static bool is_used(const checker *c, uint32_t s, uint32_t i)
{
    const dsi_ref *ref = &c->plan->refs[c->plan->steps[s].out_at + i];
    return !in_arena(ref) || c->last_read[ref->value] > s || c->is_output[ref->value] ||
           ds_meta_bytes(ref->meta) == 0;
}

/* What a swap fetches is the content of its cell; so is what an update makes of it in place. */
static void follow_content(checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    const dsi_ref *in = &c->plan->refs[step->in_at];
    const dsi_ref *out = &c->plan->refs[step->out_at];
    for (uint32_t i = 0; i < step->n_out; ++i) {
        if (!in_arena(&out[i])) {
            continue;
        }
        if ((step->op->flags & DS_OP_SWAP) != 0) {
            c->from[out[i].value] = in->cell;
        } else if (step->n_parts == 1 && step->op->writes != NULL && step->op->writes[i] >= 0 &&
                   in_arena(&in[step->op->writes[i]])) {
            c->from[out[i].value] = c->from[in[step->op->writes[i]].value];
        }
    }
}

static ds_status check_results(checker *c, uint32_t s)
{
    const dsi_step *step = &c->plan->steps[s];
    bool lost = step->n_out > 0;
    follow_content(c, s);
    for (uint32_t i = 0; i < step->n_out; ++i) {
        const dsi_ref *ref = &c->plan->refs[step->out_at + i];
        const bool swap = (step->op->flags & DS_OP_SWAP) != 0;
        if (!swap && in_arena(ref) && c->from[ref->value] != DS_NONE &&
            !c->kept_result[ref->value]) {
            return broken(c, s, 12, "updates what a swap has fetched, and no swap takes it back");
        }
        lost = lost && (!is_used(c, s, i) || ref->space == DSI_SPACE_NONE);
    }
    return lost ? broken(c, s, 12, "makes what nobody reads") : DS_OK;
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
    DS_TRY(dsi_plan_check_side(plan));
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            DS_TRY(check_read(c, s, &plan->refs[step->in_at + i]));
        }
        DS_TRY(check_swap(c, s));
        DS_TRY(check_collective(c, s));
        DS_TRY(check_results(c, s));
        DS_TRY(check_work(c, s));
        for (uint32_t i = 0; i < step->n_out; ++i) {
            DS_TRY(check_write(c, s, i));
        }
        if (s + 1 == plan->n_steps || plan->steps[s + 1].phase != step->phase) {
            DS_TRY(check_outputs(c, step->phase, s));
        }
    }
    return dsi_plan_check_streams(plan);
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

/* Whether input i of a step is swapped out, or updated in place. */
static bool keeps_result(const dsi_step *step, uint32_t i)
{
    bool found = step->op->role == DS_ROLE_SWAP_OUT;
    for (uint32_t o = 0; o < step->n_out && step->op->writes != NULL && step->n_parts == 1; ++o) {
        found = found || step->op->writes[o] == (int)i;
    }
    return found;
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
                c->kept_result[ref->value] = c->kept_result[ref->value] || keeps_result(step, i);
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
    memset(c->from, 0xff, c->n_values * sizeof *c->from); /* DS_NONE */
}

ds_status dsi_plan_check(const dsi_plan *plan)
{
    const uint32_t n_values = count_values(plan);
    checker c = {.plan = plan, .room = plan->n_refs + 1, .n_values = n_values};
    c.last_read = calloc(n_values + 1, sizeof *c.last_read);
    c.is_output = calloc(n_values + 1, sizeof *c.is_output);
    c.made_in = calloc(n_values + 1, sizeof *c.made_in);
    c.made = calloc(n_values + 1, sizeof *c.made);
    c.lies = calloc(n_values + 1, sizeof *c.lies);
    c.from = calloc(n_values + 1, sizeof *c.from);
    c.kept_result = calloc(n_values + 1, sizeof *c.kept_result);
    c.epoch_of = calloc(n_values + 1, sizeof *c.epoch_of);
    c.epoch = calloc(ds_cells_count(plan->cells) + 1, sizeof *c.epoch);
    c.part_written = calloc(ds_cells_count(plan->cells) + 1, sizeof *c.part_written);
    c.whole_written = calloc(ds_cells_count(plan->cells) + 1, sizeof *c.whole_written);
    c.held = calloc(c.room, sizeof *c.held);
    ds_status status = DS_OK;
    if (c.last_read == NULL || c.is_output == NULL || c.made_in == NULL || c.made == NULL ||
        c.lies == NULL || c.from == NULL || c.kept_result == NULL || c.epoch_of == NULL ||
        c.epoch == NULL || c.part_written == NULL || c.whole_written == NULL || c.held == NULL) {
        status = ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    } else {
        gather_facts(&c);
        status = follow(&c);
        status = status < 0 ? status : dsi_plan_check_slots(plan, n_values);
    }
    free(c.last_read);
    free(c.is_output);
    free(c.made_in);
    free(c.made);
    free(c.lies);
    free(c.from);
    free(c.kept_result);
    free(c.epoch_of);
    free(c.epoch);
    free(c.part_written);
    free(c.whole_written);
    free(c.held);
    return status;
}
