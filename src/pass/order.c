/* SPDX-License-Identifier: Apache-2.0 */
/* Program order, without dead nodes, with memory-freeing nodes moved up, and with the nodes of one
 * bucket side by side, behind the last value that the bucket carries. What uses up a complete
 * gradient moves up behind it, and behind the last reader of what it overwrites. What a collective
 * made is not asked for before the next one has started, so that the two have time concurrent with
 * computation.
 *
 * The typical gain: the cast or accumulation of a weight gradient, traced after the whole backward
 * walk, runs right behind the product that makes it, so the fp32 gradient dies at once.
 */
#include "pass/order.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct sorter {
    const ds_graph *graph;
    bool *live;           /* per node: something needs it */
    bool *done;           /* per node */
    bool *available;      /* per value */
    uint32_t *reads_left; /* per value: live nodes still to read it */
    uint32_t *users_at;   /* per value: start in users */
    ds_node *users;
    ds_node *order;
    uint32_t n;
    ds_node *next_member;  /* per node: the next of its bucket, DS_NONE at the end */
    ds_node *first_member; /* per node: the first of its bucket; DS_NONE outside of buckets */
    uint32_t last_begin, last_end; /* places of the bucket that ran last */
} sorter;

static bool writes_cell(const ds_graph *graph, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(graph, node)[i];
        if (v != DS_NONE && graph->values[v].cell != DS_NONE) {
            return true;
        }
    }
    return false;
}

static void mark_live(const sorter *s)
{
    const ds_graph *g = s->graph;
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_node producer = g->values[g->outputs[i].value].producer;
        if (producer != DS_NONE) {
            s->live[producer] = true;
        }
    }
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const dsi_node_info *node = &g->nodes[n];
        s->live[n] = s->live[n] || writes_cell(g, node);
        for (uint32_t i = 0; s->live[n] && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE && g->values[v].producer != DS_NONE) {
                s->live[g->values[v].producer] = true;
            }
        }
    }
}

static void index_users(sorter *s)
{
    const ds_graph *g = s->graph;
    for (int fill = 0; fill < 2; ++fill) {
        for (ds_node n = 0; n < g->n_nodes; ++n) {
            for (uint32_t i = 0; s->live[n] && i < g->nodes[n].n_in; ++i) {
                const ds_value v = dsi_node_in(g, &g->nodes[n])[i];
                if (v != DS_NONE && fill == 0) {
                    s->reads_left[v] += 1;
                } else if (v != DS_NONE) {
                    s->users[s->users_at[v] + s->reads_left[v]++] = n;
                }
            }
        }
        if (fill == 0) {
            uint32_t at = 0;
            for (ds_value v = 0; v < g->n_values; ++v) {
                s->users_at[v] = at;
                at += s->reads_left[v];
                s->reads_left[v] = 0;
            }
        }
    }
}

int64_t dsi_order_bucket(const dsi_node_info *node)
{
    return (node->op->flags & DS_OP_COMM) != 0 ? ((const dsi_comm_attrs *)node->attrs)->bucket : -1;
}

/* Links the live nodes of each bucket. A number belongs to one operator and phase. */
static ds_status link_buckets(const sorter *s)
{
    const ds_graph *g = s->graph;
    ds_node *last = malloc((g->n_nodes + 1) * sizeof *last); /* per bucket */
    if (last == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to order the graph");
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        last[n] = s->next_member[n] = s->first_member[n] = DS_NONE;
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const int64_t bucket = s->live[n] ? dsi_order_bucket(&g->nodes[n]) : -1;
        if (bucket >= (int64_t)g->n_nodes) {
            free(last);
            return ds_fail(g->ctx, DS_ERR_GRAPH, "bucket %lld of a graph of %u nodes",
                           (long long)bucket, g->n_nodes);
        }
        if (bucket < 0) {
            continue;
        }
        const ds_node before = last[bucket];
        s->first_member[n] = before == DS_NONE ? n : s->first_member[before];
        if (before != DS_NONE) {
            s->next_member[before] = n;
        }
        last[bucket] = n;
    }
    free(last);
    return DS_OK;
}

