/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * Lists of a pipeline's ranks run over the simulated communicator, whose messages come late and in
 * whatever order between ranks: none blocks, each receive gets what it is for, and by the times
 * that messages carry a step takes as long, and as many micro-batches are in flight, as the
 * schedule's formula says. The seconds are injected: a rank's clock goes on by a phase's, and to
 * that of what it receives.
 */
#include "comm/comm.h"
#include "common/check.h"
#include "common/rank_threads.h"

#include "pipe/pipe_list.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_EDGES = 64, MOST_SENT = 4096, FORWARD = 24, WORDS = 3 };

typedef struct job {
    dsi_schedule schedule;
    int64_t backward, weights; /* seconds, as FORWARD of a rank's forward phases */
    dsi_pipe_edge edges[MOST_EDGES];
    uint32_t n_edges;
    int64_t now[RANK_THREADS_MAX];
    uint32_t in_flight[RANK_THREADS_MAX];
} job;

/* A message: which, of which micro-batch, when. */
typedef struct letter {
    int64_t words[WORDS];
    dsi_comm_part part;
    dsi_comm_ticket ticket;
} letter;

static dsi_comm_call call_of(const dsi_pipe_edge *edge, bool sends, letter *l)
{
    l->part = (dsi_comm_part){.in = l->words, .out = l->words, .count = WORDS};
    return (dsi_comm_call){.kind = sends ? DS_COMM_SEND : DS_COMM_RECV,
                           .dtype = DS_DTYPE_I64,
                           .factor = 1.0f,
                           .peer = sends ? edge->target : edge->source,
                           .parts = &l->part,
                           .n_parts = 1,
                           .what = "a message of a pipeline"};
}

static ds_status receive(dsi_comm *comm, const job *j, const dsi_pipe_op *op, int64_t *now)
{
    letter l;
    memset(&l, 0, sizeof l);
    const dsi_comm_call call = call_of(&j->edges[op->what], false, &l);
    DS_TRY(dsi_comm_run(comm, &call));
    if (l.words[0] != op->what || l.words[1] != op->micro) {
        return ds_fail(comm->ctx, DS_ERR_INTERNAL, "message %d of %d in place of %u of %u",
                       (int)l.words[0], (int)l.words[1], op->what, op->micro);
    }
    *now = l.words[2] > *now ? l.words[2] : *now;
    return DS_OK;
}

static int64_t seconds_of(const job *j, ds_phase phase)
{
    const dsi_schedule *s = &j->schedule;
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    if (phase < parts.n_chunks) {
        return FORWARD / parts.n_chunks;
    }
    const int64_t seconds = !parts.split                   ? j->backward + j->weights
                            : dsi_part_ends(&parts, phase) ? j->weights
                                                           : j->backward;
    return seconds / parts.n_chunks;
}

static ds_status run_list(dsi_comm *comm, job *j, const dsi_pipe_list *list, letter *letters)
{
    const dsi_schedule *s = &j->schedule;
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    uint32_t flying = 0;
    int64_t now = 0;
    for (uint32_t i = 0; i < list->n; ++i) {
        const dsi_pipe_op *op = &list->items[i];
        letter *l = &letters[op->kind == DSI_PIPE_RUN ? 0 : op->what * s->n_micro + op->micro];
        if (op->kind == DSI_PIPE_RUN) {
            now += seconds_of(j, op->what);
            flying += op->what < parts.n_chunks ? 1 : 0;
            j->in_flight[comm->rank] =
                flying > j->in_flight[comm->rank] ? flying : j->in_flight[comm->rank];
            flying -= dsi_part_ends(&parts, op->what) ? 1 : 0;
        } else if (op->kind == DSI_PIPE_RECEIVE) {
            DS_TRY(receive(comm, j, op, &now));
        } else if (op->kind == DSI_PIPE_SENT) {
            DS_TRY(dsi_comm_wait(comm, l->ticket, NULL));
        } else {
            const int64_t words[WORDS] = {op->what, op->micro, now};
            memcpy(l->words, words, sizeof words);
            const dsi_comm_call call = call_of(&j->edges[op->what], true, l);
            DS_TRY(dsi_comm_start(comm, &call, &l->ticket));
        }
    }
    j->now[comm->rank] = now;
    return DS_OK;
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    job *j = arg;
    dsi_pipe_list list = {0};
    letter *letters = calloc(MOST_SENT, sizeof *letters);
    DS_TRY(dsi_pipe_list_make(comm->ctx, &j->schedule, j->edges, j->n_edges, comm->rank, &list));
    const ds_status status = letters == NULL
                                 ? ds_fail(comm->ctx, DS_ERR_NOMEM, "no memory for messages")
                                 : run_list(comm, j, &list, letters);
    free(letters);
    free(list.items);
    return status;
}

/* Each stage's activation to the next, its gradient back, and a gradient of tied weights from the
 * last stage to the first. */
