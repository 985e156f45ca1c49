/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that the processor runs where their states live, in host memory, while the device goes
 * on: nodes of the host's (ir/graph.h), whose operands are all cells there. The gradient is one, or
 * goes down first; so do the step's numbers, and a parameter without a master. The new parameter
 * comes up at the end of the phase, or before its first reader in it. See offload_state.h.
 */
#include "pass/offload_state.h"

#include "op/ops.h"

#include <stdio.h>

enum { IN_PARAM = 0, IN_GRAD = 1, IN_HYPER = 2, IN_FACTOR = 3, IN_MASTER = 4 };

/* ---- which ----------------------------------------------------------------------------------- */

ds_status dsi_offload_store_on_host(dsi_offloader *o, ds_cell to, ds_cell from)
{
    ds_value in[2];
    DS_TRY(ds_graph_read(o->r.to, to, &in[0]));
    DS_TRY(ds_graph_read(o->r.to, from, &in[1]));
    o->r.to->on_host = true;
    const ds_status status = dsi_offload_apply(o, &dsi_op_store, NULL, in, 2, &in[0]);
    o->r.to->on_host = false;
    return status;
}

static bool lives_on_host(const dsi_offloader *o, ds_cell cell)
{
    return cell != DS_NONE && dsi_residency_of(o->residencies, cell).where == DSI_RESIDENCY_HOST;
}

/* Whose elements depend on themselves alone, and have the same bits on every device (LAW 4d). */
static bool is_elementwise(const ds_op *op)
{
    return op == &dsi_op_adam || op == &dsi_op_ademamix || op == &dsi_op_lion ||
           op == &dsi_op_adagrad || op == &dsi_op_sgd || op == &dsi_op_postpone;
}

/* Whether a value is made in the phase of a node: what others have left lies in its cell. */
static bool is_made_there(const dsi_offloader *o, const dsi_node_info *node, ds_value v)
{
    const ds_node maker = o->r.from->values[v].producer;
    return maker != DS_NONE && o->r.from->nodes[maker].phase == node->phase;
}

/* Whether a node of the same phase reads what it makes. */
static bool is_read_there(const dsi_offloader *o, const dsi_node_info *node, ds_value v)
{
    const ds_graph *g = o->r.from;
    bool any = false;
    for (ds_node n = (ds_node)(node - g->nodes) + 1;
         n < g->n_nodes && g->nodes[n].phase == node->phase && o->uses[v] > 0 && !any; ++n) {
        const ds_value *in = dsi_node_in(g, &g->nodes[n]);
        for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
            any = any || in[i] == v;
        }
    }
    return any;
}

/* Whether master and states are there, and nobody asks for what becomes of them before the phase is
 * over. */
static bool has_states(const dsi_offloader *o, const dsi_node_info *node)
{
    const ds_value *in = dsi_node_in(o->r.from, node);
    for (uint32_t i = IN_MASTER; i < node->n_in; ++i) {
        if (in[i] != DS_NONE &&
            (!lives_on_host(o, dsi_offload_cell_of(o, in[i])) || is_made_there(o, node, in[i]))) {
            return false;
        }
    }
    for (uint32_t i = 1; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        if (v != DS_NONE && is_read_there(o, node, v)) {
            return false;
        }
    }
    return true;
}

bool dsi_offload_on_host(const dsi_offloader *o, const dsi_node_info *node)
{
    const ds_graph *g = o->r.from;
    if (!o->how->host || !is_elementwise(node->op) || !dsi_offload_touches_swapped(o, node)) {
        return false;
    }
    const ds_value *in = dsi_node_in(g, node);
    const ds_cell grad = dsi_offload_cell_of(o, in[IN_GRAD]);
    const ds_cell param = dsi_offload_cell_of(o, in[IN_PARAM]);
    return (grad == DS_NONE || lives_on_host(o, grad)) &&
           (!dsi_offload_swapped(o, param) || lives_on_host(o, param)) && has_states(o, node);
}

/* ---- what goes down -------------------------------------------------------------------------- */

/* A cell in host memory. */
ds_status dsi_offload_host_cell(dsi_offloader *o, const char *name, ds_meta meta, ds_cell *cell_out)
{
    const ds_cell_info info = {.name = name, .kind = DS_CELL_STATE, .meta = meta, .of = DS_NONE};
    *cell_out = ds_cells_find(o->cells, info.kind, name);
    if (*cell_out == DS_NONE) {
        DS_TRY(ds_cells_add(o->cells, &info, cell_out));
    }
    return dsi_offload_add_residency(
        o, *cell_out, (dsi_cell_residency){.where = DSI_RESIDENCY_HOST, .parent = DS_NONE});
}

