/* labels: threads
 * ZenFlow: DeepSpeed's own trajectories, a plain reference that is fed the engine's gradients, the
 * determinism law over ranks, stages and residences, and checkpoints. */
#include "accel/cpu/cpu_features.h"
#include "comm/sim.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"
#include "op/ops.h"
#include "train/engine.h"

#include <deepspeed/engine_states.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BATCH = 6, N_IN = 24, HIDDEN = 16, N_OUT = 8, STEPS = 13, MAX_RANKS = 3 };

typedef struct mlp {
    bool bias;
} mlp;

/* The network of make_zenflow.py, with PyTorch's names. */
static void trace_mlp(ds_nn *nn, const void *config)
{
    const mlp *c = config;
    const int64_t n = ds_nn_trace(nn)->batch;
    const ds_linear_params first = {.n_out = HIDDEN, .bias = c->bias, .init_std = 0.3};
    const ds_linear_params last = {.n_out = N_OUT, .bias = c->bias, .init_std = 0.3};
    const ds_value in = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, N_IN));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_F32, ds_shape_2d(n, N_OUT));
    const ds_value x = ds_nn_cast(nn, in, ds_nn_trace(nn)->dtype);
    const ds_value before = ds_nn_linear(nn, "0", x, &first);
    const ds_value hidden = ds_nn_apply(nn, &dsi_op_tanh, NULL, &before, 1);
    const ds_value out = ds_nn_cast(nn, ds_nn_linear(nn, "2", hidden, &last), DS_DTYPE_F32);
    const ds_value wrong = ds_nn_sub(nn, out, y);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_mul(nn, wrong, wrong)));
}

typedef struct setting {
    ds_dtype dtype;
    bool bias;
    dsi_zenflow_spec zenflow;
    double max_norm;
    uint32_t n_ranks, stage;
    int64_t accumulation;
    dsi_offload_spec offload;
    int steps;          /* default 0: STEPS */
    const char *save;   /* folder to save to after the steps */
    const char *resume; /* folder to begin from */
} setting;

static dsi_engine_spec make_spec(const setting *s)
{
    dsi_engine_spec spec = {.train = {.dtype = s->dtype,
                                      .comm_dtype = s->dtype,
                                      .accumulate_dtype = DS_DTYPE_F32,
                                      .state_dtype = DS_DTYPE_F32,
                                      .master = s->dtype != DS_DTYPE_F32,
                                      .batch = BATCH,
                                      .seq_length = 1,
                                      .accumulation = s->accumulation > 0 ? s->accumulation : 1,
                                      .optimizer = DSI_OPTIMIZER_ADAM,
                                      .eps = 1e-15,
                                      .decoupled_decay = true,
                                      .max_norm = s->max_norm,
                                      .zenflow = s->zenflow},
                            .zero = {.stage = s->stage,
                                     .reduce_each = true,
                                     .comm_dtype = s->dtype,
                                     .reduce_bucket = 200,
                                     .gather_bucket = 200,
                                     .persistence_threshold = 17,
                                     .model_persistence = INT64_MAX,
                                     .max_live = 200,
                                     .max_reuse_distance = 200},
                            .offload = s->offload,
                            .lr = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .weight_decay = 0.05,
                            .decay_all = true,
                            .bias_correction = true,
                            .loss_scale = dsi_loss_scale_none(),
                            .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                            .seed = 11,
                            .isa = dsi_cpu_isa()};
    return spec;
}

static ds_engine *open_engine(ds_ctx *ctx, const setting *s, ds_model *model, ds_comm *comm)
{
    const dsi_engine_spec spec = make_spec(s);
    const ds_engine_params params = {.model = model, .seq_length = 1, .seed = 5, .comm = comm};
    ds_engine *engine = NULL;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    return engine;
}

static ds_model *open_model(ds_ctx *ctx, const mlp *config)
{
    const ds_model_info info = {.architecture = "mlp"};
    ds_model *model = NULL;
    CHECK_OK(ctx, ds_model_custom(ctx, &info, trace_mlp, config, &model));
    return model;
}

