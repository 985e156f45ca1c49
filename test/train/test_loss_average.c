/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * The mean of a step's losses over micro-batches and over counted targets. Micro-batches with very
 * uneven numbers of targets, one without any; over targets one step of any ranks and accumulation
 * is the oracle's gradient of the mean over all rows at once, in every ZeRO stage; the
 * determinism law holds in every precision; a checkpoint is resumed with the rules that it was
 * saved with.
 *
 * DS_AVERAGE_CASES: random shapes and shares (default 12). */
#include "accel/cpu/cpu_features.h"
#include "common/engine_hash.h"
#include "common/parity.h"
#include "common/rank_threads.h"
#include "common/ref_model.h"
#include "common/scratch.h"

#include <deepspeed/engine_states.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512, BLOCKS = 4 };

/* Of the golden: its rows turned, with the targets that micro-batch `block` counts. */
typedef struct rows {
    int32_t ids[MOST], targets[MOST];
} rows;

static uint64_t mask_seed; /* 0: the shares below; else random ones. Ranks only read it */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 32);
}

static bool counts(int64_t block, int64_t i)
{
    if (mask_seed != 0) { /* a share of its own for each block: none, few, many or all */
        const uint64_t share = mix(mask_seed * 131 + (uint64_t)block) % 5;
        return mix(mask_seed + (uint64_t)(block * MOST + i) * 7919) % 4 < share;
    }
    switch (block % BLOCKS) {
    case 0:
        return i == 5;
    case 1:
        return true;
    case 2:
        return false;
    default:
        return i % 3 == 0;
    }
}

static void make_rows(const parity_case *p, int64_t block, rows *r)
{
    const int32_t *ids = p->tensors[0].tensor.data;
    const int64_t n = p->n_batch * p->n_seq;
    for (int64_t i = 0; i < n; ++i) {
        r->ids[i] = ids[(i + 3 * block) % n];
        r->targets[i] = counts(block, i) ? ids[(i + 3 * block + 1) % n] : -100;
    }
}

/* ---- the oracle: all blocks as one batch ----------------------------------------------------- */

typedef struct oracle {
    ref_model model;
    double loss, norm;
} oracle;

