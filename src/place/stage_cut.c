/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of one stage. See stage_cut.h.
 *
 * Backwards over the nodes: which stages read each value. Forwards: what this stage runs, with a
 * store behind what others read, and reads in place of what others make.
 */
#include "place/stage_cut.h"

#include "ir/rewrite.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct cutter {
    dsi_rewrite r;
    const dsi_stage_cut *how;
    ds_cells *local;
    dsi_stage_messages *messages;
    uint64_t all;     /* a bit a stage, from 0 */
    uint64_t *need;   /* per value: stages that read it */
    uint64_t *runs;   /* per node: stages that run it */
    ds_value *root;   /* per value: what it is a view of, or itself */
    bool *late;       /* per root: a phase behind the forward phase reads it */
    uint32_t *bucket; /* per bucket of from: its number here, from 1; 0: none yet */
    uint32_t n_buckets;
    uint32_t n_sent;
} cutter;

static uint64_t bit(uint32_t stage)
{
    return (uint64_t)1 << stage;
}

/* Of a value: the stage of the node that makes it, from 1. */
static uint32_t stage_of(const ds_graph *g, ds_value v)
{
    const ds_node maker = v != DS_NONE ? g->values[v].producer : DS_NONE;
    return maker != DS_NONE ? g->nodes[maker].stage : 0;
}

/* Folds what each stage has folded: all stages have the result. */
static bool folds_stages(const ds_graph *g, const dsi_node_info *node)
{
    bool any = false;
    if (node->stage != 0 || (node->op != &dsi_op_max_of && node->op != &dsi_op_sum_parts)) {
        return false;
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        any = any || stage_of(g, dsi_node_in(g, node)[i]) != 0;
    }
    return any;
}

static bool writes_cell(const ds_graph *g, const dsi_node_info *node)
{
    bool any = false;
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(g, node)[o];
        any = any || (v != DS_NONE && g->values[v].cell != DS_NONE);
    }
    return any;
}

static void find_readers(cutter *c)
{
    const ds_graph *g = c->r.from;
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        c->need[v] |= stage_of(g, v) == 0 ? c->all : 0;
    }
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const dsi_node_info *node = &g->nodes[n];
        const bool folds = folds_stages(g, node);
        uint64_t runs = node->stage != 0 ? bit(node->stage - 1) : 0;
        for (uint32_t o = 0; node->stage == 0 && o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            runs |= v != DS_NONE ? c->need[v] : 0;
        }
        if (node->stage == 0 && (folds || writes_cell(g, node))) {
            runs = c->all;
        }
        c->runs[n] = runs;
        for (uint32_t i = 0; !folds && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                c->need[v] |= runs;
            }
        }
    }
}

/* What of the forward phase is read behind it, in whatever view. */
static void find_late(cutter *c)
{
    const ds_graph *g = c->r.from;
    for (ds_value v = 0; v < g->n_values; ++v) {
        c->root[v] = v;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        if ((node->op->flags & DS_OP_VIEW) != 0) {
            c->root[dsi_node_out(g, node)[0]] = c->root[dsi_node_in(g, node)[0]];
        }
        for (uint32_t i = 0; node->phase != DS_PHASE_FORWARD && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                c->late[c->root[v]] = true;
            }
        }
    }
}

/* ---- what crosses ---------------------------------------------------------------------------- */

static ds_status add_message(ds_ctx *ctx, dsi_stage_messages *messages, dsi_stage_message message)
{
    dsi_stage_message *items =
        dsi_graph_grow(messages->items, &messages->capacity, messages->n + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the messages of a pipeline");
    }
    messages->items = items;
    items[messages->n++] = message;
    return DS_OK;
}

/* Messages go down the line in the forward phase and up in the backward phase, or a schedule would
 * block. */
static ds_status check_way(const ds_graph *g, const dsi_node_info *node, ds_value v, uint32_t from,
                           uint32_t to)
{
    const bool down = node->phase == DS_PHASE_FORWARD && to > from;
    const bool up = node->phase == DS_PHASE_BACKWARD && to < from;
    return (down || up) && g->values[v].cell == DS_NONE
               ? DS_OK
               : ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                         "pipeline: what %s makes (%s, phase %s) on stage %u is read on stage %u; "
                         "stages send only to later ones in the forward phase and to earlier ones "
                         "in the backward phase",
                         node->scope, node->op->name, g->phases.items[node->phase].name, from, to);
}