/* Forward and backward on rows that differ from rank to rank. */
static void run_batch(ds_ctx *ctx, ds_engine *engine, const float *x, const float *y)
{
    const ds_named_tensor tensors[2] = {
        {"x", {(void *)x, {DS_DTYPE_F32, ds_shape_2d(BATCH, N_IN)}}},
        {"y", {(void *)y, {DS_DTYPE_F32, ds_shape_2d(BATCH, N_OUT)}}}};
    const ds_batch batch = {tensors, 2};
    CHECK_OK(ctx, ds_engine_forward(engine, &batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
}

/* ---- against DeepSpeed ----------------------------------------------------------------------- */

static ds_ctx *ctx;
static const char *const names[] = {"0.weight", "2.weight"};

static const float *golden_at(const golden_file *file, const char *name, int step, const char *what)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%d%s%s", name, step, what[0] != '\0' ? "/" : "", what);
    return golden_f32(file, path);
}

static void compare_index(const golden_file *file, const ds_engine *engine, const char *name,
                          int step, const char *param)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%d/%s/index", name, step, param);
    const golden_tensor *want = golden_find(file, path);
    if (want == NULL) {
        return;
    }
    (void)snprintf(path, sizeof path, "%s/index", param);
    const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_CHOSEN, path);
    assert_true(cell != DS_NONE);
    assert_int_equal(want->count, ds_cells_get(engine->cells, cell)->meta.shape.dims[0]);
    assert_memory_equal(dsi_exec_cell(engine->exec, cell), want->data,
                        want->count * sizeof(int32_t));
}

static void follow(const golden_file *file, const char *name, const setting *s)
{
    static float data[HIDDEN * N_IN];
    double most = 0.0;
    const mlp config = {s->bias};
    ds_model *model = open_model(ctx, &config);
    ds_engine *engine = open_engine(ctx, s, model, NULL);
    for (int step = 0; step <= STEPS; ++step) {
        for (int i = 0; i < 2; ++i) {
            const float *want = golden_at(file, name, step, names[i]);
            const size_t n = (size_t)ds_shape_count(
                ds_cells_get(engine->cells, ds_cells_find(engine->cells, DS_CELL_PARAM, names[i]))
                    ->meta.shape);
            if (step == 0) {
                CHECK_OK(ctx, ds_engine_set(engine, DS_CELL_PARAM, names[i], want, n));
            }
            CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_PARAM, names[i], data, n));
            for (size_t k = 0; k < n; ++k) {
                most = fmax(most, fabs((double)data[k] - (double)want[k]));
            }
            if (most > 2e-5) {
                fail_msg("%s: %s is off by %g after step %d", name, names[i], most, step);
            }
            compare_index(file, engine, name, step, names[i]);
        }
        if (step < STEPS) {
            run_batch(ctx, engine, golden_at(file, "x", step, ""), golden_at(file, "y", step, ""));
            CHECK_OK(ctx, ds_engine_step(engine));
        }
    }
    print_message("%s: %d steps, off by %.2g\n", name, STEPS, most);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static dsi_zenflow_spec steps_of(int64_t update, int64_t select, int64_t warm_up)
{
    return (dsi_zenflow_spec){.on = true,
                              .ratio = 0.25,
                              .auto_ratio = 0.99,
                              .update_every = update,
                              .select_every = select,
                              .warm_up = warm_up};
}

static void deepspeeds_trajectories(void **state)
{
    const struct {
        const char *name;
        setting s;
    } cases[] = {
        {"plain", {.dtype = DS_DTYPE_F32, .zenflow = steps_of(2, 4, 0)}},
        {"long", {.dtype = DS_DTYPE_F32, .zenflow = steps_of(3, 6, 0)}},
        {"warm", {.dtype = DS_DTYPE_F32, .zenflow = steps_of(2, 6, 4)}},
        {"every", {.dtype = DS_DTYPE_F32, .zenflow = steps_of(1, 1, 0)}},
    };
    golden_file file = golden_read("zenflow/trajectories.safetensors");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        follow(&file, cases[i].name, &cases[i].s);
    }
    golden_close(&file);
}

