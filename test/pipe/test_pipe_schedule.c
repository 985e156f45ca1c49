/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules: the lists that torch's schedules make, micro-batches in flight and idle time as the
 * formulas say, and lists that would block or read what is not there, which are refused. */
#include "common/check.h"

#include "pipe/pipe_list.h"
#include "pipe/pipe_slots.h"
#include "pipe/pipe_time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

enum { MOST_TURNS = 512, MOST_EDGES = 64 };

/* As torch prints them: stage, action, micro-batch. */
static void print(const dsi_schedule *s, uint32_t rank, char *text, size_t room)
{
    dsi_turn turns[MOST_TURNS];
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    size_t n = 0;
    assert_true(dsi_schedule_count(s) <= MOST_TURNS);
    dsi_schedule_turns(s, rank, turns);
    text[0] = '\0';
    for (uint32_t i = 0; i < dsi_schedule_count(s); ++i) {
        const uint32_t phase = turns[i].phase;
        const uint32_t stage =
            dsi_part_stage(&parts, s->n_ranks, rank, dsi_part_chunk(&parts, phase));
        n += (size_t)snprintf(text + n, room - n, "%s%u%c%u", i > 0 ? " " : "", stage,
                              phase < s->n_chunks            ? 'F'
                              : !parts.split                 ? 'B'
                              : dsi_part_ends(&parts, phase) ? 'W'
                                                             : 'I',
                              turns[i].micro);
    }
}

/* Lists that torch's ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble
 * make, and ZB-H1 by its rule: see docs/internals/pipe.md. */
