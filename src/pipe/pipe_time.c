/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a schedule's turns. See pipe_time.h. */
#include "pipe/pipe_time.h"

#include <math.h>
#include <stdlib.h>

typedef struct clock {
    const dsi_schedule *s;
    dsi_stage_parts parts;
    const dsi_stage_times *times;
    dsi_turn *turns;     /* per rank: dsi_schedule_count */
    double *down, *back; /* per stage and micro-batch: when its forward, its backward phase has
                            ended; -1: not yet */
    uint32_t at[DSI_STAGES_MOST];  /* turns that each rank has ended */
    bool runs[DSI_STAGES_MOST];    /* its next one, … */
    double end[DSI_STAGES_MOST];   /* … until then … */
    double speed[DSI_STAGES_MOST]; /* … at this speed */
    double now;
} clock;

/* When what was made at `made`, negative: not yet, has come from a stage to the next, or back. */
static double come(const clock *c, double made, uint32_t stage, bool down)
{
    const dsi_stage_way none = {0.0, 0.0};
    const dsi_stage_way way = c->times->ways != NULL ? c->times->ways[stage] : none;
    return made < 0.0 ? made : made + (down ? way.down : way.back);
}

/* When what a phase reads is there; negative: not yet. */
static double ready(const clock *c, ds_phase phase, uint32_t stage, uint32_t micro)
{
    const uint32_t m = c->s->n_micro;
    const size_t i = (size_t)stage * m + micro;
    if (phase < c->parts.n_chunks) {
        return stage > 0 ? come(c, c->down[i - m], stage - 1, true) : 0.0;
    }
    if (c->parts.split && dsi_part_ends(&c->parts, phase)) {
        return c->back[i];
    }
    return stage + 1 < c->s->n_ranks * c->parts.n_chunks ? come(c, c->back[i + m], stage, false)
                                                         : c->down[i];
}

static dsi_turn turn_of(const clock *c, uint32_t rank)
{
    return c->turns[(size_t)rank * dsi_schedule_count(c->s) + c->at[rank]];
}

static uint32_t stage_of(const clock *c, uint32_t rank)
{
    return dsi_part_stage(&c->parts, c->s->n_ranks, rank,
                          dsi_part_chunk(&c->parts, turn_of(c, rank).phase));
}

/* The rank's next turn, where what it reads is there; *wake goes down to when it will be. */
static void begin_turn(clock *c, uint32_t rank, double *wake)
{
    const dsi_turn turn = turn_of(c, rank);
    const uint32_t stage = stage_of(c, rank);
    const dsi_schedule_times *t = &c->times->stages[stage];
    const double from = ready(c, turn.phase, stage, turn.micro);
    const bool forward = turn.phase < c->parts.n_chunks;
    const bool ends = dsi_part_ends(&c->parts, turn.phase);
    if (from < 0.0 || from > c->now) {
        *wake = from < 0.0 ? *wake : fmin(*wake, from);
        return;
    }
    c->runs[rank] = true;
    c->speed[rank] = 1.0;
    c->end[rank] = c->now + (forward           ? t->forward
                             : !c->parts.split ? t->backward + t->weights
                             : ends            ? t->weights
                                               : t->backward);
}

static void end_turn(clock *c, uint32_t rank)
{
    const dsi_turn turn = turn_of(c, rank);
    const size_t i = (size_t)stage_of(c, rank) * c->s->n_micro + turn.micro;
    const bool forward = turn.phase < c->parts.n_chunks;
    if (forward) {
        c->down[i] = c->now;
    } else if (!dsi_part_ends(&c->parts, turn.phase) || !c->parts.split) {
        c->back[i] = c->now;
    }
    c->runs[rank] = false;
    c->at[rank] += 1;
}

/* The cores of a host among its stages that are busy. */
static void share_cores(clock *c)
{
    const dsi_stage_cores *shared = &c->times->shared;
    const uint32_t together = shared->together;
    for (uint32_t first = 0; together > 1 && first < c->s->n_ranks; first += together) {
        const uint32_t rest = c->s->n_ranks - first;
        const uint32_t end = first + (together < rest ? together : rest);
        uint32_t busy = 0;
        for (uint32_t r = first; r < end; ++r) {
            busy += c->runs[r] ? shared->n_ranks : 0;
        }
        const double speed = dsi_cores_speed(&shared->cores, busy);
        for (uint32_t r = first; r < end; ++r) {
            if (c->runs[r] && speed != c->speed[r]) {
                c->end[r] = c->now + (c->end[r] - c->now) * c->speed[r] / speed;
                c->speed[r] = speed;
            }
        }
    }
}

/* Begins what can begin and goes on to the next end or arrival; false: there is none. */
static bool go_on(clock *c)
{
    const uint32_t n = dsi_schedule_count(c->s);
    double next = INFINITY;
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        if (!c->runs[rank] && c->at[rank] < n) {
            begin_turn(c, rank, &next);
        }
    }
    share_cores(c);
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        next = c->runs[rank] ? fmin(next, c->end[rank]) : next;
    }
    if (next == INFINITY) {
        return false;
    }
    c->now = next;
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        if (c->runs[rank] && c->end[rank] <= c->now) {
            end_turn(c, rank);
        }
    }
    return true;
}

static ds_status run_all(ds_ctx *ctx, clock *c, double *seconds_out)
{
    const uint32_t n = dsi_schedule_count(c->s);
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        dsi_schedule_turns(c->s, rank, &c->turns[(size_t)rank * n]);
    }
    while (go_on(c)) {
    }
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        if (c->at[rank] < n) {
            return ds_fail(ctx, DS_ERR_INTERNAL, "schedule %s: rank %u waits for ever at turn %u",
                           dsi_schedule_name(c->s->kind), rank, c->at[rank]);
        }
    }
    *seconds_out = c->now;
    return DS_OK;
}

ds_status dsi_schedule_seconds(ds_ctx *ctx, const dsi_schedule *s, const dsi_stage_times *times,
                               double *seconds_out)
{
    const size_t ends = (size_t)s->n_ranks * s->n_chunks * s->n_micro;
    clock c = {.s = s, .parts = dsi_schedule_parts(s), .times = times};
    c.turns = malloc(((size_t)s->n_ranks * dsi_schedule_count(s) + 1) * sizeof *c.turns);
    c.down = malloc((2 * ends + 1) * sizeof *c.down);
    ds_status status = c.turns != NULL && c.down != NULL
                           ? DS_OK
                           : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the time of a schedule");
    if (status >= 0) {
        c.back = c.down + ends;
        for (size_t i = 0; i < 2 * ends; ++i) {
            c.down[i] = -1.0;
        }
        status = run_all(ctx, &c, seconds_out);
    }
    free(c.turns);
    free(c.down);
    return status;
}
