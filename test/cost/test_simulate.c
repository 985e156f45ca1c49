/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator on small timelines worked out by hand; the same by an independent account over
 * random plans; traces. */
#include "common/check.h"
#include "cost/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    return ds_ctx_create(&params, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

enum { NORM = DS_PHASE_STEP, UPDATE, REST };
static const dsi_phases phases = {.items = {{"forward", 0, DS_PHASE_FORWARD},
                                            {"backward", 0, DS_PHASE_BACKWARD},
                                            {"norm", 0, DS_PHASE_STEP},
                                            {"update", 0, DS_PHASE_STEP},
                                            {"rest", DS_PHASE_SKIPPABLE, DS_PHASE_STEP}},
                                  .n = 5};

static dsi_sim_step run(ds_phase phase, double seconds)
{
    return (dsi_sim_step){.kind = DSI_STEP_RUN,
                          .phase = phase,
                          .op = "linear",
                          .scope = "layer \"0\"",
                          .work = {.op_class = DS_CLASS_LINEAR, .flops = 1e12},
                          .seconds = seconds};
}

static dsi_sim_step start(ds_phase phase, dsi_sim_stream stream, double seconds)
{
    return (dsi_sim_step){.kind = DSI_STEP_START,
                          .phase = phase,
                          .stream = stream,
                          .op = "all_gather",
                          .coll = DS_COMM_ALL_GATHER,
                          .work = {.bytes = 1e9},
                          .seconds = seconds};
}

static dsi_sim_step wait_for(ds_phase phase, uint32_t s, dsi_sim_stream stream)
{
    return (dsi_sim_step){
        .kind = DSI_STEP_WAIT, .phase = phase, .start = s, .stream = stream, .op = "all_gather"};
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want) + 1e-12)) {
        fail_msg("got %.12g, expected %.12g", got, want);
    }
}

static dsi_timeline *simulate(const dsi_device *device, const dsi_sim_step *steps, uint32_t n,
                              int64_t accumulation)
{
    const dsi_sim_spec spec = {.device = device,
                               .steps = steps,
                               .n_steps = n,
                               .phases = &phases,
                               .accumulation = accumulation,
                               .model_flops = 3e12,
                               .tokens = 1000,
                               .peak_dtype = DS_DTYPE_BF16};
    dsi_timeline *t = NULL;
    CHECK_OK(ctx, dsi_simulate(ctx, &spec, &t));
    return t;
}

static const dsi_device overlapping = {.name = "d", .peak = {1e12, 1e12, 1e12}, .overlap = 1.0};

/* Gather of 3 s beside 2 s of computation: 1 s shows. */
static void partly_hidden(void **state)
{
    (void)state;
    const dsi_sim_step steps[] = {
        start(DS_PHASE_FORWARD, DSI_STREAM_COMM, 3.0), run(DS_PHASE_FORWARD, 2.0),
        wait_for(DS_PHASE_FORWARD, 0, DSI_STREAM_COMM), run(DS_PHASE_FORWARD, 4.0)};
    dsi_timeline *t = simulate(&overlapping, steps, 4, 1);
    const dsi_sim_sum *f = &t->phases[DS_PHASE_FORWARD];
    near(f->seconds, 7.0);
    near(f->compute, 6.0);
    near(f->comm, 3.0);
    near(f->exposed_comm, 1.0);
    near(f->bubble, 0.0);
    near(f->flops, 2e12);
    assert_int_equal(t->n_events, 4); /* two runs, the gather, the stall */
    near(t->mfu, 3e12 / (7.0 * 1e12));
    near(t->hfu, 2e12 / (7.0 * 1e12));
    near(t->tokens_per_second, 1000.0 / 7.0);
    assert_int_equal(t->n_rows, 2);
    assert_string_equal(t->rows[0].name, "linear");
    near(t->rows[0].seconds, 6.0);
    assert_string_equal(t->rows[1].name, "all_gather");
    near(t->rows[1].exposed, 1.0);
    dsi_timeline_destroy(&t);
    assert_null(t);
}

/* The waiting thread does the work: nothing is hidden. With half of it beside: 1 s of 3 s is done
 * when the wait begins. Computation slowed by a fifth takes 2.5 s, in which 2.5 s go on. */
