/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over the logical graph. See localize.h. */
#include "place/localize_impl.h"

#include <stdlib.h>
#include <string.h>

ds_meta dsi_local_meta(const dsi_mesh *mesh, const dsi_placement *at, ds_meta whole)
{
    const dsi_part part = dsi_placement_part(mesh, at, whole.shape, 0);
    return (ds_meta){whole.dtype, dsi_part_shape(&part)};
}

static const dsi_spread *need_of(const dsi_localizing *l, const dsi_node_info *node, uint32_t i)
{
    return &l->placed->use[node->in_at + i];
}

static const dsi_spread *made_by(const dsi_localizing *l, const dsi_node_info *node, uint32_t o)
{
    return &l->placed->use[node->out_at + o];
}

static ds_status localize_inputs(dsi_localizing *l, ds_node n, ds_value *in)
{
    const dsi_node_info *node = &l->r.from->nodes[n];
    const uint32_t end = dsi_completed_input(l->r.from, node);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(l->r.from, node)[i];
        in[i] = v;
        if (v != DS_NONE) {
            const dsi_spread *value = &l->placed->value[v];
            const dsi_spread from = i == end ? dsi_completed_spread(value) : *value;
            DS_TRY(dsi_localize_value(l, v, &from, need_of(l, node, i),
                                      i == end ? l->bucket_of[n] : -1, &in[i]));
        }
    }
    return DS_OK;
}

/* ---- updates of slices of what ranks have whole -------------------------------------------------
 */

enum { IN_PARAM = 0, IN_MASTER = 4 };

/* Whether output o is a slice of a cell that a rank has more of: it is gathered behind the node. */
static bool is_gathered(const dsi_localizing *l, const dsi_node_info *node, uint32_t o)
{
    const ds_value v = dsi_node_out(l->r.from, node)[o];
    return v != DS_NONE && node->op->writes != NULL && node->op->writes[o] >= 0 &&
           made_by(l, node, o)->at.flat.n > l->placed->value[v].at.flat.n;
}

static bool gathers(const dsi_localizing *l, const dsi_node_info *node)
{
    bool any = false;
    for (uint32_t o = 0; o < node->n_out; ++o) {
        any = any || is_gathered(l, node, o);
    }
    return any;
}

/* The next version of the cell that output o writes, from all slices of x, rounded to its type. */
static ds_status gather_behind(dsi_localizing *l, const dsi_node_info *node, uint32_t o, ds_value x)
{
    const ds_value v = dsi_node_out(l->r.from, node)[o];
    const ds_meta meta = l->r.from->values[v].meta;
    const dsi_axes axes =
        dsi_axes_behind(&made_by(l, node, o)->at.flat, l->placed->value[v].at.flat.n);
    dsi_comm_attrs attrs = dsi_localize_comm(l, &axes, -1);
    ds_value in[2] = {l->r.map[dsi_node_in(l->r.from, node)[node->op->writes[o]]], x};
    ds_value out[DS_MAX_OUT];
    if (ds_graph_meta(l->r.to, x).dtype != meta.dtype) {
        const dsi_cast_attrs cast = {.dtype = meta.dtype};
        DS_TRY(dsi_localize_apply(l, &dsi_op_cast, &cast, x, &in[1]));
    }
    const int64_t bucket = dsi_bucket_next(&l->bucket, ds_shape_count(meta.shape), meta.dtype,
                                           l->params->gather_bucket);
    DS_TRY(dsi_bucket_number(l, bucket, &dsi_op_gather_store, meta.dtype, &attrs));
    DS_TRY(ds_graph_apply(l->r.to, &dsi_op_gather_store, &attrs, in, 2, out));
    l->r.map[v] = out[0];
    return DS_OK;
}

static ds_status gather_outputs(dsi_localizing *l, const dsi_node_info *node, const ds_value *made)
{
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(l->r.from, node)[o];
        if (v != DS_NONE && !is_gathered(l, node, o)) {
            l->r.map[v] = made[o];
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (is_gathered(l, node, o)) {
            DS_TRY(gather_behind(l, node, o, made[o]));
        }
    }
    return DS_OK;
}

/* Of a parameter that is gathered the slice is not there: the master, where there is one, is
 * updated as an fp32 parameter, and what is gathered is its rounding. */
