/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * 1-bit optimizers: DeepSpeed's own trajectories (test/golden/optim/onebit.safetensors, made by
 * make_onebit.py from its classes), one and several ranks; resuming at every step; other ranks. */
#include "accel/cpu/cpu_features.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"
#include "common/sim_ranks.h"
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 16, FREEZE = 4, VAR_FREEZE = 6, MOST_RANKS = 4, N_A = 35, N_B = 29 };

/* The gradients of the weights are what comes in. */
static void trace_net(ds_nn *nn, const void *config)
{
    const ds_init init = {.kind = DS_INIT_NORMAL, .std = 1.0};
    const ds_shape shape = ds_shape_2d(5, 7);
    const ds_value a = ds_nn_param(nn, "a", shape, init, false);
    const ds_value b = ds_nn_param(nn, "b", ds_shape_1d(N_B), init, false);
    const ds_dtype dtype = ds_nn_trace(nn)->dtype;
    const ds_value da = ds_nn_cast(nn, ds_nn_input(nn, "a", DS_DTYPE_F32, shape), dtype);
    const ds_value db = ds_nn_cast(nn, ds_nn_input(nn, "b", DS_DTYPE_F32, ds_shape_1d(N_B)), dtype);
    (void)config;
    ds_nn_output(nn, "loss",
                 ds_nn_add(nn, ds_nn_sum_all(nn, ds_nn_mul(nn, a, da)),
                           ds_nn_sum_all(nn, ds_nn_mul(nn, b, db))));
}

typedef struct setting {
    ds_optimizer_kind kind;
    ds_dtype dtype;
    double max_norm;
} setting;

static dsi_engine_spec make_spec(const setting *s)
{
    const bool zero_one = s->kind == DS_OPTIMIZER_ZERO_ONE_ADAM;
    return (dsi_engine_spec){.train = {.dtype = s->dtype,
                                       .comm_dtype = s->dtype,
                                       .accumulate_dtype = DS_DTYPE_F32,
                                       .state_dtype = DS_DTYPE_F32,
                                       .master = s->dtype != DS_DTYPE_F32,
                                       .batch = 1,
                                       .seq_length = 1,
                                       .accumulation = 1,
                                       .optimizer = s->kind,
                                       .eps = 1e-6,
                                       .decoupled_decay = true,
                                       .max_norm = s->max_norm,
                                       .max_coeff = 10.0,
                                       .min_coeff = 0.01,
                                       .onebit = {.on = true,
                                                  .freeze_step = zero_one ? VAR_FREEZE : FREEZE,
                                                  .var_update_scaler = 2,
                                                  .local_step_scaler = 3,
                                                  .local_step_clipper = 4,
                                                  .coeff_beta = 0.9,
                                                  .factor_max = 4.0,
                                                  .factor_min = 0.5,
                                                  .factor_threshold = 0.1}},
                             .zero = {.own_states = zero_one,
                                      .comm_dtype = s->dtype,
                                      .reduce_bucket = 200,
                                      .gather_bucket = 200},
                             .lr = 1e-2,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .weight_decay = 0.02,
                             .decay_all = true,
                             .loss_scale = dsi_loss_scale_none(),
                             .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                             .seed = 11,
                             .isa = dsi_cpu_isa()};
}

/* What the ranks share. */
typedef struct run {
    const setting *s;
    const golden_file *file;
    const char *name; /* in the file, with the number of ranks behind it */
    double most;      /* rank 0: the largest difference of a weight */
} run;

static const float *at(const run *r, uint32_t n_ranks, const char *param, const char *what)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%s%u.%s.%s", r->name, n_ranks, param, what);
    return golden_f32(r->file, path);
}

static ds_status feed(ds_engine *engine, const float *a, const float *b)
{
    const ds_named_tensor tensors[2] = {
        {"a", {(void *)(uintptr_t)a, {DS_DTYPE_F32, ds_shape_2d(5, 7)}}},
        {"b", {(void *)(uintptr_t)b, {DS_DTYPE_F32, ds_shape_1d(N_B)}}}};
    const ds_batch batch = {tensors, 2};
    DS_TRY(ds_engine_forward(engine, &batch));
    DS_TRY(ds_engine_backward(engine));
    return ds_engine_step(engine);
}

