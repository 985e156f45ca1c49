/* SPDX-License-Identifier: Apache-2.0 */
/* labels: slow threads long
 * Checkpoints fit any topology: saved on each of (1, 2, 3, 4, 8 ranks) x (stages 0 to 3), loaded on
 * each other: the same logical tensors, bit for bit, and training goes on. */
#include "accel/cpu/cpu_features.h"
#include "comm/sim.h"
#include "common/engine_hash.h"
#include "common/parity.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RANKS = 8, N_RANKS = 5, N_STAGES = 4, N_TOPOLOGIES = N_RANKS * N_STAGES };
static const uint32_t rank_counts[N_RANKS] = {1, 2, 3, 4, 8};

typedef struct rank_job {
    uint32_t n_ranks, stage;
    ds_ctx *ctx;
    dsi_comm *comm;
    const char *folder;
    uint32_t own;     /* number of this topology */
    bool load;        /* every topology's checkpoint, in turn; else train and save */
    uint64_t *hashes; /* of all topologies: written by rank 0 when saving */
} rank_job;

static void one_step(ds_ctx *ctx, ds_engine *engine, const parity_case *p)
{
    CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
}

static void tag_of(uint32_t topology, char *tag, size_t n)
{
    (void)snprintf(tag, n, "ranks%u_stage%u", rank_counts[topology / N_STAGES],
                   topology % N_STAGES);
}

static void save_one(rank_job *job, ds_engine *engine, const parity_case *p)
{
    char tag[64];
    tag_of(job->own, tag, sizeof tag);
    one_step(job->ctx, engine, p);
    CHECK_OK(job->ctx, ds_engine_save_checkpoint(engine, job->folder, tag, NULL));
    uint64_t hash = 0;
    CHECK_OK(job->ctx, engine_hash(job->ctx, engine, &hash));
    if (ds_comm_rank(job->comm) == 0) {
        job->hashes[job->own] = hash;
    }
}

static void load_all(rank_job *job, ds_engine *engine, const parity_case *p)
{
    for (uint32_t other = 0; other < N_TOPOLOGIES; ++other) {
        char tag[64];
        tag_of(other, tag, sizeof tag);
        CHECK_OK(job->ctx, ds_engine_load_checkpoint(engine, job->folder, tag, NULL));
        uint64_t hash = 0;
        CHECK_OK(job->ctx, engine_hash(job->ctx, engine, &hash));
        if (hash != job->hashes[other]) {
            fail_msg("%s loaded on %u ranks, stage %u, is not what was saved", tag, job->n_ranks,
                     job->stage);
        }
    }
    one_step(job->ctx, engine, p);
    assert_true(isfinite(ds_engine_loss(engine)) && ds_engine_was_step_applied(engine));
    assert_int_equal(ds_engine_global_steps(engine), 2);
}

static void *run_rank(void *arg)
{
    rank_job *job = arg;
    parity_case p;
    ds_engine *engine = NULL;
    parity_open(job->ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_BF16, dsi_cpu_isa());
    spec.zero = (dsi_zero_spec){.stage = job->stage,
                                .reduce_each = true,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 5000,
                                .gather_bucket = 5000};
    const ds_engine_params params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder, .comm = job->comm};
    CHECK_OK(job->ctx, dsi_engine_create(job->ctx, &params, &spec, &engine));
    if (job->load) {
        load_all(job, engine, &p);
    } else {
        save_one(job, engine, &p);
    }
    ds_engine_destroy(&engine);
    parity_close(&p);
    return NULL;
}

static void run_topology(uint32_t topology, const char *folder, bool load, uint64_t *hashes)
{
    const uint32_t n = rank_counts[topology / N_STAGES];
    rank_job jobs[MAX_RANKS];
    ds_ctx *ctxs[MAX_RANKS] = {NULL};
    dsi_comm *comms[MAX_RANKS] = {NULL};
    pthread_t threads[MAX_RANKS];
    for (uint32_t i = 0; i < n; ++i) {
        const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
        assert_int_equal(ds_ctx_create(&params, &ctxs[i]), DS_OK);
    }
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, n, NULL, comms));
    for (uint32_t i = 0; i < n; ++i) {
        jobs[i] = (rank_job){.n_ranks = n,
                             .stage = topology % N_STAGES,
                             .ctx = ctxs[i],
                             .comm = comms[i],
                             .folder = folder,
                             .own = topology,
                             .load = load,
                             .hashes = hashes};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < n; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < n; ++i) {
        ds_ctx_destroy(&ctxs[i]);
    }
}

static void saved_anywhere_loads_anywhere(void **state)
{
    char folder[] = "/tmp/ds_topology_XXXXXX";
    char command[128];
    uint64_t hashes[N_TOPOLOGIES] = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (uint32_t t = 0; t < N_TOPOLOGIES; ++t) {
        run_topology(t, folder, false, hashes);
    }
    for (uint32_t t = 0; t < N_TOPOLOGIES; ++t) {
        run_topology(t, folder, true, hashes);
    }
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_anywhere_loads_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