static void lists(void **state)
{
    static const struct {
        dsi_schedule schedule;
        uint32_t rank;
        const char *text;
    } cases[] = {
        {{DSI_SCHEDULE_1F1B, 2, 4, 1}, 0, "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"},
        {{DSI_SCHEDULE_1F1B, 2, 4, 1}, 1, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"},
        {{DSI_SCHEDULE_1F1B, 4, 4, 1}, 0, "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3"},
        {{DSI_SCHEDULE_1F1B, 4, 4, 1}, 2, "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3"},
        {{DSI_SCHEDULE_1F1B, 4, 2, 1}, 0, "0F0 0F1 0B0 0B1"},
        {{DSI_SCHEDULE_1F1B, 4, 1, 1}, 3, "3F0 3B0"},
        {{DSI_SCHEDULE_GPIPE, 2, 3, 1}, 1, "1F0 1F1 1F2 1B0 1B1 1B2"},
        {{DSI_SCHEDULE_ZB_H1, 2, 4, 1}, 0, "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3"},
        {{DSI_SCHEDULE_ZB_H1, 2, 4, 1}, 1, "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3"},
        {{DSI_SCHEDULE_INTERLEAVED, 2, 4, 2},
         0,
         "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"},
        {{DSI_SCHEDULE_INTERLEAVED, 2, 4, 2},
         1,
         "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"},
        {{DSI_SCHEDULE_ZB_V, 2, 4, 2},
         0,
         "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 "
         "0I3 0W3"},
        {{DSI_SCHEDULE_ZB_V, 2, 4, 2},
         1,
         "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 "
         "2W3 1W3"},
        {{DSI_SCHEDULE_ZB_V, 2, 2, 2}, 1, "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1"},
        {{DSI_SCHEDULE_ZB_V, 3, 4, 2},
         1,
         "1F0 1F1 1F2 4F0 1F3 4F1 4I0 4W0 4F2 4I1 4W1 1I0 1W0 4F3 4I2 4W2 1I1 1W1 4I3 4W3 1I2 1I3 "
         "1W2 1W3"},
        {{DSI_SCHEDULE_ZB_V, 4, 8, 2},
         2,
         "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 "
         "5F5 5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 "
         "5W6 5W7 2W6 2W7"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[4096];
        print(&cases[i].schedule, cases[i].rank, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

/* Each stage's activation to the next, its gradient back, with one buffer. */
static uint32_t usual_edges(const dsi_schedule *s, dsi_pipe_edge *edges)
{
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    const uint32_t p = s->n_ranks;
    uint32_t n = 0;
    for (uint32_t stage = 1; stage < p * s->n_chunks; ++stage) {
        const uint32_t here = stage / p;
        const uint32_t there = (stage - 1) / p;
        const uint32_t rank = dsi_part_rank(&parts, p, stage);
        const uint32_t before = dsi_part_rank(&parts, p, stage - 1);
        if (rank == before) {
            continue;
        }
        const ds_phase ahead = dsi_part_backward(&parts, here);
        const ds_phase back = dsi_part_backward(&parts, there);
        edges[n++] = (dsi_pipe_edge){.source = before,
                                     .target = rank,
                                     .phase = there,
                                     .first = here,
                                     .last = dsi_part_end(&parts, here),
                                     .buffers = parts.folded && s->n_micro > 1 ? 2 : 1,
                                     .apart = parts.folded && s->n_micro > 1,
                                     .kept = true};
        edges[n++] = (dsi_pipe_edge){.source = rank,
                                     .target = before,
                                     .phase = ahead,
                                     .first = back,
                                     .last = dsi_part_end(&parts, there),
                                     .buffers = 1,
                                     .kept = parts.split || s->n_chunks > 1};
    }
    return n;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Chunks of micro-batches in flight on a rank: what the papers say. */
static uint32_t in_flight(const dsi_schedule *s, uint32_t rank)
{
    const uint32_t behind = s->n_ranks - rank - 1;
    switch (s->kind) {
    case DSI_SCHEDULE_GPIPE:
        return s->n_micro;
    case DSI_SCHEDULE_1F1B:
        return least(s->n_micro, behind + 1);
    case DSI_SCHEDULE_ZB_H1:
        return least(s->n_micro, s->n_ranks);
    case DSI_SCHEDULE_ZB_V:
        return 2 * s->n_ranks; /* of 2p-1 micro-batches and more */
    default:
        return least(2 * behind + (s->n_chunks - 1) * s->n_ranks + 1, s->n_chunks * s->n_micro);
    }
}

/* The same without messages. */
static void check_order(const dsi_schedule *s, const dsi_schedule_times *t, double expected)
{
    dsi_schedule_times stages[2 * DSI_STAGES_MOST];
    double seconds = 0.0;
    for (uint32_t i = 0; i < s->n_ranks * s->n_chunks; ++i) {
        const double v = s->n_chunks;
        stages[i] = (dsi_schedule_times){t->forward / v, t->backward / v, t->weights / v};
    }
    const dsi_stage_times times = {.stages = stages};
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, s, &times, &seconds));
    assert_true(fabs(seconds - expected) < 1e-9);
}

/* One micro-batch goes down and comes back: over each link once either way. With more a link that
 * is slow is waited for less than once for each. */
static void messages_take_time(void **state)
{
    enum { P = 4 };
    const dsi_schedule_times stages[P] = {
        {1.0, 2.0, 0.0}, {1.0, 2.0, 0.0}, {1.0, 2.0, 0.0}, {1.0, 2.0, 0.0}};
    const dsi_stage_way ways[P] = {{0.5, 0.25}, {8.0, 4.0}, {0.5, 0.25}, {0.0, 0.0}};
    dsi_schedule s = {DSI_SCHEDULE_1F1B, P, 1, 1};
    double seconds = 0.0;
    double none = 0.0;
    (void)state;
    const dsi_stage_times at_once = {.stages = stages};
    const dsi_stage_times late = {.stages = stages, .ways = ways};
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &late, &seconds));
    assert_true(fabs(seconds - (P * 3.0 + 9.0 + 4.5)) < 1e-9);
    s.n_micro = 8;
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &at_once, &none));
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &late, &seconds));
    assert_true(seconds > none + 13.5 - 1e-9 && seconds < none + 8 * 13.5);
}

/* Two ranks of each stage on two cores: while one stage waits the other has both, so that no core
 * idles and a step takes as long as its work; with a core a rank it has the bubble. */
