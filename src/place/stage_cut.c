/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of one rank of a pipeline. See stage_cut.h.
 *
 * Backwards over the nodes: which stages read each value, and what of the backward phase others
 * wait for. Then what crosses: a cell and a message each, the same on all ranks. Then, phase by
 * phase, what this rank runs of its stages, with a store behind what others read, and reads in
 * place of what others make.
 */
#include "place/stage_cut_impl.h"

#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>

/* Folds what each stage has folded: all stages have the result. */
static bool folds_stages(const ds_graph *g, const dsi_node_info *node)
{
    bool any = false;
    if (node->stage != 0 || (node->op != &dsi_op_max_of && node->op != &dsi_op_sum_parts)) {
        return false;
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        any = any || dsi_cut_stage_of(g, dsi_node_in(g, node)[i]) != 0;
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

static void find_readers(dsi_cutter *c)
{
    const ds_graph *g = c->r.from;
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        c->need[v] |= dsi_cut_stage_of(g, v) == 0 ? c->all : 0;
    }
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const dsi_node_info *node = &g->nodes[n];
        const bool folds = folds_stages(g, node);
        uint64_t runs = node->stage != 0 ? dsi_stage_bit(node->stage - 1) : 0;
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

/* What of the backward phase leads to what other stages read. The rest makes gradients of weights
 * alone. waits: per value. */
static void find_awaited(dsi_cutter *c, bool *waits)
{
    const ds_graph *g = c->r.from;
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const dsi_node_info *node = &g->nodes[n];
        const uint64_t here = node->stage != 0 ? dsi_stage_bit(node->stage - 1) : ~(uint64_t)0;
        for (uint32_t o = 0; node->phase == DS_PHASE_BACKWARD && o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            c->awaited[n] =
                c->awaited[n] || (v != DS_NONE && (waits[v] || (c->need[v] & ~here) != 0));
        }
        for (uint32_t i = 0; c->awaited[n] && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                waits[v] = true;
            }
        }
    }
}

ds_phase dsi_cut_phase_on(const dsi_cutter *c, ds_node n, uint32_t stage)
{
    const dsi_stage_parts *parts = &c->how->parts;
    const uint32_t chunk = stage / dsi_cut_ranks(c);
    if (c->r.from->nodes[n].phase == DS_PHASE_FORWARD) {
        return dsi_part_forward(parts, chunk);
    }
    return dsi_part_backward(parts, chunk) + (parts->split && !c->awaited[n] ? 1 : 0);
}

/* The first phase of this rank in which it runs a node; DS_NONE: behind the micro-batches, or
 * never.
 */
static ds_phase phase_here(const dsi_cutter *c, ds_node n)
{
    ds_phase least = DS_NONE;
    const uint64_t here = c->runs[n] & c->mine;
    for (uint32_t stage = 0; here >> stage != 0 && c->r.from->nodes[n].phase < c->n_micro;
         ++stage) {
        if ((here & dsi_stage_bit(stage)) != 0 && dsi_cut_phase_on(c, n, stage) < least) {
            least = dsi_cut_phase_on(c, n, stage);
        }
    }
    return least;
}

/* What of a phase is read behind it, on this rank, in whatever view. */
static void find_late(dsi_cutter *c)
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
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            const ds_value root = v != DS_NONE ? c->root[v] : DS_NONE;
            const ds_node maker = root != DS_NONE ? g->values[root].producer : DS_NONE;
            const ds_phase made = maker != DS_NONE ? phase_here(c, maker) : DS_NONE;
            /* without parts: any reader of another phase, on whatever stage */
            const bool other = c->more > 0 ? (c->runs[n] & c->mine) != 0 && phase_here(c, n) != made
                                           : node->phase != DS_PHASE_FORWARD;
            if (root != DS_NONE && other && (c->more == 0 || made != DS_NONE)) {
                c->late[root] = true;
            }
        }
    }
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* This rank's part: one of its stages, or all folded. */
static ds_status fold_own(dsi_cutter *c, const dsi_node_info *node, ds_value *own_out)
{
    const ds_graph *g = c->r.from;
    ds_value own[DSI_STAGES_MOST];
    ds_value out[DS_MAX_OUT];
    uint32_t n = 0;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        if (dsi_cut_stage_of(g, v) != 0 &&
            (c->mine & dsi_stage_bit(dsi_cut_stage_of(g, v) - 1)) != 0) {
            own[n++] = c->r.map[v];
        }
    }
    if (n != c->how->parts.n_chunks || node->n_in != n * dsi_cut_ranks(c)) {
        return ds_fail(g->ctx, DS_ERR_INTERNAL, "%s folds %u stages", node->scope, node->n_in);
    }
    *own_out = own[0];
    if (n > 1) {
        DS_TRY(ds_graph_apply(c->r.to, node->op, node->attrs, own, n, out));
        *own_out = out[0];
    }
    return DS_OK;
}

