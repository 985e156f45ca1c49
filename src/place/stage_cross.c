/* SPDX-License-Identifier: Apache-2.0 */
/* What crosses from one rank of a pipeline to another: a cell and a message each, the same on all
 * ranks. Called by stage_cut.c. */
#include "place/stage_cut_impl.h"

#include <stdio.h>
#include <stdlib.h>

ds_status dsi_cut_add_message(ds_ctx *ctx, dsi_stage_messages *messages, dsi_stage_message message)
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
 * long behind: a gradient that passes stages over (tied weights); and what goes ahead where a
 * rank's second chunk is on the way back, for there the last rank begins half as often as the
 * first. */
static uint32_t buffers_of(const dsi_cutter *c, ds_phase phase, uint32_t from, uint32_t to)
{
    const uint32_t far = from > to ? from - to : 0;
    if (phase == DS_PHASE_FORWARD && c->how->parts.folded) {
        return c->how->n_micro > 1 ? 2 : 1;
    }
    const uint32_t most = c->more > 0 && far > 1 ? c->how->slots[dsi_cut_rank_of(c, to)] : far;
    return phase != DS_PHASE_BACKWARD || far < 2 ? 1
           : most < c->how->n_micro              ? most
                                                 : c->how->n_micro;
}

/* Room for them, where it is more than the cell itself. */
static ds_status add_room(dsi_cutter *c, dsi_stage_message *m, uint32_t most)
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
static void find_reads(const dsi_cutter *c, ds_value v, uint64_t stages, ds_phase *first,
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
            const ds_phase phase =
                (on & dsi_stage_bit(stage)) != 0 ? dsi_cut_phase_on(c, n, stage) : DS_NONE;
            if (phase != DS_NONE) {
                *first = phase < *first ? phase : *first;
                *last = phase > *last ? phase : *last;
            }
        }
    }
}

/* The gradient of tied weights, which is large: of the last stage, read once by the first, which is
 * many backward phases behind. It goes past other messages, so that the first stage receives it
 * when it reads it. */
static bool overtaken(const dsi_cutter *c, const dsi_node_info *node, ds_value v)
{
    const uint32_t last = dsi_cut_ranks(c) * c->how->parts.n_chunks;
    const uint64_t others = c->need[v] & ~dsi_cut_beside(c, node->stage - 1);
    ds_phase first_read = DS_NONE;
    ds_phase last_read = 0;
    if (c->more == 0 || node->phase != DS_PHASE_BACKWARD || node->stage != last ||
        others != dsi_stage_bit(0) || (last == 2 && !c->how->parts.split)) {
        return false;
    }
    find_reads(c, v, others, &first_read, &last_read);
    return first_read == last_read;
}

/* Whether what a node sends is there until the target is done with the micro-batch, once for each
 * slot. */
static bool keeps(const dsi_cutter *c, const dsi_node_info *node, ds_value v)
{
    return c->how->n_micro > 0 && !overtaken(c, node, v) &&
           (node->phase == DS_PHASE_FORWARD || c->more > 0);
}

/* The messages of a value to one rank. */
static ds_status send_to(dsi_cutter *c, const dsi_node_info *node, ds_value v, ds_cell cell,
                         uint64_t stages)
{
    const ds_graph *g = c->r.from;
    const uint32_t source = node->stage - 1;
    const bool kept = keeps(c, node, v);
    uint32_t near = DS_NONE; /* of those that read it: the next */
    for (uint32_t to = 0; stages >> to != 0; ++to) {
        if ((stages & dsi_stage_bit(to)) != 0) {
            DS_TRY(check_way(g, node, v, source, to));
            near = near == DS_NONE || node->phase == DS_PHASE_BACKWARD ? to : near;
        }
    }
    dsi_stage_message message = {.cell = cell,
                                 .source = dsi_cut_rank_of(c, source),
                                 .target = dsi_cut_rank_of(c, near),
                                 .phase = dsi_cut_phase_on(c, g->values[v].producer, source),
                                 .places = kept ? 0 : 1,
                                 .channel = c->how->n_micro > 0 && overtaken(c, node, v),
                                 .waiting = DS_NONE};
    find_reads(c, v, stages, &message.first, &message.last);
    if (kept) { /* its slot is free when the micro-batch is done */
        const uint32_t chunk = dsi_part_chunk(&c->how->parts, message.first);
        const ds_phase end = dsi_part_end(&c->how->parts, chunk);
        message.last = end > message.last ? end : message.last;
    }
    DS_TRY(add_room(c, &message, buffers_of(c, node->phase, source, near)));
    return dsi_cut_add_message(g->ctx, c->messages, message);
}

/* A value that other ranks read: its cell, its messages. What stages of its own rank read is none
 * of them. */
static ds_status cross(dsi_cutter *c, const dsi_node_info *node, ds_value v)
{
    const ds_graph *g = c->r.from;
    const uint64_t own = dsi_cut_beside(c, node->stage - 1);
    const uint64_t others = c->need[v] & ~own;
    char name[64];
    ds_cell cell = DS_NONE;
    for (uint32_t to = 0; (c->need[v] & own) >> to != 0; ++to) {
        if ((c->need[v] & own & dsi_stage_bit(to)) != 0 && to != node->stage - 1 &&
            node->phase < c->n_micro) {
            DS_TRY(check_way(g, node, v, node->stage - 1, to));
        }
    }
    if (others == 0) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "pipe/%s/%u", c->how->name, c->n_sent++);
    const bool kept = keeps(c, node, v) && (others & c->mine) != 0;
    const ds_cell_kind kind = kept ? DS_CELL_INPUT : DS_CELL_OUTPUT;
    const ds_cell_info info = {
        .name = name, .kind = kind, .meta = g->values[v].meta, .of = DS_NONE};
    DS_TRY(ds_cells_add(c->local, &info, &cell));
    if (node->phase >= c->n_micro) {
        uint32_t to = 0;
        while ((others & dsi_stage_bit(to)) == 0) {
            ++to;
        }
        return check_way(g, node, v, node->stage - 1, to);
    }
    for (uint32_t rank = 0; rank < dsi_cut_ranks(c); ++rank) {
        if ((others & dsi_cut_on(c, rank)) != 0) {
            DS_TRY(send_to(c, node, v, cell, others & dsi_cut_on(c, rank)));
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

ds_status dsi_cut_find_crossings(dsi_cutter *c)
{
    const ds_graph *g = c->r.from;
    for (ds_value v = 0; v < g->n_values; ++v) {
        c->stored[v] = DS_NONE;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        for (uint32_t o = 0; node->stage != 0 && o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            if (v != DS_NONE && (c->need[v] & ~dsi_stage_bit(node->stage - 1)) != 0) {
                DS_TRY(cross(c, node, v));
            }
        }
    }
    return DS_OK;
}
