/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads slow
 * What a step does, against plain arithmetic: learning rate, weight decay, clipping, loss scale and
 * boundaries; random numbers by step and sample; and a run of everything at once, dropout,
 * schedule, override, overflows, that is resumed from each of its steps bit for bit. */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "common/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

/* A golden model, its dropout switched on. */
typedef struct bench {
    parity_case p;
    char *folder;
    int32_t *turned; /* room for other token ids */
} bench;

static void open_bench(bench *b, const char *name, bool dropout)
{
    size_t n = 0;
    parity_open(ctx, name, &b->p);
    b->folder = scratch_make();
    b->turned = malloc((size_t)(b->p.n_batch * b->p.n_seq) * sizeof *b->turned);
    assert_non_null(b->turned);
    if (dropout) {
        char *text = scratch_read(scratch_path(b->p.folder, "config.json"), &n);
        static const char *const keys[] = {"\"resid_pdrop\": 0.", "\"attn_pdrop\": 0."};
        for (int i = 0; i < 2; ++i) {
            char *at = strstr(text, keys[i]);
            assert_non_null(at);
            at[strlen(keys[i])] = '2';
        }
        scratch_write(scratch_path(b->folder, "config.json"), text, n);
        free(text);
        ds_model_destroy(&b->p.model);
        CHECK_OK(ctx,
                 ds_model_from_config(ctx, scratch_path(b->folder, "config.json"), &b->p.model));
    }
}

static void close_bench(bench *b)
{
    parity_close(&b->p);
    scratch_remove(b->folder);
    free(b->turned);
}

/* The golden rows with their ids turned round: other data of the same shape. */
static ds_batch other_batch(bench *b, int64_t by, ds_named_tensor tensors[4])
{
    const int32_t *ids = b->p.tensors[0].tensor.data;
    const int64_t n = b->p.n_batch * b->p.n_seq;
    for (int64_t i = 0; i < n; ++i) {
        b->turned[i] = ids[(i + by) % n];
    }
    memcpy(tensors, b->p.tensors, sizeof b->p.tensors);
    tensors[0].tensor.data = b->turned;
    return (ds_batch){tensors, 4};
}

static double micro_step(ds_engine *engine, const ds_batch *batch)
{
    CHECK_OK(ctx, ds_engine_forward(engine, batch));
    const double loss = ds_engine_loss(engine);
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
    return loss;
}

static float *copy_of(const ds_engine *engine, ds_cell_kind kind, const char *name, size_t *n_out)
{
    const ds_cells *cells = ds_engine_cells(engine);
    const ds_cell cell = ds_cells_find(cells, DS_CELL_PARAM, name);
    assert_int_not_equal(cell, DS_NONE);
    *n_out = (size_t)ds_shape_count(ds_cells_get(cells, cell)->meta.shape);
    float *data = malloc(*n_out * sizeof *data);
    assert_non_null(data);
    CHECK_OK(ctx, ds_engine_get(engine, kind, name, data, *n_out));
    return data;
}

/* ---- one step of SGD without momentum: w -= lr·(factor·g + decay·w) ------------------------- */
typedef struct sgd_case {
    ds_dtype dtype;
    double scale, max_norm, decay, forced_lr;
    bool decay_all;
} sgd_case;

static void check_update(const sgd_case *c, const ds_engine *engine, const char *name, double decay,
                         double lr, const float *before, const float *gradient)
{
    size_t n = 0;
    float *after = copy_of(engine, DS_CELL_PARAM, name, &n);
    const double norm = ds_engine_grad_norm(engine);
    const double clip = c->max_norm > 0.0 ? fmin(1.0, c->max_norm / (norm + 1e-6)) : 1.0;
    double worst = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < n; ++i) {
        const double w = (double)before[i];
        const double step = lr * ((double)gradient[i] / c->scale * clip + decay * w);
        worst = fmax(worst, fabs((double)after[i] - (w - step)));
        largest = fmax(largest, fabs(step));
    }
    assert_true(largest > 1e-5);
    if (worst > 2e-3 * largest + 1e-7) {
        fail_msg("%s: off by %g of %g", name, worst, largest);
    }
    free(after);
}

