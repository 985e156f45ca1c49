/* SPDX-License-Identifier: Apache-2.0 */
/* ds_nn_tiled_linear against one linear layer of the same weights, and against finite differences:
 * cut outputs change no bit, cut inputs the order of sums alone. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "exec/exec.h"
#include "grad/grad.h"
#include "op/isa.h"
#include "op/ops.h"

#include <deepspeed/nn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, SEQ = 24, N_IN = 70, N_OUT = 202, ROWS = BATCH * SEQ };

static ds_ctx *ctx;

/* loss = mean(y² · 1), y = layer(x): both x and the layer's parameters have gradients. */
typedef struct run {
    ds_cells *cells;
    ds_graph *graph;
    dsi_plan *plan;
    dsi_exec *exec;
    uint32_t id;
    ds_dtype dtype;
    int64_t in_splits, out_splits; /* 0: ds_nn_linear */
    bool transposed;
} run;

static double get(const ds_tensor *t, int64_t i)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_BF16:
        return (double)dsi_bf16_to_f32(((const uint16_t *)t->data)[i]);
    default:
        return (double)((const float *)t->data)[i];
    }
}

static void put(const ds_tensor *t, int64_t i, double x)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_BF16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_bf16((float)x);
        break;
    default:
        ((float *)t->data)[i] = (float)x;
    }
}

static ds_tensor cell_at(const run *r, ds_cell cell)
{
    return (ds_tensor){dsi_exec_host_view(r->exec, cell), ds_cells_get(r->cells, cell)->meta};
}

static ds_tensor cell_of(const run *r, const char *name)
{
    const ds_cell cell = ds_cells_find(r->cells, DS_CELL_PARAM, name);
    if (cell == DS_NONE) {
        fail_msg("there is no parameter %s", name);
    }
    return cell_at(r, cell);
}

static int64_t start_of(int64_t width, int64_t n, int64_t i)
{
    return width / n * i + (i < width % n ? i : width % n);
}

static double weight_of(int64_t o, int64_t i)
{
    return 0.1 * (double)dsi_rng_normal(3, 1, (uint64_t)(o * N_IN + i));
}

static double bias_of(int64_t o)
{
    return (double)dsi_rng_normal(3, 2, (uint64_t)o);
}

/* Calls fn for each element of the weight: its tile's tensor and index there. */
static void each_weight(const run *r, const char *prefix,
                        void (*fn)(void *user, const ds_tensor *t, int64_t at, int64_t o,
                                   int64_t i),
                        void *user)
{
    const int64_t n_o = r->out_splits > 0 ? r->out_splits : 1;
    const int64_t n_i = r->in_splits > 0 ? r->in_splits : 1;
    for (int64_t p = 0; p < n_o * n_i; ++p) {
        const int64_t o0 = start_of(N_OUT, n_o, p / n_i);
        const int64_t o1 = start_of(N_OUT, n_o, p / n_i + 1);
        const int64_t i0 = start_of(N_IN, n_i, p % n_i);
        const int64_t i1 = start_of(N_IN, n_i, p % n_i + 1);
        char name[96];
        if (r->in_splits > 0) {
            (void)snprintf(name, sizeof name, "fc.linears.%lld.%lld.weight", (long long)(p / n_i),
                           (long long)(p % n_i));
        } else {
            (void)snprintf(name, sizeof name, "fc.weight");
        }
        ds_tensor t;
        if (prefix == NULL) {
            t = cell_of(r, name);
        } else {
            char output[128];
            (void)snprintf(output, sizeof output, "%s%s", prefix, name);
            CHECK_OK(ctx, dsi_exec_output(r->exec, r->id, output, &t));
        }
        assert_int_equal(ds_shape_count(t.meta.shape), (o1 - o0) * (i1 - i0));
        for (int64_t o = o0; o < o1; ++o) {
            for (int64_t i = i0; i < i1; ++i) {
                fn(user, &t,
                   r->transposed ? (i - i0) * (o1 - o0) + (o - o0) : (o - o0) * (i1 - i0) + i - i0,
                   o, i);
            }
        }
    }
}

static void fill_weight(void *user, const ds_tensor *t, int64_t at, int64_t o, int64_t i)
{
    (void)user;
    put(t, at, weight_of(o, i));
}

static void copy_weight(void *user, const ds_tensor *t, int64_t at, int64_t o, int64_t i)
{
    ((double *)user)[o * N_IN + i] = get(t, at);
}

