/* Propagation over a graph. See propagate.h. */
#include "place/propagate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 160 };

typedef struct walk {
    const ds_graph *graph;
    const dsi_propagate_params *params;
    dsi_propagation *p;
    dsi_placed placed; /* of the current node */
} walk;

static void value_name(const ds_graph *graph, ds_value value, char name[NAME_BYTES])
{
    const dsi_value_info *info = &graph->values[value];
    if (info->cell != DS_NONE && info->producer == DS_NONE) {
        const ds_cell_info *cell = ds_cells_get(graph->cells, info->cell);
        (void)snprintf(name, NAME_BYTES, "%s %s", ds_cell_kind_name(cell->kind), cell->name);
    } else {
        (void)snprintf(name, NAME_BYTES, "%%%u", value);
    }
}

/* Version 0 of a cell lies where the cell does. */
static ds_status place_cells(walk *w)
{
    const ds_graph *g = w->graph;
    for (ds_value v = 0; v < g->n_values; ++v) {
        const dsi_value_info *info = &g->values[v];
        if (info->producer != DS_NONE || info->cell == DS_NONE) {
            continue;
        }
        char name[NAME_BYTES];
        dsi_spread spread = {0};
        value_name(g, v, name);
        w->params->cell(w->params->user, info->cell, ds_cells_get(g->cells, info->cell), &spread);
        DS_TRY(dsi_placement_check(g->ctx, &w->p->mesh, &spread.at, info->meta.shape, name));
        spread.at = dsi_placement_simplify(&w->p->mesh, &spread.at);
        w->p->value[v] = spread;
    }
    return DS_OK;
}

/* A written cell is left as it was: what follows, and the next step, rely on it. */
static ds_status check_writes(const walk *w, const dsi_node_info *node, const ds_value *in)
{
    for (uint32_t o = 0; o < node->n_out && node->op->writes != NULL; ++o) {
        const int from = node->op->writes[o];
        const bool writes = from >= 0 && (uint32_t)from < node->n_in && in[from] != DS_NONE &&
                            w->graph->values[in[from]].cell != DS_NONE &&
                            dsi_node_out(w->graph, node)[o] != DS_NONE;
        if (!writes) {
            continue;
        }
        const dsi_spread *cell = &w->p->value[in[from]];
        const dsi_spread *made = &w->placed.out[o];
        if (!dsi_placement_equal(&cell->at, &made->at) || cell->averaged != made->averaged) {
            char name[NAME_BYTES];
            char have[DSI_PLACEMENT_TEXT];
            char want[DSI_PLACEMENT_TEXT];
            value_name(w->graph, in[from], name);
            return ds_fail(w->graph->ctx, DS_ERR_UNSUPPORTED,
                           "%s at %s: it would write %s placed %s%s, but the cell is %s%s",
                           node->op->name, node->scope, name, dsi_placement_str(&made->at, have),
                           made->averaged != 0 ? ", still to be averaged" : "",
                           dsi_placement_str(&cell->at, want),
                           cell->averaged != 0 ? ", still to be averaged" : "");
        }
    }
    return DS_OK;
}

static uint32_t written_inputs(const walk *w, const dsi_node_info *node, const ds_value *in)
{
    uint32_t mask = 0;
    for (uint32_t o = 0; o < node->n_out && node->op->writes != NULL; ++o) {
        const int from = node->op->writes[o];
        if (from >= 0 && (uint32_t)from < node->n_in && in[from] != DS_NONE &&
            w->graph->values[in[from]].cell != DS_NONE) {
            mask |= 1u << from;
        }
    }
    return mask;
}

