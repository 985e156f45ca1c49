/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated ranks for tests. See rank_threads.h. */
#include "common/rank_threads.h"
#include "common/check.h"

#include <pthread.h>
#include <stdio.h>

typedef struct job {
    dsi_comm *comm;
    rank_fn fn;
    void *arg;
    ds_status status;
} job;

static void quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static void *run(void *arg)
{
    job *j = arg;
    j->status = j->fn(j->comm, j->arg);
    if (j->status < 0) {
        dsi_comm_abort(j->comm, ds_ctx_error(j->comm->ctx));
    }
    return NULL;
}

ds_status rank_threads_run(uint32_t n, const dsi_comm_sim_options *options, rank_fn fn, void *arg,
                           rank_results *results)
{
    ds_ctx *ctxs[RANK_THREADS_MAX] = {0};
    dsi_comm *comms[RANK_THREADS_MAX] = {0};
    pthread_t threads[RANK_THREADS_MAX];
    job jobs[RANK_THREADS_MAX];
    ds_status first = DS_OK;
    assert_true(n <= RANK_THREADS_MAX);
    for (uint32_t r = 0; r < n; ++r) {
        const ds_ctx_params params = {.n_threads = 1, .rank = r, .world_size = n, .log = quiet};
        assert_int_equal(ds_ctx_create(&params, &ctxs[r]), 0);
    }
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, n, options, comms));
    for (uint32_t r = 0; r < n; ++r) {
        jobs[r] = (job){.comm = comms[r], .fn = fn, .arg = arg};
        assert_int_equal(pthread_create(&threads[r], NULL, run, &jobs[r]), 0);
    }
    for (uint32_t r = 0; r < n; ++r) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    }
    for (uint32_t r = 0; r < n; ++r) {
        first = first < 0 ? first : jobs[r].status;
        if (results != NULL) {
            results->status[r] = jobs[r].status;
            (void)snprintf(results->message[r], sizeof results->message[r], "%s",
                           ds_ctx_error(ctxs[r]));
        } else if (jobs[r].status < 0) {
            (void)fprintf(stderr, "rank %u: %s\n", r, ds_ctx_error(ctxs[r]));
        }
        dsi_comm_destroy(&comms[r]);
    }
    for (uint32_t r = 0; r < n; ++r) {
        ds_ctx_destroy(&ctxs[r]);
    }
    return first;
}