/* A gradient that passes stages over (tied weights) is received as many backward phases later: a
 * buffer for each, or its stage would wait. */
static ds_status add_room(cutter *c, dsi_stage_message *m)
{
    const uint32_t far = m->source > m->target ? m->source - m->target : 0;
    const uint32_t most = far < c->how->n_micro ? far : c->how->n_micro;
    const ds_cell_info *carried = ds_cells_get(c->local, m->cell);
    const ds_meta meta = carried->meta;
    char name[96];
    if (m->phase != DS_PHASE_BACKWARD || most < 2) {
        return DS_OK;
    }
    m->buffers = most;
    (void)snprintf(name, sizeof name, "%s/to/%u", carried->name, m->target);
    const ds_cell_info info = {
        .name = name,
        .kind = DS_CELL_OUTPUT,
        .meta = {meta.dtype, ds_shape_1d((int64_t)most * ds_shape_count(meta.shape))},
        .of = DS_NONE};
    return ds_cells_add(c->local, &info, &m->waiting);
}

/* A value that other stages read: its cell, its messages; here a store, or a read in its place. */
static ds_status cross(cutter *c, const dsi_node_info *node, ds_value v)
{
    const ds_graph *g = c->r.from;
    const uint32_t source = node->stage - 1;
    const uint64_t others = c->need[v] & ~bit(source);
    char name[64];
    ds_cell cell = DS_NONE;
    (void)snprintf(name, sizeof name, "pipe/%s/%u", c->how->name, c->n_sent++);
    /* what a forward phase receives is there until its backward phase, once for each slot */
    const bool keeps = node->phase == DS_PHASE_FORWARD && c->how->n_micro > 0 &&
                       (others & bit(c->how->stage)) != 0;
    const ds_cell_kind kind = keeps ? DS_CELL_INPUT : DS_CELL_OUTPUT;
    const ds_cell_info info = {
        .name = name, .kind = kind, .meta = g->values[v].meta, .of = DS_NONE};
    DS_TRY(ds_cells_add(c->local, &info, &cell));
    for (uint32_t to = 0; to < c->how->mesh->size[DSI_AXIS_PP]; ++to) {
        if ((others & bit(to)) == 0) {
            continue;
        }
        DS_TRY(check_way(g, node, v, source, to));
        dsi_stage_message message = {
            .cell = cell, .source = source, .target = to, .phase = node->phase, .waiting = DS_NONE};
        DS_TRY(add_room(c, &message));
        DS_TRY(add_message(g->ctx, c->messages, message));
    }
    if ((others & bit(c->how->stage)) != 0) {
        return ds_graph_read(c->r.to, cell, &c->r.map[v]);
    }
    if (source == c->how->stage) {
        ds_value in[2] = {DS_NONE, c->r.map[v]};
        ds_value out[DS_MAX_OUT];
        DS_TRY(ds_graph_read(c->r.to, cell, &in[0]));
        return ds_graph_apply(c->r.to, &dsi_op_store, NULL, in, 2, out);
    }
    return DS_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* This stage's part, gathered with those of the others, in their order. */
static ds_status fold(cutter *c, const dsi_node_info *node)
{
    const ds_graph *g = c->r.from;
    const dsi_mesh *mesh = c->how->mesh;
    const bool is_max = node->op == &dsi_op_max_of;
    const dsi_axes pp = dsi_axes_of(1u << DSI_AXIS_PP);
    ds_value own = DS_NONE;
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        own = stage_of(g, v) == c->how->stage + 1 ? c->r.map[v] : own;
    }
    if (own == DS_NONE || node->n_in != mesh->size[DSI_AXIS_PP]) {
        return ds_fail(g->ctx, DS_ERR_INTERNAL, "%s folds %u stages", node->scope, node->n_in);
    }
    const int64_t count = ds_shape_count(ds_graph_meta(c->r.to, own).shape);
    dsi_comm_attrs attrs = {.n_ranks = mesh->size[DSI_AXIS_PP],
                            .axes = dsi_axes_code(mesh, &pp),
                            .stride = mesh->n_ranks / mesh->size[DSI_AXIS_PP],
                            .bucket = -1,
                            .factor = 1.0,
                            .n_dims = is_max ? 1 : 2,
                            .dims = {mesh->size[DSI_AXIS_PP], is_max ? 0 : count}};
    DS_TRY(dsi_rewrite_stand_at(&c->r, node));
    DS_TRY(ds_graph_apply(c->r.to, &dsi_op_all_gather, &attrs, &own, 1, out));
    own = out[0];
    DS_TRY(
        ds_graph_apply(c->r.to, is_max ? &dsi_op_abs_max : &dsi_op_sum_parts, NULL, &own, 1, out));
    dsi_rewrite_made(&c->r, node, out);
    return DS_OK;
}