static void sgd_step(const sgd_case *c)
{
    static const char *const names[2] = {"transformer.h.1.mlp.c_fc.weight",
                                         "transformer.h.1.ln_1.weight"};
    bench b;
    open_bench(&b, "gpt2", false);
    dsi_engine_spec spec = parity_spec(&b.p, c->dtype, dsi_cpu_isa());
    spec.train.optimizer = DS_OPTIMIZER_SGD;
    spec.train.comm_dtype = DS_DTYPE_F32;
    spec.train.max_norm = c->max_norm;
    spec.lr = 0.25;
    spec.weight_decay = c->decay;
    spec.decay_all = c->decay_all;
    spec.loss_scale = c->scale != 1.0 ? dsi_loss_scale_static(c->scale) : dsi_loss_scale_none();
    ds_engine *engine = parity_engine(ctx, &b.p, &spec);
    if (c->forced_lr >= 0.0) {
        CHECK_OK(ctx, ds_engine_set_lr(engine, c->forced_lr));
    }
    const double lr = c->forced_lr >= 0.0 ? c->forced_lr : spec.lr;
    assert_true(ds_engine_lr(engine) == lr);
    float *before[2];
    float *gradient[2];
    size_t n = 0;
    for (int i = 0; i < 2; ++i) {
        before[i] = copy_of(engine, DS_CELL_PARAM, names[i], &n);
    }
    CHECK_OK(ctx, ds_engine_forward(engine, &b.p.batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    for (int i = 0; i < 2; ++i) {
        gradient[i] = copy_of(engine, DS_CELL_GRAD, names[i], &n);
    }
    CHECK_OK(ctx, ds_engine_step(engine));
    assert_true(ds_engine_grad_norm(engine) > 2.0 * c->max_norm); /* so that clipping matters */
    check_update(c, engine, names[0], c->decay, lr, before[0], gradient[0]);
    check_update(c, engine, names[1], c->decay_all ? c->decay : 0.0, lr, before[1], gradient[1]);
    for (int i = 0; i < 2; ++i) {
        free(before[i]);
        free(gradient[i]);
    }
    ds_engine_destroy(&engine);
    close_bench(&b);
}

static void sgd_by_hand(void **state)
{
    static const sgd_case cases[] = {
        {DS_DTYPE_F32, 1.0, 0.0, 0.0, -1.0, false},  {DS_DTYPE_F32, 1.0, 0.1, 0.0, -1.0, false},
        {DS_DTYPE_F32, 1.0, 0.0, 0.5, -1.0, false},  {DS_DTYPE_F32, 1.0, 0.0, 0.5, -1.0, true},
        {DS_DTYPE_F16, 64.0, 0.0, 0.0, -1.0, false}, {DS_DTYPE_F16, 64.0, 0.1, 0.5, 0.75, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        sgd_step(&cases[i]);
    }
}

/* Adam's first step with bias correction moves each weight by lr, whatever the gradient. */
static void adam_first_step(void **state)
{
    const char *name = "model.layers.1.mlp.up_proj.weight";
    bench b;
    size_t n = 0;
    (void)state;
    open_bench(&b, "llama3", false);
    dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F32, dsi_cpu_isa());
    spec.weight_decay = 0.0;
    spec.train.eps = 1e-12;
    ds_engine *engine = parity_engine(ctx, &b.p, &spec);
    float *before = copy_of(engine, DS_CELL_PARAM, name, &n);
    (void)micro_step(engine, &b.p.batch);
    float *gradient = copy_of(engine, DS_CELL_GRAD, name, &n);
    float *after = copy_of(engine, DS_CELL_PARAM, name, &n);
    for (size_t i = 0; i < n; ++i) {
        const double moved = (double)before[i] - (double)after[i];
        const double want = gradient[i] > 0.0f ? spec.lr : gradient[i] < 0.0f ? -spec.lr : 0.0;
        if (fabsf(gradient[i]) > 1e-6f) {
            assert_true(fabs(moved - want) < 1e-3 * spec.lr);
        }
    }
    free(before);
    free(gradient);
    free(after);
    ds_engine_destroy(&engine);
    close_bench(&b);
}

/* ---- counters and boundaries ----------------------------------------------------------------- */
static void boundaries(void **state)
{
    bench b;
    (void)state;
    open_bench(&b, "gpt2", false);
    dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F32, DS_ISA_REF);
    spec.train.accumulation = 3;
    ds_engine *engine = parity_engine(ctx, &b.p, &spec);
    for (int i = 0; i < 3; ++i) { /* by counting */
        assert_int_equal(ds_engine_is_accumulation_boundary(engine), i == 2);
        (void)micro_step(engine, &b.p.batch);
        assert_int_equal(ds_engine_was_step_applied(engine), i == 2);
        assert_int_equal(ds_engine_global_steps(engine), i == 2);
        if (i < 2) {
            CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, "/nowhere", NULL, NULL),
                        DS_ERR_STATE, "of 3 micro-batches are accumulated");
        }
    }
    assert_int_equal(ds_engine_global_samples(engine), 3 * b.p.n_batch);
    CHECK_OK(ctx, ds_engine_set_accumulation_boundary(engine, 1)); /* after one instead of three */
    (void)micro_step(engine, &b.p.batch);
    assert_int_equal(ds_engine_global_steps(engine), 2);
    assert_int_equal(ds_engine_global_samples(engine), 4 * b.p.n_batch);
    for (int i = 0; i < 2; ++i) { /* forced once, not for ever */
        (void)micro_step(engine, &b.p.batch);
        assert_int_equal(ds_engine_global_steps(engine), 2);
    }
    CHECK_OK(ctx, ds_engine_set_accumulation_boundary(engine, 0));
    (void)micro_step(engine, &b.p.batch); /* would have been one */
    assert_int_equal(ds_engine_global_steps(engine), 2);
    CHECK_FAILS(ctx, ds_engine_set_accumulation_boundary(engine, 2), DS_ERR_ARG, "-1, 0 or 1");
    ds_engine_destroy(&engine);
    spec.train.accumulation = 1; /* no sum: the next backward pass would overwrite */
    engine = parity_engine(ctx, &b.p, &spec);
    CHECK_FAILS(ctx, ds_engine_set_accumulation_boundary(engine, 0), DS_ERR_STATE,
                "nothing adds gradients");
    CHECK_OK(ctx, ds_engine_set_accumulation_boundary(engine, 1));
    ds_engine_destroy(&engine);
    close_bench(&b);
}

