/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of turns, and a simulation of all stages. See pipe_schedule.h. */
#include "pipe/pipe_schedule.h"

#include <stdlib.h>

const char *dsi_schedule_name(dsi_schedule_kind kind)
{
    return kind == DSI_SCHEDULE_GPIPE ? "gpipe" : "1f1b";
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Forwards before the first backward, the one right before it left out. */
static uint32_t warm_up(const dsi_schedule *s, uint32_t stage)
{
    return s->kind == DSI_SCHEDULE_GPIPE ? s->n_micro - 1
                                         : least(s->n_micro, s->n_stages - stage) - 1;
}

uint32_t dsi_schedule_slots(const dsi_schedule *s, uint32_t stage)
{
    return warm_up(s, stage) + 1;
}

void dsi_schedule_turns(const dsi_schedule *s, uint32_t stage, dsi_turn *turns_out)
{
    const uint32_t ahead = warm_up(s, stage);
    uint32_t n = 0;
    for (uint32_t i = 0; i < ahead; ++i) {
        turns_out[n++] = (dsi_turn){false, i};
    }
    for (uint32_t i = 0; i < s->n_micro; ++i) {
        if (i + ahead < s->n_micro) {
            turns_out[n++] = (dsi_turn){false, i + ahead};
        }
        turns_out[n++] = (dsi_turn){true, i};
    }
}

/* ---- all stages against one another ---------------------------------------------------------- */

typedef struct runner {
    const dsi_schedule *s;
    const dsi_turn *const *lists;
    const uint32_t *slots;
    const dsi_schedule_edge *edges;
    uint32_t n_edges;
    uint32_t *at;     /* per stage: its next turn */
    double *free_at;  /* per stage: when it has ended the turn before */
    double *begun[2]; /* per stage and micro-batch, forward and backward: -1 before */
    double *ended[2];
} runner;

static size_t cell_of(const runner *r, uint32_t stage, uint32_t micro)
{
    return (size_t)stage * r->s->n_micro + micro;
}

/* What is later of two times, -1: one is not known yet. */
static double later(double a, double b)
{
    return a < 0.0 || b < 0.0 ? -1.0 : a > b ? a : b;
}

/* When a turn can begin; -1: not yet known. */
static double ready_at(const runner *r, uint32_t stage, dsi_turn turn)
{
    const bool b = turn.backward;
    double at = r->free_at[stage];
    at = b ? later(at, r->ended[0][cell_of(r, stage, turn.micro)]) : at;
    for (uint32_t e = 0; e < r->n_edges; ++e) {
        const dsi_schedule_edge *edge = &r->edges[e];
        const uint32_t buffers = edge->buffers > 0 ? edge->buffers : r->slots[edge->source];
        if (edge->backward != b) {
            continue;
        }
        if (edge->target == stage) {
            at = later(at, r->ended[b][cell_of(r, edge->source, turn.micro)]);
        }
        if (edge->source == stage && turn.micro >= buffers) {
            at = later(at, r->begun[b][cell_of(r, edge->target, turn.micro - buffers)]);
        }
    }
    return at;
}

static bool run_turn(runner *r, uint32_t stage, double seconds)
{
    const dsi_turn turn = r->lists[stage][r->at[stage]];
    const size_t cell = cell_of(r, stage, turn.micro);
    const double at = ready_at(r, stage, turn);
    if (at < 0.0) {
        return false;
    }
    r->begun[turn.backward][cell] = at;
    r->ended[turn.backward][cell] = r->free_at[stage] = at + seconds;
    r->at[stage] += 1;
    return true;
}

/* Every micro-batch once forward and once backward, and no slot taken twice. */
static ds_status check_list(ds_ctx *ctx, const runner *r, uint32_t stage)
{
    const uint32_t n = r->s->n_micro;
    uint32_t done[2] = {0, 0};
    for (uint32_t i = 0; i < 2 * n; ++i) {
        const dsi_turn turn = r->lists[stage][i];
        const bool in_order = turn.micro == done[turn.backward] && turn.micro < n;
        if (!in_order ||
            (turn.backward ? done[1] >= done[0] : done[0] - done[1] >= r->slots[stage])) {
            return ds_fail(ctx, DS_ERR_GRAPH,
                           "schedule, stage %u, turn %u: %s of micro-batch %u is out of turn, or "
                           "its slot is taken",
                           stage, i, turn.backward ? "backward" : "forward", turn.micro);
        }
        done[turn.backward] += 1;
    }
    return DS_OK;
}

static ds_status run_all(ds_ctx *ctx, runner *r, double forward, double backward,
                         double *seconds_out)
{
    const uint32_t n = 2 * r->s->n_micro;
    bool moved = true;
    *seconds_out = 0.0;
    for (uint32_t p = 0; p < r->s->n_stages; ++p) {
        DS_TRY(check_list(ctx, r, p));
    }
    while (moved) {
        moved = false;
        for (uint32_t p = 0; p < r->s->n_stages; ++p) {
            while (r->at[p] < n &&
                   run_turn(r, p, r->lists[p][r->at[p]].backward ? backward : forward)) {
                moved = true;
            }
        }
    }
    for (uint32_t p = 0; p < r->s->n_stages; ++p) {
        if (r->at[p] < n) {
            const dsi_turn turn = r->lists[p][r->at[p]];
            return ds_fail(ctx, DS_ERR_GRAPH,
                           "schedule: stage %u would wait for ever at turn %u, the %s of "
                           "micro-batch %u",
                           p, r->at[p], turn.backward ? "backward" : "forward", turn.micro);
        }
        *seconds_out = r->free_at[p] > *seconds_out ? r->free_at[p] : *seconds_out;
    }
    return DS_OK;
}

ds_status dsi_schedule_run(ds_ctx *ctx, const dsi_schedule *s, const dsi_turn *const *lists,
                           const uint32_t *slots, const dsi_schedule_edge *edges, uint32_t n_edges,
                           double forward, double backward, double *seconds_out)
{
    const size_t n = (size_t)s->n_stages * s->n_micro;
    runner r = {.s = s, .lists = lists, .slots = slots, .edges = edges, .n_edges = n_edges};
    double *times = malloc((4 * n + s->n_stages + 1) * sizeof *times);
    r.at = calloc((size_t)s->n_stages + 1, sizeof *r.at);
    ds_status status = DS_OK;
    if (times == NULL || r.at == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to check a schedule");
    } else {
        for (size_t i = 0; i < 4 * n; ++i) {
            times[i] = -1.0;
        }
        for (int b = 0; b < 2; ++b) {
            r.begun[b] = times + (size_t)b * n;
            r.ended[b] = times + (size_t)(b + 2) * n;
        }
        r.free_at = times + 4 * n;
        for (uint32_t p = 0; p < s->n_stages; ++p) {
            r.free_at[p] = 0.0;
        }
        status = run_all(ctx, &r, forward, backward, seconds_out);
    }
    free(times);
    free(r.at);
    return status;
}

ds_status dsi_schedule_check(ds_ctx *ctx, const dsi_schedule *s, const dsi_schedule_edge *edges,
                             uint32_t n_edges, double forward, double backward, double *seconds_out)
{
    const size_t each = 2 * (size_t)s->n_micro;
    const size_t n_stages = s->n_stages;
    dsi_turn *turns = calloc(n_stages * each + 1, sizeof *turns);
    const dsi_turn **lists = calloc(n_stages + 1, sizeof *lists);
    uint32_t *slots = calloc(n_stages + 1, sizeof *slots);
    dsi_schedule_edge *usual = calloc(2 * n_stages + 1, sizeof *usual);
    ds_status status = DS_OK;
    if (turns == NULL || lists == NULL || slots == NULL || usual == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to check a schedule");
    }
    for (uint32_t p = 0; p < s->n_stages && status >= 0; ++p) {
        dsi_schedule_turns(s, p, turns + p * each);
        lists[p] = turns + p * each;
        slots[p] = dsi_schedule_slots(s, p);
        if (edges == NULL && p > 0) {
            usual[n_edges++] = (dsi_schedule_edge){p - 1, p, false, 0};
            usual[n_edges++] = (dsi_schedule_edge){p, p - 1, true, 0};
        }
    }
    status = status >= 0 ? dsi_schedule_run(ctx, s, lists, slots, edges == NULL ? usual : edges,
                                            n_edges, forward, backward, seconds_out)
                         : status;
    free(turns);
    free(lists);
    free(slots);
    free(usual);
    return status;
}
