/* SPDX-License-Identifier: Apache-2.0 */
/* ZenFlow: DeepSpeed's own trajectories, and a plain reference that is fed the engine's gradients.
 */
#include "base/half.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"
#include "common/zenflow_net.h"

#include <deepspeed/engine_states.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BATCH = ZENFLOW_BATCH,
    N_IN = ZENFLOW_N_IN,
    HIDDEN = ZENFLOW_HIDDEN,
    N_OUT = ZENFLOW_N_OUT,
    STEPS = ZENFLOW_STEPS,
    MAX_RANKS = ZENFLOW_MAX_RANKS
};

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
    assert_memory_equal(dsi_exec_host_view(engine->exec, cell), want->data,
                        want->count * sizeof(int32_t));
}

/* batches: the file that has them. The weights are those that forward passes see. */
static void follow(const golden_file *batches, const golden_file *file, const char *name,
                   const zenflow_setting *s)
{
    static float data[HIDDEN * N_IN];
    double most = 0.0;
    const zenflow_mlp config = {s->bias};
    ds_model *model = zenflow_open_model(ctx, &config);
    ds_engine *engine = zenflow_open_engine(ctx, s, model, NULL);
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
            if (s->zenflow.overlap) {
                const ds_cell seen = ds_cells_find(engine->cells, DS_CELL_PARAM, names[i]);
                memcpy(data, dsi_exec_host_view(engine->exec, seen), n * sizeof *data);
            }
            for (size_t k = 0; k < n; ++k) {
                most = fmax(most, fabs((double)data[k] - (double)want[k]));
            }
            if (most > 2e-5) {
                fail_msg("%s: %s is off by %g after step %d", name, names[i], most, step);
            }
            compare_index(file, engine, name, step, names[i]);
        }
        if (step < STEPS) {
            zenflow_run_batch(ctx, engine, golden_at(batches, "x", step, ""),
                              golden_at(batches, "y", step, ""));
            CHECK_OK(ctx, ds_engine_step(engine));
        }
    }
    print_message("%s: %d steps, off by %.2g\n", name, STEPS, most);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static dsi_zenflow_spec late_steps_of(int64_t update, int64_t warm_up)
{
    dsi_zenflow_spec spec = zenflow_steps_of(update, 0, warm_up);
    spec.overlap = true;
    return spec;
}

static void deepspeeds_trajectories(void **state)
{
    const struct {
        const char *name;
        zenflow_setting s;
    } cases[] = {
        {"plain", {.dtype = DS_DTYPE_F32, .zenflow = zenflow_steps_of(2, 4, 0)}},
        {"long", {.dtype = DS_DTYPE_F32, .zenflow = zenflow_steps_of(3, 6, 0)}},
        {"warm", {.dtype = DS_DTYPE_F32, .zenflow = zenflow_steps_of(2, 6, 4)}},
        {"late", {.dtype = DS_DTYPE_F32, .zenflow = late_steps_of(2, 0)}},
        {"late_long", {.dtype = DS_DTYPE_F32, .zenflow = late_steps_of(3, 0)}},
        {"late_warm", {.dtype = DS_DTYPE_F32, .zenflow = late_steps_of(2, 4)}},
        {"every", {.dtype = DS_DTYPE_F32, .zenflow = zenflow_steps_of(1, 1, 0)}},
    };
    golden_file file = golden_read("zenflow/trajectories.safetensors");
    golden_file late = golden_read("zenflow/late.safetensors");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        follow(&file, cases[i].s.zenflow.overlap ? &late : &file, cases[i].name, &cases[i].s);
    }
    golden_close(&late);
    golden_close(&file);
}

/* ---- against a plain reference --------------------------------------------------------------- */

/* One matrix, straight from the definition in docs/internals/zenflow.md, in double. */
typedef struct plain {
    int rows, columns, k;
    double w[HIDDEN * N_IN], m[HIDDEN * N_IN], v[HIDDEN * N_IN]; /* all, and the rest's moments */
    double sm[HIDDEN * N_IN], sv[HIDDEN * N_IN];                 /* of chosen columns */
    double waiting[HIDDEN * N_IN];
    double seen[HIDDEN * N_IN]; /* by forward passes: with overlap older than w */
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
    bool chosen, late;
    int waiting, rest, updates;
} schedule;

static void plain_take(plain *p, schedule *at)
{
    for (int i = 0; i < 2; ++i) {
        memcpy(p[i].seen, p[i].w, sizeof p[i].w);
    }
    at->late = false;
}

