/* SPDX-License-Identifier: Apache-2.0 */
/* The fusion pass: one walk that finds patterns, one that rebuilds the graph. See fuse.h.
 *
 * A decision is stored at the node where the fused node is emitted (`emit`); nodes that it swallows
 * are marked `gone`. A node takes part in one pattern at most.
 */
#include "pass/fuse.h"

#include "ir/rewrite.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

typedef enum pattern {
    PLAIN,
    LINEAR_ACTIVATION, /* at the linear; other = activation */
    LINEAR_RESIDUAL,   /* at the add; other = linear */
    NORM_RESIDUAL,     /* at the add; other = norm backward */
    NARROW,            /* at the product; its casts are gone */
    ACCUMULATE         /* at the later product; other = add */
} pattern;

typedef struct fuser {
    dsi_rewrite r;
    const ds_graph *graph;
    uint32_t *uses;   /* per value: reads, named outputs included */
    ds_node *user;    /* per value: its last reader */
    pattern *pattern; /* per node */
    ds_node *other;   /* per node */
    bool *gone;       /* per node: swallowed */
    ds_node *into;    /* per node: the product that accumulates instead of this add, or DS_NONE */
    bool trains;      /* the graph has a backward pass */
} fuser;

static const dsi_node_info *node_at(const fuser *f, ds_node n)
{
    return &f->graph->nodes[n];
}

static ds_value in_of(const fuser *f, ds_node n, uint32_t i)
{
    return i < node_at(f, n)->n_in ? dsi_node_in(f->graph, node_at(f, n))[i] : DS_NONE;
}

static ds_value out_of(const fuser *f, ds_node n, uint32_t i)
{
    return i < node_at(f, n)->n_out ? dsi_node_out(f->graph, node_at(f, n))[i] : DS_NONE;
}

static ds_meta meta_of(const fuser *f, ds_value v)
{
    return v == DS_NONE ? (ds_meta){0} : f->graph->values[v].meta;
}

static ds_node producer_of(const fuser *f, ds_value v)
{
    return v == DS_NONE ? DS_NONE : f->graph->values[v].producer;
}

static bool is_free(const fuser *f, ds_node n)
{
    return n != DS_NONE && f->pattern[n] == PLAIN && !f->gone[n];
}

/* In one phase, and on one stage of a pipeline. */
static bool together(const fuser *f, ds_node a, ds_node b)
{
    return node_at(f, a)->phase == node_at(f, b)->phase &&
           node_at(f, a)->stage == node_at(f, b)->stage;
}

static bool same_meta(ds_meta a, ds_meta b)
{
    return a.dtype == b.dtype && ds_shape_equal(a.shape, b.shape);
}

static void count_uses(fuser *f)
{
    const dsi_phases *phases = &f->graph->phases;
    for (ds_node n = 0; n < f->graph->n_nodes; ++n) {
        const ds_phase phase = node_at(f, n)->phase;
        f->trains = f->trains ||
                    (dsi_phase_is_micro(phases, phase) && !dsi_phase_is_forward(phases, phase));
        for (uint32_t i = 0; i < node_at(f, n)->n_in; ++i) {
            const ds_value v = in_of(f, n, i);
            if (v != DS_NONE) {
                f->uses[v] += 1;
                f->user[v] = n;
            }
        }
    }
    for (uint32_t i = 0; i < f->graph->n_outputs; ++i) {
        f->uses[f->graph->outputs[i].value] += 1;
    }
}

static void find_linear_activation(fuser *f, ds_node n)
{
    const dsi_act_attrs *act = node_at(f, n)->attrs;
    const ds_node linear = producer_of(f, in_of(f, n, 0));
    if (act->kind != DSI_ACT_GELU_TANH || !is_free(f, linear) ||
        node_at(f, linear)->op != &dsi_op_linear || in_of(f, n, 0) != out_of(f, linear, 0) ||
        !together(f, linear, n)) {
        return;
    }
    const dsi_linear_attrs *attrs = node_at(f, linear)->attrs;
    const bool exact = !f->trains || f->uses[in_of(f, n, 0)] > 1; /* then it is of what is saved */
    if (attrs->activation == DSI_ACT_NONE && in_of(f, linear, 3) == DS_NONE && exact) {
        f->pattern[linear] = LINEAR_ACTIVATION;
        f->other[linear] = n;
        f->gone[n] = true;
    }
}