/* That of an operand of an update, named for what the update is of. */
static ds_status cell_through(dsi_offloader *o, const dsi_node_info *node, uint32_t i,
                              ds_cell *cell_out)
{
    char name[OFFLOAD_NAME_BYTES];
    const ds_value *in = dsi_node_in(o->r.from, node);
    ds_cell of = DS_NONE;
    for (uint32_t k = 0; k < node->n_in && of == DS_NONE; ++k) {
        of = k == IN_HYPER || k == IN_FACTOR ? DS_NONE : dsi_offload_cell_of(o, in[k]);
    }
    (void)snprintf(name, sizeof name, "%s of %s on the host",
                   i == IN_PARAM ? "parameter" : "gradient", ds_cells_get(o->cells, of)->name);
    return dsi_offload_host_cell(o, name, o->r.from->values[in[i]].meta, cell_out);
}

/* A number of the step, a value of the new graph, once a phase for all its updates. */
static ds_status bring_number(dsi_offloader *o, uint32_t i, ds_value v, ds_value *value_out)
{
    char name[OFFLOAD_NAME_BYTES];
    uint32_t at = 0;
    while (at < o->n_numbers && o->numbers[at].value != v) {
        ++at;
    }
    if (at == o->n_numbers || o->numbers[at].phase != o->r.to->phase) {
        if (at == OFFLOAD_MOST_NUMBERS) {
            return ds_fail(o->r.from->ctx, DS_ERR_LIMIT, "updates of more than %d groups",
                           OFFLOAD_MOST_NUMBERS / 2);
        }
        (void)snprintf(name, sizeof name, "%s %u on the host",
                       i == IN_HYPER ? "hyperparameters" : "factor", at);
        dsi_host_number *n = &o->numbers[at];
        *n = (dsi_host_number){.value = v, .phase = o->r.to->phase};
        DS_TRY(dsi_offload_host_cell(o, name, ds_graph_meta(o->r.to, v), &n->cell));
        DS_TRY(dsi_offload_swap_out(o, n->cell, v));
        o->n_numbers += at == o->n_numbers ? 1 : 0;
    }
    return ds_graph_read(o->r.to, o->numbers[at].cell, value_out);
}

/* ---- an update ------------------------------------------------------------------------------- */

typedef struct host_update {
    const dsi_node_info *node;
    int64_t begin, count; /* of this chunk */
    bool whole;           /* it is all */
    ds_value ahead; /* the factor of an update ahead of its phase; DS_NONE: it is in its phase */
    ds_cell param;  /* where the result goes; DS_NONE: it is there, or has no cell */
    ds_value in[DS_MAX_IN];
} host_update;

static ds_status read_part(dsi_offloader *o, host_update *u, uint32_t i, ds_cell cell)
{
    ds_cell part = DS_NONE;
    DS_TRY(dsi_offload_part_of(o, cell, u->begin, u->count, &part));
    return ds_graph_read(o->r.to, part, &u->in[i]);
}

/* The chunk of what the device has goes through a cell of the host's. old: it is moved there, else
 * the update only writes it. */
static ds_status through(dsi_offloader *o, host_update *u, uint32_t i, ds_value x, bool old)
{
    ds_cell cell = DS_NONE;
    DS_TRY(cell_through(o, u->node, i, &cell));
    DS_TRY(dsi_offload_part_of(o, cell, u->begin, u->count, &cell));
    DS_TRY(old ? dsi_offload_swap_out(o, cell, x) : DS_OK);
    return ds_graph_read(o->r.to, cell, &u->in[i]);
}

/* The same of a parameter that is there: it is copied. */
static ds_status through_copy(dsi_offloader *o, host_update *u)
{
    ds_cell cell = DS_NONE;
    DS_TRY(cell_through(o, u->node, IN_PARAM, &cell));
    DS_TRY(dsi_offload_part_of(o, cell, u->begin, u->count, &cell));
    DS_TRY(dsi_offload_store_on_host(o, cell, u->param));
    return ds_graph_read(o->r.to, cell, &u->in[IN_PARAM]);
}

static ds_status param_operand(dsi_offloader *o, host_update *u)
{
    const ds_value *in = dsi_node_in(o->r.from, u->node);
    const ds_cell cell = dsi_offload_cell_of(o, in[IN_PARAM]);
    const bool rounded = u->node->n_in > IN_MASTER && in[IN_MASTER] != DS_NONE;
    ds_value x = o->r.map[in[IN_PARAM]];
    u->param = DS_NONE;
    if (lives_on_host(o, cell) && u->ahead == DS_NONE) {
        return read_part(o, u, IN_PARAM, cell);
    }
    if (cell != DS_NONE) {
        DS_TRY(dsi_offload_part_of(o, cell, u->begin, u->count, &u->param));
        DS_TRY(ds_graph_read(o->r.to, u->param, &x));
    }
    if (lives_on_host(o, cell) && !rounded) {
        return through_copy(o, u);
    }
    return through(o, u, IN_PARAM, x, !rounded);
}

static ds_status grad_operand(dsi_offloader *o, host_update *u)
{
    const ds_value v = dsi_node_in(o->r.from, u->node)[IN_GRAD];
    ds_value x = DS_NONE;
    if (dsi_offload_cell_of(o, v) != DS_NONE) {
        return read_part(o, u, IN_GRAD, dsi_offload_cell_of(o, v));
    }
    DS_TRY(dsi_offload_operand(o, v, &x));
    if (!u->whole) {
        DS_TRY(dsi_offload_take_chunk(o, x, u->begin, u->count, &x));
    }
    return through(o, u, IN_GRAD, x, true);
}