static void add_edges(job *j)
{
    const dsi_schedule *s = &j->schedule;
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    const uint32_t p = s->n_ranks;
    const uint32_t n_stages = p * s->n_chunks;
    const bool kept = parts.split || s->n_chunks > 1;
    for (uint32_t stage = 1; stage < n_stages; ++stage) {
        const uint32_t rank = dsi_part_rank(&parts, p, stage);
        const uint32_t before = dsi_part_rank(&parts, p, stage - 1);
        const uint32_t buffers = parts.folded && s->n_micro > 1 ? 2 : 1;
        if (rank == before) {
            continue;
        }
        const ds_phase here = dsi_part_backward(&parts, stage / p);
        const ds_phase back = dsi_part_backward(&parts, (stage - 1) / p);
        j->edges[j->n_edges++] = (dsi_pipe_edge){.source = before,
                                                 .target = rank,
                                                 .phase = (stage - 1) / p,
                                                 .first = stage / p,
                                                 .last = dsi_part_end(&parts, stage / p),
                                                 .buffers = buffers,
                                                 .apart = buffers > 1,
                                                 .kept = true};
        j->edges[j->n_edges++] = (dsi_pipe_edge){.source = rank,
                                                 .target = before,
                                                 .phase = here,
                                                 .first = back,
                                                 .last = dsi_part_end(&parts, (stage - 1) / p),
                                                 .buffers = 1,
                                                 .kept = kept};
    }
    const ds_phase last = dsi_part_end(&parts, 0);
    uint32_t chunks = 0;
    const uint32_t buffers = dsi_schedule_in_flight(s, 0, &chunks);
    if (parts.folded) { /* the first rank has both */
        return;
    }
    j->edges[j->n_edges++] = (dsi_pipe_edge){.source = p - 1,
                                             .target = 0,
                                             .phase = s->n_chunks,
                                             .first = last,
                                             .last = last,
                                             .buffers = buffers,
                                             .apart = true,
                                             .kept = kept};
}

static uint32_t in_flight(const dsi_schedule *s, uint32_t rank)
{
    const uint32_t behind = s->n_ranks - rank - 1;
    const uint32_t all = s->n_chunks * s->n_micro;
    const uint32_t n = s->kind == DSI_SCHEDULE_GPIPE   ? s->n_micro
                       : s->kind == DSI_SCHEDULE_ZB_H1 ? s->n_ranks
                       : s->kind == DSI_SCHEDULE_ZB_V  ? 2 * s->n_ranks
                       : s->kind == DSI_SCHEDULE_INTERLEAVED
                           ? 2 * behind + (s->n_chunks - 1) * s->n_ranks + 1
                           : behind + 1;
    return n < all ? n : all;
}

static void check(ds_ctx *ctx, dsi_schedule schedule, uint64_t seed)
{
    const dsi_comm_sim_options options = {.seed = seed, .max_delay = 3e-5, .reorder = true};
    const bool split = dsi_schedule_parts(&schedule).split; /* whose formula is of equal times */
    job j = {
        .schedule = schedule, .backward = split ? FORWARD : 30, .weights = split ? FORWARD : 12};
    const dsi_schedule_times t = {FORWARD, (double)j.backward, (double)j.weights};
    rank_results results;
    dsi_pipe_result simulated;
    add_edges(&j);
    CHECK_OK(ctx, dsi_pipe_check(ctx, &j.schedule, j.edges, j.n_edges, &t, &simulated));
    (void)rank_threads_run(schedule.n_ranks, &options, run_rank, &j, &results);
    const double work = schedule.n_micro * (t.forward + t.backward + t.weights);
    int64_t end = 0;
    for (uint32_t r = 0; r < schedule.n_ranks; ++r) {
        if (results.status[r] < 0) {
            fail_msg("rank %u: %s", r, results.message[r]);
        }
        end = j.now[r] > end ? j.now[r] : end;
        assert_int_equal(j.in_flight[r], in_flight(&schedule, r));
        assert_int_equal(j.in_flight[r], simulated.in_flight[r]);
    }
    if ((double)end != simulated.seconds ||
        (double)end - work != dsi_schedule_idle(&schedule, &t)) {
        fail_msg("%s, %u ranks, %u micro-batches, %u chunks: idle %g, the checker says %g, the "
                 "formula %g",
                 dsi_schedule_name(schedule.kind), schedule.n_ranks, schedule.n_micro,
                 schedule.n_chunks, (double)end - work, simulated.seconds - work,
                 dsi_schedule_idle(&schedule, &t));
    }
}

static void all_schedules(void **state)
{
    uint64_t seed = 1;
    for (uint32_t p = 2; p <= 5; ++p) {
        for (uint32_t m = p; m <= 3 * p; m += p) {
            check(*state, (dsi_schedule){DSI_SCHEDULE_1F1B, p, m, 1}, seed++);
            check(*state, (dsi_schedule){DSI_SCHEDULE_GPIPE, p, m, 1}, seed++);
            check(*state, (dsi_schedule){DSI_SCHEDULE_ZB_H1, p, m, 1}, seed++);
            if (m >= 2 * p - 1) {
                check(*state, (dsi_schedule){DSI_SCHEDULE_ZB_V, p, m, 2}, seed++);
            }
            check(*state, (dsi_schedule){DSI_SCHEDULE_INTERLEAVED, p, m, 2}, seed++);
            check(*state, (dsi_schedule){DSI_SCHEDULE_INTERLEAVED, p, m, 3}, seed++);
        }
    }
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(all_schedules, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
