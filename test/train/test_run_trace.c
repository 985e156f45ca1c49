/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * The timeline of a run: every step of the plan on every rank, once for each time it ran, named as
 * the plan's trace names it; nothing overlaps within a thread; recording changes no bits.
 */
#include "accel/cpu/cpu_features.h"
#include "base/buf.h"
#include "common/engine_hash.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "common/sim_ranks.h"
#include "common/small_run.h"
#include "cost/trace.h"
#include "plan/plan_sim.h"
#include "train/run_trace_spans.h"

#include <deepspeed/profile.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, FIRST = 2, LAST = 3, ACCUMULATION = 2, MOST_RANKS = 2 };

static ds_ctx *ctx;
static char *folder;
static parity_case model;

typedef struct span {
    int64_t pid, tid, start, end; /* ns */
    uint32_t node;
    uint64_t step;
    const char *name, *category, *scope, *phase;
    double flops, bytes;
} span;

typedef struct trace {
    json_t *root;
    span *spans;
    size_t n;
} trace;

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static span read_span(const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const json_t *node = json_object_get(args, "node");
    const span s = {.pid = json_integer_value(json_object_get(event, "pid")),
                    .tid = json_integer_value(json_object_get(event, "tid")),
                    .start = llround(1e3 * number(event, "ts")),
                    .end = llround(1e3 * number(event, "ts")) + llround(1e3 * number(event, "dur")),
                    .node = node != NULL ? (uint32_t)json_number_value(node) : DS_NONE,
                    .step = (uint64_t)number(args, "step"),
                    .name = json_string_value(json_object_get(event, "name")),
                    .category = json_string_value(json_object_get(event, "cat")),
                    .scope = json_string_value(json_object_get(args, "scope")),
                    .phase = json_string_value(json_object_get(args, "phase")),
                    .flops = number(args, "flops"),
                    .bytes = number(args, "bytes")};
    assert_non_null(s.name);
    assert_non_null(s.category);
    assert_true(number(event, "ts") >= 0.0 && number(event, "dur") >= 0.0);
    return s;
}

static trace read_trace(const char *text)
{
    json_error_t error;
    trace t = {.root = json_loads(text, JSON_REJECT_DUPLICATES, &error)};
    if (t.root == NULL) {
        fail_msg("no JSON: line %d: %s", error.line, error.text);
    }
    const json_t *events = json_object_get(t.root, "traceEvents");
    t.spans = calloc(json_array_size(events) + 1, sizeof *t.spans);
    assert_non_null(t.spans);
    for (size_t i = 0; i < json_array_size(events); ++i) {
        const json_t *event = json_array_get(events, i);
        const char *ph = json_string_value(json_object_get(event, "ph"));
        if (strcmp(ph, "X") == 0) {
            t.spans[t.n++] = read_span(event);
        } else {
            assert_string_equal(ph, "M");
        }
    }
    return t;
}

static void drop(trace *t)
{
    json_decref(t->root);
    free(t->spans);
}

static int by_thread(const void *a, const void *b)
{
    const span *x = a;
    const span *y = b;
    const int64_t order[] = {x->pid - y->pid, x->tid - y->tid, x->start - y->start,
                             y->end - x->end};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; ++i) {
        if (order[i] != 0) {
            return order[i] < 0 ? -1 : 1;
        }
    }
    return 0;
}

/* Spans of a stream follow each other; those of the thread of phases nest, a step around its
 * phases. Sorts the spans. */
static void check_threads(trace *t)
{
    qsort(t->spans, t->n, sizeof *t->spans, by_thread);
    const span *step = NULL;
    const span *before = NULL;
    for (size_t i = 0; i < t->n; ++i) {
        const span *s = &t->spans[i];
        if (s->tid == DSI_TRACE_PHASES) {
            step = strcmp(s->name, "step") == 0 ? s : step;
            assert_true(s == step || s->pid != step->pid || s->end <= step->end);
        } else if (s->end > s->start) { /* of no length: anywhere */
            if (before != NULL && s->pid == before->pid && s->tid == before->tid &&
                s->start < before->end) {
                fail_msg("%s (%s, node %u) begins %lld ns before %s (node %u) of its thread ends",
                         s->name, s->scope, s->node, (long long)(before->end - s->start),
                         before->name, before->node);
            }
            before = s;
        }
    }
}

/* ---- one rank ---- */

static dsi_engine_spec make_spec(void)
{
    dsi_engine_spec spec = parity_spec(&model, DS_DTYPE_BF16, dsi_cpu_isa());
    spec.train.accumulation = ACCUMULATION;
    spec.train.max_norm = 0.5;
    return spec;
}

