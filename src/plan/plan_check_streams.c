/* SPDX-License-Identifier: Apache-2.0 */
/* What happens before what, from streams and events alone: invariant 8 of plan.h.
 *
 * A clock for each stream. Its first component is how far the stream knows the computing stream of
 * its set, the others are bits: which STARTs it knows to have ended. Clocks move by forks and waits
 * alone. Meanwhile `flying` has what STARTs touch that the computing stream does not know to have
 * ended; each step is held against those, and a START against what the computing stream did since
 * the START's stream heard of it. Where a START is of the step before, the forward phase is
 * followed twice. What runs on the side set against others: plan_check_side.c.
 */
#include "plan/plan_check.h"

#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = 64, CUTS = 1024 };

/* Bytes of a storage: 0 the arena, 1 the shared arena, else 2 + a cell that is no part. */
typedef struct touch {
    uint32_t storage;
    bool write;
    size_t begin, end;
} touch;

typedef struct flight {
    touch bytes;
    uint32_t step;
} flight;

typedef struct follower {
    const dsi_plan *plan;
    uint32_t heard[MOST_STREAMS]; /* per stream: steps of its computing stream that it knows */
    uint64_t *told;               /* per START: the streams that know its end by its own event */
    flight *flying;
    uint32_t n_flying;
    uint32_t *flying_in;               /* per storage: how many of those */
    size_t cut;                        /* bytes of an arena in one of its CUTS pieces */
    uint32_t flying_over[2][CUTS + 1]; /* per arena and piece: how many of those */
    touch *own;                        /* of the step in hand */
    uint32_t n_own;
    uint32_t *used; /* per storage: how often in those */
    touch *others;  /* of a step that it is held against */
} follower;

/* ---- the form of streams and events ---------------------------------------------------------- */

static const char *find_fault(const dsi_plan *plan, uint32_t s)
{
    const dsi_step *step = &plan->steps[s];
    if (step->stream >= plan->n_streams) {
        return "is on no stream of the plan";
    }
    const dsi_plan_stream *stream = &plan->streams[step->stream];
    if (stream->side != (step->phase == plan->side)) {
        return "is on a stream of the other set";
    }
    if ((stream->role != DSI_PLAN_STREAM_COMPUTE) != (step->kind == DSI_STEP_START)) {
        return "is on a stream that is not for it";
    }
    if ((stream->role == DSI_PLAN_STREAM_HOST) != (step->kind == DSI_STEP_START && step->on_host)) {
        return "is on a stream that is not for it";
    }
    if (step->on_host && step->kind == DSI_STEP_RUN) {
        return "is the host's, and the device waits for it at once";
    }
    if (step->event != DS_NONE &&
        (step->event >= plan->n_events || plan->events[step->event] != s)) {
        return "records an event of another step";
    }
    if (step->wait_at > plan->n_waits || step->n_waits > plan->n_waits - step->wait_at) {
        return "waits for what the plan does not have";
    }
    for (uint32_t i = 0; i < step->n_waits; ++i) {
        const uint32_t event = plan->waits[step->wait_at + i];
        if (event >= plan->n_events || plan->events[event] >= plan->n_steps ||
            plan->steps[plan->events[event]].event != event) {
            return "waits for an event that nobody records";
        }
        if (plan->events[event] >= s && step->kind != DSI_STEP_WAIT) {
            return "waits for a later step";
        }
    }
    return NULL;
}

/* A START may be waited for here: of a collective in its phase, of a swap behind it, or in the
 * forward phase of the next step. */
static bool is_place_of_wait(const dsi_plan *plan, uint32_t wait, uint32_t start)
{
    const dsi_step *w = &plan->steps[wait];
    const dsi_step *s = &plan->steps[start];
    if (s->kind != DSI_STEP_START || s->op != w->op || s->on_host != w->on_host ||
        plan->streams[s->stream].side != plan->streams[w->stream].side) {
        return false;
    }
    if (wait > start) {
        return s->phase == w->phase || (s->op->flags & DS_OP_SWAP) != 0;
    }
    return s->op->role == DS_ROLE_SWAP_OUT && w->phase == DS_PHASE_FORWARD &&
           !dsi_phase_is_forward(&plan->phases, s->phase);
}

