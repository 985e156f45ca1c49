/* SPDX-License-Identifier: Apache-2.0 */
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
    dsi_placed placed;      /* of the current node */
    dsi_placement gradient; /* of complete gradients, simplified */
    dsi_moves_memo memo;
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
    for (ds_cell c = 0; c < w->p->n_cells; ++c) {
        const ds_cell_info *info = ds_cells_get(g->cells, c);
        dsi_spread *spread = &w->p->cell[c];
        w->params->cell(w->params->user, c, info, spread);
        DS_TRY(dsi_placement_check(g->ctx, &w->p->mesh, &spread->at, info->meta.shape, info->name));
        spread->at = dsi_placement_simplify(&w->p->mesh, &spread->at);
    }
    for (ds_value v = 0; v < g->n_values; ++v) {
        const dsi_value_info *info = &g->values[v];
        if (info->producer == DS_NONE && info->cell != DS_NONE) {
            w->p->value[v] = w->p->cell[info->cell];
        }
    }
    return DS_OK;
}

/* Of its rule. */
static uint32_t flags_of(const dsi_node_info *node)
{
    return node->op->place != NULL ? node->op->place->flags : 0;
}

static bool is_update(const dsi_node_info *node)
{
    return (flags_of(node) & DS_PLACE_UPDATE) != 0;
}

/* Whether what ranks made of slices, side by side, is what a rank has of the cell. */
static bool may_gather(const walk *w, const dsi_placement *cell, const dsi_placement *made,
                       ds_value v)
{
    const ds_shape shape = w->graph->values[v].meta.shape;
    const dsi_axes axes = dsi_axes_behind(&made->flat, cell->flat.n);
    return made->flat.n > cell->flat.n && dsi_axes_begin(&cell->flat, &made->flat) &&
           (cell->flat.n == 0 ||
            dsi_placement_slots(&w->p->mesh, made, shape) * dsi_axes_size(&w->p->mesh, &axes) ==
                dsi_placement_slots(&w->p->mesh, cell, shape));
}

/* A written cell is left as it was: what follows, and the next step, rely on it; or it is gathered
 * behind an update of its slices. */
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
        const bool gathered = is_update(node) && may_gather(w, &cell->at, &made->at, in[from]);
        const bool alike =
            dsi_placement_equal(&cell->at, &made->at) && cell->averaged == made->averaged;
        if (!gathered && !alike) {
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

/* ---- gradients ------------------------------------------------------------------------------- */

static ds_cell_kind kind_of(const walk *w, ds_value v)
{
    const ds_cell cell = v != DS_NONE ? w->graph->values[v].cell : DS_NONE;
    return cell != DS_NONE ? ds_cells_get(w->graph->cells, cell)->kind : DS_CELL_SCALAR;
}

uint32_t dsi_completed_input(const ds_graph *graph, const dsi_node_info *node)
{
    if (node->op->role == DS_ROLE_GRADIENT) {
        return 0;
    }
    if (node->op->role != DS_ROLE_STORE && node->op->role != DS_ROLE_ACCUMULATE) {
        return node->n_in;
    }
    const ds_cell cell = graph->values[dsi_node_out(graph, node)[0]].cell;
    return ds_cells_get(graph->cells, cell)->kind == DS_CELL_GRAD ? 1 : node->n_in;
}

dsi_spread dsi_completed_spread(const dsi_spread *value)
{
    dsi_spread s = *value;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (s.at.on[a].kind == DSI_OWN) {
            s.at = dsi_partial(s.at, (dsi_axis)a);
            s.averaged |= 1u << a;
        }
    }
    return s;
}

/* A term of a sum that is not made yet is a rank's own where it is read as such. */
static dsi_spread own_term(const dsi_spread *value)
{
    dsi_spread s = *value;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (s.at.on[a].kind == DSI_PARTIAL && s.at.on[a].dim == DSI_TERMS_SUM) {
            s.at = dsi_own(s.at, (dsi_axis)a);
            s.averaged &= ~(1u << a);
        }
    }
    return s;
}

/* The same without slices along an axis. */
static dsi_placement apart_from(dsi_placement p, dsi_axis axis)
{
    const dsi_axes flat = p.flat;
    p.flat = (dsi_axes){0};
    for (uint32_t i = 0; i < flat.n; ++i) {
        if (flat.axis[i] != axis) {
            dsi_axes_add(&p.flat, (dsi_axis)flat.axis[i]);
        }
    }
    p.cut = p.flat.n > 0 ? p.cut : DSI_CUT_NONE;
    return p;
}