static void waiting_stages_leave_their_cores(void **state)
{
    enum { P = 2, MICRO = 8 };
    const dsi_schedule_times stages[P] = {{1.0, 2.0, 0.0}, {1.0, 2.0, 0.0}};
    dsi_schedule s = {DSI_SCHEDULE_1F1B, P, 1, 1};
    dsi_stage_times times = {
        .stages = stages,
        .shared = {.cores = {.n = 2, .threads = 1, .ranks = 4}, .together = 2, .n_ranks = 2}};
    double seconds = 0.0;
    (void)state;
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &times, &seconds));
    assert_true(fabs(seconds - 3.0) <
                1e-9); /* phases of both, one after the other, twice as fast */
    s.n_micro = MICRO;
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &times, &seconds));
    assert_true(fabs(seconds - MICRO * 3.0) < 1e-9);
    times.shared.cores.n = 4;
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &times, &seconds));
    assert_true(fabs(seconds - (MICRO + P - 1) * 3.0) < 1e-9);
    times.shared.cores.n = 2;
    times.shared.together = 1; /* a host for each stage */
    CHECK_OK(ctx, dsi_schedule_seconds(ctx, &s, &times, &seconds));
    assert_true(fabs(seconds - (MICRO + P - 1) * 3.0) < 1e-9);
}

static void check_formulas(const dsi_schedule *s)
{
    const bool folded = s->kind == DSI_SCHEDULE_ZB_V; /* whose formula is of equal times */
    const dsi_schedule_times t = {1.0, folded ? 1.0 : 1.25, folded ? 1.0 : 0.75};
    dsi_pipe_edge edges[2 * MOST_EDGES];
    dsi_pipe_result result;
    const uint32_t n = usual_edges(s, edges);
    const double work = s->n_micro * (t.forward + t.backward + t.weights);
    CHECK_OK(ctx, dsi_pipe_check(ctx, s, edges, n, &t, &result));
    const double expected = work + dsi_schedule_idle(s, &t);
    /* whose bubbles are of equal times, m ≥ p and m ≥ 2p-1; it is less before that */
    const bool exact =
        s->kind != DSI_SCHEDULE_ZB_H1 && (!folded || s->n_micro >= 2 * s->n_ranks - 1);
    if (exact ? fabs(result.seconds - expected) > 1e-9
              : s->n_micro >= s->n_ranks && result.seconds > expected) {
        fail_msg("%s, %u ranks, %u micro-batches, %u chunks: %.17g s, expected %.17g",
                 dsi_schedule_name(s->kind), s->n_ranks, s->n_micro, s->n_chunks, result.seconds,
                 expected);
    }
    check_order(s, &t, result.seconds);
    for (uint32_t r = 0; r < s->n_ranks; ++r) {
        if (!folded || s->n_micro >= 2 * s->n_ranks - 1) {
            assert_int_equal(result.in_flight[r], in_flight(s, r));
        }
        uint32_t chunks = 0;
        dsi_pipe_slots slots;
        const uint32_t micros = dsi_schedule_in_flight(s, r, &chunks);
        CHECK_OK(ctx, dsi_pipe_slots_make(ctx, s, r, &slots));
        assert_int_equal(chunks, result.in_flight[r]);
        assert_true(slots.n >= micros && slots.n <= 4 * micros);
        if (s->n_micro <= 4 * micros) {
            assert_int_equal(slots.n_places, chunks);
        } /* a step that is longer: see long_steps */
        dsi_pipe_slots_free(&slots);
    }
}

static void formulas(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 8; ++p) {
        for (uint32_t m = 1; m <= 20; ++m) {
            check_formulas(&(dsi_schedule){DSI_SCHEDULE_1F1B, p, m, 1});
            check_formulas(&(dsi_schedule){DSI_SCHEDULE_GPIPE, p, m, 1});
            check_formulas(&(dsi_schedule){DSI_SCHEDULE_ZB_H1, p, m, 1});
            check_formulas(&(dsi_schedule){DSI_SCHEDULE_ZB_V, p, m, 2});
        }
    }
    for (uint32_t p = 2; p <= 8; ++p) {
        for (uint32_t v = 2; v * p <= DSI_STAGES_MOST; ++v) {
            for (uint32_t m = p; m <= 4 * p; m += p) {
                check_formulas(&(dsi_schedule){DSI_SCHEDULE_INTERLEAVED, p, m, v});
            }
        }
    }
}

/* Of more than four times as many micro-batches as are in flight, slots come round: a few places
 * more than chunks in flight. */