/* awaited: per step; out. */
static ds_status check_form(const dsi_plan *plan, bool *awaited)
{
    if (plan->n_streams == 0 || plan->n_streams > MOST_STREAMS) {
        return ds_fail(plan->ctx, DS_ERR_GRAPH, "plan invariant 8 broken: %u streams",
                       plan->n_streams);
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const char *fault = find_fault(plan, s);
        if (fault != NULL) {
            return dsi_plan_broken(plan, s, 8, fault);
        }
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->kind != DSI_STEP_WAIT) {
            continue;
        }
        const uint32_t start =
            step->n_waits == 1 ? plan->events[plan->waits[step->wait_at]] : DS_NONE;
        if (start != step->start || awaited[start] || !is_place_of_wait(plan, s, start)) {
            return dsi_plan_broken(plan, s, 8, "does not wait for the end of its start");
        }
        awaited[start] = true;
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        if (plan->steps[s].kind == DSI_STEP_START && !awaited[s]) {
            return dsi_plan_broken(plan, s, 8, "is started, and nobody waits for its end");
        }
    }
    return DS_OK;
}

/* ---- what steps touch ------------------------------------------------------------------------ */

static uint32_t storage_of(const dsi_plan *plan, const dsi_ref *ref)
{
    if (ref->space != DSI_SPACE_CELL) {
        return ref->space == DSI_SPACE_SHARED ? 1 : 0;
    }
    const ds_cell parent = ref->cell < plan->n_cells ? plan->cell_parent[ref->cell] : DS_NONE;
    return 2 + (parent != DS_NONE ? parent : ref->cell);
}

static touch touch_of(const dsi_plan *plan, const dsi_ref *ref, bool swap, bool write)
{
    const size_t content = ds_meta_bytes(ref->meta);
    const bool cell = ref->space == DSI_SPACE_CELL;
    const bool part = cell && ref->cell < plan->n_cells && plan->cell_parent[ref->cell] != DS_NONE;
    const size_t begin = part ? plan->cell_offset[ref->cell] : ref->offset;
    const size_t bytes = swap && !cell ? dsi_swap_block_bytes(content) : content;
    return (touch){storage_of(plan, ref), write, begin, begin + bytes};
}

/* What a step touches in storages of which `in` (NULL: all) has some; how much of that. */
static uint32_t touches_of(const dsi_plan *plan, const dsi_step *step, const uint32_t *in,
                           touch *touches)
{
    const bool swap = (step->op->flags & DS_OP_SWAP) != 0;
    const uint32_t n_all = (step->op->flags & DS_OP_VIEW) == 0 ? step->n_in + step->n_out : 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_all; ++i) {
        const bool write = i >= step->n_in;
        const dsi_ref *ref = &plan->refs[write ? step->out_at + i - step->n_in : step->in_at + i];
        if (ref->space != DSI_SPACE_NONE && (in == NULL || in[storage_of(plan, ref)] > 0)) {
            touches[n] = touch_of(plan, ref, swap, write);
            n += touches[n].begin < touches[n].end ? 1 : 0;
        }
    }
    if (step->work_bytes > 0) {
        touches[n++] = (touch){0, true, step->work_offset, step->work_offset + step->work_bytes};
    }
    return n;
}

static bool is_hazard(const touch *a, const touch *b)
{
    return a->storage == b->storage && (a->write || b->write) && a->begin < b->end &&
           b->begin < a->end;
}

/* What the step in hand, s, does to bytes of another one that nothing orders before it. */
static ds_status fail_hazard(const follower *f, uint32_t s, const touch *own, uint32_t other,
                             const touch *bytes)
{
    char what[384];
    const dsi_plan *plan = f->plan;
    const dsi_step *step = &plan->steps[other];
    const size_t begin = own->begin > bytes->begin ? own->begin : bytes->begin;
    const size_t end = own->end < bytes->end ? own->end : bytes->end;
    const ds_cell_info *cell =
        own->storage > 1 ? ds_cells_get(plan->cells, own->storage - 2) : NULL;
    (void)snprintf(what, sizeof what,
                   "%s bytes %zu to %zu of %s%.80s that step %u (%s, %.80s) on stream %s %s, and "
                   "no event orders it behind that",
                   own->write ? "writes" : "reads", begin, end,
                   cell != NULL        ? "cell "
                   : own->storage == 1 ? "the shared arena"
                                       : "the arena",
                   cell != NULL ? cell->name : "", other, step->op->name, step->scope,
                   plan->streams[step->stream].name, bytes->write ? "writes" : "reads");
    return dsi_plan_broken(plan, s, 8, what);
}

