/* SPDX-License-Identifier: Apache-2.0 */
/* Every change of placement that localize lowers, executed: a graph of one node whose output is
 * asked for otherwise than it is made, localized, planned, checked, run on simulated ranks, on the
 * processor and on the simulated accelerator. Each rank's memory has the bits of its part of the
 * whole value.
 * labels: threads long
 */
#include "accel/cpu/cpu_features.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "common/sim_ranks.h"
#include "exec/exec.h"
#include "op/ops.h"
#include "place/localize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CASES = 600, MOST_BYTES = 1 << 12, MOST_CELLS = 16 };

typedef struct move_case {
    ds_dtype dtype;
    const char *from, *to;
    const char *nodes; /* behind the first one; NULL: any */
} move_case;

typedef struct suite {
    const char *mesh;
    ds_shape shape;
    const char *accel;
    bool overlap;
    bool minus_zero; /* every term, and so the sum, is -0 */
    const move_case *cases;
    uint32_t n;
} suite;

/* ---- contents -------------------------------------------------------------------------------- */

static void put(ds_dtype dtype, void *data, int64_t e, uint32_t bits)
{
    if (dtype == DS_DTYPE_BF16) {
        ((uint16_t *)data)[e] = (uint16_t)bits;
    } else {
        ((uint32_t *)data)[e] = bits;
    }
}

static uint32_t bits_of(ds_dtype dtype, int32_t number)
{
    const float f = (float)number;
    return dtype == DS_DTYPE_I32    ? (uint32_t)number
           : dtype == DS_DTYPE_BF16 ? (uint32_t)dsi_f32_to_bf16(f)
                                    : dsi_f32_bits(f);
}

/* Small numbers, whose sums are exact; where nothing is computed, any bits. */
static uint32_t element(ds_dtype dtype, bool any, int64_t e)
{
    return any ? (uint32_t)dsi_rng_below(3, 1, (uint64_t)e, 0xffffffffu)
               : bits_of(dtype, (int32_t)(e * 7 % 61) - 30);
}

/* The term of index k of n. */
static uint32_t term(ds_dtype dtype, int64_t e, uint32_t k, uint32_t n)
{
    int32_t number = (int32_t)(e * 7 % 61) - 30;
    for (uint32_t i = 1; i < n; ++i) {
        const int32_t other = (int32_t)((e + i) % 5) - 2;
        number = i == k ? other : k == 0 ? number - other : number;
    }
    return bits_of(dtype, number);
}

static void fill_whole(ds_meta meta, bool any, void *data)
{
    for (int64_t e = 0; e < ds_shape_count(meta.shape); ++e) {
        put(meta.dtype, data, e, element(meta.dtype, any, e));
    }
}

/* -0, which changes no bit of a sum. */
static void fill_identity(ds_meta meta, void *data)
{
    for (int64_t e = 0; e < ds_shape_count(meta.shape); ++e) {
        put(meta.dtype, data, e, meta.dtype == DS_DTYPE_BF16 ? 0x8000u : 0x80000000u);
    }
}

/* ---- one rank -------------------------------------------------------------------------------- */

typedef struct rank_run {
    ds_ctx *ctx;
    dsi_mesh mesh;
    dsi_mesh_comms *comms;
    const suite *suite;
    const move_case *c;
    uint32_t rank;
    ds_meta meta;
    dsi_placement from, to;
    bool any; /* bits */
    ds_cells *cells, *local_cells;
    ds_graph *graph, *local;
    dsi_propagation *placed;
    dsi_plan *plan;
    dsi_exec *exec;
} rank_run;

static void place_cell(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    const rank_run *r = user;
    (void)cell;
    (void)info;
    spread_out->at = r->from;
}