/* ---- against a plain reference --------------------------------------------------------------- */

/* One matrix, straight from the definition in docs/internals/zenflow.md, in double. */
typedef struct plain {
    int rows, columns, k;
    double w[HIDDEN * N_IN], m[HIDDEN * N_IN], v[HIDDEN * N_IN]; /* all, and the rest's moments */
    double sm[HIDDEN * N_IN], sv[HIDDEN * N_IN];                 /* of chosen columns */
    double waiting[HIDDEN * N_IN];
    bool chosen[N_IN];
    double rest_weight, chosen_weight;
} plain;

static void plain_adam(double *w, double *m, double *v, double g, int t)
{
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.999 * *v + 0.001 * g * g;
    const double up = (*m / (1.0 - pow(0.9, t))) / (sqrt(*v / (1.0 - pow(0.999, t))) + 1e-15);
    *w -= 1e-2 * (up + 0.05 * *w);
}

static double column_weight(const plain *p, const float *g, int c)
{
    double sum = 0.0;
    for (int r = 0; r < p->rows; ++r) {
        sum += fabs((double)g[r * p->columns + c]);
    }
    return sum;
}

static void plain_choose(plain *p, const float *g)
{
    memset(p->chosen, 0, sizeof p->chosen);
    for (int i = 0; i < p->k; ++i) {
        int best = -1;
        for (int c = 0; c < p->columns; ++c) {
            if (!p->chosen[c] && (best < 0 || column_weight(p, g, c) > column_weight(p, g, best))) {
                best = c;
            }
        }
        p->chosen[best] = true;
    }
    memset(p->sm, 0, sizeof p->sm);
    memset(p->sv, 0, sizeof p->sv);
}

static void plain_wait(plain *p, const float *g, double factor, bool more)
{
    p->rest_weight = more ? p->rest_weight : 0.0;
    p->chosen_weight = more ? p->chosen_weight : 0.0;
    for (int c = 0; c < p->columns; ++c) {
        *(p->chosen[c] ? &p->chosen_weight : &p->rest_weight) += column_weight(p, g, c);
    }
    for (int i = 0; i < p->rows * p->columns; ++i) {
        p->waiting[i] = (more ? p->waiting[i] : 0.0) + factor * (double)g[i];
    }
}

static void plain_rest(plain *p, int n, int t)
{
    for (int i = 0; i < p->rows * p->columns; ++i) {
        double other = p->w[i]; /* of a chosen column: moments alone go on */
        plain_adam(p->chosen[i % p->columns] ? &other : &p->w[i], &p->m[i], &p->v[i],
                   p->waiting[i] / n, t);
    }
}

static void plain_chosen(plain *p, const float *g, double factor, int t)
{
    for (int i = 0; i < p->rows * p->columns; ++i) {
        if (p->chosen[i % p->columns]) {
            plain_adam(&p->w[i], &p->sm[i], &p->sv[i], factor * (double)g[i], t);
        }
    }
}

typedef struct schedule {
    bool chosen;
    int waiting, rest, updates;
} schedule;