static void fill(const run *r)
{
    const ds_tensor x = cell_of(r, "x");
    for (int64_t i = 0; i < ROWS * N_IN; ++i) {
        put(&x, i, (double)dsi_rng_normal(3, 4, (uint64_t)i));
    }
    each_weight(r, NULL, fill_weight, NULL);
    const int64_t n_o = r->out_splits > 0 ? r->out_splits : 1;
    for (int64_t p = 0; p < n_o; ++p) {
        char name[96] = "fc.bias";
        if (r->in_splits > 0) {
            (void)snprintf(name, sizeof name, "fc.linears.%lld.%lld.bias", (long long)p,
                           (long long)r->in_splits - 1);
        }
        const ds_tensor b = cell_of(r, name);
        const int64_t o0 = start_of(N_OUT, n_o, p);
        for (int64_t o = o0; o < start_of(N_OUT, n_o, p + 1); ++o) {
            put(&b, o - o0, bias_of(o));
        }
    }
}

static void declare_gradients(run *r, ds_value loss)
{
    ds_value d_cell[256];
    ds_value seed;
    const ds_cell_info info = {.name = "seed",
                               .kind = DS_CELL_SCALAR,
                               .meta = ds_graph_meta(r->graph, loss),
                               .of = DS_NONE};
    ds_cell cell;
    CHECK_OK(ctx, ds_cells_add(r->cells, &info, &cell));
    CHECK_OK(ctx, ds_graph_read(r->graph, cell, &seed));
    CHECK_OK(ctx, dsi_grad_build(r->graph, &loss, &seed, 1, d_cell));
    for (ds_cell c = 0; c < cell; ++c) {
        char name[128];
        assert_true(d_cell[c] != DS_NONE);
        (void)snprintf(name, sizeof name, "d.%s", ds_cells_get(r->cells, c)->name);
        CHECK_OK(ctx, ds_graph_output(r->graph, name, d_cell[c]));
    }
}

static void open_run(run *r, ds_isa isa)
{
    const ds_trace trace = {.dtype = r->dtype, .batch = BATCH, .seq_length = SEQ};
    const dsi_plan_env env = {.n_threads = ds_ctx_n_threads(ctx),
                              .isa = dsi_cpu_isa_capped(isa),
                              .choose = dsi_cpu_kernel_choose};
    const ds_linear_params params = {.n_out = N_OUT, .bias = true, .transposed = r->transposed};
    ds_nn *nn = NULL;
    CHECK_OK(ctx, ds_cells_create(ctx, 256, &r->cells));
    CHECK_OK(ctx, ds_graph_create(ctx, r->cells, &r->graph));
    CHECK_OK(ctx, ds_nn_create(r->graph, &trace, &nn));
    const ds_value x = ds_nn_param_at(nn, "x", ds_shape_3d(BATCH, SEQ, N_IN), (ds_init){0}, false);
    const ds_value y = r->in_splits > 0
                           ? ds_nn_tiled_linear(nn, "fc", x, &params, r->in_splits, r->out_splits)
                           : ds_nn_linear(nn, "fc", x, &params);
    const ds_value squares = ds_nn_apply(nn, &dsi_op_square, NULL, &y, 1);
    const ds_value loss = ds_nn_mean_all(nn, squares);
    ds_nn_output(nn, "y", y);
    ds_nn_output(nn, "loss", loss);
    CHECK_OK(ctx, ds_nn_status(nn));
    ds_nn_destroy(&nn);
    declare_gradients(r, loss);
    CHECK_OK(ctx, dsi_plan_build(r->graph, &env, &r->plan));
    CHECK_OK(ctx, dsi_plan_check(r->plan));
    CHECK_OK(ctx, dsi_exec_create(ctx, r->cells, NULL, &r->exec));
    CHECK_OK(ctx, dsi_exec_add(r->exec, r->plan, &r->id));
    CHECK_OK(ctx, dsi_exec_allocate(r->exec));
    fill(r);
    const ds_tensor seed = cell_at(r, ds_cells_find(r->cells, DS_CELL_SCALAR, "seed"));
    put(&seed, 0, 1.0);
}

static void close_run(run *r)
{
    dsi_exec_destroy(&r->exec);
    dsi_plan_destroy(&r->plan);
    ds_graph_destroy(&r->graph);
    ds_cells_destroy(&r->cells);
}

