/* Obeys the homes of cells. See offload.h. */
#include "pass/offload.h"

#include "op/ops.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN_PARAM = 0, IN_GRAD = 1, IN_HYPER = 2, IN_FACTOR = 3, IN_MASTER = 4, NAME_BYTES = 1100 };

enum { MOST_AHEAD = 128 }; /* states that the forward phase brings */

/* What an update will ask for, in memory already. */
typedef struct brought {
    ds_cell cell;
    ds_value value;
} brought;

typedef struct offloader {
    const dsi_offload *how;
    const ds_graph *from;
    ds_graph *to;
    ds_cells *cells; /* may be those of from: kept activations are added behind them */
    dsi_homes *homes;
    ds_cell n_cells;    /* of from, at the start */
    ds_value *map;      /* per value of from */
    uint32_t *uses;     /* per value of from */
    ds_value *resident; /* per cell: its content in memory, DS_NONE when not */
    int64_t *used_at;   /* per cell: `used` at its last use */
    int64_t used;       /* parameter elements used so far */
    ds_cell *left_in;   /* per value: the cell that a kept activation waits in, or DS_NONE */
    ds_value *back;     /* per value: such an activation in memory again, DS_NONE before */
    ds_node *store_of;  /* per value: the node that stores it as a swapped gradient, or DS_NONE */
    bool *gone;         /* per node: done earlier */
    brought ahead[MOST_AHEAD];
    uint32_t n_ahead;
} offloader;

dsi_home dsi_homes_of(const dsi_homes *homes, ds_cell cell)
{
    const dsi_home device = {DSI_ON_DEVICE, DS_NONE, 0};
    return cell < homes->n ? homes->items[cell] : device;
}

static bool swapped(const offloader *o, ds_cell cell)
{
    return cell != DS_NONE && dsi_homes_of(o->homes, cell).residence != DSI_ON_DEVICE;
}

static ds_cell cell_of(const offloader *o, ds_value v)
{
    return v == DS_NONE ? DS_NONE : o->from->values[v].cell;
}

static int64_t count_of(const offloader *o, ds_cell cell)
{
    return ds_shape_count(ds_cells_get(o->cells, cell)->meta.shape);
}

static ds_status apply(offloader *o, const ds_op *op, const void *attrs, const ds_value *in,
                       uint32_t n_in, ds_value *value_out)
{
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(o->to, op, attrs, in, n_in, out));
    *value_out = out[0];
    return DS_OK;
}

/* The content of a cell, brought into memory when it lives elsewhere and has not been brought
 * ahead. */
static ds_status content(offloader *o, ds_cell cell, ds_value *value_out)
{
    ds_value value = DS_NONE;
    for (uint32_t i = 0; i < o->n_ahead; ++i) {
        if (o->ahead[i].cell == cell) {
            *value_out = o->ahead[i].value;
            return DS_OK;
        }
    }
    DS_TRY(ds_graph_read(o->to, cell, &value));
    if (swapped(o, cell)) {
        DS_TRY(apply(o, &dsi_op_swap_in, NULL, &value, 1, &value));
    }
    *value_out = value;
    return DS_OK;
}

static ds_status swap_out(offloader *o, ds_cell cell, ds_value x)
{
    ds_value in[2] = {DS_NONE, x};
    DS_TRY(ds_graph_read(o->to, cell, &in[0]));
    return apply(o, &dsi_op_swap_out, NULL, in, 2, &in[0]);
}

/* ---- uses ------------------------------------------------------------------------------------ */

/* A swapped cell as an operand: still in memory when its last use is near, else swapped in. */
static ds_status use(offloader *o, ds_cell cell, ds_value *value_out)
{
    const int64_t count = count_of(o, cell);
    const int64_t distance = o->used - o->used_at[cell];
    if (o->resident[cell] == DS_NONE || count > o->how->reuse - distance) {
        DS_TRY(content(o, cell, &o->resident[cell]));
    }
    o->used += distance > 0 || o->used == 0 ? count : 0;
    o->used_at[cell] = o->used;
    *value_out = o->resident[cell];
    return DS_OK;
}

/* Nothing stays in memory from one phase to the next. */
static void forget(offloader *o)
{
    for (ds_cell c = 0; c < o->n_cells; ++c) {
        o->resident[c] = DS_NONE;
    }
}

