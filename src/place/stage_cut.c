/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of one rank of a pipeline. See stage_cut.h.
 *
 * Backwards over the nodes: which stages read each value, and what of the backward phase others
 * wait for. Then what crosses: a cell and a message each, the same on all ranks. Then, phase by
 * phase, what this rank runs of its stages, with a store behind what others read, and reads in
 * place of what others make.
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
    uint64_t all;     /* a bit a stage, from 0: the first chunk of each rank */
    uint64_t mine;    /* the stages of this rank */
    uint64_t *need;   /* per value: stages that read it */
    uint64_t *runs;   /* per node: stages that run it */
    bool *awaited;    /* per node of the backward phase: another stage waits for what it makes */
    ds_value *root;   /* per value: what it is a view of, or itself */
    bool *late;       /* per root: a later phase of this rank reads it */
    ds_cell *stored;  /* per value: the cell that carries it from this rank; DS_NONE: none */
    uint32_t *bucket; /* per bucket of from and part of a phase: its number here, from 1; 0: none */
    uint32_t n_buckets;
    uint32_t n_sent;
    uint32_t n_micro; /* phases of a micro-batch that from has */
    uint32_t more;    /* phases of a micro-batch that are added */
} cutter;

static uint64_t bit(uint32_t stage)
{
    return (uint64_t)1 << stage;
}

static uint32_t n_ranks_of(const cutter *c)
{
    return c->how->mesh->size[DSI_AXIS_PP];
}

/* Of a value: the stage of the node that makes it, from 1. */
static uint32_t stage_of(const ds_graph *g, ds_value v)
{
    const ds_node maker = v != DS_NONE ? g->values[v].producer : DS_NONE;
    return maker != DS_NONE ? g->nodes[maker].stage : 0;
}

