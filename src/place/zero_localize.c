/* Lowers a graph to one rank's local form: gathers before uses of sliced parameters, one reduction
 * before a gradient is stored, updates on slices, gathers of what was updated. See zero.h.
 *
 * Gradients: what a gradient cell is written from is this rank's term of the sum. Norms: largest
 * magnitude and exact sum of a slice are combined over ranks where the whole one is needed.
 */
#include "ir/rewrite.h"
#include "op/ops.h"
#include "place/zero.h"

#include <stdlib.h>
#include <string.h>

/* What a local value stands for. */
typedef enum form { WHOLE, SLICE, SHARE } form; /* SHARE: of a maximum or exact sum over ranks */

typedef struct lowering {
    const dsi_zero_spec *spec;
    dsi_rewrite r;
    ds_cells *cells;        /* local */
    dsi_zero_place *places; /* per cell */
    uint8_t *forms;         /* per value of from: form */
    ds_value *gathered;     /* per cell: last gathered value, DS_NONE before */
    int64_t *used_at;       /* per cell: `used` when it was last used */
    int64_t used;           /* parameter elements used so far */
    int64_t *bucket; /* per node of from: of the reduction, or of the gather, that it makes */
    int64_t bucket_id, bucket_fill;
    ds_dtype bucket_dtype;
} lowering;

static int64_t count_of(const lowering *l, ds_cell cell)
{
    return ds_shape_count(ds_cells_get(l->r.from->cells, cell)->meta.shape);
}

static dsi_comm_attrs comm_attrs(const lowering *l, int64_t bucket)
{
    return (dsi_comm_attrs){.n_ranks = l->spec->n_ranks, .bucket = bucket, .factor = 1.0};
}

static ds_status apply1(lowering *l, const ds_op *op, const void *attrs, ds_value in,
                        ds_value *value_out)
{
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(l->r.to, op, attrs, &in, 1, out));
    *value_out = out[0];
    return DS_OK;
}

static ds_status gather(lowering *l, ds_value slice, ds_shape shape, int64_t bucket,
                        ds_value *value_out)
{
    dsi_comm_attrs attrs = comm_attrs(l, bucket);
    attrs.n_dims = shape.n_dims;
    memcpy(attrs.dims, shape.dims, sizeof attrs.dims);
    return apply1(l, &dsi_op_all_gather, &attrs, slice, value_out);
}

/* ---- buckets ------------------------------------------------------------------------------- */

/* The bucket of the next tensor: the open one, or a new one when it does not fit. */
static int64_t next_bucket(lowering *l, int64_t count, ds_dtype dtype, int64_t limit)
{
    if (l->bucket_id < 0 || dtype != l->bucket_dtype || count > limit - l->bucket_fill) {
        l->bucket_id += 1;
        l->bucket_fill = 0;
        l->bucket_dtype = dtype;
    }
    l->bucket_fill += count;
    return l->bucket_id;
}

static void close_bucket(lowering *l)
{
    l->bucket_dtype = DS_DTYPE_NONE;
}

/* Where a gradient is complete: it is written to its cell, or only said so. */
static bool ends_gradient(const lowering *l, const dsi_node_info *node)
{
    if (node->op == &dsi_op_gradient) {
        return true;
    }
    if (node->op != &dsi_op_store && node->op != &dsi_op_accumulate) {
        return false;
    }
    const ds_cell cell = l->r.from->values[dsi_node_out(l->r.from, node)[0]].cell;
    return ds_cells_get(l->r.from->cells, cell)->kind == DS_CELL_GRAD;
}

/* The gradient of such a node. */
static ds_value completed(const ds_graph *g, const dsi_node_info *node)
{
    return dsi_node_in(g, node)[node->op == &dsi_op_gradient ? 0 : 1];
}

typedef struct arrival {
    ds_node made_by; /* of the gradient */
    ds_node node;    /* that stores it */
} arrival;

static int by_arrival(const void *a, const void *b)
{
    const arrival *x = a;
    const arrival *y = b;
    if (x->made_by != y->made_by) {
        return x->made_by < y->made_by ? -1 : 1;
    }
    return x->node < y->node ? -1 : 1;
}