/* Nodes that may run part by part, their scalars being inputs 2 and 3. */
static bool is_update(const dsi_node_info *node)
{
    return node->op == &dsi_op_postpone || dsi_op_is_update(node->op);
}

/* What an update of this phase has made is in memory, on its way to its home: an update whose
 * result is read is not cut. */
static bool is_in_hand(const offloader *o, ds_value v)
{
    const ds_node maker = o->from->values[v].producer;
    return maker != DS_NONE && is_update(&o->from->nodes[maker]) &&
           o->from->nodes[maker].phase == o->to->phase;
}

static ds_status operand(offloader *o, ds_value v, ds_value *value_out)
{
    if (o->left_in[v] != DS_NONE && o->to->phase != DS_PHASE_FORWARD) {
        if (o->back[v] == DS_NONE) {
            DS_TRY(content(o, o->left_in[v], &o->back[v]));
        }
        *value_out = o->back[v];
        return DS_OK;
    }
    if (swapped(o, cell_of(o, v)) && !is_in_hand(o, v)) {
        return use(o, cell_of(o, v), value_out);
    }
    *value_out = o->map[v];
    return DS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static bool writes_gradient(const offloader *o, const dsi_node_info *node)
{
    const ds_cell cell = node->n_out > 0 ? cell_of(o, dsi_node_out(o->from, node)[0]) : DS_NONE;
    return (node->op == &dsi_op_store || node->op == &dsi_op_accumulate) && swapped(o, cell) &&
           ds_cells_get(o->cells, cell)->kind == DS_CELL_GRAD;
}

/* Finds the largest magnitude of what is about to leave memory, where the norm will ask for it. */
static ds_status take_abs_max(offloader *o, ds_value logical, ds_value x)
{
    for (ds_node n = 0; n < o->from->n_nodes; ++n) {
        const dsi_node_info *node = &o->from->nodes[n];
        if (node->op == &dsi_op_abs_max && dsi_node_in(o->from, node)[0] == logical) {
            DS_TRY(apply(o, node->op, node->attrs, &x, 1, &o->map[dsi_node_out(o->from, node)[0]]));
            o->gone[n] = true;
        }
    }
    return DS_OK;
}

static ds_status lower_gradient(offloader *o, const dsi_node_info *node)
{
    const ds_value y = dsi_node_out(o->from, node)[0];
    const ds_cell cell = cell_of(o, y);
    const ds_dtype dtype = ds_cells_get(o->cells, cell)->meta.dtype;
    ds_value x = DS_NONE;
    DS_TRY(operand(o, dsi_node_in(o->from, node)[1], &x));
    if (node->op == &dsi_op_accumulate) {
        ds_value in[2] = {DS_NONE, x};
        DS_TRY(content(o, cell, &in[0]));
        DS_TRY(apply(o, node->op, node->attrs, in, 2, &x));
    } else if (ds_graph_meta(o->to, x).dtype != dtype) {
        const dsi_cast_attrs cast = {.dtype = dtype};
        DS_TRY(apply(o, &dsi_op_cast, &cast, &x, 1, &x));
    }
    DS_TRY(take_abs_max(o, y, x));
    return swap_out(o, cell, x);
}

/* A gradient leaves as soon as it is made. */
static ds_status store_gradients(offloader *o, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        const ds_node store = v == DS_NONE ? DS_NONE : o->store_of[v];
        if (store != DS_NONE && o->from->nodes[store].phase == node->phase) {
            o->gone[store] = true;
            DS_TRY(lower_gradient(o, &o->from->nodes[store]));
        }
    }
    return DS_OK;
}

static void find_stores(offloader *o)
{
    for (ds_value v = 0; v < o->from->n_values; ++v) {
        o->store_of[v] = DS_NONE;
    }
    for (ds_node n = 0; n < o->from->n_nodes; ++n) {
        const dsi_node_info *node = &o->from->nodes[n];
        if (writes_gradient(o, node)) {
            o->store_of[dsi_node_in(o->from, node)[1]] = n;
        }
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

static bool touches_swapped(const offloader *o, const dsi_node_info *node)
{
    bool any = false;
    for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
        any = any || swapped(o, cell_of(o, o->from->operands[node->in_at + i]));
    }
    return any;
}

/* Elements that are updated together: all, unless every tensor but the gradient is a cell of its
 * own, elements do not depend on each other, and nobody else reads what is updated. */
static int64_t chunk_of(const offloader *o, const dsi_node_info *node, int64_t count)
{
    const ds_value *in = dsi_node_in(o->from, node);
    const int64_t step = DSI_HOME_ALIGN; /* elements: whole blocks in every dtype */
    const int64_t chunk = (o->how->chunk + step - 1) / step * step;
    bool cut = o->how->chunk > 0 && chunk < count && (node->op->flags & DS_OP_INPLACE) != 0;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const bool scalar = i == IN_HYPER || i == IN_FACTOR;
        cut = cut && (scalar || i == IN_GRAD || in[i] == DS_NONE || cell_of(o, in[i]) != DS_NONE);
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        cut = cut && (v == DS_NONE || o->uses[v] == 0);
    }
    return cut ? chunk : count;
}

