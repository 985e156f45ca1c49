/* SPDX-License-Identifier: Apache-2.0 */
/* What a cell holds, as a value of the new graph: swapped into memory for its uses, kept there for
 * near ones, and swapped out; and the residencies of cells.
 */
#include "pass/offload_state.h"

#include "op/ops.h"

dsi_cell_residency dsi_residency_of(const dsi_residencies *residencies, ds_cell cell)
{
    const dsi_cell_residency device = {.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE};
    return cell < residencies->n ? residencies->items[cell] : device;
}

bool dsi_offload_swapped(const dsi_offloader *o, ds_cell cell)
{
    return cell != DS_NONE && dsi_residency_of(o->residencies, cell).where != DSI_RESIDENCY_DEVICE;
}

ds_cell dsi_offload_cell_of(const dsi_offloader *o, ds_value v)
{
    return v == DS_NONE ? DS_NONE : o->r.from->values[v].cell;
}

static int64_t count_of(const dsi_offloader *o, ds_cell cell)
{
    return ds_shape_count(ds_cells_get(o->cells, cell)->meta.shape);
}

ds_status dsi_offload_add_residency(dsi_offloader *o, ds_cell cell, dsi_cell_residency residency)
{
    dsi_cell_residency *items =
        dsi_graph_grow(o->residencies->items, &o->residencies->capacity, cell + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(o->r.from->ctx, DS_ERR_NOMEM, "no memory to offload");
    }
    o->residencies->items = items;
    while (o->residencies->n <= cell) {
        items[o->residencies->n++] =
            (dsi_cell_residency){.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE};
    }
    items[cell] = residency;
    return DS_OK;
}

ds_status dsi_offload_apply(dsi_offloader *o, const ds_op *op, const void *attrs,
                            const ds_value *in, uint32_t n_in, ds_value *value_out)
{
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(o->r.to, op, attrs, in, n_in, out));
    *value_out = out[0];
    return DS_OK;
}

ds_status dsi_offload_content(dsi_offloader *o, ds_cell cell, ds_value *value_out)
{
    ds_value value = DS_NONE;
    for (uint32_t i = 0; i < o->n_ahead; ++i) {
        if (o->ahead[i].cell == cell) {
            *value_out = o->ahead[i].value;
            return DS_OK;
        }
    }
    DS_TRY(ds_graph_read(o->r.to, cell, &value));
    if (dsi_offload_swapped(o, cell)) {
        DS_TRY(dsi_offload_apply(o, &dsi_op_swap_in, NULL, &value, 1, &value));
    }
    *value_out = value;
    return DS_OK;
}

ds_status dsi_offload_swap_out(dsi_offloader *o, ds_cell cell, ds_value x)
{
    ds_value in[2] = {DS_NONE, x};
    DS_TRY(ds_graph_read(o->r.to, cell, &in[0]));
    return dsi_offload_apply(o, &dsi_op_swap_out, NULL, in, 2, &in[0]);
}

bool dsi_offload_stays(const dsi_offloader *o, ds_cell cell)
{
    return ds_cells_get(o->cells, cell)->kind == DS_CELL_KV;
}

/* A swapped cell as an operand: still in memory when its last use is near, else swapped in. */
static ds_status use(dsi_offloader *o, ds_cell cell, ds_value *value_out)
{
    const int64_t count = count_of(o, cell);
    const int64_t distance = o->used - o->used_at[cell];
    if (o->resident[cell] == DS_NONE ||
        (count > o->how->reuse - distance && !dsi_offload_stays(o, cell))) {
        DS_TRY(dsi_offload_content(o, cell, &o->resident[cell]));
    }
    o->used += distance > 0 || o->used == 0 ? count : 0;
    o->used_at[cell] = o->used;
    *value_out = o->resident[cell];
    return DS_OK;
}

void dsi_offload_forget(dsi_offloader *o)
{
    for (ds_cell c = 0; c < o->n_cells; ++c) {
        o->resident[c] = DS_NONE;
    }
}

bool dsi_offload_in_hand(const dsi_offloader *o, ds_value v)
{
    const ds_node maker = o->r.from->values[v].producer;
    return maker != DS_NONE && dsi_offload_is_update(&o->r.from->nodes[maker]) &&
           o->r.from->nodes[maker].phase == o->r.to->phase;
}

ds_status dsi_offload_operand(dsi_offloader *o, ds_value v, ds_value *value_out)
{
    DS_TRY(dsi_offload_take_result(o, v));
    if (o->left_in[v] != DS_NONE && !dsi_phase_is_forward(&o->r.to->phases, o->r.to->phase)) {
        return dsi_offload_in_turn(o, v, o->left_in[v], value_out);
    }
    if (o->turns[v].cell != DS_NONE) {
        return dsi_offload_in_turn(o, v, o->turns[v].cell, value_out);
    }
    if (dsi_offload_swapped(o, dsi_offload_cell_of(o, v)) && !dsi_offload_in_hand(o, v)) {
        return use(o, dsi_offload_cell_of(o, v), value_out);
    }
    *value_out = o->r.map[v];
    return DS_OK;
}
