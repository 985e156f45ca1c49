/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads slow
 * ZeRO over simulated ranks: the determinism law. For one world size every stage, bucket size and
 * transport gives the same weights bit for bit; one rank gives the same gradients within rounding.
 */
#include "accel/cpu/cpu_features.h"
#include "comm/sim.h"
#include "common/engine_hash.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "common/small_run.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 8, STEPS = 3 };

typedef struct run {
    const char *model;
    ds_dtype dtype;
    uint32_t n_ranks;
    uint32_t stage, hpz;
    int64_t bucket;
    int64_t accumulation;
    bool deterministic;
    double scale; /* initial loss scale of fp16; 0: none */
    int64_t persistence;
    bool overlap, reorder, narrow;
    dsi_residency away; /* of states, parameters and activations */
    const char *folder; /* on disk */
} run;

typedef struct result {
    uint64_t hash; /* of all weights, in fp32 */
    double norm;
    uint64_t skipped;
    dsi_engine_bytes bytes;
} result;

typedef struct rank_job {
    const run *r;
    ds_ctx *ctx;
    dsi_comm *comm;
    result result;
} rank_job;

static dsi_engine_spec make_spec(const parity_case *p, const run *r)
{
    dsi_engine_spec spec = parity_spec(p, r->dtype, dsi_cpu_isa());
    spec.train.max_norm = 0.5;
    spec.train.accumulation = r->accumulation;
    spec.zero = (dsi_zero_spec){.stage = r->stage,
                                .hpz = r->hpz,
                                .reduce_each = r->accumulation == 1 || r->deterministic,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = r->bucket,
                                .gather_bucket = r->bucket,
                                .persistence_threshold = r->persistence,
                                .model_persistence = INT64_MAX,
                                .max_live = r->bucket,
                                .max_reuse_distance = r->bucket};
    spec.train.accumulate_dtype = r->narrow ? r->dtype : spec.train.accumulate_dtype;
    spec.overlap = r->overlap;
    spec.prefetch = r->bucket;
    spec.offload = small_away(r->folder != NULL ? r->folder : "", r->away,
                              r->stage == 3 ? r->away : DSI_RESIDENCY_DEVICE);
    spec.offload.how = (dsi_offload){.chunk = 3000, .activations = r->away};
    if (r->scale > 0.0) {
        spec.loss_scale = dsi_loss_scale_dynamic(r->scale, 2, 1.0, 1, false);
    }
    return spec;
}

/* Ranks and micro-steps see different rows: the golden ids, turned round. */
static void turn_batch(const parity_case *p, int64_t by, int32_t *ids)
{
    const int32_t *golden = p->tensors[0].tensor.data;
    const int64_t n = p->n_batch * p->n_seq;
    for (int64_t i = 0; i < n; ++i) {
        ids[i] = golden[(i + by) % n];
    }
}

static void *run_rank(void *arg)
{
    rank_job *job = arg;
    const run *r = job->r;
    parity_case p;
    ds_engine *engine = NULL;
    parity_open(job->ctx, r->model, &p);
    const dsi_engine_spec spec = make_spec(&p, r);
    const ds_engine_params params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder, .comm = job->comm};
    int32_t *ids = malloc((size_t)(p.n_batch * p.n_seq) * sizeof *ids);
    CHECK_OK(job->ctx, dsi_engine_create(job->ctx, &params, &spec, &engine));
    for (int64_t step = 0; step < STEPS * r->accumulation; ++step) {
        ds_named_tensor tensors[4];
        memcpy(tensors, p.tensors, sizeof tensors);
        turn_batch(&p, 3 * (step * r->n_ranks + ds_comm_rank(job->comm)), ids);
        tensors[0].tensor.data = ids;
        const ds_batch batch = {tensors, p.batch.n_tensors};
        CHECK_OK(job->ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(job->ctx, ds_engine_backward(engine));
        CHECK_OK(job->ctx, ds_engine_step(engine));
        if (step + 1 == r->accumulation) {
            job->result.norm = ds_engine_grad_norm(engine);
        }
    }
    job->result.skipped = ds_engine_skipped_steps(engine);
    dsi_engine_memory(engine, &job->result.bytes);
    CHECK_OK(job->ctx, engine_hash(job->ctx, engine, &job->result.hash));
    ds_engine_destroy(&engine);
    parity_close(&p);
    free(ids);
    return NULL;
}

