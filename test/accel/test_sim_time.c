/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated clock of `sim`: what streams, events and the host make of stated times, and how
 * much of an offload's transfers is hidden behind kernels. No real clock is read: all is exact. */
#include "accel/sim/sim_device.h"
#include "common/check.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include <stdio.h>
#include <string.h>

enum { BYTES = 40000, COPY = BYTES / 2, FILL = 3000 }; /* nanoseconds, of options below */
static const char options[] = "copy_gbps=2,kernel_us=3";

static ds_ctx *ctx;
static char *folder;

typedef struct bench {
    ds_accel_device *device;
    ds_accel_stream *stream[2];
    ds_accel_event *event[2]; /* of each stream */
    unsigned char *memory;
} bench;

static unsigned char host_bytes[BYTES];

static bench begin(const char *with)
{
    const ds_accel_streams *t = dsi_accel_sim.streams;
    bench b = {0};
    void *memory = NULL;
    CHECK_OK(ctx, dsi_accel_sim.open(ctx, with, &b.device));
    CHECK_OK(ctx, dsi_accel_sim.memory->alloc(b.device, ctx, 2 * BYTES, "a test", &memory));
    b.memory = memory;
    CHECK_OK(ctx, t->create(b.device, ctx, &b.stream[0]));
    CHECK_OK(ctx, t->create(b.device, ctx, &b.stream[1]));
    CHECK_OK(ctx, t->event_create(b.device, ctx, &b.event[0]));
    CHECK_OK(ctx, t->event_create(b.device, ctx, &b.event[1]));
    return b;
}

/* Waits for the streams; the times. */
static sim_times end(bench *b)
{
    const ds_accel_streams *t = dsi_accel_sim.streams;
    const ds_kernel_call *failed = NULL;
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(ctx, t->synchronize(b->stream[i], &failed));
    }
    for (int i = 0; i < 2; ++i) { /* nobody waits any more */
        t->destroy(&b->stream[i]);
        t->event_destroy(&b->event[i]);
    }
    const sim_times times = dsi_sim_times(b->device);
    dsi_accel_sim.memory->release(b->device, b->memory, 2 * BYTES);
    dsi_accel_sim.close(&b->device);
    return times;
}

static void copy(const bench *b, int stream)
{
    unsigned char *to = b->memory + (ptrdiff_t)stream * BYTES;
    CHECK_OK(ctx, dsi_accel_sim.streams->copy(b->stream[stream], to, host_bytes, BYTES));
}

static void fill(const bench *b, int stream)
{
    unsigned char *to = b->memory + (ptrdiff_t)stream * BYTES;
    CHECK_OK(ctx, dsi_accel_sim.streams->fill(b->stream[stream], to, 1, 9));
}

static void work_takes_what_is_stated(void **state)
{
    (void)state;
    bench b = begin(options);
    copy(&b, 0);
    fill(&b, 0);
    fill(&b, 1);
    CHECK_OK(ctx, dsi_accel_sim.streams->copy(b.stream[1], b.memory + BYTES, host_bytes, 3));
    const sim_times t = end(&b);
    assert_int_equal(t.n_streams, 2);
    assert_int_equal(t.copies[0], COPY);
    assert_int_equal(t.kernels[0], FILL);
    assert_int_equal(t.copies[1], 2); /* a part of a nanosecond counts whole */
    assert_int_equal(t.kernels[1], FILL);
    assert_int_equal(t.total, COPY + FILL); /* streams are beside one another */
    b = begin("");
    copy(&b, 0);
    fill(&b, 1);
    assert_int_equal(end(&b).total, 0);
}

/* Stream 1 begins behind the event; a record made after the wait does not hold it. */
static void a_wait_moves_a_stream_to_the_record(void **state)
{
    const ds_accel_streams *t = dsi_accel_sim.streams;
    (void)state;
    bench b = begin(options);
    CHECK_OK(ctx, t->wait(b.stream[1], b.event[0])); /* of nothing */
    copy(&b, 0);
    CHECK_OK(ctx, t->record(b.stream[0], b.event[0]));
    CHECK_OK(ctx, t->wait(b.stream[1], b.event[0]));
    fill(&b, 0);
    CHECK_OK(ctx, t->record(b.stream[0], b.event[0]));
    copy(&b, 1);
    assert_int_equal(end(&b).total, 2 * COPY);
    b = begin(options); /* behind the newest record: the fill too */
    copy(&b, 0);
    CHECK_OK(ctx, t->record(b.stream[0], b.event[0]));
    fill(&b, 0);
    CHECK_OK(ctx, t->record(b.stream[0], b.event[0]));
    CHECK_OK(ctx, t->wait(b.stream[1], b.event[0]));
    copy(&b, 1);
    assert_int_equal(end(&b).total, 2 * COPY + FILL);
}

