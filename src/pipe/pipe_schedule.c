/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of turns. See pipe_schedule.h. */
#include "pipe/pipe_schedule.h"

const char *dsi_schedule_name(dsi_schedule_kind kind)
{
    static const char *const names[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"};
    return names[kind];
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

dsi_stage_parts dsi_schedule_parts(const dsi_schedule *s)
{
    const bool v = s->kind == DSI_SCHEDULE_ZB_V;
    return (dsi_stage_parts){
        .n_chunks = s->n_chunks, .split = v || s->kind == DSI_SCHEDULE_ZB_H1, .folded = v};
}

uint32_t dsi_schedule_count(const dsi_schedule *s)
{
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    return s->n_micro * dsi_parts_phases(&parts);
}

/* A rank's turns, one after another: written, and what is in flight counted. */
typedef struct walk {
    const dsi_schedule *s;
    dsi_stage_parts parts;
    dsi_turn *out;          /* NULL: counted only */
    dsi_slot_event *events; /* likewise */
    uint32_t n, n_events;
    uint32_t flying, most;      /* chunks of micro-batches */
    uint32_t begun, most_begun; /* micro-batches */
} walk;

static void take(walk *w, ds_phase phase, uint32_t micro)
{
    const uint32_t chunk = dsi_part_chunk(&w->parts, phase);
    const bool begins = phase < w->parts.n_chunks;
    const bool ends = dsi_part_ends(&w->parts, phase);
    if (micro >= w->s->n_micro) {
        return;
    }
    if (w->out != NULL) {
        w->out[w->n] = (dsi_turn){phase, micro};
    }
    if (w->events != NULL && (begins || ends)) {
        w->events[w->n_events++] = (dsi_slot_event){chunk, micro, ends};
    }
    w->n += 1;
    w->flying += begins ? 1 : 0;
    w->begun += begins && chunk == 0 ? 1 : 0;
    w->most = w->flying > w->most ? w->flying : w->most;
    w->most_begun = w->begun > w->most_begun ? w->begun : w->most_begun;
    w->flying -= ends ? 1 : 0;
    w->begun -= ends && chunk == 0 ? 1 : 0;
}

/* Forwards before the first backward, the one right before it left out. */
static uint32_t warm_up(const dsi_schedule *s, uint32_t rank)
{
    const uint32_t behind = s->n_ranks - rank - 1;
    switch (s->kind) {
    case DSI_SCHEDULE_GPIPE:
        return s->n_chunks * s->n_micro - 1;
    case DSI_SCHEDULE_INTERLEAVED:
        return least(2 * behind + (s->n_chunks - 1) * s->n_ranks, s->n_chunks * s->n_micro - 1);
    default:
        return least(s->n_micro, behind + 1) - 1;
    }
}

/* The j-th forward or backward of a rank. */
static void take_nth(walk *w, bool backward, uint32_t j)
{
    const dsi_schedule *s = w->s;
    const uint32_t group = s->kind == DSI_SCHEDULE_INTERLEAVED ? s->n_ranks : s->n_micro;
    const uint32_t chunk = j / group % s->n_chunks;
    const uint32_t micro = j / (group * s->n_chunks) * group + j % group;
    take(w,
         backward ? dsi_part_backward(&w->parts, s->n_chunks - 1 - chunk)
                  : dsi_part_forward(&w->parts, chunk),
         micro);
}

/* A forward and a backward in turn, behind the warm-up. */
static void in_turn(walk *w, uint32_t rank)
{
    const uint32_t all = w->s->n_micro * w->s->n_chunks;
    const uint32_t ahead = warm_up(w->s, rank);
    for (uint32_t i = 0; i < ahead; ++i) {
        take_nth(w, false, i);
    }
    for (uint32_t i = 0; i < all; ++i) {
        if (i + ahead < all) {
            take_nth(w, false, i + ahead);
        }
        take_nth(w, true, i);
    }
}

/* As in_turn, and the weights' part of each backward phase so many backwards later as ranks stand
 * before this one. */
static void zero_bubble(walk *w, uint32_t rank)
{
    const uint32_t m = w->s->n_micro;
    const uint32_t ahead = warm_up(w->s, rank) + 1;
    for (uint32_t i = 0; i < ahead; ++i) {
        take(w, 0, i);
    }
    for (uint32_t i = 0; i < m; ++i) {
        take(w, 1, i);
        if (i >= rank) {
            take(w, 2, i - rank);
        }
        take(w, 0, i + ahead);
    }
    for (uint32_t i = m > rank ? m - rank : 0; i < m; ++i) {
        take(w, 2, i);
    }
}

/* The phases of a rank in "zb-v", and how often each was run. */
enum { DOWN, UP, UP_BACK, UP_WEIGHTS, DOWN_BACK, DOWN_WEIGHTS, V_PHASES };

typedef struct v_walk {
    walk *w;
    uint32_t done[V_PHASES];
} v_walk;

static void take_v(v_walk *v, uint32_t n, const ds_phase *phases, uint32_t n_phases)
{
    for (uint32_t i = 0; i < n * n_phases; ++i) {
        const ds_phase phase = phases[i % n_phases];
        take(v->w, phase, v->done[phase]++);
    }
}

/* For at least 2p-1 micro-batches; of fewer, those that are not there are left out. */
static void zero_bubble_v(walk *w, uint32_t rank)
{
    static const ds_phase both[] = {UP, DOWN};
    static const ds_phase turn[] = {UP, UP_BACK, UP_WEIGHTS};
    static const ds_phase all[] = {DOWN, DOWN_BACK, DOWN_WEIGHTS, UP, UP_BACK, UP_WEIGHTS};
    static const ds_phase backs[] = {DOWN_BACK, UP_BACK};
    static const ds_phase last[] = {DOWN_BACK, DOWN_WEIGHTS};
    const uint32_t p = w->s->n_ranks;
    const uint32_t m = w->s->n_micro > 2 * p - 1 ? w->s->n_micro : 2 * p - 1;
    v_walk v = {.w = w};
    take_v(&v, 2 * (p - rank) - 1, all, 1);
    take_v(&v, rank, both, 2);
    take_v(&v, p - rank, turn, 3);
    take_v(&v, m - p, all, 6);
    take_v(&v, rank, backs, 2);
    take_v(&v, p - rank, last, 2);
    take_v(&v, m - v.done[UP_WEIGHTS], &turn[2], 1);
    take_v(&v, m - v.done[DOWN_WEIGHTS], &last[1], 1);
}

static walk walk_through(const dsi_schedule *s, uint32_t rank, dsi_turn *turns_out,
                         dsi_slot_event *events_out)
{
    walk w = {.s = s, .parts = dsi_schedule_parts(s), .out = turns_out, .events = events_out};
    if (s->kind == DSI_SCHEDULE_ZB_V) {
        zero_bubble_v(&w, rank);
    } else if (s->kind == DSI_SCHEDULE_ZB_H1) {
        zero_bubble(&w, rank);
    } else {
        in_turn(&w, rank);
    }
    return w;
}

void dsi_schedule_turns(const dsi_schedule *s, uint32_t rank, dsi_turn *turns_out)
{
    (void)walk_through(s, rank, turns_out, NULL);
}

void dsi_schedule_events(const dsi_schedule *s, uint32_t rank, dsi_slot_event *events_out)
{
    (void)walk_through(s, rank, NULL, events_out);
}

uint32_t dsi_schedule_in_flight(const dsi_schedule *s, uint32_t rank, uint32_t *chunks_out)
{
    const walk w = walk_through(s, rank, NULL, NULL);
    *chunks_out = w.most;
    return w.most_begun;
}

ds_status dsi_schedule_allowed(ds_ctx *ctx, const dsi_schedule *s)
{
    if (s->kind != DSI_SCHEDULE_INTERLEAVED || s->n_micro % s->n_ranks == 0) {
        return DS_OK;
    }
    const uint32_t near =
        s->n_micro > s->n_ranks ? s->n_micro - s->n_micro % s->n_ranks : s->n_ranks;
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "pipeline.schedule \"interleaved\": %u micro-batches a step are no multiple of "
                   "pipeline.stages %u; set gradient_accumulation_steps to %u, or take \"1f1b\"",
                   s->n_micro, s->n_ranks, near);
}

/* While the first chunk comes down to the last rank. Of fewer than 2p-1 micro-batches that does not
 * suffice to fill the way back, of fewer than p not that down either: at most so much is added. */
static double idle_v(const dsi_schedule *s, const dsi_schedule_times *t)
{
    const double p = (double)s->n_ranks;
    const double m = (double)s->n_micro;
    const double longer = t->forward > t->backward ? t->forward : t->backward;
    const double back = m >= 2.0 * p - 1.0 ? 0.0 : m >= p ? 2.0 * p - 1.0 - m : p - 1.0;
    const double down = m >= p ? 0.0 : p - m;
    return (p - 1.0) * longer / 2.0 + back * t->weights / 2.0 + down * t->weights;
}

double dsi_schedule_idle(const dsi_schedule *s, const dsi_schedule_times *t)
{
    const double before = (double)s->n_ranks - 1.0;
    switch (s->kind) {
    case DSI_SCHEDULE_INTERLEAVED:
        return before * (t->forward + t->backward + t->weights) / s->n_chunks;
    case DSI_SCHEDULE_ZB_H1:
        return before * (t->forward + t->backward - t->weights);
    case DSI_SCHEDULE_ZB_V:
        return idle_v(s, t);
    default:
        return before * (t->forward + t->backward + t->weights);
    }
}

double dsi_schedule_idle_share(const dsi_schedule *s)
{
    const dsi_schedule_times alike = {1.0, 1.0, 1.0};
    const double idle = dsi_schedule_idle(s, &alike);
    return idle / (idle + 3.0 * s->n_micro);
}