static ds_status make_graph(rank_run *r)
{
    const ds_cell_info info = {.name = "x", .kind = DS_CELL_INPUT, .meta = r->meta, .of = DS_NONE};
    const dsi_scale_attrs one = {.factor = 1.0};
    dsi_permute_attrs same = {.n_dims = r->meta.shape.n_dims};
    ds_cell cell = DS_NONE;
    ds_value x = DS_NONE;
    ds_value out[DS_MAX_OUT];
    for (int64_t d = 0; d < same.n_dims; ++d) {
        same.order[d] = d;
    }
    DS_TRY(ds_cells_create(r->ctx, MOST_CELLS, &r->cells));
    DS_TRY(ds_cells_create(r->ctx, MOST_CELLS, &r->local_cells));
    DS_TRY(ds_graph_create(r->ctx, r->cells, &r->graph));
    DS_TRY(ds_cells_add(r->cells, &info, &cell));
    DS_TRY(ds_graph_read(r->graph, cell, &x));
    DS_TRY(ds_graph_set_scope(r->graph, "x"));
    DS_TRY(r->any ? ds_graph_apply(r->graph, &dsi_op_permute, &same, &x, 1, out)
                  : ds_graph_apply(r->graph, &dsi_op_scale, &one, &x, 1, out));
    return ds_graph_output(r->graph, "y", out[0]);
}

static ds_status lower(rank_run *r)
{
    const dsi_propagate_params where = {
        .mesh = r->mesh, .policy = dsi_place_policy_default(), .cell = place_cell, .user = r};
    const dsi_plan_env env = {.n_threads = 1,
                              .isa = DSI_NEEDS_AVX2,
                              .choose = dsi_accel_cpu.kernels->choose,
                              .overlap = r->suite->overlap,
                              .prefetch = 1 << 20};
    dsi_localize_params how = {.comm_dtype = DS_DTYPE_F32};
    DS_TRY(dsi_propagate(r->graph, &where, &r->placed));
    r->placed->output[0] = (dsi_spread){.at = r->to};
    how.placed = r->placed;
    DS_TRY(dsi_localize(r->graph, &how, r->local_cells, &r->local));
    DS_TRY(dsi_graph_check(r->local));
    DS_TRY(dsi_plan_build(r->local, &env, &r->plan));
    return dsi_plan_check(r->plan);
}

/* What this rank has at the start: its part, or its term of it. */
static ds_status write_part(const rank_run *r)
{
    static _Thread_local unsigned char whole[MOST_BYTES];
    static _Thread_local unsigned char own[MOST_BYTES];
    const dsi_part part = dsi_placement_part(&r->mesh, &r->from, r->meta.shape, r->rank);
    const dsi_part all = dsi_part_whole(r->meta.shape);
    const dsi_axes terms = dsi_axes_of(dsi_placement_partial_axes(&r->from));
    const dsi_rank_group group = dsi_mesh_group(&r->mesh, &terms, r->rank);
    const size_t width = ds_dtype_bytes(r->meta.dtype);
    fill_whole(r->meta, r->any, whole);
    for (int64_t e = 0; group.size > 1 && e < all.count; ++e) {
        put(r->meta.dtype, whole, e, term(r->meta.dtype, e, group.index, group.size));
    }
    if (r->suite->minus_zero) {
        fill_identity(r->meta, whole);
    }
    memset(own, 0, sizeof own);
    dsi_part_copy(&all, whole, &part, own, width);
    return dsi_exec_write(r->exec, 0, 0, own, (size_t)part.slots * width);
}

static bool has_part(const rank_run *r, const ds_tensor *y)
{
    static _Thread_local unsigned char whole[MOST_BYTES];
    static _Thread_local unsigned char own[MOST_BYTES];
    const dsi_part part = dsi_placement_part(&r->mesh, &r->to, r->meta.shape, r->rank);
    const dsi_part all = dsi_part_whole(r->meta.shape);
    const uint32_t had = dsi_placement_partial_axes(&r->from);
    const uint32_t has = dsi_placement_partial_axes(&r->to);
    const dsi_axes terms = dsi_axes_of(has & had);
    const dsi_axes made = dsi_axes_of(has & ~had);
    const dsi_rank_group group = dsi_mesh_group(&r->mesh, &terms, r->rank);
    const size_t width = ds_dtype_bytes(r->meta.dtype);
    fill_whole(r->meta, r->any, whole);
    for (int64_t e = 0; group.size > 1 && e < all.count; ++e) { /* the sum stays as it is */
        put(r->meta.dtype, whole, e, term(r->meta.dtype, e, group.index, group.size));
    }
    const bool has_none = dsi_mesh_group(&r->mesh, &made, r->rank).index > 0;
    if (has_none || r->suite->minus_zero) { /* the first has all of it */
        fill_identity(r->meta, whole);
    }
    memset(own, 0, sizeof own);
    dsi_part_copy(&all, whole, &part, own, width);
    return ds_shape_count(y->meta.shape) == part.slots &&
           memcmp(y->data, own, (size_t)part.slots * width) == 0;
}

