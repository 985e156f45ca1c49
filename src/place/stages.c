/* SPDX-License-Identifier: Apache-2.0 */
/* Which stage of a pipeline has which layer. See stages.h. */
#include "place/stages.h"

#include <deepspeed/place.h>

#include <stdlib.h>

typedef struct marker {
    ds_graph *graph;
    uint32_t n_layers, n_stages;
    bool *varies;    /* per value: a parameter reaches it */
    uint32_t *layer; /* per node: from 0 */
    double *weight;  /* per layer */
    uint32_t *stage; /* per layer: from 1 */
} marker;

static bool is_param(const ds_graph *g, ds_value v)
{
    const dsi_value_info *value = &g->values[v];
    return value->producer == DS_NONE && g->cells->items[value->cell].kind == DS_CELL_PARAM;
}

/* The layer of each node, and which values parameters reach. */
static void find_layers(marker *m)
{
    const ds_graph *g = m->graph;
    uint32_t layer = 0;
    for (ds_value v = 0; v < g->n_values; ++v) {
        m->varies[v] = is_param(g, v);
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        bool any = false;
        layer = node->region > 0 ? node->region - 1 : layer;
        m->layer[n] = layer;
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            any = any || (v != DS_NONE && m->varies[v]);
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            if (v != DS_NONE) {
                m->varies[v] = any;
            }
        }
    }
}

/* Operations of a product or attention. */
static double operations(const ds_graph *g, const dsi_node_info *node)
{
    ds_meta in[DS_MAX_IN] = {0};
    ds_meta out[DS_MAX_OUT] = {0};
    ds_cost cost = {0};
    if (node->op->cost == NULL || node->n_in > DS_MAX_IN || node->op->op_class < DS_CLASS_LINEAR ||
        node->op->op_class > DS_CLASS_ATTENTION_BACKWARD) {
        return 0.0;
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        in[i] = v != DS_NONE ? g->values[v].meta : in[i];
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(g, node)[o];
        out[o] = v != DS_NONE ? g->values[v].meta : out[o];
    }
    const ds_infer call = {.op = node->op,
                           .attrs = node->attrs,
                           .n_in = node->n_in,
                           .in = in,
                           .n_out = node->n_out,
                           .out = out};
    node->op->cost(&call, &cost);
    return cost.flops;
}

static void weigh_cost(marker *m)
{
    for (ds_node n = 0; n < m->graph->n_nodes; ++n) {
        m->weight[m->layer[n]] += operations(m->graph, &m->graph->nodes[n]);
    }
}

/* Elements of the parameters that a layer is the first to read. */
static void weigh(marker *m, dsi_stage_partition partition, bool *seen)
{
    const ds_graph *g = m->graph;
    if (partition == DSI_STAGES_BY_COST) {
        weigh_cost(m);
        return;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE && is_param(g, v) && !seen[g->values[v].cell]) {
                seen[g->values[v].cell] = true;
                m->weight[m->layer[n]] += (double)ds_shape_count(g->values[v].meta.shape);
            }
        }
    }
    for (uint32_t l = 0; partition == DSI_STAGES_UNIFORM && l < m->n_layers; ++l) {
        m->weight[l] = 1.0;
    }
}

/* Whether the layers fit into the stages, none empty, none heavier than `most`; fills them, the
 * first stages as full as they may be. */
static bool deal(const marker *m, double most)
{
    uint32_t stage = 1;
    double held = 0.0;
    for (uint32_t l = 0; l < m->n_layers; ++l) {
        const uint32_t left = m->n_layers - l;
        const bool full = held > 0.0 && held + m->weight[l] > most;
        const bool must = l > 0 && left <= m->n_stages - stage; /* one for each that is left */
        if (l > 0 && (full || must)) {
            ++stage;
            held = 0.0;
        }
        if (stage > m->n_stages || m->weight[l] > most) {
            return false;
        }
        held += m->weight[l];
        m->stage[l] = stage;
    }
    return stage == m->n_stages;
}

/* The least weight of the heaviest stage: of all sums of neighbours, the least that goes. */
static void partition(const marker *m)
{
    double least = -1.0;
    for (uint32_t first = 0; first < m->n_layers; ++first) {
        double sum = 0.0;
        for (uint32_t l = first; l < m->n_layers; ++l) {
            sum += m->weight[l];
            if ((least < 0.0 || sum < least) && deal(m, sum)) {
                least = sum;
            }
        }
    }
    (void)deal(m, least);
}

/* Nodes of no layer's stage are of none. */
static void mark_nodes(const marker *m)
{
    ds_graph *g = m->graph;
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        dsi_node_info *node = &g->nodes[n];
        bool any = false;
        for (uint32_t o = 0; o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            any = any || (v != DS_NONE && m->varies[v]);
        }
        node->stage = any ? m->stage[m->layer[n]] : 0;
    }
}

static ds_status open_marker(marker *m)
{
    const ds_graph *g = m->graph;
    m->varies = calloc((size_t)g->n_values + 1, sizeof *m->varies);
    m->layer = calloc((size_t)g->n_nodes + 1, sizeof *m->layer);
    m->weight = calloc((size_t)m->n_layers + 1, sizeof *m->weight);
    m->stage = calloc((size_t)m->n_layers + 1, sizeof *m->stage);
    if (m->varies == NULL || m->layer == NULL || m->weight == NULL || m->stage == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to cut the model into stages");
    }
    find_layers(m);
    return DS_OK;
}