/* All inputs are there, and no other node still has to read a version that this one overwrites. */
static bool ready(const sorter *s, ds_node n)
{
    const dsi_node_info *node = &s->graph->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(s->graph, node)[i];
        if (v != DS_NONE && !s->available[v]) {
            return false;
        }
    }
    for (uint32_t i = 0; i < node->n_out && node->op->writes != NULL; ++i) {
        const int writes = node->op->writes[i];
        if (writes >= 0 && (uint32_t)writes < node->n_in) {
            const ds_value v = dsi_node_in(s->graph, node)[writes];
            if (v != DS_NONE && s->reads_left[v] > 1) {
                return false;
            }
        }
    }
    return true;
}

static bool frees_memory(const sorter *s, const dsi_node_info *node)
{
    const ds_graph *g = s->graph;
    size_t taken = 0;
    size_t freed = 0;
    if ((node->op->flags & DS_OP_VIEW) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(g, node)[i];
        if (v != DS_NONE && g->values[v].cell == DS_NONE) {
            taken += ds_meta_bytes(g->values[v].meta);
        }
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        if (v != DS_NONE && g->values[v].cell == DS_NONE && s->reads_left[v] == 1) {
            freed += ds_meta_bytes(g->values[v].meta);
        }
    }
    return freed > 0 && freed >= taken;
}

/* A complete gradient, what reads one, and what rounds an updated weight. */
static bool uses_up_gradient(const sorter *s, const dsi_node_info *node)
{
    const ds_graph *g = s->graph;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        const ds_node maker = v != DS_NONE ? g->values[v].producer : DS_NONE;
        const ds_op *op = maker != DS_NONE ? g->nodes[maker].op : NULL;
        if (op != NULL && (op->role == DS_ROLE_GRADIENT ||
                           (node->op->role == DS_ROLE_CAST && op->role == DS_ROLE_UPDATE &&
                            g->values[v].cell != DS_NONE))) {
            return true;
        }
    }
    return node->op->role == DS_ROLE_GRADIENT;
}

static void run(sorter *s, ds_node n)
{
    const dsi_node_info *node = &s->graph->nodes[n];
    s->done[n] = true;
    s->order[s->n++] = n;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(s->graph, node)[i];
        if (v != DS_NONE) {
            s->reads_left[v] -= 1;
        }
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(s->graph, node)[i];
        if (v != DS_NONE) {
            s->available[v] = true;
        }
    }
}

/* Runs what the inputs of n still lack. */
static void run_inputs(sorter *s, ds_node n)
{
    const dsi_node_info *node = &s->graph->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(s->graph, node)[i];
        if (v != DS_NONE && !s->available[v]) {
            const ds_node maker = s->graph->values[v].producer;
            run_inputs(s, maker);
            run(s, maker);
        }
    }
}

/* Runs n; of a bucket all members, one right behind the other. */
static void run_whole(sorter *s, ds_node n)
{
    if (s->first_member[n] == DS_NONE) {
        run(s, n);
        return;
    }
    for (ds_node m = s->first_member[n]; m != DS_NONE; m = s->next_member[m]) {
        run_inputs(s, m);
    }
    for (ds_node m = s->first_member[n]; m != DS_NONE; m = s->next_member[m]) {
        run(s, m);
    }
}

/* Whether every member of n's bucket can run. */
static bool bucket_ready(const sorter *s, ds_node n)
{
    for (ds_node m = s->first_member[n]; m != DS_NONE; m = s->next_member[m]) {
        if (!ready(s, m)) {
            return false;
        }
    }
    return true;
}

/* Whether a node waits for a collective of half a micro-batch, which the other half hides. */
static bool waits_for_half(const sorter *s, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_in && node->half != 0; ++i) {
        const ds_value v = dsi_node_in(s->graph, node)[i];
        const ds_node maker = v != DS_NONE ? s->graph->values[v].producer : DS_NONE;
        if (maker != DS_NONE && s->graph->nodes[maker].half != 0 &&
            s->graph->nodes[maker].op->op_class == DS_CLASS_COMM) {
            return true;
        }
    }
    return false;
}

/* Whether n may be moved up to right behind what just ran. */
static bool follows(const sorter *s, ds_node n)
{
    if (s->first_member[n] != DS_NONE) {
        return bucket_ready(s, n);
    }
    const dsi_node_info *node = &s->graph->nodes[n];
    return ready(s, n) && !waits_for_half(s, node) &&
           (frees_memory(s, node) || uses_up_gradient(s, node));
}

