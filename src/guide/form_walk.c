/* SPDX-License-Identifier: Apache-2.0 */
/* Positions in a grammar: a deterministic automaton that is made as it is walked. See form_walk.h.
 */
#include "guide/form_walk.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

/* A position that needs more than STEP pairs on its way, or more than HOLD nodes, is dead: the
 * bound is of the position alone, so that it does not depend on what is kept. */
enum {
    STEP = 2048,
    HOLD = 4096,
    DEPTH = 384,
    PAIRS = 4 * STEP,
    NODES = 3 * HOLD + STEP,
    NODE_TABLE = 1 << 15,
    POSITION_TABLE = 1 << 13,
    SEEN_TABLE = 1 << 13,
    UNKNOWN = UINT16_MAX - 1
};

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint64_t x = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

ds_status dsi_form_walk_create(ds_ctx *ctx, const dsi_grammar *g, dsi_form_walk *m)
{
    const size_t sizes[] = {DSI_FORM_WALK_MOST * sizeof *m->positions,
                            PAIRS * sizeof *m->pairs,
                            NODES * sizeof *m->nodes,
                            NODE_TABLE * sizeof *m->of_node,
                            POSITION_TABLE * sizeof *m->of_position,
                            STEP * sizeof *m->todo,
                            SEEN_TABLE * sizeof *m->seen,
                            SEEN_TABLE * sizeof *m->seen_turn,
                            NODES * sizeof *m->marks,
                            (size_t)DSI_FORM_WALK_MOST * g->n_classes * sizeof *m->follows};
    void **const arrays[] = {(void **)&m->positions, (void **)&m->pairs,       (void **)&m->nodes,
                             (void **)&m->of_node,   (void **)&m->of_position, (void **)&m->todo,
                             (void **)&m->seen,      (void **)&m->seen_turn,   (void **)&m->marks,
                             (void **)&m->follows};
    enum { N = sizeof sizes / sizeof sizes[0] };
    size_t total = 0;
    *m = (dsi_form_walk){.g = g};
    for (size_t i = 0; i < N; ++i) {
        total += (sizes[i] + 63) / 64 * 64;
    }
    m->memory = calloc(1, total);
    if (m->memory == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a grammar's positions");
    }
    total = 0;
    for (size_t i = 0; i < N; ++i) {
        *arrays[i] = (char *)m->memory + total;
        total += (sizes[i] + 63) / 64 * 64;
    }
    m->n_nodes = 1; /* the bottom */
    return DS_OK;
}

void dsi_form_walk_free(dsi_form_walk *m)
{
    free(m->memory);
    *m = (dsi_form_walk){0};
}

/* ---- nodes ---- */
/* There is room: see STEP. */
static uint32_t node(dsi_form_walk *m, uint32_t state, uint32_t parent)
{
    uint32_t at = mix(state, parent) & (NODE_TABLE - 1);
    while (m->of_node[at] != 0) {
        const uint32_t k = m->of_node[at] - 1;
        if (m->nodes[k].state == state && m->nodes[k].parent == parent) {
            return k;
        }
        at = (at + 1) & (NODE_TABLE - 1);
    }
    const uint16_t below = parent == 0 ? 0 : m->nodes[parent].depth;
    m->nodes[m->n_nodes] =
        (dsi_form_walk_node){.state = state, .parent = parent, .depth = (uint16_t)(below + 1)};
    m->of_node[at] = m->n_nodes + 1;
    return m->n_nodes++;
}

/* ---- positions ---- */
/* Adds a pair to what a step looks at, once. false: too many. */
static bool look(dsi_form_walk *m, uint32_t state, uint32_t stack)
{
    uint32_t at = mix(state, stack) & (SEEN_TABLE - 1);
    while (m->seen_turn[at] == m->turn) {
        const dsi_form_walk_pair *p = &m->todo[m->seen[at]];
        if (p->state == state && p->stack == stack) {
            return true;
        }
        at = (at + 1) & (SEEN_TABLE - 1);
    }
    if (m->n_todo == STEP) {
        return false;
    }
    m->seen_turn[at] = m->turn;
    m->seen[at] = m->n_todo;
    m->todo[m->n_todo++] = (dsi_form_walk_pair){state, stack};
    return true;
}

static void begin_step(dsi_form_walk *m)
{
    m->n_todo = 0;
    if (++m->turn == 0) {
        memset(m->seen_turn, 0, SEEN_TABLE * sizeof *m->seen_turn);
        m->turn = 1;
    }
}

/* A rule that has nothing behind a call needs no way back to it. */
static bool ends_only(const dsi_grammar *g, uint32_t state)
{
    const uint32_t k = g->first[state];
    return g->first[state + 1] == k + 1 && g->edges[k].kind == DSI_EDGE_END;
}