static void degrees_of_overlap(void **state)
{
    (void)state;
    const dsi_sim_step steps[] = {start(DS_PHASE_BACKWARD, DSI_STREAM_COMM, 3.0),
                                  run(DS_PHASE_BACKWARD, 2.0),
                                  wait_for(DS_PHASE_BACKWARD, 0, DSI_STREAM_COMM)};
    dsi_device d = overlapping;
    d.overlap = 0.0;
    dsi_timeline *t = simulate(&d, steps, 3, 1);
    near(t->step.seconds, 5.0);
    near(t->step.exposed_comm, 3.0);
    near(t->events[1].start, 2.0); /* it begins with the wait */
    dsi_timeline_destroy(&t);
    d.overlap = 0.5;
    t = simulate(&d, steps, 3, 1);
    near(t->step.seconds, 4.0);
    dsi_timeline_destroy(&t);
    d.overlap = 1.0;
    d.slowdown = 0.2;
    t = simulate(&d, steps, 3, 1);
    near(t->step.compute, 2.5);
    near(t->step.seconds, 3.0);
    dsi_timeline_destroy(&t);
}

/* One stream does one thing at a time: gathers of 2 and 2 s beside 3 s; the second ends at 4 s.
 * Streams are independent: a disk read of 5 s beside both. */
static void queues(void **state)
{
    (void)state;
    const ds_phase p = DS_PHASE_FORWARD;
    const dsi_sim_step steps[] = {
        start(p, DSI_STREAM_COMM, 2.0),      start(p, DSI_STREAM_COMM, 2.0),
        start(p, DSI_STREAM_DISK_READ, 5.0), run(p, 3.0),
        wait_for(p, 0, DSI_STREAM_COMM),     wait_for(p, 1, DSI_STREAM_COMM),
        wait_for(p, 2, DSI_STREAM_DISK_READ)};
    dsi_timeline *t = simulate(&overlapping, steps, 7, 1);
    near(t->step.seconds, 5.0);
    near(t->step.exposed_comm, 1.0);
    near(t->step.exposed_moves, 1.0);
    near(t->step.comm, 4.0);
    near(t->step.moves, 5.0);
    near(t->step.move_bytes, 1e9);
    dsi_timeline_destroy(&t);
}

/* What streams wait for by themselves, past the thread: a gradient goes down in 2 s, 3 s behind its
 * end its update is done, and the parameter comes up in 1 s; a second one goes down meanwhile. The
 * rates of the host: of an update Adam's, of a copy memory's. */
static void streams_wait_for_each_other(void **state)
{
    (void)state;
    const ds_phase p = DS_PHASE_BACKWARD;
    const uint32_t behind[] = {0, 1, 3, 4};
    dsi_sim_step steps[] = {start(p, DSI_STREAM_HOST_OUT, 2.0),
                            start(p, DSI_STREAM_HOST, 3.0),
                            start(p, DSI_STREAM_HOST_IN, 1.0),
                            start(p, DSI_STREAM_HOST_OUT, 2.0),
                            start(p, DSI_STREAM_HOST, 0.0),
                            start(p, DSI_STREAM_HOST_IN, 1.0),
                            run(p, 2.5),
                            wait_for(p, 2, DSI_STREAM_HOST_IN),
                            wait_for(p, 5, DSI_STREAM_HOST_IN)};
    dsi_device d = overlapping;
    d.host_bandwidth = 2e9;
    d.host_adam = 1e9 / 28.0;
    for (int i = 0; i < 4; ++i) {
        dsi_sim_step *s = &steps[i < 2 ? i + 1 : i + 2];
        s->after = &behind[i];
        s->n_after = 1;
    }
    steps[4].work = (dsi_work){.op_class = DS_CLASS_OPTIMIZER, .bytes = 4e9};
    dsi_timeline *t = simulate(&d, steps, 9, 1);
    near(t->step.seconds, 2.0 + 3.0 + 4.0 + 1.0);
    near(t->step.exposed_moves, 7.5);
    dsi_timeline_destroy(&t);
    steps[4].work.op_class = DS_CLASS_COPY;
    t = simulate(&d, steps, 9, 1);
    near(t->step.seconds, 2.0 + 3.0 + 2.0 + 1.0);
    dsi_timeline_destroy(&t);
}

/* A disk of 1 GB/s each way and 1 GB/s in all: 2 s of reading and 1 s of writing at once; at half
 * speed the write ends at 2 s with half of the read left, which then goes on at full speed. */