static void oracle_run(const parity_case *p, const char *folder, int64_t blocks, oracle *o)
{
    const int64_t n = p->n_batch * p->n_seq;
    int32_t *all = malloc((size_t)(4 * blocks * n) * sizeof *all);
    int32_t *part[4];
    assert_non_null(all);
    for (int k = 0; k < 4; ++k) {
        part[k] = all + k * blocks * n;
    }
    for (int64_t b = 0; b < blocks; ++b) {
        rows r;
        make_rows(p, b, &r);
        memcpy(part[0] + b * n, r.ids, (size_t)n * sizeof *all);
        memcpy(part[1] + b * n, r.targets, (size_t)n * sizeof *all);
        memcpy(part[2] + b * n, p->tensors[2].tensor.data, (size_t)n * sizeof *all);
        memcpy(part[3] + b * n, p->tensors[3].tensor.data, (size_t)n * sizeof *all);
    }
    const ref_batch batch = {blocks * p->n_batch, p->n_seq, part[0], part[1], part[2], part[3]};
    ref_model_load(&o->model, folder);
    o->loss = (double)ref_model_run(&o->model, &batch, NULL, true);
    o->norm = 0.0;
    for (size_t i = 0; i < o->model.weights.n_tensors; ++i) {
        for (size_t k = 0; k < o->model.weights.tensors[i].count; ++k) {
            o->norm += (double)o->model.grads[i][k] * (double)o->model.grads[i][k];
        }
    }
    o->norm = sqrt(o->norm);
    free(all);
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct run {
    const char *variant;
    ds_dtype dtype;
    uint32_t n_ranks, stage;
    int64_t accumulation;
    ds_loss_average average;
    bool early, not_deterministic;
    int64_t steps;
    double scale;       /* of fp16; 0: none */
    const oracle *want; /* NULL: not compared */
    double tolerance;
    /* results, of rank 0 */
    uint64_t hash;
    double loss, norm, worst;
} run;

static dsi_engine_spec spec_of(const parity_case *p, const run *r)
{
    dsi_engine_spec spec = parity_spec(p, r->dtype, dsi_cpu_isa());
    spec.average = r->average;
    spec.train.accumulation = r->accumulation;
    spec.train.keep_nonfinite = r->early;
    spec.train.max_norm = r->want != NULL || r->early ? 0.0 : 0.5;
    if (r->scale > 0.0) {
        spec.loss_scale = dsi_loss_scale_static(r->scale);
    }
    spec.zero = (dsi_zero_spec){.stage = r->stage,
                                .reduce_each = r->accumulation == 1 || !r->not_deterministic,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 1000,
                                .gather_bucket = 1000,
                                .model_persistence = INT64_MAX,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    return spec;
}

/* The largest difference of a gradient over the largest of the oracle's. */
static ds_status compare_gradients(ds_engine *engine, run *r, uint32_t rank)
{
    const golden_file *weights = &r->want->model.weights;
    for (size_t i = 0; i < weights->n_tensors; ++i) {
        const size_t n = weights->tensors[i].count;
        float *got = malloc(n * sizeof *got);
        DS_TRY(ds_engine_get_full_grad(engine, weights->tensors[i].name, got, n));
        const double d = check_relative_difference(got, r->want->model.grads[i], n);
        if (rank == 0 && d > r->worst) {
            r->worst = d;
        }
        free(got);
    }
    return DS_OK;
}

typedef struct feeder {
    const parity_case *p;
    rows rows;
    ds_named_tensor tensors[4];
    int64_t block, stride;
} feeder;

static ds_status feed(void *user, ds_batch *batch_out)
{
    feeder *f = user;
    make_rows(f->p, f->block, &f->rows);
    f->block += f->stride;
    memcpy(f->tensors, f->p->tensors, sizeof f->tensors);
    f->tensors[0].tensor.data = f->rows.ids;
    f->tensors[1].tensor.data = f->rows.targets;
    *batch_out = (ds_batch){f->tensors, 4};
    return DS_OK;
}

static ds_status train(ds_engine *engine, const parity_case *p, run *r, uint32_t rank)
{
    feeder f = {.p = p, .block = rank, .stride = r->n_ranks};
    double loss = 0.0;
    if (r->want != NULL) { /* by hand, with a look at the gradients */
        for (int64_t i = 0; i < r->accumulation; ++i) {
            ds_batch batch;
            DS_TRY(feed(&f, &batch));
            DS_TRY(ds_engine_forward(engine, &batch));
            DS_TRY(ds_engine_backward(engine));
            if (i + 1 == r->accumulation) {
                DS_TRY(compare_gradients(engine, r, rank));
            }
            DS_TRY(ds_engine_step(engine));
        }
        if (rank == 0) {
            r->norm = ds_engine_grad_norm(engine);
        }
        return DS_OK;
    }
    for (int64_t s = 0; s < r->steps; ++s) {
        DS_TRY(ds_engine_train_batch(engine, feed, &f, &loss));
        if (rank == 0 && s == 0) {
            r->loss = loss;
        }
    }
    return DS_OK;
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    run *r = arg;
    parity_case p;
    ds_engine *engine = NULL;
    uint64_t hash = 0;
    parity_open(comm->ctx, r->variant, &p);
    const dsi_engine_spec spec = spec_of(&p, r);
    const ds_engine_params params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder, .comm = comm};
    ds_status status = dsi_engine_create(comm->ctx, &params, &spec, &engine);
    status = status < 0 ? status : train(engine, &p, r, comm->rank);
    status = status < 0 ? status : engine_hash(comm->ctx, engine, &hash);
    if (comm->rank == 0) {
        r->hash = hash;
    }
    ds_engine_destroy(&engine);
    parity_close(&p);
    return status;
}

static void run_all(run *r)
{
    rank_results results;
    const ds_status status = rank_threads_run(r->n_ranks, NULL, run_rank, r, &results);
    if (status < 0) {
        fail_msg("%s", results.message[0][0] != '\0' ? results.message[0] : results.message[1]);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void gradient_is_the_oracles(void **state)
{
    static const struct {
        uint32_t n_ranks;
        int64_t accumulation;
    } shapes[] = {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}};
    static const char *const variants[] = {"gpt2", "llama3_tied"};
    ds_ctx *ctx = *state;
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; ++v) {
        char folder[64];
        parity_case p;
        (void)snprintf(folder, sizeof folder, "parity/%s", variants[v]);
        parity_open(ctx, variants[v], &p);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
            const int64_t blocks = shapes[i].n_ranks * shapes[i].accumulation;
            oracle o;
            if (!check_long_row(v + i)) {
                continue;
            }
            oracle_run(&p, folder, blocks, &o);
            for (uint32_t stage = 0; stage < 4; ++stage) {
                run r = {.variant = variants[v],
                         .dtype = DS_DTYPE_F32,
                         .n_ranks = shapes[i].n_ranks,
                         .stage = stage,
                         .accumulation = shapes[i].accumulation,
                         .average = DS_AVERAGE_TARGETS,
                         .not_deterministic = stage % 2 == 0,
                         .want = &o};
                run_all(&r);
                if (r.worst > 2e-5 || fabs(r.norm - o.norm) > 1e-5 * o.norm) {
                    fail_msg("%s, %u ranks × %lld, stage %u: off by %g; norm %.9g, the oracle's "
                             "%.9g",
                             variants[v], r.n_ranks, (long long)r.accumulation, stage, r.worst,
                             r.norm, o.norm);
                }
                if (stage == 0) { /* and the loss; the other mean is another */
                    run loss = r;
                    loss.want = NULL;
                    loss.steps = 1;
                    run_all(&loss);
                    assert_true(fabs(loss.loss - o.loss) <= 1e-5 * o.loss);
                    run other = r;
                    other.average = DS_AVERAGE_MICRO_BATCHES;
                    run_all(&other);
                    assert_true(blocks == 1 || other.worst > 0.05);
                }
            }
            ref_model_close(&o.model);
        }
        parity_close(&p);
    }
}

