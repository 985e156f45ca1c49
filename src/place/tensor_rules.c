/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of sharded values. See tensor_rules.h.
 *
 * A walk in program order gives each value its region, if any, and the dim that is sharded. Where a
 * node has no strategy for what it gets, the regions of its inputs fail: their values are whole
 * again. The walk repeats without the parameters that began regions that failed, since what read
 * them decided by them, until none fails. A node that could take its input, were it cut inside of
 * equal blocks, wishes so: its region's parameters are tried once in that way before they are given
 * up. Of a graph that stands beside one that is placed, the cells of that one are a region of their
 * own from the start, which has ended well: what reaches them belongs to it.
 */
#include "place/tensor_rules.h"

#include "base/blocks.h"
#include "op/ops.h"
#include "place/rule.h"

#include <stdlib.h>
#include <string.h>

enum { NO_REGION = UINT32_MAX };

typedef struct region {
    uint32_t joined; /* itself, or the region that it became part of */
    bool failed;
    bool ended;     /* by a sum */
    uint8_t blocks; /* failed because it is not cut in so many blocks; 0: for another reason */
} region;

typedef struct sharded {
    uint32_t region; /* NO_REGION: whole */
    uint8_t dim, blocks;
    bool began; /* cells: the region, or one that became part of it */
} sharded;

typedef struct finder {
    const ds_graph *graph;
    const dsi_mesh *mesh;
    dsi_place_policy policy;
    region *regions;
    uint32_t n_regions;
    sharded *values;  /* per value */
    sharded *cells;   /* per cell */
    uint32_t *banned; /* per cell: dims along which it began a region that failed, as bits */
    uint8_t *wished;  /* per cell: blocks that it is cut in, if it is; 0: none */
    const dsi_place_on *given; /* of the first n_given cells */
    uint32_t n_given;
    bool is_forward; /* no node takes gradients: a region may end where its values are gathered */
} finder;

static uint32_t root(const finder *f, uint32_t r)
{
    while (f->regions[r].joined != r) {
        r = f->regions[r].joined;
    }
    return r;
}

static bool lives(const finder *f, const sharded *s)
{
    return s->region != NO_REGION && !f->regions[root(f, s->region)].failed;
}

static uint32_t join(finder *f, uint32_t a, uint32_t b)
{
    const uint32_t to = root(f, a);
    const uint32_t from = root(f, b);
    f->regions[to].failed = f->regions[to].failed || f->regions[from].failed;
    f->regions[to].ended = f->regions[to].ended || f->regions[from].ended;
    f->regions[to].blocks =
        f->regions[to].blocks > 0 ? f->regions[to].blocks : f->regions[from].blocks;
    f->regions[from].joined = to;
    return to;
}

/* What may be placed freely: parameters, caches, and inputs that stand beside a parameter (slots of
 * adapters); else DS_NONE. */
static ds_cell free_cell(const finder *f, ds_value v)
{
    const dsi_value_info *info = &f->graph->values[v];
    if (info->producer != DS_NONE || info->cell == DS_NONE) {
        return DS_NONE;
    }
    const ds_cell_info *cell = ds_cells_get(f->graph->cells, info->cell);
    const bool free = cell->kind == DS_CELL_PARAM || cell->kind == DS_CELL_KV ||
                      (cell->kind == DS_CELL_INPUT && cell->of != DS_NONE);
    return free ? info->cell : DS_NONE;
}

/* ---- one node -------------------------------------------------------------------------------- */

static ds_meta meta_of(const finder *f, ds_value v)
{
    return v == DS_NONE ? (ds_meta){0} : f->graph->values[v].meta;
}

/* Of a matrix in blocks rows are cut between those. */
static int64_t unit_of(const finder *f, ds_value v, uint32_t dim)
{
    const ds_meta meta = meta_of(f, v);
    return dsi_is_blocks(meta.dtype) && dim == 1 ? dsi_block_length(meta.dtype) : 1;
}

static bool divides(const finder *f, ds_value v, const dsi_place_on *on)
{
    return on->kind != DSI_SHARD || on->blocks == DSI_PADDED ||
           meta_of(f, v).shape.dims[on->dim] %
                   ((int64_t)f->mesh->size[DSI_AXIS_TP] * (on->blocks > 0 ? on->blocks : 1) *
                    unit_of(f, v, on->dim)) ==
               0;
}