/* The gradient of a step is the mean of its micro-batches: twice the same rows are those rows once.
 */
static void accumulation_is_a_mean(void **state)
{
    double norm[2];
    bench b;
    (void)state;
    open_bench(&b, "gpt2", false);
    for (int i = 0; i < 2; ++i) {
        dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F32, dsi_cpu_isa());
        spec.train.accumulation = i + 1;
        ds_engine *engine = parity_engine(ctx, &b.p, &spec);
        for (int micro = 0; micro <= i; ++micro) {
            (void)micro_step(engine, &b.p.batch);
        }
        norm[i] = ds_engine_grad_norm(engine);
        ds_engine_destroy(&engine);
    }
    assert_true(norm[0] > 0.0 && fabs(norm[1] - norm[0]) < 1e-6 * norm[0]);
    close_bench(&b);
}

/* The schedule counts updates: those that are skipped do not. */
static void schedule_counts_updates(void **state)
{
    bench b;
    (void)state;
    open_bench(&b, "gpt2", false);
    dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F16, dsi_cpu_isa());
    spec.schedule = ds_schedule_default(DS_SCHEDULE_WARMUP_DECAY);
    spec.schedule.warmup_max_lr = 0.01;
    spec.schedule.warmup_num_steps = 4;
    spec.schedule.total_num_steps = 12;
    spec.loss_scale = dsi_loss_scale_dynamic(1048576.0, 100, 1.0, 1, false);
    ds_engine *engine = parity_engine(ctx, &b.p, &spec);
    int64_t updates = 0;
    for (int i = 0; i < 16; ++i) {
        assert_true(ds_engine_lr(engine) == ds_schedule_at(&spec.schedule, spec.lr, updates).lr);
        (void)micro_step(engine, &b.p.batch);
        updates += ds_engine_was_step_applied(engine) ? 1 : 0;
        assert_int_equal(ds_engine_global_steps(engine), i + 1);
        assert_int_equal(ds_engine_skipped_steps(engine), i + 1 - updates);
    }
    print_message("%d updates\n", (int)updates);
    assert_true(updates > 4 && updates < 16);
    ds_engine_destroy(&engine);
    close_bench(&b);
}