static ds_status add_result(dsi_offloader *o, const dsi_host_result *result, bool ahead)
{
    dsi_host_result **list = ahead ? &o->waiting_results : &o->results;
    uint32_t *n = ahead ? &o->n_waiting_results : &o->n_results;
    dsi_host_result *items = dsi_graph_grow(
        *list, ahead ? &o->waiting_results_capacity : &o->results_capacity, *n + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(o->r.from->ctx, DS_ERR_NOMEM, "no memory to offload");
    }
    *list = items;
    items[(*n)++] = *result;
    return DS_OK;
}

static ds_status lower_chunk(dsi_offloader *o, host_update *u)
{
    const ds_value *in = dsi_node_in(o->r.from, u->node);
    const ds_value v = dsi_node_out(o->r.from, u->node)[0];
    ds_value out[DS_MAX_OUT];
    DS_TRY(param_operand(o, u));
    DS_TRY(grad_operand(o, u));
    for (uint32_t i = IN_HYPER; i < u->node->n_in; ++i) {
        u->in[i] = DS_NONE;
        if (in[i] != DS_NONE && i < IN_MASTER) {
            const bool ahead = i == IN_FACTOR && u->ahead != DS_NONE;
            DS_TRY(bring_number(o, i, ahead ? u->ahead : o->r.map[in[i]], &u->in[i]));
        } else if (in[i] != DS_NONE) {
            DS_TRY(read_part(o, u, i, dsi_offload_cell_of(o, in[i])));
        }
    }
    o->r.to->on_host = true;
    const ds_status status =
        ds_graph_apply(o->r.to, u->node->op, u->node->attrs, u->in, u->node->n_in, out);
    o->r.to->on_host = false;
    DS_TRY(status);
    const bool ahead = u->ahead != DS_NONE;
    const bool moves = ahead || !lives_on_host(o, dsi_offload_cell_of(o, in[IN_PARAM]));
    const dsi_host_result result = {u->node, u->whole ? v : DS_NONE, out[0], u->param};
    return moves || is_read_there(o, u->node, v) ? add_result(o, &result, ahead) : DS_OK;
}

static ds_status lower_all(dsi_offloader *o, const dsi_node_info *node, ds_value ahead)
{
    const ds_meta meta = o->r.from->values[dsi_node_in(o->r.from, node)[IN_PARAM]].meta;
    const int64_t count = ds_shape_count(meta.shape);
    const bool whole = dsi_offload_was_speculated(o, node);
    const int64_t chunk = whole ? count : dsi_offload_chunk_of(o, node, count);
    for (int64_t begin = 0; begin < count; begin += chunk) {
        host_update u = {.node = node,
                         .begin = begin,
                         .count = count - begin < chunk ? count - begin : chunk,
                         .whole = chunk == count,
                         .ahead = ahead};
        DS_TRY(lower_chunk(o, &u));
    }
    return DS_OK;
}

ds_status dsi_offload_lower_on_host(dsi_offloader *o, const dsi_node_info *node)
{
    return lower_all(o, node, DS_NONE);
}

ds_status dsi_offload_update_ahead(dsi_offloader *o, const dsi_node_info *node, ds_value factor)
{
    return lower_all(o, node, factor);
}

/* ---- what comes up --------------------------------------------------------------------------- */

ds_status dsi_offload_bring_result(dsi_offloader *o, const dsi_host_result *result)
{
    ds_value in[2] = {DS_NONE, DS_NONE};
    DS_TRY(dsi_offload_apply(o, &dsi_op_swap_in, NULL, &result->made, 1, &in[1]));
    if (result->param != DS_NONE) {
        DS_TRY(ds_graph_read(o->r.to, result->param, &in[0]));
        DS_TRY(dsi_offload_apply(o, &dsi_op_store, NULL, in, 2, &in[1]));
    }
    if (result->value != DS_NONE) {
        o->r.map[result->value] = in[1];
    }
    return DS_OK;
}

static ds_status take_result(dsi_offloader *o, const dsi_host_result *result)
{
    DS_TRY(dsi_rewrite_stand_at(&o->r, result->node));
    return dsi_offload_bring_result(o, result);
}

ds_status dsi_offload_take_results(dsi_offloader *o)
{
    for (uint32_t i = 0; i < o->n_results; ++i) {
        DS_TRY(take_result(o, &o->results[i]));
    }
    o->n_results = 0;
    return DS_OK;
}

ds_status dsi_offload_take_result(dsi_offloader *o, ds_value v)
{
    for (uint32_t i = 0; i < o->n_results; ++i) {
        if (o->results[i].value == v) {
            const dsi_host_result result = o->results[i];
            o->n_results -= 1;
            for (; i < o->n_results; ++i) {
                o->results[i] = o->results[i + 1];
            }
            DS_TRY(take_result(o, &result));
            return dsi_rewrite_stand_at(&o->r, &o->r.from->nodes[o->now]);
        }
    }
    return DS_OK;
}
