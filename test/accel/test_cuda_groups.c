/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of the accelerator `cuda` among four processes, over stand-ins of the driver and of
 * NCCL: every kind, in each dtype, at sizes that leave padding and at none, has the bits of shared
 * memory's transport (LAW 4b), in several orders; a rank that does not come is named.
 */
#include "accel/accel.h"
#include "comm/shm.h"
#include "common/check.h"
#include "common/standin_load.h"
#include "exec/exec_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, MOST = 1000, PARTS = 2 };

typedef struct side {
    ds_ctx *ctx;
    const ds_accel *cuda;
    ds_accel_device *device;
    dsi_comm *control, *group;
    uint32_t rank;
} side;

static void open_side(side *s, uint32_t rank, const char *job, double timeout)
{
    dsi_accel_choice choice;
    *s = (side){.ctx = check_ctx(1), .rank = rank};
    const dsi_shm_params params = {.rank = rank, .size = RANKS, .job = job, .timeout = timeout};
    CHECK_OK(s->ctx, dsi_comm_shm_open(s->ctx, &params, &s->control));
    s->control->timeout = timeout;
    CHECK_OK(s->ctx, dsi_accel_choose(s->ctx, "cuda", &choice));
    s->cuda = choice.accel;
    CHECK_OK(s->ctx, s->cuda->open(s->ctx, "", &s->device));
    CHECK_OK(s->ctx, dsi_exec_group_open(s->ctx, s->cuda, s->device, s->control, &s->group));
    CHECK_OK(s->ctx, dsi_exec_group_reserve(s->group, PARTS * (MOST + RANKS) * 8, PARTS));
}

static void close_side(side *s)
{
    dsi_comm_destroy(&s->group);
    s->cuda->close(&s->device);
    dsi_comm_destroy(&s->control);
    ds_ctx_destroy(&s->ctx);
}

/* Bits that are sums, with infinities, NaN, zeros of both signs. */
static void fill(unsigned char *to, ds_dtype dtype, size_t n, uint32_t seed)
{
    static const float odd[] = {0.0f, -0.0f, 1e30f, -1e30f, 1e-40f};
    uint32_t x = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < n; ++i) {
        x = x * 1664525u + 1013904223u;
        float value = (float)(int32_t)x * 1e-6f;
        value = x >> 27 == 0 ? odd[x % 5] : value;
        value = i == 77 && seed % 3 == 1 ? 1.0f / 0.0f : value;
        value = i == 77 && seed % 3 == 2 ? -1.0f / 0.0f : value;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        const uint16_t half = (uint16_t)(bits >> 16);
        switch (dtype) {
        case DS_DTYPE_F32:
            memcpy(to + i * 4, &bits, 4);
            break;
        case DS_DTYPE_BF16:
            memcpy(to + i * 2, &half, 2);
            break;
        case DS_DTYPE_F16:
            to[2 * i] = (unsigned char)(x >> 8);
            to[2 * i + 1] = (unsigned char)(x >> 16); /* whatever it is: NaN too */
            break;
        default:
            for (size_t b = 0; b < ds_dtype_bytes(dtype); ++b) {
                to[i * ds_dtype_bytes(dtype) + b] = (unsigned char)(x >> (8 * (b % 4)));
            }
        }
    }
}

