/* SPDX-License-Identifier: Apache-2.0 */
/* Single nodes placed and localized: what becomes of them, and what is refused. Random graphs:
 * test_place_random. */
#include "common/check.h"
#include "op/ops.h"
#include "place/localize.h"

#include <string.h>

static ds_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* A node's input: a cell, and where it lies. */
typedef struct row {
    ds_cell_kind kind;
    ds_meta meta; /* dtype NONE: absent */
    const char *placement;
} row;

typedef struct one_node {
    const char *mesh;
    const ds_op *op;
    const void *attrs;
    const row *rows;
    uint32_t n;
    bool gather;       /* cut values may be gathered */
    uint32_t averaged; /* mask of axes by whose size the inputs are still to be divided */
    ds_cells *cells, *local_cells;
    ds_graph *graph, *local;
    dsi_propagation *placed;
} one_node;

static void place_cell(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    const one_node *o = user;
    uint32_t at = 0;
    (void)info;
    for (uint32_t i = 0; i < o->n; ++i) { /* absent rows have no cell */
        at = o->rows[i].meta.dtype != DS_DTYPE_NONE && cell-- == 0 ? i : at;
    }
    CHECK_OK(ctx, dsi_placement_parse(ctx, o->rows[at].placement, &spread_out->at));
    spread_out->averaged = o->averaged;
}

static ds_status lower(one_node *o)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &o->cells));
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &o->local_cells));
    CHECK_OK(ctx, ds_graph_create(ctx, o->cells, &o->graph));
    for (uint32_t i = 0; i < o->n; ++i) {
        static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g"};
        const ds_cell_info info = {
            .name = names[i], .kind = o->rows[i].kind, .meta = o->rows[i].meta, .of = DS_NONE};
        ds_cell cell = DS_NONE;
        in[i] = DS_NONE;
        if (info.meta.dtype != DS_DTYPE_NONE) {
            CHECK_OK(ctx, ds_cells_add(o->cells, &info, &cell));
            CHECK_OK(ctx, ds_graph_read(o->graph, cell, &in[i]));
        }
    }
    CHECK_OK(ctx, ds_graph_set_scope(o->graph, "layer"));
    CHECK_OK(ctx, ds_graph_apply(o->graph, o->op, o->attrs, in, o->n, out));
    dsi_propagate_params where = {
        .policy = dsi_place_policy_default(), .cell = place_cell, .user = o};
    where.policy.gather = o->gather ? ~0u : 0;
    CHECK_OK(ctx, dsi_mesh_parse(ctx, o->mesh, &where.mesh));
    DS_TRY(dsi_propagate(o->graph, &where, &o->placed));
    const dsi_localize_params how = {
        .placed = o->placed, .comm_dtype = DS_DTYPE_F32, .reduce_bucket = 1, .gather_bucket = 1};
    return dsi_localize(o->graph, &how, o->local_cells, &o->local);
}

static void close_node(one_node *o)
{
    ds_graph_destroy(&o->local);
    dsi_propagation_destroy(&o->placed);
    ds_graph_destroy(&o->graph);
    ds_cells_destroy(&o->local_cells);
    ds_cells_destroy(&o->cells);
}

static void refuses(one_node o, const char *text)
{
    CHECK_FAILS(ctx, lower(&o), DS_ERR_UNSUPPORTED, text);
    close_node(&o);
}

/* The operators of the local graph, in order. */
static void gives(one_node o, const char *text)
{
    char names[512] = "";
    CHECK_OK(ctx, lower(&o));
    for (ds_node n = 0; n < o.local->n_nodes; ++n) {
        (void)strcat(strcat(names, n > 0 ? " " : ""), o.local->nodes[n].op->name);
    }
    assert_string_equal(names, text);
    close_node(&o);
}

#define NODE(on, operator, attributes, inputs, n_inputs)                                           \
    (one_node)                                                                                     \
    {                                                                                              \
        .mesh = (on), .op = (operator), .attrs = (attributes), .rows = (inputs), .n = (n_inputs)   \
    }
#define SHAPED(...)                                                                                \
    {                                                                                              \
        DS_DTYPE_F32, __VA_ARGS__                                                                  \
    }

static const dsi_optim_attrs optim = {.eps = 1e-8};

