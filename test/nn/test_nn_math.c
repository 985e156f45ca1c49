/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of elements, parts, reductions along a dim and attention to all keys: values and
 * gradients against torch's (test/golden/op/make_nn.py), in f32 and bf16, and what is refused. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "common/check.h"
#include "exec/exec.h"
#include "grad/grad.h"
#include "op/harness_golden.h"

#include <deepspeed/nn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static ds_ctx *ctx;

/* ---- the calls, as named in the golden file -------------------------------------------------- */

static ds_value attend(ds_nn *nn, ds_value q, ds_value k, ds_value v)
{
    const ds_attention_params params = {
        .n_heads = 2, .n_kv_heads = 1, .head_dim = 2, .all_keys = true};
    return ds_nn_attention(nn, q, k, v, DS_NONE, &params);
}

static ds_value call_elements(ds_nn *nn, const char *name, ds_value x, ds_value z)
{
    static const struct {
        const char *name;
        ds_value (*fn)(ds_nn *nn, ds_value x);
        bool of_z;
    } all[] = {
        {"neg", ds_nn_neg, false},        {"exp", ds_nn_exp, false},
        {"log", ds_nn_log, false},        {"sqrt", ds_nn_sqrt, false},
        {"square", ds_nn_square, true},   {"tanh", ds_nn_tanh, true},
        {"sigmoid", ds_nn_sigmoid, true}, {"relu", ds_nn_relu, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        if (strcmp(all[i].name, name) == 0) {
            return all[i].fn(nn, all[i].of_z ? z : x);
        }
    }
    fail_msg("no call for the case %s", name);
    return DS_NONE;
}

/* Attention by hand: scores of x against three rows of z, causal, times x. */
static ds_value causal(ds_nn *nn, ds_value x, ds_value rows)
{
    const ds_value scores = ds_nn_scale(nn, ds_nn_bmm(nn, x, rows, true), 0.5);
    return ds_nn_bmm(nn, ds_nn_softmax(nn, ds_nn_tril(nn, scores, 0, -INFINITY)), x, false);
}

/* 0.12 < z ≤ 0.48 */
static ds_value between(ds_nn *nn, ds_value z)
{
    const ds_value above = ds_nn_compare_to(nn, z, DS_GREATER, 0.12);
    return ds_nn_where(nn, above, ds_nn_compare_to(nn, z, DS_LESS_EQUAL, 0.48), above);
}

static ds_value call_masks(ds_nn *nn, const char *name, ds_value x, ds_value z, ds_value rows)
{
    if (strcmp(name, "where") == 0) {
        return ds_nn_where(nn, ds_nn_compare(nn, x, DS_GREATER, rows), x, rows);
    }
    if (strcmp(name, "masked_fill") == 0) {
        return ds_nn_masked_fill(nn, z, between(nn, z), 0.5);
    }
    if (strcmp(name, "where_row") == 0) {
        const ds_value first = ds_nn_slice(nn, z, 1, 0, 1);
        return ds_nn_where(nn, ds_nn_compare_to(nn, first, DS_LESS, 0.2), z, ds_nn_square(nn, z));
    }
    return DS_NONE;
}

static bool is(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}

static ds_value call(ds_nn *nn, const char *name, ds_value x, ds_value z)
{
    const ds_value rows = ds_nn_slice(nn, z, 1, 0, 3);
    const ds_value half = ds_nn_masked_fill(nn, z, ds_nn_compare(nn, z, DS_EQUAL, z), 0.5);
    const ds_value three[3] = {x, z, x};
    const ds_value two[2] = {x, ds_nn_mul(nn, x, rows)};
    return is(name, "slice_0")          ? ds_nn_slice(nn, x, 0, 1, 1)
           : is(name, "slice_1")        ? ds_nn_slice(nn, x, 1, 1, 2)
           : is(name, "slice_last")     ? ds_nn_slice(nn, z, -1, 2, 3)
           : is(name, "concat_1")       ? ds_nn_concat(nn, three, 3, -2)
           : is(name, "concat_0")       ? ds_nn_concat(nn, two, 2, 0)
           : is(name, "transpose_01")   ? ds_nn_transpose(nn, x, 0, 1)
           : is(name, "transpose_last") ? ds_nn_transpose(nn, z, -1, -2)
           : is(name, "sum_0")          ? ds_nn_sum(nn, z, 0)
           : is(name, "sum_1")          ? ds_nn_sum(nn, z, 1)
           : is(name, "sum_last")       ? ds_nn_sum(nn, z, -1)
           : is(name, "mean_0")         ? ds_nn_mean(nn, x, -3)
           : is(name, "mean_1")         ? ds_nn_mean(nn, x, 1)
           : is(name, "mean_last")      ? ds_nn_mean(nn, x, 2)
           : is(name, "max_0")          ? ds_nn_max(nn, z, 0)
           : is(name, "max_1")          ? ds_nn_max(nn, x, 1)
           : is(name, "max_ties")       ? ds_nn_max(nn, ds_nn_relu(nn, ds_nn_sub(nn, z, half)), -1)
           : is(name, "min_1")          ? ds_nn_min(nn, z, -2)
           : is(name, "min_last")       ? ds_nn_min(nn, x, 2)
           : is(name, "bmm")            ? ds_nn_bmm(nn, x, z, true)
           : is(name, "bmm_plain")      ? ds_nn_bmm(nn, ds_nn_transpose(nn, z, 1, 2), z, false)
           : is(name, "where") || is(name, "masked_fill") || is(name, "where_row")
               ? call_masks(nn, name, x, z, rows)
           : is(name, "tril")   ? ds_nn_tril(nn, z, 1, -2.0)
           : is(name, "triu")   ? ds_nn_triu(nn, z, -1, 0.0)
           : is(name, "causal") ? causal(nn, x, rows)
           : is(name, "cross_attention")
               ? attend(nn, ds_nn_slice(nn, x, 2, 0, 4), ds_nn_slice(nn, z, 2, 0, 2),
                        ds_nn_slice(nn, z, 2, 2, 2))
           : is(name, "full_attention")
               ? attend(nn, ds_nn_slice(nn, z, 2, 0, 4), ds_nn_slice(nn, z, 2, 1, 2),
                        ds_nn_slice(nn, z, 2, 3, 2))
               : call_elements(nn, name, x, z);
}

/* ---- running one ----------------------------------------------------------------------------- */

typedef struct run {
    ds_cells *cells;
    ds_graph *graph;
    dsi_plan *plan;
    dsi_exec *exec;
    uint32_t id;
} run;

static double get(const ds_tensor *t, int64_t i)
{
    return t->meta.dtype == DS_DTYPE_BF16 ? (double)dsi_bf16_to_f32(((const uint16_t *)t->data)[i])
                                          : (double)((const float *)t->data)[i];
}

static void put(const ds_tensor *t, int64_t i, double x)
{
    if (t->meta.dtype == DS_DTYPE_BF16) {
        ((uint16_t *)t->data)[i] = dsi_f32_to_bf16((float)x);
    } else {
        ((float *)t->data)[i] = (float)x;
    }
}

static ds_tensor cell_of(const run *r, ds_cell_kind kind, const char *name)
{
    const ds_cell cell = ds_cells_find(r->cells, kind, name);
    assert_true(cell != DS_NONE);
    return (ds_tensor){dsi_exec_host_view(r->exec, cell), ds_cells_get(r->cells, cell)->meta};
}

static void add_gradients(run *r, ds_value loss)
{
    const ds_cell_info info = {.name = "seed",
                               .kind = DS_CELL_SCALAR,
                               .meta = ds_graph_meta(r->graph, loss),
                               .of = DS_NONE};
    static const char *const names[2] = {"x", "z"};
    ds_cell cell = DS_NONE;
    ds_value seed = DS_NONE;
    ds_value d_cell[8];
    CHECK_OK(ctx, ds_cells_add(r->cells, &info, &cell));
    CHECK_OK(ctx, ds_graph_read(r->graph, cell, &seed));
    CHECK_OK(ctx, dsi_grad_build(r->graph, &loss, &seed, 1, d_cell));
    for (int i = 0; i < 2; ++i) {
        char output[8];
        const ds_value d = d_cell[ds_cells_find(r->cells, DS_CELL_PARAM, names[i])];
        (void)snprintf(output, sizeof output, "d%s", names[i]);
        if (d != DS_NONE) {
            CHECK_OK(ctx, ds_graph_output(r->graph, output, d));
        }
    }
}

static void open_run(run *r, const char *name, ds_dtype dtype)
{
    const ds_trace trace = {.mode = DS_TRACE_TRAIN, .dtype = dtype, .batch = 2};
    const dsi_plan_env env = {
        .n_threads = ds_ctx_n_threads(ctx), .isa = dsi_cpu_isa(), .choose = dsi_cpu_kernel_choose};
    ds_nn *nn = NULL;
    CHECK_OK(ctx, ds_cells_create(ctx, 8, &r->cells));
    CHECK_OK(ctx, ds_graph_create(ctx, r->cells, &r->graph));
    CHECK_OK(ctx, ds_nn_create(r->graph, &trace, &nn));
    const ds_value x = ds_nn_param(nn, "x", ds_shape_3d(2, 3, 5), (ds_init){0}, false);
    const ds_value z = ds_nn_param(nn, "z", ds_shape_3d(2, 4, 5), (ds_init){0}, false);
    const ds_value y = call(nn, name, x, z);
    const ds_value w = ds_nn_param(nn, "w", ds_nn_meta(nn, y).shape, (ds_init){0}, false);
    const ds_value loss =
        ds_nn_sum_all(nn, ds_nn_mul(nn, y, ds_nn_cast(nn, w, ds_nn_meta(nn, y).dtype)));
    ds_nn_output(nn, "y", y);
    CHECK_OK(ctx, ds_nn_status(nn));
    ds_nn_destroy(&nn);
    add_gradients(r, loss);
    CHECK_OK(ctx, dsi_plan_build(r->graph, &env, &r->plan));
    CHECK_OK(ctx, dsi_plan_check(r->plan));
    CHECK_OK(ctx, dsi_exec_create(ctx, r->cells, NULL, &r->exec));
    CHECK_OK(ctx, dsi_exec_add(r->exec, r->plan, &r->id));
    CHECK_OK(ctx, dsi_exec_allocate(r->exec));
}

static void fill(const run *r)
{
    const ds_tensor x = cell_of(r, DS_CELL_PARAM, "x");
    const ds_tensor z = cell_of(r, DS_CELL_PARAM, "z");
    const ds_tensor w = cell_of(r, DS_CELL_PARAM, "w");
    const ds_tensor seed = cell_of(r, DS_CELL_SCALAR, "seed");
    for (int64_t i = 0; i < 40; ++i) {
        put(&z, i, (double)(11 * i % 40) / 25.0 - 0.7);
        if (i < 30) {
            put(&x, i, 0.3 + (double)(7 * i % 30) / 20.0);
        }
    }
    for (int64_t i = 0; i < ds_shape_count(w.meta.shape); ++i) {
        put(&w, i, 1.0 + (double)(i % 4) / 8.0);
    }
    put(&seed, 0, 1.0);
}

/* relu's kink: z that is rounded to the other side of 0 would change it; none is. */
static void compare(const run *r, const char *name, const op_line *want, double tolerance)
{
    ds_tensor got = {0};
    const bool flows = ds_graph_find_output(r->graph, want->word[0]) != DS_NONE;
    if (flows) {
        CHECK_OK(ctx, dsi_exec_output(r->exec, r->id, want->word[0], &got));
        assert_int_equal(ds_shape_count(got.meta.shape), want->n);
    }
    for (int i = 0; i < want->n; ++i) {
        const double value = flows ? get(&got, i) : 0.0;
        if (!(fabs(value - want->x[i]) <= tolerance * (1.0 + fabs(want->x[i])))) {
            fail_msg("%s: element %d of %s is %.9g, torch's %.9g", name, i, want->word[0], value,
                     want->x[i]);
        }
    }
}

static void as_torch(ds_dtype dtype, double tolerance)
{
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/op/nn.txt", "r");
    op_line line;
    uint32_t n = 0;
    assert_non_null(file);
    while (op_golden_next(file, &line)) {
        run r = {0};
        char name[32];
        assert_string_equal(line.word[0], "case");
        (void)snprintf(name, sizeof name, "%s", line.word[1]);
        open_run(&r, name, dtype);
        fill(&r);
        CHECK_OK(ctx, dsi_exec_run(r.exec, r.id, DS_PHASE_FORWARD));
        for (int i = 0; i < 3; ++i) { /* an output lives to the end of its phase */
            assert_true(op_golden_next(file, &line));
            compare(&r, name, &line, tolerance);
            if (i == 0) {
                CHECK_OK(ctx, dsi_exec_run(r.exec, r.id, DS_PHASE_BACKWARD));
            }
        }
        dsi_exec_destroy(&r.exec);
        dsi_plan_destroy(&r.plan);
        ds_graph_destroy(&r.graph);
        ds_cells_destroy(&r.cells);
        ++n;
    }
    (void)fclose(file);
    assert_int_equal(n, 36);
}

static void as_torch_f32(void **state)
{
    (void)state;
    as_torch(DS_DTYPE_F32, 3e-6);
}

static void as_torch_bf16(void **state)
{
    (void)state;
    as_torch(DS_DTYPE_BF16, 0.02);
}

/* ---- refusals -------------------------------------------------------------------------------- */

typedef ds_value (*wrong_fn)(ds_nn *nn, ds_value x);

static ds_value slices_beyond(ds_nn *nn, ds_value x)
{
    return ds_nn_slice(nn, x, 2, 0, 1);
}

static ds_value slices_too_much(ds_nn *nn, ds_value x)
{
    return ds_nn_slice(nn, x, -1, 6, 3);
}

static ds_value joins_nothing(ds_nn *nn, ds_value x)
{
    return ds_nn_concat(nn, &x, 0, 0);
}

static ds_value joins_what_is_absent(ds_nn *nn, ds_value x)
{
    const ds_value parts[2] = {x, DS_NONE};
    return ds_nn_concat(nn, parts, 2, 0);
}

static ds_value transposes_beyond(ds_nn *nn, ds_value x)
{
    return ds_nn_transpose(nn, x, 0, -3);
}

static ds_value means_of_nothing(ds_nn *nn, ds_value x)
{
    return ds_nn_mean(nn, ds_nn_slice(nn, x, 0, 0, 0), 0);
}

static ds_value ends_twice(ds_nn *nn, ds_value x)
{
    const ds_attention_params params = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
    const ds_value end = ds_nn_input(nn, "end", DS_DTYPE_I32, ds_shape_2d(4, 8));
    return ds_nn_attention_within(nn, x, x, x, DS_NONE, end, &params);
}

static ds_value largest_of_nothing(ds_nn *nn, ds_value x)
{
    return ds_nn_max(nn, ds_nn_slice(nn, x, 0, 0, 0), 0);
}

static ds_value multiplies_unlike(ds_nn *nn, ds_value x)
{
    return ds_nn_bmm(nn, x, x, false);
}

static ds_value multiplies_nothing(ds_nn *nn, ds_value x)
{
    return ds_nn_bmm(nn, x, DS_NONE, false);
}

static ds_value masks_by_floats(ds_nn *nn, ds_value x)
{
    return ds_nn_where(nn, x, x, x);
}

static ds_value masks_too_short(ds_nn *nn, ds_value x)
{
    const ds_value part = ds_nn_slice(nn, x, 1, 0, 3);
    return ds_nn_masked_fill(nn, x, ds_nn_compare_to(nn, part, DS_LESS, 0.0), 1.0);
}

static ds_value compares_by_no_number(ds_nn *nn, ds_value x)
{
    const ds_value mask = ds_nn_compare_to(nn, x, DS_LESS, 0.0);
    return ds_nn_compare_to(nn, mask, DS_EQUAL, 0.5);
}

static ds_value compares_without_b(ds_nn *nn, ds_value x)
{
    return ds_nn_compare(nn, x, DS_LESS, DS_NONE);
}

static ds_value compares_by_no_kind(ds_nn *nn, ds_value x)
{
    return ds_nn_compare(nn, x, (ds_comparison)6, x);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        wrong_fn fn;
        ds_status status;
        const char *says;
    } rows[] = {
        {slices_beyond, DS_ERR_SHAPE, "ds_nn_slice: dim is 2, but x has 2 dims"},
        {slices_too_much, DS_ERR_ARG, "slice"},
        {joins_nothing, DS_ERR_ARG, "ds_nn_concat: 0 parts, expected 1 to 16"},
        {joins_what_is_absent, DS_ERR_ARG, "ds_nn_concat: part 1 is absent"},
        {transposes_beyond, DS_ERR_SHAPE, "ds_nn_transpose: dim is -3, but x has 2 dims"},
        {means_of_nothing, DS_ERR_SHAPE, "ds_nn_mean: dim 0 of x has no elements"},
        {largest_of_nothing, DS_ERR_SHAPE, "ds_nn_max: dim 0 of x has no elements"},
        {multiplies_unlike, DS_ERR_SHAPE, "bmm: input 1 (b) is f32[4,8], expected"},
        {multiplies_nothing, DS_ERR_ARG, "ds_nn_bmm: operand 1 is absent"},
        {masks_by_floats, DS_ERR_SHAPE, "where: input 0 (mask) is f32[4,8], expected bool or i32"},
        {masks_too_short, DS_ERR_SHAPE, "where: input 0 (mask) is bool[4,3], expected"},
        {compares_by_no_number, DS_ERR_ARG, "value is 0.5, which is no bool"},
        {compares_without_b, DS_ERR_ARG, "ds_nn_compare: operand 1 is absent"},
        {compares_by_no_kind, DS_ERR_ARG, "kind is 6, expected 0 to 5"},
        {ends_twice, DS_ERR_ARG, "causal attention ends at each query"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const ds_trace trace = {.mode = DS_TRACE_TRAIN, .dtype = DS_DTYPE_F32, .batch = 4};
        ds_cells *cells = NULL;
        ds_graph *graph = NULL;
        ds_nn *nn = NULL;
        CHECK_OK(ctx, ds_cells_create(ctx, 8, &cells));
        CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
        CHECK_OK(ctx, ds_nn_create(graph, &trace, &nn));
        const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(4, 8));
        assert_int_equal(rows[i].fn(nn, x), DS_NONE);
        assert_int_equal(ds_nn_status(nn), rows[i].status);
        if (strstr(ds_ctx_error(ctx), rows[i].says) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", ds_ctx_error(ctx), rows[i].says);
        }
        ds_nn_destroy(&nn);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
    }
}

int main(void)
{
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_torch_f32),
        cmocka_unit_test(as_torch_bf16),
        cmocka_unit_test(refusals),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