/* One step of both matrices by the setting's schedule. */
static void plain_step(plain *p, schedule *at, const dsi_zenflow_spec *z, float *const *g,
                       double factor, int done)
{
    const bool choose =
        done >= z->warm_up && (!at->chosen || (z->select_every > 0 && done % z->select_every == 0));
    int due = 0;
    for (int i = 0; i < 2; ++i) {
        if (choose) {
            plain_choose(&p[i], g[i]);
        }
        plain_wait(&p[i], g[i], factor, at->waiting > 0);
    }
    at->updates = choose ? 0 : at->updates;
    at->chosen = at->chosen || choose;
    at->waiting += 1;
    for (int i = 0; i < 2; ++i) {
        due +=
            p[i].rest_weight / (p[i].columns - p[i].k) >= p[i].chosen_weight / p[i].k / at->waiting;
    }
    bool rest = done < z->warm_up || (z->select_every > 0 && (done + 1) % z->select_every == 0);
    rest = rest || (z->weighs ? due >= (int)fmax(1.0, floor(z->auto_ratio * 2.0))
                              : (done + 1 - z->warm_up) % z->update_every == 0);
    for (int i = 0; i < 2; ++i) {
        if (rest) {
            plain_rest(&p[i], at->waiting, at->rest + 1);
        }
        plain_chosen(&p[i], g[i], factor, at->updates + 1);
    }
    at->rest += rest ? 1 : 0;
    at->waiting = rest ? 0 : at->waiting;
    at->updates += at->chosen ? 1 : 0;
}

static void fill_batch(int step, int rank, float *x, float *y)
{
    uint32_t seed = (uint32_t)(step * 977 + rank * 131 + 5);
    for (int i = 0; i < BATCH * (N_IN + N_OUT); ++i) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(seed >> 8) / 8388608.0f - 1.0f;
        *(i < BATCH * N_IN ? &x[i] : &y[i - BATCH * N_IN]) =
            i < BATCH * N_IN ? value * (0.2f + 0.1f * (float)((i * 7) % N_IN)) : value;
    }
}

static double off_by(ds_engine *engine, const plain *p, const char *name, float *data)
{
    double most = 0.0;
    const size_t n = (size_t)(p->rows * p->columns);
    CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, name, data, n));
    for (size_t i = 0; i < n; ++i) {
        most = fmax(most, fabs((double)data[i] - p->w[i]));
    }
    return most;
}

static void check_plain(const char *label, const setting *s)
{
    static plain p[2];
    static float data[HIDDEN * N_IN];
    static float first[HIDDEN * N_IN];
    static float second[N_OUT * HIDDEN];
    float *const g[2] = {first, second};
    static const char *const matrices[2] = {"0.weight", "2.weight"};
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    schedule at = {0};
    const mlp config = {false};
    ds_model *model = open_model(ctx, &config);
    ds_engine *engine = open_engine(ctx, s, model, NULL);
    memset(p, 0, sizeof p);
    for (int i = 0; i < 2; ++i) {
        p[i].rows = i == 0 ? HIDDEN : N_OUT;
        p[i].columns = i == 0 ? N_IN : HIDDEN;
        p[i].k = (int)(p[i].columns * s->zenflow.ratio);
        const size_t n = (size_t)(p[i].rows * p[i].columns);
        CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, matrices[i], data, n));
        for (size_t k = 0; k < n; ++k) {
            p[i].w[k] = (double)data[k];
        }
    }
    for (int step = 0; step < STEPS; ++step) {
        fill_batch(step, 0, x, y);
        run_batch(ctx, engine, x, y);
        double squares = 0.0;
        for (int i = 0; i < 2; ++i) {
            const size_t n = (size_t)(p[i].rows * p[i].columns);
            CHECK_OK(ctx, ds_engine_get_full_grad(engine, matrices[i], g[i], n));
            for (size_t k = 0; k < n; ++k) {
                squares += (double)g[i][k] * (double)g[i][k];
            }
        }
        const double norm = sqrt(squares);
        const double factor =
            s->max_norm > 0.0 && norm > s->max_norm ? s->max_norm / (norm + 1e-6) : 1.0;
        plain_step(p, &at, &s->zenflow, g, factor, step);
        CHECK_OK(ctx, ds_engine_step(engine));
        assert_int_equal(engine->zenflow.waiting, at.waiting);
        assert_int_equal(engine->zenflow.rest_updates, at.rest);
        for (int i = 0; i < 2; ++i) {
            const double off = off_by(engine, &p[i], matrices[i], data);
            if (off > 5e-6) {
                fail_msg("%s: %s is off by %g after step %d", label, matrices[i], off, step + 1);
            }
        }
    }
    print_message("%s: %d updates of the rest in %d steps\n", label, at.rest, STEPS);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static void the_plain_reference(void **state)
{
    setting s = {.dtype = DS_DTYPE_F32, .zenflow = steps_of(4, 0, 0), .max_norm = 0.05};
    (void)state;
    check_plain("clipped, chosen once", &s);
    s.dtype = DS_DTYPE_BF16;
    s.zenflow = steps_of(3, 5, 2);
    check_plain("bf16, intervals cut short", &s);
    s.zenflow.weighs = true;
    s.zenflow.select_every = 0;
    check_plain("bf16, the rest weighed", &s);
    s.dtype = DS_DTYPE_F32;
    s.zenflow.ratio = 0.07;
    s.zenflow.auto_ratio = 0.4;
    check_plain("few columns, one matrix is enough", &s);
}