#define SGD(n, param, grad, momentum)                                                              \
    {                                                                                              \
        {DS_CELL_PARAM, SHAPED({1, {n}}), param}, {DS_CELL_INPUT, SHAPED({1, {n}}), grad},         \
            {DS_CELL_SCALAR, SHAPED({1, {8}}), "R"}, {DS_CELL_SCALAR, SHAPED({0, {0}}), "R"},      \
            {DS_CELL_STATE, {DS_DTYPE_NONE, {0, {0}}}, "R"},                                       \
        {                                                                                          \
            DS_CELL_MOMENTUM, SHAPED({1, {n}}), momentum                                           \
        }                                                                                          \
    }

/* Whatever of an update is whole where another operand is flat is gathered behind it. */
static void test_gathered_behind(void **state)
{
    (void)state;
    static const row both[] = SGD(10, "R", "flat(dps)", "R");
    gives(NODE("mesh(dps=4)", &dsi_op_sgd, &optim, both, 6),
          "take_slice take_slice sgd gather_store gather_store");
    static const row state_alone[] = SGD(10, "flat(dps)", "flat(dps)", "R");
    gives(NODE("mesh(dps=4)", &dsi_op_sgd, &optim, state_alone, 6), "take_slice sgd gather_store");
    static const row parameter[] = SGD(8, "flat(dps)", "flat(dps,dpr)", "flat(dps,dpr)");
    gives(NODE("mesh(dpr=2,dps=2)", &dsi_op_sgd, &optim, parameter, 6),
          "take_slice sgd gather_store");
}

/* Slices of slices are slices of the whole only where nothing is padded. */
static void test_unaligned(void **state)
{
    (void)state;
    static const row odd[] = SGD(5, "flat(dps)", "flat(dps,dpr)", "flat(dps,dpr)");
    refuses(NODE("mesh(dpr=2,dps=2)", &dsi_op_sgd, &optim, odd, 6),
            "it would write param a placed flat(dps,dpr), but the cell is flat(dps)");
}

/* One graph is for all ranks. */
static void test_parts(void **state)
{
    (void)state;
    static const row uneven[] = {{DS_CELL_INPUT, SHAPED({2, {5, 4}}), "tp:S(0)"}};
    refuses(NODE("mesh(tp=2)", &dsi_op_tanh, NULL, uneven, 1),
            "a: f32[5,4] is placed tp:S(0), which makes parts of different shapes");
    static const dsi_reshape_attrs joined = {.n_dims = 1, .dims = {24}};
    static const row even[] = {{DS_CELL_INPUT, SHAPED({2, {6, 4}}), "tp:S(0)"}};
    gives(NODE("mesh(tp=2)", &dsi_op_reshape, &joined, even, 1), "reshape");
    static const row sum[] = {{DS_CELL_INPUT, SHAPED({2, {6, 4}}), "tp:P"},
                              {DS_CELL_INPUT, SHAPED({2, {6, 4}}), "tp:S(0)"}};
    gives(NODE("mesh(tp=2)", &dsi_op_mul, NULL, sum, 2), "reduce_scatter reshape mul");
    static const dsi_linear_attrs linear = {.transposed = 0};
    static const row flat[] = {{DS_CELL_INPUT, SHAPED({2, {6, 2}}), "R"},
                               {DS_CELL_PARAM, SHAPED({2, {8, 2}}), "flat(dps)"},
                               {DS_CELL_INPUT, SHAPED({1, {8}}), "ep:S(0)"}};
    gives(NODE("mesh(dps=4,ep=2)", &dsi_op_linear, &linear, flat, 3),
          "all_gather take_slice reshape linear");
}

static void place_twice(void *user, ds_cell cell, const ds_cell_info *info, dsi_spread *spread_out)
{
    static const char *const at[] = {"flat(dps)", "R", "dps:S(1)"};
    (void)user;
    (void)info;
    CHECK_OK(ctx, dsi_placement_parse(ctx, at[cell], &spread_out->at));
}

