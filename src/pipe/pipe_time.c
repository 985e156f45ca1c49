/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a schedule's turns. See pipe_time.h. */
#include "pipe/pipe_time.h"

#include <stdlib.h>

typedef struct clock {
    const dsi_schedule *s;
    dsi_stage_parts parts;
    const dsi_schedule_times *stages;
    const dsi_stage_way *ways; /* from each stage to the next; NULL: they take no time */
    dsi_turn *turns;           /* per rank: dsi_schedule_count */
    double *down, *back; /* per stage and micro-batch: when its forward, its backward phase has
                            ended; -1: not yet */
    uint32_t at[DSI_STAGES_MOST];
    double now[DSI_STAGES_MOST];
} clock;

/* When what was made at `made`, negative: not yet, has come from a stage to the next, or back. */
static double come(const clock *c, double made, uint32_t stage, bool down)
{
    const dsi_stage_way none = {0.0, 0.0};
    const dsi_stage_way way = c->ways != NULL ? c->ways[stage] : none;
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

/* Whether the rank's next turn could be run. */
static bool run_turn(clock *c, uint32_t rank)
{
    const dsi_turn turn = c->turns[(size_t)rank * dsi_schedule_count(c->s) + c->at[rank]];
    const uint32_t stage =
        dsi_part_stage(&c->parts, c->s->n_ranks, rank, dsi_part_chunk(&c->parts, turn.phase));
    const dsi_schedule_times *t = &c->stages[stage];
    const size_t i = (size_t)stage * c->s->n_micro + turn.micro;
    const double from = ready(c, turn.phase, stage, turn.micro);
    const bool forward = turn.phase < c->parts.n_chunks;
    const bool ends = dsi_part_ends(&c->parts, turn.phase);
    if (from < 0.0) {
        return false;
    }
    c->now[rank] = from > c->now[rank] ? from : c->now[rank];
    c->now[rank] += forward           ? t->forward
                    : !c->parts.split ? t->backward + t->weights
                    : ends            ? t->weights
                                      : t->backward;
    if (forward) {
        c->down[i] = c->now[rank];
    } else if (!ends || !c->parts.split) {
        c->back[i] = c->now[rank];
    }
    c->at[rank] += 1;
    return true;
}

static ds_status run_all(ds_ctx *ctx, clock *c, double *seconds_out)
{
    const uint32_t n = dsi_schedule_count(c->s);
    double last = 0.0;
    bool any = true;
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        dsi_schedule_turns(c->s, rank, &c->turns[(size_t)rank * n]);
    }
    while (any) {
        any = false;
        for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
            while (c->at[rank] < n && run_turn(c, rank)) {
                any = true;
            }
        }
    }
    for (uint32_t rank = 0; rank < c->s->n_ranks; ++rank) {
        if (c->at[rank] < n) {
            return ds_fail(ctx, DS_ERR_INTERNAL, "schedule %s: rank %u waits for ever at turn %u",
                           dsi_schedule_name(c->s->kind), rank, c->at[rank]);
        }
        last = c->now[rank] > last ? c->now[rank] : last;
    }
    *seconds_out = last;
    return DS_OK;
}

ds_status dsi_schedule_seconds(ds_ctx *ctx, const dsi_schedule *s, const dsi_schedule_times *stages,
                               const dsi_stage_way *ways, double *seconds_out)
{
    const size_t ends = (size_t)s->n_ranks * s->n_chunks * s->n_micro;
    clock c = {.s = s, .parts = dsi_schedule_parts(s), .stages = stages, .ways = ways};
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
