/* SPDX-License-Identifier: Apache-2.0 */
/* What runs next: the head of a stream that no event holds, or a node of a graph whose
 * predecessors are done, drawn by chance; for a while one stream has no turn while others can. See
 * standin.h. */
#include "accel/standin/standin.h"

#include <string.h>
#include <time.h>

/* splitmix64 */
uint32_t standin_draw(uint32_t n)
{
    standin_all.random += 0x9e3779b97f4a7c15u;
    uint64_t x = standin_all.random;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) % n);
}

static void run_kernel(const work *w)
{
    dsc_host_grid g = {.name = w->kernel->name,
                       .grid = {w->grid[0], w->grid[1], w->grid[2]},
                       .block = {w->block[0], w->block[1], w->block[2]},
                       .seed = standin_draw(2) == 0 ? 0 : standin_draw(1000)};
    const uint64_t n = (uint64_t)w->grid[0] * w->grid[1] * w->grid[2];
    for (uint64_t b = 0; b < n; ++b) {
        dsc_host_run_block(&g, w->kernel->run, w->args, b);
    }
}

/* A piece of a copy or a fill; whether all is done. */
static bool move(work *w)
{
    const size_t left = w->bytes - w->done;
    const size_t n = left < standin_all.turn_bytes ? left : (size_t)standin_all.turn_bytes;
    if (w->kind == COPY) {
        memmove(w->to + w->done, w->from + w->done, n);
    } else {
        memset(w->to + w->done, w->byte, n);
    }
    w->done += n;
    return w->done == w->bytes;
}

/* A turn of work that can run; whether it is done. */
static bool do_work(work *w)
{
    standin_protect(true);
    switch (w->kind) {
    case LAUNCH:
        run_kernel(w);
        break;
    case CALL:
        return w->call(w->args);
    case HOST:
        standin_run_host(w->fn, w->arg);
        break;
    case COPY:
    case FILL:
        return move(w);
    case RECORD:
        w->event->done = w->ticket;
        break;
    case WAIT:
    case GRAPH:
        break;
    }
    return true;
}

static bool is_ready(const struct CUgraphExec_st *g, const node *n)
{
    for (uint32_t i = 0; i < n->after.n; ++i) {
        if (!g->nodes[n->after.items[i]].done) {
            return false;
        }
    }
    return !n->done;
}

/* Of a graph at a stream's head: some node that is ready; NULL when all are done. */
static node *ready_node(struct CUgraphExec_st *g)
{
    if (!g->active) {
        g->active = true;
        g->n_done = 0;
        for (uint32_t i = 0; i < g->n; ++i) {
            g->nodes[i].done = false;
            g->nodes[i].work.done = 0;
        }
    }
    const uint32_t from = g->n > 0 ? standin_draw(g->n) : 0;
    for (uint32_t i = 0; i < g->n; ++i) {
        node *n = &g->nodes[(from + i) % g->n];
        if (is_ready(g, n)) {
            return n;
        }
    }
    return NULL;
}

static bool graph_turn(struct CUgraphExec_st *g)
{
    node *n = ready_node(g);
    if (n != NULL && do_work(&n->work)) {
        n->done = true;
        g->n_done += 1;
    }
    g->active = g->n_done < g->n;
    return !g->active;
}

static bool can_run(const struct CUstream_st *s)
{
    const work *w = &s->queue[s->head];
    return s->n > 0 && (w->kind != WAIT || w->event->done >= w->ticket);
}

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void take_turn(struct CUstream_st *s)
{
    work *w = &s->queue[s->head];
    const bool calls = w->kind == CALL;
    const bool done = w->kind == GRAPH ? graph_turn(w->graph) : do_work(w);
    if (done) {
        s->head = (s->head + 1) % s->capacity;
        s->n -= 1;
    }
    if (standin_all.late != 0 && (done || !calls)) {
        standin_all.moved_at = seconds();
    }
}

static void draw_starved(void)
{
    if (standin_all.starved_for > 0) {
        standin_all.starved_for -= 1;
        return;
    }
    const uint32_t which = standin_draw(standin_all.n_streams + 1);
    standin_all.starved = which < standin_all.n_streams ? standin_all.streams[which] : NULL;
    standin_all.starved_for = standin_draw(1000);
}

static bool is_late(uint32_t stream)
{
    return stream + 1 == standin_all.late;
}

/* A late stream has begun with its copy: what it writes holds anything until it is done, also where
 * the same bytes were. */
static void begin_late_copy(void)
{
    struct CUstream_st *s = standin_all.late <= standin_all.n_streams && standin_all.late > 0
                                ? standin_all.streams[standin_all.late - 1]
                                : NULL;
    if (s == NULL || s->n == 0) {
        return;
    }
    work *w = &s->queue[s->head];
    const bool apart = w->to + w->bytes <= w->from || w->from + w->bytes <= w->to;
    if (w->kind == COPY && !w->begun && apart) {
        standin_protect(true);
        memset(w->to, 0xa5, w->bytes);
        w->begun = true;
    }
}

/* Whether nothing else can run, but for calls of libraries that have waited for another process for
 * a while: it may need what is late here. */
static bool late_has_turn(void)
{
    const double a_while = 0.5;
    bool calls = false;
    for (uint32_t i = 0; i < standin_all.n_streams; ++i) {
        const struct CUstream_st *s = standin_all.streams[i];
        if (!is_late(i) && can_run(s)) {
            if (s->queue[s->head].kind != CALL) {
                return false;
            }
            calls = true;
        }
    }
    return standin_all.host_waits && (!calls || seconds() - standin_all.moved_at > a_while);
}

bool standin_turn(void)
{
    struct CUstream_st *can[MOST_STREAMS];
    uint32_t n = 0;
    const bool late_too = standin_all.late == 0 || late_has_turn();
    draw_starved();
    begin_late_copy();
    for (int second = 0; second < 2 && n == 0; ++second) {
        for (uint32_t i = 0; i < standin_all.n_streams; ++i) {
            struct CUstream_st *s = standin_all.streams[i];
            if (can_run(s) && (second == 1 || s != standin_all.starved) &&
                (late_too || !is_late(i))) {
                can[n++] = s;
            }
        }
    }
    if (n > 0) {
        take_turn(can[standin_draw(n)]);
    }
    return n > 0;
}

void standin_early(void)
{
    uint32_t early = standin_draw(4) == 0 ? standin_draw(8) : 0;
    standin_all.host_waits = false;
    while (early > 0 && standin_turn()) {
        early -= 1;
    }
    standin_all.host_waits = true;
}