static ds_status add_home(offloader *o, ds_cell cell, dsi_home home)
{
    dsi_home *items = dsi_graph_grow(o->homes->items, &o->homes->capacity, cell + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(o->from->ctx, DS_ERR_NOMEM, "no memory to offload");
    }
    o->homes->items = items;
    while (o->homes->n <= cell) {
        items[o->homes->n++] = (dsi_home){DSI_ON_DEVICE, DS_NONE, 0};
    }
    items[cell] = home;
    return DS_OK;
}

/* The cell of elements [begin, begin + count) of a cell; the cell itself when that is all. */
static ds_status part_of(offloader *o, ds_cell cell, int64_t begin, int64_t count, ds_cell *part)
{
    char name[NAME_BYTES];
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
    return add_home(o, *part, (dsi_home){dsi_homes_of(o->homes, cell).residence, cell, offset});
}

/* ---- activations ----------------------------------------------------------------------------- */

static bool is_offloaded_activation(const offloader *o, ds_value v)
{
    const dsi_value_info *info = &o->from->values[v];
    const dsi_node_info *maker = info->producer != DS_NONE ? &o->from->nodes[info->producer] : NULL;
    return maker != NULL && maker->phase == DS_PHASE_FORWARD && info->cell == DS_NONE &&
           (maker->op->flags & DS_OP_VIEW) == 0 &&
           ds_meta_bytes(info->meta) >= o->how->least_activation;
}

/* The cell that an activation waits in. */
static ds_status make_waiting_place(offloader *o, ds_value v)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "activation/%u", v);
    const ds_cell_info info = {
        .name = name, .kind = DS_CELL_STATE, .meta = o->from->values[v].meta, .of = DS_NONE};
    o->left_in[v] = ds_cells_find(o->cells, info.kind, name);
    if (o->left_in[v] == DS_NONE) {
        DS_TRY(ds_cells_add(o->cells, &info, &o->left_in[v]));
    }
    return add_home(o, o->left_in[v], (dsi_home){o->how->activations, DS_NONE, 0});
}

/* What the forward pass leaves to the backward pass. */
static ds_status find_activations(offloader *o)
{
    for (ds_value v = 0; v < o->from->n_values; ++v) {
        o->left_in[v] = o->back[v] = DS_NONE;
    }
    for (ds_node n = 0; n < o->from->n_nodes && o->how->activations != DSI_ON_DEVICE; ++n) {
        const dsi_node_info *node = &o->from->nodes[n];
        for (uint32_t i = 0; node->phase == DS_PHASE_BACKWARD && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(o->from, node)[i];
            if (v != DS_NONE && o->left_in[v] == DS_NONE && is_offloaded_activation(o, v)) {
                DS_TRY(make_waiting_place(o, v));
            }
        }
    }
    return DS_OK;
}

static ds_status leave_activations(offloader *o, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        if (v != DS_NONE && o->left_in[v] != DS_NONE) {
            DS_TRY(swap_out(o, o->left_in[v], o->map[v]));
        }
    }
    return DS_OK;
}

typedef struct update {
    const dsi_node_info *node;
    int64_t begin, count; /* of this chunk */
    bool whole;           /* it is all */
    ds_cell cells[DS_MAX_IN];
    ds_value in[DS_MAX_IN], out[DS_MAX_OUT];
} update;

/* The chunk's elements of a gradient that has no cell. */
static ds_status take_chunk(offloader *o, const update *u, ds_value gradient, ds_value *chunk_out)
{
    const int64_t all = ds_shape_count(ds_graph_meta(o->to, gradient).shape);
    const dsi_reshape_attrs flat = {.n_dims = 1, .dims = {all}};
    const dsi_slice_attrs part = {.dim = 0, .start = u->begin, .length = u->count};
    DS_TRY(apply(o, &dsi_op_reshape, &flat, &gradient, 1, chunk_out));
    return apply(o, &dsi_op_slice, &part, chunk_out, 1, chunk_out);
}

