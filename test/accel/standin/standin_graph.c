/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of the stand-in: what is queued on the origin, and on streams that wait for an event of
 * the capture, becomes nodes; a node depends on what its stream had and on the events that it
 * waited for. See standin.h, and "Stream Capture" of the CUDA C++ Programming Guide.
 */
#include "accel/standin/standin.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local struct CUgraph_st *own_capture; /* one at a time here */

dsc_cu_result standin_unsafe(dsc_cu_result entered)
{
    if (entered != DSC_CU_SUCCESS || own_capture == NULL || own_capture->relaxed) {
        return entered;
    }
    own_capture->broken = true;
    return DSC_CU_STREAM_CAPTURE_UNSUPPORTED;
}

bool standin_may_load(void)
{
    return standin_leave(standin_unsafe(standin_enter())) == DSC_CU_SUCCESS;
}

static void must(const void *memory)
{
    if (memory == NULL) {
        abort();
    }
}

void standin_add(nodes *to, uint32_t which)
{
    for (uint32_t i = 0; i < to->n; ++i) {
        if (to->items[i] == which) {
            return;
        }
    }
    if (to->n == to->capacity) {
        to->capacity = to->capacity > 0 ? 2 * to->capacity : 8;
        to->items = realloc(to->items, to->capacity * sizeof *to->items);
        must(to->items);
    }
    to->items[to->n++] = which;
}

void standin_join(nodes *to, const nodes *from)
{
    for (uint32_t i = 0; i < from->n; ++i) {
        standin_add(to, from->items[i]);
    }
}

static void add_node(struct CUgraph_st *g, struct CUstream_st *s, const work *w)
{
    if (g->n == g->capacity) {
        g->capacity = g->capacity > 0 ? 2 * g->capacity : 64;
        g->nodes = realloc(g->nodes, g->capacity * sizeof *g->nodes);
        must(g->nodes);
    }
    node *n = &g->nodes[g->n];
    *n = (node){.work = *w};
    standin_join(&n->after, &s->after);
    s->after.n = 0;
    standin_add(&s->after, g->n++);
}

struct CUgraph_st *standin_capture_of(uint64_t id)
{
    for (uint32_t i = 0; i < standin_all.n_streams && id != 0; ++i) {
        struct CUgraph_st *g = standin_all.streams[i]->capture;
        if (g != NULL && g->id == id) {
            return g;
        }
    }
    return NULL;
}

dsc_cu_result standin_capture(struct CUstream_st *s, const work *w)
{
    if (w->kind == WAIT && s->capture == NULL) {
        s->capture = standin_capture_of(w->event->capture);
        s->after.n = 0;
    }
    struct CUgraph_st *g = s->capture;
    if (g->broken) {
        return DSC_CU_STREAM_CAPTURE_INVALIDATED;
    }
    switch (w->kind) {
    case WAIT:
        if (w->event->capture != g->id) {
            g->broken = true;
            return w->event->capture != 0 ? DSC_CU_STREAM_CAPTURE_MERGE
                                          : DSC_CU_STREAM_CAPTURE_ISOLATION;
        }
        standin_join(&s->after, &w->event->after);
        return DSC_CU_SUCCESS;
    case RECORD:
        w->event->capture = g->id;
        w->event->after.n = 0;
        standin_join(&w->event->after, &s->after);
        return DSC_CU_SUCCESS;
    default:
        add_node(g, s, w);
        return DSC_CU_SUCCESS;
    }
}

STANDIN_API dsc_cu_result cuStreamBeginCapture_v2(dsc_cu_stream s, int mode);
dsc_cu_result cuStreamBeginCapture_v2(dsc_cu_stream s, int mode)
{
    dsc_cu_result result = standin_enter();
    if (result == DSC_CU_SUCCESS &&
        (!standin_is_stream(s) || s->capture != NULL ||
         (mode != DSC_CU_CAPTURE_THREAD_LOCAL && mode != DSC_CU_CAPTURE_RELAXED))) {
        result = DSC_CU_INVALID_VALUE;
    }
    struct CUgraph_st *g = result == DSC_CU_SUCCESS ? calloc(1, sizeof *g) : NULL;
    if (g != NULL) {
        g->origin = s;
        g->relaxed = mode == DSC_CU_CAPTURE_RELAXED;
        g->id = ++standin_all.n_captures;
        s->capture = own_capture = g;
        s->after.n = 0;
    }
    return standin_leave(result);
}

static void free_nodes(node *all, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        free(all[i].after.items);
    }
    free(all);
}

