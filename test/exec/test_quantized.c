/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized collectives as ZeRO's rules place them and localize lowers them: a parameter that is
 * gathered, a gradient that is reduced, with errors kept (LoCo) and without, planned, checked and
 * run on simulated ranks in step and out of it, with overlap and threads: the bits of
 * test/golden/comm/quantized.* (make_quantized.py), and what is sent.
 * labels: threads */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/sim_ranks.h"
#include "exec/exec.h"
#include "op/ops.h"
#include "place/zero.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4200, MOST_CELLS = 16 };
enum { W, GRAD, X, WORKER, SERVER, N_CELLS };

typedef struct golden_case {
    const golden_file *file;
    const char *name;
    int64_t groups, ranks; /* of a group */
    ds_shape shape;
    ds_dtype dtype;
    int64_t rounds;
    double beta;
    /* how it is run */
    bool errors, overlap;
    uint32_t n_threads;
} golden_case;

typedef struct rank_run {
    ds_ctx *ctx;
    const golden_case *c;
    uint32_t rank;
    dsi_zero_spec spec;
    ds_cells *cells, *local_cells;
    ds_graph *graph, *local;
    dsi_plan *plan;
    dsi_exec *exec;
    dsi_mesh_comms comms;
} rank_run;

/* ---- the graph ------------------------------------------------------------------------------- */

static ds_status add_cell(rank_run *r, ds_cell_kind kind, const char *name, ds_meta meta,
                          ds_cell of, ds_cell *cell_out)
{
    const ds_cell_info info = {.name = name, .kind = kind, .meta = meta, .of = of};
    return ds_cells_add(r->cells, &info, cell_out);
}

/* The parameter read whole, as the output "w"; the rank's gradient, completed in its cell. */
static ds_status make_graph(rank_run *r, ds_cell *cell)
{
    const golden_case *c = r->c;
    const ds_meta meta = {c->dtype, c->shape};
    const dsi_permute_attrs same = {.n_dims = 2, .order = {0, 1}};
    ds_meta error[2];
    ds_value in[2];
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_cells_create(r->ctx, MOST_CELLS, &r->cells));
    DS_TRY(ds_cells_create(r->ctx, MOST_CELLS, &r->local_cells));
    DS_TRY(ds_graph_create(r->ctx, r->cells, &r->graph));
    DS_TRY(add_cell(r, DS_CELL_PARAM, "w", meta, DS_NONE, &cell[W]));
    DS_TRY(add_cell(r, DS_CELL_GRAD, "w", meta, cell[W], &cell[GRAD]));
    DS_TRY(add_cell(r, DS_CELL_INPUT, "x", meta, DS_NONE, &cell[X]));
    dsi_quantized_errors(c->ranks, c->groups, c->shape, &error[0], &error[1]);
    for (int i = 0; i < 2 && c->errors; ++i) {
        if (error[i].dtype != DS_DTYPE_NONE) {
            DS_TRY(add_cell(r, i == 0 ? DS_CELL_WORKER_ERROR : DS_CELL_SERVER_ERROR, "w", error[i],
                            cell[W], &cell[WORKER + i]));
        }
    }
    DS_TRY(ds_graph_set_scope(r->graph, "w"));
    DS_TRY(ds_graph_read(r->graph, cell[W], &in[0]));
    DS_TRY(ds_graph_apply(r->graph, &dsi_op_permute, &same, in, 1, out));
    DS_TRY(ds_graph_output(r->graph, "w", out[0]));
    DS_TRY(ds_graph_read(r->graph, cell[GRAD], &in[0]));
    DS_TRY(ds_graph_read(r->graph, cell[X], &in[1]));
    return ds_graph_apply(r->graph, &dsi_op_store, NULL, in, 2, out);
}

