/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated ranks. See sim_ranks.h. */
#include "common/sim_ranks.h"
#include "common/check.h"

#include <pthread.h>

enum { MOST_RANKS = 32 };

typedef struct rank_thread {
    ds_ctx *ctx;
    dsi_comm *comm;
    sim_rank_fn fn;
    void *arg;
    uint32_t n_failed;
} rank_thread;

static void *rank_main(void *opaque)
{
    rank_thread *t = opaque;
    t->n_failed = t->fn(t->ctx, t->comm, t->arg);
    return NULL;
}

uint32_t sim_ranks_run(uint32_t size, const dsi_comm_sim_options *options, sim_rank_fn fn,
                       void *arg)
{
    ds_ctx *ctxs[MOST_RANKS] = {0};
    dsi_comm *comms[MOST_RANKS] = {0};
    pthread_t threads[MOST_RANKS];
    rank_thread ranks[MOST_RANKS];
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.level = DS_LOG_ERROR;
    assert_true(size <= MOST_RANKS);
    for (uint32_t r = 0; r < size; ++r) {
        params.rank = r;
        params.world_size = size;
        assert_int_equal(ds_ctx_create(&params, &ctxs[r]), DS_OK);
    }
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, size, options, comms));
    for (uint32_t r = 0; r < size; ++r) {
        ranks[r] = (rank_thread){ctxs[r], comms[r], fn, arg, 0};
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    uint32_t n_failed = 0;
    for (uint32_t r = 0; r < size; ++r) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
        n_failed += ranks[r].n_failed;
    }
    for (uint32_t r = 0; r < size; ++r) {
        dsi_comm_destroy(&comms[r]);
    }
    for (uint32_t r = 0; r < size; ++r) {
        ds_ctx_destroy(&ctxs[r]);
    }
    return n_failed;
}
