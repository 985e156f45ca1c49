/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the rows of a micro-batch in two. See domino.h.
 *
 * A half is an axis of two ranks that are one: which dims a node may be cut along, what its
 * attributes are then, and which results are sums its operator's rule says (place/rule.h), as it
 * does for axes of the mesh. In place of moving values between ranks, both halves are there.
 *
 * Invariants: 1. of a value that is cut both halves are there; 2. rows stay in their order, those
 * of half 1 first; 3. a value is put together, or cut, in each phase anew, so that nothing lives
 * longer for it; 4. a mean over rows is made of all rows.
 */
#include "pass/domino.h"

#include "ir/rewrite.h"
#include "op/ops.h"
#include "place/rule.h"

#include <stdlib.h>
#include <string.h>

enum { N_HALVES = 2, ROW_DIM = 0, ATTRS = 64 };
static const dsi_axis AXIS = DSI_AXIS_DPS; /* that stands for the halves */

/* A value of the graph made, and the phase that made it. */
typedef struct form {
    ds_value value; /* DS_NONE: not there */
    ds_phase phase;
} form;

/* What stands for a value of the graph that is read. */
typedef struct pieces {
    bool is_cut;                /* made in halves; else whole, or an input's cell */
    ds_value made[N_HALVES];    /* where is_cut */
    form whole, part[N_HALVES]; /* put together, or cut, for readers of a phase */
} pieces;

typedef struct cutter {
    dsi_rewrite r;
    dsi_mesh mesh; /* of the two halves */
    int64_t rows;
    pieces *of; /* per value of `from` */
} cutter;

/* One way to cut a node, and what it is cut from. */
typedef struct cut {
    ds_place_case rule;
    dsi_strategy how;
    ds_meta in[DS_MAX_IN], out[DS_MAX_OUT];
    uint32_t chained[DS_MAX_OUT]; /* of a sum: the input that is added to it, DS_MAX_IN: none */
} cut;

static bool is_sum(dsi_place_on on)
{
    return on.kind == DSI_PARTIAL && on.dim == DSI_TERMS_SUM;
}

static bool is_rows(dsi_place_on on)
{
    return on.kind == DSI_SHARD && on.dim == ROW_DIM && on.blocks == 0;
}

static dsi_placement placed(dsi_place_on on)
{
    dsi_placement p = dsi_replicate();
    p.on[AXIS] = is_rows(on) ? on : (dsi_place_on){0};
    return p;
}

/* First row and number of rows of a half. */
static void rows_of(const cutter *c, ds_meta meta, uint32_t half, int64_t *start, int64_t *n)
{
    const dsi_placement p = placed((dsi_place_on){DSI_SHARD, ROW_DIM, 0});
    const dsi_part first = dsi_placement_part(&c->mesh, &p, meta.shape, 0);
    const int64_t n_first = dsi_part_shape(&first).dims[ROW_DIM];
    *start = half == 0 ? 0 : n_first;
    *n = half == 0 ? n_first : meta.shape.dims[ROW_DIM] - n_first;
}

/* Whether the first dim of what a cell has is the micro-batch's rows. */
static bool is_input_rows(const cutter *c, ds_value v)
{
    const dsi_value_info *info = &c->r.from->values[v];
    return info->producer == DS_NONE && info->cell != DS_NONE &&
           ds_cells_get(c->r.from->cells, info->cell)->kind == DS_CELL_INPUT &&
           info->meta.shape.n_dims > 1 && info->meta.shape.dims[ROW_DIM] == c->rows;
}

/* ---- how a node is cut ----------------------------------------------------------------------- */

static void describe(const cutter *c, const dsi_node_info *node, cut *k)
{
    const ds_graph *g = c->r.from;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        k->in[i] = v != DS_NONE ? g->values[v].meta : (ds_meta){0};
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(g, node)[o];
        k->out[o] = v != DS_NONE ? g->values[v].meta : (ds_meta){0};
    }
    dsi_rule_case_make(node->op, node->attrs, k->in, node->n_in, k->out, node->n_out, &k->rule);
}

/* The one input, a hex digit of the rule, that is added to sum o, which may be absent; DS_MAX_IN:
 * none. */
