/* SPDX-License-Identifier: Apache-2.0 */
/* The streams of a plan and the events between them. See dsi_plan_stream and plan_lower.h.
 *
 * A WAIT waits for the event behind its START. A START waits for the last step of the computing
 * stream that touches its bytes, unless its stream has waited for that one or a later one: the
 * computing stream has waited for all that other streams did with those bytes, so one event is
 * enough, and none is placed that the others imply. What the host runs, and swaps of what that
 * makes, wait for one another past the computing stream: for each START before them that touches
 * their bytes and has not been waited for. plan_check_streams.c proves it.
 */
#include "plan/plan_lower.h"

#include "op/ops.h"
#include "place/mesh.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = 64, NAME_BYTES = 96 };

/* Bytes that a step reads or writes. */
typedef struct extent {
    uint32_t place; /* 0: the arena, 1: the shared arena, else 2 + the cell that has the storage */
    size_t begin, end;
    bool write;
} extent;

typedef struct streamer {
    dsi_plan *plan;
    uint32_t known[MOST_STREAMS]; /* per stream: steps before this one it need not wait for */
    uint64_t *told;    /* per START: streams that know of its end; all, behind its WAIT */
    bool host;         /* the host has steps */
    uint32_t n_direct; /* waits past the computing stream: at most one an operand of the plan */
    extent *own;       /* of the START in hand */
    uint32_t n_own;
} streamer;

/* ---- streams --------------------------------------------------------------------------------- */

static const char *name_stream(dsi_plan *plan, const dsi_plan_stream *stream)
{
    static const char *const names[] = {[DSI_PLAN_STREAM_COMPUTE] = "compute",
                                        [DSI_PLAN_STREAM_COMM] = "comm",
                                        [DSI_PLAN_STREAM_SWAP_IN] = "swap in",
                                        [DSI_PLAN_STREAM_SWAP_OUT] = "swap out",
                                        [DSI_PLAN_STREAM_HOST] = "host"};
    const dsi_axes axes = dsi_axes_decode(stream->axes);
    dsi_buf text = dsi_buf_make(NAME_BYTES);
    if (stream->side && stream->role == DSI_PLAN_STREAM_COMPUTE) {
        dsi_buf_puts(&text, "side");
    } else {
        dsi_buf_printf(&text, "%s%s", stream->side ? "side " : "", names[stream->role]);
    }
    if (stream->axes != 0) {
        dsi_axes_text(&axes, &text);
    }
    const char *name = text.failed ? NULL : dsi_arena_strdup(plan->arena, dsi_buf_text(&text));
    dsi_buf_free(&text);
    return name;
}

/* The stream like `want`, a new one where there is none. */
static ds_status find_stream(dsi_plan *plan, dsi_plan_stream want, uint32_t *stream_out)
{
    uint32_t i = 0;
    while (i < plan->n_streams &&
           (plan->streams[i].role != want.role || plan->streams[i].side != want.side ||
            plan->streams[i].axes != want.axes)) {
        ++i;
    }
    if (i == plan->n_streams) {
        if (i == MOST_STREAMS) {
            return ds_fail(plan->ctx, DS_ERR_GRAPH, "a plan with more than %d streams",
                           (int)MOST_STREAMS);
        }
        want.name = name_stream(plan, &want);
        if (want.name == NULL) {
            return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the streams of a plan");
        }
        plan->streams[plan->n_streams++] = want;
    }
    *stream_out = i;
    return DS_OK;
}

/* What overlaps has a stream of its own; all else is computed. */
static ds_status name_streams(dsi_plan *plan)
{
    uint32_t compute = 0;
    DS_TRY(find_stream(plan, (dsi_plan_stream){.role = DSI_PLAN_STREAM_COMPUTE}, &compute));
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        dsi_step *step = &plan->steps[s];
        dsi_plan_stream want = {.role = DSI_PLAN_STREAM_COMPUTE, .side = step->phase == plan->side};
        step->event = DS_NONE;
        if (step->kind == DSI_STEP_START && step->on_host) {
            want.role = DSI_PLAN_STREAM_HOST;
        } else if (step->kind == DSI_STEP_START && (step->op->flags & DS_OP_SWAP) != 0) {
            want.role = step->op->role == DS_ROLE_SWAP_IN ? DSI_PLAN_STREAM_SWAP_IN
                                                          : DSI_PLAN_STREAM_SWAP_OUT;
        } else if (step->kind == DSI_STEP_START) {
            want.role = DSI_PLAN_STREAM_COMM;
            want.axes = ((const dsi_comm_attrs *)step->attrs)->axes;
        }
        DS_TRY(find_stream(plan, want, &step->stream));
    }
    return DS_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

static extent extent_of(const dsi_plan *plan, const dsi_step *step, uint32_t i)
{
    const bool write = i >= step->n_in;
    const dsi_ref *ref = &plan->refs[write ? step->out_at + i - step->n_in : step->in_at + i];
    const size_t bytes = ds_meta_bytes(ref->meta);
    const bool blocks = (step->op->flags & DS_OP_SWAP) != 0;
    switch (ref->space) {
    case DSI_SPACE_ARENA:
    case DSI_SPACE_SHARED:
        return (extent){ref->space == DSI_SPACE_SHARED ? 1 : 0, ref->offset,
                        ref->offset + (blocks ? dsi_swap_block_bytes(bytes) : bytes), write};
    case DSI_SPACE_CELL: {
        const ds_cell parent = plan->cell_parent[ref->cell];
        const size_t begin = plan->cell_offset[ref->cell];
        return (extent){2 + (parent != DS_NONE ? parent : ref->cell), begin, begin + bytes, write};
    }
    case DSI_SPACE_NONE:
        break;
    }
    return (extent){0};
}