static ds_status lower(rank_run *r)
{
    const golden_case *c = r->c;
    const dsi_plan_env env = {.n_threads = c->n_threads,
                              .isa = DSI_NEEDS_AVX2,
                              .choose = dsi_accel_cpu.kernels->choose,
                              .overlap = c->overlap,
                              .prefetch = 1 << 20};
    r->spec = (dsi_zero_spec){
        .stage = 3,
        .hpz = c->groups > 1 ? (uint32_t)c->ranks : 0,
        .quantized = {.weights = true, .gradients = true, .errors = c->errors, .beta = c->beta},
        .comm_dtype = c->dtype,
        .reduce_bucket = 1 << 20,
        .gather_bucket = 1 << 20};
    DS_TRY(dsi_zero_set_ranks(r->ctx, &r->spec, (uint32_t)(c->groups * c->ranks)));
    DS_TRY(dsi_zero_lower(r->graph, &r->spec, r->local_cells, &r->local));
    DS_TRY(dsi_graph_check(r->local));
    DS_TRY(dsi_plan_build(r->local, &env, &r->plan));
    return dsi_plan_check(r->plan);
}

/* ---- contents -------------------------------------------------------------------------------- */

static uint32_t element(ds_dtype dtype, float x)
{
    return dtype == DS_DTYPE_F32    ? dsi_f32_bits(x)
           : dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(x)
                                    : dsi_f32_to_f16(x);
}

static void put(ds_dtype dtype, const float *x, int64_t n, void *data)
{
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = element(dtype, x[i]);
        if (dtype == DS_DTYPE_F32) {
            ((uint32_t *)data)[i] = bits;
        } else {
            ((uint16_t *)data)[i] = (uint16_t)bits;
        }
    }
}

/* Numbers of which none differs from x in a bit, but where both are zero. */
static uint32_t count_other(ds_dtype dtype, const float *x, int64_t n, const void *data)
{
    uint32_t other = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t got =
            dtype == DS_DTYPE_F32 ? ((const uint32_t *)data)[i] : ((const uint16_t *)data)[i];
        other += x[i] != 0.0f ? got != element(dtype, x[i])
                              : (uint32_t)(got << (dtype == DS_DTYPE_F32 ? 1 : 17)) != 0;
    }
    return other;
}

static const float *of(const golden_case *c, const char *what, int64_t at)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s.%s", c->name, what);
    return golden_f32(c->file, name) + at;
}

/* The rank's slice of the parameter, flat over dps and then dpr, or over dps alone; what pads it is
 * zero. */
static ds_status write_slice(const rank_run *r, ds_cell cell, const float *whole, int64_t slice)
{
    const int64_t n = ds_shape_count(r->c->shape);
    const int64_t in_group = (int64_t)r->rank % r->c->ranks;
    const bool all = n % (r->c->groups * r->c->ranks) != 0;
    const int64_t first =
        slice * (all ? in_group * r->c->groups + (int64_t)r->rank / r->c->ranks : in_group);
    const ds_dtype dtype = r->c->dtype;
    float x[MOST] = {0};
    uint32_t data[MOST];
    for (int64_t i = 0; i < slice && first + i < n; ++i) {
        x[i] = whole[first + i];
    }
    put(dtype, x, slice, data);
    return dsi_exec_write(r->exec, cell, 0, data, (size_t)slice * ds_dtype_bytes(dtype));
}

static ds_status run_rounds(rank_run *r, const ds_cell *cell, uint32_t id, uint32_t *n_failed)
{
    const golden_case *c = r->c;
    const int64_t n = ds_shape_count(c->shape);
    const int64_t n_ranks = c->groups * c->ranks;
    const int64_t slice = (n + n_ranks - 1) / n_ranks;
    const size_t width = ds_dtype_bytes(c->dtype);
    const ds_meta own = ds_cells_get(r->local_cells, cell[W])->meta;
    for (int64_t round = 0; round < c->rounds; ++round) {
        uint32_t data[MOST];
        ds_tensor w = {0};
        put(c->dtype, of(c, "x", (round * n_ranks + r->rank) * n), n, data);
        DS_TRY(dsi_exec_write(r->exec, cell[X], 0, data, (size_t)n * width));
        DS_TRY(write_slice(r, cell[W], of(c, "w", 0), ds_shape_count(own.shape)));
        DS_TRY(dsi_exec_run(r->exec, id, DS_PHASE_FORWARD));
        DS_TRY(dsi_exec_output(r->exec, id, "w", &w));
        *n_failed += count_other(c->dtype, of(c, "gathered", 0), n, w.data);
        DS_TRY(dsi_exec_read(r->exec, cell[GRAD], 0, data, (size_t)slice * width));
        *n_failed += count_other(
            c->dtype, of(c, c->errors ? "loco" : "sum", (round * n_ranks + r->rank) * slice), slice,
            data);
    }
    return DS_OK;
}