/* ---- what happens before what ---------------------------------------------------------------- */

/* The host's steps run one after another. */
static bool knows(const follower *f, uint32_t stream, uint32_t start)
{
    return (f->told[start] >> stream & 1) != 0 ||
           (f->plan->steps[start].stream == stream &&
            f->plan->streams[stream].role == DSI_PLAN_STREAM_HOST);
}

/* Counts something on its way in, or out again (by: UINT32_MAX is -1). */
static void count_flight(follower *f, const touch *bytes, uint32_t by)
{
    f->flying_in[bytes->storage] += by;
    for (size_t at = bytes->begin / f->cut;
         bytes->storage < 2 && at <= (bytes->end - 1) / f->cut && at <= CUTS; ++at) {
        f->flying_over[bytes->storage][at] += by;
    }
}

/* Whether something on its way may touch the same bytes; most steps are far from all of it. */
static bool is_near(const follower *f, const touch *own)
{
    bool near = own->storage > 1 ? f->flying_in[own->storage] > 0 : own->end / f->cut > CUTS;
    for (size_t at = own->begin / f->cut;
         own->storage < 2 && !near && at <= (own->end - 1) / f->cut; ++at) {
        near = f->flying_over[own->storage][at] > 0;
    }
    return near;
}

/* The step in hand against all that its stream does not know to have ended. */
static ds_status check_flying(const follower *f, uint32_t s)
{
    const uint32_t stream = f->plan->steps[s].stream;
    for (uint32_t j = 0; j < f->n_own; ++j) {
        const touch *own = &f->own[j];
        const uint32_t n = is_near(f, own) ? f->n_flying : 0;
        for (uint32_t i = 0; i < n; ++i) {
            const flight *other = &f->flying[i];
            if (is_hazard(own, &other->bytes) && !knows(f, stream, other->step)) {
                return fail_hazard(f, s, own, other->step, &other->bytes);
            }
        }
    }
    return DS_OK;
}

/* The START in hand against a step that it does not know to have ended. */
static ds_status check_against(const follower *f, uint32_t s, uint32_t other)
{
    const uint32_t n = touches_of(f->plan, &f->plan->steps[other], f->used, f->others);
    for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t j = 0; j < f->n_own; ++j) {
            if (is_hazard(&f->own[j], &f->others[i])) {
                return fail_hazard(f, s, &f->own[j], other, &f->others[i]);
            }
        }
    }
    return DS_OK;
}

/* Against what the computing stream has done, or has waited for, since this one heard of it. */
static ds_status check_unheard(const follower *f, uint32_t s)
{
    const dsi_plan *plan = f->plan;
    const uint32_t stream = plan->steps[s].stream;
    for (uint32_t before = f->heard[stream]; before < s; ++before) {
        const dsi_step *step = &plan->steps[before];
        if (step->kind == DSI_STEP_RUN) {
            DS_TRY(check_against(f, s, before));
        } else if (step->kind == DSI_STEP_WAIT && !knows(f, stream, step->start)) {
            DS_TRY(check_against(f, s, step->start));
        }
    }
    return DS_OK;
}

/* What a START touches was entered, and stands, side by side. */
static void land(follower *f, uint32_t start)
{
    uint32_t begin = 0;
    while (begin < f->n_flying && f->flying[begin].step != start) {
        ++begin;
    }
    uint32_t end = begin;
    for (; end < f->n_flying && f->flying[end].step == start; ++end) {
        count_flight(f, &f->flying[end].bytes, UINT32_MAX);
    }
    memmove(&f->flying[begin], &f->flying[end], (f->n_flying - end) * sizeof *f->flying);
    f->n_flying -= end - begin;
}