static ds_status compare(run *r, ds_engine *engine, uint32_t n_ranks, int step)
{
    static const char *const names[2] = {"a", "b"};
    static const size_t counts[2] = {N_A, N_B};
    float data[N_A];
    for (int i = 0; i < 2; ++i) {
        const float *want = at(r, n_ranks, names[i], "weights") + (size_t)step * counts[i];
        if (step == 0) {
            DS_TRY(ds_engine_set(engine, DS_CELL_PARAM, names[i], want, counts[i]));
        }
        DS_TRY(ds_engine_get(engine, DS_CELL_PARAM, names[i], data, counts[i]));
        for (size_t k = 0; k < counts[i] && ds_comm_rank(engine->comm) == 0; ++k) {
            r->most = fmax(r->most, fabs((double)data[k] - (double)want[k]));
        }
    }
    return DS_OK;
}

static ds_status follow(ds_ctx *ctx, dsi_comm *world, ds_model *model, run *r)
{
    const dsi_engine_spec spec = make_spec(r->s);
    const ds_engine_params params = {.model = model, .seq_length = 1, .seed = 5, .comm = world};
    const uint32_t n = ds_comm_size(world);
    const uint32_t rank = ds_comm_rank(world);
    ds_engine *engine = NULL;
    DS_TRY(dsi_engine_create(ctx, &params, &spec, &engine));
    const float *a = at(r, n, "a", "grads");
    const float *b = at(r, n, "b", "grads");
    ds_status status = compare(r, engine, n, 0);
    for (int step = 0; step < STEPS && status >= 0; ++step) {
        const size_t row = (size_t)step * n + rank;
        status = feed(engine, a + row * N_A, b + row * N_B);
        status = status >= 0 ? compare(r, engine, n, step + 1) : status;
    }
    ds_engine_destroy(&engine);
    return status;
}

static uint32_t follow_rank(ds_ctx *ctx, dsi_comm *world, void *arg)
{
    const ds_model_info info = {.architecture = "net"};
    ds_model *model = NULL;
    ds_status status = ds_model_custom(ctx, &info, trace_net, NULL, &model);
    status = status >= 0 ? follow(ctx, world, model, arg) : status;
    if (status < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
    }
    ds_model_destroy(&model);
    return status < 0 ? 1 : 0;
}

static void deepspeeds_trajectories(void **state)
{
    static const struct {
        const char *name;
        setting s;
        uint32_t least, most;
    } cases[] = {{"adam", {DS_OPTIMIZER_ONEBIT_ADAM, DS_DTYPE_F32, 0.0}, 1, MOST_RANKS},
                 {"lamb", {DS_OPTIMIZER_ONEBIT_LAMB, DS_DTYPE_F32, 0.0}, 1, MOST_RANKS},
                 {"zero_one", {DS_OPTIMIZER_ZERO_ONE_ADAM, DS_DTYPE_F32, 0.0}, 2, MOST_RANKS},
                 {"clip", {DS_OPTIMIZER_ONEBIT_ADAM, DS_DTYPE_F32, 0.3}, 2, 2}};
    golden_file file = golden_read("optim/onebit.safetensors");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        for (uint32_t ranks = cases[i].least; ranks <= cases[i].most; ranks *= 2) {
            run r = {.s = &cases[i].s, .file = &file, .name = cases[i].name};
            assert_int_equal(sim_ranks_run(ranks, NULL, follow_rank, &r), 0);
            print_message("%s, %u ranks: %d steps, off by %.2g\n", r.name, ranks, STEPS, r.most);
            assert_true(r.most < 2e-6);
        }
    }
    golden_close(&file);
}

/* ---- saving and resuming, skipping ----------------------------------------------------------- */

/* Runs some steps of the golden file's gradients, and what the ranks share of it. */
typedef struct part {
    const golden_file *file;
    ds_optimizer_kind kind;
    const char *from, *to; /* folders to resume from and to save to; NULL: none */
    int steps;             /* up to which */
    int poisoned;          /* a step in which the last rank's gradient is not finite; -1: none */
    float weights[N_A];    /* of rank 0, at the end */
    uint64_t skipped;
} part;

