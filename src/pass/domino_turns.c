/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which two halves of a micro-batch take turns. See domino.h.
 *
 * Nodes of half 1, of half 2 and of all rows are three lists, each in program order. One half runs
 * until its next node reads what a collective of its own makes that began in the same turn; then
 * the other does, and computes meanwhile. Nodes of all rows run as soon as all before them in their
 * list have, at the latest where somebody needs them. Collectives of parameters, which the overlap
 * pass starts ahead, are no reason to change turns.
 *
 * Invariants: 1. the result is a permutation within each phase; 2. inputs are there, and who reads
 * a version of a cell runs before who writes the next one.
 */
#include "pass/domino.h"

#include "ir/rewrite.h"
#include "op/ops.h"

#include <stdlib.h>

enum { ALL, FIRST, SECOND, N_LISTS };

typedef struct turns {
    const ds_graph *g;
    bool *done;           /* per node */
    bool *of_rows;        /* per value: depends on the samples */
    bool *begun;          /* per value: a collective of this turn's half makes it */
    uint32_t *reads_left; /* per value: nodes that still read it */
    ds_node *carries;     /* per node: the first collective that begins behind it */
    ds_node *next;        /* per node: the next collective behind the same node */
    ds_node *order;
    uint32_t n;
    uint32_t turn;       /* whose it is: FIRST or SECOND */
    ds_node at[N_LISTS]; /* nodes of a list before it are done */
} turns;

static const dsi_node_info *node_of(const turns *t, ds_node n)
{
    return &t->g->nodes[n];
}

static bool is_collective(const turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    const ds_value out = dsi_node_out(t->g, node)[0];
    return node->half != ALL && node->op->op_class == DS_CLASS_COMM && out != DS_NONE &&
           t->of_rows[out];
}

/* Moves elements about, or takes a rank's part of them: it belongs to the collective behind it. */
static bool prepares(const dsi_node_info *node)
{
    return (node->op->flags & DS_OP_VIEW) != 0 || node->op == &dsi_op_permute ||
           node->op == &dsi_op_take_term || node->op == &dsi_op_cast;
}

/* The node whose result a collective carries. */
static ds_node source_of(const turns *t, ds_node n)
{
    for (;;) {
        const ds_value v = dsi_node_in(t->g, node_of(t, n))[0];
        const ds_node maker = v != DS_NONE ? t->g->values[v].producer : DS_NONE;
        if (maker == DS_NONE || !prepares(node_of(t, maker)) ||
            node_of(t, maker)->half != node_of(t, n)->half) {
            return maker;
        }
        n = maker;
    }
}

/* Which values depend on the samples, how often each is read, what begins behind which node. */
static void look(turns *t)
{
    const ds_graph *g = t->g;
    for (ds_value v = 0; v < g->n_values; ++v) {
        const dsi_value_info *info = &g->values[v];
        t->of_rows[v] = info->producer == DS_NONE && info->cell != DS_NONE &&
                        ds_cells_get(g->cells, info->cell)->kind == DS_CELL_INPUT;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = node_of(t, n);
        bool any = false;
        t->carries[n] = t->next[n] = DS_NONE;
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                any = any || t->of_rows[v];
                t->reads_left[v] += 1;
            }
        }
        for (uint32_t o = 0; o < node->n_out; ++o) {
            const ds_value v = dsi_node_out(g, node)[o];
            if (v != DS_NONE) {
                t->of_rows[v] = any;
            }
        }
    }
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const ds_node source = is_collective(t, n) ? source_of(t, n) : DS_NONE;
        if (source != DS_NONE && node_of(t, source)->phase == node_of(t, n)->phase) {
            t->next[n] = t->carries[source];
            t->carries[source] = n;
        }
    }
}

static bool is_there(const turns *t, ds_value v)
{
    return v == DS_NONE || t->g->values[v].producer == DS_NONE || t->done[t->g->values[v].producer];
}

/* Nobody else still has to read a version that n overwrites. */
static bool may_write(const turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    for (uint32_t o = 0; o < node->n_out && node->op->writes != NULL; ++o) {
        const int writes = node->op->writes[o];
        const ds_value v = writes >= 0 && (uint32_t)writes < node->n_in
                               ? dsi_node_in(t->g, node)[writes]
                               : DS_NONE;
        if (v != DS_NONE && t->reads_left[v] > 1) {
            return false;
        }
    }
    return true;
}

static bool is_ready(const turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    bool there = may_write(t, n);
    for (uint32_t i = 0; i < node->n_in && there; ++i) {
        there = is_there(t, dsi_node_in(t->g, node)[i]);
    }
    return there;
}

/* Whether n, or what has to run before it, would wait for a collective of this turn. */
static bool would_wait(const turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(t->g, node)[i];
        if (v != DS_NONE &&
            (t->begun[v] || (!is_there(t, v) && would_wait(t, t->g->values[v].producer)))) {
            return true;
        }
    }
    return false;
}

/* Whether n needs what the other half has not made yet, or may not overwrite what it writes. */
static bool is_held(const turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(t->g, node)[i];
        if (!is_there(t, v)) {
            const ds_node maker = t->g->values[v].producer;
            const uint32_t half = node_of(t, maker)->half;
            if ((half != ALL && half != t->turn) || is_held(t, maker)) {
                return true;
            }
        }
    }
    return !may_write(t, n);
}