/* One call on the host and on devices. */
static void compare(side *s, const dsi_comm_call *given, size_t count, bool in_place)
{
    static unsigned char host_in[PARTS][MOST * 8];
    static unsigned char host_out[PARTS][(MOST + RANKS) * 8];
    static unsigned char back[(MOST + RANKS) * 8];
    const size_t width = ds_dtype_bytes(given->dtype);
    const size_t room = sizeof host_out[0];
    const size_t each[RANKS] = {count / 4, count / 2, 0, count - count / 4 - count / 2};
    size_t counts_in[RANKS];
    size_t counts_out[RANKS];
    dsi_comm_part host[PARTS];
    dsi_comm_part own[PARTS];
    void *in[PARTS] = {NULL};
    void *out[PARTS] = {NULL};
    dsi_comm_call call = *given;
    for (uint32_t r = 0; r < RANKS; ++r) { /* row of the rank, column of the rank */
        counts_in[r] = each[(s->rank + r) % RANKS];
        counts_out[r] = each[(r + s->rank) % RANKS];
    }
    for (int p = 0; p < PARTS; ++p) {
        fill(host_in[p], call.dtype, count, s->rank + 3 * (uint32_t)p + 1);
        memset(host_out[p], 0x3c, room);
        CHECK_OK(s->ctx, s->cuda->memory->alloc(s->device, s->ctx, room, "in", &in[p]));
        CHECK_OK(s->ctx, s->cuda->memory->copy(s->device, in[p], host_in[p], MOST * 8));
        out[p] = in[p];
        if (!in_place) {
            CHECK_OK(s->ctx, s->cuda->memory->alloc(s->device, s->ctx, room, "out", &out[p]));
            CHECK_OK(s->ctx, s->cuda->memory->copy(s->device, out[p], host_out[p], room));
        } else {
            memcpy(host_out[p], host_in[p], MOST * 8);
        }
        host[p] = (dsi_comm_part){.in = in_place ? host_out[p] : host_in[p],
                                  .out = host_out[p],
                                  .count = count,
                                  .counts_in = counts_in,
                                  .counts_out = counts_out};
        own[p] = host[p];
        own[p].in = in[p];
        own[p].out = out[p];
    }
    call.n_parts = PARTS;
    call.parts = host;
    CHECK_OK(s->ctx, dsi_comm_run(s->control, &call));
    call.parts = own;
    CHECK_OK(s->ctx, dsi_comm_run(s->group, &call));
    const bool scatters = call.kind == DS_COMM_REDUCE_SCATTER;
    for (int p = 0; p < PARTS; ++p) {
        const size_t n = scatters ? dsi_comm_slice(count, RANKS) : count;
        CHECK_OK(s->ctx, s->cuda->memory->copy(s->device, back, out[p], room));
        if (memcmp(back, host_out[p], n * width) != 0) {
            fail_msg("rank %u: %s of %zu %s%s has other bits", s->rank, dsi_coll_name(call.kind),
                     count, ds_dtype_name(call.dtype), in_place ? " in place" : "");
        }
        assert_true(in_place || back[n * width] == 0x3c);
        s->cuda->memory->release(s->device, in[p], room);
        if (!in_place) {
            s->cuda->memory->release(s->device, out[p], room);
        }
    }
}

static void all_kinds(side *s)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16,
                                      DS_DTYPE_I64, DS_DTYPE_I32,  DS_DTYPE_U8};
    static const size_t counts[] = {999, 1000, 1, 100};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; ++d) {
        const bool real = d < 3;
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; ++c) {
            dsi_comm_call call = {
                .dtype = dtypes[d], .factor = real ? 1.0f / 3.0f : 1.0f, .what = "a test"};
            call.kind = DS_COMM_ALL_REDUCE;
            compare(s, &call, counts[c], c % 2 == 0);
            call.kind = DS_COMM_REDUCE_SCATTER;
            compare(s, &call, counts[c], false);
            call.factor = 1.0f;
            call.reduction = DSI_REDUCE_MAX;
            call.kind = DS_COMM_ALL_REDUCE;
            compare(s, &call, counts[c], false);
            call.reduction = DSI_REDUCE_SUM;
            call.kind = DS_COMM_ALL_GATHER;
            compare(s, &call, counts[c], false);
            call.kind = DS_COMM_ALL_TO_ALL;
            compare(s, &call, counts[c], false);
            call.kind = DS_COMM_BROADCAST;
            call.peer = (uint32_t)(d % RANKS);
            compare(s, &call, counts[c], s->rank == call.peer && c == 0);
        }
    }
}

/* Around the ring: the pairs' order is their own. */
static void sends_and_receives(side *s)
{
    unsigned char bytes[MOST];
    void *memory = NULL;
    CHECK_OK(s->ctx, s->cuda->memory->alloc(s->device, s->ctx, MOST, "a message", &memory));
    for (uint32_t turn = 0; turn < RANKS; ++turn) {
        const bool sends = s->rank == turn;
        memset(bytes, sends ? (int)turn + 1 : 0, MOST);
        CHECK_OK(s->ctx, s->cuda->memory->copy(s->device, memory, bytes, MOST));
        const dsi_comm_part part = {.in = memory, .out = memory, .count = MOST};
        const dsi_comm_call call = {.kind = sends ? DS_COMM_SEND : DS_COMM_RECV,
                                    .dtype = DS_DTYPE_U8,
                                    .factor = 1.0f,
                                    .peer = sends ? (turn + 1) % RANKS : turn,
                                    .parts = &part,
                                    .n_parts = 1,
                                    .what = "a message"};
        if (sends || s->rank == (turn + 1) % RANKS) {
            CHECK_OK(s->ctx, dsi_comm_run(s->group, &call));
            CHECK_OK(s->ctx, s->cuda->memory->copy(s->device, bytes, memory, MOST));
            assert_true(bytes[0] == turn + 1 && bytes[MOST - 1] == turn + 1);
        }
    }
    s->cuda->memory->release(s->device, memory, MOST);
}