static void disk_shared(void **state)
{
    (void)state;
    const ds_phase p = UPDATE;
    const dsi_sim_step steps[] = {
        start(p, DSI_STREAM_DISK_READ, 2.0), start(p, DSI_STREAM_DISK_WRITE, 1.0),
        wait_for(p, 1, DSI_STREAM_DISK_WRITE), wait_for(p, 0, DSI_STREAM_DISK_READ)};
    dsi_device d = overlapping;
    d.disk_read = 1e9;
    d.disk_write = 1e9;
    dsi_timeline *t = simulate(&d, steps, 4, 1);
    near(t->step.seconds, 2.0);
    dsi_timeline_destroy(&t);
    d.disk_both = 1e9;
    t = simulate(&d, steps, 4, 1);
    near(t->step.seconds, 3.0);
    near(t->events[0].end, 2.0);
    dsi_timeline_destroy(&t);
    d.disk_both = 4e9; /* more than the sum: each at its own rate */
    t = simulate(&d, steps, 4, 1);
    near(t->step.seconds, 2.0);
    dsi_timeline_destroy(&t);
}

/* Three micro-batches, then norm and update; accumulators cleared once. */
static void composition(void **state)
{
    (void)state;
    dsi_device d = overlapping;
    d.memory_bandwidth = 1e9;
    d.rates[DSI_PEAK_F32][DS_CLASS_COPY] = (dsi_rate){.compute = 1.0, .memory = 0.5};
    dsi_sim_step sync = start(NORM, DSI_STREAM_COMM, 0.25);
    sync.kind = DSI_STEP_RUN;
    const dsi_sim_step steps[] = {run(DS_PHASE_FORWARD, 1.0), run(DS_PHASE_BACKWARD, 2.0), sync,
                                  run(UPDATE, 0.5)};
    const dsi_sim_spec spec = {.device = &d,
                               .steps = steps,
                               .n_steps = 4,
                               .phases = &phases,
                               .accumulation = 3,
                               .clear_bytes = 2e9,
                               .model_flops = 1e12,
                               .tokens = 10,
                               .peak_dtype = DS_DTYPE_F32};
    dsi_timeline *t = NULL;
    CHECK_OK(ctx, dsi_simulate(ctx, &spec, &t));
    near(t->step.seconds, 3 * 3.0 + 0.25 + 0.5 + 4.0);
    near(t->step.exposed_comm, 0.25);
    near(t->mfu, 3e12 / (t->step.seconds * 1e12));
    near(t->tokens_per_second, 30.0 / t->step.seconds);
    near(t->step.flops, 7e12);
    assert_int_equal(t->rows[0].calls, 3);
    dsi_timeline_destroy(&t);
}

/* Every second step starts an update that computes for 1 s and waits 4 s for the disk: beside steps
 * of 3 s the waiting is hidden, beside steps of 0.5 s only as much of it as they last. */
static void side_phase(void **state)
{
    (void)state;
    dsi_sim_step read = start(REST, DSI_STREAM_DISK_READ, 4.0);
    read.kind = DSI_STEP_RUN;
    dsi_phases side = phases;
    side.items[REST].flags |= DS_PHASE_SIDE;
    for (int i = 0; i < 3; ++i) {
        const double step = i == 2 ? 0.5 : 3.0;
        const dsi_sim_step steps[] = {run(DS_PHASE_FORWARD, step), read, run(REST, 1.0)};
        const dsi_sim_spec spec = {.device = &overlapping,
                                   .steps = steps,
                                   .n_steps = 3,
                                   .phases = i > 0 ? &side : &phases,
                                   .share = {[REST] = 0.5}};
        const double waits = i == 0 ? 2.0 : i == 1 ? 0.0 : 1.5;
        dsi_timeline *t = NULL;
        CHECK_OK(ctx, dsi_simulate(ctx, &spec, &t));
        near(t->step.exposed_moves, waits);
        near(t->step.seconds, step + 0.5 + waits);
        dsi_timeline_destroy(&t);
    }
}