/* A parameter that is gathered once has a use that needs it whole, and one that needs it cut. */
static void test_gathered_twice(void **state)
{
    (void)state;
    static const ds_cell_info infos[] = {
        {.name = "w", .kind = DS_CELL_PARAM, .meta = SHAPED({2, {4, 4}}), .of = DS_NONE},
        {.name = "x", .kind = DS_CELL_INPUT, .meta = SHAPED({2, {6, 4}}), .of = DS_NONE},
        {.name = "z", .kind = DS_CELL_INPUT, .meta = SHAPED({2, {6, 4}}), .of = DS_NONE}};
    static const dsi_linear_attrs linear = {.transposed = 0};
    one_node o = {0};
    ds_value read[3];
    ds_value out[DS_MAX_OUT];
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &o.cells));
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &o.local_cells));
    CHECK_OK(ctx, ds_graph_create(ctx, o.cells, &o.graph));
    for (uint32_t i = 0; i < 3; ++i) {
        ds_cell cell = DS_NONE;
        CHECK_OK(ctx, ds_cells_add(o.cells, &infos[i], &cell));
        CHECK_OK(ctx, ds_graph_read(o.graph, cell, &read[i]));
    }
    CHECK_OK(ctx, ds_graph_set_scope(o.graph, "layer"));
    for (uint32_t i = 1; i < 3; ++i) {
        const ds_value in[] = {read[i], read[0]};
        CHECK_OK(ctx, ds_graph_apply(o.graph, &dsi_op_linear, &linear, in, 2, out));
    }
    dsi_propagate_params where = {.policy = dsi_place_policy_default(), .cell = place_twice};
    CHECK_OK(ctx, dsi_mesh_parse(ctx, "mesh(dps=2)", &where.mesh));
    CHECK_OK(ctx, dsi_propagate(o.graph, &where, &o.placed));
    const dsi_localize_params how = {.placed = o.placed,
                                     .comm_dtype = DS_DTYPE_F32,
                                     .max_live = 1000,
                                     .max_reuse_distance = 1000};
    CHECK_OK(ctx, dsi_localize(o.graph, &how, o.local_cells, &o.local));
    static const char *const want[] = {"all_gather", "linear",  "reshape", "permute",
                                       "take_slice", "reshape", "linear"};
    assert_int_equal(o.local->n_nodes, sizeof want / sizeof want[0]);
    for (uint32_t i = 0; i < o.local->n_nodes; ++i) {
        assert_string_equal(o.local->nodes[i].op->name, want[i]);
    }
    close_node(&o);
}

/* A mean over cut rows needs the numbers of rows that their ranks counted. */
static void test_rows(void **state)
{
    (void)state;
    static const dsi_ce_attrs ce = {.ignore_index = -100};
    static const row rows[] = {{DS_CELL_SCALAR, SHAPED({0, {0}}), "R"},
                               {DS_CELL_INPUT, SHAPED({2, {4, 8}}), "R"},
                               {DS_CELL_INPUT, {DS_DTYPE_I32, {1, {4}}}, "dps:S(0)"},
                               {DS_CELL_INPUT, SHAPED({1, {4}}), "R"},
                               {DS_CELL_INPUT, SHAPED({0, {0}}), "R"}};
    refuses(NODE("mesh(dps=2)", &dsi_op_cross_entropy_backward, &ce, rows, 5),
            "input 2 (input c i32[4]) is placed dps:S(0) and would have to be R");
    gives((one_node){.mesh = "mesh(dps=1)",
                     .op = &dsi_op_cross_entropy_backward,
                     .attrs = &ce,
                     .rows = rows,
                     .n = 5,
                     .gather = true},
          "cross_entropy_backward");
}

/* What no reduction divides is still to be divided, a complete gradient too. */
static void test_averaged(void **state)
{
    (void)state;
    static const row cut[] = {{DS_CELL_INPUT, SHAPED({2, {4, 8}}), "sp:S(1)"}};
    one_node o = NODE("mesh(sp=2)", &dsi_op_gradient, NULL, cut, 1);
    o.averaged = 1u << DSI_AXIS_SP;
    CHECK_OK(ctx, lower(&o));
    assert_int_equal(o.placed->value[dsi_node_out(o.graph, &o.graph->nodes[0])[0]].averaged,
                     1u << DSI_AXIS_SP);
    close_node(&o);
    static const row sum[] = {{DS_CELL_INPUT, SHAPED({2, {4, 8}}), "sp:P"}};
    o = NODE("mesh(sp=2)", &dsi_op_gradient, NULL, sum, 1);
    o.averaged = 1u << DSI_AXIS_SP;
    CHECK_OK(ctx, lower(&o));
    assert_int_equal(o.placed->value[dsi_node_out(o.graph, &o.graph->nodes[0])[0]].averaged, 0);
    assert_ptr_equal(o.local->nodes[0].op, &dsi_op_all_reduce);
    close_node(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gathered_twice), cmocka_unit_test(test_gathered_behind),
        cmocka_unit_test(test_unaligned),      cmocka_unit_test(test_parts),
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_averaged),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
