/* SPDX-License-Identifier: Apache-2.0 */
/* Obeys the tags of policy.c. See keep.h. */
#include "pass/keep.h"

#include "ir/rewrite.h"
#include "op/ops.h"

#include <stdlib.h>

typedef struct keeper {
    dsi_rewrite r;
    const bool *keep;
    ds_value *logits; /* per node of `from`: what it kept, in `to`; else DS_NONE */
    ds_node *put_off; /* per node: the backward node whose dw stands before it, or DS_NONE */
} keeper;

/* Inputs of linear_cross_entropy_backward. */
enum { DLOSS, X, W, TARGETS, LSE, COUNT, DW_IN, N_IN };

static ds_status keep_logits(keeper *k, ds_node n, const ds_value *in, ds_value *out)
{
    const dsi_node_info *node = &k->r.from->nodes[n];
    dsi_linear_ce_attrs attrs = *(const dsi_linear_ce_attrs *)node->attrs;
    attrs.keep = 1;
    DS_TRY(ds_graph_apply(k->r.to, node->op, &attrs, in, node->n_in, out));
    k->logits[n] = out[3];
    return DS_OK;
}

/* The node before which dw stands. It is not asked for before the gradient that it is added to is
 * there, and a product while no gradient is complete keeps updates waiting; as the last one it
 * would keep the last updates waiting. So it stands half of the way to its one reader (tied
 * embeddings), or right behind dx. */
static ds_node place_of_dw(const keeper *k, ds_node n)
{
    const ds_graph *g = k->r.from;
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

static ds_status make_dw(keeper *k, const dsi_node_info *node, ds_value logits, const ds_value *in,
                         ds_value *out)
{
    const dsi_ce_backward_attrs *a = node->attrs;
    const ds_value dw[7] = {in[DLOSS], in[X], logits, in[TARGETS], in[LSE], in[COUNT], in[DW_IN]};
    DS_TRY(ds_graph_apply(k->r.to, &dsi_op_linear_cross_entropy_dw, &a->ce, dw, node->n_in, out));
    return DS_OK;
}

/* dx, and dw unless it is put off. */
static ds_status use_logits(keeper *k, ds_node n, ds_value logits, const ds_value *in,
                            ds_value *out)
{
    const dsi_node_info *node = &k->r.from->nodes[n];
    const dsi_ce_backward_attrs *a = node->attrs;
    const ds_value dx[6] = {in[DLOSS], in[W], logits, in[TARGETS], in[LSE], in[COUNT]};
    if (a->no_dx == 0) {
        DS_TRY(ds_graph_apply(k->r.to, &dsi_op_linear_cross_entropy_dx, &a->ce, dx, 6, &out[0]));
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
    const ds_node maker = k->r.from->values[dsi_node_in(k->r.from, node)[LSE]].producer;
    return maker != DS_NONE ? k->logits[maker] : DS_NONE;
}

/* What was put off until node n. */
static ds_status catch_up(keeper *k, ds_node n)
{
    const dsi_node_info *node = &k->r.from->nodes[k->put_off[n]];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(&k->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&k->r, node));
    DS_TRY(make_dw(k, node, logits_of(k, node), in, out));
    k->r.map[dsi_node_out(k->r.from, node)[1]] = out[0];
    return DS_OK;
}

static ds_status rebuild_node(keeper *k, ds_node n)
{
    const dsi_node_info *node = &k->r.from->nodes[n];
    const ds_value logits = logits_of(k, node);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    if (!k->keep[n] && logits == DS_NONE) {
        return dsi_rewrite_copy(&k->r, node);
    }
    dsi_rewrite_inputs(&k->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&k->r, node));
    DS_TRY(k->keep[n] ? keep_logits(k, n, in, out) : use_logits(k, n, logits, in, out));
    dsi_rewrite_made(&k->r, node, out);
    return DS_OK;
}

static ds_status rebuild(keeper *k)
{
    const ds_graph *g = k->r.from;
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        k->logits[n] = k->put_off[n] = DS_NONE;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        if (k->put_off[n] != DS_NONE) {
            DS_TRY(catch_up(k, n));
        }
        DS_TRY(rebuild_node(k, n));
    }
    return DS_OK;
}

ds_status dsi_keep(const ds_graph *graph, const bool *keep, ds_graph **kept_out)
{
    keeper k = {.keep = keep};
    k.logits = calloc((size_t)graph->n_nodes + 1, sizeof *k.logits);
    k.put_off = calloc((size_t)graph->n_nodes + 1, sizeof *k.put_off);
    ds_status status = dsi_rewrite_begin(&k.r, graph, graph->cells);
    if (k.logits == NULL || k.put_off == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to keep logits");
    }
    if (status >= 0) {
        status = rebuild(&k);
    }
    free(k.logits);
    free(k.put_off);
    return dsi_rewrite_end(&k.r, status, kept_out);
}
