/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of turns. See pipe_schedule.h. */
#include "pipe/pipe_schedule.h"

const char *dsi_schedule_name(dsi_schedule_kind kind)
{
    static const char *const names[] = {"1f1b", "gpipe", "interleaved", "zb-h1"};
    return names[kind];
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

dsi_stage_parts dsi_schedule_parts(const dsi_schedule *s)
{
    return (dsi_stage_parts){.n_chunks = s->n_chunks, .split = s->kind == DSI_SCHEDULE_ZB_H1};
}

uint32_t dsi_schedule_count(const dsi_schedule *s)
{
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    return s->n_micro * dsi_parts_phases(&parts);
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
static dsi_turn turn_of(const dsi_schedule *s, bool backward, uint32_t j)
{
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    const uint32_t group = s->kind == DSI_SCHEDULE_INTERLEAVED ? s->n_ranks : s->n_micro;
    const uint32_t chunk = j / group % s->n_chunks;
    const uint32_t micro = j / (group * s->n_chunks) * group + j % group;
    return backward ? (dsi_turn){dsi_part_backward(&parts, s->n_chunks - 1 - chunk), micro}
                    : (dsi_turn){dsi_part_forward(&parts, chunk), micro};
}

/* A forward and a backward in turn, behind the warm-up. */
static void in_turn(const dsi_schedule *s, uint32_t rank, dsi_turn *turns_out)
{
    const uint32_t all = s->n_micro * s->n_chunks;
    const uint32_t ahead = warm_up(s, rank);
    uint32_t n = 0;
    for (uint32_t i = 0; i < ahead; ++i) {
        turns_out[n++] = turn_of(s, false, i);
    }
    for (uint32_t i = 0; i < all; ++i) {
        if (i + ahead < all) {
            turns_out[n++] = turn_of(s, false, i + ahead);
        }
        turns_out[n++] = turn_of(s, true, i);
    }
}

/* As in_turn, and the weights' part of each backward phase so many backwards later as ranks stand
 * before this one. */
static void zero_bubble(const dsi_schedule *s, uint32_t rank, dsi_turn *turns_out)
{
    const uint32_t m = s->n_micro;
    const uint32_t ahead = warm_up(s, rank) + 1;
    uint32_t n = 0;
    for (uint32_t i = 0; i < ahead; ++i) {
        turns_out[n++] = (dsi_turn){0, i};
    }
    for (uint32_t i = 0; i < m; ++i) {
        turns_out[n++] = (dsi_turn){1, i};
        if (i >= rank) {
            turns_out[n++] = (dsi_turn){2, i - rank};
        }
        if (i + ahead < m) {
            turns_out[n++] = (dsi_turn){0, i + ahead};
        }
    }
    for (uint32_t i = m > rank ? m - rank : 0; i < m; ++i) {
        turns_out[n++] = (dsi_turn){2, i};
    }
}

void dsi_schedule_turns(const dsi_schedule *s, uint32_t rank, dsi_turn *turns_out)
{
    if (s->kind == DSI_SCHEDULE_ZB_H1) {
        zero_bubble(s, rank, turns_out);
    } else {
        in_turn(s, rank, turns_out);
    }
}

/* Micro-batches of a chunk between its first phase and its last at once, at most. */
static uint32_t in_flight(const dsi_schedule *s, uint32_t rank, uint32_t chunk)
{
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    const uint32_t all = s->n_micro * s->n_chunks;
    const uint32_t ahead = warm_up(s, rank);
    uint32_t begun = 0;
    uint32_t ended = 0;
    uint32_t most = 0;
    if (s->kind == DSI_SCHEDULE_ZB_H1) {
        return least(s->n_micro, s->n_ranks);
    }
    for (uint32_t i = 0; i < all; ++i) { /* with forward i, i - ahead backwards have been run */
        begun += turn_of(s, false, i).phase == dsi_part_forward(&parts, chunk) ? 1 : 0;
        if (i > ahead) {
            const ds_phase back = turn_of(s, true, i - ahead - 1).phase;
            ended += back == dsi_part_backward(&parts, chunk) ? 1 : 0;
        }
        most = begun - ended > most ? begun - ended : most;
    }
    return most;
}

/* Slots of a chunk beside n of the first one: as many as it needs, and a divisor of n where n comes
 * round. */
static uint32_t slots_beside(const dsi_schedule *s, uint32_t n, uint32_t need)
{
    while (n < s->n_micro && n % need != 0) {
        ++need;
    }
    return need;
}

uint32_t dsi_schedule_slots(const dsi_schedule *s, uint32_t rank)
{
    uint32_t need[DSI_STAGES_MOST] = {0};
    uint32_t fewest = 0;
    for (uint32_t c = 0; c < s->n_chunks; ++c) {
        need[c] = in_flight(s, rank, c);
    }
    uint32_t best = need[0];
    for (uint32_t n = need[0]; n <= s->n_micro && n <= 2 * need[0] && s->n_chunks > 1; ++n) {
        uint32_t sum = n;
        for (uint32_t c = 1; c < s->n_chunks; ++c) {
            sum += slots_beside(s, n, need[c]);
        }
        if (fewest == 0 || sum < fewest) {
            fewest = sum;
            best = n;
        }
    }
    return best;
}

uint32_t dsi_schedule_chunk_slots(const dsi_schedule *s, uint32_t rank, uint32_t chunk)
{
    const uint32_t n = dsi_schedule_slots(s, rank);
    return chunk == 0 ? n : slots_beside(s, n, in_flight(s, rank, chunk));
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

double dsi_schedule_idle(const dsi_schedule *s, const dsi_schedule_times *t)
{
    const double before = (double)s->n_ranks - 1.0;
    switch (s->kind) {
    case DSI_SCHEDULE_INTERLEAVED:
        return before * (t->forward + t->backward + t->weights) / s->n_chunks;
    case DSI_SCHEDULE_ZB_H1:
        return before * (t->forward + t->backward - t->weights);
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