static ds_status stand_at(dsi_cutter *c, const dsi_node_info *node, ds_phase phase)
{
    DS_TRY(dsi_rewrite_stand_at(&c->r, node));
    ds_graph_set_phase(c->r.to, phase);
    return DS_OK;
}

/* This rank's part, gathered with those of the others, in their order. */
static ds_status fold(dsi_cutter *c, const dsi_node_info *node)
{
    const dsi_mesh *mesh = c->how->mesh;
    const bool is_max = node->op == &dsi_op_max_of;
    const dsi_axes pp = dsi_axes_of(1u << DSI_AXIS_PP);
    ds_value own = DS_NONE;
    ds_value out[DS_MAX_OUT];
    DS_TRY(stand_at(c, node, node->phase + c->more));
    DS_TRY(fold_own(c, node, &own));
    const int64_t count = ds_shape_count(ds_graph_meta(c->r.to, own).shape);
    dsi_comm_attrs attrs = {.n_ranks = mesh->size[DSI_AXIS_PP],
                            .axes = dsi_axes_code(mesh, &pp),
                            .stride = mesh->n_ranks / mesh->size[DSI_AXIS_PP],
                            .bucket = -1,
                            .factor = 1.0,
                            .n_dims = is_max ? 1 : 2,
                            .dims = {mesh->size[DSI_AXIS_PP], is_max ? 0 : count}};
    DS_TRY(ds_graph_apply(c->r.to, &dsi_op_all_gather, &attrs, &own, 1, out));
    own = out[0];
    DS_TRY(
        ds_graph_apply(c->r.to, is_max ? &dsi_op_abs_max : &dsi_op_sum_parts, NULL, &own, 1, out));
    dsi_rewrite_made(&c->r, node, out);
    return DS_OK;
}

/* A parameter that the rank does not have cannot be read. */
static ds_status check_cells(const dsi_cutter *c, const dsi_node_info *node)
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

static ds_status copy_at(dsi_cutter *c, const dsi_node_info *node, ds_phase phase)
{
    dsi_node_info there = *node;
    there.phase = phase;
    return dsi_rewrite_copy(&c->r, &there);
}

/* The same node. What a collective sends lies where peers can read it, which is there once; what a
 * later phase of the micro-batch reads, once for each one in flight: a copy is sent. */
static ds_status copy_sent(dsi_cutter *c, const dsi_node_info *node, ds_phase phase)
{
    const ds_graph *g = c->r.from;
    const bool sends = node->op->op_class == DS_CLASS_COMM;
    const ds_value v = sends ? dsi_node_in(g, node)[node->n_in - 1] : DS_NONE;
    const ds_node maker = v != DS_NONE ? g->values[c->root[v]].producer : DS_NONE;
    const ds_phase made = maker != DS_NONE ? g->nodes[maker].phase : DS_NONE;
    const bool of_micro = c->more > 0 ? made < c->n_micro : made == DS_PHASE_FORWARD;
    if (!of_micro || c->how->n_micro < 2 || !c->late[c->root[v]]) {
        return copy_at(c, node, phase);
    }
    const ds_meta meta = g->values[v].meta;
    const dsi_cast_attrs same = {.dtype = meta.dtype};          /* of floats */
    const dsi_slice_attrs all = {.length = meta.shape.dims[0]}; /* of what has dims */
    const bool scalar = meta.shape.n_dims == 0;
    const ds_value kept = c->r.map[v];
    ds_value out[DS_MAX_OUT];
    DS_TRY(stand_at(c, node, phase));
    DS_TRY(ds_graph_apply(c->r.to, scalar ? &dsi_op_cast : &dsi_op_slice,
                          scalar ? (const void *)&same : &all, &kept, 1, out));
    c->r.map[v] = out[0];
    const ds_status status = copy_at(c, node, phase);
    c->r.map[v] = kept;
    return status;
}

/* The same node. Buckets are numbered anew: there are fewer, as there are fewer nodes, and those of
 * two parts of a phase are two. */
static ds_status copy_node(dsi_cutter *c, const dsi_node_info *node, ds_phase phase)
{
    const bool comm = (node->op->flags & DS_OP_COMM) != 0;
    const int64_t bucket = comm ? ((const dsi_comm_attrs *)node->attrs)->bucket : -1;
    if (bucket < 0 || bucket >= (int64_t)c->r.from->n_nodes) {
        return copy_sent(c, node, phase);
    }
    uint32_t *number = &c->bucket[(size_t)bucket * DS_MAX_PHASES + phase];
    if (*number == 0) {
        *number = ++c->n_buckets;
    }
    dsi_comm_attrs attrs = *(const dsi_comm_attrs *)node->attrs;
    dsi_node_info numbered = *node;
    attrs.bucket = *number - 1;
    numbered.attrs = &attrs;
    return copy_sent(c, &numbered, phase);
}