/* A norm of whole rows, or a product with a whole matrix, rotated, clipped or not: its backward
 * node takes no slices of them. */
static bool is_made_whole(const finder *f, ds_value v)
{
    const dsi_value_info *info = &f->graph->values[v];
    const dsi_node_info *node = info->producer != DS_NONE ? &f->graph->nodes[info->producer] : NULL;
    while (node != NULL && (node->op == &dsi_op_rope || node->op == &dsi_op_where)) {
        const uint32_t x = node->op == &dsi_op_where ? 1 : 0; /* behind the mask */
        const ds_node before = f->graph->values[dsi_node_in(f->graph, node)[x]].producer;
        node = before != DS_NONE ? &f->graph->nodes[before] : NULL;
    }
    return node != NULL && (node->op->op_class == DS_CLASS_NORM || node->op == &dsi_op_linear ||
                            node->op == &dsi_op_grouped_linear);
}

/* Whether an input may be as a strategy wants it. What is given may be sharded where it is; a
 * free cell stays as its other readers have it; what is whole may be added to a sum by one rank. */
static bool takes(const finder *f, ds_value v, const dsi_place_on *want)
{
    const ds_cell cell = free_cell(f, v);
    const sharded *have = cell != DS_NONE ? &f->cells[cell] : &f->values[v];
    if (lives(f, have)) {
        return want->kind == DSI_SHARD && want->dim == have->dim && want->blocks == have->blocks;
    }
    const bool free = cell == DS_NONE ? !is_made_whole(f, v)
                                      : ((f->banned[cell] >> want->dim & 1u) == 0 &&
                                         (f->wished[cell] == 0 || f->wished[cell] == want->blocks));
    return want->kind == DSI_REPLICATE || want->kind == DSI_PARTIAL ||
           (want->kind == DSI_SHARD && free);
}

/* B (E,out,rank) of an adapter on experts whose outputs are cut: its product is another operator
 * than the layer's, so it begins a region, which becomes the layer's where the two are added. */
static bool follows_experts(const finder *f, const ds_cell_info *cell, const dsi_place_on *want)
{
    const ds_cell of = cell->of;
    const sharded *layer = of != DS_NONE ? &f->cells[of] : NULL;
    return layer != NULL && cell->meta.shape.n_dims == 3 && want->dim == 1 && lives(f, layer) &&
           !f->regions[root(f, layer->region)].ended && layer->blocks == want->blocks &&
           ds_cells_get(f->graph->cells, of)->meta.shape.dims[layer->dim] ==
               cell->meta.shape.dims[1];
}

/* An adapter's matrices begin none: they go the way of the layer that they belong to, since a
 * region of their own would meet that of the layer where the two are added. */
static bool shards_matrix(const finder *f, ds_value v, const dsi_place_on *want)
{
    const ds_cell cell = free_cell(f, v);
    if (cell != DS_NONE && want->kind == DSI_SHARD && !lives(f, &f->cells[cell]) &&
        follows_experts(f, ds_cells_get(f->graph->cells, cell), want)) {
        return true;
    }
    return cell != DS_NONE && want->kind == DSI_SHARD && !lives(f, &f->cells[cell]) &&
           ds_cells_get(f->graph->cells, cell)->kind == DS_CELL_PARAM &&
           ds_cells_get(f->graph->cells, cell)->of == DS_NONE && meta_of(f, v).shape.n_dims >= 2;
}

/* Numbers of rows, which are cut as the table is: they are the same whatever is sharded. */
static bool is_row_numbers(const finder *f, ds_value v)
{
    const ds_node maker = f->graph->values[v].producer;
    return maker != DS_NONE && f->graph->nodes[maker].op == &dsi_op_row_numbers;
}

/* Keys or values that were gathered, so that there are as many heads of them as ranks: each rank
 * keeps its own. */
static bool keeps_own(const finder *f, const dsi_node_info *node)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    const ds_node maker =
        node->op == &dsi_op_paged_write ? f->graph->values[in[1]].producer : (ds_node)DS_NONE;
    return maker != (ds_node)DS_NONE && f->graph->nodes[maker].op == &dsi_op_whole;
}