static void close_marker(marker *m)
{
    free(m->varies);
    free(m->layer);
    free(m->weight);
    free(m->stage);
}

static ds_status mark(marker *m, dsi_stage_partition how, const char *type)
{
    bool *seen = calloc((size_t)m->graph->cells->n + 1, sizeof *seen);
    if (seen == NULL) {
        return ds_fail(m->graph->ctx, DS_ERR_NOMEM, "no memory to cut the model into stages");
    }
    ds_status status = DS_OK;
    if (how == DSI_STAGES_BY_TYPE) {
        status = dsi_stage_types(m->graph, type, m->layer, m->n_layers, m->weight);
    } else {
        weigh(m, how, seen);
    }
    free(seen);
    if (status >= 0) {
        partition(m);
        mark_nodes(m);
    }
    return status;
}

static uint32_t count_layers(const ds_graph *graph)
{
    uint32_t most = 0;
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        most = graph->nodes[n].region > most ? graph->nodes[n].region : most;
    }
    return most;
}

ds_status dsi_stages_mark_as(ds_graph *graph, const ds_graph *marked)
{
    marker m = {.graph = graph, .n_layers = count_layers(graph)};
    ds_status status = open_marker(&m);
    uint32_t layer = 0;
    for (ds_node n = 0; n < marked->n_nodes && status >= 0; ++n) {
        const dsi_node_info *node = &marked->nodes[n];
        layer = node->region > 0 ? node->region - 1 : layer;
        if (node->phase == DS_PHASE_FORWARD && node->stage != 0 && layer < m.n_layers) {
            m.stage[layer] = node->stage;
        }
    }
    if (status >= 0) {
        mark_nodes(&m);
    }
    close_marker(&m);
    return status;
}

ds_status dsi_stages_mark(ds_graph *graph, uint32_t n_stages, dsi_stage_partition how,
                          const char *type)
{
    marker m = {.graph = graph, .n_stages = n_stages, .n_layers = count_layers(graph)};
    if (n_stages > m.n_layers || n_stages > DSI_STAGES_MOST) {
        return ds_fail(graph->ctx, DS_ERR_CONFIG,
                       "pipeline.stages (times chunks) is %u, but the model has %u layers (what it "
                       "marks with ds_nn_region_begin() and ds_nn_region_end()); at most %u go",
                       n_stages, m.n_layers,
                       m.n_layers < DSI_STAGES_MOST ? m.n_layers : DSI_STAGES_MOST);
    }
    ds_status status = open_marker(&m);
    status = status < 0 ? status : mark(&m, how, type);
    close_marker(&m);
    return status;
}

bool dsi_stage_has(dsi_stage_of of, uint32_t stage)
{
    const bool between = of.more && stage + 1 > of.first && stage + 1 < of.last;
    return of.first == 0 || stage + 1 == of.first || stage + 1 == of.last || between;
}

dsi_stage_of dsi_stage_ranks(dsi_stage_of of, const dsi_stage_parts *parts, uint32_t n_ranks)
{
    const bool wraps = of.first != 0 && of.last > n_ranks;
    if (of.first == 0 || !wraps) {
        return of;
    }
    const uint32_t first = dsi_part_rank(parts, n_ranks, of.first - 1) + 1;
    const uint32_t last = dsi_part_rank(parts, n_ranks, of.last - 1) + 1;
    return of.more ? (dsi_stage_of){.first = first, .last = n_ranks, .more = true}
                   : (dsi_stage_of){.first = first, .last = last};
}

static void add_reader(dsi_stage_of *of, uint32_t stage)
{
    const bool known = stage == of->first || stage == of->last;
    of->more = of->more || (!known && of->first != of->last); /* a third one */
    of->first = of->first == 0 || stage < of->first ? stage : of->first;
    of->last = stage > of->last ? stage : of->last;
}

void dsi_stages_of_cells(const ds_graph *graph, dsi_stage_of *of_out)
{
    const ds_cells *cells = graph->cells;
    for (ds_cell c = 0; c < cells->n; ++c) {
        of_out[c] = (dsi_stage_of){0};
    }
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const dsi_node_info *node = &graph->nodes[n];
        for (uint32_t i = 0; node->phase == DS_PHASE_FORWARD && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(graph, node)[i];
            if (v != DS_NONE && node->stage != 0 && is_param(graph, v)) {
                add_reader(&of_out[graph->values[v].cell], node->stage);
            }
        }
    }
    for (ds_cell c = 0; c < cells->n; ++c) {
        const ds_cell_info *cell = &cells->items[c];
        if (cell->kind == DS_CELL_PARAM && of_out[c].first == 0) {
            of_out[c].first = of_out[c].last = 1; /* nobody reads it */
        }
    }
    for (ds_cell c = 0; c < cells->n; ++c) {
        const ds_cell_info *cell = &cells->items[c];
        if (cell->kind != DS_CELL_PARAM && cell->of != DS_NONE) {
            const uint32_t first = of_out[cell->of].first;
            of_out[c] = (dsi_stage_of){.first = first, .last = first};
        }
    }
}