static void malformed(void **state)
{
    (void)state;
    const ds_phase p = DS_PHASE_FORWARD;
    dsi_sim_step steps[2] = {run(p, 1.0), wait_for(p, 0, DSI_STREAM_COMM)};
    const dsi_sim_spec spec = {
        .device = &overlapping, .steps = steps, .n_steps = 2, .phases = &phases};
    dsi_timeline *t = NULL;
    CHECK_FAILS(ctx, dsi_simulate(ctx, &spec, &t), DS_ERR_GRAPH, "waits for no start");
    steps[0] = run(UPDATE, 1.0);
    steps[1] = run(p, 1.0);
    CHECK_FAILS(ctx, dsi_simulate(ctx, &spec, &t), DS_ERR_GRAPH, "phases are not in order");
    steps[0] = run(p, 1.0);
    steps[0].kind = DSI_STEP_START;
    CHECK_FAILS(ctx, dsi_simulate(ctx, &spec, &t), DS_ERR_GRAPH, "not started");
    const uint32_t itself = 0;
    steps[0] = start(p, DSI_STREAM_HOST, 1.0);
    steps[0].after = &itself;
    steps[0].n_after = 1;
    CHECK_FAILS(ctx, dsi_simulate(ctx, &spec, &t), DS_ERR_GRAPH, "behind no earlier start");
    steps[0] = start(p, DSI_STREAM_COMM, 0.0);
    steps[0].kind = DSI_STEP_RUN;
    steps[0].group = (dsi_group){16, 8}; /* the device has no network */
    CHECK_FAILS(ctx, dsi_simulate(ctx, &spec, &t), DS_ERR_ARG, "over nodes \"network\"");
    steps[0] = start(p, DSI_STREAM_DISK_READ, 0.0);
    steps[0].kind = DSI_STEP_RUN;
    CHECK_FAILS(ctx, dsi_simulate(ctx, &spec, &t), DS_ERR_ARG, "needs: \"disk\"");
    assert_null(t);
}