/* Whether a strategy fits what the node gets. begins: no activation is sharded, so a weight has to
 * be, and the activations stay whole. */
static bool fits(const finder *f, const dsi_node_info *node, const dsi_strategy *s, bool begins)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    const ds_value *out = dsi_node_out(f->graph, node);
    const bool by_parts = node->op->place != NULL && (node->op->place->flags & DSI_PLACE_PART) != 0;
    const bool own = keeps_own(f, node);
    bool matrix = own;
    bool sharded_out = false;
    if (s->letter == 0 || s->linear || s->averaged != 0) {
        return false;
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if (in[i] == DS_NONE) {
            continue;
        }
        const bool moves =
            begins && !own && free_cell(f, in[i]) == DS_NONE && !is_row_numbers(f, in[i]);
        if (!takes(f, in[i], &s->in[i]) || !divides(f, in[i], &s->in[i]) ||
            (moves && s->in[i].kind != DSI_REPLICATE)) {
            return false;
        }
        matrix = matrix || shards_matrix(f, in[i], &s->in[i]);
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const bool sum = s->out[o].kind == DSI_PARTIAL;
        if (out[o] == DS_NONE) {
            continue;
        }
        if (!divides(f, out[o], &s->out[o]) ||
            (sum && !by_parts && (begins || s->out[o].dim != DSI_TERMS_SUM))) {
            return false;
        }
        sharded_out = sharded_out || s->out[o].kind != DSI_REPLICATE;
    }
    return sharded_out && (matrix || !begins);
}

/* Blocks that an input is cut in, or that a parameter is to be. */
static uint32_t blocks_of(const finder *f, const dsi_node_info *node)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_cell cell = in[i] != DS_NONE ? free_cell(f, in[i]) : DS_NONE;
        if (in[i] == DS_NONE) {
            continue;
        }
        const sharded *have = cell != DS_NONE ? &f->cells[cell] : &f->values[in[i]];
        const uint32_t own = lives(f, have) ? have->blocks : cell != DS_NONE ? f->wished[cell] : 0;
        blocks = own > 0 ? own : blocks;
    }
    return blocks;
}

static uint32_t list_strategies(const finder *f, const dsi_node_info *node, dsi_strategy *list)
{
    ds_meta in[DS_MAX_IN] = {{0}};
    ds_meta out[DS_MAX_OUT] = {{0}};
    ds_place_case rule;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        in[i] = meta_of(f, dsi_node_in(f->graph, node)[i]);
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        out[o] = meta_of(f, dsi_node_out(f->graph, node)[o]);
    }
    dsi_rule_case_make(node->op, node->attrs, in, node->n_in, out, node->n_out, &rule);
    return dsi_rule_strategies(&rule, f->mesh, DSI_AXIS_TP, &f->policy, blocks_of(f, node), list);
}

static bool find_strategy(const finder *f, const dsi_node_info *node, bool begins,
                          dsi_strategy *found)
{
    dsi_strategy list[DSI_RULE_STRATEGIES];
    const uint32_t n = list_strategies(f, node, list);
    for (uint32_t i = 0; i < n; ++i) {
        if (fits(f, node, &list[i], begins)) {
            *found = list[i];
            return true;
        }
    }
    return false;
}

/* The region that a node belongs to: its inputs' regions become one, or a new one begins. */
static uint32_t region_of(finder *f, const dsi_node_info *node)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    uint32_t r = NO_REGION;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        if (in[i] == DS_NONE) {
            continue;
        }
        const ds_cell cell = free_cell(f, in[i]);
        const sharded *have = cell != DS_NONE ? &f->cells[cell] : &f->values[in[i]];
        if (lives(f, have)) {
            r = r == NO_REGION ? root(f, have->region) : join(f, r, have->region);
        }
    }
    if (r == NO_REGION) {
        r = f->n_regions++;
        f->regions[r] = (region){.joined = r};
    }
    return r;
}