/* The stages that run on the rank of a stage. */
static uint64_t beside(const cutter *c, uint32_t stage)
{
    uint64_t stages = 0;
    for (uint32_t chunk = 0; chunk < c->how->parts.n_chunks; ++chunk) {
        stages |= bit(chunk * n_ranks_of(c) + stage % n_ranks_of(c));
    }
    return stages;
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

/* What of the backward phase leads to what other stages read. The rest makes gradients of weights
 * alone. waits: per value. */
static void find_awaited(cutter *c, bool *waits)
{
    const ds_graph *g = c->r.from;
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const dsi_node_info *node = &g->nodes[n];
        const uint64_t here = node->stage != 0 ? bit(node->stage - 1) : ~(uint64_t)0;
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

/* Of a node of a micro-batch, on one of its stages: the phase of a rank that runs it. */
static ds_phase phase_on(const cutter *c, ds_node n, uint32_t stage)
{
    const dsi_stage_parts *parts = &c->how->parts;
    const uint32_t chunk = stage / n_ranks_of(c);
    if (c->r.from->nodes[n].phase == DS_PHASE_FORWARD) {
        return dsi_part_forward(parts, chunk);
    }
    return dsi_part_backward(parts, chunk) + (parts->split && !c->awaited[n] ? 1 : 0);
}

/* The first phase of this rank in which it runs a node; DS_NONE: behind the micro-batches, or
 * never.
 */
static ds_phase phase_here(const cutter *c, ds_node n)
{
    ds_phase least = DS_NONE;
    const uint64_t here = c->runs[n] & c->mine;
    for (uint32_t stage = 0; here >> stage != 0 && c->r.from->nodes[n].phase < c->n_micro;
         ++stage) {
        if ((here & bit(stage)) != 0 && phase_on(c, n, stage) < least) {
            least = phase_on(c, n, stage);
        }
    }
    return least;
}

/* What of a phase is read behind it, on this rank, in whatever view. */
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

/* How many of a message may be on their way without its source waiting for a target that reads it
 * long behind: a gradient that passes stages over (tied weights). */
static uint32_t buffers_of(const cutter *c, ds_phase phase, uint32_t from, uint32_t to)
{
    const uint32_t far = from > to ? from - to : 0;
    const uint32_t most = c->more > 0 && far > 1 ? c->how->slots[to % n_ranks_of(c)] : far;
    return phase != DS_PHASE_BACKWARD || far < 2 ? 1
           : most < c->how->n_micro              ? most
                                                 : c->how->n_micro;
}

/* Room for them, where it is more than the cell itself. */
static ds_status add_room(cutter *c, dsi_stage_message *m, uint32_t most)
{
    const ds_cell_info *carried = ds_cells_get(c->local, m->cell);
    const ds_meta meta = carried->meta;
    char name[96];
    if (most < 2) {
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

/* The phases of a rank that read a value. */
static void find_reads(const cutter *c, ds_value v, uint64_t stages, ds_phase *first,
                       ds_phase *last)
{
    const ds_graph *g = c->r.from;
    *first = DS_NONE;
    *last = 0;
    for (ds_node n = g->values[v].producer; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        bool reads = false;
        for (uint32_t i = 0; node->phase < c->n_micro && i < node->n_in; ++i) {
            reads = reads || dsi_node_in(g, node)[i] == v;
        }
        const uint64_t on = reads ? c->runs[n] & stages : 0;
        for (uint32_t stage = 0; on >> stage != 0; ++stage) {
            const ds_phase phase = (on & bit(stage)) != 0 ? phase_on(c, n, stage) : DS_NONE;
            if (phase != DS_NONE) {
                *first = phase < *first ? phase : *first;
                *last = phase > *last ? phase : *last;
            }
        }
    }
}

/* Whether what a node sends is there until the target is done with the micro-batch, once for each
 * slot. */
static bool keeps(const cutter *c, const dsi_node_info *node)
{
    return c->how->n_micro > 0 && (node->phase == DS_PHASE_FORWARD || c->more > 0);
}

/* The messages of a value to one rank. */
static ds_status send_to(cutter *c, const dsi_node_info *node, ds_value v, ds_cell cell,
                         uint64_t stages)
{
    const ds_graph *g = c->r.from;
    const uint32_t source = node->stage - 1;
    const bool kept = keeps(c, node);
    uint32_t near = DS_NONE; /* of those that read it: the next */
    for (uint32_t to = 0; stages >> to != 0; ++to) {
        if ((stages & bit(to)) != 0) {
            DS_TRY(check_way(g, node, v, source, to));
            near = near == DS_NONE || node->phase == DS_PHASE_BACKWARD ? to : near;
        }
    }
    dsi_stage_message message = {.cell = cell,
                                 .source = source % n_ranks_of(c),
                                 .target = near % n_ranks_of(c),
                                 .phase = phase_on(c, g->values[v].producer, source),
                                 .places = kept ? 0 : 1,
                                 .waiting = DS_NONE};
    find_reads(c, v, stages, &message.first, &message.last);
    if (kept) { /* its slot is free when the micro-batch is done */
        const uint32_t chunk = dsi_part_chunk(&c->how->parts, message.first);
        const ds_phase end = dsi_part_backward(&c->how->parts, chunk) + c->how->parts.split;
        message.last = end > message.last ? end : message.last;
    }
    DS_TRY(add_room(c, &message, buffers_of(c, node->phase, source, near)));
    return add_message(g->ctx, c->messages, message);
}

/* A value that other ranks read: its cell, its messages. What stages of its own rank read is none
 * of them. */
static ds_status cross(cutter *c, const dsi_node_info *node, ds_value v)
{
    const ds_graph *g = c->r.from;
    const uint64_t own = beside(c, node->stage - 1);
    const uint64_t others = c->need[v] & ~own;
    char name[64];
    ds_cell cell = DS_NONE;
    for (uint32_t to = 0; (c->need[v] & own) >> to != 0; ++to) {
        if ((c->need[v] & own & bit(to)) != 0 && to != node->stage - 1 &&
            node->phase < c->n_micro) {
            DS_TRY(check_way(g, node, v, node->stage - 1, to));
        }
    }
    if (others == 0) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "pipe/%s/%u", c->how->name, c->n_sent++);
    const bool kept = keeps(c, node) && (others & c->mine) != 0;
    const ds_cell_kind kind = kept ? DS_CELL_INPUT : DS_CELL_OUTPUT;
    const ds_cell_info info = {
        .name = name, .kind = kind, .meta = g->values[v].meta, .of = DS_NONE};
    DS_TRY(ds_cells_add(c->local, &info, &cell));
    if (node->phase >= c->n_micro) {
        uint32_t to = 0;
        while ((others & bit(to)) == 0) {
            ++to;
        }
        return check_way(g, node, v, node->stage - 1, to);
    }
    for (uint32_t rank = 0; rank < n_ranks_of(c); ++rank) {
        if ((others & beside(c, rank)) != 0) {
            DS_TRY(send_to(c, node, v, cell, others & beside(c, rank)));
        }
    }
    if ((others & c->mine) != 0) {
        return ds_graph_read(c->r.to, cell, &c->r.map[v]);
    }
    if ((own & c->mine) != 0) {
        c->stored[v] = cell;
    }
    return DS_OK;
}

static ds_status find_crossings(cutter *c)
{
    const ds_graph *g = c->r.from;
    for (ds_value v = 0; v < g->n_values; ++v) {
        c->stored[v] = DS_NONE;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        for (uint32_t o = 0; node->stage != 0 && o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            if (v != DS_NONE && (c->need[v] & ~bit(node->stage - 1)) != 0) {
                DS_TRY(cross(c, node, v));
            }
        }
    }
    return DS_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* This rank's part: one of its stages, or all folded. */
static ds_status fold_own(cutter *c, const dsi_node_info *node, ds_value *own_out)
{
    const ds_graph *g = c->r.from;
    ds_value own[DSI_STAGES_MOST];
    ds_value out[DS_MAX_OUT];
    uint32_t n = 0;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        if (stage_of(g, v) != 0 && (c->mine & bit(stage_of(g, v) - 1)) != 0) {
            own[n++] = c->r.map[v];
        }
    }
    if (n != c->how->parts.n_chunks || node->n_in != n * n_ranks_of(c)) {
        return ds_fail(g->ctx, DS_ERR_INTERNAL, "%s folds %u stages", node->scope, node->n_in);
    }
    *own_out = own[0];
    if (n > 1) {
        DS_TRY(ds_graph_apply(c->r.to, node->op, node->attrs, own, n, out));
        *own_out = out[0];
    }
    return DS_OK;
}

static ds_status stand_at(cutter *c, const dsi_node_info *node, ds_phase phase)
{
    DS_TRY(dsi_rewrite_stand_at(&c->r, node));
    ds_graph_set_phase(c->r.to, phase);
    return DS_OK;
}

/* This rank's part, gathered with those of the others, in their order. */
static ds_status fold(cutter *c, const dsi_node_info *node)
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

static ds_status copy_at(cutter *c, const dsi_node_info *node, ds_phase phase)
{
    dsi_node_info there = *node;
    there.phase = phase;
    return dsi_rewrite_copy(&c->r, &there);
}

/* The same node. What a collective sends lies where peers can read it, which is there once; what a
 * later phase of the micro-batch reads, once for each one in flight: a copy is sent. */
static ds_status copy_sent(cutter *c, const dsi_node_info *node, ds_phase phase)
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
static ds_status copy_node(cutter *c, const dsi_node_info *node, ds_phase phase)
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
static ds_status store_sent(cutter *c, const dsi_node_info *node)
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

static ds_status take_node(cutter *c, const dsi_node_info *node, ds_phase phase)
{
    DS_TRY(check_cells(c, node));
    DS_TRY(copy_node(c, node, phase));
    return store_sent(c, node);
}

/* The phases of a micro-batch, each with what this rank's stage of it runs there. */
static ds_status cut_micro(cutter *c)
{
    const ds_graph *g = c->r.from;
    const uint32_t n_phases = dsi_parts_phases(&c->how->parts);
    for (ds_phase phase = 0; phase < n_phases; ++phase) {
        const uint32_t stage =
            dsi_part_chunk(&c->how->parts, phase) * n_ranks_of(c) + c->how->stage;
        for (ds_node n = 0; n < g->n_nodes; ++n) {
            if (g->nodes[n].phase < c->n_micro && (c->runs[n] & bit(stage)) != 0 &&
                phase_on(c, n, stage) == phase) {
                DS_TRY(take_node(c, &g->nodes[n], phase));
            }
        }
    }
    return DS_OK;
}

static ds_status cut_rest(cutter *c)
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

static ds_status cut(cutter *c)
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
    DS_TRY(find_crossings(c));
    DS_TRY(cut_micro(c));
    return cut_rest(c);
}

ds_status dsi_stage_cut_graph(const ds_graph *graph, const dsi_stage_cut *how, ds_cells *local,
                              dsi_stage_messages *messages, ds_graph **cut_out)
{
    cutter c = {.how = how, .local = local, .messages = messages};
    c.r.from = graph;
    c.all = bit(n_ranks_of(&c)) - 1;
    c.mine = beside(&c, how->stage);
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
