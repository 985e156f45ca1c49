/* SPDX-License-Identifier: Apache-2.0 */
/* The world from the environment, and the communicator that follows from it. */
#include "comm/comm.h"
#include "comm/slurm_place.h"
#include "common/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const names[] = {"RANK",
                                    "WORLD_SIZE",
                                    "LOCAL_RANK",
                                    "LOCAL_WORLD_SIZE",
                                    "LOCAL_SIZE",
                                    "CROSS_RANK",
                                    "CROSS_SIZE",
                                    "OMPI_COMM_WORLD_RANK",
                                    "OMPI_COMM_WORLD_SIZE",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "DS_JOB_SECRET",
                                    "SLURM_PROCID",
                                    "SLURM_STEP_NUM_TASKS",
                                    "MASTER_PORT",
                                    "PMI_PORT",
                                    "PMIX_NAMESPACE",
                                    "DEEPSPEED_TIMEOUT",
                                    "SLURM_NTASKS",
                                    "SLURM_LOCALID",
                                    "SLURM_NODEID",
                                    "SLURM_STEP_NUM_NODES",
                                    "SLURM_STEP_NODELIST",
                                    "SLURM_STEP_TASKS_PER_NODE",
                                    "SLURM_JOB_ID",
                                    "SLURM_STEP_ID",
                                    "MPI_LOCALNRANKS",
                                    "PMIX_RANK",
                                    "PALS_LOCAL_RANKID",
                                    "PALS_LOCAL_SIZE",
                                    "PALS_NODEID",
                                    "MPI_LOCALRANKID"};

static void clean(void)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        (void)unsetenv(names[i]);
    }
}

static void set(const char *name, const char *value)
{
    assert_int_equal(setenv(name, value, 1), 0);
}

static void test_world(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm_world w;
    clean();
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.size, 1);
    set("SLURM_NTASKS", "4"); /* a batch script outside of srun is one process */
    set("SLURM_PROCID", "0");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.size, 1);
    set("RANK", "5");
    set("WORLD_SIZE", "8");
    set("LOCAL_RANK", "1");
    set("LOCAL_SIZE", "4");
    set("CROSS_RANK", "1");
    set("CROSS_SIZE", "2");
    set("DEEPSPEED_TIMEOUT", "0.5");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.rank, 5);
    assert_int_equal(w.local_size, 4);
    assert_int_equal(w.node, 1);
    assert_int_equal(w.n_nodes, 2);
    assert_true(w.timeout == 30.0);
    set("RANK", "8");
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "RANK is 8");
    set("RANK", "x");
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "RANK is \"x\"");
    set("RANK", "5");
    set("DEEPSPEED_TIMEOUT", "soon");
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "DEEPSPEED_TIMEOUT");
    clean();
    set("OMPI_COMM_WORLD_RANK", "2");
    set("OMPI_COMM_WORLD_SIZE", "3");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.rank, 2);
    assert_int_equal(w.n_nodes, 1);
    clean();
    ds_ctx_destroy(&ctx);
}

/* srun gives the numbers, also where it sets PMI's; but mpirun's inside of a Slurm job count. */
static void test_slurm(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm_world w;
    char host[16];
    uint16_t port = 0;
    clean();
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    set("SLURM_PROCID", "3");
    set("SLURM_STEP_NUM_TASKS", "4");
    set("SLURM_LOCALID", "1");
    set("SLURM_NODEID", "1");
    set("SLURM_STEP_NUM_NODES", "2");
    set("PMI_RANK", "3");
    set("PMI_SIZE", "4");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.rank, 3);
    assert_int_equal(w.node, 1);
    assert_int_equal(w.local_size, 2);
    assert_int_equal(w.n_nodes, 2);
    set("MPI_LOCALNRANKS", "4");
    set("MPI_LOCALRANKID", "3");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.n_nodes, 1);
    assert_false(dsi_slurm_place(host, sizeof host, &port));
    set("SLURM_STEP_NODELIST", "n[07-09],x");
    set("SLURM_JOB_ID", "70");
    assert_true(dsi_slurm_place(host, sizeof host, &port));
    assert_string_equal(host, "n07");
    const uint16_t first = port;
    set("SLURM_STEP_ID", "1");
    assert_true(dsi_slurm_place(host, sizeof host, &port));
    assert_int_equal(port, first + 1);
    set("SLURM_STEP_ID", "one");
    assert_false(dsi_slurm_place(host, sizeof host, &port));
    set("SLURM_STEP_ID", "1");
    static const char *const lists[][2] = {{"a", "a"},
                                           {"a,b", "a"},
                                           {"r[1-2]n[3,5]", "r1n3"},
                                           {"a[12]b,c", "a12b"},
                                           {"longer-than-sixteen", "longer-than-sixteen"}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; ++i) {
        assert_true(dsi_slurm_first_host(lists[i][0], host, sizeof host));
        assert_memory_equal(host, lists[i][1], strlen(host) + (i < 4 ? 1 : 0));
    }
    assert_false(dsi_slurm_first_host("", host, sizeof host));
    assert_false(dsi_slurm_first_host("a[1-", host, sizeof host));
    clean();
    ds_ctx_destroy(&ctx);
}