static ds_status update_operand(offloader *o, update *u, uint32_t i)
{
    const ds_value v = dsi_node_in(o->from, u->node)[i];
    u->cells[i] = DS_NONE;
    u->in[i] = DS_NONE;
    if (v == DS_NONE) {
        return DS_OK;
    }
    if (i == IN_GRAD && cell_of(o, v) == DS_NONE && !u->whole) {
        return take_chunk(o, u, o->map[v], &u->in[i]);
    }
    if (cell_of(o, v) == DS_NONE || i == IN_HYPER || i == IN_FACTOR) {
        u->in[i] = o->map[v];
        return DS_OK;
    }
    DS_TRY(part_of(o, cell_of(o, v), u->begin, u->count, &u->cells[i]));
    const bool rounded = i == IN_PARAM && swapped(o, u->cells[i]) && u->node->n_in > IN_MASTER &&
                         dsi_node_in(o->from, u->node)[IN_MASTER] != DS_NONE;
    return rounded ? DS_OK : content(o, u->cells[i], &u->in[i]);
}

/* Where output i goes when its cell does not live on the device. */
static ds_status update_result(offloader *o, update *u, uint32_t i)
{
    const uint32_t from = (uint32_t)u->node->op->writes[i];
    return u->out[i] != DS_NONE && swapped(o, u->cells[from])
               ? swap_out(o, u->cells[from], u->out[i])
               : DS_OK;
}

/* A swapped parameter with a master: the master is updated as an fp32 parameter, and what goes out
 * for the parameter is its rounding. */
static ds_status update_rounded(offloader *o, update *u)
{
    const dsi_node_info *node = u->node;
    const dsi_cast_attrs cast = {.dtype = ds_cells_get(o->cells, u->cells[IN_PARAM])->meta.dtype};
    ds_value narrow = DS_NONE;
    u->in[IN_PARAM] = u->in[IN_MASTER];
    u->in[IN_MASTER] = DS_NONE;
    DS_TRY(ds_graph_apply(o->to, node->op, node->attrs, u->in, node->n_in, u->out));
    DS_TRY(apply(o, &dsi_op_cast, &cast, &u->out[0], 1, &narrow));
    DS_TRY(swap_out(o, u->cells[IN_PARAM], narrow));
    u->out[1] = u->out[0];
    return DS_OK;
}

static ds_status lower_chunk(offloader *o, update *u)
{
    const dsi_node_info *node = u->node;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        DS_TRY(update_operand(o, u, i));
    }
    const bool rounded = u->in[IN_PARAM] == DS_NONE;
    if (rounded) {
        DS_TRY(update_rounded(o, u));
    } else {
        DS_TRY(ds_graph_apply(o->to, node->op, node->attrs, u->in, node->n_in, u->out));
    }
    for (uint32_t i = rounded ? 1 : 0; i < node->n_out; ++i) {
        DS_TRY(update_result(o, u, i));
    }
    for (uint32_t i = 0; i < node->n_out && u->whole; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        if (v != DS_NONE) {
            o->map[v] = u->out[i];
        }
    }
    return DS_OK;
}

static ds_status lower_update(offloader *o, const dsi_node_info *node)
{
    if ((node->op->flags & DS_OP_INPLACE) == 0) {
        return ds_fail(o->from->ctx, DS_ERR_UNSUPPORTED,
                       "optimizer.type %s does not work with offload_optimizer; Adam, AdamW, "
                       "Adagrad, Lion and SGD do",
                       node->op->name);
    }
    const ds_meta meta = o->from->values[dsi_node_in(o->from, node)[IN_PARAM]].meta;
    const int64_t count = ds_shape_count(meta.shape);
    const int64_t chunk = chunk_of(o, node, count);
    for (int64_t begin = 0; begin < count; begin += chunk) {
        update u = {.node = node,
                    .begin = begin,
                    .count = count - begin < chunk ? count - begin : chunk,
                    .whole = chunk == count};
        DS_TRY(lower_chunk(o, &u));
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        if (cell_of(o, v) != DS_NONE) {
            o->resident[cell_of(o, v)] = DS_NONE; /* of before */
        }
    }
    return DS_OK;
}