/* A complete gradient: placed as they are on the data axes, sharded elsewhere as it was made. */
static dsi_spread complete_gradient(const walk *w, const dsi_spread *made)
{
    dsi_spread s = {.at = w->gradient};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (made->at.on[a].kind == DSI_SHARD) {
            s.at = apart_from(s.at, (dsi_axis)a);
            s.at.on[a] = made->at.on[a];
        }
    }
    return s;
}

/* The inputs of a node as its rule sees them, and those that are gathered first. */
static uint32_t prepare_inputs(const walk *w, const dsi_node_info *node, uint32_t fixed,
                               dsi_spread *spreads)
{
    const ds_value *in = dsi_node_in(w->graph, node);
    const bool by_slices = (flags_of(node) & (DSI_PLACE_COLUMNS | DSI_PLACE_SLICES)) != 0;
    const uint32_t completed = dsi_completed_input(w->graph, node);
    uint32_t whole = 0;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const bool is_fixed = (fixed >> i & 1u) != 0;
        const ds_cell_kind kind = kind_of(w, in[i]);
        if ((flags_of(node) & DSI_PLACE_OWN_TERM) != 0) {
            spreads[i] = own_term(&spreads[i]);
            continue;
        }
        spreads[i] = i == completed ? dsi_completed_spread(&spreads[i]) : spreads[i];
        const uint32_t dealt = spreads[i].at.on[DSI_AXIS_EP].kind == DSI_SHARD
                                   ? spreads[i].averaged & 1u << DSI_AXIS_EP
                                   : 0;
        if (i == completed && node->op->role != DS_ROLE_GRADIENT &&
            (w->p->value[in[0]].averaged & dealt) == 0) {
            spreads[i].averaged &= ~dealt; /* divided on its way into a cell of means */
        }
        const uint32_t sums = dsi_placement_partial_axes(&spreads[i].at) | dealt;
        const bool of_cell = kind == DS_CELL_GRAD && !is_fixed && i != completed;
        const bool marked =
            i == completed && node->op->role == DS_ROLE_GRADIENT &&
            (spreads[i].averaged != 0 || spreads[i].at.on[DSI_AXIS_SP].kind == DSI_PARTIAL);
        /* what is still averaged where it is no sum is not divided by a reduction */
        if ((of_cell || marked) && sums != 0 && (spreads[i].averaged & ~sums) == 0) {
            spreads[i] = complete_gradient(w, &spreads[i]);
        }
        whole |= kind == DS_CELL_PARAM && !is_fixed && !by_slices ? 1u << i : 0;
    }
    return whole;
}

/* What a node that knows its slice made of it is completed at once: the phase may be all that runs.
 */
static void complete_columns(const dsi_node_info *node, dsi_spread *s)
{
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if ((flags_of(node) & DSI_PLACE_COLUMNS) != 0 && s->at.on[a].kind == DSI_PARTIAL) {
            s->at.on[a] = (dsi_place_on){0};
        }
    }
}

/* The gradient of what was gathered is cut at once as that was: each rank goes on with its part. */
static void cut_as_gathered(const walk *w, const dsi_node_info *node, uint32_t o, dsi_spread *s)
{
    const ds_place_case *rule = &w->placed.rule;
    const ds_value *in = dsi_node_in(w->graph, node);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if ((rule->gathered >> i & 1u) == 0 || strcmp(rule->in[i], rule->out[o]) != 0) {
            continue;
        }
        for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
            const dsi_place_on from = w->p->value[in[i]].at.on[a];
            if (s->at.on[a].kind == DSI_PARTIAL && from.kind == DSI_SHARD) {
                s->at.on[a] = from;
            }
        }
    }
}

/* ---- nodes ----------------------------------------------------------------------------------- */

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

typedef struct named_inputs {
    const ds_graph *graph;
    const ds_value *in;
} named_inputs;

static void input_name(const void *user, uint32_t input, char *text, size_t n)
{
    const named_inputs *named = user;
    char name[NAME_BYTES] = "none";
    if (named->in[input] != DS_NONE) {
        value_name(named->graph, named->in[input], name);
    }
    (void)snprintf(text, n, "%s", name);
}