/* What is queued behind a wait of the host begins when that is over, on every stream. */
static void the_host_waits(void **state)
{
    const ds_kernel_call *failed = NULL;
    (void)state;
    bench b = begin(options);
    copy(&b, 0);
    CHECK_OK(ctx, dsi_accel_sim.streams->synchronize(b.stream[0], &failed));
    fill(&b, 1);
    assert_int_equal(end(&b).total, COPY + FILL);
    b = begin(options);
    fill(&b, 0);
    CHECK_OK(ctx, dsi_accel_sim.memory->copy(b.device, b.memory, host_bytes, BYTES));
    fill(&b, 1);
    const sim_times t = end(&b);
    assert_int_equal(t.host_copies, COPY);
    assert_int_equal(t.total, COPY + FILL);
}

static void seeds_and_turns_change_no_time(void **state)
{
    const ds_accel_streams *t = dsi_accel_sim.streams;
    uint64_t first = 0;
    (void)state;
    for (int seed = 0; seed < 20; ++seed) {
        char text[DSI_ACCEL_OPTIONS];
        (void)snprintf(text, sizeof text, "%s,seed=%d,turn=%d", options, seed, 1 + 997 * seed);
        bench b = begin(text);
        for (int i = 0; i < 30; ++i) {
            copy(&b, i % 2);
            CHECK_OK(ctx, t->record(b.stream[i % 2], b.event[i % 2]));
            fill(&b, i % 3 == 0);
            CHECK_OK(ctx, t->wait(b.stream[i % 5 == 0], b.event[i % 5 != 0]));
        }
        const uint64_t total = end(&b).total;
        first = seed == 0 ? total : first;
        assert_int_equal(total, first);
    }
    assert_true(first > 30 * COPY / 2);
}

/* ---- a training run -------------------------------------------------------------------------- */

/* What the device says when it is closed. */
static unsigned long long said_total, said_kernels, said_copies, said_host, said_most;

static void hear(void *user, ds_log_level level, const char *line)
{
    unsigned long long a = 0;
    unsigned long long b = 0;
    unsigned row = 0;
    const char *at = strstr(line, "accelerator sim: ");
    (void)user;
    (void)level;
    if (at == NULL) {
        return;
    }
    if (sscanf(at, "accelerator sim: %llu ns of simulated time, host copies %llu", &a, &b) == 2) {
        said_total = a;
        said_host = b;
        said_kernels = said_copies = said_most = 0;
    } else if (sscanf(at, "accelerator sim: stream %u: kernels %llu ns, copies %llu", &row, &a,
                      &b) == 3) {
        said_kernels += a;
        said_copies += b;
        said_most = a + b > said_most ? a + b : said_most;
    }
}

/* Trains with all in host memory; ahead: how far transfers begin before they are needed. */
static void train(const ds_model *model, const char *accelerator, uint64_t ahead)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    small_batch room;
    CHECK_OK(ctx, dsi_accel_choose(ctx, accelerator, &spec.accel));
    spec.offload = small_away(folder, DSI_RESIDENCY_HOST, DSI_RESIDENCY_HOST);
    spec.offload.read_ahead = spec.offload.update_ahead = ahead;
    spec.offload.write_behind = ahead;
    said_total = 0;
    ds_engine *engine = small_engine(ctx, model, &spec);
    for (int32_t step = 0; step < 3; ++step) {
        const ds_batch batch = small_feed(step, &room);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    ds_engine_destroy(&engine);
    assert_true(said_total > 0);
}

/* Transfers that begin early hide behind kernels: the whole is less than the sum and not less than
 * what is busy longest. Begun when they are needed, they hide less. */
static void overlap_hides_transfers(void **state)
{
    ds_model *model = small_model(ctx, folder, small_llama);
    (void)state;
    train(model, "sim:copy_gbps=4,kernel_us=10", 60000);
    const unsigned long long total = said_total;
    const unsigned long long copies = said_copies;
    assert_true(said_kernels > 0 && copies > 0 && said_most < said_kernels + copies);
    assert_true(total >= said_most + said_host);
    assert_true(total < said_kernels + copies / 2 + said_host); /* most is hidden */
    train(model, "sim:copy_gbps=4,kernel_us=10,seed=5,turn=100", 60000);
    assert_true(said_total == total && said_copies == copies);
    train(model, "sim:copy_gbps=4,kernel_us=10", 0);
    assert_true(said_total > total + copies / 4);
    ds_model_destroy(&model);
}

static int open_all(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.log = hear;
    params.n_threads = 2;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx);
}

static int close_all(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_takes_what_is_stated),
        cmocka_unit_test(a_wait_moves_a_stream_to_the_record),
        cmocka_unit_test(the_host_waits),
        cmocka_unit_test(seeds_and_turns_change_no_time),
        cmocka_unit_test(overlap_hides_transfers),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
