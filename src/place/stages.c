/* SPDX-License-Identifier: Apache-2.0 */
/* Which stage of a pipeline has which layer. See stages.h. */
#include "place/stages.h"

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

/* Elements of the parameters that a layer is the first to read. */
static void weigh(marker *m, dsi_stage_partition partition, bool *seen)
{
    const ds_graph *g = m->graph;
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

static ds_status mark(marker *m, dsi_stage_partition how)
{
    ds_graph *g = m->graph;
    bool *seen = calloc((size_t)g->cells->n + 1, sizeof *seen);
    if (seen == NULL || m->varies == NULL || m->layer == NULL || m->weight == NULL ||
        m->stage == NULL) {
        free(seen);
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to cut the model into stages");
    }
    find_layers(m);
    weigh(m, how, seen);
    free(seen);
    partition(m);
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        dsi_node_info *node = &g->nodes[n];
        bool any = false;
        for (uint32_t o = 0; o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            any = any || (v != DS_NONE && m->varies[v]);
        }
        node->stage = any ? m->stage[m->layer[n]] : 0;
    }
    return DS_OK;
}

ds_status dsi_stages_mark(ds_graph *graph, uint32_t n_stages, dsi_stage_partition how)
{
    marker m = {.graph = graph, .n_stages = n_stages};
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        const uint32_t region = graph->nodes[n].region;
        m.n_layers = region > m.n_layers ? region : m.n_layers;
    }
    if (n_stages > m.n_layers || n_stages > DSI_STAGES_MOST) {
        return ds_fail(graph->ctx, DS_ERR_CONFIG,
                       "pipeline.stages (times chunks) is %u, but the model has %u layers (what it "
                       "marks with ds_nn_region_begin() and ds_nn_region_end()); at most %u go",
                       n_stages, m.n_layers,
                       m.n_layers < DSI_STAGES_MOST ? m.n_layers : DSI_STAGES_MOST);
    }
    m.varies = calloc((size_t)graph->n_values + 1, sizeof *m.varies);
    m.layer = calloc((size_t)graph->n_nodes + 1, sizeof *m.layer);
    m.weight = calloc((size_t)m.n_layers + 1, sizeof *m.weight);
    m.stage = calloc((size_t)m.n_layers + 1, sizeof *m.stage);
    const ds_status status = mark(&m, how);
    free(m.varies);
    free(m.layer);
    free(m.weight);
    free(m.stage);
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