/* A parameter that the stage does not have cannot be read. */
static ds_status check_cells(const cutter *c, const dsi_node_info *node)
{
    const ds_graph *g = c->r.from;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        const ds_cell cell = v != DS_NONE ? g->values[v].cell : DS_NONE;
        if (cell < c->how->n_cells && !dsi_stage_has(c->how->cells[cell], c->how->stage)) {
            return ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                           "pipeline: %s reads %s, which stage %u does not have", node->scope,
                           g->cells->items[cell].name, c->how->stage);
        }
    }
    return DS_OK;
}

/* The same node. What a collective sends lies where peers can read it, which is there once; what a
 * backward phase reads, once for each micro-batch in flight: a copy is sent. */
static ds_status copy_sent(cutter *c, const dsi_node_info *node)
{
    const ds_graph *g = c->r.from;
    const bool sends = node->op->op_class == DS_CLASS_COMM;
    const ds_value v = sends ? dsi_node_in(g, node)[node->n_in - 1] : DS_NONE;
    const ds_node maker = v != DS_NONE ? g->values[c->root[v]].producer : DS_NONE;
    if (maker == DS_NONE || g->nodes[maker].phase != DS_PHASE_FORWARD || c->how->n_micro < 2 ||
        !c->late[c->root[v]]) {
        return dsi_rewrite_copy(&c->r, node);
    }
    const ds_meta meta = g->values[v].meta;
    const dsi_cast_attrs same = {.dtype = meta.dtype};          /* of floats */
    const dsi_slice_attrs all = {.length = meta.shape.dims[0]}; /* of what has dims */
    const bool scalar = meta.shape.n_dims == 0;
    const ds_value kept = c->r.map[v];
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_rewrite_stand_at(&c->r, node));
    DS_TRY(ds_graph_apply(c->r.to, scalar ? &dsi_op_cast : &dsi_op_slice,
                          scalar ? (const void *)&same : &all, &kept, 1, out));
    c->r.map[v] = out[0];
    const ds_status status = dsi_rewrite_copy(&c->r, node);
    c->r.map[v] = kept;
    return status;
}

/* The same node. Buckets are numbered anew: there are fewer, as there are fewer nodes. */
static ds_status copy_node(cutter *c, const dsi_node_info *node)
{
    const bool comm = (node->op->flags & DS_OP_COMM) != 0;
    const int64_t bucket = comm ? ((const dsi_comm_attrs *)node->attrs)->bucket : -1;
    if (bucket < 0 || bucket >= (int64_t)c->r.from->n_nodes) {
        return copy_sent(c, node);
    }
    if (c->bucket[bucket] == 0) {
        c->bucket[bucket] = ++c->n_buckets;
    }
    dsi_comm_attrs attrs = *(const dsi_comm_attrs *)node->attrs;
    dsi_node_info numbered = *node;
    attrs.bucket = c->bucket[bucket] - 1;
    numbered.attrs = &attrs;
    return copy_sent(c, &numbered);
}

