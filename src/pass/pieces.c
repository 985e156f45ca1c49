/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a graph along one dim of its values. See pieces.h. */
#include "pass/pieces.h"

#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

enum { ATTRS = 64 };

static bool is_sum(dsi_place_on on)
{
    return on.kind == DSI_PARTIAL && on.dim == DSI_TERMS_SUM;
}

static bool is_slice(dsi_place_on on)
{
    return on.kind == DSI_SHARD && on.blocks == 0;
}

static bool is_input(const dsi_pieces *p, ds_value v)
{
    const dsi_value_info *info = &p->r.from->values[v];
    return info->producer == DS_NONE && info->cell != DS_NONE &&
           ds_cells_get(p->r.from->cells, info->cell)->kind == DS_CELL_INPUT;
}

uint32_t dsi_pieces_turn(const dsi_pieces *p, const dsi_node_info *node, uint32_t i)
{
    const bool backward = p->r.from->phases.items[node->phase].like == DS_PHASE_BACKWARD;
    return backward && p->how->backward_last_first ? p->n - 1 - i : i;
}

/* ---- how a node is cut ----------------------------------------------------------------------- */

void dsi_pieces_describe(const dsi_pieces *p, const dsi_node_info *node, dsi_piece_cut *k)
{
    const ds_graph *g = p->r.from;
    memset(k, 0, sizeof *k);
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

static bool takes_inputs(const dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *k)
{
    bool any = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(p->r.from, node)[i];
        const dsi_place_on on = k->how.in[i];
        if (v == DS_NONE) {
            continue;
        }
        if ((on.kind == DSI_SHARD && !is_slice(on)) || (on.kind == DSI_PARTIAL && !is_sum(on)) ||
            (p->is_cut[v] && !(is_slice(on) && on.dim == p->dim[v])) ||
            (!p->is_cut[v] && is_slice(on) && !p->how->may_slice(p, v, on.dim))) {
            return false;
        }
        any = any ||
              (is_slice(on) && (p->is_cut[v] || (is_input(p, v) && p->how->begins(p, v, on.dim))));
    }
    return any;
}

/* Whether a node works on rows that pieces have sorted by themselves. */
static bool is_apart(const dsi_pieces *p, const dsi_node_info *node)
{
    bool apart = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(p->r.from, node)[i];
        apart = apart || (v != DS_NONE && p->is_cut[v] && p->apart[v]);
    }
    return apart;
}

