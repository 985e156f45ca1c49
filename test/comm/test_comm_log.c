/* SPDX-License-Identifier: Apache-2.0 */
/* The log of collectives: what it counts, its arithmetic and layout, the straggler effect, its
 * limits; on simulated ranks and on processes that share memory.
 *
 * labels: threads
 */
#include "base/clock.h"
#include "comm/comm_log.h"
#include "comm/shm.h"
#include "common/check.h"
#include "common/sim_ranks.h"
#include "place/mesh_comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, N_REPEATED = 10, N_COLLECTIVES = 8 + N_REPEATED };

#define FAIL_UNLESS(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "rank %u, line %d: %s; %s\n", comm->rank, __LINE__, #condition,  \
                          ds_ctx_error(comm->ctx));                                                \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* ---- one of each ---- */

typedef struct one_part {
    ds_comm_op kind;
    ds_dtype dtype;
    uint32_t n_parts;
    size_t counts[2];
} one_part;

static const one_part program[8] = {
    {DS_COMM_ALL_REDUCE, DS_DTYPE_F32, 1, {100000}},
    {DS_COMM_ALL_GATHER, DS_DTYPE_F32, 1, {100001}}, /* slices of 33334 */
    {DS_COMM_REDUCE_SCATTER, DS_DTYPE_F32, 2, {60000, 40000}},
    {DS_COMM_ALL_REDUCE, DS_DTYPE_F32, 1, {100000}},
    {DS_COMM_ALL_REDUCE, DS_DTYPE_BF16, 1, {65536}},
    {DS_COMM_BARRIER, DS_DTYPE_NONE, 0, {0}},
    {DS_COMM_BROADCAST, DS_DTYPE_I32, 1, {10000}},
    {DS_COMM_ALL_TO_ALL, DS_DTYPE_F32, 1, {6000}},
};

static char *operand(size_t i)
{
    static char memory[RANKS][4][400064]; /* by process, or by thread through `own` */
    return memory[i / 4][i % 4];
}

static ds_status call_of(dsi_comm *comm, const one_part *one, dsi_comm_ticket *ticket_out)
{
    static const size_t each[RANKS] = {2000, 2000, 2000};
    static dsi_comm_part parts[RANKS][2]; /* they last until the wait */
    dsi_comm_part *own = parts[comm->rank];
    for (uint32_t i = 0; i < one->n_parts; ++i) {
        own[i] = (dsi_comm_part){.in = operand(comm->rank * 4u + i),
                                 .out = operand(comm->rank * 4u + 2 + i),
                                 .count = one->counts[i],
                                 .counts_in = each,
                                 .counts_out = each};
    }
    return dsi_comm_start(comm,
                          &(dsi_comm_call){.kind = one->kind,
                                           .dtype = one->dtype,
                                           .factor = 1.0f,
                                           .parts = own,
                                           .n_parts = one->n_parts,
                                           .what = "step of a test"},
                          ticket_out);
}

static ds_status run_one(dsi_comm *comm, const one_part *one)
{
    dsi_comm_ticket ticket;
    DS_TRY(call_of(comm, one, &ticket));
    return dsi_comm_wait(comm, ticket, NULL);
}

static ds_status run_pair(dsi_comm *comm)
{
    const dsi_comm_part part = {
        .in = operand(comm->rank * 4u), .out = operand(comm->rank * 4u + 2), .count = 8000};
    return comm->rank > 1
               ? DS_OK
               : dsi_comm_run(
                     comm, &(dsi_comm_call){.kind = comm->rank == 0 ? DS_COMM_SEND : DS_COMM_RECV,
                                            .dtype = DS_DTYPE_F32,
                                            .peer = 1 - comm->rank,
                                            .parts = &part,
                                            .n_parts = 1,
                                            .what = "a message"});
}