/* What other ranks read of it. */
static ds_status store_sent(dsi_cutter *c, const dsi_node_info *node)
{
    for (uint32_t o = 0; node->stage != 0 && o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(c->r.from, node)[o];
        if (v != DS_NONE && c->stored[v] != DS_NONE) {
            ds_value in[2] = {DS_NONE, c->r.map[v]};
            ds_value out[DS_MAX_OUT];
            DS_TRY(ds_graph_read(c->r.to, c->stored[v], &in[0]));
            DS_TRY(ds_graph_apply(c->r.to, &dsi_op_store, NULL, in, 2, out));
        }
    }
    return DS_OK;
}

static ds_status take_node(dsi_cutter *c, const dsi_node_info *node, ds_phase phase)
{
    DS_TRY(check_cells(c, node));
    DS_TRY(copy_node(c, node, phase));
    return store_sent(c, node);
}

/* The phases of a micro-batch, each with what this rank's stage of it runs there. */
static ds_status cut_micro(dsi_cutter *c)
{
    const ds_graph *g = c->r.from;
    const uint32_t n_phases = dsi_parts_phases(&c->how->parts);
    for (ds_phase phase = 0; phase < n_phases; ++phase) {
        const uint32_t stage = dsi_part_stage(&c->how->parts, dsi_cut_ranks(c), c->how->stage,
                                              dsi_part_chunk(&c->how->parts, phase));
        for (ds_node n = 0; n < g->n_nodes; ++n) {
            if (g->nodes[n].phase < c->n_micro && (c->runs[n] & dsi_stage_bit(stage)) != 0 &&
                dsi_cut_phase_on(c, n, stage) == phase) {
                DS_TRY(take_node(c, &g->nodes[n], phase));
            }
        }
    }
    return DS_OK;
}

static ds_status cut_rest(dsi_cutter *c)
{
    const ds_graph *g = c->r.from;
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        if (node->phase >= c->n_micro && folds_stages(g, node)) {
            DS_TRY(fold(c, node));
        } else if (node->phase >= c->n_micro && (c->runs[n] & c->mine) != 0) {
            DS_TRY(take_node(c, node, node->phase + c->more));
        }
    }
    return DS_OK;
}

static ds_status cut(dsi_cutter *c)
{
    const ds_graph *g = c->r.from;
    const dsi_stage_parts *parts = &c->how->parts;
    c->n_micro = dsi_phases_micro(&g->phases);
    c->more = dsi_parts_phases(parts) - c->n_micro;
    if (c->more > 0) {
        DS_TRY(dsi_phases_part(g->ctx, c->r.to->arena, &c->r.to->phases, parts->n_chunks,
                               parts->split));
    }
    bool *waits = calloc((size_t)g->n_values + 1, sizeof *waits);
    if (waits == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to cut the graph into stages");
    }
    find_readers(c);
    find_awaited(c, waits);
    free(waits);
    find_late(c);
    DS_TRY(dsi_cut_find_crossings(c));
    DS_TRY(cut_micro(c));
    return cut_rest(c);
}

ds_status dsi_stage_cut_graph(const ds_graph *graph, const dsi_stage_cut *how, ds_cells *local,
                              dsi_stage_messages *messages, ds_graph **cut_out)
{
    dsi_cutter c = {.how = how, .local = local, .messages = messages};
    c.r.from = graph;
    c.all = dsi_stage_bit(dsi_cut_ranks(&c)) - 1;
    c.mine = dsi_cut_on(&c, how->stage);
    c.need = calloc((size_t)graph->n_values + 1, sizeof *c.need);
    c.runs = calloc((size_t)graph->n_nodes + 1, sizeof *c.runs);
    c.awaited = calloc((size_t)graph->n_nodes + 1, sizeof *c.awaited);
    c.root = calloc((size_t)graph->n_values + 1, sizeof *c.root);
    c.late = calloc((size_t)graph->n_values + 1, sizeof *c.late);
    c.stored = calloc((size_t)graph->n_values + 1, sizeof *c.stored);
    c.bucket = calloc(((size_t)graph->n_nodes + 1) * DS_MAX_PHASES, sizeof *c.bucket);
    ds_status status = dsi_rewrite_begin(&c.r, graph, local);
    c.r.partial = true;
    if (c.need == NULL || c.runs == NULL || c.awaited == NULL || c.root == NULL || c.late == NULL ||
        c.stored == NULL || c.bucket == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to cut the graph into stages");
    }
    status = status >= 0 ? cut(&c) : status;
    free(c.need);
    free(c.runs);
    free(c.awaited);
    free(c.root);
    free(c.late);
    free(c.stored);
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
        for (uint32_t to = 0; moves && to < how->mesh->size[DSI_AXIS_PP]; ++to) {
            if (to != of.first - 1 && dsi_stage_has(of, to)) {
                const dsi_stage_message message = {.cell = c,
                                                   .source = of.first - 1,
                                                   .target = to,
                                                   .phase = update,
                                                   .first = update,
                                                   .last = update,
                                                   .waiting = DS_NONE};
                DS_TRY(dsi_cut_add_message(cells->ctx, messages, message));
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