/* The first number of each trained parameter. */
static uint32_t first_numbers(const ds_engine *engine, float out[], bool no_decay[], uint32_t most)
{
    uint32_t n = 0;
    for (ds_cell cell = 0; cell < ds_cells_count(engine->cells) && n < most; ++cell) {
        const ds_cell_info *info = ds_cells_get(engine->cells, cell);
        if (info->kind == DS_CELL_PARAM) {
            no_decay[n] = info->no_decay;
            CHECK_OK(ctx, dsi_exec_read(engine->exec, cell, 0, &out[n++], sizeof *out));
        }
    }
    return n;
}

/* A value a group: norms and biases go by a schedule of their own. */
static void groups_have_rates_of_their_own(void **state)
{
    enum { MOST = 256 };
    static float before[MOST];
    static float after[MOST];
    static bool no_decay[MOST];
    bench b;
    (void)state;
    open_bench(&b, "gpt2", false);
    dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F32, dsi_cpu_isa());
    spec.schedule = ds_schedule_default(DS_SCHEDULE_WARMUP);
    spec.schedule.warmup_min_lr = spec.schedule.warmup_max_lr = 0.01;
    spec.schedule_no_decay = spec.schedule;
    spec.schedule_no_decay.warmup_min_lr = spec.schedule_no_decay.warmup_max_lr = 0.0;
    spec.has_groups = true;
    ds_engine *engine = parity_engine(ctx, &b.p, &spec);
    const uint32_t n = first_numbers(engine, before, no_decay, MOST);
    (void)micro_step(engine, &b.p.batch);
    assert_true(n > 4 && n < MOST);
    assert_int_equal(first_numbers(engine, after, no_decay, MOST), n);
    for (uint32_t i = 0; i < n; ++i) {
        assert_int_equal(before[i] == after[i], no_decay[i]);
    }
    assert_true(ds_engine_lr(engine) == 0.01);
    ds_engine_destroy(&engine);
    close_bench(&b);
}

/* Dropout draws other numbers for each step, sample and seed, and none in evaluation. */
static void random_numbers_move_on(void **state)
{
    double loss[2][4];
    double without[2];
    bench b;
    (void)state;
    open_bench(&b, "gpt2", true);
    for (int seed = 0; seed < 2; ++seed) {
        dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F32, dsi_cpu_isa());
        spec.train.accumulation = 2;
        spec.seed = (uint64_t)seed;
        spec.lr = 0.0; /* the weights stay */
        spec.weight_decay = 0.0;
        ds_engine *engine = parity_engine(ctx, &b.p, &spec);
        for (int i = 0; i < 4; ++i) {
            loss[seed][i] = micro_step(engine, &b.p.batch);
        }
        CHECK_OK(ctx, ds_engine_eval_batch(engine, &b.p.batch, &without[seed], NULL));
        ds_engine_destroy(&engine);
    }
    for (int i = 0; i < 4; ++i) {
        assert_true(loss[0][i] != loss[1][i]);
        for (int j = 0; j < i; ++j) {
            assert_true(loss[0][i] != loss[0][j]);
        }
    }
    assert_true(without[0] == without[1]);
    close_bench(&b);
}

/* Every pair of steps and samples draws its own numbers, also where step and sample move together:
 * the step alone matters at equal samples, the sample alone at equal steps. */
static void step_and_sample_both_count(void **state)
{
    bench b;
    (void)state;
    open_bench(&b, "gpt2", true);
    dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_F32, dsi_cpu_isa());
    spec.lr = 0.0;
    spec.weight_decay = 0.0;
    double loss[3];
    for (int i = 0; i < 3; ++i) {
        ds_engine *engine = parity_engine(ctx, &b.p, &spec);
        engine->global_steps = i == 1 ? 1 : 0;
        engine->global_samples = i == 2 ? 2 : 0;
        loss[i] = micro_step(engine, &b.p.batch);
        ds_engine_destroy(&engine);
    }
    assert_true(loss[0] != loss[1] && loss[0] != loss[2] && loss[1] != loss[2]);
    close_bench(&b);
}