static ds_status run_program(dsi_comm *comm)
{
    for (size_t i = 0; i < 8; ++i) {
        DS_TRY(run_one(comm, &program[i]));
    }
    DS_TRY(run_pair(comm));
    for (int i = 0; i < N_REPEATED; ++i) {
        DS_TRY(run_one(comm, &program[0]));
    }
    return DS_OK;
}

/* Known latencies in the place of the measured ones: call i takes (i + 1)(rank + 1) tenths of a
 * millisecond, the message 0.5 ms. */
static void plant(dsi_comm_log *log, uint32_t rank)
{
    for (uint32_t r = 0; r < log->n_rows; ++r) {
        log->rows[r].seconds = 0.0;
    }
    for (uint32_t i = 0; i < N_COLLECTIVES; ++i) {
        const double seconds = (i + 1) * (rank + 1) * 1e-4;
        log->samples[DSI_LOG_ALL_RANKS].seconds[i] = (float)seconds;
        log->rows[log->samples[DSI_LOG_ALL_RANKS].rows[i]].seconds += seconds;
    }
    if (rank < 2) {
        log->samples[DSI_LOG_PAIRS].seconds[0] = 5e-4f;
        log->rows[log->samples[DSI_LOG_PAIRS].rows[0]].seconds = 5e-4;
    }
}

/* The text of rank 1, computed apart from this code. */
static const char golden[] =
    "Comm. Op            Message Size        Count               Total Latency(ms)   Avg "
    "Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)    \n"
    "all_reduce\n"
    "                    128.0 KB            1                   1.00                1.00          "
    "      2.10                1.40                \n"
    "                    390.62 KB           12                  28.00               2.42          "
    "      3.11                2.07                \n"
    "all_gather\n"
    "                    130.21 KB           1                   0.40                0.40          "
    "      8.00                5.33                \n"
    "reduce_scatter\n"
    "                    390.62 KB           1                   0.60                0.60          "
    "      5.33                3.56                \n"
    "barrier\n"
    "                    0B                  1                   1.20                1.20          "
    "      0.00                0.00                \n"
    "broadcast\n"
    "                    39.06 KB            1                   1.40                1.40          "
    "      0.23                0.23                \n"
    "all_to_all\n"
    "                    23.44 KB            1                   1.60                1.60          "
    "      0.12                0.08                \n"
    "recv\n"
    "                    31.25 KB            1                   0.50                0.50          "
    "      0.51                0.51                \n"
    "_______________________________\n"
    "Breakdown with straggler effect\n"
    "-------------------------------\n"
    "Comm. Op            Message Size        Count               Total comm lat(ms)  Total "
    "straggler(ms) Avg comm lat(ms)    Avg straggler(ms)   \n"
    "all_reduce\n"
    "                    128.0 KB            1                   0.50                0.50          "
    "      0.50                0.50                \n"
    "                    390.62 KB           12                  14.00               14.00         "
    "      1.21                1.21                \n"
    "all_gather\n"
    "                    130.21 KB           1                   0.20                0.20          "
    "      0.20                0.20                \n"
    "reduce_scatter\n"
    "                    390.62 KB           1                   0.30                0.30          "
    "      0.30                0.30                \n"
    "barrier\n"
    "                    0B                  1                   0.60                0.60          "
    "      0.60                0.60                \n"
    "broadcast\n"
    "                    39.06 KB            1                   0.70                0.70          "
    "      0.70                0.70                \n"
    "all_to_all\n"
    "                    23.44 KB            1                   0.80                0.80          "
    "      0.80                0.80                \n"
    "Rank 0 waited least for the others (0.00 ms in all), rank 2 most (34.20 ms).\n";

