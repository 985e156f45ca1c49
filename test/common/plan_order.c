/* SPDX-License-Identifier: Apache-2.0 */
#include "common/plan_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef plan_order graph;
typedef plan_order_pair pair;

void *plan_order_must(void *memory)
{
    if (memory == NULL) {
        (void)fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}

/* Where an operand lies, as [begin, end) of a line on which no two storages meet. */
static bool bytes_of(const dsi_plan *plan, const dsi_step *step, uint32_t i, size_t *begin,
                     size_t *end)
{
    const size_t apart = (size_t)1 << 40;
    const dsi_ref *ref =
        &plan->refs[i < step->n_in ? step->in_at + i : step->out_at + i - step->n_in];
    size_t bytes = ds_meta_bytes(ref->meta);
    if (ref->space == DSI_SPACE_NONE || bytes == 0 || (step->op->flags & DS_OP_VIEW) != 0) {
        return false;
    }
    if (ref->space == DSI_SPACE_CELL) {
        const ds_cell parent = plan->cell_parent[ref->cell];
        *begin =
            apart * (2 + (parent != DS_NONE ? parent : ref->cell)) + plan->cell_offset[ref->cell];
    } else {
        *begin = (ref->space == DSI_SPACE_SHARED ? apart : 0) + ref->offset;
        bytes = (step->op->flags & DS_OP_SWAP) != 0 ? dsi_swap_block_bytes(bytes) : bytes;
    }
    *end = *begin + bytes;
    return true;
}

static bool is_hazard(const dsi_plan *plan, const dsi_step *a, const dsi_step *b)
{
    size_t from[2];
    size_t to[2];
    for (uint32_t i = 0; i < a->n_in + a->n_out; ++i) {
        if (!bytes_of(plan, a, i, &from[0], &to[0])) {
            continue;
        }
        for (uint32_t j = 0; j < b->n_in + b->n_out; ++j) {
            if ((i >= a->n_in || j >= b->n_in) && bytes_of(plan, b, j, &from[1], &to[1]) &&
                from[0] < to[1] && from[1] < to[0]) {
                return true;
            }
        }
        if (b->work_bytes > 0 && from[0] < b->work_offset + b->work_bytes &&
            b->work_offset < to[0]) {
            return true;
        }
    }
    return false;
}

static bool is_side(const dsi_plan *plan, uint32_t s)
{
    return plan->streams[plan->steps[s].stream].side;
}

/* All pairs of steps of one set, one of them a START, that touch the same bytes. */
static void find_pairs(graph *g)
{
    const dsi_plan *plan = g->plan;
    for (uint32_t a = 0; a < g->n; ++a) {
        for (uint32_t b = 0; b < g->n && plan->steps[a].kind == DSI_STEP_START; ++b) {
            const dsi_step *other = &plan->steps[b];
            if (other->kind == DSI_STEP_WAIT || is_side(plan, a) != is_side(plan, b) ||
                !is_hazard(plan, &plan->steps[a], other)) {
                continue;
            }
            if (g->n_pairs + 3 > g->room) {
                g->room = 2 * g->room + 1024;
                g->pairs = plan_order_must(realloc(g->pairs, g->room * sizeof *g->pairs));
            }
            if (a != b) {
                g->pairs[g->n_pairs++] = a < b ? (pair){a, b} : (pair){b, a};
            }
            g->pairs[g->n_pairs++] = (pair){a, g->n + b};
            g->pairs[g->n_pairs++] = (pair){b, g->n + a};
        }
    }
}

static void learn(graph *g, uint32_t t, uint32_t from, bool ended)
{
    uint64_t *known = g->known + t * g->words;
    for (size_t w = 0; w < g->words; ++w) {
        known[w] |= g->known[from * g->words + w];
    }
    known[from / 64] |= (uint64_t)ended << from % 64;
}

static bool is_known(const graph *g, uint32_t t, uint32_t by)
{
    return (g->known[by * g->words + t / 64] >> t % 64 & 1) != 0;
}

/* The last step before t on the same stream, or on the computing stream of its set; 2n: none. */
static uint32_t last_before(const graph *g, uint32_t t, bool computing)
{
    const dsi_plan *plan = g->plan;
    const uint32_t s = t % g->n;
    for (uint32_t u = t; u-- > 0;) {
        const uint32_t other = u % g->n;
        const bool same = plan->steps[other].stream == plan->steps[s].stream;
        const bool computes =
            plan->steps[other].kind != DSI_STEP_START && is_side(plan, other) == is_side(plan, s);
        if (computing ? computes : same) {
            return u;
        }
    }
    return 2 * g->n;
}

/* A collective: the host begins it when its stream has come there, and waits for its end itself
 * (exec_stream.c). */
static bool is_of_host(const dsi_plan *plan, const dsi_step *step)
{
    const dsi_step *start = step->kind == DSI_STEP_WAIT ? &plan->steps[step->start] : step;
    return start->kind == DSI_STEP_START && !start->on_host && start->kernel == NULL &&
           (start->op->flags & DS_OP_SWAP) == 0 && start->op->role != DS_ROLE_TAKE_SLICE;
}

/* Whether the host waits for all that it has queued before it queues this step: before it writes a
 * micro-batch (the rates are written there, too, where phases are joined), and to decide. */
static bool host_arrives(const graph *g, uint32_t s)
{
    const dsi_plan *plan = g->plan;
    const uint32_t phase = plan->steps[s].phase;
    return (s == plan->phase_begin[phase] && dsi_phase_is_forward(&plan->phases, phase)) ||
           (g->judged != DS_NONE && s == plan->phase_begin[g->judged + 1]);
}

/* What the host has waited for when it has queued step t. */
static void tell_host(graph *g, uint32_t t)
{
    const dsi_step *step = &g->plan->steps[t % g->n];
    if (!is_of_host(g->plan, step)) {
        return;
    }
    const bool ends = step->kind == DSI_STEP_WAIT;
    const uint32_t of = ends ? t - t % g->n + step->start : t;
    for (size_t w = 0; w < g->words; ++w) {
        g->waited[w] |= g->known[of * g->words + w];
    }
    g->waited[of / 64] |= (uint64_t)ends << of % 64;
}

/* What the host has waited for has ended when it queues step t. */
static void ask_host(graph *g, uint32_t t)
{
    for (uint32_t u = 0; u < t && host_arrives(g, t % g->n); ++u) {
        g->waited[u / 64] |= (uint64_t)1 << u % 64;
    }
    for (size_t w = 0; w < g->words; ++w) {
        g->known[t * g->words + w] |= g->waited[w];
    }
}

static void find_known(graph *g)
{
    const dsi_plan *plan = g->plan;
    memset(g->known, 0, 2 * (size_t)g->n * g->words * sizeof *g->known);
    memset(g->waited, 0, g->words * sizeof *g->waited);
    for (uint32_t t = 0; t < 2 * g->n; ++t) {
        const uint32_t s = t % g->n;
        const dsi_step *step = &plan->steps[s];
        const bool starts = step->kind == DSI_STEP_START;
        if (g->host) {
            ask_host(g, t);
        }
        const uint32_t before = last_before(g, t, !starts);
        if (before < 2 * g->n) {
            const bool in_turn =
                plan->streams[step->stream].role == DSI_PLAN_STREAM_HOST || g->queues;
            learn(g, t, before, !starts || in_turn);
        }
        const uint32_t first = t - s + plan->phase_begin[step->phase];
        for (uint32_t u = first; starts && u-- > 0;) { /* the last that its set has computed */
            if (plan->steps[u % g->n].kind != DSI_STEP_START &&
                is_side(plan, u % g->n) == is_side(plan, s)) {
                learn(g, t, u, true);
                break;
            }
        }
        for (uint32_t i = 0; i < step->n_waits; ++i) {
            const uint32_t e = plan->events[plan->waits[step->wait_at + i]];
            if (e < s) {
                learn(g, t, t - s + e, true);
            } else if (t >= g->n) {
                learn(g, t, e, true);
            }
        }
        if (g->host) {
            tell_host(g, t);
        }
    }
}

/* Where a step stands now. */
static uint32_t place_of(const graph *g, uint32_t t)
{
    const uint32_t s = t % g->n;
    return s == g->moved ? t - s + g->to : s > g->moved && s <= g->to ? t - 1 : t;
}

/* Whether two steps that touch the same bytes are without order. */
bool plan_order_is_racy(plan_order *g)
{
    find_known(g);
    for (size_t i = 0; i < g->n_pairs; ++i) {
        const pair p = g->pairs[i];
        if (!is_known(g, place_of(g, p.before), place_of(g, p.behind))) {
            g->racy = p;
            return true;
        }
    }
    return false;
}

plan_order plan_order_make(const dsi_plan *plan, bool queues)
{
    graph g = {.plan = plan,
               .n = plan->n_steps,
               .words = 2 * (size_t)plan->n_steps / 64 + 1,
               .queues = queues,
               .judged = DS_NONE};
    g.known = plan_order_must(malloc(2 * (size_t)g.n * g.words * sizeof *g.known));
    g.waited = plan_order_must(malloc(g.words * sizeof *g.waited));
    find_pairs(&g);
    return g;
}

void plan_order_free(plan_order *g)
{
    free(g->known);
    free(g->waited);
    free(g->pairs);
}