/* An account of its own: full overlap, no slowdown. `free_at` is when each stream is free. */
static double account(const dsi_sim_step *steps, uint32_t n)
{
    double free_at[DSI_STREAM_COUNT] = {0.0};
    double *ends = calloc(n, sizeof *ends);
    double now = 0.0;
    assert_non_null(ends);
    for (uint32_t i = 0; i < n; ++i) {
        const dsi_sim_step *s = &steps[i];
        if (s->kind == DSI_STEP_WAIT) {
            now = fmax(now, ends[s->start]);
        } else if (s->stream == DSI_STREAM_COMPUTE) {
            now += s->seconds;
        } else {
            ends[i] = fmax(now, free_at[s->stream]);
            for (uint32_t k = 0; k < s->n_after; ++k) {
                ends[i] = fmax(ends[i], ends[s->after[k]]);
            }
            ends[i] += s->seconds;
            free_at[s->stream] = ends[i];
            now = s->kind == DSI_STEP_RUN ? ends[i] : now;
        }
    }
    free(ends);
    return now;
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Starts whose waits follow some steps later, at most four open; some are behind others that are
 * open. */
static uint32_t random_steps(uint64_t *seed, dsi_sim_step *steps, uint32_t (*after)[4],
                             uint32_t room)
{
    uint32_t open[4];
    uint32_t n_open = 0;
    uint32_t n = 0;
    while (n + 5 < room) {
        const uint64_t what = next(seed) % 4;
        const double seconds = 1e-3 * (double)(1 + next(seed) % 1000);
        const dsi_sim_stream stream =
            (dsi_sim_stream)(DSI_STREAM_COMM + next(seed) % (DSI_STREAM_COUNT - 1));
        if (what == 0 && n_open < 4) {
            steps[n] = start(DS_PHASE_BACKWARD, stream, seconds);
            steps[n].after = after[n];
            for (uint32_t k = 0; k < n_open; ++k) {
                if (next(seed) % 2 == 0) {
                    after[n][steps[n].n_after++] = open[k];
                }
            }
            open[n_open++] = n++;
        } else if (what == 1 && n_open > 0) {
            const uint32_t s = open[--n_open];
            steps[n++] = wait_for(DS_PHASE_BACKWARD, s, steps[s].stream);
        } else if (what == 2) {
            steps[n] = start(DS_PHASE_BACKWARD, stream, seconds);
            steps[n++].kind = DSI_STEP_RUN;
        } else {
            steps[n++] = run(DS_PHASE_BACKWARD, seconds);
        }
    }
    while (n_open > 0) {
        const uint32_t s = open[--n_open];
        steps[n++] = wait_for(DS_PHASE_BACKWARD, s, steps[s].stream);
    }
    return n;
}

static void random_plans(void **state)
{
    (void)state;
    enum { ROOM = 60 };
    uint64_t seed = 11;
    for (int round = 0; round < 500; ++round) {
        dsi_sim_step steps[ROOM];
        uint32_t after[ROOM][4];
        const uint32_t n = random_steps(&seed, steps, after, ROOM);
        dsi_timeline *t = simulate(&overlapping, steps, n, 1);
        dsi_timeline *again = simulate(&overlapping, steps, n, 1);
        const dsi_sim_sum *s = &t->step;
        near(s->seconds, account(steps, n));
        near(s->compute + s->exposed_comm + s->exposed_moves + s->bubble, s->seconds);
        assert_true(s->exposed_comm + s->exposed_moves <= s->comm + s->moves + 1e-9);
        assert_int_equal(t->n_events, again->n_events);
        for (uint32_t i = 0; i < t->n_events; ++i) {
            assert_true(t->events[i].start == again->events[i].start);
            assert_true(t->events[i].end == again->events[i].end);
            for (uint32_t j = 0; j < i; ++j) { /* a stream does one thing at a time */
                const dsi_sim_event *a = &t->events[j];
                const dsi_sim_event *b = &t->events[i];
                assert_true(a->stream != b->stream || a->end <= b->start + 1e-9);
            }
        }
        dsi_device slower = overlapping; /* less overlap never helps */
        slower.overlap = 0.5;
        dsi_timeline *worse = simulate(&slower, steps, n, 1);
        assert_true(worse->step.seconds >= s->seconds - 1e-9);
        dsi_timeline_destroy(&worse);
        dsi_timeline_destroy(&again);
        dsi_timeline_destroy(&t);
    }
}

/* A move that nobody waits for in its phase goes on in the next one. */
static void into_the_next_phase(void **state)
{
    (void)state;
    const dsi_sim_step steps[] = {start(DS_PHASE_FORWARD, DSI_STREAM_DISK_READ, 5.0),
                                  run(DS_PHASE_FORWARD, 2.0), run(DS_PHASE_BACKWARD, 1.0),
                                  wait_for(DS_PHASE_BACKWARD, 0, DSI_STREAM_DISK_READ),
                                  run(DS_PHASE_BACKWARD, 1.0)};
    dsi_timeline *t = simulate(&overlapping, steps, 5, 1);
    near(t->phases[DS_PHASE_FORWARD].seconds, 2.0);
    near(t->phases[DS_PHASE_FORWARD].exposed_moves, 0.0);
    near(t->phases[DS_PHASE_BACKWARD].seconds, 4.0);
    near(t->phases[DS_PHASE_BACKWARD].exposed_moves, 2.0);
    near(t->step.seconds, 6.0);
    near(t->step.moves, 5.0);
    assert_int_equal(t->n_events, 5); /* three runs, the move, the stall */
    const dsi_sim_event *move = &t->events[t->phase_begin[DS_PHASE_FORWARD]];
    move = move->step == 0 ? move : move + 1;
    near(move->start, 0.0);
    near(move->end, 5.0); /* behind the end of its phase */
    dsi_timeline_destroy(&t);
}

/* A move that the next step waits for: 2 s of 5 go on beside its computation, then it is waited
 * for. The step that counts begins with the move of the one before and leaves its own. */
static void into_the_next_step(void **state)
{
    (void)state;
    const dsi_sim_step steps[] = {run(DS_PHASE_FORWARD, 2.0),
                                  wait_for(DS_PHASE_FORWARD, 4, DSI_STREAM_DISK_WRITE),
                                  run(DS_PHASE_FORWARD, 1.0), run(DS_PHASE_BACKWARD, 3.0),
                                  start(DS_PHASE_BACKWARD, DSI_STREAM_DISK_WRITE, 5.0)};
    dsi_timeline *t = simulate(&overlapping, steps, 5, 1);
    near(t->phases[DS_PHASE_FORWARD].seconds, 6.0);
    near(t->phases[DS_PHASE_FORWARD].exposed_moves, 3.0);
    near(t->phases[DS_PHASE_BACKWARD].seconds, 3.0);
    near(t->step.seconds, 9.0);
    near(t->step.moves, 5.0);
    near(t->step.exposed_moves, 3.0);
    assert_int_equal(t->n_events, 5); /* three runs, the stall, the move */
    const dsi_sim_event *move = &t->events[t->n_events - 1];
    assert_int_equal(move->step, 4);
    near(move->start, 3.0);
    near(move->end, 8.0);
    dsi_timeline_destroy(&t);
}

/* Of several micro-batches the first alone waits for the moves of the step before. */
static void into_the_next_of_several(void **state)
{
    (void)state;
    const dsi_sim_step steps[] = {run(DS_PHASE_FORWARD, 2.0),
                                  wait_for(DS_PHASE_FORWARD, 4, DSI_STREAM_DISK_WRITE),
                                  run(DS_PHASE_FORWARD, 1.0), run(DS_PHASE_BACKWARD, 3.0),
                                  start(UPDATE, DSI_STREAM_DISK_WRITE, 5.0)};
    dsi_timeline *t = simulate(&overlapping, steps, 5, 4);
    double exposed = 0.0;
    near(t->phases[DS_PHASE_FORWARD].seconds, 6.0); /* of the first */
    near(t->step.seconds, 6.0 + 3.0 * 3.0 + 4.0 * 3.0);
    near(t->step.exposed_moves, 3.0);
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        exposed += t->rows[i].exposed;
    }
    near(exposed, 3.0);
    dsi_timeline_destroy(&t);
}