/* Whether a linear layer's output is nothing but a term of the add. */
static bool is_term(const fuser *f, ds_node add, ds_node linear, ds_value sum, ds_value residual)
{
    return is_free(f, linear) && node_at(f, linear)->op == &dsi_op_linear && f->uses[sum] == 1 &&
           together(f, linear, add) && residual != sum &&
           same_meta(meta_of(f, sum), meta_of(f, residual)) &&
           ((const dsi_linear_attrs *)node_at(f, linear)->attrs)->activation == DSI_ACT_NONE;
}

/* Adapters add to what they are beside (compile/adapter_graph.h): the first of such a chain, the
 * layer itself, takes the residual. So a layer is rounded as without them, where a token's part of
 * theirs is 0. */
static bool try_linear_residual(fuser *f, ds_node add, ds_value sum, ds_value residual)
{
    const bool forward = dsi_phase_is_forward(&f->graph->phases, node_at(f, add)->phase);
    ds_value at = sum;
    ds_node linear = producer_of(f, at);
    while (is_term(f, add, linear, at, residual) && in_of(f, linear, 3) != DS_NONE && forward) {
        at = in_of(f, linear, 3);
        linear = producer_of(f, at);
    }
    if (!is_term(f, add, linear, at, residual) || in_of(f, linear, 3) != DS_NONE) {
        return false;
    }
    f->pattern[add] = LINEAR_RESIDUAL;
    f->other[add] = producer_of(f, sum);
    for (; at != sum; sum = in_of(f, producer_of(f, sum), 3)) {
        f->gone[producer_of(f, sum)] = true;
    }
    f->gone[linear] = true;
    return true;
}

static bool try_norm_residual(fuser *f, ds_node add, ds_value dx, ds_value dres)
{
    const ds_node norm = producer_of(f, dx);
    if (!is_free(f, norm) || f->uses[dx] != 1 || dx != out_of(f, norm, 0) ||
        !together(f, norm, add) ||
        (node_at(f, norm)->op != &dsi_op_layer_norm_backward &&
         node_at(f, norm)->op != &dsi_op_rms_norm_backward) ||
        !same_meta(meta_of(f, dx), meta_of(f, dres)) ||
        in_of(f, norm, node_at(f, norm)->op->n_in_max - 1) != DS_NONE) {
        return false;
    }
    for (uint32_t i = 1; i < node_at(f, norm)->n_out; ++i) { /* dw, db must not be needed earlier */
        const ds_value v = out_of(f, norm, i);
        if (v != DS_NONE && (f->uses[v] > 1 || (f->uses[v] == 1 && f->user[v] < add))) {
            return false;
        }
    }
    f->pattern[add] = NORM_RESIDUAL;
    f->other[add] = norm;
    f->gone[norm] = true;
    return true;
}

/* The operand of a weight-gradient product that it may add to, or DS_NONE. */
static uint32_t accumulating_input(const fuser *f, ds_node n, ds_value dw)
{
    const dsi_node_info *node = node_at(f, n);
    if (node->op == &dsi_op_embedding_dw && dw == out_of(f, n, 0)) {
        return 2;
    }
    if (node->op == &dsi_op_embedding_part_dw && dw == out_of(f, n, 0)) {
        return 3;
    }
    if (node->op == &dsi_op_linear_cross_entropy_part_backward && dw == out_of(f, n, 1)) {
        return 7;
    }
    if (node->op == &dsi_op_linear_cross_entropy_backward && dw == out_of(f, n, 1)) {
        return 6;
    }
    if (node->op == &dsi_op_linear_logprob_backward && dw == out_of(f, n, 1)) {
        return 5;
    }
    if (node->op == &dsi_op_linear_dw && dw == out_of(f, n, 0) &&
        ((const dsi_linear_dw_attrs *)node->attrs)->with_bias == 0) {
        return 2;
    }
    return DS_NONE;
}

/* The node that makes a value once adds are swallowed. */
static ds_node maker_of(const fuser *f, ds_value v)
{
    const ds_node n = producer_of(f, v);
    return n != DS_NONE && f->into[n] != DS_NONE ? f->into[n] : n;
}

static bool try_accumulate(fuser *f, ds_node add, ds_value a, ds_value b)
{
    const ds_node pa = maker_of(f, a);
    const ds_node pb = maker_of(f, b);
    if (pa == DS_NONE || pb == DS_NONE || f->uses[a] != 1 || f->uses[b] != 1 ||
        meta_of(f, a).dtype != DS_DTYPE_F32) {
        return false;
    }
    const ds_value later = pa > pb ? a : b;
    const ds_node product = pa > pb ? pa : pb;
    const uint32_t input = accumulating_input(f, product, later);
    if (!is_free(f, product) || input == DS_NONE || in_of(f, product, input) != DS_NONE ||
        node_at(f, product)->phase != node_at(f, add)->phase) {
        return false;
    }
    f->pattern[product] = ACCUMULATE;
    f->other[product] = add;
    f->gone[add] = true;
    f->into[add] = product;
    return true;
}