static ds_status update_slice(dsi_localizing *l, const dsi_node_info *node)
{
    const ds_value *logical = dsi_node_in(l->r.from, node);
    const bool stores = node->op->role == DS_ROLE_STORE;
    const bool master = !stores && is_gathered(l, node, 0) && node->n_in > IN_MASTER &&
                        logical[IN_MASTER] != DS_NONE;
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = master || stores ? 1 : 0; i < node->n_in; ++i) {
        const ds_value v = logical[i];
        in[i] = v;
        if (v != DS_NONE) {
            DS_TRY(dsi_localize_value(l, v, &l->placed->value[v], need_of(l, node, i), -1, &in[i]));
        }
    }
    if (stores) {
        return gather_behind(l, node, 0, in[1]);
    }
    if (master) {
        in[IN_PARAM] = in[IN_MASTER];
        in[IN_MASTER] = DS_NONE;
    }
    DS_TRY(ds_graph_apply(l->r.to, node->op, node->attrs, in, node->n_in, out));
    out[1] = master ? out[0] : out[1];
    return gather_outputs(l, node, out);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* What a node makes of a slice is completed at once where the propagation says so. */
static ds_status complete_outputs(dsi_localizing *l, const dsi_node_info *node)
{
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(l->r.from, node)[o];
        if (v != DS_NONE && node->op->writes == NULL) {
            DS_TRY(dsi_localize_value(l, v, made_by(l, node, o), &l->placed->value[v], -1,
                                      &l->r.map[v]));
        }
    }
    return DS_OK;
}

/* Outputs of the graph are completed where they are made: a phase's are read behind it. */
static ds_status complete_graph_outputs(dsi_localizing *l, const dsi_node_info *node)
{
    const ds_graph *g = l->r.from;
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        for (uint32_t o = 0; o < node->n_out; ++o) {
            if (dsi_node_out(g, node)[o] == v) {
                DS_TRY(dsi_localize_value(l, v, &l->placed->value[v], &l->placed->output[i], -1,
                                          &l->outputs[i]));
            }
        }
    }
    return DS_OK;
}

enum { LOCAL_ATTRS = 64 }; /* numbers that built-in operators have at most */

/* The attributes of a node for a rank's part of it: heads, shapes. */
static void local_attrs(const dsi_localizing *l, const dsi_node_info *node, void *attrs_out)
{
    const ds_graph *g = l->r.from;
    ds_meta in[DS_MAX_IN] = {{0}};
    ds_meta out[DS_MAX_OUT] = {{0}};
    dsi_placement need[DS_MAX_IN];
    dsi_placement made[DS_MAX_OUT];
    ds_place_case rule;
    memset(need, 0, sizeof need);
    memset(made, 0, sizeof made);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        in[i] = v == DS_NONE ? (ds_meta){0} : g->values[v].meta;
        need[i] = need_of(l, node, i)->at;
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(g, node)[o];
        out[o] = v == DS_NONE ? (ds_meta){0} : g->values[v].meta;
        made[o] = made_by(l, node, o)->at;
    }
    dsi_rule_case_make(node->op, node->attrs, in, node->n_in, out, node->n_out, &rule);
    dsi_rule_local_attrs(&rule, &l->placed->mesh, need, made, 0, attrs_out);
}

bool dsi_parts_are_even(const dsi_mesh *mesh, const dsi_placement *at, ds_shape shape)
{
    const dsi_part first = dsi_placement_part(mesh, at, shape, 0);
    const dsi_part last = dsi_placement_part(mesh, at, shape, mesh->n_ranks - 1);
    return ds_shape_equal(dsi_part_shape(&first), dsi_part_shape(&last));
}

/* One graph is for all ranks: their parts have one shape. */
static ds_status check_even(const dsi_localizing *l, const char *name, const dsi_placement *at,
                            ds_meta meta)
{
    const dsi_mesh *mesh = &l->placed->mesh;
    char text[DSI_PLACEMENT_TEXT];
    if (dsi_placement_shard_axes(at) == 0) {
        return DS_OK;
    }
    if (!dsi_parts_are_even(mesh, at, meta.shape)) {
        char dims[128];
        return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "%s: %s is placed %s, which makes parts of different shapes; it would have "
                       "to be cut where the number of ranks divides the dim",
                       name, ds_meta_text(meta, dims, sizeof dims), dsi_placement_str(at, text));
    }
    return DS_OK;
}

/* Says as well whether an operand is cut along a dim. */
static ds_status check_operands(const dsi_localizing *l, const dsi_node_info *node, bool *cut)
{
    const ds_graph *g = l->r.from;
    *cut = false;
    for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
        const ds_value v =
            g->operands[i < node->n_in ? node->in_at + i : node->out_at + i - node->n_in];
        const dsi_spread *at =
            i < node->n_in ? need_of(l, node, i) : made_by(l, node, i - node->n_in);
        if (v != DS_NONE) {
            DS_TRY(check_even(l, node->scope, &at->at, g->values[v].meta));
            *cut = *cut || dsi_placement_shard_axes(&at->at) != 0;
        }
    }
    return DS_OK;
}