static ds_status run_steps(ds_engine *engine, int n)
{
    for (int i = 0; i < n * (int)ds_engine_accumulation(engine); ++i) {
        DS_TRY(ds_engine_forward(engine, &model.batch));
        DS_TRY(ds_engine_eval_batch(engine, &model.batch, NULL, NULL)); /* is not recorded */
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
    }
    return DS_OK;
}

/* The same plan's simulated trace, on any device. */
static trace planned(const dsi_plan *plan)
{
    dsi_device device;
    dsi_sim_step *steps = NULL;
    dsi_timeline *timeline = NULL;
    dsi_buf text = dsi_buf_make(1 << 26);
    CHECK_OK(ctx, dsi_device_load(ctx, "h100-sxm", &device));
    CHECK_OK(ctx, dsi_plan_sim_steps(plan, 1, NULL, &steps));
    const dsi_sim_spec spec = {.device = &device,
                               .steps = steps,
                               .phases = &plan->phases,
                               .n_steps = plan->n_steps,
                               .accumulation = ACCUMULATION,
                               .peak_dtype = DS_DTYPE_BF16};
    CHECK_OK(ctx, dsi_simulate(ctx, &spec, &timeline));
    dsi_trace writer = dsi_trace_begin(&text);
    dsi_trace_timeline(&writer, timeline, 0, "planned rank", 0);
    dsi_trace_end(&writer);
    const trace t = read_trace(dsi_buf_text(&text));
    dsi_buf_free(&text);
    dsi_timeline_destroy(&timeline);
    free(steps);
    return t;
}

static const span *find(const trace *t, uint32_t node)
{
    for (size_t i = 0; i < t->n; ++i) {
        if (t->spans[i].node == node) {
            return &t->spans[i];
        }
    }
    fail_msg("no span of step %u", node);
    return NULL;
}

static void check_same(const span *got, const span *want)
{
    assert_int_equal(got->tid, want->tid);
    assert_string_equal(got->name, want->name);
    assert_string_equal(got->category, want->category);
    assert_string_equal(got->scope, want->scope);
    assert_string_equal(got->phase, want->phase);
    assert_true(got->flops == want->flops && got->bytes == want->bytes);
}

static uint64_t count(const trace *t, uint32_t node, uint64_t step)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->n; ++i) {
        n += t->spans[i].node == node && t->spans[i].step == step;
    }
    return n;
}

static void as_the_plan_says(void **state)
{
    const dsi_engine_spec spec = make_spec();
    const char *path = scratch_path(folder, "one.json");
    uint64_t hashes[2] = {0};
    (void)state;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    CHECK_OK(ctx, run_steps(engine, STEPS));
    CHECK_OK(ctx, engine_hash(ctx, engine, &hashes[0]));
    ds_engine_destroy(&engine);

    engine = parity_engine(ctx, &model, &spec);
    CHECK_OK(ctx, ds_engine_trace_start(engine, FIRST, LAST));
    CHECK_OK(ctx, run_steps(engine, LAST - 1));
    assert_false(ds_engine_trace_is_done(engine));
    CHECK_OK(ctx, run_steps(engine, 1));
    assert_true(ds_engine_trace_is_done(engine));
    CHECK_OK(ctx, run_steps(engine, STEPS - LAST));
    assert_true(engine->trace->n == engine->trace->capacity && engine->trace->n_lost == 0);
    CHECK_OK(ctx, ds_engine_trace_save(engine, path));
    CHECK_OK(ctx, engine_hash(ctx, engine, &hashes[1]));
    assert_true(hashes[0] == hashes[1]);

    size_t n_bytes = 0;
    char *text = scratch_read(path, &n_bytes);
    trace got = read_trace(text);
    trace plan = planned(engine->train_plan);
    for (uint32_t s = 0; s < engine->train_plan->n_steps; ++s) {
        const ds_phase phase = engine->train_plan->steps[s].phase;
        const uint64_t runs = phase <= DS_PHASE_BACKWARD ? ACCUMULATION : 1;
        check_same(find(&got, s), find(&plan, s));
        for (uint64_t step = 1; step <= STEPS; ++step) {
            assert_int_equal(count(&got, s, step), step < FIRST || step > LAST ? 0 : runs);
        }
    }
    check_threads(&got);
    check_threads(&plan);
    drop(&got);
    drop(&plan);
    free(text);
    ds_engine_destroy(&engine);
}