static void check_long(const dsi_schedule *s)
{
    for (uint32_t r = 0; r < s->n_ranks; ++r) {
        uint32_t chunks = 0;
        dsi_pipe_slots slots;
        const uint32_t micros = dsi_schedule_in_flight(s, r, &chunks);
        size_t ones[DSI_STAGES_MOST];
        size_t at[DSI_STAGES_MOST * DSI_PIPE_SLOTS_MOST];
        size_t total = 0;
        CHECK_OK(ctx, dsi_pipe_slots_make(ctx, s, r, &slots));
        assert_true(slots.n >= micros && slots.n <= DSI_PIPE_SLOTS_MOST);
        assert_true(slots.n_places >= chunks && slots.n_places <= chunks + chunks / 3);
        for (uint32_t c = 0; c < s->n_chunks; ++c) {
            ones[c] = 1;
        }
        CHECK_OK(ctx, dsi_slot_pool(ctx, &slots.events, s->n_chunks, slots.n, ones, at, &total));
        assert_int_equal(total, slots.n_places); /* though they were counted on a shorter step */
        dsi_pipe_slots_free(&slots);
    }
}

static void long_steps(void **state)
{
    (void)state;
    for (uint32_t p = 2; p <= 8; ++p) {
        check_long(&(dsi_schedule){DSI_SCHEDULE_ZB_V, p, 9 * p, 2});
        for (uint32_t v = 2; v * p <= DSI_STAGES_MOST; ++v) {
            check_long(&(dsi_schedule){DSI_SCHEDULE_INTERLEAVED, p, 10 * p, v});
        }
    }
}

/* Makespans that a list scheduler makes of torch's and the papers' lists, F = B = W = 1, a rank's
 * share. */
static void makespans(void **state)
{
    static const uint32_t sizes[][2] = {{2, 4}, {4, 4}, {4, 8}, {4, 16}, {8, 16}};
    static const double seconds[][5] = {{15.0, 21.0, 33.0, 57.0, 69.0},
                                        {13.5, 16.5, 28.5, 52.5, 58.5},
                                        {13.0, 15.0, 27.0, 51.0, 55.0},
                                        {12.5, 15.0, 25.5, 49.5, 51.5}};
    static const dsi_schedule_kind kinds[] = {DSI_SCHEDULE_1F1B, DSI_SCHEDULE_INTERLEAVED,
                                              DSI_SCHEDULE_ZB_H1, DSI_SCHEDULE_ZB_V};
    const dsi_schedule_times t = {1.0, 1.0, 1.0};
    (void)state;
    for (uint32_t k = 0; k < 4; ++k) {
        for (uint32_t i = 0; i < 5; ++i) {
            const uint32_t v = k % 2 == 1 ? 2 : 1;
            const dsi_schedule s = {kinds[k], sizes[i][0], sizes[i][1], v};
            dsi_pipe_edge edges[MOST_EDGES];
            dsi_pipe_result result;
            CHECK_OK(ctx, dsi_pipe_check(ctx, &s, edges, usual_edges(&s, edges), &t, &result));
            assert_true(result.seconds == seconds[k][i]);
        }
    }
}

/* A gradient that goes from the last stage to the first (tied weights), in between the others. With
 * a buffer for each micro-batch in flight there nothing waits for it. */