/* ---- states ahead of the backward phase ------------------------------------------------------ */

/* Brings the states of elements [begin, begin + count) of an update, as long as there is room. */
static ds_status bring_chunk(offloader *o, const dsi_node_info *node, int64_t begin, int64_t count,
                             size_t *room)
{
    for (uint32_t i = IN_MASTER; i < node->n_in; ++i) {
        const ds_cell cell = cell_of(o, dsi_node_in(o->from, node)[i]);
        if (!swapped(o, cell)) {
            continue;
        }
        const size_t bytes =
            (size_t)count * ds_dtype_bytes(ds_cells_get(o->cells, cell)->meta.dtype);
        if (bytes > *room || o->n_ahead == MOST_AHEAD) {
            *room = 0;
            return DS_OK;
        }
        brought it = {DS_NONE, DS_NONE};
        DS_TRY(part_of(o, cell, begin, count, &it.cell));
        DS_TRY(content(o, it.cell, &it.value));
        o->ahead[o->n_ahead++] = it;
        *room -= bytes;
    }
    return DS_OK;
}

/* While computation makes no gradient the disk has nothing to do: the states that the first updates
 * of the backward phase ask for come before it begins. */
static ds_status bring_states(offloader *o)
{
    size_t room = o->how->forward_ahead;
    for (ds_node n = 0; n < o->from->n_nodes && room > 0; ++n) {
        const dsi_node_info *node = &o->from->nodes[n];
        if (node->phase != DS_PHASE_BACKWARD || !dsi_op_is_update(node->op) ||
            !touches_swapped(o, node)) {
            continue;
        }
        const int64_t count =
            ds_shape_count(o->from->values[dsi_node_in(o->from, node)[IN_PARAM]].meta.shape);
        const int64_t chunk = chunk_of(o, node, count);
        DS_TRY(ds_graph_set_scope(o->to, node->scope));
        for (int64_t begin = 0; begin < count && room > 0; begin += chunk) {
            const int64_t rest = count - begin;
            DS_TRY(bring_chunk(o, node, begin, rest < chunk ? rest : chunk, &room));
        }
    }
    return DS_OK;
}

/* ---- columns (ZenFlow) ----------------------------------------------------------------------- */

/* Nodes that write a cell whole, whatever it is. */
static bool writes_swapped(const offloader *o, const dsi_node_info *node)
{
    return (node->op == &dsi_op_put_columns || node->op == &dsi_op_store) &&
           swapped(o, cell_of(o, dsi_node_out(o->from, node)[0]));
}

static ds_status lower_write(offloader *o, const dsi_node_info *node)
{
    const ds_cell cell = cell_of(o, dsi_node_out(o->from, node)[0]);
    const bool whole = node->op == &dsi_op_store;
    ds_value in[DS_MAX_IN];
    ds_value x = DS_NONE;
    for (uint32_t i = whole ? 1 : 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(o->from, node)[i];
        DS_TRY(i == 0 ? content(o, cell, &in[i]) : operand(o, v, &in[i]));
    }
    if (whole) {
        const dsi_cast_attrs cast = {.dtype = ds_cells_get(o->cells, cell)->meta.dtype};
        x = in[1];
        if (ds_graph_meta(o->to, x).dtype != cast.dtype) {
            DS_TRY(apply(o, &dsi_op_cast, &cast, &x, 1, &x));
        }
    } else {
        DS_TRY(apply(o, node->op, node->attrs, in, node->n_in, &x));
    }
    o->resident[cell] = DS_NONE;
    return swap_out(o, cell, x);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static ds_status lower_node(offloader *o, ds_node n)
{
    const dsi_node_info *node = &o->from->nodes[n];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    if (writes_gradient(o, node)) {
        return lower_gradient(o, node);
    }
    if (is_update(node) && touches_swapped(o, node)) {
        return lower_update(o, node);
    }
    if (writes_swapped(o, node)) {
        return lower_write(o, node);
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        in[i] = dsi_node_in(o->from, node)[i];
        if (in[i] != DS_NONE) {
            DS_TRY(operand(o, in[i], &in[i]));
        }
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        if (swapped(o, cell_of(o, v))) {
            return ds_fail(o->from->ctx, DS_ERR_UNSUPPORTED,
                           "%s: %s cannot write the offloaded %s %s; offload of parameters needs "
                           "zero_optimization.stage 3",
                           node->scope, node->op->name,
                           ds_cell_kind_name(ds_cells_get(o->cells, cell_of(o, v))->kind),
                           ds_cells_get(o->cells, cell_of(o, v))->name);
        }
    }
    DS_TRY(ds_graph_apply(o->to, node->op, node->attrs, in, node->n_in, out));
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->from, node)[i];
        if (v != DS_NONE) {
            o->map[v] = out[i];
        }
    }
    DS_TRY(leave_activations(o, node));
    return store_gradients(o, node);
}