static double loss_of(run *r)
{
    ds_tensor loss;
    CHECK_OK(ctx, dsi_exec_run(r->exec, r->id, DS_PHASE_FORWARD));
    CHECK_OK(ctx, dsi_exec_output(r->exec, r->id, "loss", &loss));
    return get(&loss, 0);
}

typedef struct result {
    double y[ROWS * N_OUT], dx[ROWS * N_IN], dw[N_OUT * N_IN];
} result;

static result *compute(ds_dtype dtype, ds_isa isa, bool transposed, int64_t in_splits,
                       int64_t out_splits)
{
    run r = {
        .dtype = dtype, .in_splits = in_splits, .out_splits = out_splits, .transposed = transposed};
    result *got = calloc(1, sizeof *got);
    ds_tensor t;
    assert_non_null(got);
    open_run(&r, isa);
    (void)loss_of(&r);
    CHECK_OK(ctx, dsi_exec_output(r.exec, r.id, "y", &t));
    for (int64_t i = 0; i < ROWS * N_OUT; ++i) {
        got->y[i] = get(&t, i);
    }
    CHECK_OK(ctx, dsi_exec_run(r.exec, r.id, DS_PHASE_BACKWARD));
    CHECK_OK(ctx, dsi_exec_output(r.exec, r.id, "d.x", &t));
    for (int64_t i = 0; i < ROWS * N_IN; ++i) {
        got->dx[i] = get(&t, i);
    }
    each_weight(&r, "d.", copy_weight, got->dw);
    close_run(&r);
    return got;
}

static double furthest(const double *a, const double *b, int64_t n)
{
    double most = 0.0;
    double top = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        most = fmax(most, fabs(a[i] - b[i]));
        top = fmax(top, fabs(b[i]));
    }
    return most / top;
}

static const int64_t splits[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 9},
                                    {2, 1}, {3, 4}, {5, 3}, {20, 2}};

static void check_against_whole(ds_dtype dtype, ds_isa isa, bool transposed)
{
    const double near = dtype == DS_DTYPE_F32 ? 2e-6 : 1.2e-2;
    result *whole = compute(dtype, isa, transposed, 0, 0);
    for (size_t s = 0; s < sizeof splits / sizeof splits[0]; ++s) {
        result *tiled = compute(dtype, isa, transposed, splits[s][0], splits[s][1]);
        print_message("%s %s %s %lldx%lld: y %.2g dx %.2g dw %.2g\n", ds_dtype_name(dtype),
                      dsi_isa_print(isa).text, transposed ? "(in,out)" : "(out,in)",
                      (long long)splits[s][0], (long long)splits[s][1],
                      furthest(tiled->y, whole->y, ROWS * N_OUT),
                      furthest(tiled->dx, whole->dx, ROWS * N_IN),
                      furthest(tiled->dw, whole->dw, N_OUT * N_IN));
        if (splits[s][0] == 1) {
            assert_memory_equal(tiled->y, whole->y, sizeof whole->y);
            assert_memory_equal(tiled->dw, whole->dw, sizeof whole->dw);
        }
        if (splits[s][1] == 1 && splits[s][0] == 1) {
            assert_memory_equal(tiled->dx, whole->dx, sizeof whole->dx);
        }
        assert_true(furthest(tiled->y, whole->y, ROWS * N_OUT) < near);
        assert_true(furthest(tiled->dx, whole->dx, ROWS * N_IN) < near);
        assert_true(furthest(tiled->dw, whole->dw, N_OUT * N_IN) < near);
        free(tiled);
    }
    free(whole);
}

static void tiles_are_the_layer(void **state)
{
    (void)state;
    for (int transposed = 0; transposed < 2; ++transposed) {
        for (uint32_t level = 0; level < DSI_ISA_LEVELS; ++level) {
            check_against_whole(DS_DTYPE_F32, dsi_isa_level(level), transposed != 0);
            check_against_whole(DS_DTYPE_BF16, dsi_isa_level(level), transposed != 0);
        }
    }
}

/* One rounding: bf16 results are those of exact sums over the same bf16 operands, half a unit in
 * the last place apart at most but for the fp32 sums. */