/* Evaluation on other data between forward and backward: its own loss, and nothing is disturbed. */
static void evaluation_on_other_data(void **state)
{
    static const char *const models[] = {"gpt2", "llama3", "qwen3", "packed_llama"};
    (void)state;
    for (int m = 0; m < 4; ++m) {
        bench b;
        ds_named_tensor tensors[4];
        double loss = 0.0;
        open_bench(&b, models[m], false);
        const dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_BF16, dsi_cpu_isa());
        ds_engine *plain = parity_engine(ctx, &b.p, &spec);
        ds_engine *between = parity_engine(ctx, &b.p, &spec);
        const ds_batch other = other_batch(&b, 5, tensors);
        double want = 0.0;
        CHECK_OK(ctx, ds_engine_eval_batch(plain, &other, &want, NULL));
        CHECK_OK(ctx, ds_engine_forward(plain, &other)); /* rounds in other places */
        assert_true(fabs(ds_engine_loss(plain) - want) < 2e-3 * want);
        ds_engine_destroy(&plain);
        plain = parity_engine(ctx, &b.p, &spec);
        (void)micro_step(plain, &b.p.batch);
        CHECK_OK(ctx, ds_engine_forward(between, &b.p.batch));
        CHECK_OK(ctx, ds_engine_eval_batch(between, &other, &loss, NULL));
        assert_true(loss == want && loss != ds_engine_loss(between));
        CHECK_OK(ctx, ds_engine_backward(between));
        CHECK_OK(ctx, ds_engine_step(between));
        for (ds_cell c = 0; c < ds_cells_count(plain->cells); ++c) {
            const ds_cell_info *cell = ds_cells_get(plain->cells, c);
            if (cell->kind == DS_CELL_MASTER || cell->kind == DS_CELL_GRAD) {
                assert_memory_equal(dsi_exec_host_view(between->exec, c),
                                    dsi_exec_host_view(plain->exec, c), ds_meta_bytes(cell->meta));
            }
        }
        ds_engine_destroy(&plain);
        ds_engine_destroy(&between);
        close_bench(&b);
    }
}

/* No byte that the evaluation plan writes is one that a forward pass left for its backward pass. */
static void evaluation_keeps_off_the_slot(void **state)
{
    enum { ROOM = 4096 };
    static dsi_range slot[ROOM];
    static const char *const models[] = {"gpt2", "llama3", "qwen3", "packed_llama"};
    (void)state;
    for (int m = 0; m < 4; ++m) {
        bench b;
        uint32_t n = 0;
        open_bench(&b, models[m], false);
        const dsi_engine_spec spec = parity_spec(&b.p, DS_DTYPE_BF16, DS_ISA_REF);
        ds_engine *engine = parity_engine(ctx, &b.p, &spec);
        const dsi_plan *eval = engine->eval_plan;
        CHECK_OK(ctx, dsi_plan_live_after(engine->train_plan, DS_PHASE_FORWARD, slot, ROOM, &n));
        assert_true(n > 20 && n <= ROOM);
        for (uint32_t s = 0; s < eval->n_steps; ++s) {
            const dsi_step *step = &eval->steps[s];
            for (uint32_t i = 0; i < n; ++i) {
                const size_t begin = slot[i].offset;
                const size_t end = begin + slot[i].bytes;
                for (uint32_t o = 0; o < step->n_out; ++o) {
                    const dsi_ref *ref = &eval->refs[step->out_at + o];
                    const bool apart = ref->space != DSI_SPACE_ARENA || ref->offset >= end ||
                                       ref->offset + ds_meta_bytes(ref->meta) <= begin;
                    assert_true(apart);
                }
                assert_true(step->work_bytes == 0 || step->work_offset >= end ||
                            step->work_offset + step->work_bytes <= begin);
            }
        }
        ds_engine_destroy(&engine);
        close_bench(&b);
    }
}

/* ---- resume from each step ------------------------------------------------------------------- */
enum { STEPS = 14 };

typedef struct trail {
    double loss[2 * STEPS], lr[STEPS], scale[STEPS];
} trail;