/* Gradients share a bucket in the order in which the backward pass makes them. */
static ds_status fill_buckets(lowering *l)
{
    const ds_graph *g = l->r.from;
    arrival *arrivals = calloc(g->n_nodes + 1, sizeof *arrivals);
    uint32_t n = 0;
    if (arrivals == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to place the graph");
    }
    for (ds_node i = 0; i < g->n_nodes; ++i) {
        if (ends_gradient(l, &g->nodes[i])) {
            const ds_node maker = g->values[completed(g, &g->nodes[i])].producer;
            arrivals[n++] = (arrival){maker, i};
        }
    }
    qsort(arrivals, n, sizeof *arrivals, by_arrival);
    for (uint32_t i = 0; i < n; ++i) {
        const ds_meta meta = g->values[completed(g, &g->nodes[arrivals[i].node])].meta;
        l->bucket[arrivals[i].node] =
            next_bucket(l, ds_shape_count(meta.shape), meta.dtype, l->spec->reduce_bucket);
    }
    close_bucket(l);
    free(arrivals);
    return DS_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* The whole parameter for a use in this phase: gathered anew, unless the last use is near. */
static ds_status whole_parameter(lowering *l, ds_cell cell, ds_value *value_out)
{
    const int64_t count = count_of(l, cell);
    const int64_t distance = l->used - l->used_at[cell];
    const int64_t live = l->spec->max_live < l->spec->max_reuse_distance
                             ? l->spec->max_live
                             : l->spec->max_reuse_distance;
    if (l->gathered[cell] == DS_NONE || distance > live || count > live - distance) {
        const ds_shape shape = ds_cells_get(l->r.from->cells, cell)->meta.shape;
        ds_value slice = DS_NONE;
        DS_TRY(ds_graph_read(l->r.to, cell, &slice));
        DS_TRY(gather(l, slice, shape, -1, &l->gathered[cell]));
    }
    if (distance > 0 || l->used == 0) {
        l->used += count;
    }
    l->used_at[cell] = l->used;
    *value_out = l->gathered[cell];
    return DS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ds_status reduce(lowering *l, ds_value value, dsi_zero_place to, int64_t bucket,
                        ds_value *value_out)
{
    dsi_comm_attrs attrs = comm_attrs(l, bucket);
    if (!l->spec->sum) {
        attrs.factor = 1.0 / (double)l->spec->n_ranks;
    }
    return apply1(l, to == DSI_ZERO_FLAT ? &dsi_op_reduce_scatter : &dsi_op_all_reduce, &attrs,
                  value, value_out);
}

/* A gradient without a cell, which is used up in this phase. */
static ds_status lower_passing_gradient(lowering *l, ds_node n)
{
    const dsi_node_info *node = &l->r.from->nodes[n];
    const ds_value y = dsi_node_out(l->r.from, node)[0];
    const dsi_zero_place place = l->spec->stage == 0 ? DSI_ZERO_LOCAL : DSI_ZERO_FLAT;
    ds_value value = l->r.map[dsi_node_in(l->r.from, node)[0]];
    DS_TRY(reduce(l, value, place, l->bucket[n], &value));
    l->forms[y] = place == DSI_ZERO_FLAT ? SLICE : WHOLE;
    return apply1(l, &dsi_op_gradient, NULL, value, &l->r.map[y]);
}

static ds_status lower_gradient(lowering *l, ds_node n)
{
    const dsi_node_info *node = &l->r.from->nodes[n];
    if (node->op == &dsi_op_gradient) {
        return lower_passing_gradient(l, n);
    }
    const ds_value y = dsi_node_out(l->r.from, node)[0];
    const ds_cell cell = l->r.from->values[y].cell;
    const dsi_zero_place place = l->places[cell];
    ds_value in[2] = {DS_NONE, l->r.map[dsi_node_in(l->r.from, node)[1]]};
    ds_value out[DS_MAX_OUT];
    if (place != DSI_ZERO_PARTIAL) {
        DS_TRY(reduce(l, in[1], place, l->bucket[n], &in[1]));
    }
    DS_TRY(ds_graph_read(l->r.to, cell, &in[0]));
    DS_TRY(ds_graph_apply(l->r.to, node->op, node->attrs, in, 2, out));
    l->r.map[y] = out[0];
    l->forms[y] = place == DSI_ZERO_FLAT ? SLICE : WHOLE;
    return DS_OK;
}

/* The reduced form of an accumulated gradient: once for all its readers. */
static ds_status reduced_gradient(lowering *l, ds_value v)
{
    const ds_cell cell = l->r.from->values[v].cell;
    const ds_meta meta = l->r.from->values[v].meta;
    const dsi_zero_place place = l->spec->stage == 0 ? DSI_ZERO_LOCAL : DSI_ZERO_FLAT;
    ds_value value = l->r.map[v];
    const char *scope = l->r.to->scope;
    DS_TRY(ds_graph_set_scope(l->r.to, ds_cells_get(l->r.from->cells, cell)->name));
    if (meta.dtype != l->spec->comm_dtype) {
        const dsi_cast_attrs cast = {.dtype = l->spec->comm_dtype};
        DS_TRY(apply1(l, &dsi_op_cast, &cast, value, &value));
    }
    const int64_t bucket =
        next_bucket(l, ds_shape_count(meta.shape), l->spec->comm_dtype, l->spec->reduce_bucket);
    DS_TRY(reduce(l, value, place, bucket, &l->r.map[v]));
    l->r.to->scope = scope;
    l->forms[v] = place == DSI_ZERO_FLAT ? SLICE : WHOLE;
    l->places[cell] = place; /* this graph's readers see it reduced */
    return DS_OK;
}

/* Combines the ranks' shares of a maximum (f32) or an exact sum (f64 (2), or in bins). */
static ds_status combine(lowering *l, ds_value v)
{
    const bool maximum = ds_graph_meta(l->r.to, l->r.map[v]).dtype == DS_DTYPE_F32;
    ds_shape shape = ds_shape_1d(l->spec->n_ranks);
    ds_value all = DS_NONE;
    if (!maximum) {
        shape = ds_shape_2d(l->spec->n_ranks,
                            ds_shape_count(ds_graph_meta(l->r.to, l->r.map[v]).shape));
    }
    DS_TRY(gather(l, l->r.map[v], shape, -1, &all));
    DS_TRY(apply1(l, maximum ? &dsi_op_abs_max : &dsi_op_sum_parts, NULL, all, &l->r.map[v]));
    l->forms[v] = WHOLE;
    return DS_OK;
}

/* What column operators made of a slice, completed at once: the phase may be all that runs. */
static ds_status complete_columns(lowering *l, const dsi_node_info *node)
{
    const ds_value v = dsi_node_out(l->r.from, node)[0];
    const dsi_comm_attrs attrs = comm_attrs(l, -1);
    const ds_meta meta = l->r.from->values[v].meta;
    l->forms[v] = WHOLE;
    return node->op == &dsi_op_take_columns
               ? apply1(l, &dsi_op_all_reduce, &attrs, l->r.map[v], &l->r.map[v])
               : gather(l, l->r.map[v], ds_shape_2d(l->spec->n_ranks, meta.shape.dims[0]), -1,
                        &l->r.map[v]);
}

/* ---- updates --------------------------------------------------------------------------------- */

enum { IN_PARAM = 0, IN_GRAD = 1, IN_MASTER = 4 };

/* An update of a parameter that every rank holds whole: on slices, then gathered. The master, where
 * there is one, is updated as an fp32 parameter; what is gathered is its rounding. */
static ds_status update_whole(lowering *l, const dsi_node_info *node, ds_value *in)
{
    const ds_value *logical = dsi_node_out(l->r.from, node);
    const ds_cell param = l->r.from->values[logical[0]].cell;
    const bool master = in[IN_MASTER] != DS_NONE;
    const ds_dtype dtype = ds_cells_get(l->cells, param)->meta.dtype;
    dsi_comm_attrs attrs = comm_attrs(l, -1);
    ds_value out[DS_MAX_OUT];
    ds_value back[2] = {in[IN_PARAM], DS_NONE};
    if (master) {
        in[IN_PARAM] = in[IN_MASTER];
        in[IN_MASTER] = DS_NONE;
    } else {
        DS_TRY(apply1(l, &dsi_op_take_slice, &attrs, in[IN_PARAM], &in[IN_PARAM]));
    }
    DS_TRY(ds_graph_apply(l->r.to, node->op, node->attrs, in, node->n_in, out));
    back[1] = out[0];
    if (master) {
        const dsi_cast_attrs cast = {.dtype = dtype};
        l->r.map[logical[1]] = out[0];
        DS_TRY(apply1(l, &dsi_op_cast, &cast, out[0], &back[1]));
    }
    attrs.bucket = next_bucket(l, count_of(l, param), dtype, l->spec->gather_bucket);
    for (uint32_t i = 2; i < node->n_out; ++i) {
        if (logical[i] != DS_NONE) {
            l->r.map[logical[i]] = out[i];
        }
    }
    DS_TRY(ds_graph_apply(l->r.to, &dsi_op_gather_store, &attrs, back, 2, out));
    l->r.map[logical[0]] = out[0];
    return DS_OK;
}

static bool is_update(const lowering *l, const dsi_node_info *node)
{
    const ds_value first = node->n_in > 0 ? dsi_node_in(l->r.from, node)[0] : DS_NONE;
    const ds_cell cell = first != DS_NONE ? l->r.from->values[first].cell : DS_NONE;
    return (node->phase == DS_PHASE_UPDATE || node->phase == DS_PHASE_REST ||
            node->phase == DS_PHASE_BACKWARD) &&
           node->op->writes != NULL && cell != DS_NONE &&
           (ds_cells_get(l->r.from->cells, cell)->kind == DS_CELL_PARAM ||
            ds_cells_get(l->r.from->cells, cell)->kind == DS_CELL_MASTER);
}

/* A parameter set to what has become of its master meanwhile: its rounding, gathered where every
 * rank holds the parameter whole. */
static bool sets_parameter(const lowering *l, const dsi_node_info *node)
{
    return node->op == &dsi_op_store &&
           ds_cells_get(l->r.from->cells, l->r.from->values[dsi_node_out(l->r.from, node)[0]].cell)
                   ->kind == DS_CELL_PARAM;
}

static ds_status set_parameter(lowering *l, const dsi_node_info *node)
{
    const ds_value y = dsi_node_out(l->r.from, node)[0];
    const ds_value x = dsi_node_in(l->r.from, node)[1];
    const ds_cell param = l->r.from->values[y].cell;
    const ds_dtype dtype = ds_cells_get(l->cells, param)->meta.dtype;
    const bool gathers = l->forms[x] == SLICE && l->places[param] == DSI_ZERO_LOCAL;
    dsi_comm_attrs attrs = comm_attrs(l, -1);
    ds_value in[2] = {DS_NONE, l->r.map[x]};
    ds_value out[DS_MAX_OUT];
    if (ds_graph_meta(l->r.to, in[1]).dtype != dtype) {
        const dsi_cast_attrs cast = {.dtype = dtype};
        DS_TRY(apply1(l, &dsi_op_cast, &cast, in[1], &in[1]));
    }
    if (gathers) {
        attrs.bucket = next_bucket(l, count_of(l, param), dtype, l->spec->gather_bucket);
    }
    DS_TRY(ds_graph_read(l->r.to, param, &in[0]));
    DS_TRY(ds_graph_apply(l->r.to, gathers ? &dsi_op_gather_store : node->op,
                          gathers ? (const void *)&attrs : node->attrs, in, 2, out));
    l->r.map[y] = out[0];
    l->forms[y] = l->places[param] == DSI_ZERO_FLAT ? SLICE : WHOLE;
    return DS_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Operators that know by the rank which elements a slice has. */
static bool knows_its_slice(const ds_op *op)
{
    return op == &dsi_op_column_sums || op == &dsi_op_take_columns || op == &dsi_op_put_columns;
}

/* Whether an operator is right on a slice, and what it gives then. */
static bool works_on_slices(const lowering *l, const dsi_node_info *node, form *gives)
{
    if (node->op == &dsi_op_abs_max || node->op == &dsi_op_sum_squares ||
        node->op == &dsi_op_column_sums || node->op == &dsi_op_take_columns) {
        *gives = SHARE;
        return true;
    }
    *gives = SLICE;
    if (node->op == &dsi_op_put_columns || node->op == &dsi_op_postpone) {
        return true;
    }
    return is_update(l, node) && (node->op->flags & DS_OP_INPLACE) != 0;
}

/* The local value of input i, brought to a form that the operator takes. */
static ds_status lower_input(lowering *l, const dsi_node_info *node, ds_value v, bool update,
                             form *seen, ds_value *value_out)
{
    const dsi_value_info *info = &l->r.from->values[v];
    const ds_cell_info *cell = info->cell != DS_NONE ? ds_cells_get(l->cells, info->cell) : NULL;
    const bool folds = node->op == &dsi_op_max_of || node->op == &dsi_op_sum_parts;
    if (cell != NULL && cell->kind == DS_CELL_GRAD && l->places[info->cell] == DSI_ZERO_PARTIAL) {
        DS_TRY(reduced_gradient(l, v));
    }
    if (cell != NULL && cell->kind == DS_CELL_PARAM && l->places[info->cell] == DSI_ZERO_FLAT &&
        !update && !knows_its_slice(node->op)) {
        return whole_parameter(l, info->cell, value_out);
    }
    if (l->forms[v] == SHARE && !folds) {
        DS_TRY(combine(l, v));
    }
    if (l->forms[v] != WHOLE) {
        *seen = (form)l->forms[v];
    }
    *value_out = l->r.map[v];
    return DS_OK;
}

static ds_status lower_node(lowering *l, ds_node n)
{
    const dsi_node_info *node = &l->r.from->nodes[n];
    const ds_value *logical = dsi_node_out(l->r.from, node);
    const bool update = is_update(l, node);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    form seen = WHOLE;
    form gives = WHOLE;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        in[i] = dsi_node_in(l->r.from, node)[i];
        if (in[i] != DS_NONE) {
            DS_TRY(lower_input(l, node, in[i], update, &seen, &in[i]));
        }
    }
    if (seen == SLICE && !works_on_slices(l, node, &gives)) {
        return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "%s: %s does not work on the slices of zero_optimization.stage %u with %u "
                       "ranks; stage 0 does",
                       node->scope, node->op->name, l->spec->stage, l->spec->n_ranks);
    }
    gives = seen == SHARE ? SHARE : gives;
    if (update && seen == SLICE &&
        l->places[l->r.from->values[logical[0]].cell] == DSI_ZERO_LOCAL) {
        return update_whole(l, node, in);
    }
    DS_TRY(ds_graph_apply(l->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&l->r, node, out);
    for (uint32_t i = 0; i < node->n_out; ++i) {
        if (logical[i] != DS_NONE) {
            l->forms[logical[i]] = update ? WHOLE : (uint8_t)gives;
        }
    }
    return gives == SHARE && knows_its_slice(node->op) ? complete_columns(l, node) : DS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ds_status localize_cells(lowering *l)
{
    for (ds_cell c = ds_cells_count(l->cells); c < ds_cells_count(l->r.from->cells); ++c) {
        ds_cell_info info = *ds_cells_get(l->r.from->cells, c);
        ds_cell same = DS_NONE;
        info.meta = dsi_zero_meta(l->spec, info.meta, l->places[c]);
        DS_TRY(ds_cells_add(l->cells, &info, &same));
    }
    return DS_OK;
}

static void find_forms_of_cells(lowering *l)
{
    for (ds_value v = 0; v < l->r.from->n_values; ++v) {
        const dsi_value_info *info = &l->r.from->values[v];
        if (info->producer == DS_NONE) {
            l->forms[v] = l->places[info->cell] == DSI_ZERO_FLAT ? SLICE : WHOLE;
        }
    }
}

static ds_status lower_graph(lowering *l)
{
    const ds_graph *g = l->r.from;
    ds_phase phase = DS_PHASE_FORWARD;
    find_forms_of_cells(l);
    DS_TRY(fill_buckets(l));
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        if (node->phase != phase) {
            phase = node->phase;
            close_bucket(l); /* a collective belongs to one phase */
        }
        DS_TRY(dsi_rewrite_stand_at(&l->r, node));
        DS_TRY(ends_gradient(l, node)    ? lower_gradient(l, n)
               : sets_parameter(l, node) ? set_parameter(l, node)
                                         : lower_node(l, n));
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        if (l->forms[v] == SHARE) {
            DS_TRY(combine(l, v));
        }
    }
    return DS_OK;
}

ds_status dsi_zero_localize(const ds_graph *graph, const dsi_zero_spec *spec, ds_cells *local,
                            ds_graph **local_out)
{
    const size_t n_cells = (size_t)ds_cells_count(graph->cells) + 1;
    lowering l = {.spec = spec, .r = {.from = graph}, .cells = local, .bucket_id = -1};
    l.places = calloc(n_cells, sizeof *l.places);
    l.gathered = malloc(n_cells * sizeof *l.gathered);
    l.used_at = calloc(n_cells, sizeof *l.used_at);
    l.forms = calloc((size_t)graph->n_values + 1, sizeof *l.forms);
    l.bucket = calloc((size_t)graph->n_nodes + 1, sizeof *l.bucket);
    ds_status status = DS_OK;
    if (l.places == NULL || l.gathered == NULL || l.used_at == NULL || l.forms == NULL ||
        l.bucket == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to place the graph");
    } else {
        memset(l.gathered, 0xff, n_cells * sizeof *l.gathered); /* all DS_NONE */
        dsi_zero_rules(spec, graph->cells, l.places);
        status = localize_cells(&l);
    }
    if (status >= 0) {
        status = dsi_rewrite_begin(&l.r, graph, local);
    }
    if (status >= 0) {
        status = lower_graph(&l);
    }
    free(l.places);
    free(l.gathered);
    free(l.used_at);
    free(l.forms);
    free(l.bucket);
    return dsi_rewrite_end(&l.r, status, local_out);
}