static bool meets_own(const streamer *sm, extent e)
{
    for (uint32_t i = 0; i < sm->n_own; ++i) {
        const extent *own = &sm->own[i];
        if (own->place == e.place && (own->write || e.write) && own->begin < e.end &&
            e.begin < own->end) {
            return true;
        }
    }
    return false;
}

/* Whether step s of the computing stream touches bytes of the START in hand: itself, or by what it
 * waits for. */
static bool meets(const streamer *sm, uint32_t s)
{
    const dsi_plan *plan = sm->plan;
    const dsi_step *step = &plan->steps[s];
    if (step->kind == DSI_STEP_WAIT) {
        step = &plan->steps[step->start];
    }
    if ((step->op->flags & DS_OP_VIEW) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        if (meets_own(sm, extent_of(plan, step, i))) {
            return true;
        }
    }
    return step->work_bytes > 0 &&
           meets_own(sm,
                     (extent){0, step->work_offset, step->work_offset + step->work_bytes, true});
}

static void wait_for(dsi_plan *plan, uint32_t s, uint32_t behind)
{
    dsi_step *step = &plan->steps[s];
    dsi_step *before = &plan->steps[behind];
    if (before->event == DS_NONE) {
        before->event = plan->n_events;
        plan->events[plan->n_events++] = behind;
    }
    step->n_waits += 1;
    plan->waits[plan->n_waits++] = before->event;
}

static bool start_meets_own(const streamer *sm, const dsi_step *step)
{
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        if (meets_own(sm, extent_of(sm->plan, step, i))) {
            return true;
        }
    }
    return false;
}

/* What the START in hand waits for directly: transfers that the host reads or overwrites, what the
 * host does that a transfer moves, and a transfer that the host has waited for in between. */
static void order_directly(streamer *sm, uint32_t s)
{
    dsi_plan *plan = sm->plan;
    const dsi_step *step = &plan->steps[s];
    for (uint32_t before = plan->phase_begin[step->phase]; before < s && sm->host; ++before) {
        const dsi_step *other = &plan->steps[before];
        const bool in_turn = step->on_host && other->on_host;
        if (other->kind == DSI_STEP_START && !in_turn && sm->n_direct < plan->n_refs &&
            (sm->told[before] >> step->stream & 1) == 0 && start_meets_own(sm, other)) {
            wait_for(plan, s, before);
            sm->told[before] |= (uint64_t)1 << step->stream;
            sm->n_direct += 1;
        }
    }
}

/* A WAIT is behind: who waits for the computing stream from here on has waited for its START. */
static void note_wait(streamer *sm, uint32_t s)
{
    sm->told[sm->plan->steps[s].start] = UINT64_MAX;
}

static void order_start(streamer *sm, uint32_t s)
{
    dsi_plan *plan = sm->plan;
    const dsi_step *step = &plan->steps[s];
    const uint32_t known = sm->known[step->stream];
    sm->n_own = 0;
    for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
        const extent e = extent_of(plan, step, i);
        if (e.begin < e.end) {
            sm->own[sm->n_own++] = e;
        }
    }
    order_directly(sm, s);
    for (uint32_t before = s; before-- > known;) {
        if (plan->steps[before].kind != DSI_STEP_START && meets(sm, before)) {
            wait_for(plan, s, before);
            sm->known[step->stream] = before + 1;
            return;
        }
    }
}

static void order_steps(streamer *sm)
{
    dsi_plan *plan = sm->plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        dsi_step *step = &plan->steps[s];
        for (uint32_t q = 0; s == plan->phase_begin[step->phase] && q < plan->n_streams; ++q) {
            sm->known[q] = s;
        }
        step->wait_at = plan->n_waits;
        if (step->kind == DSI_STEP_WAIT) {
            wait_for(plan, s, step->start);
            note_wait(sm, s);
        } else if (step->kind == DSI_STEP_START) {
            order_start(sm, s);
        }
    }
}

/* One a step, and where the host has steps one an operand: the checker finds what more would have
 * been needed. */
static size_t count_waits(streamer *sm)
{
    const dsi_plan *plan = sm->plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        sm->host = sm->host || plan->steps[s].on_host;
    }
    return sm->host ? (size_t)plan->n_steps + plan->n_refs : plan->n_steps;
}

ds_status dsi_lower_place_events(dsi_lowering *b)
{
    dsi_plan *plan = b->plan;
    streamer sm = {.plan = plan};
    plan->streams = dsi_arena_array(plan->arena, MOST_STREAMS, sizeof *plan->streams);
    plan->events = dsi_arena_array(plan->arena, (size_t)plan->n_steps + 1, sizeof *plan->events);
    plan->waits = dsi_arena_array(plan->arena, count_waits(&sm) + 1, sizeof *plan->waits);
    sm.told = calloc((size_t)plan->n_steps + 1, sizeof *sm.told);
    sm.own = malloc(((size_t)plan->n_refs + 1) * sizeof *sm.own);
    ds_status status = DS_OK;
    if (plan->streams == NULL || plan->events == NULL || plan->waits == NULL || sm.own == NULL ||
        sm.told == NULL) {
        status = ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the streams of a plan");
    }
    status = status < 0 ? status : name_streams(plan);
    if (status >= 0) {
        order_steps(&sm);
    }
    free(sm.own);
    free(sm.told);
    return status;
}