static void run_steps(bench *b, ds_engine *engine, int from, int to, trail *t)
{
    for (int s = from; s < to; ++s) {
        if (s == 6) {
            CHECK_OK(ctx, ds_engine_set_lr(engine, 3e-4));
        } else if (s == 11) {
            CHECK_OK(ctx, ds_engine_set_lr(engine, -1.0)); /* the schedule again */
        }
        t->lr[s] = ds_engine_lr(engine);
        t->scale[s] = ds_engine_loss_scale(engine);
        for (int i = 0; i < 2; ++i) {
            ds_named_tensor tensors[4];
            const ds_batch batch = other_batch(b, 2 * s + i, tensors);
            t->loss[2 * s + i] = micro_step(engine, &batch);
        }
    }
}

static dsi_engine_spec everything(const bench *b)
{
    dsi_engine_spec spec = parity_spec(&b->p, DS_DTYPE_F16, dsi_cpu_isa());
    spec.train.accumulation = 2;
    spec.train.max_norm = 1.0;
    spec.seed = 5;
    spec.decay_all = false;
    spec.schedule = ds_schedule_default(DS_SCHEDULE_WARMUP_DECAY);
    spec.schedule.warmup_num_steps = 5;
    spec.schedule.total_num_steps = STEPS;
    spec.loss_scale = dsi_loss_scale_dynamic(1048576.0, 2, 1.0, 2, false);
    return spec;
}

static void resume_from_each_step(void **state)
{
    static trail whole;
    bench b;
    (void)state;
    open_bench(&b, "gpt2", true);
    dsi_engine_spec spec = everything(&b);
    ds_engine *engine = parity_engine(ctx, &b.p, &spec);
    run_steps(&b, engine, 0, STEPS, &whole);
    const uint64_t skipped = ds_engine_skipped_steps(engine);
    bool grew = false; /* the run holds what a resume could lose */
    for (int s = 1; s < STEPS; ++s) {
        grew = grew || whole.scale[s] > whole.scale[s - 1];
    }
    assert_true(grew && skipped >= 2 && skipped < STEPS - 4);
    ds_engine_destroy(&engine);
    for (int at = 1; at < STEPS; ++at) {
        trail parts;
        memset(&parts, 0, sizeof parts);
        engine = parity_engine(ctx, &b.p, &spec);
        run_steps(&b, engine, 0, at, &parts);
        CHECK_OK(ctx,
                 ds_engine_save_checkpoint(engine, scratch_path(b.folder, "ckpt"), NULL, NULL));
        const uint64_t samples = ds_engine_global_samples(engine);
        ds_engine_destroy(&engine);
        spec.seed = 99; /* the checkpoint's counts */
        engine = parity_engine(ctx, &b.p, &spec);
        spec.seed = 5;
        CHECK_OK(ctx,
                 ds_engine_load_checkpoint(engine, scratch_path(b.folder, "ckpt"), NULL, NULL));
        assert_int_equal(ds_engine_global_steps(engine), at);
        assert_int_equal(ds_engine_global_samples(engine), samples);
        assert_int_equal(samples, (int64_t)at * 2 * b.p.n_batch);
        assert_int_equal(ds_engine_global_tokens(engine), samples * (uint64_t)b.p.n_seq);
        run_steps(&b, engine, at, STEPS, &parts);
        assert_memory_equal(parts.loss, whole.loss, sizeof whole.loss);
        assert_memory_equal(parts.lr, whole.lr, sizeof whole.lr);
        assert_memory_equal(parts.scale, whole.scale, sizeof whole.scale);
        assert_int_equal(ds_engine_skipped_steps(engine), skipped);
        ds_engine_destroy(&engine);
    }
    close_bench(&b);
}

static int make_ctx(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.n_threads = 2;
    params.level = DS_LOG_ERROR;
    return ds_ctx_create(&params, &ctx);
}

static int drop_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_by_hand),
        cmocka_unit_test(adam_first_step),
        cmocka_unit_test(boundaries),
        cmocka_unit_test(accumulation_is_a_mean),
        cmocka_unit_test(schedule_counts_updates),
        cmocka_unit_test(groups_have_rates_of_their_own),
        cmocka_unit_test(random_numbers_move_on),
        cmocka_unit_test(step_and_sample_both_count),
        cmocka_unit_test(evaluation_on_other_data),
        cmocka_unit_test(evaluation_keeps_off_the_slot),
        cmocka_unit_test(resume_from_each_step),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