static ds_status cut_node(cutter *c, ds_node n)
{
    const dsi_node_info *node = &c->r.from->nodes[n];
    if (folds_stages(c->r.from, node)) {
        return fold(c, node);
    }
    if ((c->runs[n] & bit(c->how->stage)) != 0) {
        DS_TRY(check_cells(c, node));
        DS_TRY(copy_node(c, node));
    }
    for (uint32_t o = 0; node->stage != 0 && o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(c->r.from, node)[o];
        if (v != DS_NONE && (c->need[v] & ~bit(node->stage - 1)) != 0) {
            DS_TRY(cross(c, node, v));
        }
    }
    return DS_OK;
}

ds_status dsi_stage_cut_graph(const ds_graph *graph, const dsi_stage_cut *how, ds_cells *local,
                              dsi_stage_messages *messages, ds_graph **cut_out)
{
    const uint32_t n_stages = how->mesh->size[DSI_AXIS_PP];
    cutter c = {.how = how, .local = local, .messages = messages, .all = bit(n_stages) - 1};
    c.need = calloc((size_t)graph->n_values + 1, sizeof *c.need);
    c.runs = calloc((size_t)graph->n_nodes + 1, sizeof *c.runs);
    c.root = calloc((size_t)graph->n_values + 1, sizeof *c.root);
    c.late = calloc((size_t)graph->n_values + 1, sizeof *c.late);
    c.bucket = calloc((size_t)graph->n_nodes + 1, sizeof *c.bucket);
    ds_status status = dsi_rewrite_begin(&c.r, graph, local);
    c.r.partial = true;
    if (c.need == NULL || c.runs == NULL || c.root == NULL || c.late == NULL || c.bucket == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to cut the graph into stages");
    }
    if (status >= 0) {
        find_readers(&c);
        find_late(&c);
    }
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = cut_node(&c, n);
    }
    free(c.need);
    free(c.runs);
    free(c.root);
    free(c.late);
    free(c.bucket);
    return dsi_rewrite_end(&c.r, status, cut_out);
}

/* ---- cells ----------------------------------------------------------------------------------- */

ds_status dsi_stage_copies(const ds_cells *cells, const dsi_stage_cut *how, ds_phase update,
                           dsi_stage_messages *messages)
{
    for (ds_cell c = 0; c < how->n_cells; ++c) {
        const dsi_stage_of of = how->cells[c];
        const ds_cell_info *cell = &cells->items[c];
        const bool moves = cell->kind == DS_CELL_PARAM && !cell->frozen && of.first != 0;
        for (uint32_t to = of.first; moves && to < of.last; ++to) { /* the stage behind the first */
            if (dsi_stage_has(of, to)) {
                const dsi_stage_message message = {.cell = c,
                                                   .source = of.first - 1,
                                                   .target = to,
                                                   .phase = update,
                                                   .waiting = DS_NONE};
                DS_TRY(add_message(cells->ctx, messages, message));
            }
        }
    }
    return DS_OK;
}

/* Whether a cell is one of a message; *here_out: of one that this stage sends or receives. */
static bool carries(const dsi_stage_messages *messages, ds_cell cell, uint32_t stage,
                    bool *here_out)
{
    bool any = false;
    for (uint32_t i = 0; i < messages->n; ++i) {
        const dsi_stage_message *m = &messages->items[i];
        const bool waits = m->waiting == cell;
        any = any || waits || m->cell == cell;
        *here_out = *here_out || (waits && m->source == stage) ||
                    (m->cell == cell && (m->source == stage || m->target == stage));
    }
    return any;
}

void dsi_stage_empty_cells(ds_cells *local, const dsi_stage_cut *how,
                           const dsi_stage_messages *train, const dsi_stage_messages *eval)
{
    for (ds_cell c = 0; c < local->n; ++c) {
        bool here = false;
        const bool trains = carries(train, c, how->stage, &here);
        const bool carried = carries(eval, c, how->stage, &here) || trains;
        const bool has = c < how->n_cells ? dsi_stage_has(how->cells[c], how->stage)
                                          : here || !carried; /* or a part of a cell */
        if (!has) {
            local->items[c].meta.shape = ds_shape_1d(0);
        }
    }
}