static void run(turns *t, ds_node n);

static void run_inputs(turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(t->g, node)[i];
        if (!is_there(t, v)) {
            run(t, t->g->values[v].producer);
        }
    }
}

static void run(turns *t, ds_node n)
{
    const dsi_node_info *node = node_of(t, n);
    run_inputs(t, n);
    if (t->done[n]) {
        return; /* begun behind one of its inputs */
    }
    t->done[n] = true;
    t->order[t->n++] = n;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(t->g, node)[i];
        if (v != DS_NONE) {
            t->reads_left[v] -= 1;
        }
    }
    for (uint32_t o = 0; o < node->n_out && is_collective(t, n); ++o) {
        const ds_value v = dsi_node_out(t->g, node)[o];
        if (v != DS_NONE) {
            t->begun[v] = true;
        }
    }
    for (ds_node c = t->carries[n]; c != DS_NONE; c = t->next[c]) {
        if (!t->done[c] && !is_held(t, c)) {
            run(t, c);
        }
    }
}

/* The next node of a list in the phase that ends at `end`; `end`: none. */
static ds_node next_of(turns *t, uint32_t list, ds_node end)
{
    ds_node *at = &t->at[list];
    while (*at < end && (t->done[*at] || node_of(t, *at)->half != list)) {
        ++*at;
    }
    return *at;
}

/* Nodes of all rows that can run. */
static void run_all_rows(turns *t, ds_node end)
{
    for (ds_node n = next_of(t, ALL, end); n < end && is_ready(t, n); n = next_of(t, ALL, end)) {
        run(t, n);
    }
}

/* One half goes on as far as it can without waiting; returns whether it did. */
static bool take_turn(turns *t, ds_node end)
{
    bool any = false;
    for (ds_value v = 0; v < t->g->n_values; ++v) {
        t->begun[v] = false;
    }
    run_all_rows(t, end);
    for (ds_node n = next_of(t, t->turn, end); n < end && !is_held(t, n) && !would_wait(t, n);
         n = next_of(t, t->turn, end)) {
        run(t, n);
        run_all_rows(t, end);
        any = true;
    }
    return any;
}

/* The first node in program order always can run. */
static void run_first(turns *t, ds_node begin, ds_node end)
{
    for (ds_node n = begin; n < end; ++n) {
        if (!t->done[n]) {
            run(t, n);
            return;
        }
    }
}

static void order_phase(turns *t, ds_node begin, ds_node end)
{
    const uint32_t until = end;
    t->at[ALL] = t->at[FIRST] = t->at[SECOND] = begin;
    t->turn = FIRST;
    while (t->n < until) {
        const uint32_t before = t->n;
        bool any = false;
        for (uint32_t i = 0; i < 2; ++i) {
            any = take_turn(t, end) || any;
            t->turn = t->turn == FIRST ? SECOND : FIRST;
        }
        if (!any && t->n == before) {
            run_first(t, begin, end);
        }
    }
}

static ds_status find_order(turns *t)
{
    const ds_graph *g = t->g;
    look(t);
    for (ds_node begin = 0, end = 0; begin < g->n_nodes; begin = end) {
        while (end < g->n_nodes && g->nodes[end].phase == g->nodes[begin].phase) {
            ++end;
        }
        order_phase(t, begin, end);
    }
    return t->n == g->n_nodes ? DS_OK
                              : ds_fail(g->ctx, DS_ERR_INTERNAL, "halves: %u nodes of %u in order",
                                        t->n, g->n_nodes);
}

ds_status dsi_domino_turns(const ds_graph *graph, ds_graph **turns_out)
{
    const size_t n_nodes = (size_t)graph->n_nodes + 1;
    const size_t n_values = (size_t)graph->n_values + 1;
    dsi_rewrite r;
    turns t = {.g = graph,
               .done = calloc(n_nodes, sizeof *t.done),
               .of_rows = calloc(n_values, sizeof *t.of_rows),
               .begun = calloc(n_values, sizeof *t.begun),
               .reads_left = calloc(n_values, sizeof *t.reads_left),
               .carries = calloc(n_nodes, sizeof *t.carries),
               .next = calloc(n_nodes, sizeof *t.next),
               .order = calloc(n_nodes, sizeof *t.order)};
    ds_status status = dsi_rewrite_begin(&r, graph, graph->cells);
    if (t.done == NULL || t.of_rows == NULL || t.begun == NULL || t.reads_left == NULL ||
        t.carries == NULL || t.next == NULL || t.order == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to order the halves");
    }
    if (status >= 0) {
        status = find_order(&t);
    }
    for (uint32_t i = 0; status >= 0 && i < t.n; ++i) {
        status = dsi_rewrite_copy(&r, &graph->nodes[t.order[i]]);
    }
    free(t.done);
    free(t.of_rows);
    free(t.begun);
    free(t.reads_left);
    free(t.carries);
    free(t.next);
    free(t.order);
    return dsi_rewrite_end(&r, status, turns_out);
}