/* The host's own work and the phases stand in the trace too, and the spans of a step fill it. */
static void steps_are_filled(void **state)
{
    const dsi_engine_spec spec = make_spec();
    const char *path = scratch_path(folder, "full.json");
    int64_t thread = 0;
    int64_t steps = 0;
    int64_t phases = 0;
    int n_host = 0;
    (void)state;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    CHECK_OK(ctx, ds_engine_trace_start(engine, 1, 1));
    for (int i = 0; i < ACCUMULATION; ++i) {
        CHECK_OK(ctx, ds_engine_forward(engine, &model.batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    CHECK_OK(ctx, ds_engine_trace_save(engine, path));
    size_t n_bytes = 0;
    char *text = scratch_read(path, &n_bytes);
    trace got = read_trace(text);
    for (size_t i = 0; i < got.n; ++i) {
        const span *s = &got.spans[i];
        const int64_t ns = s->end - s->start;
        n_host += strcmp(s->category, "host") == 0;
        thread += s->tid == DSI_TRACE_THREAD ? ns : 0;
        steps += strcmp(s->name, "step") == 0 ? ns : 0;
        phases += strcmp(s->category, "phase") == 0 ? ns : 0;
    }
    assert_int_equal(n_host, ACCUMULATION + 1); /* batches, and one clearing of gradients */
    assert_true(thread <= phases && phases <= steps);
    assert_true((double)thread > 0.5 * (double)steps);
    drop(&got);
    free(text);
    ds_engine_destroy(&engine);
}

/* ---- two ranks, with everything that moves ---- */

typedef struct job {
    const char *path;
    dsi_residency away;
    uint64_t spans_wanted; /* 0: a rank failed */
} job;

static uint32_t trace_rank(ds_ctx *rank_ctx, dsi_comm *comm, void *arg)
{
    job *j = arg;
    ds_engine *engine = NULL;
    dsi_engine_spec spec = make_spec();
    spec.zero = (dsi_zero_spec){.stage = 3,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 20000,
                                .gather_bucket = 20000,
                                .max_live = 20000,
                                .max_reuse_distance = 20000};
    spec.overlap = true;
    spec.prefetch = 20000;
    spec.offload = small_away(folder, j->away, j->away);
    const ds_engine_params params = {
        .model = model.model, .seq_length = model.n_seq, .weights = model.folder, .comm = comm};
    ds_status status = dsi_engine_create(rank_ctx, &params, &spec, &engine);
    status = status < 0 ? status : ds_engine_trace_start(engine, FIRST, LAST);
    status = status < 0 ? status : run_steps(engine, LAST);
    status = status < 0 ? status : ds_engine_trace_save(engine, j->path);
    if (status < 0) {
        (void)fprintf(stderr, "rank %u: %s\n", comm->rank, ds_ctx_error(rank_ctx));
    } else if (comm->rank == 0) {
        const uint32_t *begin = engine->train_plan->phase_begin;
        j->spans_wanted = (LAST - FIRST + 1) * (ACCUMULATION * begin[DS_PHASE_STEP] +
                                                (begin[DS_MAX_PHASES] - begin[DS_PHASE_STEP]));
    }
    ds_engine_destroy(&engine);
    return status < 0;
}

static void check_ranks(const char *path, uint64_t wanted, dsi_sim_stream in, dsi_sim_stream out)
{
    size_t n_bytes = 0;
    char *text = scratch_read(path, &n_bytes);
    trace got = read_trace(text);
    for (int64_t pid = DSI_TRACE_RANKS; pid < DSI_TRACE_RANKS + MOST_RANKS; ++pid) {
        uint64_t on_thread = 0;
        uint64_t starts = 0;
        int64_t busy[DSI_TRACE_STREAMS + DSI_STREAM_COUNT] = {0};
        for (size_t i = 0; i < got.n; ++i) {
            const span *s = &got.spans[i];
            if (s->pid == pid) {
                on_thread += s->tid == DSI_TRACE_THREAD && s->node != DS_NONE;
                starts += strcmp(s->category, "start") == 0;
                busy[s->tid] += s->end - s->start;
                assert_true(s->tid == DSI_TRACE_THREAD || s->tid == DSI_TRACE_PHASES ||
                            s->bytes > 0.0);
            }
        }
        assert_int_equal(on_thread, wanted);
        assert_true(starts > 0 && busy[DSI_TRACE_STREAMS + DSI_STREAM_COMM] > 0 &&
                    busy[DSI_TRACE_STREAMS + in] > 0 && busy[DSI_TRACE_STREAMS + out] > 0);
        assert_true(busy[DSI_TRACE_STREAMS + DSI_STREAM_COMM] + busy[DSI_TRACE_STREAMS + in] +
                        busy[DSI_TRACE_STREAMS + out] <
                    3 * busy[DSI_TRACE_PHASES]);
    }
    check_threads(&got);
    assert_int_equal(got.spans[0].pid, DSI_TRACE_RANKS);
    assert_int_equal(got.spans[got.n - 1].pid, DSI_TRACE_RANKS + MOST_RANKS - 1);
    drop(&got);
    free(text);
}

static void ranks_with_offload(void **state)
{
    job disk = {.path = scratch_path(folder, "disk.json"), .away = DSI_RESIDENCY_DISK};
    (void)state;
    assert_int_equal(sim_ranks_run(MOST_RANKS, NULL, trace_rank, &disk), 0);
    check_ranks(disk.path, disk.spans_wanted, DSI_STREAM_DISK_READ, DSI_STREAM_DISK_WRITE);
    job host = {.path = scratch_path(folder, "host.json"), .away = DSI_RESIDENCY_HOST};
    assert_int_equal(sim_ranks_run(MOST_RANKS, NULL, trace_rank, &host), 0);
    check_ranks(host.path, host.spans_wanted, DSI_STREAM_HOST_IN, DSI_STREAM_HOST_OUT);
}

static ds_status keep_text(void *user, const void *data, size_t n)
{
    dsi_buf_append(user, data, n);
    return DS_OK;
}

/* Records of far more steps than the writer's text holds at a time: all of them are written. */
static void many_steps(void **state)
{
    enum { MANY = 20000 };
    const dsi_engine_spec spec = make_spec();
    dsi_run_record *records = calloc(MANY, sizeof *records);
    dsi_trace_writer w = {0};
    (void)state;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    CHECK_OK(ctx, ds_engine_trace_start(engine, 1, 2));
    free(engine->trace->records);
    engine->trace->records = records;
    engine->trace->n = MANY;
    dsi_buf text = dsi_buf_make(SIZE_MAX);
    CHECK_OK(ctx, dsi_trace_writer_open(&w, engine, keep_text, &text));
    w.steps[0].kind = DSI_STEP_RUN; /* as one that another stream did while the thread waited */
    w.steps[0].stream = DSI_STREAM_DISK_READ;
    assert_non_null(records);
    for (uint32_t i = 0; i < MANY; ++i) {
        records[i] = (dsi_run_record){.node = 0, .step = i, .begin = i, .end = i + 0.5};
    }
    CHECK_OK(ctx, dsi_trace_writer_rank(&w, 0.0));
    CHECK_OK(ctx, dsi_trace_writer_end(&w));
    dsi_trace_writer_close(&w);
    trace got = read_trace(dsi_buf_text(&text));
    assert_int_equal(got.n, 4 * MANY); /* of the step, its phase, the thread and the stream */
    drop(&got);
    dsi_buf_free(&text);
    ds_engine_destroy(&engine);
}

/* A rank that cannot write fails all, and a trace that was not written is still there. */
static void refusals(void **state)
{
    const dsi_engine_spec spec = make_spec();
    (void)state;
    ds_engine *engine = parity_engine(ctx, &model, &spec);
    assert_false(ds_engine_trace_is_done(engine));
    CHECK_FAILS(ctx, ds_engine_trace_save(engine, scratch_path(folder, "x")), DS_ERR_STATE,
                "no trace is recorded");
    CHECK_FAILS(ctx, ds_engine_trace_start(engine, 0, 1), DS_ERR_ARG, "the next one is 1");
    CHECK_FAILS(ctx, ds_engine_trace_start(engine, 3, 2), DS_ERR_ARG, "steps 3 to 2");
    CHECK_FAILS(ctx, ds_engine_trace_start(engine, 1, UINT64_MAX), DS_ERR_LIMIT, "steps fit");
    CHECK_OK(ctx, ds_engine_forward(engine, &model.batch));
    CHECK_FAILS(ctx, ds_engine_trace_start(engine, 1, 1), DS_ERR_STATE, "between two");
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine)); /* no boundary yet */
    CHECK_FAILS(ctx, ds_engine_trace_start(engine, 1, 1), DS_ERR_STATE, "between two");
    CHECK_OK(ctx, ds_engine_forward(engine, &model.batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_trace_start(engine, 2, 2));
    CHECK_FAILS(ctx, ds_engine_trace_start(engine, 3, 3), DS_ERR_STATE, "being traced");
    CHECK_OK(ctx, run_steps(engine, 1));
    CHECK_FAILS(ctx, ds_engine_trace_save(engine, scratch_path(folder, "none/x")), DS_ERR_NOT_FOUND,
                "none: No such");
    CHECK_OK(ctx, ds_engine_trace_save(engine, scratch_path(folder, "late.json")));
    CHECK_OK(ctx, ds_engine_trace_start(engine, 9, 9));
    ds_engine_trace_drop(engine);
    ds_engine_trace_drop(engine);
    ds_engine_destroy(&engine);
}

static int setup(void **state)
{
    (void)state;
    folder = scratch_make();
    const ds_status status = ds_ctx_create(NULL, &ctx);
    if (status >= 0) {
        parity_open(ctx, "llama3", &model);
    }
    return status;
}

static int teardown(void **state)
{
    (void)state;
    parity_close(&model);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_plan_says),   cmocka_unit_test(steps_are_filled),
        cmocka_unit_test(ranks_with_offload), cmocka_unit_test(many_steps),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
