/* SPDX-License-Identifier: Apache-2.0 */
/* The rewrite. See slot_graph.h. */
#include "compile/slot_graph.h"

#include "ir/rewrite.h"
#include "nn/nn.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1200 };

typedef struct rewriter {
    const dsi_slots *slots;
    dsi_rewrite r;
    bool *routes; /* per cell: the weight of a router */
    ds_value of_token;
} rewriter;

/* The model's matrix that a node multiplies by; NONE: it is no linear layer of its. */
static ds_cell weight_of(const ds_graph *g, const dsi_node_info *node)
{
    const ds_value v =
        node->op == &dsi_op_linear && node->n_in > 1 ? dsi_node_in(g, node)[1] : DS_NONE;
    const ds_cell c = v != DS_NONE ? g->values[v].cell : DS_NONE;
    return c != DS_NONE && ds_cells_get(g->cells, c)->kind == DS_CELL_PARAM ? c : DS_NONE;
}

static void find_routers(rewriter *w)
{
    const ds_graph *g = w->r.from;
    for (ds_node i = 0; i < g->n_nodes; ++i) {
        const dsi_node_info *node = &g->nodes[i];
        const ds_node from = node->op == &dsi_op_route ? g->values[dsi_node_in(g, node)[0]].producer
                                                       : (ds_node)DS_NONE;
        const ds_cell c = from != (ds_node)DS_NONE ? weight_of(g, &g->nodes[from]) : DS_NONE;
        if (c != DS_NONE) {
            w->routes[c] = true;
        }
    }
}

/* of: the matrix beside which it is; DS_NONE: none. */
static ds_status read_cell(rewriter *w, const char *name, ds_meta meta, ds_cell of,
                           ds_value *value_out)
{
    ds_cells *cells = w->r.from->cells;
    ds_cell cell = ds_cells_find(cells, DS_CELL_INPUT, name);
    const ds_cell_info info = {.name = name, .kind = DS_CELL_INPUT, .meta = meta, .of = of};
    DS_TRY(cell == DS_NONE ? ds_cells_add(cells, &info, &cell) : DS_OK);
    return ds_graph_read(w->r.to, cell, value_out);
}

static bool has_slots(const rewriter *w, const dsi_node_info *node, ds_cell weight)
{
    static const char end[] = ".weight";
    const dsi_linear_attrs *attrs = node->attrs;
    const char *name = ds_cells_get(w->r.from->cells, weight)->name;
    const size_t n = strlen(name), k = sizeof end - 1;
    const ds_shape y = ds_graph_meta(w->r.from, dsi_node_out(w->r.from, node)[0]).shape;
    return attrs->activation == DSI_ACT_NONE && attrs->save_pre == 0 && !w->routes[weight] &&
           y.n_dims == 3 && ds_shape_last(y) != w->slots->vocab_size && n > k &&
           strcmp(name + n - k, end) == 0;
}

static ds_status add_slots(rewriter *w, const dsi_node_info *node, ds_cell weight, ds_value *y)
{
    const char *name = ds_cells_get(w->r.from->cells, weight)->name;
    const int n = (int)(strlen(name) - strlen(".weight"));
    char path[NAME_BYTES];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(&w->r, node, in);
    const ds_meta x = ds_graph_meta(w->r.to, in[0]);
    const int64_t n_in = ds_shape_last(x.shape);
    const int64_t n_out = ds_shape_last(ds_graph_meta(w->r.to, *y).shape);
    ds_value parts[5] = {*y, in[0], DS_NONE, DS_NONE, w->of_token};
    (void)snprintf(path, sizeof path, DSI_SLOT_PREFIX "%.*s.A", n, name);
    const ds_meta a = {x.dtype, ds_shape_3d(w->slots->n, n_in, w->slots->rank)};
    DS_TRY(read_cell(w, path, a, weight, &parts[2]));
    (void)snprintf(path, sizeof path, DSI_SLOT_PREFIX "%.*s.B", n, name);
    const ds_meta b = {x.dtype, ds_shape_3d(w->slots->n, w->slots->rank, n_out)};
    DS_TRY(read_cell(w, path, b, weight, &parts[3]));
    DS_TRY(ds_graph_apply(w->r.to, &dsi_op_slot_adapter, NULL, parts, 5, out));
    *y = out[0];
    return DS_OK;
}

static ds_status rewrite_node(rewriter *w, const dsi_node_info *node)
{
    const ds_cell weight = weight_of(w->r.from, node);
    if (weight == DS_NONE || !has_slots(w, node, weight)) {
        return dsi_rewrite_copy(&w->r, node);
    }
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(&w->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&w->r, node));
    DS_TRY(ds_graph_apply(w->r.to, node->op, node->attrs, in, node->n_in, out));
    DS_TRY(add_slots(w, node, weight, &out[0]));
    dsi_rewrite_made(&w->r, node, out);
    return DS_OK;
}

static ds_status walk(rewriter *w, const ds_trace *trace)
{
    char path[NAME_BYTES];
    find_routers(w);
    (void)snprintf(path, sizeof path, "%s.%lld.%lld/adapters",
                   trace->task == DS_TASK_HIDDEN ? "embed" : "serve", (long long)trace->seq_length,
                   (long long)trace->paged->rows);
    const ds_meta tokens = {DS_DTYPE_I32, ds_shape_1d(trace->seq_length)};
    DS_TRY(read_cell(w, path, tokens, DS_NONE, &w->of_token));
    for (ds_node i = 0; i < w->r.from->n_nodes; ++i) {
        DS_TRY(rewrite_node(w, &w->r.from->nodes[i]));
    }
    return DS_OK;
}

ds_status dsi_slot_graph(const dsi_slots *slots, const ds_trace *trace, ds_graph **graph)
{
    ds_graph *made = NULL;
    const ds_graph *from = *graph;
    if (slots->n == 0) {
        return DS_OK;
    }
    rewriter w = {.slots = slots};
    w.routes = calloc((size_t)ds_cells_count(from->cells) + 1, sizeof *w.routes);
    if (w.routes == NULL) {
        return ds_fail(from->ctx, DS_ERR_NOMEM, "no memory for slots of adapters");
    }
    ds_status status = dsi_rewrite_begin(&w.r, from, from->cells);
    status = status < 0 ? status : walk(&w, trace);
    status = dsi_rewrite_end(&w.r, status, &made);
    free(w.routes);
    DS_TRY(status);
    ds_graph_destroy(graph);
    *graph = made;
    return DS_OK;
}