/* Ids of cells are the same in both tables. */
static ds_status copy_cells(offloader *o)
{
    for (ds_cell c = ds_cells_count(o->cells); c < ds_cells_count(o->from->cells); ++c) {
        ds_cell same = DS_NONE;
        DS_TRY(ds_cells_add(o->cells, ds_cells_get(o->from->cells, c), &same));
    }
    return DS_OK;
}

static ds_status rebuild(offloader *o)
{
    const ds_graph *g = o->from;
    const char *scope = NULL;
    DS_TRY(copy_cells(o));
    DS_TRY(ds_graph_create(g->ctx, o->cells, &o->to));
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (g->values[v].producer == DS_NONE) {
            DS_TRY(ds_graph_read(o->to, g->values[v].cell, &o->map[v]));
        }
    }
    forget(o);
    find_stores(o);
    DS_TRY(find_activations(o));
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        if (o->gone[n]) {
            continue;
        }
        if (node->phase != o->to->phase) {
            forget(o);
            if (node->phase == DS_PHASE_BACKWARD) {
                DS_TRY(bring_states(o));
                scope = NULL;
            }
        }
        ds_graph_set_phase(o->to, node->phase);
        ds_graph_set_region(o->to, node->region);
        o->to->recomputed = node->recomputed;
        if (node->scope != scope) {
            scope = node->scope;
            DS_TRY(ds_graph_set_scope(o->to, scope));
        }
        DS_TRY(lower_node(o, n));
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        DS_TRY(ds_graph_output(o->to, g->outputs[i].name, o->map[g->outputs[i].value]));
    }
    return DS_OK;
}

static void count_uses(offloader *o)
{
    for (ds_node n = 0; n < o->from->n_nodes; ++n) {
        const dsi_node_info *node = &o->from->nodes[n];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(o->from, node)[i];
            if (v != DS_NONE) {
                o->uses[v] += 1;
            }
        }
    }
    for (uint32_t i = 0; i < o->from->n_outputs; ++i) {
        o->uses[o->from->outputs[i].value] += 1;
    }
}

ds_status dsi_offload_graph(const ds_graph *graph, const dsi_offload *offload, ds_cells *cells,
                            dsi_homes *homes, ds_graph **offload_out)
{
    const size_t n_cells = (size_t)ds_cells_count(graph->cells) + 1;
    offloader o = {.how = offload,
                   .from = graph,
                   .cells = cells,
                   .homes = homes,
                   .n_cells = ds_cells_count(graph->cells)};
    o.map = calloc((size_t)graph->n_values + 1, sizeof *o.map);
    o.uses = calloc((size_t)graph->n_values + 1, sizeof *o.uses);
    o.resident = calloc(n_cells, sizeof *o.resident);
    o.used_at = calloc(n_cells, sizeof *o.used_at);
    o.store_of = calloc((size_t)graph->n_values + 1, sizeof *o.store_of);
    o.left_in = calloc((size_t)graph->n_values + 1, sizeof *o.left_in);
    o.back = calloc((size_t)graph->n_values + 1, sizeof *o.back);
    o.gone = calloc((size_t)graph->n_nodes + 1, sizeof *o.gone);
    ds_status status = DS_OK;
    if (o.map == NULL || o.uses == NULL || o.resident == NULL || o.used_at == NULL ||
        o.store_of == NULL || o.left_in == NULL || o.back == NULL || o.gone == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to offload");
    } else {
        count_uses(&o);
        status = rebuild(&o);
    }
    free(o.map);
    free(o.uses);
    free(o.resident);
    free(o.used_at);
    free(o.store_of);
    free(o.left_in);
    free(o.back);
    free(o.gone);
    if (status < 0) {
        ds_graph_destroy(&o.to);
        return status;
    }
    *offload_out = o.to;
    return DS_OK;
}
