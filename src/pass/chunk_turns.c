/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the chunks of sequences take turns. See chunks.h.
 *
 * Nodes of a phase that stand side by side and are of one region (a layer) are a stretch. Within
 * it the nodes of one chunk run behind the other, each behind what it needs; what works on all
 * positions runs where it is asked for, else at the end of the stretch, in program order. What
 * is recomputed runs where it is asked for, in whatever stretch that is.
 *
 * Invariants: 1. the result is a permutation within each stretch, what is recomputed apart; 2.
 * inputs are there; 3. what writes a cell stays at the end of its stretch, behind who reads the
 * version before.
 */
#include "pass/chunks.h"

#include "ir/rewrite.h"

#include <stdlib.h>

typedef struct turns {
    dsi_rewrite r;
    bool *done; /* per node */
} turns;

static const dsi_node_info *node_at(const turns *t, ds_node n)
{
    return &t->r.from->nodes[n];
}

/* Runs a node in the turn of a chunk, behind what it still needs. */
static ds_status run(turns *t, ds_node n, uint32_t half)
{
    const dsi_node_info *node = node_at(t, n);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = node->n_in; i-- > 0;) { /* what was seen before comes behind keys */
        const ds_value v = dsi_node_in(t->r.from, node)[i];
        const ds_node maker = v != DS_NONE ? t->r.from->values[v].producer : DS_NONE;
        if (maker != DS_NONE && !t->done[maker]) {
            DS_TRY(run(t, maker, node_at(t, maker)->half != 0 ? half : 0));
        }
    }
    t->done[n] = true;
    dsi_rewrite_inputs(&t->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&t->r, node));
    t->r.to->half = half;
    DS_TRY(ds_graph_apply(t->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&t->r, node, out);
    return DS_OK;
}

static ds_status run_stretch(turns *t, ds_node begin, ds_node end, uint32_t n_chunks)
{
    const ds_phase phase = node_at(t, begin)->phase;
    const bool backward = t->r.from->phases.items[phase].like == DS_PHASE_BACKWARD;
    for (uint32_t i = 0; i < n_chunks; ++i) {
        const uint32_t half = 1 + (backward ? n_chunks - 1 - i : i);
        for (ds_node n = begin; n < end; ++n) {
            if (!t->done[n] && node_at(t, n)->half == half && !node_at(t, n)->recomputed) {
                DS_TRY(run(t, n, half));
            }
        }
    }
    for (ds_node n = begin; n < end; ++n) {
        if (!t->done[n] && !node_at(t, n)->recomputed) {
            DS_TRY(run(t, n, node_at(t, n)->half));
        }
    }
    return DS_OK;
}

ds_status dsi_chunks_turns(const ds_graph *graph, uint32_t n_chunks, ds_graph **turns_out)
{
    turns t = {.done = calloc((size_t)graph->n_nodes + 1, sizeof *t.done)};
    ds_status status = DS_OK;
    if (t.done == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to order chunks");
    }
    status = dsi_rewrite_begin(&t.r, graph, graph->cells);
    for (ds_node begin = 0, end = 0; begin < graph->n_nodes && status >= 0; begin = end) {
        const dsi_node_info *first = &graph->nodes[begin];
        while (end < graph->n_nodes && graph->nodes[end].phase == first->phase &&
               graph->nodes[end].region == first->region) {
            ++end;
        }
        status = run_stretch(&t, begin, end, n_chunks);
    }
    free(t.done);
    return dsi_rewrite_end(&t.r, status, turns_out);
}