typedef void (*body)(uint32_t rank, const char *job);

static struct {
    body run;
    uint32_t rank;
    char job[64];
} child;

static void in_child(void **state)
{
    (void)state;
    child.run(child.rank, child.job);
}

/* Each rank a process, whose failures are its own. */
static void run_all(body run, const char *name)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_child)};
    pid_t ids[RANKS];
    int bad = 0;
    child.run = run;
    (void)snprintf(child.job, sizeof child.job, "cuda_groups-%ld-%s", (long)getpid(), name);
    for (uint32_t r = 0; r < RANKS; ++r) {
        child.rank = r;
        (void)fflush(stdout);
        ids[r] = fork();
        if (ids[r] == 0) {
            _exit(cmocka_run_group_tests(tests, NULL, NULL));
        }
    }
    for (uint32_t r = 0; r < RANKS; ++r) {
        int code = 0;
        assert_true(waitpid(ids[r], &code, 0) == ids[r]);
        bad += !WIFEXITED(code) || WEXITSTATUS(code) != 0;
    }
    assert_int_equal(bad, 0);
}

static standin_calls standin;

static void compare_all(uint32_t rank, const char *job)
{
    side s;
    char order[32];
    (void)snprintf(order, sizeof order, "seed=%u,turn=97", rank + 5);
    standin.set(order);
    open_side(&s, rank, job, 300.0);
    all_kinds(&s);
    sends_and_receives(&s);
    close_side(&s);
}

static void collectives_have_the_bits_of_shared_memory(void **state)
{
    (void)state;
    run_all(compare_all, "bits");
}

static void one_stays_away(uint32_t rank, const char *job)
{
    side s;
    void *memory = NULL;
    open_side(&s, rank, job, 300.0);
    s.control->timeout = 2.0; /* as a server's ranks have less patience once they serve */
    CHECK_OK(s.ctx, s.cuda->memory->alloc(s.device, s.ctx, 64, "a number", &memory));
    const dsi_comm_part part = {.in = memory, .out = memory, .count = 16};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "a sum"};
    if (rank == 2) {
        (void)sleep(8);
        return;
    }
    CHECK_FAILS(s.ctx, dsi_comm_run(s.group, &call), DS_ERR_PEER, "rank 2");
    CHECK_FAILS(s.ctx, dsi_comm_run(s.group, &call), DS_ERR_STATE, "has failed before");
}

static void a_rank_that_stays_away_is_named(void **state)
{
    (void)state;
    run_all(one_stays_away, "away");
}

/* The others' part never comes: what frees memory would wait for the device for ever. */
static void one_fails_within(uint32_t rank, const char *job)
{
    side s;
    void *memory = NULL;
    dsi_comm_ticket ticket = 0;
    open_side(&s, rank, job, 300.0);
    CHECK_OK(s.ctx, s.cuda->memory->alloc(s.device, s.ctx, 64, "a number", &memory));
    const dsi_comm_part part = {.in = memory, .out = memory, .count = 16};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_GATHER,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "a gather"};
    if (rank != 2) {
        CHECK_OK(s.ctx, dsi_comm_start(s.group, &call, &ticket));
    }
    s.control->timeout = 0.2;
    dsi_exec_group_end(s.group);
    s.cuda->memory->release(s.device, memory, 64);
    if (rank != 2) {
        CHECK_FAILS(s.ctx, dsi_comm_run(s.group, &call), DS_ERR_STATE, "has failed before");
    }
    dsi_comm_destroy(&s.group);
    s.cuda->close(&s.device);
}

static void a_rank_that_fails_within_a_collective_ends(void **state)
{
    (void)state;
    run_all(one_fails_within, "within");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_have_the_bits_of_shared_memory),
        cmocka_unit_test(a_rank_that_stays_away_is_named),
        cmocka_unit_test(a_rank_that_fails_within_a_collective_ends),
    };
    return standin_load(DS_BINARY_DIR, &standin) ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