static void place_node(finder *f, const dsi_node_info *node, const dsi_strategy *s, bool begins)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    const ds_value *out = dsi_node_out(f->graph, node);
    const uint32_t r = region_of(f, node);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_cell cell = in[i] != DS_NONE ? free_cell(f, in[i]) : DS_NONE;
        if (cell != DS_NONE && s->in[i].kind == DSI_SHARD) {
            f->cells[cell] = (sharded){r, s->in[i].dim, s->in[i].blocks, begins};
        }
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        if (out[o] != DS_NONE && s->out[o].kind == DSI_SHARD) {
            f->values[out[o]] = (sharded){r, s->out[o].dim, s->out[o].blocks, false};
        }
        f->regions[r].ended =
            f->regions[r].ended || (out[o] != DS_NONE && s->out[o].kind == DSI_PARTIAL);
    }
}

static bool any_sharded(const finder *f, const dsi_node_info *node)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    bool any = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_cell cell = in[i] != DS_NONE ? free_cell(f, in[i]) : DS_NONE;
        any = any ||
              (in[i] != DS_NONE && lives(f, cell != DS_NONE ? &f->cells[cell] : &f->values[in[i]]));
    }
    return any;
}

/* Blocks that the node would take sharded input i in; 0: it takes it in none. */
static uint8_t blocks_wished(const finder *f, const dsi_node_info *node, uint32_t i,
                             const sharded *have)
{
    dsi_strategy list[DSI_RULE_STRATEGIES];
    const uint32_t n = list_strategies(f, node, list);
    uint8_t blocks = 0;
    for (uint32_t k = 0; k < n; ++k) {
        const dsi_place_on *on = &list[k].in[i];
        blocks = blocks == 0 && on->kind == DSI_SHARD && on->dim == have->dim &&
                         have->blocks == 0 && on->blocks != DSI_PADDED
                     ? on->blocks
                     : blocks;
    }
    return blocks;
}

static void fail_inputs(finder *f, const dsi_node_info *node)
{
    const ds_value *in = dsi_node_in(f->graph, node);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_cell cell = in[i] != DS_NONE ? free_cell(f, in[i]) : DS_NONE;
        const sharded *have = cell != DS_NONE    ? &f->cells[cell]
                              : in[i] != DS_NONE ? &f->values[in[i]]
                                                 : NULL;
        if (have != NULL && lives(f, have)) {
            region *r = &f->regions[root(f, have->region)];
            r->blocks = blocks_wished(f, node, i, have);
            r->failed = true;
        }
    }
}

/* Whether a node gathers what is sharded, whose region ends there. */
static bool gathers(const finder *f, const dsi_node_info *node)
{
    return f->is_forward && node->op->place != NULL &&
           (node->op->place->flags & DSI_PLACE_WHOLE) != 0;
}

static void visit(finder *f, const dsi_node_info *node)
{
    dsi_strategy s;
    const bool begins = !any_sharded(f, node);
    if (find_strategy(f, node, begins, &s)) {
        place_node(f, node, &s, begins);
    } else if (!begins && gathers(f, node)) {
        f->regions[region_of(f, node)].ended = true;
    } else if (!begins) {
        fail_inputs(f, node);
    }
}

/* ---- the walks ------------------------------------------------------------------------------- */

static void walk(finder *f)
{
    const ds_graph *g = f->graph;
    f->n_regions = f->n_given > 0 ? 1 : 0;
    f->regions[0] = (region){.joined = 0, .ended = true};
    for (ds_value v = 0; v < g->n_values; ++v) {
        f->values[v].region = NO_REGION;
    }
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const bool is_given = c < f->n_given && f->given[c].kind == DSI_SHARD;
        f->cells[c] = is_given ? (sharded){0, f->given[c].dim, f->given[c].blocks, false}
                               : (sharded){.region = NO_REGION};
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        if (g->nodes[n].phase == DS_PHASE_FORWARD) {
            visit(f, &g->nodes[n]);
        }
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const sharded *s = &f->values[g->outputs[i].value];
        if (lives(f, s)) {
            f->regions[root(f, s->region)].failed = true;
        }
    }
}

/* Whether a cell's region failed, and may not where it is cut in blocks. */
static bool has_new_wish(const finder *f, ds_cell c)
{
    const sharded *s = &f->cells[c];
    const region *r = s->region != NO_REGION ? &f->regions[root(f, s->region)] : NULL;
    return r != NULL && r->failed && r->blocks > 0 && f->wished[c] == 0;
}