static uint32_t logs_and_sums_up(dsi_comm *comm)
{
    const ds_comm_log_params params = {.all = true};
    ds_comm_log_row row;
    char *text = NULL;
    FAIL_UNLESS(ds_comm_log_summary(comm, false, &text) == DS_ERR_STATE);
    FAIL_UNLESS(ds_comm_log_n_rows(comm) == 0);
    FAIL_UNLESS(ds_comm_log_start(comm, &params) >= 0);
    FAIL_UNLESS(run_program(comm) >= 0);
    const dsi_comm_log *log = comm->log;
    FAIL_UNLESS(log->samples[DSI_LOG_ALL_RANKS].n == N_COLLECTIVES);
    FAIL_UNLESS(log->samples[DSI_LOG_PAIRS].n == (comm->rank < 2 ? 1 : 0));
    FAIL_UNLESS(log->n_calls == 0 && log->n_lost == 0);
    for (size_t i = 0; i < ds_comm_log_n_rows(comm); ++i) { /* what was measured */
        FAIL_UNLESS(ds_comm_log_get_row(comm, i, &row) >= 0);
        FAIL_UNLESS(row.total_ms > 0.0 && row.total_ms < 60e3 && row.average_ms > 0.0);
        FAIL_UNLESS(row.n_ranks == RANKS && row.caller[0] == '\0');
    }
    plant(comm->log, comm->rank);
    FAIL_UNLESS(ds_comm_log_summary(comm, true, &text) >= 0);
    FAIL_UNLESS(comm->rank != 1 || strcmp(text, golden) == 0 || (puts(text), false));
    free(text);
    /* The own calls of the summary are not in the log. */
    FAIL_UNLESS(log->samples[DSI_LOG_ALL_RANKS].n == N_COLLECTIVES);
    FAIL_UNLESS(ds_comm_log_get_row(comm, 1, &row) >= 0); /* 400000 bytes stand after 131072 */
    FAIL_UNLESS(row.op == DS_COMM_ALL_REDUCE && row.bytes == 400000 && row.count == 12);
    FAIL_UNLESS(ds_comm_log_get_row(comm, 99, &row) == DS_ERR_ARG);
    ds_comm_log_reset(comm);
    FAIL_UNLESS(ds_comm_log_n_rows(comm) == 0);
    FAIL_UNLESS(ds_comm_log_summary(comm, true, &text) >= 0 && strncmp(text, golden, 140) == 0);
    free(text);
    return 0;
}

/* ---- measured: one rank comes late ---- */

static void sleep_ms(long ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};
    (void)nanosleep(&t, NULL);
}

static uint32_t finds_the_straggler(dsi_comm *comm)
{
    const ds_comm_log_params params = {.all = true};
    ds_comm_log_row row;
    char *text = NULL;
    FAIL_UNLESS(ds_comm_log_start(comm, &params) >= 0);
    for (int i = 0; i < 4; ++i) {
        FAIL_UNLESS(dsi_comm_barrier(comm, "together") >= 0);
        if (comm->rank == 1) {
            sleep_ms(40);
        }
        FAIL_UNLESS(run_one(comm, &program[0]) >= 0);
    }
    FAIL_UNLESS(ds_comm_log_n_rows(comm) == 2 && ds_comm_log_get_row(comm, 1, &row) >= 0);
    FAIL_UNLESS(row.op == DS_COMM_ALL_REDUCE && row.count == 4);
    FAIL_UNLESS(comm->rank == 1 || row.total_ms > 4 * 30.0); /* they waited for it */
    FAIL_UNLESS(ds_comm_log_summary(comm, true, &text) >= 0);
    FAIL_UNLESS(strstr(text, "Rank 1 waited least for the others (") != NULL ||
                (puts(text), false));
    free(text);
    return 0;
}

static uint32_t all_bodies(ds_ctx *ctx, dsi_comm *comm, void *arg)
{
    (void)ctx;
    (void)arg;
    const uint32_t n_failed = logs_and_sums_up(comm);
    return n_failed > 0 ? n_failed : finds_the_straggler(comm);
}

/* ---- groups along the axes of a mesh ---- */

enum { GRID = 4 };