static bool enter(dsi_form_walk *m, const dsi_edge *e, uint32_t stack)
{
    const uint32_t start = m->g->rules[e->rule];
    if (ends_only(m->g, e->to)) {
        return look(m, start, stack);
    }
    if (stack != 0 && m->nodes[stack].depth >= DEPTH) {
        return true; /* no deeper */
    }
    return look(m, start, node(m, e->to, stack));
}

/* All that is reached without a byte; *may_end_out. false: too much. */
static bool close_step(dsi_form_walk *m, bool *may_end_out)
{
    const dsi_grammar *g = m->g;
    bool fits = true;
    *may_end_out = false;
    for (uint32_t i = 0; i < m->n_todo && fits; ++i) {
        const dsi_form_walk_pair p = m->todo[i];
        for (uint32_t k = g->first[p.state]; k < g->first[p.state + 1] && fits; ++k) {
            const dsi_edge *e = &g->edges[k];
            if (e->kind == DSI_EDGE_EMPTY) {
                fits = look(m, e->to, p.stack);
            } else if (e->kind == DSI_EDGE_CALL) {
                fits = enter(m, e, p.stack);
            } else if (e->kind == DSI_EDGE_END && p.stack != 0) {
                fits = look(m, m->nodes[p.stack].state, m->nodes[p.stack].parent);
            } else if (e->kind == DSI_EDGE_END) {
                *may_end_out = true;
            }
        }
    }
    return fits;
}

static bool takes_bytes(const dsi_grammar *g, uint32_t state)
{
    for (uint32_t k = g->first[state]; k < g->first[state + 1]; ++k) {
        if (g->edges[k].kind == DSI_EDGE_BYTE) {
            return true;
        }
    }
    return false;
}

static bool before(dsi_form_walk_pair a, dsi_form_walk_pair b)
{
    return a.state != b.state ? a.state < b.state : a.stack < b.stack;
}

/* Shell's sort, with Ciura's gaps: in place, and the sets are small. */
static void sort(dsi_form_walk_pair *p, uint32_t n)
{
    static const uint32_t gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    for (size_t k = 0; k < sizeof gaps / sizeof gaps[0]; ++k) {
        const uint32_t gap = gaps[k];
        for (uint32_t i = gap; i < n; ++i) {
            const dsi_form_walk_pair one = p[i];
            uint32_t at = i;
            for (; at >= gap && before(one, p[at - gap]); at -= gap) {
                p[at] = p[at - gap];
            }
            p[at] = one;
        }
    }
}

/* Marks the nodes that the pairs hold, and counts them; stops behind `most`. */
static uint32_t count_nodes(dsi_form_walk *m, const dsi_form_walk_pair *p, uint32_t n,
                            uint32_t most)
{
    uint32_t held = 0;
    if (++m->mark == 0) {
        memset(m->marks, 0, NODES * sizeof *m->marks);
        m->mark = 1;
    }
    for (uint32_t i = 0; i < n && held <= most; ++i) {
        for (uint32_t k = p[i].stack; k != 0 && m->marks[k] != m->mark; k = m->nodes[k].parent) {
            m->marks[k] = m->mark;
            ++held;
        }
    }
    return held;
}

/* The number of a position whose pairs stand at the end of m->pairs, beyond n_pairs. */
static uint16_t intern(dsi_form_walk *m, uint32_t n, bool may_end)
{
    const dsi_form_walk_pair *own = m->pairs + m->n_pairs;
    uint32_t hash = mix(n, may_end);
    for (uint32_t i = 0; i < n; ++i) {
        hash = mix(hash ^ own[i].state, own[i].stack);
    }
    uint32_t at = hash & (POSITION_TABLE - 1);
    for (; m->of_position[at] != 0; at = (at + 1) & (POSITION_TABLE - 1)) {
        const uint16_t k = (uint16_t)(m->of_position[at] - 1);
        const dsi_form_walk_position *p = &m->positions[k];
        if (p->n == n && p->may_end == may_end &&
            memcmp(m->pairs + p->first, own, n * sizeof *own) == 0) {
            return k;
        }
    }
    const uint16_t new = (uint16_t)m->n_positions++;
    m->positions[new] = (dsi_form_walk_position){m->n_pairs, n, may_end};
    m->n_pairs += n;
    m->of_position[at] = new + 1u;
    uint16_t *follows = m->follows + (size_t) new * m->g->n_classes;
    for (uint32_t c = 0; c < m->g->n_classes; ++c) {
        follows[c] = UNKNOWN;
    }
    return new;
}