static uint32_t added_to(const dsi_node_info *node, uint32_t o)
{
    uint32_t at = DS_MAX_IN;
    const char *word = node->op->place->out;
    for (uint32_t i = 0; i < o && word != NULL && *word != '\0'; ++i) {
        word += strcspn(word, " ");
        word += *word == ' ' ? 1 : 0;
    }
    const size_t plus = word != NULL ? strcspn(word, " +") : 0;
    if (word != NULL && word[plus] == '+' && (word[plus + 2] == ' ' || word[plus + 2] == '\0')) {
        const char digit = word[plus + 1];
        at = (uint32_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    return at < node->op->n_in_max ? at : DS_MAX_IN;
}

static bool takes_inputs(const cutter *c, const dsi_node_info *node, const cut *k)
{
    bool any = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(c->r.from, node)[i];
        const dsi_place_on on = k->how.in[i];
        if (v == DS_NONE) {
            continue;
        }
        if ((on.kind == DSI_SHARD && !is_rows(on)) || (on.kind == DSI_PARTIAL && !is_sum(on)) ||
            (c->of[v].is_cut && !is_rows(on))) {
            return false;
        }
        any = any || (is_rows(on) && (c->of[v].is_cut || is_input_rows(c, v)));
    }
    return any;
}

/* Rows, what all rows have alike, and sums in fp32 or wider. */
static bool makes_outputs(const cutter *c, const dsi_node_info *node, cut *k)
{
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(c->r.from, node)[o];
        const dsi_place_on on = k->how.out[o];
        k->chained[o] = DS_MAX_IN;
        if (v == DS_NONE) {
            continue;
        }
        if (c->r.from->values[v].cell != DS_NONE || (on.kind == DSI_SHARD && !is_rows(on)) ||
            (on.kind == DSI_PARTIAL && !is_sum(on))) {
            return false;
        }
        if (is_sum(on)) {
            k->chained[o] = added_to(node, o);
            const bool wide = k->out[o].dtype == DS_DTYPE_F32 || node->op == &dsi_op_linear_dw;
            if (!wide) {
                return false;
            }
        }
    }
    return true;
}

/* Terms of sums that come in have to be those that half 2's go behind. */
static bool chains_inputs(const cutter *c, const dsi_node_info *node, const cut *k)
{
    for (uint32_t i = 0; i < node->n_in; ++i) {
        bool chained = dsi_node_in(c->r.from, node)[i] == DS_NONE || !is_sum(k->how.in[i]);
        for (uint32_t o = 0; o < node->n_out; ++o) {
            chained = chained || k->chained[o] == i;
        }
        if (!chained) {
            return false;
        }
    }
    return true;
}

/* Whether the node is cut, and how. */
static bool find_cut(const cutter *c, const dsi_node_info *node, cut *k)
{
    const dsi_place_policy policy = {.own = 1u << AXIS};
    dsi_strategy list[DSI_RULE_STRATEGIES];
    if (!dsi_phase_is_micro(&c->r.from->phases, node->phase) || node->op->place == NULL ||
        (node->op->flags & (DS_OP_RANKS | DS_OP_COMM)) != 0 || node->op->writes != NULL ||
        node->op->attrs_bytes > ATTRS * sizeof(double)) {
        return false;
    }
    describe(c, node, k);
    const uint32_t n = dsi_rule_strategies(&k->rule, &c->mesh, AXIS, &policy, 0, list);
    for (uint32_t i = 0; i < n; ++i) {
        k->how = list[i];
        if (k->how.letter != '\0' && k->how.averaged == 0 && takes_inputs(c, node, k) &&
            makes_outputs(c, node, k) && chains_inputs(c, node, k)) {
            return true;
        }
    }
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* All rows of a value, for a node that stands at its place. */
static ds_status whole(cutter *c, ds_value v, ds_value *value_out)
{
    pieces *p = &c->of[v];
    const uint32_t half = c->r.to->half;
    if (!p->is_cut) {
        *value_out = c->r.map[v];
        return DS_OK;
    }
    if (p->whole.value == DS_NONE || p->whole.phase != c->r.to->phase) {
        const dsi_concat_attrs attrs = {.dim = ROW_DIM};
        ds_value out[DS_MAX_OUT];
        c->r.to->half = 0;
        DS_TRY(ds_graph_apply(c->r.to, &dsi_op_concat, &attrs, p->made, N_HALVES, out));
        c->r.to->half = half;
        p->whole = (form){out[0], c->r.to->phase};
    }
    *value_out = p->whole.value;
    return DS_OK;
}

/* The rows that a half has of a value. */
static ds_status part(cutter *c, ds_value v, uint32_t half, ds_value *value_out)
{
    pieces *p = &c->of[v];
    form *f = &p->part[half];
    if (p->is_cut) {
        *value_out = p->made[half];
        return DS_OK;
    }
    if (f->value == DS_NONE || f->phase != c->r.to->phase) {
        dsi_slice_attrs attrs = {.dim = ROW_DIM};
        ds_value out[DS_MAX_OUT];
        rows_of(c, c->r.from->values[v].meta, half, &attrs.start, &attrs.length);
        DS_TRY(ds_graph_apply(c->r.to, &dsi_op_slice, &attrs, &c->r.map[v], 1, out));
        *f = (form){out[0], c->r.to->phase};
    }
    *value_out = f->value;
    return DS_OK;
}

/* What draws by sample: half 2 begins behind the samples of half 1. */
static ds_status draw_behind(cutter *c, const cut *k, ds_value *rng)
{
    dsi_rng_ahead_attrs attrs = {0};
    int64_t start = 0;
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < k->rule.n_in && attrs.samples == 0; ++i) {
        if (is_rows(k->how.in[i])) {
            rows_of(c, k->in[i], 0, &start, &attrs.samples);
        }
    }
    DS_TRY(ds_graph_apply(c->r.to, &dsi_op_rng_ahead, &attrs, rng, 1, out));
    *rng = out[0];
    return DS_OK;
}