/* Blocks for the cells of regions that wish them. What began behind such a region, since that was
 * whole again, is not judged by this walk. */
static bool wish(finder *f)
{
    bool any = false;
    for (ds_cell c = 0; c < ds_cells_count(f->graph->cells); ++c) {
        if (has_new_wish(f, c)) {
            f->wished[c] = f->regions[root(f, f->cells[c].region)].blocks;
            any = true;
        }
    }
    return any;
}

/* Cells that began a region that did not end well are banned; returns whether there are new ones.
 * Those that came to it later may do better in one of their own. */
static bool ban(finder *f)
{
    bool more = false;
    for (ds_cell c = 0; c < ds_cells_count(f->graph->cells); ++c) {
        const sharded *s = &f->cells[c];
        const region *r = s->region != NO_REGION ? &f->regions[root(f, s->region)] : NULL;
        if (r != NULL && (r->failed || !r->ended)) {
            const uint32_t dim = s->began ? 1u << s->dim : 0;
            more = more || (f->banned[c] & dim) != dim;
            f->banned[c] |= dim;
            f->cells[c].region = NO_REGION;
        }
    }
    return more;
}

/* given, n_given: see dsi_tensor_rules_beside; the others of on are written. */
static ds_status find(const ds_graph *graph, const dsi_mesh *mesh, const uint8_t *allowed,
                      uint32_t n_given, dsi_place_on *on)
{
    const uint32_t n_cells = ds_cells_count(graph->cells);
    finder f = {.graph = graph,
                .mesh = mesh,
                .policy = dsi_place_policy_default(),
                .given = on,
                .n_given = n_given,
                .is_forward = true};
    for (ds_node n = 0; n < graph->n_nodes; ++n) {
        f.is_forward = f.is_forward && graph->nodes[n].phase == DS_PHASE_FORWARD;
    }
    f.regions = calloc((size_t)graph->n_nodes + 2, sizeof *f.regions);
    f.values = calloc((size_t)graph->n_values + 1, sizeof *f.values);
    f.cells = calloc((size_t)n_cells + 1, sizeof *f.cells);
    f.banned = calloc((size_t)n_cells + 1, sizeof *f.banned);
    f.wished = calloc((size_t)n_cells + 1, sizeof *f.wished);
    const bool room = f.regions != NULL && f.values != NULL && f.cells != NULL &&
                      f.banned != NULL && f.wished != NULL;
    for (ds_cell k = 0; k < n_cells && room && allowed != NULL; ++k) {
        f.banned[k] = ~(uint32_t)allowed[k];
    }
    for (ds_cell k = 0; k < n_given && room; ++k) { /* whole there, whole here */
        f.banned[k] = on[k].kind == DSI_SHARD ? 0 : ~UINT32_C(0);
    }
    for (ds_node n = 0; n < graph->n_nodes && room; ++n) { /* it reads a whole table */
        const dsi_node_info *node = &graph->nodes[n];
        const ds_value table =
            node->op == &dsi_op_embedding_blocks ? dsi_node_in(graph, node)[0] : DS_NONE;
        if (table != DS_NONE && graph->values[table].cell != DS_NONE) {
            f.banned[graph->values[table].cell] = ~UINT32_C(0);
        }
    }
    if (room) {
        do {
            walk(&f);
        } while (wish(&f) || ban(&f));
        for (ds_cell c = n_given; c < n_cells; ++c) {
            const sharded *s = &f.cells[c];
            on[c] = s->region != NO_REGION ? (dsi_place_on){DSI_SHARD, s->dim, s->blocks}
                                           : (dsi_place_on){0};
        }
    }
    free(f.regions);
    free(f.values);
    free(f.cells);
    free(f.banned);
    free(f.wished);
    return room ? DS_OK : ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for tensor parallelism");
}

ds_status dsi_tensor_rules(const ds_graph *graph, const dsi_mesh *mesh, const uint8_t *allowed,
                           dsi_place_on *on_out)
{
    return find(graph, mesh, allowed, 0, on_out);
}

ds_status dsi_tensor_rules_beside(const ds_graph *graph, const dsi_mesh *mesh, uint32_t n_given,
                                  dsi_place_on *on_inout)
{
    return find(graph, mesh, NULL, n_given, on_inout);
}