static ds_status run_part(ds_ctx *ctx, dsi_comm *world, ds_model *model, part *p)
{
    const setting s = {p->kind, DS_DTYPE_F32, 0.0};
    const dsi_engine_spec spec = make_spec(&s);
    const ds_engine_params params = {.model = model, .seq_length = 1, .seed = 5, .comm = world};
    const run grads = {.file = p->file, .name = "adam"};
    const uint32_t n = ds_comm_size(world);
    const uint32_t rank = ds_comm_rank(world);
    const float *a = at(&grads, n, "a", "grads");
    const float *b = at(&grads, n, "b", "grads");
    ds_engine *engine = NULL;
    DS_TRY(dsi_engine_create(ctx, &params, &spec, &engine));
    ds_status status =
        p->from != NULL ? ds_engine_load_checkpoint(engine, p->from, NULL, NULL) : DS_OK;
    for (int step = (int)ds_engine_global_steps(engine); step < p->steps && status >= 0; ++step) {
        const size_t row = (size_t)step * n + rank;
        float own[N_A];
        memcpy(own, a + row * N_A, sizeof own);
        own[7] = step == p->poisoned && rank == n - 1 ? INFINITY : own[7];
        status = feed(engine, own, b + row * N_B);
    }
    if (status >= 0 && p->to != NULL) {
        status = ds_engine_save_checkpoint(engine, p->to, NULL, NULL);
    }
    if (status >= 0) {
        float data[N_A];
        status = ds_engine_get(engine, DS_CELL_PARAM, "a", data, N_A);
        if (rank == 0) {
            memcpy(p->weights, data, sizeof data);
            p->skipped = ds_engine_skipped_steps(engine);
        }
    }
    ds_engine_destroy(&engine);
    return status;
}

static uint32_t part_rank(ds_ctx *ctx, dsi_comm *world, void *arg)
{
    const ds_model_info info = {.architecture = "net"};
    ds_model *model = NULL;
    ds_status status = ds_model_custom(ctx, &info, trace_net, NULL, &model);
    status = status >= 0 ? run_part(ctx, world, model, arg) : status;
    if (status < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
    }
    ds_model_destroy(&model);
    return status < 0 ? 1 : 0;
}

static void resume(const golden_file *file, ds_optimizer_kind kind)
{
    char *scratch = scratch_make();
    part whole = {.file = file, .kind = kind, .steps = STEPS, .poisoned = -1};
    part rest = whole;
    rest.from = scratch;
    assert_int_equal(sim_ranks_run(2, NULL, part_rank, &whole), 0);
    for (int step = 1; step < STEPS; ++step) {
        part first = whole;
        first.to = scratch;
        first.steps = step;
        assert_int_equal(sim_ranks_run(2, NULL, part_rank, &first), 0);
        assert_int_equal(sim_ranks_run(2, NULL, part_rank, &rest), 0);
        assert_memory_equal(rest.weights, whole.weights, sizeof whole.weights);
    }
    assert_int_equal(sim_ranks_run(4, NULL, part_rank, &rest), 0); /* errors start at zero */
    assert_int_equal(sim_ranks_run(1, NULL, part_rank, &rest), 0); /* there are none */
    scratch_remove(scratch);
}

static void resumes_at_every_step(void **state)
{
    golden_file file = golden_read("optim/onebit.safetensors");
    (void)state;
    resume(&file, DS_OPTIMIZER_ONEBIT_ADAM);
    resume(&file, DS_OPTIMIZER_ONEBIT_LAMB);
    resume(&file, DS_OPTIMIZER_ZERO_ONE_ADAM);
    golden_close(&file);
}

/* One rank's gradient that is not finite skips the step on all, in the warm-up and behind it, and
 * loses nothing of the errors: a run without that step ends alike. */
static void skips_on_all_ranks(void **state)
{
    golden_file file = golden_read("optim/onebit.safetensors");
    (void)state;
    for (int step = 2; step < STEPS; ++step) {
        part without = {&file, DS_OPTIMIZER_ONEBIT_LAMB, .steps = step, .poisoned = -1};
        part with = {&file, DS_OPTIMIZER_ONEBIT_LAMB, .steps = step + 1, .poisoned = step};
        assert_int_equal(sim_ranks_run(2, NULL, part_rank, &without), 0);
        assert_int_equal(sim_ranks_run(2, NULL, part_rank, &with), 0);
        assert_int_equal(with.skipped, 1);
        assert_memory_equal(with.weights, without.weights, sizeof with.weights);
    }
    golden_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepspeeds_trajectories),
        cmocka_unit_test(resumes_at_every_step),
        cmocka_unit_test(skips_on_all_ranks),
    };
    return cmocka_run_group_tests_name("onebit", tests, NULL, NULL);
}