static ds_status place_one(walk *w, const dsi_node_info *node)
{
    const ds_graph *g = w->graph;
    const ds_value *in = dsi_node_in(g, node);
    const ds_value *out = dsi_node_out(g, node);
    dsi_spread spreads[DS_MAX_IN];
    memset(spreads, 0, sizeof spreads);
    ds_meta in_meta[DS_MAX_IN] = {{0}};
    ds_meta out_meta[DS_MAX_OUT] = {{0}};
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if (in[i] != DS_NONE) {
            spreads[i] = w->p->value[in[i]];
            in_meta[i] = g->values[in[i]].meta;
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        out_meta[o] = out[o] == DS_NONE ? (ds_meta){0} : g->values[out[o]].meta;
    }
    const uint32_t fixed = written_inputs(w, node, in);
    const uint32_t whole = prepare_inputs(w, node, fixed, spreads);
    const dsi_place_node one = {
        .mesh = &w->p->mesh,
        .policy = &w->params->policy,
        .memo = &w->memo,
        .op = node->op,
        .attrs = node->attrs,
        .in_meta = in_meta,
        .out_meta = out_meta,
        .n_in = node->n_in,
        .n_out = node->n_out,
        .in = spreads,
        .fixed = fixed,
        .whole = whole,
        .completed =
            dsi_completed_input(g, node) < node->n_in ? 1u << dsi_completed_input(g, node) : 0,
        .scope = node->scope != NULL && *node->scope != '\0' ? node->scope : "the graph",
        .name = input_name,
        .user = &(named_inputs){g, in},
    };
    DS_TRY(dsi_place_node_run(g->ctx, &one, &w->placed));
    DS_TRY(check_writes(w, node, in));
    w->p->bytes += w->placed.bytes;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        w->p->use[node->in_at + i] = w->placed.need[i];
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o] == DS_NONE) {
            continue;
        }
        const int from = node->op->writes != NULL ? node->op->writes[o] : -1;
        dsi_spread *value = &w->p->value[out[o]];
        w->p->use[node->out_at + o] = w->placed.out[o];
        *value = w->placed.out[o];
        complete_columns(node, value);
        cut_as_gathered(w, node, o, value);
        if (from >= 0 && (fixed >> from & 1u) != 0) {
            *value = w->p->value[in[from]]; /* a written cell stays where it is */
        }
    }
    return DS_OK;
}

/* Outputs are what a value is, with its sums complete. */
static void place_outputs(walk *w)
{
    for (uint32_t i = 0; i < w->graph->n_outputs; ++i) {
        dsi_spread *output = &w->p->output[i];
        *output = w->p->value[w->graph->outputs[i].value];
        for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
            if (output->at.on[a].kind == DSI_PARTIAL) {
                output->at.on[a] = (dsi_place_on){0};
                output->averaged &= ~(1u << a);
            }
        }
    }
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
        p->n_cells = ds_cells_count(graph->cells);
        p->cell = calloc((size_t)p->n_cells + 1, sizeof *p->cell);
        p->value = calloc((size_t)graph->n_values + 1, sizeof *p->value);
        p->use = calloc((size_t)graph->n_operands + 1, sizeof *p->use);
        p->output = calloc((size_t)graph->n_outputs + 1, sizeof *p->output);
    }
    if (w == NULL || p == NULL || p->value == NULL || p->use == NULL || p->output == NULL ||
        p->cell == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the placements of a graph");
        goto end;
    }
    w->graph = graph;
    w->params = params;
    w->p = p;
    DS_TRY_GOTO(status, dsi_mesh_check(graph->ctx, &params->mesh), end);
    w->gradient = dsi_placement_simplify(&params->mesh, &params->gradient);
    DS_TRY_GOTO(status, place_cells(w), end);
    for (uint32_t n = 0; n < graph->n_nodes; ++n) {
        DS_TRY_GOTO(status, place_one(w, &graph->nodes[n]), end);
    }
    place_outputs(w);
    *out = p;
    p = NULL;
end:
    dsi_propagation_destroy(&p);
    if (w != NULL) {
        dsi_moves_memo_free(&w->memo);
    }
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
    free((*p)->output);
    free((*p)->cell);
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
            const dsi_spread *made = &p->use[node->out_at + o];
            dsi_buf_printf(buf, "%s%%%u ", comma, out[o]);
            if (!dsi_placement_equal(&made->at, &p->value[out[o]].at)) {
                spread_text(made, buf);
                dsi_buf_puts(buf, " -> ");
            }
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