/* Hosts with different numbers of tasks. */
static void test_slurm_unequal(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm_world w;
    clean();
    assert_int_equal(dsi_slurm_tasks_of("2(x3),1", 0), 2);
    assert_int_equal(dsi_slurm_tasks_of("2(x3),1", 2), 2);
    assert_int_equal(dsi_slurm_tasks_of("2(x3),1", 3), 1);
    assert_int_equal(dsi_slurm_tasks_of("2(x3),1", 4), 0);
    assert_int_equal(dsi_slurm_tasks_of("x", 0), 0);
    assert_int_equal(dsi_slurm_tasks_of(NULL, 0), 0);
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    set("SLURM_PROCID", "3");
    set("SLURM_STEP_NUM_TASKS", "4");
    set("SLURM_LOCALID", "0");
    set("SLURM_NODEID", "1");
    set("SLURM_STEP_NUM_NODES", "2");
    set("SLURM_STEP_TASKS_PER_NODE", "3,1");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.local_size, 1);
    assert_int_equal(w.node, 1);
    set("SLURM_LOCALID", "1");
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "these contradict");
    clean();
    ds_ctx_destroy(&ctx);
}

/* HPE's mpiexec: PMIx's rank, local numbers of its own; the size is PMI's or WORLD_SIZE. */
static void test_pals(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm_world w;
    clean();
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    set("PMIX_RANK", "5"); /* of any that speaks PMIx */
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.size, 1);
    set("PMI_SIZE", "8"); /* not PALS' without its local number */
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "PMI_SIZE is set, PMI_RANK is");
    assert_int_equal(unsetenv("PMI_SIZE"), 0);
    set("PALS_LOCAL_RANKID", "1");
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "PALS_LOCAL_RANKID is set");
    set("WORLD_SIZE", "8");
    set("LOCAL_SIZE", "4");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.rank, 5);
    assert_int_equal(w.size, 8);
    assert_int_equal(w.local_rank, 1);
    assert_int_equal(w.node, 1);
    assert_int_equal(w.n_nodes, 2);
    assert_int_equal(unsetenv("WORLD_SIZE"), 0);
    assert_int_equal(unsetenv("LOCAL_SIZE"), 0);
    set("PMI_SIZE", "8");
    set("PALS_LOCAL_SIZE", "2");
    set("PALS_NODEID", "2");
    CHECK_OK(ctx, dsi_comm_world_read(ctx, &w));
    assert_int_equal(w.local_size, 2);
    assert_int_equal(w.node, 2);
    assert_int_equal(w.n_nodes, 4);
    set("PALS_LOCAL_RANKID", "2");
    CHECK_FAILS(ctx, dsi_comm_world_read(ctx, &w), DS_ERR_CONFIG, "these contradict");
    clean();
    ds_ctx_destroy(&ctx);
}

/* One rank of three: opens, adds up, leaves. */
static int run_rank(const char *rank, const char *last)
{
    ds_ctx *ctx;
    dsi_comm *comm;
    dsi_comm_world w;
    int32_t x = atoi(rank);
    set("RANK", rank);
    set("WORLD_SIZE", "3");
    set("DS_JOB_SECRET", last);
    set("DEEPSPEED_TIMEOUT", "0.3");
    if (ds_ctx_create(NULL, &ctx) < 0 || dsi_comm_world_read(ctx, &w) < 0 ||
        dsi_comm_open(ctx, &w, &comm) < 0) {
        return 2;
    }
    const dsi_comm_part part = {.in = &x, .out = &x, .count = 1};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_I32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1};
    const bool right = strcmp(comm->transport->name, "shm") == 0 && comm->timeout == 18.0 &&
                       dsi_comm_run(comm, &call) == DS_OK && x == 3;
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
    return right ? 0 : 1;
}

static void test_open(void **state)
{
    (void)state;
    static const char *const ranks[3] = {"0", "1", "2"};
    char secret[32];
    pid_t pids[3];
    clean();
    (void)snprintf(secret, sizeof secret, "%d", (int)getpid());
    for (uint32_t r = 0; r < 3; ++r) {
        pids[r] = fork();
        if (pids[r] == 0) {
            _exit(run_rank(ranks[r], secret));
        }
    }
    for (uint32_t r = 0; r < 3; ++r) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void test_refused(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm *comm;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    dsi_comm_world w = {.size = 2, .local_size = 1, .n_nodes = 2, .transport = "shm"};
    CHECK_FAILS(ctx, dsi_comm_open(ctx, &w, &comm), DS_ERR_UNSUPPORTED, "2 on 2 hosts");
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    (void)alarm(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world), cmocka_unit_test(test_slurm),
        cmocka_unit_test(test_pals),  cmocka_unit_test(test_slurm_unequal),
        cmocka_unit_test(test_open),  cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