/* Runs all ranks as threads; every rank must come to the same result. */
static result run_all(const run *r)
{
    rank_job jobs[MAX_RANKS] = {{0}};
    ds_ctx *ctxs[MAX_RANKS];
    dsi_comm *comms[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    for (uint32_t i = 0; i < r->n_ranks; ++i) {
        const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
        assert_int_equal(ds_ctx_create(&params, &ctxs[i]), DS_OK);
    }
    const dsi_comm_sim_options options = {.seed = 7, .reorder = r->reorder};
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, r->n_ranks, &options, comms));
    for (uint32_t i = 0; i < r->n_ranks; ++i) {
        jobs[i] = (rank_job){.r = r, .ctx = ctxs[i], .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < r->n_ranks; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (uint32_t i = 0; i < r->n_ranks; ++i) {
        assert_true(jobs[i].result.hash == jobs[0].result.hash);
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < r->n_ranks; ++i) {
        ds_ctx_destroy(&ctxs[i]);
    }
    return jobs[0].result;
}

static void *fail_to_start(void *arg)
{
    rank_job *job = arg;
    parity_case p;
    ds_engine *engine = NULL;
    parity_open(job->ctx, job->r->model, &p);
    const dsi_engine_spec spec = make_spec(&p, job->r);
    const ds_engine_params params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder, .comm = job->comm};
    CHECK_FAILS(job->ctx, dsi_engine_create(job->ctx, &params, &spec, &engine), DS_ERR_PEER,
                "rank 1 has another plan than rank 0");
    parity_close(&p);
    return NULL;
}

static void print_run(const run *r, const result *got)
{
    print_message(
        "%-13s %-4s ranks %u stage %u bucket %lld accumulation %lld%s%s: %016llx norm %.9g "
        "skipped %llu\n",
        r->model, ds_dtype_name(r->dtype), r->n_ranks, r->stage, (long long)r->bucket,
        (long long)r->accumulation, r->deterministic ? " deterministic" : "",
        r->overlap ? " overlap" : "", (unsigned long long)got->hash, got->norm,
        (unsigned long long)got->skipped);
}

/* first..last: stages that must agree. */
static result same_bits(const run *base, uint32_t first_stage, uint32_t last_stage)
{
    static const int64_t buckets[] = {1000, 1000000000, 5000};
    result first = {0};
    bool have = false;
    for (uint32_t stage = first_stage; stage <= last_stage; ++stage) {
        for (size_t b = 0; b < 3; ++b) {
            run r = *base;
            r.stage = stage;
            r.bucket = buckets[b];
            r.persistence = b == 0 ? 0 : 200;
            r.overlap = b != 1;
            r.reorder = b == 2;
            const result got = run_all(&r);
            print_run(&r, &got);
            if (have && got.hash != first.hash) {
                fail_msg("stage %u with buckets of %lld gives other bits", stage,
                         (long long)buckets[b]);
            }
            first = have ? first : got;
            have = true;
        }
    }
    return first;
}