/* The trace is JSON with every event once for each micro-batch; text and JSON of the timeline hold
 * its sums. */
static void texts(void **state)
{
    (void)state;
    const dsi_sim_step steps[] = {start(DS_PHASE_FORWARD, DSI_STREAM_COMM, 3.0),
                                  run(DS_PHASE_FORWARD, 2.0),
                                  wait_for(DS_PHASE_FORWARD, 0, DSI_STREAM_COMM), run(UPDATE, 4.0)};
    dsi_timeline *t = simulate(&overlapping, steps, 4, 5);
    dsi_buf text = dsi_buf_make(1 << 20);
    dsi_trace trace = dsi_trace_begin(&text);
    dsi_trace_timeline(&trace, t, 7, "a plan", 2);
    dsi_trace_end(&trace);
    json_error_t error;
    json_t *root = json_loads(dsi_buf_text(&text), 0, &error);
    assert_non_null(root);
    const json_t *events = json_object_get(root, "traceEvents");
    int spans = 0;
    int n_phases = 0;
    double end = 0.0;
    for (size_t i = 0; i < json_array_size(events); ++i) {
        const json_t *e = json_array_get(events, i);
        assert_int_equal(json_integer_value(json_object_get(e, "pid")), 7);
        const bool whole = json_integer_value(json_object_get(e, "tid")) == DSI_TRACE_PHASES;
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") == 0) {
            spans += !whole;
            n_phases += whole;
            end = json_number_value(json_object_get(e, "ts")) +
                  json_number_value(json_object_get(e, "dur"));
        }
    }
    assert_int_equal(spans, 2 * 3 + 1);
    assert_int_equal(n_phases, 2 * 1 + 1 + 1); /* forward twice, update, the step */
    near(end, 1e6 * (2 * 3.0 + 4.0));
    json_decref(root);
    dsi_buf_clear(&text);
    dsi_timeline_json(t, &text);
    root = json_loads(dsi_buf_text(&text), 0, &error);
    assert_non_null(root);
    near(json_number_value(json_object_get(json_object_get(root, "step"), "seconds")), 19.0);
    json_decref(root);
    dsi_buf_clear(&text);
    dsi_timeline_print(t, &text);
    assert_non_null(strstr(dsi_buf_text(&text), "all_gather"));
    assert_non_null(strstr(dsi_buf_text(&text), "19.00 s"));
    dsi_buf_free(&text);
    dsi_timeline_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partly_hidden),
        cmocka_unit_test(degrees_of_overlap),
        cmocka_unit_test(queues),
        cmocka_unit_test(streams_wait_for_each_other),
        cmocka_unit_test(disk_shared),
        cmocka_unit_test(composition),
        cmocka_unit_test(side_phase),
        cmocka_unit_test(malformed),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(texts),
        cmocka_unit_test(into_the_next_phase),
        cmocka_unit_test(into_the_next_step),
        cmocka_unit_test(into_the_next_of_several),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
