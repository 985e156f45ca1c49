/* SPDX-License-Identifier: Apache-2.0 */
/* Updates ahead of the norm are those that were made so, not those that could have been: an update
 * whose gradient is nobody's to store stays in its phase, and nothing undoes or repeats it. */
#include "common/check.h"
#include "ir/graph.h"
#include "op/ops.h"
#include "pass/offload.h"

#include <stdlib.h>

enum { COUNT = 8, CELLS = 64 };

typedef struct made {
    ds_ctx *ctx;
    ds_cells *cells;
    ds_graph *graph;
    dsi_residencies residencies;
    dsi_offload how;
    ds_phase update;
} made;

static ds_cell add_cell(made *m, ds_cell_kind kind, const char *name, ds_shape shape)
{
    const ds_cell_info info = {
        .name = name, .kind = kind, .meta = {DS_DTYPE_F32, shape}, .of = DS_NONE};
    ds_cell cell = DS_NONE;
    CHECK_OK(m->ctx, ds_cells_add(m->cells, &info, &cell));
    return cell;
}

static ds_value read_cell(made *m, ds_cell cell)
{
    ds_value v = DS_NONE;
    CHECK_OK(m->ctx, ds_graph_read(m->graph, cell, &v));
    return v;
}

static ds_value apply(made *m, const ds_op *op, const void *attrs, const ds_value *in, uint32_t n)
{
    ds_value out[DS_MAX_OUT];
    CHECK_OK(m->ctx, ds_graph_apply(m->graph, op, attrs, in, n, out));
    return out[0];
}

static void live_on_host(made *m, ds_cell cell)
{
    m->residencies.items[cell].where = DSI_RESIDENCY_HOST;
}

/* The gradient of a parameter, in the backward phase. stored: in a cell of the host's. */
static ds_value add_gradient(made *m, const char *name, bool stored)
{
    static const dsi_scale_attrs twice = {.factor = 2.0};
    const ds_value x = read_cell(m, add_cell(m, DS_CELL_INPUT, name, ds_shape_1d(COUNT)));
    const ds_value g = apply(m, &dsi_op_scale, &twice, &x, 1);
    if (!stored) {
        return g;
    }
    const ds_cell cell = add_cell(m, DS_CELL_GRAD, name, ds_shape_1d(COUNT));
    live_on_host(m, cell);
    const ds_value in[2] = {read_cell(m, cell), g};
    return apply(m, &dsi_op_store, NULL, in, 2);
}

static void add_update(made *m, const char *name, ds_value gradient, ds_cell hyper, ds_cell factor)
{
    static const dsi_optim_attrs attrs = {.eps = 1e-8, .adamw = 1};
    const ds_cell param = add_cell(m, DS_CELL_PARAM, name, ds_shape_1d(COUNT));
    const ds_cell first = add_cell(m, DS_CELL_EXP_AVG, name, ds_shape_1d(COUNT));
    const ds_cell second = add_cell(m, DS_CELL_EXP_AVG_SQ, name, ds_shape_1d(COUNT));
    live_on_host(m, first);
    live_on_host(m, second);
    ds_graph_set_phase(m->graph, m->update);
    const ds_value in[7] = {read_cell(m, param),  gradient, read_cell(m, hyper),
                            read_cell(m, factor), DS_NONE,  read_cell(m, first),
                            read_cell(m, second)};
    (void)apply(m, &dsi_op_adam, &attrs, in, 7);
}

/* Two parameters; the gradient of "stored" is stored, that of "kept" is not. */
static void make(made *m)
{
    ds_phase norm = 0;
    m->ctx = check_ctx(1);
    CHECK_OK(m->ctx, ds_cells_create(m->ctx, CELLS, &m->cells));
    CHECK_OK(m->ctx, ds_graph_create(m->ctx, m->cells, &m->graph));
    m->residencies.items = calloc(CELLS, sizeof *m->residencies.items);
    assert_non_null(m->residencies.items);
    m->residencies.n = m->residencies.capacity = CELLS;
    for (uint32_t i = 0; i < CELLS; ++i) {
        m->residencies.items[i] =
            (dsi_cell_residency){.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE};
    }
    CHECK_OK(m->ctx, ds_graph_add_phase(m->graph, "norm", 0, &norm));
    CHECK_OK(m->ctx, ds_graph_add_phase(m->graph, "update", 0, &m->update));
    m->how = (dsi_offload){.host = true, .speculate = {.on = true}};
    ds_phase *const later[3] = {&m->how.speculate.accept, &m->how.speculate.undo,
                                &m->how.speculate.redo};
    static const char *const names[3] = {"accept", "undo", "redo"};
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(m->ctx, ds_graph_add_phase(m->graph, names[i], DS_PHASE_SKIPPABLE, later[i]));
    }
    const ds_cell hyper = add_cell(m, DS_CELL_SCALAR, "hyper", ds_shape_1d(DSI_HYPER_COUNT));
    const ds_cell factor = add_cell(m, DS_CELL_SCALAR, "factor", (ds_shape){0});
    m->how.speculate.factor = factor;
    ds_graph_set_phase(m->graph, DS_PHASE_BACKWARD);
    const ds_value stored = add_gradient(m, "stored", true);
    const ds_value kept = add_gradient(m, "kept", false);
    add_update(m, "stored", stored, hyper, factor);
    add_update(m, "kept", kept, hyper, factor);
    CHECK_OK(m->ctx, dsi_graph_check(m->graph));
}

static uint32_t count(const ds_graph *graph, const ds_op *op, ds_phase phase)
{
    uint32_t n = 0;
    for (ds_node i = 0; i < graph->n_nodes; ++i) {
        const dsi_node_info *node = &graph->nodes[i];
        n += node->op == op && node->on_host && node->phase == phase ? 1 : 0;
    }
    return n;
}

static void what_did_not_run_ahead_runs_in_its_phase(void **state)
{
    made m = {0};
    ds_graph *lowered = NULL;
    (void)state;
    make(&m);
    CHECK_OK(m.ctx, dsi_offload_graph(m.graph, &m.how, m.cells, &m.residencies, &lowered));
    CHECK_OK(m.ctx, dsi_graph_check(lowered));
    assert_int_equal(count(lowered, &dsi_op_adam, DS_PHASE_BACKWARD), 1); /* "stored" */
    assert_int_equal(count(lowered, &dsi_op_adam, m.update), 1);          /* "kept" */
    assert_int_equal(count(lowered, &dsi_op_adam, m.how.speculate.redo), 1);
    assert_int_equal(count(lowered, &dsi_op_store, DS_PHASE_BACKWARD), 2); /* two moments' copies */
    assert_int_equal(count(lowered, &dsi_op_store, m.how.speculate.undo), 2);
    ds_graph_destroy(&lowered);
    ds_graph_destroy(&m.graph);
    ds_cells_destroy(&m.cells);
    free(m.residencies.items);
    ds_ctx_destroy(&m.ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_did_not_run_ahead_runs_in_its_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