static ds_status run(rank_run *r, uint32_t *n_failed)
{
    ds_cell cell[N_CELLS];
    uint32_t id = 0;
    DS_TRY(make_graph(r, cell));
    DS_TRY(lower(r));
    DS_TRY(dsi_exec_create(r->ctx, r->local_cells, r->comms.world, &r->exec));
    dsi_exec_set_mesh(r->exec, &r->comms);
    DS_TRY(dsi_exec_add(r->exec, r->plan, &id));
    DS_TRY(dsi_exec_allocate(r->exec));
    return run_rounds(r, cell, id, n_failed);
}

static uint32_t rank_main(ds_ctx *ctx, dsi_comm *world, void *arg)
{
    const golden_case *c = arg;
    rank_run r = {.ctx = ctx, .c = c, .rank = world->rank};
    uint32_t n_failed = 0;
    dsi_zero_spec spec = {.hpz = c->groups > 1 ? (uint32_t)c->ranks : 0};
    ds_status status = dsi_zero_set_ranks(ctx, &spec, world->size);
    status = status < 0 ? status : dsi_mesh_comms_make(ctx, world, &spec.mesh, &r.comms);
    status = status < 0 ? status : run(&r, &n_failed);
    if (status < 0 || n_failed > 0) {
        (void)fprintf(stderr, "%s, rank %u, errors %d, overlap %d: %s; %u numbers differ\n",
                      c->name, r.rank, c->errors, c->overlap, status < 0 ? ds_ctx_error(ctx) : "ok",
                      n_failed);
    }
    dsi_exec_destroy(&r.exec);
    dsi_plan_destroy(&r.plan);
    ds_graph_destroy(&r.local);
    ds_graph_destroy(&r.graph);
    ds_cells_destroy(&r.local_cells);
    ds_cells_destroy(&r.cells);
    dsi_mesh_comms_destroy(&r.comms);
    return n_failed + (status < 0 ? 1 : 0);
}

static void run_case(golden_case *c)
{
    const dsi_comm_sim_options late = {.seed = 11, .max_delay = 1e-3, .reorder = true};
    for (int i = 0; i < 8; ++i) {
        c->errors = (i & 1) != 0;
        c->overlap = (i & 2) != 0;
        c->n_threads = (i & 4) != 0 ? 3 : 1;
        assert_int_equal(
            sim_ranks_run((uint32_t)(c->groups * c->ranks), i > 3 ? &late : NULL, rank_main, c), 0);
    }
}

static void test_golden(void **state)
{
    (void)state;
    const golden_file file = golden_read("comm/quantized.safetensors");
    json_t *root = golden_json("comm/quantized.json");
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        const json_t *row = json_array_get(cases, i);
        const char *dtype = json_string_value(json_object_get(row, "dtype"));
        golden_case c = {.file = &file,
                         .name = json_string_value(json_object_get(row, "name")),
                         .groups = (int64_t)golden_number(row, "groups"),
                         .ranks = (int64_t)golden_number(row, "ranks"),
                         .shape = ds_shape_2d((int64_t)golden_number(row, "rows"),
                                              (int64_t)golden_number(row, "columns")),
                         .dtype = strcmp(dtype, "F32") == 0    ? DS_DTYPE_F32
                                  : strcmp(dtype, "BF16") == 0 ? DS_DTYPE_BF16
                                                               : DS_DTYPE_F16,
                         .rounds = (int64_t)golden_number(root, "rounds"),
                         .beta = golden_number(root, "beta")};
        run_case(&c);
    }
    json_decref(root);
    golden_close((golden_file *)&file);
}

/* ---- weights of more than a block ------------------------------------------------------------ */

enum { LONG = 4200, LONG_BLOCK = 2048 };