static void stages_give_the_same_bits(void **state)
{
    static const run cases[] = {
        {.model = "gpt2", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "llama3_tied", .dtype = DS_DTYPE_F32, .n_ranks = 3, .accumulation = 1},
        {.model = "qwen3",
         .dtype = DS_DTYPE_F16,
         .n_ranks = 4,
         .accumulation = 1,
         .scale = 131072.0},
        {.model = "gpt2",
         .dtype = DS_DTYPE_BF16,
         .n_ranks = 3,
         .accumulation = 2,
         .deterministic = true},
        {.model = "llama2", .dtype = DS_DTYPE_BF16, .n_ranks = 8, .accumulation = 1},
        {.model = "olmo2", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "granite", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "smollm3", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "starcoder2", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "stablelm", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "gpt_neox", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "phi3", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "glm4", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "cohere", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "gemma2", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "gemma3", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "phi3_longrope", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "olmo", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "gptj", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "opt", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "falcon_groups", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "bloom", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "mpt", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
        {.model = "cohere_norms", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1},
        {.model = "cohere2", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        if (!check_long_row(i)) {
            continue;
        }
        const result got = same_bits(&cases[i], 0, 3);
        if (cases[i].scale > 0.0) { /* one overflow, then updates */
            assert_true(got.skipped > 0 && got.skipped < STEPS);
        }
    }
}

/* Nor does it matter where everything lives between its uses. */
static void residence_gives_the_same_bits(void **state)
{
    static const run cases[] = {
        {.model = "gpt2", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 1, .bucket = 5000},
        {.model = "llama3_tied",
         .dtype = DS_DTYPE_F32,
         .n_ranks = 3,
         .accumulation = 2,
         .deterministic = true,
         .bucket = 5000},
    };
    char *folder = scratch_make();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        run r = cases[i];
        const result kept = run_all(&r);
        r.overlap = true;
        r.folder = folder;
        for (r.stage = 1; r.stage <= 3; ++r.stage) {
            r.away = r.stage == 2 ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DISK;
            const result got = run_all(&r);
            print_run(&r, &got);
            assert_true(got.hash == kept.hash);
        }
    }
    scratch_remove(folder);
}

/* Without `deterministic` stages 0 and 1 add before they reduce, 2 and 3 after. */
static void accumulation_splits_the_stages(void **state)
{
    const run r = {.model = "gpt2", .dtype = DS_DTYPE_BF16, .n_ranks = 2, .accumulation = 2};
    (void)state;
    const result early = same_bits(&r, 0, 1);
    const result late = same_bits(&r, 2, 3);
    assert_true(early.hash != late.hash);
    assert_true(fabs(early.norm - late.norm) < 0.01 * late.norm);
}

/* With gradients accumulated in bf16 the formula is ZeRO's: 16P, 4P+12P/N, 2P+14P/N, 16P/N. */
static void states_weigh_what_the_formula_says(void **state)
{
    static const uint32_t ranks[] = {1, 2, 3, 8};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; ++i) {
        for (uint32_t stage = 0; stage <= 3; ++stage) {
            const run r = {.model = "gpt2",
                           .dtype = DS_DTYPE_BF16,
                           .n_ranks = ranks[i],
                           .stage = stage,
                           .accumulation = 2,
                           .narrow = true,
                           .bucket = 1000000};
            const result got = run_all(&r);
            const double n = ranks[i];
            const double p = got.bytes.formula[0] / 2.0 * (stage == 3 ? n : 1.0);
            const double known[] = {16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n, 16 * p / n};
            double held = 0.0;
            double formula = 0.0;
            for (int s = 0; s < 4; ++s) {
                held += got.bytes.held[s];
                formula += got.bytes.formula[s];
            }
            print_message("ranks %u stage %u: %.0f bytes of model states, formula %.0f (%.4f)\n",
                          ranks[i], stage, held, known[stage], held / known[stage]);
            assert_true(fabs(formula - known[stage]) < 1e-6 * formula);
            assert_true(held >= formula && held < 1.02 * formula);
        }
    }
}

/* hpZ: 2P/S of the parameters, 14P/N of all else. */
static void states_of_hpz_are_over_all_ranks(void **state)
{
    run r = {.model = "gpt2",
             .dtype = DS_DTYPE_BF16,
             .n_ranks = 4,
             .stage = 3,
             .accumulation = 2,
             .narrow = true,
             .bucket = 1000000};
    (void)state;
    const result plain = run_all(&r);
    r.hpz = 2;
    const result grouped = run_all(&r);
    assert_true(plain.hash == grouped.hash);
    for (int s = 0; s < 4; ++s) {
        const double times = s == DSI_MEMORY_PARAM ? 2.0 : 1.0;
        const double formula = times * plain.bytes.formula[s];
        assert_true(fabs(grouped.bytes.formula[s] - formula) < 1e-6 * formula);
        assert_true(grouped.bytes.held[s] >= formula && grouped.bytes.held[s] < 1.02 * formula);
    }
}

/* A rank that was started with another configuration names itself to all. */
static void another_plan_is_refused(void **state)
{
    static const run r[2] = {
        {.model = "gpt2", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1, .bucket = 1000},
        {.model = "gpt2", .dtype = DS_DTYPE_F32, .n_ranks = 2, .accumulation = 1, .bucket = 9000}};
    rank_job jobs[2];
    ds_ctx *ctxs[2];
    dsi_comm *comms[2];
    pthread_t threads[2];
    (void)state;
    for (uint32_t i = 0; i < 2; ++i) {
        const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
        assert_int_equal(ds_ctx_create(&params, &ctxs[i]), DS_OK);
    }
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, 2, NULL, comms));
    for (uint32_t i = 0; i < 2; ++i) {
        jobs[i] = (rank_job){.r = &r[i], .ctx = ctxs[i], .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, fail_to_start, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < 2; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < 2; ++i) {
        ds_ctx_destroy(&ctxs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(residence_gives_the_same_bits),
        cmocka_unit_test(accumulation_splits_the_stages),
        cmocka_unit_test(another_plan_is_refused),
        cmocka_unit_test(states_weigh_what_the_formula_says),
        cmocka_unit_test(states_of_hpz_are_over_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