/* ---- the determinism law --------------------------------------------------------------------- */

typedef struct rank_job {
    const setting *s;
    ds_ctx *ctx;
    dsi_comm *comm;
    uint64_t hash;
    size_t bytes;
} rank_job;

/* Weights, all moments, what waits, and which columns are chosen. */
static uint64_t hash_engine(ds_ctx *own, ds_engine *engine)
{
    static const ds_cell_kind kinds[] = {DS_CELL_PARAM, DS_CELL_EXP_AVG, DS_CELL_EXP_AVG_SQ,
                                         DS_CELL_WAITING, DS_CELL_CHOSEN};
    float data[HIDDEN * N_IN];
    uint64_t hash = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        bool wanted = false;
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
            wanted = wanted || info->kind == kinds[k];
        }
        const size_t n = (size_t)ds_shape_count(info->meta.shape);
        if (wanted && info->meta.dtype != DS_DTYPE_I32 && info->meta.dtype != DS_DTYPE_F64) {
            CHECK_OK(own, ds_engine_get(engine, info->kind, info->name, data, n));
            hash = XXH3_64bits_withSeed(data, n * sizeof *data, hash);
        } else if (wanted) {
            hash = XXH3_64bits_withSeed(dsi_exec_cell(engine->exec, c), ds_meta_bytes(info->meta),
                                        hash);
        }
    }
    return hash;
}

static void *run_rank(void *arg)
{
    rank_job *job = arg;
    const setting *s = job->s;
    const mlp config = {s->bias};
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    ds_model *model = open_model(job->ctx, &config);
    ds_engine *engine = open_engine(job->ctx, s, model, job->comm);
    if (s->resume != NULL) {
        CHECK_OK(job->ctx, ds_engine_load_checkpoint(engine, s->resume, NULL, NULL));
    }
    const int accumulation = (int)engine->spec.train.accumulation;
    const int first = (int)ds_engine_global_steps(engine);
    for (int step = first; step < first + (s->steps > 0 ? s->steps : STEPS); ++step) {
        for (int i = 0; i < accumulation; ++i) {
            fill_batch(step * accumulation + i, (int)ds_comm_rank(job->comm), x, y);
            run_batch(job->ctx, engine, x, y);
            CHECK_OK(job->ctx, ds_engine_step(engine));
        }
    }
    if (s->save != NULL) {
        CHECK_OK(job->ctx, ds_engine_save_checkpoint(engine, s->save, "here", NULL));
    }
    job->bytes = ds_engine_planned_bytes(engine);
    job->hash = hash_engine(job->ctx, engine);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return NULL;
}

