/* SPDX-License-Identifier: Apache-2.0 */
/* Where the values of a plan are made and how long they live. See plan_lower.h. */
#include "plan/plan_lower.h"

/* The step that makes v, and whether any step from there up to `end` touches cell c. */
static bool touched_between(const dsi_lowering *b, ds_value v, uint32_t end, ds_cell c)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = end; s-- > 0;) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
            const ds_value other = g->operands[node->in_at + i];
            if (other != DS_NONE && g->values[other].cell == c) {
                return true;
            }
        }
        if (b->order[s] == g->values[v].producer) {
            return false;
        }
    }
    return true;
}

/* A value that is only stored into a cell is made in that cell at once: the store is no step. What
 * a swap fetches is moved by blocks, for which a cell has no room. */
void dsi_lower_elide_stores(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    uint32_t kept = 0;
    for (ds_value v = 0; v < g->n_values; ++v) {
        b->same[v] = v;
        b->placed[v] = DS_NONE;
    }
    for (uint32_t s = 0; s < b->n_order; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        const ds_value x = node->op->role == DS_ROLE_STORE ? dsi_node_in(g, node)[1] : DS_NONE;
        const ds_value y = x == DS_NONE ? DS_NONE : dsi_node_out(g, node)[0];
        const ds_node maker = x == DS_NONE ? DS_NONE : g->values[x].producer;
        bool elide = maker != DS_NONE && !b->env->no_reuse && g->values[x].cell == DS_NONE &&
                     b->uses[x] == 1 && g->nodes[maker].phase == node->phase &&
                     (g->nodes[maker].op->flags & (DS_OP_VIEW | DS_OP_SWAP)) == 0 &&
                     g->values[x].meta.dtype == g->values[y].meta.dtype &&
                     !touched_between(b, x, s, g->values[y].cell);
        if (elide) {
            b->placed[x] = g->values[y].cell;
            b->same[y] = x;
        } else {
            b->order[kept++] = b->order[s];
        }
    }
    b->n_order = kept;
}

void dsi_lower_count_uses(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = 0; s < b->n_order; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                b->uses[v] += 1;
            }
        }
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        b->uses[g->outputs[i].value] += 2; /* never elided */
    }
}

/* The input that a collective sends, its last; DS_NONE for other nodes. */
static ds_value sent_by(const ds_graph *g, const dsi_node_info *node)
{
    const bool sends = node->op->op_class == DS_CLASS_COMM;
    return sends ? dsi_node_in(g, node)[node->n_in - 1] : DS_NONE;
}

/* What collectives send lies where peers can read it. */
void dsi_lower_mark_shared(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = 0; s < b->n_slots; ++s) {
        const ds_value v = sent_by(g, dsi_lower_node_of(b, s));
        if (v == DS_NONE) {
            continue;
        }
        const ds_value root = b->root[b->same[v]];
        const ds_cell cell = b->placed[root] != DS_NONE ? b->placed[root] : g->values[root].cell;
        if (cell != DS_NONE) {
            b->plan->cell_shared[cell] = true;
        } else {
            b->shared[root] = true;
        }
    }
}

/* What swaps move is aligned for the disk. */
void dsi_lower_mark_swapped(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t c = 0; c < b->plan->n_cells; ++c) {
        const bool known = c < b->env->n_residencies;
        b->plan->cell_swapped[c] = known && b->env->residencies[c].where != DSI_RESIDENCY_DEVICE;
        b->plan->cell_on_host[c] = known && b->env->residencies[c].where == DSI_RESIDENCY_HOST;
        b->plan->cell_parent[c] = known ? b->env->residencies[c].parent : DS_NONE;
        b->plan->cell_offset[c] =
            b->plan->cell_parent[c] != DS_NONE ? b->env->residencies[c].offset : 0;
    }
    for (uint32_t s = 0; s < b->n_slots; ++s) {
        const dsi_node_info *node = dsi_lower_node_of(b, s);
        if ((node->op->flags & DS_OP_SWAP) != 0) {
            const ds_value v = node->op->role == DS_ROLE_SWAP_IN ? dsi_node_out(g, node)[0]
                                                                 : dsi_node_in(g, node)[1];
            b->swapped[b->root[b->same[v]]] = true;
        }
    }
}

static void use(dsi_lowering *b, ds_value v, uint32_t step)
{
    if (v != DS_NONE) {
        b->last[b->root[b->same[v]]] = step;
    }
}

/* The wait of a deferred writeback, which comes before its start: what it moves is in use from
 * there to the end, and from the begin up to the wait. Such a lifetime has its last step before its
 * first. */
static void extend_deferred(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t at = 0; at < b->n_slots; ++at) {
        const dsi_node_info *node = dsi_lower_node_of(b, at);
        if (b->slots[at].kind == DSI_STEP_WAIT && b->slots[at].phase < node->phase) {
            use(b, dsi_node_in(g, node)[1], b->step_of[at]);
        }
    }
}

