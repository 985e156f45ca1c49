/* Obeys the tags of policy.c. See keep.h. */
#include "pass/keep.h"

#include "op/ops.h"

#include <stdlib.h>

typedef struct keeper {
    const ds_graph *from;
    ds_graph *to;
    const bool *keep;
    ds_value *map;    /* per value */
    ds_value *logits; /* per node of `from`: what it kept, in `to`; else DS_NONE */
    ds_node *put_off; /* per node: the backward node whose dw stands before it, or DS_NONE */
    const char *scope;
} keeper;

/* Inputs of linear_cross_entropy_backward. */
enum { DLOSS, X, W, TARGETS, LSE, COUNT, DW_IN, N_IN };

static ds_status keep_logits(keeper *k, ds_node n, const ds_value *in, ds_value *out)
{
    const dsi_node_info *node = &k->from->nodes[n];
    dsi_linear_ce_attrs attrs = *(const dsi_linear_ce_attrs *)node->attrs;
    attrs.keep = 1;
    DS_TRY(ds_graph_apply(k->to, node->op, &attrs, in, node->n_in, out));
    k->logits[n] = out[3];
    return DS_OK;
}

/* The node before which dw stands. It is not asked for before the gradient that it is added to is
 * there, and a product while no gradient is complete keeps updates waiting; as the last one it
 * would keep the last updates waiting. So it stands half of the way to its one reader (tied
 * embeddings), or right behind dx. */
static ds_node place_of_dw(const keeper *k, ds_node n)
{
    const ds_graph *g = k->from;
    const ds_value dw = dsi_node_out(g, &g->nodes[n])[1];
    ds_node reader = n;
    uint32_t n_readers = 0;
    for (ds_node m = n + 1; m < g->n_nodes; ++m) {
        for (uint32_t i = 0; i < g->nodes[m].n_in; ++i) {
            if (dsi_node_in(g, &g->nodes[m])[i] == dw) {
                reader = m;
                ++n_readers;
            }
        }
    }
    bool lacks = false;
    for (uint32_t i = 0; n_readers == 1 && i < g->nodes[reader].n_in; ++i) {
        const ds_value v = dsi_node_in(g, &g->nodes[reader])[i];
        const ds_node maker = v == DS_NONE ? DS_NONE : g->values[v].producer;
        lacks = lacks || (maker != DS_NONE && maker > n);
    }
    return lacks && g->nodes[reader].phase == g->nodes[n].phase ? n + (reader - n) / 2 : n;
}

static void map_inputs(const keeper *k, const dsi_node_info *node, ds_value *in)
{
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        const ds_value v = i < node->n_in ? dsi_node_in(k->from, node)[i] : DS_NONE;
        in[i] = v == DS_NONE ? DS_NONE : k->map[v];
    }
}

static ds_status make_dw(keeper *k, const dsi_node_info *node, ds_value logits, const ds_value *in,
                         ds_value *out)
{
    const dsi_ce_backward_attrs *a = node->attrs;
    const ds_value dw[7] = {in[DLOSS], in[X], logits, in[TARGETS], in[LSE], in[COUNT], in[DW_IN]};
    DS_TRY(ds_graph_apply(k->to, &dsi_op_linear_cross_entropy_dw, &a->ce, dw, node->n_in, out));
    return DS_OK;
}

/* dx, and dw unless it is put off. */
static ds_status use_logits(keeper *k, ds_node n, ds_value logits, const ds_value *in,
                            ds_value *out)
{
    const dsi_node_info *node = &k->from->nodes[n];
    const dsi_ce_backward_attrs *a = node->attrs;
    const ds_value dx[6] = {in[DLOSS], in[W], logits, in[TARGETS], in[LSE], in[COUNT]};
    if (a->no_dx == 0) {
        DS_TRY(ds_graph_apply(k->to, &dsi_op_linear_cross_entropy_dx, &a->ce, dx, 6, &out[0]));
    }
    if (a->no_dw != 0) {
        return DS_OK;
    }
    const ds_node place = place_of_dw(k, n);
    if (place > n && k->put_off[place] == DS_NONE) {
        k->put_off[place] = n;
        return DS_OK;
    }
    return make_dw(k, node, logits, in, &out[1]);
}

/* The kept logits that a backward node works on, or DS_NONE. */
static ds_value logits_of(const keeper *k, const dsi_node_info *node)
{
    if (node->op != &dsi_op_linear_cross_entropy_backward) {
        return DS_NONE;
    }
    const ds_node maker = k->from->values[dsi_node_in(k->from, node)[LSE]].producer;
    return maker != DS_NONE ? k->logits[maker] : DS_NONE;
}

static ds_status stand_at(keeper *k, const dsi_node_info *node)
{
    ds_graph_set_phase(k->to, node->phase);
    ds_graph_set_region(k->to, node->region);
    k->to->recomputed = node->recomputed;
    if (node->scope == k->scope) {
        return DS_OK;
    }
    k->scope = node->scope;
    return ds_graph_set_scope(k->to, k->scope);
}

/* What was put off until node n. */
static ds_status catch_up(keeper *k, ds_node n)
{
    const dsi_node_info *node = &k->from->nodes[k->put_off[n]];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    map_inputs(k, node, in);
    DS_TRY(stand_at(k, node));
    DS_TRY(make_dw(k, node, logits_of(k, node), in, out));
    k->map[dsi_node_out(k->from, node)[1]] = out[0];
    return DS_OK;
}

static ds_status rebuild_node(keeper *k, ds_node n)
{
    const dsi_node_info *node = &k->from->nodes[n];
    const ds_value logits = logits_of(k, node);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    map_inputs(k, node, in);
    DS_TRY(stand_at(k, node));
    if (k->keep[n]) {
        DS_TRY(keep_logits(k, n, in, out));
    } else if (logits != DS_NONE) {
        DS_TRY(use_logits(k, n, logits, in, out));
    } else {
        DS_TRY(ds_graph_apply(k->to, node->op, node->attrs, in, node->n_in, out));
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(k->from, node)[i];
        if (v != DS_NONE) {
            k->map[v] = out[i];
        }
    }
    return DS_OK;
}

static ds_status rebuild(keeper *k)
{
    const ds_graph *g = k->from;
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (g->values[v].producer == DS_NONE) {
            DS_TRY(ds_graph_read(k->to, g->values[v].cell, &k->map[v]));
        }
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        k->logits[n] = k->put_off[n] = DS_NONE;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        if (k->put_off[n] != DS_NONE) {
            DS_TRY(catch_up(k, n));
        }
        DS_TRY(rebuild_node(k, n));
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        DS_TRY(ds_graph_output(k->to, g->outputs[i].name, k->map[g->outputs[i].value]));
    }
    return DS_OK;
}

ds_status dsi_keep(const ds_graph *graph, const bool *keep, ds_graph **kept_out)
{
    keeper k = {.from = graph, .keep = keep};
    k.map = calloc((size_t)graph->n_values + 1, sizeof *k.map);
    k.logits = calloc((size_t)graph->n_nodes + 1, sizeof *k.logits);
    k.put_off = calloc((size_t)graph->n_nodes + 1, sizeof *k.put_off);
    ds_status status = k.map == NULL || k.logits == NULL || k.put_off == NULL
                           ? ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to keep logits")
                           : ds_graph_create(graph->ctx, graph->cells, &k.to);
    if (status >= 0) {
        status = rebuild(&k);
    }
    free(k.map);
    free(k.logits);
    free(k.put_off);
    if (status < 0) {
        ds_graph_destroy(&k.to);
        return status;
    }
    *kept_out = k.to;
    return DS_OK;
}