static rank_job run_all(const setting *s)
{
    rank_job jobs[MAX_RANKS] = {{0}};
    ds_ctx *ctxs[MAX_RANKS];
    dsi_comm *comms[MAX_RANKS] = {NULL};
    pthread_t threads[MAX_RANKS];
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        assert_int_equal(ds_ctx_create(&params, &ctxs[i]), DS_OK);
    }
    CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, s->n_ranks, NULL, comms));
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        jobs[i] = (rank_job){.s = s, .ctx = ctxs[i], .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < s->n_ranks; ++i) {
        assert_true(jobs[i].hash == jobs[0].hash);
        ds_ctx_destroy(&ctxs[i]);
    }
    return jobs[0];
}

static setting law(ds_dtype dtype, uint32_t n_ranks)
{
    setting s = {.dtype = dtype,
                 .bias = true,
                 .zenflow = steps_of(2, 5, 1),
                 .max_norm = 0.5,
                 .n_ranks = n_ranks};
    s.zenflow.weighs = n_ranks == 2;
    return s;
}

static void stages_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_RANKS; ++n) {
        for (int d = 0; d < 2; ++d) {
            setting s = law(d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16, n);
            s.accumulation = 1 + d;
            const uint64_t want = run_all(&s).hash;
            for (s.stage = 1; s.stage <= 3; ++s.stage) {
                if (run_all(&s).hash != want) {
                    fail_msg("%s, %u ranks: stage %u gives other bits", ds_dtype_name(s.dtype), n,
                             s.stage);
                }
            }
        }
    }
}

static void residences_give_the_same_bits(void **state)
{
    char *folder = scratch_make();
    (void)state;
    for (uint32_t n = 1; n <= 2; ++n) {
        for (int d = 0; d < 2; ++d) {
            setting s = law(d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16, n);
            s.stage = 3;
            const rank_job want = run_all(&s);
            for (int away = 0; away < 4; ++away) {
                const dsi_residence there = away % 2 == 0 ? DSI_ON_HOST : DSI_ON_DISK;
                s.offload = (dsi_offload_spec){.states = there,
                                               .params = away >= 2 ? there : DSI_ON_DEVICE,
                                               .chosen = away >= 2 ? DSI_ON_HOST : DSI_ON_DEVICE,
                                               .ratio = 1.0,
                                               .threshold = 17,
                                               .how = {.chunk = 100},
                                               .read_ahead = 20000,
                                               .update_ahead = 60000,
                                               .write_behind = 60000,
                                               .aio = ds_aio_params_default()};
                (void)snprintf(s.offload.folders, sizeof s.offload.folders, "%s", folder);
                if (run_all(&s).hash != want.hash) {
                    fail_msg("%s, %u ranks: residence %d gives other bits", ds_dtype_name(s.dtype),
                             n, away);
                }
            }
        }
    }
    scratch_remove(folder);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* At every step of the schedule: while gradients wait, at a choice, in the warm-up; loaded by
 * another stage on another number of ranks' files. */
static void resuming_gives_the_same_bits(void **state)
{
    (void)state;
    for (int d = 0; d < 2; ++d) {
        setting s = law(d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16, 1 + (uint32_t)d);
        s.stage = (uint32_t)d;
        s.steps = 9;
        const uint64_t want = run_all(&s).hash;
        for (int at = 1; at < 9; ++at) {
            char *folder = scratch_make();
            setting before = s;
            setting after = s;
            before.steps = at;
            before.save = folder;
            after.steps = 9 - at;
            after.resume = folder;
            after.stage = 3;
            (void)run_all(&before);
            if (run_all(&after).hash != want) {
                fail_msg("%s: %d steps, saved, resumed: other bits", ds_dtype_name(s.dtype), at);
            }
            scratch_remove(folder);
        }
    }
}

/* ZenFlow may begin from a checkpoint of a plain run, and a plain run from one of ZenFlow. */
static void turning_it_on_and_off(void **state)
{
    (void)state;
    for (int from = 0; from < 2; ++from) {
        char *folder = scratch_make();
        setting s = law(DS_DTYPE_BF16, 1);
        s.zenflow.on = from == 1;
        s.steps = 4;
        s.save = folder;
        (void)run_all(&s);
        s.zenflow.on = from == 0;
        s.save = NULL;
        s.resume = folder;
        (void)run_all(&s);
        scratch_remove(folder);
    }
}

/* ---- what the host sets and reads ------------------------------------------------------------ */

/* A step after weights were set: of the engine, and of one that is loaded from its checkpoint. */
static void same_after_resuming(ds_engine *engine, const setting *s, const ds_model *model)
{
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    char *folder = scratch_make();
    ds_engine *other = open_engine(ctx, s, (ds_model *)model, NULL);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "set", NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(other, folder, NULL, NULL));
    fill_batch(2, 0, x, y);
    run_batch(ctx, engine, x, y);
    run_batch(ctx, other, x, y);
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_step(other));
    assert_true(hash_engine(ctx, engine) == hash_engine(ctx, other));
    ds_engine_destroy(&other);
    scratch_remove(folder);
}