/* Runs the users of v that may follow. */
static void run_users(sorter *s, ds_value v, ds_phase phase)
{
    for (uint32_t u = s->users_at[v]; u < s->users_at[v + 1]; ++u) {
        const ds_node user = s->users[u];
        if (!s->done[user] && s->graph->nodes[user].phase == phase && follows(s, user)) {
            run_whole(s, user);
        }
    }
}

/* Runs the users of what the node at a place made that may follow, and what may now overwrite what
 * it read. */
static void run_followers(sorter *s, uint32_t at)
{
    const dsi_node_info *node = &s->graph->nodes[s->order[at]];
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(s->graph, node)[i];
        if (v != DS_NONE) {
            run_users(s, v, node->phase);
        }
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(s->graph, node)[i];
        if (v != DS_NONE && s->graph->values[v].cell != DS_NONE && s->reads_left[v] == 1) {
            run_users(s, v, node->phase);
        }
    }
}

/* A bucket stands at a place: what follows the one before it runs now, its own later. Returns the
 * place behind the bucket. */
static uint32_t follow_bucket(sorter *s, uint32_t at)
{
    const uint32_t begin = s->last_begin;
    const uint32_t end = s->last_end;
    const int64_t bucket = dsi_order_bucket(&s->graph->nodes[s->order[at]]);
    s->last_begin = at;
    while (at < s->n && dsi_order_bucket(&s->graph->nodes[s->order[at]]) == bucket) {
        ++at;
    }
    s->last_end = at;
    for (uint32_t before = begin; before < end; ++before) {
        run_followers(s, before);
    }
    return at;
}

/* Runs n, then, as long as there are any, the nodes behind what just ran that free memory. */
static void run_with_followers(sorter *s, ds_node n)
{
    uint32_t at = s->n;
    run_whole(s, n);
    while (at < s->n) {
        if (dsi_order_bucket(&s->graph->nodes[s->order[at]]) >= 0) {
            at = follow_bucket(s, at);
        } else {
            run_followers(s, at++);
        }
    }
}

static ds_status allocate(sorter *s)
{
    const ds_graph *g = s->graph;
    s->live = calloc(g->n_nodes + 1, sizeof *s->live);
    s->done = calloc(g->n_nodes + 1, sizeof *s->done);
    s->available = calloc(g->n_values + 1, sizeof *s->available);
    s->reads_left = calloc(g->n_values + 1, sizeof *s->reads_left);
    s->users_at = calloc(g->n_values + 1, sizeof *s->users_at);
    s->users = calloc(g->n_operands + 1, sizeof *s->users);
    s->next_member = calloc(g->n_nodes + 1, sizeof *s->next_member);
    s->first_member = calloc(g->n_nodes + 1, sizeof *s->first_member);
    if (s->live == NULL || s->done == NULL || s->available == NULL || s->reads_left == NULL ||
        s->users_at == NULL || s->users == NULL || s->next_member == NULL ||
        s->first_member == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to order the graph");
    }
    return DS_OK;
}

ds_status dsi_order(const ds_graph *graph, ds_node *order, uint32_t *n_out)
{
    sorter s = {.graph = graph, .order = order};
    ds_status status = allocate(&s);
    if (status >= 0) {
        mark_live(&s);
        status = link_buckets(&s);
    }
    if (status >= 0) {
        index_users(&s);
        uint32_t n_users = 0;
        for (ds_value v = 0; v < graph->n_values; ++v) {
            n_users += s.reads_left[v];
            s.available[v] = graph->values[v].producer == DS_NONE;
        }
        s.users_at[graph->n_values] = n_users;
        for (ds_node n = 0; n < graph->n_nodes; ++n) {
            if (s.live[n] && !s.done[n]) {
                run_with_followers(&s, n);
            }
        }
        *n_out = s.n;
    }
    free(s.live);
    free(s.done);
    free(s.available);
    free(s.reads_left);
    free(s.users_at);
    free(s.users);
    free(s.next_member);
    free(s.first_member);
    return status;
}