static ds_status sum_along(dsi_comm *comm, size_t count)
{
    float *in = calloc(count, sizeof *in);
    float *out = calloc(count, sizeof *out);
    const dsi_comm_part part = {.in = in, .out = out, .count = count};
    const ds_status status = dsi_comm_run(comm, &(dsi_comm_call){.kind = DS_COMM_ALL_REDUCE,
                                                                 .dtype = DS_DTYPE_F32,
                                                                 .factor = 1.0f,
                                                                 .parts = &part,
                                                                 .n_parts = 1,
                                                                 .what = "a sum"});
    free(in);
    free(out);
    return status;
}

/* Each tuple of axes has rows of its own, and waits for nobody but its group. */
static uint32_t logs_groups(ds_ctx *ctx, dsi_comm *comm, void *arg)
{
    static const dsi_axis tuple[2] = {DSI_AXIS_DPS, DSI_AXIS_DPR};
    static const char *const names[3] = {"", "(dps)", "(dpr)"};
    const uint32_t size[DSI_AXIS_COUNT] = {1, 2, 2, 1, 1, 1};
    const ds_comm_log_params params = {.all = true};
    const ds_comm_log_row want[3] = {{.n_ranks = 4, .bytes = 4000, .count = 1},
                                     {.n_ranks = 2, .bytes = 8000, .count = 3},
                                     {.n_ranks = 2, .bytes = 8000, .count = 1}};
    dsi_mesh mesh;
    dsi_mesh_comms groups;
    ds_comm_log_row row;
    char *text = NULL;
    (void)arg;
    FAIL_UNLESS(ds_comm_log_start(comm, &params) >= 0);
    FAIL_UNLESS(dsi_mesh_of(ctx, size, &mesh) >= 0);
    FAIL_UNLESS(dsi_mesh_comms_make(ctx, comm, &mesh, &groups) >= 0);
    FAIL_UNLESS(sum_along(comm, 1000) >= 0);
    for (uint32_t i = 0; i < 4; ++i) {
        dsi_axes axes = {0};
        dsi_comm *group = NULL;
        dsi_axes_add(&axes, tuple[i / 3]);
        FAIL_UNLESS(dsi_mesh_comms_get(&groups, &axes, &group) >= 0 && group->size == 2);
        FAIL_UNLESS(sum_along(group, 2000) >= 0);
    }
    FAIL_UNLESS(ds_comm_log_n_rows(comm) == 3);
    for (uint32_t i = 0; i < 3; ++i) {
        FAIL_UNLESS(ds_comm_log_get_row(comm, i, &row) >= 0);
        FAIL_UNLESS(strcmp(row.axes, names[i]) == 0 && row.n_ranks == want[i].n_ranks);
        FAIL_UNLESS(row.bytes == want[i].bytes && row.count == want[i].count && row.total_ms > 0.0);
    }
    for (uint32_t i = 0; i < 5; ++i) { /* (i + 1)(rank + 1) tenths of a millisecond */
        comm->log->samples[DSI_LOG_ALL_RANKS].seconds[i] =
            (float)((double)((i + 1) * (comm->rank + 1)) * 1e-4);
    }
    FAIL_UNLESS(ds_comm_log_summary(comm, true, &text) >= 0);
    /* rank 3 waits in all for rank 0, along dps for rank 2, along dpr for rank 1 */
    FAIL_UNLESS(
        comm->rank != 3 ||
        strstr(text,
               "all_reduce\n"
               "                    3.91 KB             1                   0.10                "
               "0.30                0.10                0.30                \n"
               "all_reduce over (dps) (2 ranks)\n"
               "                    7.81 KB             3                   2.70                "
               "0.90                0.90                0.30                \n"
               "all_reduce over (dpr) (2 ranks)\n"
               "                    7.81 KB             1                   1.00                "
               "1.00                1.00                1.00                \n") != NULL ||
        (puts(text), false));
    free(text);
    FAIL_UNLESS(comm->log->samples[DSI_LOG_ALL_RANKS].n == 5); /* the table's own calls are not */
    dsi_mesh_comms_destroy(&groups);
    FAIL_UNLESS(ds_comm_log_n_rows(comm) == 3); /* groups go, what they did stays */
    FAIL_UNLESS(ds_comm_log_summary(comm, true, &text) >= 0);
    FAIL_UNLESS(strstr(text, "all_reduce over (dps) (2 ranks)") != NULL);
    free(text);
    return 0;
}