static void cut_inputs_are_rounded_once(void **state)
{
    (void)state;
    result *tiled = compute(DS_DTYPE_BF16, DSI_NEEDS_AMX, false, 5, 3);
    for (int64_t row = 0; row < ROWS; ++row) {
        for (int64_t o = 0; o < N_OUT; ++o) {
            double sum = (double)dsi_bf16_to_f32(dsi_f32_to_bf16((float)bias_of(o)));
            double size = fabs(sum);
            for (int64_t i = 0; i < N_IN; ++i) {
                const float x = dsi_rng_normal(3, 4, (uint64_t)(row * N_IN + i));
                const double part =
                    (double)dsi_bf16_to_f32(dsi_f32_to_bf16(x)) *
                    (double)dsi_bf16_to_f32(dsi_f32_to_bf16((float)weight_of(o, i)));
                sum += part;
                size += fabs(part);
            }
            assert_true(fabs(tiled->y[row * N_OUT + o] - sum) <=
                        fabs(sum) * 0x1p-8 + size * 0x1p-20);
        }
    }
    free(tiled);
}

/* mean(y²) with the sum in double. */
static double exact_loss(run *r)
{
    double sum = 0.0;
    ds_tensor y;
    (void)loss_of(r);
    CHECK_OK(ctx, dsi_exec_output(r->exec, r->id, "y", &y));
    for (int64_t i = 0; i < ROWS * N_OUT; ++i) {
        sum += get(&y, i) * get(&y, i);
    }
    return sum / (ROWS * N_OUT);
}

/* The loss is a square in each number, so that a central difference is its slope however wide. */
static double slope_of(run *r, const ds_tensor *t, int64_t at)
{
    const double x = get(t, at);
    put(t, at, x + 1.0);
    const double above = exact_loss(r);
    put(t, at, x - 1.0);
    const double below = exact_loss(r);
    put(t, at, x);
    return (above - below) / 2.0;
}

static void gradients_are_differences(void **state)
{
    enum { PROBES = 5 };
    uint32_t n_params = 0;
    (void)state;
    run r = {.dtype = DS_DTYPE_F32, .in_splits = 3, .out_splits = 4};
    open_run(&r, DS_ISA_REF);
    for (ds_cell c = 0; c < ds_cells_count(r.cells); ++c) {
        const ds_cell_info *info = ds_cells_get(r.cells, c);
        if (info->kind != DS_CELL_PARAM) {
            continue;
        }
        char name[128];
        ds_tensor d;
        double gradient[PROBES];
        const ds_tensor t = cell_at(&r, c);
        const int64_t n = ds_shape_count(t.meta.shape);
        (void)snprintf(name, sizeof name, "d.%s", info->name);
        (void)loss_of(&r);
        CHECK_OK(ctx, dsi_exec_run(r.exec, r.id, DS_PHASE_BACKWARD));
        CHECK_OK(ctx, dsi_exec_output(r.exec, r.id, name, &d));
        for (int64_t k = 0; k < PROBES; ++k) {
            gradient[k] = get(&d, k * (n - 1) / (PROBES - 1));
        }
        for (int64_t k = 0; k < PROBES; ++k) {
            const double slope = slope_of(&r, &t, k * (n - 1) / (PROBES - 1));
            if (fabs(slope - gradient[k]) > 1e-6 + 1e-4 * fabs(slope)) {
                fail_msg("%s: gradient %.9g, difference %.9g", info->name, gradient[k], slope);
            }
        }
        n_params += 1;
    }
    assert_int_equal(n_params, 1 + 3 * 4 + 4);
    close_run(&r);
}

static void splits_out_of_range_are_refused(void **state)
{
    static const int64_t bad[][2] = {{0, 1}, {1, 0}, {9, 1}, {1, 65}, {1, 17}, {-1, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const ds_trace trace = {.dtype = DS_DTYPE_F32, .batch = 1, .seq_length = 1};
        ds_cells *cells = NULL;
        ds_graph *graph = NULL;
        ds_nn *nn = NULL;
        CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
        CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
        CHECK_OK(ctx, ds_nn_create(graph, &trace, &nn));
        const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(4, 8));
        const ds_linear_params params = {.n_out = 16};
        assert_int_equal(ds_nn_tiled_linear(nn, "fc", x, &params, bad[i][0], bad[i][1]), DS_NONE);
        CHECK_FAILS(ctx, ds_nn_status(nn), DS_ERR_ARG, "parts, expected 1 to 64");
        ds_nn_destroy(&nn);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
    }
}

int main(void)
{
    static const ds_ctx_params params = {.n_threads = 2};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_are_the_layer),
        cmocka_unit_test(cut_inputs_are_rounded_once),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(splits_out_of_range_are_refused),
    };
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
