/* SPDX-License-Identifier: Apache-2.0 */
/* Building a grammar and making it ready. See grammar.h. */
#include "guide/grammar.h"

#include <deepspeed/context.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_STATES = 1 << 18,
    MOST_EDGES = 1 << 20,
    MOST_RULES = 1 << 14,
    MOST_WORK = 1 << 21,
    MOST_SCAN = 1 << 26
};

void dsi_grammar_free(dsi_grammar *g)
{
    free(g->edges);
    free(g->rules);
    free(g->first);
    *g = (dsi_grammar){0};
}

uint32_t dsi_grammar_fail(dsi_grammar *g, const char *format, ...)
{
    va_list args;
    if (!g->failed) {
        g->failed = true;
        va_start(args, format);
        (void)vsnprintf(g->error, sizeof g->error, format, args);
        va_end(args);
    }
    return 0;
}

bool dsi_grammar_work(dsi_grammar *g)
{
    if (++g->work > MOST_WORK) {
        (void)dsi_grammar_fail(g, "it is too large: repetitions within repetitions");
    }
    return !g->failed;
}

/* Room for one more in an array; false: the grammar failed. */
static bool grow(dsi_grammar *g, void **array, uint32_t n, uint32_t *room, uint32_t most,
                 size_t each)
{
    if (g->failed || n < *room) {
        return !g->failed;
    }
    const uint32_t wanted = *room == 0 ? 64 : *room * 2;
    void *grown = n < most ? realloc(*array, wanted * each) : NULL;
    if (grown == NULL) {
        (void)dsi_grammar_fail(g, "it is too large: more than %u states, edges or rules", n);
        return false;
    }
    *array = grown;
    *room = wanted;
    return true;
}

uint32_t dsi_grammar_state(dsi_grammar *g)
{
    if (g->n_states == MOST_STATES) {
        return dsi_grammar_fail(g, "it is too large: more than %d states", MOST_STATES);
    }
    return g->failed ? 0 : g->n_states++;
}

static void add_edge(dsi_grammar *g, dsi_edge edge)
{
    if (grow(g, (void **)&g->edges, g->n_edges, &g->edge_room, MOST_EDGES, sizeof edge)) {
        g->edges[g->n_edges++] = edge;
    }
}

void dsi_grammar_byte(dsi_grammar *g, uint32_t from, uint32_t to, uint8_t low, uint8_t high)
{
    add_edge(g,
             (dsi_edge){.from = from, .to = to, .kind = DSI_EDGE_BYTE, .low = low, .high = high});
}

void dsi_grammar_empty(dsi_grammar *g, uint32_t from, uint32_t to)
{
    add_edge(g, (dsi_edge){.from = from, .to = to, .kind = DSI_EDGE_EMPTY});
}

uint32_t dsi_grammar_rule(dsi_grammar *g)
{
    if (!grow(g, (void **)&g->rules, g->n_rules, &g->rule_room, MOST_RULES, sizeof *g->rules)) {
        return 0;
    }
    g->rules[g->n_rules] = dsi_grammar_state(g);
    return g->n_rules++;
}

void dsi_grammar_end(dsi_grammar *g, uint32_t at)
{
    add_edge(g, (dsi_edge){.from = at, .kind = DSI_EDGE_END});
}

uint32_t dsi_grammar_call(dsi_grammar *g, uint32_t at, uint32_t rule)
{
    const uint32_t behind = dsi_grammar_state(g);
    add_edge(g, (dsi_edge){.from = at, .to = behind, .kind = DSI_EDGE_CALL, .rule = rule});
    return behind;
}

uint32_t dsi_grammar_text(dsi_grammar *g, uint32_t at, const char *text, size_t n)
{
    for (size_t i = 0; i < n && !g->failed; ++i) {
        const uint32_t behind = dsi_grammar_state(g);
        dsi_grammar_byte(g, at, behind, (uint8_t)text[i], (uint8_t)text[i]);
        at = behind;
    }
    return at;
}