static bool is_rng(ds_meta meta)
{
    enum { RNG = 4 };
    return meta.dtype == DS_DTYPE_I64 && meta.shape.n_dims == 1 && meta.shape.dims[0] == RNG;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Inputs of a half's node; returns how many. sums: what half 1 made of each output. */
static ds_status half_inputs(cutter *c, const dsi_node_info *node, const cut *k, uint32_t half,
                             const ds_value *sums, ds_value *in, uint32_t *n_in)
{
    const bool draws = (k->rule.flags & DS_PLACE_SAMPLES) != 0;
    *n_in = node->n_in;
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        const ds_value v = i < node->n_in ? dsi_node_in(c->r.from, node)[i] : DS_NONE;
        in[i] = DS_NONE;
        if (v == DS_NONE) {
            continue;
        }
        DS_TRY(is_rows(k->how.in[i]) ? part(c, v, half, &in[i]) : whole(c, v, &in[i]));
        if (draws && half > 0 && is_rng(k->in[i])) {
            DS_TRY(draw_behind(c, k, &in[i]));
        }
    }
    for (uint32_t o = 0; half > 0 && o < node->n_out; ++o) {
        if (k->chained[o] < DS_MAX_IN && dsi_node_out(c->r.from, node)[o] != DS_NONE &&
            is_sum(k->how.out[o])) {
            in[k->chained[o]] = sums[o];
            *n_in = *n_in > k->chained[o] ? *n_in : k->chained[o] + 1;
        }
    }
    return DS_OK;
}

static void half_attrs(const cutter *c, const dsi_node_info *node, const cut *k, uint32_t half,
                       void *attrs_out)
{
    dsi_placement need[DS_MAX_IN];
    dsi_placement made[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        need[i] = placed(k->how.in[i]);
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        made[o] = placed(k->how.out[o]);
    }
    dsi_rule_local_attrs(&k->rule, &c->mesh, need, made, half, attrs_out);
    if (node->op == &dsi_op_linear_dw && half == 0) {
        ((dsi_linear_dw_attrs *)attrs_out)->out_dtype = 0; /* rounded once, with half 2 */
    }
}

/* Sums that are added to none of their operator's inputs. */
static ds_status add_sums(cutter *c, const dsi_node_info *node, const cut *k, const ds_value *first,
                          ds_value *second)
{
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(c->r.from, node)[o];
        if (v != DS_NONE && is_sum(k->how.out[o]) && k->chained[o] == DS_MAX_IN) {
            const ds_value in[2] = {first[o], second[o]};
            ds_value out[DS_MAX_OUT];
            DS_TRY(ds_graph_apply(c->r.to, &dsi_op_add, NULL, in, 2, out));
            second[o] = out[0];
        }
    }
    return DS_OK;
}