static ds_status run(rank_run *r, bool *same)
{
    dsi_accel_choice accel;
    uint32_t id = 0;
    ds_tensor y = {0};
    DS_TRY(dsi_accel_choose(r->ctx, r->suite->accel, &accel));
    DS_TRY(dsi_exec_create(r->ctx, r->local_cells, r->comms->world, &r->exec));
    DS_TRY(dsi_exec_set_accel(r->exec, &accel));
    dsi_exec_set_mesh(r->exec, r->comms);
    DS_TRY(dsi_exec_add(r->exec, r->plan, &id));
    DS_TRY(dsi_exec_allocate(r->exec));
    for (int i = 0; i < 2; ++i) { /* again: nothing of the first run stays */
        DS_TRY(write_part(r));
        DS_TRY(dsi_exec_run(r->exec, id, DS_PHASE_FORWARD));
        DS_TRY(dsi_exec_output(r->exec, id, "y", &y));
        *same = (i == 0 || *same) && has_part(r, &y);
    }
    return DS_OK;
}

/* "permute take_slice" */
static void nodes_of(const ds_graph *g, char *text, size_t n)
{
    size_t at = 0;
    *text = '\0';
    for (ds_node i = 1; i < g->n_nodes && at < n; ++i) {
        at += (size_t)snprintf(text + at, n - at, "%s%s", i > 1 ? " " : "", g->nodes[i].op->name);
    }
}

static uint32_t run_case(rank_run *r)
{
    char nodes[512] = "";
    bool same = false;
    ds_status status = make_graph(r);
    status = status < 0 ? status : lower(r);
    if (r->local != NULL) {
        nodes_of(r->local, nodes, sizeof nodes);
    }
    status = status < 0 ? status : run(r, &same);
    const bool alike = r->c->nodes == NULL || strcmp(r->c->nodes, nodes) == 0;
    if (status < 0 || !same || !alike) {
        (void)fprintf(stderr, "%s, rank %u, %s, %s: from %s to %s: %s %s; nodes: %s\n",
                      r->suite->mesh, r->rank, r->suite->accel, ds_dtype_name(r->meta.dtype),
                      r->c->from, r->c->to, status < 0 ? ds_status_name(status) : "",
                      status < 0 ? ds_ctx_error(r->ctx)
                      : !same    ? "other bits"
                                 : "other nodes",
                      nodes);
    }
    dsi_exec_destroy(&r->exec);
    dsi_plan_destroy(&r->plan);
    dsi_propagation_destroy(&r->placed);
    ds_graph_destroy(&r->local);
    ds_graph_destroy(&r->graph);
    ds_cells_destroy(&r->local_cells);
    ds_cells_destroy(&r->cells);
    return status < 0 || !same || !alike ? 1 : 0;
}

static uint32_t rank_main(ds_ctx *ctx, dsi_comm *world, void *arg)
{
    const suite *s = arg;
    uint32_t n_failed = 0;
    for (uint32_t i = 0; i < s->n && n_failed == 0; ++i) {
        const move_case *c = &s->cases[i];
        dsi_mesh_comms comms = {0};
        dsi_comm *own = NULL; /* a communicator gives memory to one executor */
        rank_run r = {
            .ctx = ctx, .suite = s, .c = c, .rank = world->rank, .meta = {c->dtype, s->shape}};
        if (dsi_mesh_parse(ctx, s->mesh, &r.mesh) < 0 ||
            dsi_placement_parse(ctx, c->from, &r.from) < 0 ||
            dsi_placement_parse(ctx, c->to, &r.to) < 0 ||
            dsi_comm_split(world, 0, world->rank, &own) < 0 ||
            dsi_mesh_comms_make(ctx, own, &r.mesh, &comms) < 0) {
            return 1;
        }
        r.comms = &comms;
        r.any = r.from.flat.n == 0 && dsi_placement_partial_axes(&r.from) == 0;
        n_failed += run_case(&r);
        dsi_mesh_comms_destroy(&comms);
        dsi_comm_destroy(&own);
    }
    return n_failed;
}