/* ---- ready ---- */
static bool sort_edges(dsi_grammar *g)
{
    dsi_edge *sorted = malloc((g->n_edges + 1u) * sizeof *sorted);
    g->first = calloc(g->n_states + 2u, sizeof *g->first);
    if (sorted == NULL || g->first == NULL) {
        free(sorted);
        return false;
    }
    for (uint32_t i = 0; i < g->n_edges; ++i) {
        g->first[g->edges[i].from + 2] += 1; /* one further: the places below move it back */
    }
    for (uint32_t s = 1; s < g->n_states + 2; ++s) {
        g->first[s] += g->first[s - 1];
    }
    for (uint32_t i = 0; i < g->n_edges; ++i) {
        sorted[g->first[g->edges[i].from + 1]++] = g->edges[i];
    }
    free(g->edges);
    g->edges = sorted;
    return true;
}

static void find_classes(dsi_grammar *g)
{
    bool begins[257] = {true};
    for (uint32_t i = 0; i < g->n_edges; ++i) {
        if (g->edges[i].kind == DSI_EDGE_BYTE) {
            begins[g->edges[i].low] = true;
            begins[g->edges[i].high + 1] = true;
        }
    }
    for (int c = 0; c < 256; ++c) {
        if (begins[c]) {
            g->one_of[g->n_classes++] = (uint8_t)c;
        }
        g->class_of[c] = (uint8_t)(g->n_classes - 1);
    }
}

/* What a walk over states needs that takes no byte: which rules can be empty, which call which. */
typedef struct scan {
    const dsi_grammar *g;
    bool *nullable;   /* [n_rules] */
    uint8_t *mark;    /* [n_rules]: 1 on the way, 2 done */
    uint32_t *seen;   /* [n_states]: the turn that saw it */
    uint32_t *todo;   /* [n_states] */
    uint32_t *called; /* a stack of rules */
    uint32_t *from;   /* [n_rules]: where the walk of a rule in the stack stands */
    uint32_t turn;
    uint64_t work; /* states that were looked at */
} scan;

/* States that the rule reaches without a byte; calls of rules that can be empty are passed. */
static uint32_t reach(scan *s, uint32_t rule, bool *ends_out)
{
    const dsi_grammar *g = s->g;
    uint32_t n = 0;
    *ends_out = false;
    s->turn += 1;
    s->todo[n++] = g->rules[rule];
    s->seen[g->rules[rule]] = s->turn;
    for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t k = g->first[s->todo[i]]; k < g->first[s->todo[i] + 1]; ++k) {
            const dsi_edge *e = &g->edges[k];
            const bool passes =
                e->kind == DSI_EDGE_EMPTY || (e->kind == DSI_EDGE_CALL && s->nullable[e->rule]);
            *ends_out = *ends_out || e->kind == DSI_EDGE_END;
            if (passes && s->seen[e->to] != s->turn) {
                s->seen[e->to] = s->turn;
                s->todo[n++] = e->to;
            }
        }
    }
    s->work += n;
    return n;
}

static void find_nullable(scan *s)
{
    bool changed = true;
    while (changed && s->work < MOST_SCAN) {
        changed = false;
        for (uint32_t r = 0; r < s->g->n_rules; ++r) {
            bool ends = false;
            if (!s->nullable[r]) {
                (void)reach(s, r, &ends);
                s->nullable[r] = ends;
                changed = changed || ends;
            }
        }
    }
}

/* Rules that `rule` calls before a byte, from number `at` on; UINT32_MAX: no more. */
static uint32_t next_called(scan *s, uint32_t rule, uint32_t at)
{
    bool ends = false;
    const uint32_t n = reach(s, rule, &ends);
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t e = s->g->first[s->todo[i]]; e < s->g->first[s->todo[i] + 1]; ++e) {
            if (s->g->edges[e].kind == DSI_EDGE_CALL && k++ == at) {
                return s->g->edges[e].rule;
            }
        }
    }
    return UINT32_MAX;
}

/* Whether a rule comes back to itself without a byte; depth first, with a stack of its own. */
static bool calls_itself(scan *s, uint32_t rule)
{
    uint32_t depth = 0;
    s->called[depth] = rule;
    s->from[depth] = 0;
    s->mark[rule] = 1;
    while (s->work < MOST_SCAN) {
        const uint32_t next = next_called(s, s->called[depth], s->from[depth]++);
        if (next == UINT32_MAX) {
            s->mark[s->called[depth]] = 2;
            if (depth == 0) {
                return false;
            }
            --depth;
        } else if (s->mark[next] == 1) {
            return true;
        } else if (s->mark[next] == 0) {
            s->called[++depth] = next;
            s->from[depth] = 0;
            s->mark[next] = 1;
        }
    }
    return false;
}