/* What forward passes see of the chosen columns is never late. */
static void plain_show_chosen(plain *p)
{
    for (int i = 0; i < p->rows * p->columns; ++i) {
        p->seen[i] = p->chosen[i % p->columns] ? p->w[i] : p->seen[i];
    }
}

/* One step of both matrices by the zenflow_setting's schedule. */
static void plain_step(plain *p, schedule *at, const dsi_zenflow_spec *z, float *const *g,
                       double factor, int done)
{
    const bool choose =
        done >= z->warm_up && (!at->chosen || (z->select_every > 0 && done % z->select_every == 0));
    int due = 0;
    if (choose && at->late) {
        plain_take(p, at);
    }
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
    if (rest && at->late) {
        plain_take(p, at);
    }
    for (int i = 0; i < 2; ++i) {
        if (rest) {
            plain_rest(&p[i], at->waiting, at->rest + 1);
        }
        plain_chosen(&p[i], g[i], factor, at->updates + 1);
        plain_show_chosen(&p[i]);
    }
    at->late = at->late || rest;
    if (at->late && (!z->overlap || done < z->warm_up)) {
        plain_take(p, at);
    }
    at->rest += rest ? 1 : 0;
    at->waiting = rest ? 0 : at->waiting;
    at->updates += at->chosen ? 1 : 0;
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

/* What forward passes see. bf16 rounds it. */
static double seen_off_by(ds_engine *engine, const plain *p, const char *name)
{
    double most = 0.0;
    const ds_cell cell = ds_cells_find(engine->cells, DS_CELL_PARAM, name);
    const bool narrow = ds_cells_get(engine->cells, cell)->meta.dtype == DS_DTYPE_BF16;
    for (int i = 0; i < p->rows * p->columns; ++i) {
        const void *data = dsi_exec_host_view(engine->exec, cell);
        const double x = narrow ? (double)dsi_bf16_to_f32(((const uint16_t *)data)[i])
                                : (double)((const float *)data)[i];
        const double unit = narrow ? fabs(p->seen[i]) / 256.0 : 0.0;
        most = fmax(most, fabs(x - p->seen[i]) - unit);
    }
    return most;
}

static void check_plain(const char *label, const zenflow_setting *s)
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
    const zenflow_mlp config = {false};
    ds_model *model = zenflow_open_model(ctx, &config);
    ds_engine *engine = zenflow_open_engine(ctx, s, model, NULL);
    memset(p, 0, sizeof p);
    for (int i = 0; i < 2; ++i) {
        p[i].rows = i == 0 ? HIDDEN : N_OUT;
        p[i].columns = i == 0 ? N_IN : HIDDEN;
        p[i].k = (int)(p[i].columns * s->zenflow.ratio);
        const size_t n = (size_t)(p[i].rows * p[i].columns);
        CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, matrices[i], data, n));
        for (size_t k = 0; k < n; ++k) {
            p[i].w[k] = p[i].seen[k] = (double)data[k];
        }
    }
    for (int step = 0; step < STEPS; ++step) {
        zenflow_fill_batch(step, 0, x, y);
        zenflow_run_batch(ctx, engine, x, y);
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
            const double off = fmax(off_by(engine, &p[i], matrices[i], data),
                                    seen_off_by(engine, &p[i], matrices[i]));
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
    zenflow_setting s = {
        .dtype = DS_DTYPE_F32, .zenflow = zenflow_steps_of(4, 0, 0), .max_norm = 0.05};
    (void)state;
    check_plain("clipped, chosen once", &s);
    s.dtype = DS_DTYPE_BF16;
    s.zenflow = zenflow_steps_of(3, 5, 2);
    check_plain("bf16, intervals cut short", &s);
    s.zenflow.weighs = true;
    s.zenflow.select_every = 0;
    check_plain("bf16, the rest weighed", &s);
    s.dtype = DS_DTYPE_F32;
    s.zenflow.ratio = 0.07;
    s.zenflow.auto_ratio = 0.4;
    check_plain("few columns, one matrix is enough", &s);
    s.zenflow.overlap = true;
    check_plain("few columns, one matrix is enough, late", &s);
    s.zenflow = zenflow_steps_of(4, 0, 0);
    s.zenflow.overlap = true;
    check_plain("chosen once, late", &s);
    s.dtype = DS_DTYPE_BF16;
    s.zenflow = zenflow_steps_of(2, 5, 3);
    s.zenflow.overlap = true;
    check_plain("bf16, intervals cut short, late", &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_reference),
        cmocka_unit_test(deepspeeds_trajectories),
    };
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