static ds_status place_one(walk *w, const dsi_node_info *node)
{
    const ds_graph *g = w->graph;
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    char names[DS_MAX_IN][NAME_BYTES];
    const char *name_list[DS_MAX_IN];
    dsi_spread spreads[DS_MAX_IN];
    memset(spreads, 0, sizeof spreads);
    ds_meta in_meta[DS_MAX_IN] = {{0}};
    ds_meta out_meta[DS_MAX_OUT] = {{0}};
    for (uint32_t i = 0; i < node->n_in; ++i) {
        name_list[i] = names[i];
        (void)snprintf(names[i], NAME_BYTES, "none");
        if (in[i] != DS_NONE) {
            value_name(g, in[i], names[i]);
            spreads[i] = w->p->value[in[i]];
            in_meta[i] = g->values[in[i]].meta;
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        out_meta[o] = out[o] == DS_NONE ? (ds_meta){0} : g->values[out[o]].meta;
    }
    const dsi_place_node one = {
        .mesh = &w->p->mesh,
        .policy = &w->params->policy,
        .op = node->op,
        .attrs = node->attrs,
        .in_meta = in_meta,
        .out_meta = out_meta,
        .n_in = node->n_in,
        .n_out = node->n_out,
        .in = spreads,
        .fixed = written_inputs(w, node, in),
        .scope = node->scope != NULL && *node->scope != '\0' ? node->scope : "the graph",
        .names = name_list,
    };
    DS_TRY(dsi_place_node_run(g->ctx, &one, &w->placed));
    DS_TRY(check_writes(w, node, in));
    for (uint32_t i = 0; i < node->n_in; ++i) {
        w->p->use[node->in_at + i] = w->placed.need[i];
        w->p->bytes += w->placed.moves[i].bytes;
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o] != DS_NONE) {
            w->p->value[out[o]] = w->placed.out[o];
        }
    }
    return DS_OK;
}

ds_status dsi_propagate(const ds_graph *graph, const dsi_propagate_params *params,
                        dsi_propagation **out)
{
    walk *w = calloc(1, sizeof *w);
    dsi_propagation *p = calloc(1, sizeof *p);
    ds_status status = DS_OK;
    if (p != NULL) {
        p->mesh = params->mesh;
        p->n_values = graph->n_values;
        p->n_operands = graph->n_operands;
        p->value = calloc((size_t)graph->n_values + 1, sizeof *p->value);
        p->use = calloc((size_t)graph->n_operands + 1, sizeof *p->use);
    }
    if (w == NULL || p == NULL || p->value == NULL || p->use == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the placements of a graph");
        goto end;
    }
    w->graph = graph;
    w->params = params;
    w->p = p;
    DS_TRY_GOTO(status, dsi_mesh_check(graph->ctx, &params->mesh), end);
    DS_TRY_GOTO(status, place_cells(w), end);
    for (uint32_t n = 0; n < graph->n_nodes; ++n) {
        DS_TRY_GOTO(status, place_one(w, &graph->nodes[n]), end);
    }
    *out = p;
    p = NULL;
end:
    dsi_propagation_destroy(&p);
    free(w);
    return status;
}

void dsi_propagation_destroy(dsi_propagation **p)
{
    if (p == NULL || *p == NULL) {
        return;
    }
    free((*p)->value);
    free((*p)->use);
    free(*p);
    *p = NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void spread_text(const dsi_spread *s, dsi_buf *buf)
{
    dsi_placement_text(&s->at, buf);
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if ((s->averaged >> a & 1u) != 0) {
            dsi_buf_printf(buf, "/%s", dsi_axis_name((dsi_axis)a));
        }
    }
}

static void node_text(const ds_graph *g, const dsi_propagation *p, const dsi_node_info *node,
                      dsi_buf *buf)
{
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    const char *comma = "";
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o] != DS_NONE) {
            dsi_buf_printf(buf, "%s%%%u ", comma, out[o]);
            spread_text(&p->value[out[o]], buf);
            comma = ", ";
        }
    }
    dsi_buf_printf(buf, " = %s(", node->op->name);
    comma = "";
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if (in[i] == DS_NONE) {
            continue;
        }
        char name[NAME_BYTES];
        const dsi_spread *need = &p->use[node->in_at + i];
        value_name(g, in[i], name);
        dsi_buf_printf(buf, "%s%s ", comma, name);
        spread_text(&p->value[in[i]], buf);
        if (!dsi_placement_equal(&need->at, &p->value[in[i]].at)) {
            dsi_buf_puts(buf, " -> ");
            spread_text(need, buf);
        }
        comma = ", ";
    }
    const bool has_scope = node->scope != NULL && *node->scope != '\0';
    dsi_buf_printf(buf, ")%s%s\n", has_scope ? " @ " : "", has_scope ? node->scope : "");
}

void dsi_propagation_text(const ds_graph *graph, const dsi_propagation *p, dsi_buf *buf)
{
    dsi_mesh_text(&p->mesh, buf);
    dsi_buf_putc(buf, '\n');
    for (uint32_t n = 0; n < graph->n_nodes; ++n) {
        node_text(graph, p, &graph->nodes[n], buf);
    }
}