static void run_kernel(ds_ctx *ctx, const ds_op *op, const dsi_blocks_attrs *attrs, ds_tensor in,
                       ds_tensor out, ds_isa isa)
{
    const ds_kernel_sig sig = {op, attrs, 1, 1, &in.meta, &out.meta, 1};
    const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, isa, 0);
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = &in, .out = &out};
    assert_non_null(kernel);
    CHECK_OK(ctx, kernel->run(&call));
}

static void test_long(void **state)
{
    (void)state;
    const golden_file file = golden_read("comm/quantized.safetensors");
    const ds_isa isas[] = {DS_ISA_REF, dsi_cpu_isa()};
    static float x[LONG], y[LONG];
    static uint8_t bytes[2 * LONG];
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    for (int i = 0; i < LONG; ++i) { /* as make_quantized.py */
        x[i] = ((float)((int64_t)i * 7919 % 2003) - 1001.0f) / 1024.0f;
    }
    for (int i = 0; i < 2; ++i) {
        const dsi_blocks_attrs attrs = {.bits = 8,
                                        .block = LONG_BLOCK,
                                        .n_rows = 2,
                                        .width = LONG / 2,
                                        .count = LONG,
                                        .dtype = DS_DTYPE_F32};
        const ds_tensor floats = {x, {DS_DTYPE_F32, ds_shape_1d(LONG)}};
        const ds_tensor made = {y, floats.meta};
        const ds_tensor sent = {bytes, {DS_DTYPE_U8, ds_shape_2d(2, dsi_blocks_row_bytes(&attrs))}};
        memset(y, 0xff, sizeof y);
        run_kernel(ctx, &dsi_op_quantize_blocks, &attrs, floats, sent, isas[i]);
        run_kernel(ctx, &dsi_op_dequantize_blocks, &attrs, sent, made, isas[i]);
        assert_int_equal(count_other(DS_DTYPE_F32, golden_f32(&file, "long"), LONG, y), 0);
    }
    ds_ctx_destroy(&ctx);
    golden_close((golden_file *)&file);
}

/* What is not finite, and what is too small for a scale. */
static void test_edges(void **state)
{
    (void)state;
    const ds_isa isas[] = {DS_ISA_REF, dsi_cpu_isa()};
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    for (int i = 0; i < 2; ++i) {
        const dsi_blocks_attrs attrs = {
            .bits = 4, .block = 2, .n_rows = 1, .width = 10, .dtype = DS_DTYPE_F32, .factor = 1.0};
        float x[10] = {INFINITY, 1.0f, NAN, 1.0f, 1e-40f, -1e-36f, 1.0f, -0.5f, -1.0f, 0.0625f};
        float y[10];
        uint8_t bytes[64];
        const ds_tensor floats = {x, {DS_DTYPE_F32, ds_shape_1d(10)}};
        const ds_tensor made = {y, floats.meta};
        const ds_tensor sent = {bytes, {DS_DTYPE_U8, ds_shape_2d(1, dsi_blocks_row_bytes(&attrs))}};
        run_kernel(ctx, &dsi_op_quantize_blocks, &attrs, floats, sent, isas[i]);
        run_kernel(ctx, &dsi_op_dequantize_sum, &attrs, sent, made, isas[i]);
        assert_true(isnan(y[0]) && isnan(y[1]) && isnan(y[2]) && isnan(y[3]));
        assert_true(y[4] == 0.0f && y[5] == 0.0f);
        assert_true(y[6] == 0.875f && y[7] == -0.5f); /* DeepSpeed's bias */
        assert_true(y[8] == -1.0f && y[9] == 0.0f);   /* half a step: to the even one */
    }
    ds_ctx_destroy(&ctx);
}

/* ---- ahead of their use ---------------------------------------------------------------------- */

/* Two parameters, "a" and "b", read whole one after the other on two ranks. */
typedef struct two_run {
    ds_ctx *ctx;
    ds_cells *cells, *local_cells;
    ds_graph *graph, *local;
    dsi_plan *plan;
} two_run;