static void on_a_mesh(void **state)
{
    (void)state;
    assert_int_equal(sim_ranks_run(GRID, NULL, logs_groups, NULL), 0);
}

static void on_simulated_ranks(void **state)
{
    (void)state;
    const dsi_comm_sim_options options = {.seed = 7, .reorder = true};
    assert_int_equal(sim_ranks_run(RANKS, &options, all_bodies, NULL), 0);
}

static void on_processes(void **state)
{
    char name[64];
    (void)state;
    (void)snprintf(name, sizeof name, "comm log %d", (int)getpid());
    for (uint32_t r = 0; r < RANKS; ++r) {
        if (fork() == 0) {
            ds_ctx *ctx;
            dsi_comm *comm;
            ds_ctx_params params = ds_ctx_params_default();
            params.n_threads = 1;
            const dsi_shm_params shm = {.rank = r, .size = RANKS, .job = name, .timeout = 60.0};
            uint32_t n_failed = 1;
            if (ds_ctx_create(&params, &ctx) >= 0 && dsi_comm_shm_open(ctx, &shm, &comm) >= 0) {
                n_failed = all_bodies(ctx, comm, NULL);
                dsi_comm_destroy(&comm);
                ds_ctx_destroy(&ctx);
            }
            _exit(n_failed == 0 ? 0 : 1);
        }
    }
    for (uint32_t r = 0; r < RANKS; ++r) {
        int status = 0;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

/* ---- one rank: choices and limits ---- */

typedef struct lines {
    char text[4096];
} lines;

static void keep_line(void *user, ds_log_level level, const char *line)
{
    lines *l = user;
    (void)level;
    const size_t used = strlen(l->text);
    (void)snprintf(l->text + used, sizeof l->text - used, "%s\n", line);
}

static void fake_call(dsi_comm *comm, size_t count, dsi_comm_ticket ticket, bool ends)
{
    const dsi_comm_part part = {.count = count};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "a parameter"};
    dsi_comm_log_started(comm->log, comm, &call, ticket, dsi_clock_seconds());
    if (ends) {
        dsi_comm_log_ended(comm->log, comm, ticket, DS_OK);
    }
}

static void logs_what_is_asked_for(void **state)
{
    lines said = {""};
    ds_ctx *ctx = NULL;
    dsi_comm *comm = NULL;
    ds_comm_log_row row;
    char *text = NULL;
    ds_ctx_params params = {
        .log = keep_line, .log_user = &said, .level = DS_LOG_JOB, .n_threads = 1};
    (void)state;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    CHECK_OK(ctx, dsi_comm_self(ctx, &comm));
    ds_comm_log_params log = {.ops = 1u << DS_COMM_BROADCAST, .verbose = true, .debug = true};
    CHECK_OK(ctx, ds_comm_log_start(comm, &log));
    CHECK_OK(ctx, run_one(comm, &program[0]));
    CHECK_OK(ctx, run_one(comm, &program[6]));
    assert_int_equal(ds_comm_log_n_rows(comm), 1);
    CHECK_OK(ctx, ds_comm_log_get_row(comm, 0, &row));
    assert_int_equal(row.op, DS_COMM_BROADCAST);
    assert_string_equal(row.caller, "step of a test");
    const char head[] = "comm op: broadcast | [Caller Func: step of a test] | time (ms): ";
    assert_memory_equal(said.text, head, sizeof head - 1);
    assert_non_null(strstr(said.text, " | msg size: 39.06 KB | algbw (Gbps): "));
    assert_non_null(strstr(said.text, " | busbw (Gbps): "));
    assert_int_equal(strchr(said.text, '\n') - said.text + 1, strlen(said.text)); /* one line */
    CHECK_OK(ctx, ds_comm_log_summary(comm, false, &text));
    assert_non_null(strstr(text, "\nbroadcast | [Caller Func: step of a test]\n"));
    free(text);
    CHECK_FAILS(ctx, dsi_comm_run(comm, &(dsi_comm_call){.kind = DS_COMM_OP_COUNT}), DS_ERR_ARG,
                "");
    assert_int_equal(ds_comm_log_n_rows(comm), 1); /* a refused call counts for nothing */
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
}

static void full_tables_are_told(void **state)
{
    ds_ctx *ctx = NULL;
    dsi_comm *comm = NULL;
    ds_comm_log_row row;
    char *text = NULL;
    const ds_comm_log_params log = {.all = true};
    (void)state;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    CHECK_OK(ctx, dsi_comm_self(ctx, &comm));
    CHECK_OK(ctx, ds_comm_log_start(comm, &log));
    for (size_t i = 0; i < DSI_LOG_ROWS + 10; ++i) { /* row 0 is that of the others */
        fake_call(comm, i + 1, i, true);
    }
    assert_int_equal(ds_comm_log_n_rows(comm), DSI_LOG_ROWS);
    CHECK_OK(ctx, ds_comm_log_get_row(comm, DSI_LOG_ROWS - 1, &row));
    assert_int_equal(row.count, 11);
    for (size_t i = 0; i < DSI_LOG_UNDER_WAY + 3; ++i) {
        fake_call(comm, 1, 100000 + i, false);
    }
    for (size_t i = 0; i < DSI_LOG_UNDER_WAY + 3; ++i) {
        dsi_comm_log_ended(comm->log, comm, 100000 + i, i == 0 ? DS_ERR_PEER : DS_OK);
    }
    CHECK_OK(ctx, ds_comm_log_get_row(comm, 0, &row));
    assert_int_equal(row.count, 1 + DSI_LOG_UNDER_WAY - 1); /* one failed, three were lost */
    for (size_t i = 0; i < DSI_LOG_SAMPLES; ++i) {
        fake_call(comm, 1, i, true);
    }
    CHECK_OK(ctx, ds_comm_log_get_row(comm, 0, &row));
    assert_int_equal(row.count, DSI_LOG_UNDER_WAY + DSI_LOG_SAMPLES);
    assert_true(row.average_ms > 0.0);
    CHECK_OK(ctx, ds_comm_log_summary(comm, true, &text));
    assert_non_null(strstr(text, "\n(others)\n"));
    assert_non_null(
        strstr(text, "\nAverages and the straggler effect are those of the latest 262144 "));
    assert_non_null(strstr(text, "\n(others): calls of further operations and sizes; 1023 have "));
    assert_non_null(
        strstr(text, "\n3 calls were not timed: more than 256 were under way at once.\n"));
    free(text);
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
}

static uint32_t unequal(ds_ctx *ctx, dsi_comm *comm, void *arg)
{
    const ds_comm_log_params params = {.all = true};
    char *text = NULL;
    (void)ctx;
    (void)arg;
    if (comm->rank == 0) {
        FAIL_UNLESS(ds_comm_log_start(comm, &params) >= 0);
    }
    FAIL_UNLESS(dsi_comm_barrier(comm, "only rank 0 logs it") >= 0);
    FAIL_UNLESS(ds_comm_log_start(comm, &params) >= 0);
    FAIL_UNLESS(ds_comm_log_summary(comm, true, &text) == DS_ERR_PEER);
    FAIL_UNLESS(strstr(ds_ctx_error(comm->ctx), "from 0 to 1 collectives") != NULL);
    return 0;
}

static void unequal_logs_are_refused(void **state)
{
    (void)state;
    assert_int_equal(sim_ranks_run(2, NULL, unequal, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_processes), /* before threads begin */
        cmocka_unit_test(on_simulated_ranks),
        cmocka_unit_test(on_a_mesh),
        cmocka_unit_test(logs_what_is_asked_for),
        cmocka_unit_test(full_tables_are_told),
        cmocka_unit_test(unequal_logs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
