/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of offloaded cells: chunk by chunk, on parts of cells; and their states, of which
 * the first come before the backward phase begins.
 */
#include "pass/offload_state.h"

#include "op/ops.h"

#include <stdio.h>

enum { IN_PARAM = 0, IN_GRAD = 1, IN_HYPER = 2, IN_FACTOR = 3, IN_MASTER = 4 };

bool dsi_offload_is_update(const dsi_node_info *node)
{
    return node->op->role == DS_ROLE_POSTPONE || node->op->role == DS_ROLE_UPDATE;
}

bool dsi_offload_touches_swapped(const dsi_offloader *o, const dsi_node_info *node)
{
    bool any = false;
    for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
        any = any ||
              dsi_offload_swapped(o, dsi_offload_cell_of(o, o->r.from->operands[node->in_at + i]));
    }
    return any;
}

/* Elements that are updated together: all, unless every tensor but the gradient is a cell of its
 * own, elements do not depend on each other, and nobody else reads what is updated. */
int64_t dsi_offload_chunk_of(const dsi_offloader *o, const dsi_node_info *node, int64_t count)
{
    const ds_value *in = dsi_node_in(o->r.from, node);
    const int64_t step = DSI_SWAP_BLOCK; /* elements: whole blocks in every dtype */
    const int64_t chunk = (o->how->chunk + step - 1) / step * step;
    bool cut = o->how->chunk > 0 && chunk < count && (node->op->flags & DS_OP_INPLACE) != 0 &&
               ds_shape_count(o->r.from->values[in[IN_GRAD]].meta.shape) == count; /* no norms */
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const bool scalar = i == IN_HYPER || i == IN_FACTOR;
        cut = cut && (scalar || i == IN_GRAD || in[i] == DS_NONE ||
                      dsi_offload_cell_of(o, in[i]) != DS_NONE);
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        cut = cut && (v == DS_NONE || o->uses[v] == 0);
    }
    return cut ? chunk : count;
}

ds_status dsi_offload_part_of(dsi_offloader *o, ds_cell cell, int64_t begin, int64_t count,
                              ds_cell *part)
{
    char name[OFFLOAD_NAME_BYTES];
    ds_cell_info info = *ds_cells_get(o->cells, cell);
    *part = cell;
    if (count == ds_shape_count(info.meta.shape)) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "%s[%lld:%lld]", info.name, (long long)begin,
                   (long long)(begin + count));
    *part = ds_cells_find(o->cells, info.kind, name);
    if (*part != DS_NONE) {
        return DS_OK;
    }
    const size_t offset = (size_t)begin * ds_dtype_bytes(info.meta.dtype);
    info.name = name;
    info.meta.shape = ds_shape_1d(count);
    DS_TRY(ds_cells_add(o->cells, &info, part));
    return dsi_offload_add_residency(
        o, *part,
        (dsi_cell_residency){.where = dsi_residency_of(o->residencies, cell).where,
                             .parent = cell,
                             .offset = offset});
}

typedef struct update {
    const dsi_node_info *node;
    int64_t begin, count; /* of this chunk */
    bool whole;           /* it is all */
    ds_cell cells[DS_MAX_IN];
    ds_value in[DS_MAX_IN], out[DS_MAX_OUT];
} update;

ds_status dsi_offload_take_chunk(dsi_offloader *o, ds_value x, int64_t begin, int64_t count,
                                 ds_value *chunk_out)
{
    const int64_t all = ds_shape_count(ds_graph_meta(o->r.to, x).shape);
    const dsi_reshape_attrs flat = {.n_dims = 1, .dims = {all}};
    const dsi_slice_attrs part = {.dim = 0, .start = begin, .length = count};
    DS_TRY(dsi_offload_apply(o, &dsi_op_reshape, &flat, &x, 1, chunk_out));
    return dsi_offload_apply(o, &dsi_op_slice, &part, chunk_out, 1, chunk_out);
}

static ds_status update_operand(dsi_offloader *o, update *u, uint32_t i)
{
    const ds_value v = dsi_node_in(o->r.from, u->node)[i];
    u->cells[i] = DS_NONE;
    u->in[i] = DS_NONE;
    if (v == DS_NONE) {
        return DS_OK;
    }
    if (i == IN_GRAD && dsi_offload_cell_of(o, v) == DS_NONE && !u->whole) {
        return dsi_offload_take_chunk(o, o->r.map[v], u->begin, u->count, &u->in[i]);
    }
    if (dsi_offload_cell_of(o, v) == DS_NONE || i == IN_HYPER || i == IN_FACTOR) {
        u->in[i] = o->r.map[v];
        return DS_OK;
    }
    DS_TRY(dsi_offload_part_of(o, dsi_offload_cell_of(o, v), u->begin, u->count, &u->cells[i]));
    if (u->whole && dsi_offload_in_hand(o, v)) {
        u->in[i] = o->r.map[v];
        return DS_OK;
    }
    const bool rounded = i == IN_PARAM && dsi_offload_swapped(o, u->cells[i]) &&
                         u->node->n_in > IN_MASTER &&
                         dsi_node_in(o->r.from, u->node)[IN_MASTER] != DS_NONE;
    return rounded ? DS_OK : dsi_offload_content(o, u->cells[i], &u->in[i]);
}

/* Where output i goes when its cell does not live on the device. */
static ds_status update_result(dsi_offloader *o, update *u, uint32_t i)
{
    const uint32_t from = (uint32_t)u->node->op->writes[i];
    return u->out[i] != DS_NONE && dsi_offload_swapped(o, u->cells[from])
               ? dsi_offload_swap_out(o, u->cells[from], u->out[i])
               : DS_OK;
}