static two_run run_two(dsi_quantized quantized, bool first_is_frozen)
{
    const dsi_permute_attrs same = {.n_dims = 2, .order = {0, 1}};
    const dsi_plan_env env = {.n_threads = 1,
                              .isa = DSI_NEEDS_AVX2,
                              .choose = dsi_accel_cpu.kernels->choose,
                              .overlap = true,
                              .prefetch = 1000};
    dsi_zero_spec spec = {.stage = 3,
                          .quantized = quantized,
                          .comm_dtype = DS_DTYPE_F32,
                          .reduce_bucket = 1000,
                          .gather_bucket = 1000};
    two_run r = {0};
    assert_int_equal(ds_ctx_create(NULL, &r.ctx), DS_OK);
    CHECK_OK(r.ctx, ds_cells_create(r.ctx, MOST_CELLS, &r.cells));
    CHECK_OK(r.ctx, ds_cells_create(r.ctx, MOST_CELLS, &r.local_cells));
    CHECK_OK(r.ctx, ds_graph_create(r.ctx, r.cells, &r.graph));
    for (int i = 0; i < 2; ++i) {
        const ds_cell_info info = {.name = i == 0 ? "a" : "b",
                                   .kind = DS_CELL_PARAM,
                                   .meta = {DS_DTYPE_F32, ds_shape_2d(8, 8)},
                                   .of = DS_NONE,
                                   .frozen = i == 0 && first_is_frozen};
        ds_cell cell = DS_NONE;
        ds_value v = DS_NONE;
        ds_value out[DS_MAX_OUT];
        CHECK_OK(r.ctx, ds_cells_add(r.cells, &info, &cell));
        CHECK_OK(r.ctx, ds_graph_read(r.graph, cell, &v));
        CHECK_OK(r.ctx, ds_graph_apply(r.graph, &dsi_op_permute, &same, &v, 1, out));
        CHECK_OK(r.ctx, ds_graph_output(r.graph, info.name, out[0]));
    }
    CHECK_OK(r.ctx, dsi_zero_set_ranks(r.ctx, &spec, 2));
    CHECK_OK(r.ctx, dsi_zero_lower(r.graph, &spec, r.local_cells, &r.local));
    CHECK_OK(r.ctx, dsi_plan_build(r.local, &env, &r.plan));
    CHECK_OK(r.ctx, dsi_plan_check(r.plan));
    return r;
}

static void end_two(two_run *r)
{
    dsi_plan_destroy(&r->plan);
    ds_graph_destroy(&r->local);
    ds_graph_destroy(&r->graph);
    ds_cells_destroy(&r->local_cells);
    ds_cells_destroy(&r->cells);
    ds_ctx_destroy(&r->ctx);
}

/* The second is quantized and sent before the first is used. */
static void test_prefetch(void **state)
{
    (void)state;
    two_run r = run_two((dsi_quantized){.weights = true}, false);
    uint32_t quantized[2] = {0, 0};
    uint32_t used = 0; /* places of steps, from 1 */
    uint32_t n = 0;
    for (uint32_t s = 0; s < r.plan->n_steps; ++s) {
        if (r.plan->steps[s].op == &dsi_op_quantize_blocks && n < 2) {
            quantized[n++] = s + 1;
        }
        used = r.plan->steps[s].op == &dsi_op_dequantize_blocks && used == 0 ? s + 1 : used;
    }
    assert_int_equal(n, 2);
    assert_true(quantized[1] < used);
    end_two(&r);
}

/* Frozen ones alone, or none. */
static void test_frozen(void **state)
{
    (void)state;
    for (int i = 0; i < 2; ++i) {
        two_run r = run_two((dsi_quantized){.frozen_weights = true}, i == 0);
        uint32_t n = 0;
        for (ds_node k = 0; k < r.local->n_nodes; ++k) {
            const dsi_node_info *node = &r.local->nodes[k];
            if (node->op == &dsi_op_quantize_blocks) {
                const ds_cell cell = r.local->values[dsi_node_in(r.local, node)[0]].cell;
                assert_string_equal(ds_cells_get(r.cells, cell)->name, "a");
                ++n;
            }
        }
        assert_int_equal(n, i == 0 ? 1 : 0);
        end_two(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_long),
        cmocka_unit_test(test_edges),  cmocka_unit_test(test_prefetch),
        cmocka_unit_test(test_frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