static ds_status check_recursion(ds_ctx *ctx, const dsi_grammar *g)
{
    scan s = {.g = g,
              .nullable = calloc(g->n_rules, sizeof *s.nullable),
              .mark = calloc(g->n_rules, sizeof *s.mark),
              .seen = calloc(g->n_states, sizeof *s.seen),
              .todo = malloc(g->n_states * sizeof *s.todo),
              .called = malloc((g->n_rules + 1u) * sizeof *s.called),
              .from = malloc((g->n_rules + 1u) * sizeof *s.from)};
    ds_status status = DS_OK;
    if (s.nullable == NULL || s.mark == NULL || s.seen == NULL || s.todo == NULL ||
        s.called == NULL || s.from == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for a grammar");
    } else {
        find_nullable(&s);
        for (uint32_t r = 0; r < g->n_rules && status >= 0; ++r) {
            if (s.mark[r] == 0 && calls_itself(&s, r)) {
                status = ds_fail(ctx, DS_ERR_ARG,
                                 "a rule begins with itself, so that no text would ever begin: "
                                 "write what it begins with first");
            }
        }
        if (status >= 0 && s.work >= MOST_SCAN) {
            status = ds_fail(ctx, DS_ERR_LIMIT,
                             "it is too large: too many rules in a row that can "
                             "be empty");
        }
    }
    free(s.nullable);
    free(s.mark);
    free(s.seen);
    free(s.todo);
    free(s.called);
    free(s.from);
    return status;
}

/* ---- dead ends ---- */
/* Whether an edge leads to an end: behind it one can be reached, and the rule that it calls has
 * one. */
static bool leads_on(const dsi_edge *e, const bool *ends, const bool *texts)
{
    return e->kind == DSI_EDGE_END || (ends[e->to] && (e->kind != DSI_EDGE_CALL || texts[e->rule]));
}

/* States from which an end is reached, found from behind; rules from whose begin one is. */
static bool find_ends(dsi_grammar *g, bool *ends, bool *texts)
{
    bool changed = true;
    uint64_t work = 0;
    while (changed && work < MOST_SCAN) {
        changed = false;
        for (uint32_t i = g->n_edges; i-- > 0;) {
            const dsi_edge *e = &g->edges[i];
            if (!ends[e->from] && leads_on(e, ends, texts)) {
                ends[e->from] = changed = true;
            }
        }
        for (uint32_t r = 0; r < g->n_rules; ++r) {
            changed = changed || texts[r] != ends[g->rules[r]];
            texts[r] = ends[g->rules[r]];
        }
        work += g->n_edges + g->n_rules;
    }
    return !changed;
}

/* Drops edges that no whole text takes: so what is begun can be ended. */
static void drop_dead_ends(dsi_grammar *g, uint32_t root)
{
    bool *ends = calloc(g->n_states + 1u, sizeof *ends);
    bool *texts = calloc(g->n_rules + 1u, sizeof *texts);
    uint32_t n = 0;
    if (ends == NULL || texts == NULL) {
        (void)dsi_grammar_fail(g, "no memory for a grammar");
    } else if (!find_ends(g, ends, texts)) {
        (void)dsi_grammar_fail(g, "it is too large: rules that call rules too often");
    } else if (!texts[root]) {
        (void)dsi_grammar_fail(g, "no text has this form");
    }
    for (uint32_t i = 0; i < g->n_edges && !g->failed; ++i) {
        if (leads_on(&g->edges[i], ends, texts)) {
            g->edges[n++] = g->edges[i];
        }
    }
    g->n_edges = g->failed ? g->n_edges : n;
    free(ends);
    free(texts);
}

ds_status dsi_grammar_finish(ds_ctx *ctx, dsi_grammar *g, uint32_t root)
{
    if (!g->failed) {
        drop_dead_ends(g, root);
    }
    if (!g->failed && !sort_edges(g)) {
        (void)dsi_grammar_fail(g, "no memory for a grammar");
    }
    if (g->failed) {
        return ds_fail(ctx, DS_ERR_ARG, "%s", g->error);
    }
    g->root = root;
    find_classes(g);
    return check_recursion(ctx, g);
}