static ds_status localize_node(dsi_localizing *l, ds_node n)
{
    const dsi_node_info *node = &l->r.from->nodes[n];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    double attrs[LOCAL_ATTRS];
    bool cut = false;
    DS_TRY(dsi_rewrite_stand_at(&l->r, node));
    DS_TRY(check_operands(l, node, &cut));
    if (gathers(l, node)) {
        return update_slice(l, node);
    }
    const uint32_t flags = node->op->place != NULL ? node->op->place->flags : 0;
    const bool exchanges =
        (flags & (DSI_PLACE_EXPERTS | DSI_PLACE_TOKENS | DSI_PLACE_TURNS | DSI_PLACE_ROWS)) != 0;
    if ((node->op->flags & DS_OP_RANKS) != 0 && !exchanges) {
        return dsi_localize_own(l, node);
    }
    DS_TRY(localize_inputs(l, n, in));
    if (exchanges) {
        DS_TRY((flags & DSI_PLACE_TURNS) != 0  ? dsi_localize_turn(l, node, in, out)
               : (flags & DSI_PLACE_ROWS) != 0 ? dsi_localize_rows(l, node, in[0], out)
                                               : dsi_localize_experts(l, node, in, out));
        dsi_rewrite_made(&l->r, node, out);
        return DS_OK;
    }
    cut = cut && node->op->place != NULL;
    if (cut) {
        if (node->op->attrs_bytes > sizeof attrs) {
            return ds_fail(l->r.from->ctx, DS_ERR_INTERNAL, "%s: %zu bytes of attributes",
                           node->op->name, node->op->attrs_bytes);
        }
        local_attrs(l, node, attrs);
    }
    DS_TRY(ds_graph_apply(l->r.to, node->op, cut ? attrs : node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&l->r, node, out);
    DS_TRY(complete_outputs(l, node));
    return complete_graph_outputs(l, node);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ds_status localize_cells(dsi_localizing *l)
{
    for (ds_cell c = ds_cells_count(l->cells); c < ds_cells_count(l->r.from->cells); ++c) {
        ds_cell_info info = *ds_cells_get(l->r.from->cells, c);
        ds_cell same = DS_NONE;
        DS_TRY(check_even(l, info.name, &l->placed->cell[c].at, info.meta));
        info.meta = dsi_local_meta(&l->placed->mesh, &l->placed->cell[c].at, info.meta);
        DS_TRY(ds_cells_add(l->cells, &info, &same));
    }
    return DS_OK;
}

static ds_status localize_graph(dsi_localizing *l)
{
    const ds_graph *g = l->r.from;
    ds_phase phase = DS_PHASE_FORWARD;
    DS_TRY(dsi_bucket_gradients(l));
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        if (g->nodes[n].phase != phase) {
            phase = g->nodes[n].phase;
            dsi_bucket_close(&l->bucket); /* a collective belongs to one phase */
        }
        DS_TRY(localize_node(l, n));
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        l->r.map[v] = l->outputs[i] != DS_NONE ? l->outputs[i] : l->r.map[v];
    }
    return DS_OK;
}

ds_status dsi_localize(const ds_graph *graph, const dsi_localize_params *params, ds_cells *local,
                       ds_graph **local_out)
{
    const size_t n_cells = (size_t)ds_cells_count(graph->cells) + 1;
    const size_t n_values = (size_t)graph->n_values + 1;
    dsi_localizing l = {.params = params,
                        .placed = params->placed,
                        .r = {.from = graph},
                        .cells = local,
                        .bucket = {.id = -1}};
    l.others = malloc(n_values * sizeof *l.others);
    l.outputs = malloc(((size_t)graph->n_outputs + 1) * sizeof *l.outputs);
    l.bucket_of = calloc((size_t)graph->n_nodes + 1, sizeof *l.bucket_of);
    l.gathered = malloc(n_cells * sizeof *l.gathered);
    l.gathered_in = calloc(n_cells, sizeof *l.gathered_in);
    l.used_at = calloc(n_cells, sizeof *l.used_at);
    ds_status status = DS_OK;
    if (l.others == NULL || l.outputs == NULL || l.bucket_of == NULL || l.gathered == NULL ||
        l.gathered_in == NULL || l.used_at == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to place the graph");
    } else {
        memset(l.others, 0xff, n_values * sizeof *l.others); /* all DS_NONE */
        memset(l.outputs, 0xff, ((size_t)graph->n_outputs + 1) * sizeof *l.outputs);
        memset(l.gathered, 0xff, n_cells * sizeof *l.gathered);
        status = localize_cells(&l);
    }
    if (status >= 0) {
        status = dsi_rewrite_begin(&l.r, graph, local);
    }
    if (status >= 0) {
        status = localize_graph(&l);
    }
    free(l.others);
    free(l.outputs);
    free(l.bucket_of);
    free(l.uses);
    free(l.gathered);
    free(l.gathered_in);
    free(l.used_at);
    dsi_moves_memo_free(&l.memo);
    return dsi_rewrite_end(&l.r, status, local_out);
}