static void far_messages(void **state)
{
    const dsi_schedule_times t = {1.0, 1.25, 0.75};
    (void)state;
    for (uint32_t p = 2; p <= 6; ++p) {
        for (uint32_t v = 1; v <= 2; ++v) {
            const dsi_schedule s = {v > 1 ? DSI_SCHEDULE_INTERLEAVED : DSI_SCHEDULE_1F1B, p, 2 * p,
                                    v};
            const dsi_stage_parts parts = dsi_schedule_parts(&s);
            dsi_pipe_edge edges[MOST_EDGES];
            dsi_pipe_result result;
            uint32_t n = usual_edges(&s, edges);
            const ds_phase last = dsi_part_backward(&parts, 0);
            uint32_t chunks = 0;
            const uint32_t buffers = v > 1 ? dsi_schedule_in_flight(&s, 0, &chunks) : p - 1;
            dsi_pipe_edge *far = &edges[n++];
            *far = (dsi_pipe_edge){.source = p - 1,
                                   .phase = v,
                                   .first = last,
                                   .last = last,
                                   .buffers = buffers,
                                   .apart = buffers > 1,
                                   .kept = v > 1};
            CHECK_OK(ctx, dsi_pipe_check(ctx, &s, edges, n, &t, &result));
            assert_true(result.seconds == s.n_micro * 3.0 + dsi_schedule_idle(&s, &t));
            far->channel = 1; /* past the others, it needs no room of its own */
            far->kept = false;
            CHECK_OK(ctx, dsi_pipe_check(ctx, &s, edges, n, &t, &result));
            assert_true(result.seconds == s.n_micro * 3.0 + dsi_schedule_idle(&s, &t));
            far->channel = 0;
            far->kept = v > 1;
            far->buffers = 1; /* waits, and comes to its end, but with chunks, where what
                                         the first rank waits for is sent behind it */
            far->apart = false;
            const ds_status one = dsi_pipe_check(ctx, &s, edges, n, &t, &result);
            assert_int_equal(one, v > 1 ? DS_ERR_GRAPH : DS_OK);
        }
    }
}

/* ---- lists that are broken ------------------------------------------------------------------- */

typedef struct set {
    dsi_schedule s;
    dsi_pipe_edge edges[MOST_EDGES];
    uint32_t n_edges;
    dsi_pipe_list lists[DSI_STAGES_MOST];
} set;

static void make(set *made, dsi_schedule s)
{
    memset(made, 0, sizeof *made);
    made->s = s;
    made->n_edges = usual_edges(&s, made->edges);
    for (uint32_t r = 0; r < s.n_ranks; ++r) {
        CHECK_OK(ctx, dsi_pipe_list_make(ctx, &s, made->edges, made->n_edges, r, &made->lists[r]));
    }
}

static void drop(set *made)
{
    for (uint32_t r = 0; r < made->s.n_ranks; ++r) {
        free(made->lists[r].items);
    }
}

static ds_status check(set *made)
{
    const dsi_schedule_times t = {1.0, 1.0, 1.0};
    dsi_pipe_result result;
    return dsi_pipe_lists_check(ctx, &made->s, made->edges, made->n_edges, made->lists, &t,
                                &result);
}

static void swap(dsi_pipe_op *a, dsi_pipe_op *b)
{
    const dsi_pipe_op kept = *a;
    *a = *b;
    *b = kept;
}

static void leave_out(dsi_pipe_list *list, uint32_t at)
{
    list->n -= 1;
    memmove(list->items + at, list->items + at + 1, (list->n - at) * sizeof *list->items);
}

/* The kinds of what can be wrong, each with its message. */
static void lists_that_block(void **state)
{
    set made;
    (void)state;
    make(&made, (dsi_schedule){DSI_SCHEDULE_1F1B, 2, 4, 1});
    CHECK_OK(ctx, check(&made));
    swap(&made.lists[0].items[0], &made.lists[0].items[1]); /* run, send */
    CHECK_FAILS(ctx, check(&made), DS_ERR_GRAPH, "rank 0, instruction 0, send 0 of micro-batch 0");
    drop(&made);
    make(&made, (dsi_schedule){DSI_SCHEDULE_1F1B, 2, 4, 1});
    leave_out(&made.lists[0], 1); /* its first send */
    CHECK_FAILS(ctx, check(&made), DS_ERR_GRAPH, "it was not sent");
    drop(&made);
    make(&made, (dsi_schedule){DSI_SCHEDULE_1F1B, 2, 4, 1});
    leave_out(&made.lists[1], 0); /* its first receive */
    CHECK_FAILS(ctx, check(&made), DS_ERR_GRAPH, "what it reads is not received");
    drop(&made);
    make(&made, (dsi_schedule){DSI_SCHEDULE_1F1B, 2, 4, 1});
    for (uint32_t i = 0; i < made.lists[0].n; ++i) { /* a phase of the last micro-batch */
        if (made.lists[0].items[i].kind == DSI_PIPE_RUN && made.lists[0].items[i].what == 1 &&
            made.lists[0].items[i].micro == 3) {
            leave_out(&made.lists[0], i);
        }
    }
    CHECK_FAILS(ctx, check(&made), DS_ERR_GRAPH, "invariant 1: rank 0");
    drop(&made);
    /* both wait for what the other sends later */
    make(&made, (dsi_schedule){DSI_SCHEDULE_1F1B, 2, 4, 1});
    dsi_pipe_list *first = &made.lists[0];
    for (uint32_t i = 0; i < first->n; ++i) {
        if (first->items[i].kind == DSI_PIPE_RECEIVE) { /* of its first gradient: before all else */
            const dsi_pipe_op op = first->items[i];
            memmove(first->items + 1, first->items, i * sizeof op);
            first->items[0] = op;
            break;
        }
    }
    CHECK_FAILS(ctx, check(&made), DS_ERR_GRAPH, "it would wait for ever");
    drop(&made);
}