static void join_events(follower *f, uint32_t s)
{
    const dsi_plan *plan = f->plan;
    const dsi_step *step = &plan->steps[s];
    for (uint32_t i = 0; i < step->n_waits; ++i) {
        const uint32_t before = plan->events[plan->waits[step->wait_at + i]];
        const uint32_t from = plan->steps[before].stream;
        uint32_t *heard = &f->heard[step->stream];
        if (plan->steps[before].kind == DSI_STEP_START) {
            f->told[before] |= (uint64_t)1 << step->stream;
            if (plan->streams[step->stream].role == DSI_PLAN_STREAM_COMPUTE) {
                land(f, before);
            }
        } else if (plan->streams[from].side == plan->streams[step->stream].side) {
            *heard = *heard > before + 1 ? *heard : before + 1;
        }
    }
}

/* The START in hand: held against all that may still go on, then on its way itself. */
static ds_status follow_start(follower *f, uint32_t s)
{
    f->n_own = touches_of(f->plan, &f->plan->steps[s], NULL, f->own);
    DS_TRY(check_flying(f, s));
    for (uint32_t i = 0; i < f->n_own; ++i) {
        f->used[f->own[i].storage] += 1;
    }
    const ds_status status = check_unheard(f, s);
    f->told[s] = 0;
    for (uint32_t i = 0; i < f->n_own; ++i) {
        f->used[f->own[i].storage] = 0;
        count_flight(f, &f->own[i], 1);
        f->flying[f->n_flying++] = (flight){f->own[i], s};
    }
    return status;
}

static ds_status follow_step(follower *f, uint32_t s)
{
    const dsi_step *step = &f->plan->steps[s];
    join_events(f, s);
    if (step->kind == DSI_STEP_START) {
        return follow_start(f, s);
    }
    f->n_own = f->n_flying > 0 ? touches_of(f->plan, step, f->flying_in, f->own) : 0;
    return check_flying(f, s);
}

static ds_status follow_phase(follower *f, ds_phase phase)
{
    const dsi_plan *plan = f->plan;
    for (uint32_t q = 0; q < plan->n_streams; ++q) { /* the fork */
        f->heard[q] = plan->phase_begin[phase];
    }
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        DS_TRY(follow_step(f, s));
    }
    return DS_OK;
}

static ds_status follow(follower *f)
{
    for (ds_phase phase = 0; phase < f->plan->phases.n; ++phase) {
        DS_TRY(follow_phase(f, phase));
    }
    /* what flies still is of swaps that the next step waits for */
    return f->n_flying > 0 ? follow_phase(f, DS_PHASE_FORWARD) : DS_OK;
}

ds_status dsi_plan_check_streams(const dsi_plan *plan)
{
    const size_t n_storages = (size_t)ds_cells_count(plan->cells) + 2;
    const size_t room = 2 * (size_t)plan->n_refs + plan->n_steps + 1;
    const size_t most =
        plan->arena_bytes > plan->shared_bytes ? plan->arena_bytes : plan->shared_bytes;
    follower f = {.plan = plan, .cut = most / CUTS + 1};
    f.told = calloc((size_t)plan->n_steps + 1, sizeof *f.told);
    f.flying = malloc(room * sizeof *f.flying);
    f.flying_in = calloc(n_storages, sizeof *f.flying_in);
    f.used = calloc(n_storages, sizeof *f.used);
    f.own = malloc(((size_t)plan->n_refs + 1) * sizeof *f.own);
    f.others = malloc(((size_t)plan->n_refs + 1) * sizeof *f.others);
    bool *awaited = calloc((size_t)plan->n_steps + 1, sizeof *awaited);
    ds_status status = DS_OK;
    if (f.told == NULL || f.flying == NULL || f.flying_in == NULL || f.used == NULL ||
        f.others == NULL || f.own == NULL || awaited == NULL) {
        status = ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory to check the plan");
    }
    status = status < 0 ? status : check_form(plan, awaited);
    status = status < 0 ? status : follow(&f);
    free(f.told);
    free(f.flying);
    free(f.flying_in);
    free(f.used);
    free(f.others);
    free(f.own);
    free(awaited);
    return status;
}