static void random_shares_are_the_oracles(void **state)
{
    static const char *const variants[] = {"gpt2", "llama2", "qwen2"};
    const char *given = getenv("DS_AVERAGE_CASES");
    const uint64_t n = given != NULL ? strtoull(given, NULL, 10) : 12;
    double worst = 0.0;
    for (uint64_t seed = 1; seed <= n; ++seed) {
        const uint64_t bits = mix(seed * 977);
        char folder[64];
        if (!check_long_row(seed)) {
            continue;
        }
        parity_case p;
        oracle o;
        run r = {.variant = variants[bits % 3],
                 .dtype = DS_DTYPE_F32,
                 .n_ranks = 1 + (uint32_t)(bits >> 8) % 4,
                 .stage = (uint32_t)(bits >> 16) % 4,
                 .accumulation = 1 + (int64_t)((bits >> 24) % 4),
                 .average = DS_AVERAGE_TARGETS,
                 .not_deterministic = (bits >> 32) % 2 == 0,
                 .want = &o};
        mask_seed = seed;
        (void)snprintf(folder, sizeof folder, "parity/%s", r.variant);
        parity_open(*state, r.variant, &p);
        oracle_run(&p, folder, r.n_ranks * r.accumulation, &o);
        run_all(&r);
        if (r.worst > 5e-5 || fabs(r.norm - o.norm) > 2e-5 * o.norm) {
            fail_msg("seed %llu: %s, %u ranks × %lld, stage %u: off by %g; norm %.9g, the oracle's "
                     "%.9g",
                     (unsigned long long)seed, r.variant, r.n_ranks, (long long)r.accumulation,
                     r.stage, r.worst, r.norm, o.norm);
        }
        worst = r.worst > worst ? r.worst : worst;
        run loss = r;
        loss.want = NULL;
        loss.steps = 1;
        run_all(&loss);
        assert_true(fabs(loss.loss - o.loss) <= 2e-5 * o.loss);
        ref_model_close(&o.model);
        parity_close(&p);
    }
    mask_seed = 0;
    print_message("%llu cases, the worst gradient off by %.3g\n", (unsigned long long)n, worst);
}

static void stages_have_the_same_bits(void **state)
{
    static const struct {
        ds_dtype dtype;
        double scale;
    } kinds[] = {{DS_DTYPE_F32, 0.0}, {DS_DTYPE_BF16, 0.0}, {DS_DTYPE_F16, 1024.0}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        for (int64_t accumulation = 1; accumulation <= 3; accumulation += 2) {
            uint64_t first = 0;
            for (uint32_t stage = 0; stage < 4; ++stage) {
                run r = {.variant = "gpt2",
                         .dtype = kinds[k].dtype,
                         .scale = kinds[k].scale,
                         .n_ranks = 2,
                         .stage = stage,
                         .accumulation = accumulation,
                         .average = DS_AVERAGE_TARGETS,
                         .steps = 3};
                run_all(&r);
                first = stage == 0 ? r.hash : first;
                assert_true(r.hash == first);
            }
        }
        run late = {.variant = "gpt2",
                    .dtype = DS_DTYPE_BF16,
                    .n_ranks = 2,
                    .stage = (uint32_t)k,
                    .accumulation = 1,
                    .average = DS_AVERAGE_TARGETS,
                    .steps = 3,
                    .early = true};
        run_all(&late);
        static uint64_t early_hash;
        early_hash = k == 0 ? late.hash : early_hash;
        assert_true(late.hash == early_hash);
    }
}

static void a_checkpoint_keeps_its_rules(void **state)
{
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    parity_case p;
    parity_open(ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    spec.average = DS_AVERAGE_TARGETS;
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    feeder f = {.p = &p, .stride = 1};
    CHECK_OK(ctx, ds_engine_train_batch(engine, feed, &f, NULL));
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, NULL, NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL));
    ds_engine_destroy(&engine);
    spec.average = DS_AVERAGE_MICRO_BATCHES;
    engine = parity_engine(ctx, &p, &spec);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL), DS_ERR_CONFIG,
                "loss averaged over targets (loss_average), this run averages over micro-batches");
    ds_engine_destroy(&engine);
    spec.average = DS_AVERAGE_TARGETS;
    spec.decay_all = !spec.decay_all;
    engine = parity_engine(ctx, &p, &spec);
    CHECK_FAILS(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL), DS_ERR_CONFIG,
                "decay_all");
    ds_engine_destroy(&engine);
    parity_close(&p);
    scratch_remove(folder);
}

static void refuses_what_is_not_built(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_open(ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    const ds_engine_params params = {.model = p.model, .seq_length = p.n_seq, .weights = p.folder};
    ds_engine *engine = NULL;
    spec.average = DS_AVERAGE_TARGETS;
    spec.zero.sum = true;
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_CONFIG,
                "gradient_allreduce_op");
    parity_close(&p);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_the_oracles),
        cmocka_unit_test(random_shares_are_the_oracles),
        cmocka_unit_test(stages_have_the_same_bits),
        cmocka_unit_test(a_checkpoint_keeps_its_rules),
        cmocka_unit_test(refuses_what_is_not_built),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