/* A swapped parameter with a master: the master is updated as an fp32 parameter, and what goes out
 * for the parameter is its rounding. */
static ds_status update_rounded(dsi_offloader *o, update *u)
{
    const dsi_node_info *node = u->node;
    const dsi_cast_attrs cast = {.dtype = ds_cells_get(o->cells, u->cells[IN_PARAM])->meta.dtype};
    ds_value narrow = DS_NONE;
    u->in[IN_PARAM] = u->in[IN_MASTER];
    u->in[IN_MASTER] = DS_NONE;
    DS_TRY(ds_graph_apply(o->r.to, node->op, node->attrs, u->in, node->n_in, u->out));
    DS_TRY(dsi_offload_apply(o, &dsi_op_cast, &cast, &u->out[0], 1, &narrow));
    DS_TRY(dsi_offload_swap_out(o, u->cells[IN_PARAM], narrow));
    u->out[1] = u->out[0];
    return DS_OK;
}

static ds_status lower_chunk(dsi_offloader *o, update *u)
{
    const dsi_node_info *node = u->node;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        DS_TRY(update_operand(o, u, i));
    }
    const bool rounded = u->in[IN_PARAM] == DS_NONE;
    if (rounded) {
        DS_TRY(update_rounded(o, u));
    } else {
        DS_TRY(ds_graph_apply(o->r.to, node->op, node->attrs, u->in, node->n_in, u->out));
    }
    for (uint32_t i = rounded ? 1 : 0; i < node->n_out; ++i) {
        DS_TRY(update_result(o, u, i));
    }
    for (uint32_t i = 0; i < node->n_out && u->whole; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        if (v != DS_NONE) {
            o->r.map[v] = u->out[i];
        }
    }
    return DS_OK;
}

static ds_status lower_on_device(dsi_offloader *o, const dsi_node_info *node)
{
    const ds_meta meta = o->r.from->values[dsi_node_in(o->r.from, node)[IN_PARAM]].meta;
    const int64_t count = ds_shape_count(meta.shape);
    const int64_t chunk = dsi_offload_chunk_of(o, node, count);
    for (int64_t begin = 0; begin < count; begin += chunk) {
        update u = {.node = node,
                    .begin = begin,
                    .count = count - begin < chunk ? count - begin : chunk,
                    .whole = chunk == count};
        DS_TRY(lower_chunk(o, &u));
    }
    return DS_OK;
}

ds_status dsi_offload_lower_update(dsi_offloader *o, const dsi_node_info *node)
{
    if (dsi_offload_was_speculated(o, node)) {
        return DS_OK;
    }
    DS_TRY(dsi_offload_on_host(o, node) ? dsi_offload_lower_on_host(o, node)
                                        : lower_on_device(o, node));
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        if (dsi_offload_cell_of(o, v) != DS_NONE) {
            o->resident[dsi_offload_cell_of(o, v)] = DS_NONE; /* of before */
        }
    }
    return DS_OK;
}

/* ---- states ahead of the backward phase ------------------------------------------------------ */

/* Fetches the states of elements [begin, begin + count) of an update, as long as there is room. */
static ds_status bring_chunk(dsi_offloader *o, const dsi_node_info *node, int64_t begin,
                             int64_t count, size_t *room)
{
    for (uint32_t i = IN_MASTER; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(o->r.from, node)[i];
        const ds_cell cell = dsi_offload_cell_of(o, v);
        if (!dsi_offload_swapped(o, cell) || o->r.from->values[v].producer != DS_NONE) {
            continue; /* or an earlier node writes it */
        }
        const size_t bytes =
            (size_t)count * ds_dtype_bytes(ds_cells_get(o->cells, cell)->meta.dtype);
        if (bytes > *room || o->n_ahead == OFFLOAD_MOST_AHEAD) {
            *room = 0;
            return DS_OK;
        }
        dsi_brought it = {DS_NONE, DS_NONE};
        DS_TRY(dsi_offload_part_of(o, cell, begin, count, &it.cell));
        DS_TRY(dsi_offload_content(o, it.cell, &it.value));
        o->ahead[o->n_ahead++] = it;
        *room -= bytes;
    }
    return DS_OK;
}

/* While computation makes no gradient the disk has nothing to do: the states that the first updates
 * of the backward phase ask for come before it begins. */
ds_status dsi_offload_bring_states(dsi_offloader *o)
{
    size_t room = o->how->forward_ahead;
    for (ds_node n = 0; n < o->r.from->n_nodes && room > 0; ++n) {
        const dsi_node_info *node = &o->r.from->nodes[n];
        if (o->r.from->phases.items[node->phase].like != DS_PHASE_BACKWARD ||
            node->op->role != DS_ROLE_UPDATE || !dsi_offload_touches_swapped(o, node) ||
            dsi_offload_on_host(o, node)) {
            continue;
        }
        const int64_t count =
            ds_shape_count(o->r.from->values[dsi_node_in(o->r.from, node)[IN_PARAM]].meta.shape);
        const int64_t chunk = dsi_offload_chunk_of(o, node, count);
        DS_TRY(ds_graph_set_scope(o->r.to, node->scope));
        for (int64_t begin = 0; begin < count && room > 0; begin += chunk) {
            const int64_t rest = count - begin;
            DS_TRY(bring_chunk(o, node, begin, rest < chunk ? rest : chunk, &room));
        }
    }
    return DS_OK;
}