static void find_add(fuser *f, ds_node n)
{
    const ds_value a = in_of(f, n, 0);
    const ds_value b = in_of(f, n, 1);
    if (!same_meta(meta_of(f, a), meta_of(f, b)) || a == b) {
        return;
    }
    if (try_linear_residual(f, n, b, a) || try_linear_residual(f, n, a, b) ||
        try_norm_residual(f, n, b, a) || try_norm_residual(f, n, a, b)) {
        return;
    }
    (void)try_accumulate(f, n, a, b);
}

/* All f32 outputs of a product are cast to one narrow dtype, and only that. */
static void find_narrow(fuser *f, ds_node n)
{
    ds_dtype dtype = DS_DTYPE_NONE;
    for (uint32_t i = 0; i < node_at(f, n)->n_out; ++i) {
        const ds_value v = out_of(f, n, i);
        if (v == DS_NONE) {
            continue;
        }
        const ds_node cast = f->uses[v] == 1 ? f->user[v] : DS_NONE;
        if (!is_free(f, cast) || node_at(f, cast)->op != &dsi_op_cast ||
            (dtype != DS_DTYPE_NONE && meta_of(f, out_of(f, cast, 0)).dtype != dtype)) {
            return;
        }
        dtype = meta_of(f, out_of(f, cast, 0)).dtype;
    }
    if (dtype != DS_DTYPE_BF16 && dtype != DS_DTYPE_F16) {
        return;
    }
    for (uint32_t i = 0; i < node_at(f, n)->n_out; ++i) {
        if (out_of(f, n, i) != DS_NONE) {
            f->gone[f->user[out_of(f, n, i)]] = true;
        }
    }
    f->pattern[n] = NARROW;
}

static void find_patterns(fuser *f)
{
    for (ds_node n = 0; n < f->graph->n_nodes; ++n) {
        if (!is_free(f, n)) {
            continue;
        }
        if (node_at(f, n)->op == &dsi_op_activation) {
            find_linear_activation(f, n);
        } else if (node_at(f, n)->op == &dsi_op_add) {
            find_add(f, n);
        } else if (node_at(f, n)->op == &dsi_op_linear_dw && node_at(f, n)->n_in == 2) {
            find_narrow(f, n);
        }
    }
}

/* Emits one node: op and attrs, inputs of node n through the map. */
static ds_status emit(fuser *f, ds_node n, const void *attrs, uint32_t extra_at, ds_value extra,
                      ds_value *out)
{
    const dsi_node_info *node = node_at(f, n);
    ds_value in[DS_MAX_IN];
    uint32_t n_in = node->n_in;
    dsi_rewrite_inputs(&f->r, node, in);
    if (extra_at != DS_NONE) {
        in[extra_at] = extra;
        n_in = extra_at >= n_in ? extra_at + 1 : n_in;
    }
    return ds_graph_apply(f->r.to, node->op, attrs, in, n_in, out);
}

static ds_status emit_linear_activation(fuser *f, ds_node n)
{
    ds_value out[DS_MAX_OUT];
    dsi_linear_attrs attrs = *(const dsi_linear_attrs *)node_at(f, n)->attrs;
    attrs.activation = DSI_ACT_GELU_TANH;
    attrs.save_pre = f->uses[out_of(f, n, 0)] > 1;
    DS_TRY(emit(f, n, &attrs, DS_NONE, DS_NONE, out));
    f->r.map[out_of(f, n, 0)] = out[1];
    f->r.map[out_of(f, f->other[n], 0)] = out[0];
    return DS_OK;
}

/* The node takes the residual; where it has one, what made that does. Of such a chain each keeps
 * its scope, by which a layer's own product is known. */