/* The position of what the step began with. */
static uint16_t end_step(dsi_form_walk *m)
{
    bool may_end = false;
    uint32_t n = 0;
    if (!close_step(m, &may_end)) {
        return DSI_FORM_WALK_DEAD;
    }
    dsi_form_walk_pair *own = m->pairs + m->n_pairs;
    for (uint32_t i = 0; i < m->n_todo; ++i) {
        if (takes_bytes(m->g, m->todo[i].state)) {
            own[n++] = m->todo[i];
        }
    }
    if ((n == 0 && !may_end) || count_nodes(m, own, n, HOLD) > HOLD) {
        return DSI_FORM_WALK_DEAD;
    }
    sort(own, n);
    return intern(m, n, may_end);
}

/* ---- when it is full ---- */
static void empty_tables(dsi_form_walk *m)
{
    m->epoch += 1;
    m->n_positions = m->n_pairs = 0;
    memset(m->of_node, 0, NODE_TABLE * sizeof *m->of_node);
    memset(m->of_position, 0, POSITION_TABLE * sizeof *m->of_position);
}

/* Moves the nodes of the pairs to the front; a parent stands before its children. `marks` says
 * where to. */
static void keep_nodes(dsi_form_walk *m, dsi_form_walk_pair *p, uint32_t n)
{
    const uint32_t n_old = m->n_nodes;
    (void)count_nodes(m, p, n, NODES);
    m->n_nodes = 1;
    for (uint32_t k = 1; k < n_old; ++k) {
        if (m->marks[k] == m->mark) {
            const dsi_form_walk_node old = m->nodes[k];
            m->marks[k] = node(m, old.state, old.parent == 0 ? 0 : m->marks[old.parent]);
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        p[i].stack = p[i].stack == 0 ? 0 : m->marks[p[i].stack];
    }
    memset(m->marks, 0, NODES * sizeof *m->marks);
    m->mark = 0;
}

/* Drops all but the root and `at`, whose new number is returned. */
static uint16_t make_room(dsi_form_walk *m, uint16_t at)
{
    const dsi_form_walk_position root = m->positions[m->root];
    const dsi_form_walk_position kept = m->positions[at];
    /* `todo` is free between steps; each of the two fits half of it twice: PAIRS */
    dsi_form_walk_pair *a = m->pairs + PAIRS - 2 * STEP;
    dsi_form_walk_pair *b = a + root.n;
    memmove(m->todo, m->pairs + kept.first, kept.n * sizeof *b);
    memmove(a, m->pairs + root.first, root.n * sizeof *a);
    memcpy(b, m->todo, kept.n * sizeof *b);
    empty_tables(m);
    keep_nodes(m, a, root.n + kept.n);
    memmove(m->pairs, a, root.n * sizeof *a);
    sort(m->pairs, root.n);
    m->root = intern(m, root.n, root.may_end);
    memmove(m->pairs + m->n_pairs, b, kept.n * sizeof *b);
    sort(m->pairs + m->n_pairs, kept.n);
    return intern(m, kept.n, kept.may_end);
}

static bool has_room(const dsi_form_walk *m)
{
    return m->n_positions < DSI_FORM_WALK_MOST && m->n_pairs + STEP <= PAIRS &&
           m->n_nodes + STEP <= NODES;
}

/* ---- walking ---- */
uint16_t dsi_form_walk_begin(dsi_form_walk *m)
{
    if (m->n_positions > 0 && !has_room(m)) {
        empty_tables(m);
        m->n_nodes = 1;
    }
    begin_step(m);
    (void)look(m, m->g->rules[m->g->root], 0);
    m->root = end_step(m);
    return m->root;
}

uint16_t dsi_form_walk_step(dsi_form_walk *m, uint16_t at, uint8_t byte)
{
    const uint8_t class = m->g->class_of[byte];
    uint16_t follows = m->follows[(size_t)at * m->g->n_classes + class];
    if (follows != UNKNOWN) {
        return follows;
    }
    if (!has_room(m)) {
        at = make_room(m, at);
    }
    const dsi_form_walk_position p = m->positions[at];
    bool fits = true;
    begin_step(m);
    for (uint32_t i = 0; i < p.n && fits; ++i) {
        const dsi_form_walk_pair pair = m->pairs[p.first + i];
        for (uint32_t k = m->g->first[pair.state]; k < m->g->first[pair.state + 1]; ++k) {
            const dsi_edge *e = &m->g->edges[k];
            if (e->kind == DSI_EDGE_BYTE && byte >= e->low && byte <= e->high) {
                fits = fits && look(m, e->to, pair.stack);
            }
        }
    }
    follows = fits && m->n_todo > 0 ? end_step(m) : DSI_FORM_WALK_DEAD;
    m->follows[(size_t)at * m->g->n_classes + class] = follows;
    return follows;
}

bool dsi_form_walk_may_end(const dsi_form_walk *m, uint16_t at)
{
    return at != DSI_FORM_WALK_DEAD && m->positions[at].may_end;
}

bool dsi_form_walk_goes_on(const dsi_form_walk *m, uint16_t at)
{
    return at != DSI_FORM_WALK_DEAD && m->positions[at].n > 0;
}