static uint32_t ranks_of(const char *mesh)
{
    ds_ctx *ctx = NULL;
    dsi_mesh m;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    CHECK_OK(ctx, dsi_mesh_parse(ctx, mesh, &m));
    ds_ctx_destroy(&ctx);
    return m.n_ranks;
}

static void run_suite(suite s)
{
    static const char *const accels[] = {"cpu", "sim"};
    for (int i = 0; i < 4; ++i) {
        s.accel = accels[i % 2];
        s.overlap = i >= 2;
        assert_int_equal(sim_ranks_run(ranks_of(s.mesh), NULL, rank_main, &s), 0);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

#define SUITE(on, size, rows)                                                                      \
    run_suite((suite){                                                                             \
        .mesh = (on), .shape = size, .cases = (rows), .n = sizeof(rows) / sizeof((rows)[0])})

static ds_shape box(int64_t a, int64_t b, int64_t c)
{
    return (ds_shape){.n_dims = 3, .dims = {a, b, c}};
}

/* What each move is lowered to. */
static void test_nodes(void **state)
{
    (void)state;
    static const move_case one[] = {
        {DS_DTYPE_F32, "R", "sp:S(0)", "take_slice reshape"},
        {DS_DTYPE_F32, "R", "sp:S(1)", "reshape permute take_slice reshape"},
        {DS_DTYPE_BF16, "sp:S(0)", "R", "all_gather"},
        {DS_DTYPE_I32, "sp:S(1)", "R", "all_gather permute reshape"},
        {DS_DTYPE_F32, "sp:S(0)", "sp:S(2)", "reshape permute reshape all_to_all reshape"},
        {DS_DTYPE_BF16, "sp:S(1)", "sp:S(0)", "reshape all_to_all reshape permute reshape"},
        {DS_DTYPE_I32, "sp:S(1)", "sp:S(2)",
         "reshape permute reshape all_to_all reshape permute reshape"},
        {DS_DTYPE_F32, "sp:P", "R", "all_reduce"},
        {DS_DTYPE_BF16, "sp:P", "sp:S(0)", "reduce_scatter reshape"},
        {DS_DTYPE_F32, "sp:P", "sp:S(2)", "reshape permute reduce_scatter reshape"},
        {DS_DTYPE_F32, "sp:P", "flat(sp)", "reduce_scatter"},
        {DS_DTYPE_F32, "flat(sp)", "sp:S(1)", NULL},
        {DS_DTYPE_BF16, "sp:S(1)", "flat(sp)", NULL},
    };
    SUITE("mesh(sp=3)", box(6, 3, 9), one);
}

/* Several axes: on one dim, on several, flat below a box, and beside a sum. */
static void test_axes(void **state)
{
    (void)state;
    static const move_case two[] = {
        {DS_DTYPE_F32, "sp:S(1) tp:S(1)", "R", NULL},
        {DS_DTYPE_F32, "R", "sp:S(1) tp:S(1)", NULL},
        {DS_DTYPE_I32, "sp:S(1) tp:S(1)", "sp:S(0) tp:S(0)", NULL},
        {DS_DTYPE_F32, "sp:S(0) tp:S(1)", "sp:S(1) tp:S(0)", NULL},
        {DS_DTYPE_BF16, "sp:S(0) tp:S(0)", "sp:S(0) tp:S(2)", NULL},
        {DS_DTYPE_F32, "sp:S(0) tp:S(0)", "tp:S(0)", NULL},
        {DS_DTYPE_F32, "tp:S(0)", "sp:S(0) tp:S(0)", NULL},
        {DS_DTYPE_F32, "sp:P tp:S(1)", "sp:P tp:S(2)", NULL},
        {DS_DTYPE_F32, "sp:S(0) tp:S(2)", "sp:S(2;3) tp:S(2)",
         "reshape permute reshape all_to_all reshape"},
        {DS_DTYPE_F32, "sp:S(2;3) tp:S(2)", "sp:S(0) tp:S(2)",
         "reshape all_to_all reshape permute reshape"},
        {DS_DTYPE_BF16, "sp:S(0)", "sp:S(2;3) tp:S(2)", NULL},
        {DS_DTYPE_F32, "R", "sp:S(2;3) tp:S(2)", NULL},
        {DS_DTYPE_F32, "sp:P tp:S(1)", "sp:S(1) tp:S(2)", NULL},
        {DS_DTYPE_F32, "sp:P tp:P", "sp:S(2) tp:S(0)", NULL},
        {DS_DTYPE_F32, "sp:P tp:P", "flat(tp,sp)", NULL},
        {DS_DTYPE_F32, "sp:P tp:P", "tp:S(1) flat(sp)", NULL},
        {DS_DTYPE_F32, "tp:S(1) flat(sp)", "tp:S(0) flat(sp)", NULL},
        {DS_DTYPE_F32, "tp:S(1) flat(sp)", "R", NULL},
        {DS_DTYPE_F32, "R", "tp:S(2) flat(sp)", NULL},
        {DS_DTYPE_F32, "flat(sp,tp)", "flat(tp,sp)", NULL},
        {DS_DTYPE_F32, "flat(sp)", "flat(tp)", NULL},
        {DS_DTYPE_BF16, "flat(sp,tp)", "sp:S(1)", NULL},
        {DS_DTYPE_F32, "R", "sp:P", "take_term"},
        {DS_DTYPE_BF16, "sp:S(1)", "sp:S(1) tp:P", "take_term"},
        {DS_DTYPE_F32, "sp:S(1)", "sp:S(2) tp:P", NULL},
        {DS_DTYPE_F32, "sp:P", "tp:P", "all_reduce take_term"},
    };
    SUITE("mesh(sp=2,tp=3)", box(6, 6, 12), two);
}

/* No move makes +0 of -0, nor does a reduction of what take_term made. */
static void test_minus_zero(void **state)
{
    (void)state;
    static const move_case cases[] = {
        {DS_DTYPE_F32, "sp:P", "R", "all_reduce"}, {DS_DTYPE_BF16, "sp:P tp:P", "R", NULL},
        {DS_DTYPE_F32, "sp:P", "sp:S(0)", NULL},   {DS_DTYPE_F32, "R", "sp:P", "take_term"},
        {DS_DTYPE_BF16, "sp:P", "tp:P", NULL},
    };
    run_suite((suite){.mesh = "mesh(sp=2,tp=3)",
                      .shape = box(6, 6, 12),
                      .minus_zero = true,
                      .cases = cases,
                      .n = sizeof cases / sizeof cases[0]});
}

/* Every pair of placements. */
static void test_pairs(void **state)
{
    (void)state;
    static const char *const all[] = {
        "R",
        "dps:S(0)",
        "dps:S(1) tp:S(0)",
        "dps:S(2) tp:S(2)",
        "sp:S(1)",
        "dps:S(0) sp:S(0) tp:S(0)",
        "sp:S(0) tp:S(1)",
        "dps:S(2) sp:S(1) tp:S(0)",
        "tp:S(2) flat(dps,sp)",
        "flat(tp,dps,sp)",
        "sp:S(1) flat(dps)",
        "dps:P sp:P tp:P",
        "dps:P sp:S(0) tp:P",
        "sp:S(1) tp:P",
        "sp:S(2;2) tp:S(2)",
        "dps:S(0) sp:S(1) tp:S(2)",
    };
    enum { N = sizeof all / sizeof all[0] };
    static move_case pairs[N * N];
    uint32_t n = 0;
    for (uint32_t i = 0; i < N; ++i) {
        for (uint32_t k = 0; k < N; ++k) {
            static const ds_dtype types[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_I32};
            const bool moves = strchr(all[i], 'P') == NULL && strstr(all[i], "flat") == NULL;
            if (strchr(all[k], 'P') == NULL && i != k) {
                pairs[n++] = (move_case){types[moves ? n % 3 : n % 2], all[i], all[k], NULL};
            }
        }
    }
    run_suite(
        (suite){.mesh = "mesh(dps=2,sp=2,tp=2)", .shape = box(8, 4, 8), .cases = pairs, .n = n});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nodes), cmocka_unit_test(test_axes),
                                       cmocka_unit_test(test_minus_zero),
                                       cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