static void free_graph(struct CUgraph_st *g)
{
    free_nodes(g->nodes, g->n);
    free(g);
}

/* Whether the origin has waited for all. Nodes depend on earlier ones alone. */
static bool is_joined(struct CUgraph_st *g)
{
    for (uint32_t i = 0; i < g->n; ++i) {
        g->nodes[i].done = false; /* here: the origin waits for it */
    }
    for (uint32_t i = 0; i < g->origin->after.n; ++i) {
        g->nodes[g->origin->after.items[i]].done = true;
    }
    bool joined = true;
    for (uint32_t i = g->n; i-- > 0;) {
        joined = joined && g->nodes[i].done;
        for (uint32_t k = 0; k < g->nodes[i].after.n; ++k) {
            g->nodes[g->nodes[i].after.items[k]].done |= g->nodes[i].done;
        }
    }
    return joined;
}

STANDIN_API dsc_cu_result cuStreamEndCapture(dsc_cu_stream s, dsc_cu_graph *graph_out);
dsc_cu_result cuStreamEndCapture(dsc_cu_stream s, dsc_cu_graph *graph_out)
{
    const dsc_cu_result entered = standin_enter();
    *graph_out = NULL;
    if (entered != DSC_CU_SUCCESS || !standin_is_stream(s) || s->capture == NULL ||
        s->capture->origin != s || s->capture != own_capture) {
        return standin_leave(entered != DSC_CU_SUCCESS ? entered : DSC_CU_STREAM_CAPTURE_UNMATCHED);
    }
    struct CUgraph_st *g = s->capture;
    const bool joined = is_joined(g);
    for (uint32_t i = 0; i < standin_all.n_streams; ++i) {
        if (standin_all.streams[i]->capture == g) {
            standin_all.streams[i]->capture = NULL;
        }
    }
    own_capture = NULL;
    if (g->broken || !joined) {
        const bool broken = g->broken;
        free_graph(g);
        return standin_leave(broken ? DSC_CU_STREAM_CAPTURE_INVALIDATED
                                    : DSC_CU_STREAM_CAPTURE_UNJOINED);
    }
    *graph_out = g;
    return standin_leave(DSC_CU_SUCCESS);
}

STANDIN_API dsc_cu_result cuGraphInstantiateWithFlags(dsc_cu_graph_exec *exec_out, dsc_cu_graph g,
                                                      unsigned long long flags);
dsc_cu_result cuGraphInstantiateWithFlags(dsc_cu_graph_exec *exec_out, dsc_cu_graph g,
                                          unsigned long long flags)
{
    const dsc_cu_result entered = standin_enter();
    struct CUgraphExec_st *e = entered == DSC_CU_SUCCESS ? calloc(1, sizeof *e) : NULL;
    if (e == NULL || flags != 0) {
        free(e);
        return standin_leave(entered != DSC_CU_SUCCESS ? entered : DSC_CU_INVALID_VALUE);
    }
    e->n = g->n;
    e->nodes = calloc((size_t)g->n + 1, sizeof *e->nodes);
    must(e->nodes);
    for (uint32_t i = 0; i < g->n; ++i) {
        e->nodes[i].work = g->nodes[i].work;
        standin_join(&e->nodes[i].after, &g->nodes[i].after);
    }
    *exec_out = e;
    return standin_leave(DSC_CU_SUCCESS);
}

STANDIN_API dsc_cu_result cuGraphLaunch(dsc_cu_graph_exec exec, dsc_cu_stream s);
dsc_cu_result cuGraphLaunch(dsc_cu_graph_exec exec, dsc_cu_stream s)
{
    const dsc_cu_result entered = standin_enter();
    return standin_leave(entered != DSC_CU_SUCCESS
                             ? entered
                             : standin_put(s, &(work){.kind = GRAPH, .graph = exec}));
}

STANDIN_API dsc_cu_result cuGraphDestroy(dsc_cu_graph g);
dsc_cu_result cuGraphDestroy(dsc_cu_graph g)
{
    free_graph(g);
    return DSC_CU_SUCCESS;
}

STANDIN_API dsc_cu_result cuGraphExecDestroy(dsc_cu_graph_exec e);
dsc_cu_result cuGraphExecDestroy(dsc_cu_graph_exec e)
{
    const dsc_cu_result entered = standin_enter();
    if (entered == DSC_CU_SUCCESS) {
        while (standin_turn()) {
        }
        free_nodes(e->nodes, e->n);
        free(e);
    }
    return standin_leave(entered);
}