/* Pieces, what all pieces have alike, and sums in fp32 or wider. */
static bool makes_outputs(const dsi_pieces *p, const dsi_node_info *node, dsi_piece_cut *k)
{
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(p->r.from, node)[o];
        const dsi_place_on on = k->how.out[o];
        k->chained[o] = DS_MAX_IN;
        if (v == DS_NONE) {
            continue;
        }
        if (p->r.from->values[v].cell != DS_NONE ||
            (on.kind == DSI_SHARD &&
             !(is_slice(on) && (k->apart || p->how->may_make(p, v, on.dim)))) ||
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

/* Terms of sums that come in have to be those that later pieces' go behind. */
static bool chains_inputs(const dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *k)
{
    for (uint32_t i = 0; i < node->n_in; ++i) {
        bool chained = dsi_node_in(p->r.from, node)[i] == DS_NONE || !is_sum(k->how.in[i]);
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
static bool find_cut(const dsi_pieces *p, const dsi_node_info *node, dsi_piece_cut *k)
{
    const dsi_place_policy policy = {.own = p->how->own};
    dsi_strategy list[DSI_RULE_STRATEGIES];
    if (!dsi_phase_is_micro(&p->r.from->phases, node->phase) || node->op->place == NULL ||
        (node->op->flags & (DS_OP_RANKS | DS_OP_COMM)) != 0 || node->op->writes != NULL ||
        node->op->attrs_bytes > ATTRS * sizeof(double)) {
        return false;
    }
    dsi_pieces_describe(p, node, k);
    k->apart = is_apart(p, node);
    const uint32_t n = dsi_rule_strategies(&k->rule, &p->mesh, DSI_PIECES_AXIS, &policy, 0, list);
    for (uint32_t i = 0; i < n; ++i) {
        k->how = list[i];
        if (k->how.letter != '\0' && k->how.averaged == 0 && takes_inputs(p, node, k) &&
            makes_outputs(p, node, k) && chains_inputs(p, node, k)) {
            return true;
        }
    }
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

ds_status dsi_pieces_whole(dsi_pieces *p, ds_value v, ds_value *value_out)
{
    dsi_piece_form *f = &p->whole[v];
    const uint32_t half = p->r.to->half;
    if (!p->is_cut[v]) {
        *value_out = p->r.map[v];
        return DS_OK;
    }
    if (p->apart[v]) {
        const dsi_node_info *maker = &p->r.from->nodes[p->r.from->values[v].producer];
        return ds_fail(p->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "%s does not go with what reads the experts' rows of all positions (%s of "
                       "%s); leave it out",
                       p->how->key, maker->op->name, maker->scope);
    }
    if (f->value == DS_NONE || f->phase != p->r.to->phase) {
        p->r.to->half = 0;
        DS_TRY(p->how->join(p, &p->made[(size_t)v * p->n], p->dim[v], &f->value));
        p->r.to->half = half;
        f->phase = p->r.to->phase;
    }
    *value_out = f->value;
    return DS_OK;
}

ds_status dsi_pieces_part(dsi_pieces *p, ds_value v, uint32_t dim, uint32_t piece,
                          ds_value *value_out)
{
    dsi_piece_form *f = &p->part[(size_t)v * p->n + piece];
    if (p->is_cut[v]) {
        *value_out = p->made[(size_t)v * p->n + piece];
        return DS_OK;
    }
    if (f->value == DS_NONE || f->phase != p->r.to->phase) {
        DS_TRY(p->how->slice(p, p->r.map[v], dim, piece, &f->value));
        f->phase = p->r.to->phase;
    }
    *value_out = f->value;
    return DS_OK;
}

void dsi_pieces_made(dsi_pieces *p, ds_value v, uint32_t dim, const ds_value *made)
{
    if (v == DS_NONE) {
        return;
    }
    p->is_cut[v] = true;
    p->apart[v] = false;
    p->dim[v] = (uint8_t)dim;
    memcpy(&p->made[(size_t)v * p->n], made, p->n * sizeof *made);
}

static bool is_rng(ds_meta meta)
{
    enum { RNG = 4 };
    return meta.dtype == DS_DTYPE_I64 && meta.shape.n_dims == 1 && meta.shape.dims[0] == RNG;
}

/* What draws by sample: a piece begins behind the samples of those before it. */
static ds_status draw_behind(dsi_pieces *p, const dsi_piece_cut *k, uint32_t piece, ds_value *rng)
{
    for (uint32_t i = 0; i < k->rule.n_in; ++i) {
        if (is_slice(k->how.in[i])) {
            return p->how->draw_behind(p, k->in[i], piece, rng);
        }
    }
    return DS_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Inputs of a piece's node; returns how many. sums: what the pieces before made of each output,
 * NULL for the first. */
static ds_status piece_inputs(dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *k,
                              uint32_t piece, const ds_value *sums, ds_value *in, uint32_t *n_in)
{
    const bool draws = (k->rule.flags & DS_PLACE_SAMPLES) != 0 && p->how->draw_behind != NULL;
    *n_in = node->n_in;
    for (uint32_t i = 0; i < DS_MAX_IN; ++i) {
        const ds_value v = i < node->n_in ? dsi_node_in(p->r.from, node)[i] : DS_NONE;
        in[i] = DS_NONE;
        if (v == DS_NONE) {
            continue;
        }
        DS_TRY(is_slice(k->how.in[i]) ? dsi_pieces_part(p, v, k->how.in[i].dim, piece, &in[i])
                                      : dsi_pieces_whole(p, v, &in[i]));
        if (draws && piece > 0 && is_rng(k->in[i])) {
            DS_TRY(draw_behind(p, k, piece, &in[i]));
        }
    }
    for (uint32_t o = 0; sums != NULL && o < node->n_out; ++o) {
        if (k->chained[o] < DS_MAX_IN && dsi_node_out(p->r.from, node)[o] != DS_NONE &&
            is_sum(k->how.out[o])) {
            in[k->chained[o]] = sums[o];
            *n_in = *n_in > k->chained[o] ? *n_in : k->chained[o] + 1;
        }
    }
    return DS_OK;
}

static ds_meta piece_meta(const dsi_pieces *p, dsi_place_on on, ds_meta whole, uint32_t piece)
{
    if (whole.dtype != DS_DTYPE_NONE && is_slice(on)) {
        whole.shape.dims[on.dim] = p->how->length(p, whole.shape.dims[on.dim], piece);
    }
    return whole;
}

static void piece_attrs(const dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *k,
                        uint32_t piece, bool last, void *attrs_out)
{
    ds_meta in[DS_MAX_IN];
    ds_meta out[DS_MAX_OUT];
    if (k->attrs != NULL) {
        memcpy(attrs_out, node->attrs, node->op->attrs_bytes);
        k->attrs(p, node, piece, attrs_out);
        return;
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        in[i] = piece_meta(p, k->how.in[i], k->in[i], piece);
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        out[o] = piece_meta(p, k->how.out[o], k->out[o], piece);
    }
    dsi_rule_attrs_of(&k->rule, in, out, attrs_out);
    if (node->op == &dsi_op_linear_dw && !last) {
        ((dsi_linear_dw_attrs *)attrs_out)->out_dtype = 0; /* rounded once, with the last piece */
    }
}

/* Sums that are added to none of their operator's inputs. */
static ds_status add_sums(dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *k,
                          const ds_value *before, ds_value *now)
{
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(p->r.from, node)[o];
        if (v != DS_NONE && is_sum(k->how.out[o]) && k->chained[o] == DS_MAX_IN) {
            const ds_value in[2] = {before[o], now[o]};
            ds_value out[DS_MAX_OUT];
            DS_TRY(ds_graph_apply(p->r.to, &dsi_op_add, NULL, in, 2, out));
            now[o] = out[0];
        }
    }
    return DS_OK;
}

ds_status dsi_pieces_cut_node(dsi_pieces *p, const dsi_node_info *node, const dsi_piece_cut *k)
{
    ds_value before[DS_MAX_OUT];
    ds_value now[DS_MAX_OUT];
    double attrs[ATTRS];
    for (uint32_t i = 0; i < p->n; ++i) {
        const uint32_t piece = dsi_pieces_turn(p, node, i);
        ds_value in[DS_MAX_IN];
        uint32_t n_in = 0;
        p->r.to->half = piece + 1;
        DS_TRY(piece_inputs(p, node, k, piece, i > 0 ? before : NULL, in, &n_in));
        piece_attrs(p, node, k, piece, i + 1 == p->n, attrs);
        DS_TRY(ds_graph_apply(p->r.to, node->op, node->op->attrs_bytes > 0 ? attrs : NULL, in, n_in,
                              now));
        if (i > 0) {
            DS_TRY(add_sums(p, node, k, before, now));
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(p->r.from, node)[o];
            if (v == DS_NONE) {
                continue;
            }
            p->is_cut[v] = is_slice(k->how.out[o]);
            p->apart[v] = p->is_cut[v] && k->apart;
            p->dim[v] = k->how.out[o].dim;
            p->made[(size_t)v * p->n + piece] = now[o];
            p->r.map[v] = i == 0 || is_sum(k->how.out[o]) ? now[o] : p->r.map[v];
            before[o] = now[o];
        }
    }
    return DS_OK;
}

static ds_status copy_node(dsi_pieces *p, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(p->r.from, node)[i];
        in[i] = DS_NONE;
        if (v != DS_NONE) {
            DS_TRY(dsi_pieces_whole(p, v, &in[i]));
        }
    }
    DS_TRY(ds_graph_apply(p->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&p->r, node, out);
    return DS_OK;
}

static ds_status rebuild_node(dsi_pieces *p, const dsi_node_info *node)
{
    dsi_piece_cut k;
    bool made = false;
    DS_TRY(dsi_rewrite_stand_at(&p->r, node));
    if (p->how->special != NULL) {
        DS_TRY(p->how->special(p, node, &made));
    }
    if (made) {
        return DS_OK;
    }
    return find_cut(p, node, &k) ? dsi_pieces_cut_node(p, node, &k) : copy_node(p, node);
}

/* Outputs of the graph are whole. */
static ds_status finish_outputs(dsi_pieces *p)
{
    for (uint32_t i = 0; i < p->r.from->n_outputs; ++i) {
        const ds_value v = p->r.from->outputs[i].value;
        if (p->is_cut[v]) {
            DS_TRY(dsi_rewrite_stand_at(&p->r, &p->r.from->nodes[p->r.from->values[v].producer]));
            ds_graph_set_phase(p->r.to, p->r.to->nodes[p->r.to->n_nodes - 1].phase);
            DS_TRY(dsi_pieces_whole(p, v, &p->r.map[v]));
        }
    }
    return DS_OK;
}

static ds_status begin(dsi_pieces *p, const ds_graph *graph)
{
    const size_t n_values = (size_t)graph->n_values + 1;
    uint32_t size[DSI_AXIS_COUNT];
    for (uint32_t axis = 0; axis < DSI_AXIS_COUNT; ++axis) {
        size[axis] = axis == DSI_PIECES_AXIS ? p->n : 1;
    }
    DS_TRY(dsi_rewrite_begin(&p->r, graph, graph->cells));
    DS_TRY(dsi_mesh_of(graph->ctx, size, &p->mesh));
    p->is_cut = calloc(n_values, sizeof *p->is_cut);
    p->apart = calloc(n_values, sizeof *p->apart);
    p->dim = calloc(n_values, sizeof *p->dim);
    p->made = malloc(n_values * p->n * sizeof *p->made);
    p->whole = malloc(n_values * sizeof *p->whole);
    p->part = malloc(n_values * p->n * sizeof *p->part);
    if (p->is_cut == NULL || p->apart == NULL || p->dim == NULL || p->made == NULL ||
        p->whole == NULL || p->part == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to cut a graph in pieces");
    }
    for (size_t v = 0; v < n_values; ++v) {
        p->whole[v] = (dsi_piece_form){DS_NONE, 0};
    }
    for (size_t i = 0; i < n_values * p->n; ++i) {
        p->made[i] = DS_NONE;
        p->part[i] = (dsi_piece_form){DS_NONE, 0};
    }
    return DS_OK;
}

ds_status dsi_pieces_cut(const ds_graph *graph, uint32_t n, const dsi_pieces_how *how,
                         const void *user, ds_graph **made_out)
{
    dsi_pieces p = {.how = how, .user = user, .n = n};
    ds_status status = begin(&p, graph);
    for (ds_node at = 0; at < graph->n_nodes && status >= 0; ++at) {
        status = rebuild_node(&p, &graph->nodes[at]);
    }
    if (status >= 0) {
        status = finish_outputs(&p);
    }
    free(p.is_cut);
    free(p.apart);
    free(p.dim);
    free(p.made);
    free(p.whole);
    free(p.part);
    return dsi_rewrite_end(&p.r, status, made_out);
}