/* Any list with one instruction left out, put twice, or put elsewhere: refused, or harmless. What
 * is harmless keeps the runs in their order; so much is counted. */
static void mutated_lists(void **state)
{
    static const dsi_schedule schedules[] = {
        {DSI_SCHEDULE_1F1B, 3, 4, 1},        {DSI_SCHEDULE_GPIPE, 2, 3, 1},
        {DSI_SCHEDULE_INTERLEAVED, 2, 4, 2}, {DSI_SCHEDULE_INTERLEAVED, 3, 6, 2},
        {DSI_SCHEDULE_ZB_H1, 3, 4, 1},       {DSI_SCHEDULE_ZB_V, 3, 5, 2}};
    uint32_t n_tried = 0;
    uint32_t n_refused = 0;
    (void)state;
    for (uint32_t k = 0; k < sizeof schedules / sizeof schedules[0]; ++k) {
        set made;
        make(&made, schedules[k]);
        for (uint32_t r = 0; r < made.s.n_ranks; ++r) {
            const dsi_pipe_list whole = made.lists[r];
            dsi_pipe_op *copy = malloc((whole.n + 1) * sizeof *copy);
            assert_non_null(copy);
            for (uint32_t i = 0; i < whole.n; ++i) {
                memcpy(copy, whole.items, whole.n * sizeof *copy);
                made.lists[r].items = copy;
                leave_out(&made.lists[r], i); /* every one is needed */
                assert_int_equal(check(&made), DS_ERR_GRAPH);
                memcpy(copy, whole.items, (i + 1) * sizeof *copy);
                memcpy(copy + i + 1, whole.items + i, (whole.n - i) * sizeof *copy);
                made.lists[r].n = whole.n + 1; /* twice */
                const bool waits = copy[i].kind == DSI_PIPE_SENT;
                const ds_status twice = check(&made);
                assert_true(waits ? twice >= 0 : twice == DS_ERR_GRAPH);
                made.lists[r] = whole;
                for (uint32_t j = i + 1; j < whole.n; ++j) {
                    memcpy(copy, whole.items, whole.n * sizeof *copy);
                    swap(&copy[i], &copy[j]);
                    made.lists[r].items = copy;
                    n_tried += 1;
                    n_refused += check(&made) < 0 ? 1 : 0;
                }
                made.lists[r] = whole;
            }
            free(copy);
        }
        drop(&made);
    }
    assert_true(n_refused > n_tried * 9 / 10);
}

static void what_is_refused(void **state)
{
    (void)state;
    CHECK_FAILS(ctx, dsi_schedule_allowed(ctx, &(dsi_schedule){DSI_SCHEDULE_INTERLEAVED, 4, 6, 2}),
                DS_ERR_CONFIG, "set gradient_accumulation_steps to 4");
    CHECK_OK(ctx, dsi_schedule_allowed(ctx, &(dsi_schedule){DSI_SCHEDULE_INTERLEAVED, 4, 8, 2}));
    CHECK_OK(ctx, dsi_schedule_allowed(ctx, &(dsi_schedule){DSI_SCHEDULE_1F1B, 4, 6, 1}));
}

static int setup(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(formulas),
        cmocka_unit_test(long_steps),
        cmocka_unit_test(makespans),
        cmocka_unit_test(far_messages),
        cmocka_unit_test(messages_take_time),
        cmocka_unit_test(waiting_stages_leave_their_cores),
        cmocka_unit_test(lists_that_block),
        cmocka_unit_test(mutated_lists),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