static ds_status emit_with(fuser *f, ds_node add, ds_node inner, uint32_t extra_at,
                           ds_value residual)
{
    const ds_value below = in_of(f, inner, extra_at);
    dsi_node_info place = *node_at(f, add);
    ds_value out[DS_MAX_OUT];
    if (below != DS_NONE) {
        DS_TRY(emit_with(f, add, producer_of(f, below), extra_at, residual));
        residual = f->r.map[below];
    }
    place.scope =
        in_of(f, f->other[add], extra_at) != DS_NONE ? node_at(f, inner)->scope : place.scope;
    DS_TRY(dsi_rewrite_stand_at(&f->r, &place));
    DS_TRY(emit(f, inner, node_at(f, inner)->attrs, extra_at, residual, out));
    dsi_rewrite_made(&f->r, node_at(f, inner), out);
    return DS_OK;
}

static ds_status emit_residual(fuser *f, ds_node add, uint32_t extra_at)
{
    const ds_value sum = out_of(f, f->other[add], 0);
    const ds_value residual = in_of(f, add, 0) == sum ? in_of(f, add, 1) : in_of(f, add, 0);
    DS_TRY(emit_with(f, add, f->other[add], extra_at, f->r.map[residual]));
    f->r.map[out_of(f, add, 0)] = f->r.map[sum];
    return DS_OK;
}

static ds_status emit_narrow(fuser *f, ds_node n)
{
    ds_value out[DS_MAX_OUT];
    dsi_linear_dw_attrs attrs = *(const dsi_linear_dw_attrs *)node_at(f, n)->attrs;
    const ds_node cast = f->user[out_of(f, n, 0)];
    attrs.out_dtype = meta_of(f, out_of(f, cast, 0)).dtype;
    DS_TRY(emit(f, n, &attrs, DS_NONE, DS_NONE, out));
    for (uint32_t i = 0; i < node_at(f, n)->n_out; ++i) {
        if (out_of(f, n, i) != DS_NONE) {
            f->r.map[out_of(f, f->user[out_of(f, n, i)], 0)] = out[i];
        }
    }
    return DS_OK;
}

static ds_status emit_accumulate(fuser *f, ds_node n)
{
    ds_value out[DS_MAX_OUT];
    const ds_node add = f->other[n];
    const ds_value a = in_of(f, add, 0);
    const ds_value b = in_of(f, add, 1);
    const bool own_is_a = producer_of(f, a) == n;
    const uint32_t input = accumulating_input(f, n, own_is_a ? a : b);
    DS_TRY(emit(f, n, node_at(f, n)->attrs, input, f->r.map[own_is_a ? b : a], out));
    dsi_rewrite_made(&f->r, node_at(f, n), out);
    f->r.map[out_of(f, add, 0)] = f->r.map[own_is_a ? a : b];
    return DS_OK;
}

static ds_status rebuild_node(fuser *f, ds_node n)
{
    DS_TRY(dsi_rewrite_stand_at(&f->r, node_at(f, n)));
    switch (f->pattern[n]) {
    case LINEAR_ACTIVATION:
        return emit_linear_activation(f, n);
    case LINEAR_RESIDUAL:
        return emit_residual(f, n, 3);
    case NORM_RESIDUAL:
        return emit_residual(f, n, node_at(f, f->other[n])->op->n_in_max - 1);
    case NARROW:
        return emit_narrow(f, n);
    case ACCUMULATE:
        return emit_accumulate(f, n);
    case PLAIN:
        break;
    }
    return dsi_rewrite_copy(&f->r, node_at(f, n));
}

ds_status dsi_fuse(const ds_graph *graph, ds_graph **fused_out)
{
    fuser f = {.graph = graph};
    f.uses = calloc(graph->n_values + 1, sizeof *f.uses);
    f.user = calloc(graph->n_values + 1, sizeof *f.user);
    f.pattern = calloc(graph->n_nodes + 1, sizeof *f.pattern);
    f.other = calloc(graph->n_nodes + 1, sizeof *f.other);
    f.gone = calloc(graph->n_nodes + 1, sizeof *f.gone);
    f.into = malloc((graph->n_nodes + 1) * sizeof *f.into);
    ds_status status = dsi_rewrite_begin(&f.r, graph, graph->cells);
    if (f.uses == NULL || f.user == NULL || f.pattern == NULL || f.other == NULL ||
        f.gone == NULL || f.into == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to fuse the graph");
    }
    if (status >= 0) {
        memset(f.into, 0xff, (graph->n_nodes + 1) * sizeof *f.into); /* all DS_NONE */
        count_uses(&f);
        find_patterns(&f);
    }
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = f.gone[n] ? DS_OK : rebuild_node(&f, n);
    }
    free(f.uses);
    free(f.user);
    free(f.pattern);
    free(f.other);
    free(f.gone);
    free(f.into);
    return dsi_rewrite_end(&f.r, status, fused_out);
}