/* Storage roots: views share input 0's; an in-place output takes over input 0 when that dies. A
 * wait uses all operands of its start. */
void dsi_lower_find_lifetimes(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (ds_value v = 0; v < g->n_values; ++v) {
        b->root[v] = v;
        b->first[v] = UINT32_MAX;
    }
    for (uint32_t at = 0; at < b->n_slots; ++at) {
        const dsi_node_info *node = dsi_lower_node_of(b, at);
        const ds_value *out = dsi_node_out(g, node);
        const uint32_t s = b->step_of[at];
        const bool wait = b->slots[at].kind == DSI_STEP_WAIT;
        if ((node->op->flags & DS_OP_VIEW) != 0) {
            b->root[out[0]] = b->root[dsi_node_in(g, node)[0]];
        }
        for (uint32_t i = 0; i < node->n_in; ++i) {
            use(b, dsi_node_in(g, node)[i], s);
        }
        for (uint32_t i = 0; i < node->n_out; ++i) {
            if (out[i] != DS_NONE && wait) {
                use(b, out[i], s);
            } else if (out[i] != DS_NONE && b->root[out[i]] == out[i]) {
                b->first[out[i]] = s;
                b->last[out[i]] = s;
            }
        }
    }
    extend_deferred(b);
}

static uint32_t end_of_phase(const dsi_lowering *b, ds_phase phase)
{
    const uint32_t end = b->plan->phase_begin[phase + 1];
    return end > 0 ? end - 1 : 0;
}

void dsi_lower_keep_outputs(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value root = b->root[g->outputs[i].value];
        const ds_node producer = g->values[root].producer;
        if (producer != DS_NONE) {
            /* Readable until the next phase starts: it may not be reused before. */
            const uint32_t end = end_of_phase(b, g->nodes[producer].phase);
            b->last[root] = end > b->last[root] ? end : b->last[root];
            b->kept[root] = true;
        }
    }
}

/* The root of a value while roots are being taken over; shortens the way there. */
static ds_value root_of(dsi_lowering *b, ds_value v)
{
    while (b->root[v] != b->root[b->root[v]]) {
        b->root[v] = b->root[b->root[v]];
    }
    return b->root[v];
}

/* Of several micro-batches in flight each has what it leaves for its backward phase to itself: what
 * that phase makes lies elsewhere, where peers may read it; and what they read is there once, so it
 * does not become what is left. */
static bool is_of_slot(const dsi_lowering *b, ds_value root, uint32_t s, ds_value out)
{
    return b->env->n_slots > 1 &&
           (dsi_lower_leaves_phase(b, root, s) ||
            (b->shared[root] && dsi_lower_leaves_phase(b, out, b->last[out])));
}

/* `out` takes over the storage of input `at` when that dies at step s. */
static void share_pair(dsi_lowering *b, const dsi_node_info *node, uint32_t s, uint32_t at,
                       ds_value out)
{
    const ds_graph *g = b->graph;
    const ds_value in = at < node->n_in ? dsi_node_in(g, node)[at] : DS_NONE;
    const ds_value root = in == DS_NONE ? DS_NONE : root_of(b, in);
    bool fits = root != DS_NONE && out != DS_NONE && g->values[root].cell == DS_NONE &&
                b->placed[root] == DS_NONE && b->placed[out] == DS_NONE &&
                g->values[out].cell == DS_NONE && b->root[out] == out && !b->kept[root] &&
                b->last[root] == s && !is_of_slot(b, root, s, out) &&
                g->values[in].meta.dtype == g->values[out].meta.dtype &&
                ds_meta_bytes(g->values[root].meta) == ds_meta_bytes(g->values[out].meta);
    for (uint32_t i = 0; fits && i < node->n_in; ++i) {
        const ds_value other = dsi_node_in(g, node)[i];
        fits = i == at || other == DS_NONE || root_of(b, other) != root;
    }
    if (!fits) {
        return;
    }
    b->last[root] = b->last[out];
    b->kept[root] = b->kept[out];
    b->shared[root] = b->shared[root] || b->shared[out];
    b->root[out] = root; /* views of out follow by root_of */
}

/* Lets in-place operators overwrite an input that dies with them. What is sent is marked before. */
void dsi_lower_share_in_place(dsi_lowering *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t place = 0; place < b->n_slots; ++place) {
        const dsi_node_info *node = dsi_lower_node_of(b, place);
        const uint32_t s = b->step_of[place];
        if ((node->op->flags & DS_OP_INPLACE) == 0 || b->env->no_reuse) {
            continue;
        }
        const uint32_t n_pairs = node->op->writes != NULL ? node->n_out : 1;
        for (uint32_t i = 0; i < n_pairs; ++i) {
            const uint32_t at =
                node->op->writes != NULL ? (uint32_t)node->op->writes[i] : node->op->inplace_in;
            share_pair(b, node, s, at, dsi_node_out(g, node)[i]);
        }
    }
    for (ds_value v = 0; v < g->n_values; ++v) {
        (void)root_of(b, v);
    }
}