static ds_status cut_node(cutter *c, const dsi_node_info *node, const cut *k)
{
    ds_value made[N_HALVES][DS_MAX_OUT];
    double attrs[ATTRS];
    for (uint32_t half = 0; half < N_HALVES; ++half) {
        ds_value in[DS_MAX_IN];
        uint32_t n_in = 0;
        c->r.to->half = half + 1;
        DS_TRY(half_inputs(c, node, k, half, made[0], in, &n_in));
        half_attrs(c, node, k, half, attrs);
        DS_TRY(ds_graph_apply(c->r.to, node->op, node->op->attrs_bytes > 0 ? attrs : NULL, in, n_in,
                              made[half]));
    }
    DS_TRY(add_sums(c, node, k, made[0], made[1]));
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(c->r.from, node)[o];
        if (v == DS_NONE) {
            continue;
        }
        c->of[v].is_cut = is_rows(k->how.out[o]);
        c->of[v].made[0] = made[0][o];
        c->of[v].made[1] = made[1][o];
        c->r.map[v] = made[is_sum(k->how.out[o]) ? 1 : 0][o];
    }
    return DS_OK;
}

static ds_status copy_node(cutter *c, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(c->r.from, node)[i];
        in[i] = DS_NONE;
        if (v != DS_NONE) {
            DS_TRY(whole(c, v, &in[i]));
        }
    }
    DS_TRY(ds_graph_apply(c->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&c->r, node, out);
    return DS_OK;
}

static ds_status rebuild_node(cutter *c, const dsi_node_info *node)
{
    cut k;
    memset(&k, 0, sizeof k);
    if (node->op == &dsi_op_grouped_linear) {
        return ds_fail(c->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "tensor_parallel.domino does not go with experts (%s), whose rows are "
                       "grouped over the whole micro-batch; set it to false",
                       node->scope);
    }
    DS_TRY(dsi_rewrite_stand_at(&c->r, node));
    return find_cut(c, node, &k) ? cut_node(c, node, &k) : copy_node(c, node);
}

/* Outputs of the graph have all rows. */
static ds_status finish_outputs(cutter *c)
{
    for (uint32_t i = 0; i < c->r.from->n_outputs; ++i) {
        const ds_value v = c->r.from->outputs[i].value;
        if (c->of[v].is_cut) {
            DS_TRY(dsi_rewrite_stand_at(&c->r, &c->r.from->nodes[c->r.from->values[v].producer]));
            ds_graph_set_phase(c->r.to, c->r.to->nodes[c->r.to->n_nodes - 1].phase);
            DS_TRY(whole(c, v, &c->r.map[v]));
        }
    }
    return DS_OK;
}

static ds_status begin(cutter *c, const ds_graph *graph)
{
    uint32_t size[DSI_AXIS_COUNT];
    for (uint32_t axis = 0; axis < DSI_AXIS_COUNT; ++axis) {
        size[axis] = axis == AXIS ? N_HALVES : 1;
    }
    DS_TRY(dsi_rewrite_begin(&c->r, graph, graph->cells));
    DS_TRY(dsi_mesh_of(graph->ctx, size, &c->mesh));
    c->of = malloc(((size_t)graph->n_values + 1) * sizeof *c->of);
    if (c->of == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to cut the micro-batch in halves");
    }
    for (ds_value v = 0; v < graph->n_values; ++v) {
        c->of[v] = (pieces){.made = {DS_NONE, DS_NONE},
                            .whole = {DS_NONE, 0},
                            .part = {{DS_NONE, 0}, {DS_NONE, 0}}};
    }
    return DS_OK;
}

ds_status dsi_domino(const ds_graph *graph, int64_t rows, ds_graph **halves_out)
{
    cutter c = {.rows = rows};
    if (rows < N_HALVES) {
        return ds_fail(graph->ctx, DS_ERR_CONFIG,
                       "tensor_parallel.domino needs 2 rows or more in a micro-batch to cut it in "
                       "halves, train_micro_batch_size_per_gpu is %lld; raise it, or set domino to "
                       "false",
                       (long long)rows);
    }
    ds_status status = begin(&c, graph);
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = rebuild_node(&c, &graph->nodes[n]);
    }
    if (status >= 0) {
        status = finish_outputs(&c);
    }
    free(c.of);
    return dsi_rewrite_end(&c.r, status, halves_out);
}
