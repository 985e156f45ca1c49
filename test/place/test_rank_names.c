/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * Messages name a rank by its number in the world and, where the mesh has other axes than those of
 * data parallelism, by its coordinates; in groups too, on simulated ranks and on processes that
 * share memory. */
#include "comm/same_text.h"
#include "comm/shm.h"
#include "common/check.h"
#include "common/rank_threads.h"
#include "place/mesh_comm.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_RANKS = 4 };

/* What happens to the ranks of a mesh, and what one of them is told. */
typedef struct fault {
    const char *mesh;
    ds_status (*run)(dsi_comm *world, dsi_mesh_comms *comms);
    uint32_t told;
    const char *expected[2];
} fault;

/* The last rank stays away. */
static ds_status stays_away(dsi_comm *world, dsi_mesh_comms *comms)
{
    (void)comms;
    if (world->rank == N_RANKS - 1) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 900000000}, NULL);
        return DS_OK;
    }
    world->timeout = world->rank == 0 ? 0.3 : 20.0;
    return dsi_comm_barrier(world, "step");
}

/* In its group along the innermost axis the last rank calls something else. */
static ds_status calls_something_else(dsi_comm *world, dsi_mesh_comms *comms)
{
    const bool last = world->rank == N_RANKS - 1;
    float data[4] = {0};
    const dsi_comm_part part = {.in = data, .out = data, .count = last ? 3 : 4};
    const dsi_axes inner =
        dsi_axes_of(1u << (comms->mesh.size[DSI_AXIS_TP] > 1 ? DSI_AXIS_TP : DSI_AXIS_DPS));
    dsi_comm *group = NULL;
    DS_TRY(dsi_mesh_comms_get(comms, &inner, &group));
    return dsi_comm_run(group, &(dsi_comm_call){.kind = DS_COMM_ALL_REDUCE,
                                                .dtype = DS_DTYPE_F32,
                                                .factor = 1.0f,
                                                .parts = &part,
                                                .n_parts = 1,
                                                .what = "gradient"});
}

static ds_status gives_up(dsi_comm *world, dsi_mesh_comms *comms)
{
    const dsi_axes tp = dsi_axes_of(1u << DSI_AXIS_TP);
    dsi_comm *group = NULL;
    DS_TRY(dsi_mesh_comms_get(comms, &tp, &group));
    if (world->rank == N_RANKS - 1) {
        (void)ds_fail(world->ctx, DS_ERR_INTERNAL, "the disk is full");
        dsi_comm_abort(group, "the disk is full");
        return DS_OK;
    }
    return dsi_comm_barrier(group, "step"); /* of the other pair it is done */
}

static ds_status differs(dsi_comm *world, dsi_mesh_comms *comms)
{
    (void)comms;
    return dsi_same_text(world->ctx, world, world->rank == N_RANKS - 1 ? "a\nc\n" : "a\nb\n",
                         "plan", "it must be the same");
}

static const fault faults[] = {
    {"mesh(dps=2,tp=2)", stays_away, 0, {"rank 0 (dp 0, tp 0) wait", "rank 3 (dp 1, tp 1) ("}},
    {"mesh(dpr=2,dps=2)", stays_away, 0, {"rank 0 wait", "rank 3 ("}},
    {"mesh(dps=2,tp=2)",
     calls_something_else,
     2,
     {"rank 2 (dp 1, tp 0) calls", "rank 3 (dp 1, tp 1) calls"}},
    {"mesh(pp=2,tp=2)",
     calls_something_else,
     2,
     {"rank 2 (dp 0, pp 1, tp 0) calls", "rank 3 (dp 0, pp 1, tp 1) calls"}},
    {"mesh(dpr=2,dps=2)", calls_something_else, 2, {"rank 2 calls", "rank 3 calls"}},
    {"mesh(dps=2,tp=2)", gives_up, 2, {"rank 3 (dp 1, tp 1) gives up: the disk is full", ""}},
    {"mesh(dps=2,tp=2)", differs, 1, {"rank 3 (dp 1, tp 1) has another plan than rank 0", "\"c\""}},
};

/* The text of the rank that is told is checked by that rank. */
static ds_status run_rank(dsi_comm *world, void *arg)
{
    const fault *f = arg;
    dsi_mesh mesh;
    dsi_mesh_comms comms;
    DS_TRY(dsi_mesh_parse(world->ctx, f->mesh, &mesh));
    DS_TRY(dsi_mesh_comms_make(world->ctx, world, &mesh, &comms));
    const ds_status status = f->run(world, &comms);
    char text[2048];
    (void)snprintf(text, sizeof text, "%s", ds_ctx_error(world->ctx));
    const bool right =
        world->rank != f->told || (status == DS_ERR_PEER && strstr(text, f->expected[0]) != NULL &&
                                   strstr(text, f->expected[1]) != NULL);
    dsi_mesh_comms_destroy(&comms);
    if (!right) {
        (void)fprintf(stderr, "%s: rank %u: status %d, expected \"%s\" and \"%s\" in: %s\n",
                      f->mesh, world->rank, (int)status, f->expected[0], f->expected[1], text);
    }
    return right ? DS_OK : DS_ERR_INTERNAL;
}

static void simulated_ranks_have_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; ++i) {
        fault f = faults[i];
        assert_int_equal(rank_threads_run(N_RANKS, NULL, run_rank, &f, NULL), DS_OK);
    }
}

static int process(const fault *f, const char *job, uint32_t rank)
{
    ds_ctx *ctx = NULL;
    dsi_comm *comm = NULL;
    fault own = *f;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    const dsi_shm_params shm = {.rank = rank, .size = N_RANKS, .job = job, .timeout = 20.0};
    if (ds_ctx_create(&params, &ctx) < 0 || dsi_comm_shm_open(ctx, &shm, &comm) < 0) {
        return 2;
    }
    const ds_status status = run_rank(comm, &own);
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
    return status < 0 ? 1 : 0;
}

static void processes_have_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; ++i) {
        pid_t pids[N_RANKS];
        char job[64];
        (void)snprintf(job, sizeof job, "names %d %zu", (int)getpid(), i);
        for (uint32_t r = 0; r < N_RANKS; ++r) {
            pids[r] = fork();
            assert_true(pids[r] >= 0);
            if (pids[r] == 0) {
                _exit(process(&faults[i], job, r));
            }
        }
        for (uint32_t r = 0; r < N_RANKS; ++r) {
            int status = 0;
            assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_have_names), /* first: a fork wants one thread */
        cmocka_unit_test(simulated_ranks_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