static void weights_may_be_set(void **state)
{
    static float w[HIDDEN * N_IN];
    static float seen[HIDDEN * N_IN];
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    const setting s = {.dtype = DS_DTYPE_BF16, .zenflow = steps_of(4, 0, 0)};
    const mlp config = {false};
    ds_model *model = open_model(ctx, &config);
    ds_engine *engine = open_engine(ctx, &s, model, NULL);
    (void)state;
    for (int step = 0; step < 2; ++step) {
        fill_batch(step, 0, x, y);
        run_batch(ctx, engine, x, y);
        if (step == 1) {
            CHECK_FAILS(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN),
                        DS_ERR_STATE, "zero_optimization.zenflow: weights can be read");
        }
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    for (int i = 0; i < HIDDEN * N_IN; ++i) {
        w[i] = 0.5f + (float)i;
    }
    CHECK_OK(ctx, ds_engine_set_full_fp32_param(engine, "0.weight", w, HIDDEN * N_IN));
    CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN));
    assert_memory_equal(seen, w, sizeof w);
    same_after_resuming(engine, &s, model);
    CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN));
    for (int i = 0; i < HIDDEN * N_IN; ++i) { /* one step of lr and decay away */
        assert_true(fabsf(seen[i] - w[i]) < 0.05f + 1e-3f * w[i]);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* A checkpoint, whole by its checksums, that names columns which no matrix has. */
static void hostile_columns_are_refused(void **state)
{
    static const int32_t bad[] = {N_IN, INT32_MAX, INT32_MIN, -2};
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    const setting s = {.dtype = DS_DTYPE_BF16, .zenflow = steps_of(4, 0, 0)};
    const mlp config = {false};
    ds_model *model = open_model(ctx, &config);
    (void)state;
    fill_batch(0, 0, x, y);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        char *folder = scratch_make();
        ds_engine *engine = open_engine(ctx, &s, model, NULL);
        run_batch(ctx, engine, x, y);
        CHECK_OK(ctx, ds_engine_step(engine));
        const ds_cell index = ds_cells_find(engine->cells, DS_CELL_CHOSEN, "0.weight/index");
        *(int32_t *)dsi_exec_cell(engine->exec, index) = bad[i];
        CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "x", NULL));
        CHECK_FAILS(ctx, ds_engine_load_checkpoint(engine, folder, "x", NULL), DS_ERR_FORMAT,
                    "0.weight/index names column");
        CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, folder, "y", NULL), DS_ERR_STATE,
                    "load a checkpoint");
        ds_engine_destroy(&engine);
        scratch_remove(folder);
    }
    ds_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_reference),
        cmocka_unit_test(deepspeeds_trajectories),
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(residences_give_the_same_bits),
        cmocka_unit_test(resuming_gives_the_same_bits),
        cmocka_unit_test(turning_it_on_and_off),
        cmocka_unit_test(weights_may_be_set),
        cmocka_unit_test(hostile_columns_are_refused),
    };
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
