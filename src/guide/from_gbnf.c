/* SPDX-License-Identifier: Apache-2.0 */
/* GBNF, the grammars of llama.cpp: NAME ::= alternatives of texts in quotes, classes, names and
 * groups, with * + ? {m,n} behind them; # begins a comment; the rule `root` is the text. */
#include "guide/form_reader.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 4096 };

typedef struct name {
    const char *text;
    size_t n;
    uint32_t rule;
    bool defined;
} name;

typedef struct names {
    name *names; /* [MOST_NAMES] */
    size_t n;
} names;
static uint32_t put_choice(dsi_form_reader *r, uint32_t at);

/* Spaces and comments; within groups, and where `lines` says so, ends of lines too. */
static void skip_space(dsi_form_reader *r, bool lines)
{
    for (;;) {
        const char c = dsi_form_reader_peek(r);
        if (c == '#') {
            while (r->at < r->n && dsi_form_reader_peek(r) != '\n') {
                r->at += 1;
            }
        } else if (r->at < r->n && (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))) {
            r->at += 1;
        } else {
            return;
        }
    }
}

static bool of_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* The rule of the name that stands here. NULL: there is none. */
static name *read_name(dsi_form_reader *r)
{
    names *all = r->names;
    const char *text = r->text + r->at;
    size_t n = 0;
    while (of_name(dsi_form_reader_peek(r))) {
        ++r->at;
        ++n;
    }
    for (size_t i = 0; i < all->n && n > 0; ++i) {
        if (all->names[i].n == n && memcmp(all->names[i].text, text, n) == 0) {
            return &all->names[i];
        }
    }
    if (n == 0 || all->n == MOST_NAMES) {
        (void)dsi_form_reader_fail(r, n == 0 ? "expected a name" : "there are too many names");
        return NULL;
    }
    all->names[all->n] = (name){text, n, dsi_grammar_rule(r->g), false};
    return &all->names[all->n++];
}

/* A character, or an escape of one. */
static uint32_t read_point(dsi_form_reader *r)
{
    static const char letters[] = "tnr\\\"[]-^/";
    static const char values[] = "\t\n\r\\\"[]-^/";
    if (!dsi_form_reader_skip(r, "\\")) {
        return dsi_form_reader_point(r);
    }
    const char c = dsi_form_reader_peek(r);
    const char *found = c != '\0' ? strchr(letters, c) : NULL;
    r->at += c != '\0';
    if (found != NULL) {
        return (unsigned char)values[found - letters];
    }
    return c == 'x'   ? dsi_form_reader_hex(r, 2)
           : c == 'u' ? dsi_form_reader_hex(r, 4)
           : c == 'U' ? dsi_form_reader_hex(r, 8)
                      : dsi_form_reader_fail(r, "an escape that is not known");
}

static uint32_t put_point(dsi_form_reader *r, uint32_t at, uint32_t point)
{
    dsi_chars one = {0};
    dsi_chars_add(&one, point, point);
    return r->g->failed ? 0 : dsi_chars_put(r->g, at, &one, false);
}

static uint32_t put_quoted(dsi_form_reader *r, uint32_t at)
{
    while (!r->g->failed && !dsi_form_reader_skip(r, "\"")) {
        at = put_point(r, at, read_point(r));
    }
    return at;
}

static uint32_t put_class(dsi_form_reader *r, uint32_t at)
{
    dsi_chars set = {0};
    const bool inverted = dsi_form_reader_skip(r, "^");
    while (!r->g->failed && !dsi_form_reader_skip(r, "]")) {
        const uint32_t low = read_point(r);
        uint32_t high = low;
        if (dsi_form_reader_peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at += 1;
            high = read_point(r);
        }
        if (high < low) {
            return dsi_form_reader_fail(r, "a range whose end is before its begin");
        }
        dsi_chars_add(&set, low, high);
    }
    if (inverted) {
        dsi_chars_invert(&set, DSI_FORM_READER_ALL);
    }
    return r->g->failed ? 0 : dsi_chars_put(r->g, at, &set, false);
}

static uint32_t put_part(dsi_form_reader *r, uint32_t at)
{
    if (!dsi_grammar_work(r->g)) {
        return 0;
    }
    if (dsi_form_reader_skip(r, "\"")) {
        return put_quoted(r, at);
    }
    if (dsi_form_reader_skip(r, "[")) {
        return put_class(r, at);
    }
    if (dsi_form_reader_skip(r, ".")) {
        dsi_chars all = {0};
        dsi_chars_add(&all, 0, DSI_FORM_READER_ALL);
        return dsi_chars_put(r->g, at, &all, false);
    }
    if (dsi_form_reader_skip(r, "(")) {
        if (++r->depth > DSI_FORM_READER_GROUPS) {
            return dsi_form_reader_fail(r, "too many groups in one another");
        }
        at = put_choice(r, at);
        r->depth -= 1;
        skip_space(r, true);
        return dsi_form_reader_skip(r, ")") ? at
                                            : dsi_form_reader_fail(r, "a group that does not end");
    }
    const name *called = read_name(r);
    return called != NULL ? dsi_grammar_call(r->g, at, called->rule) : 0;
}

static uint32_t put_sequence(dsi_form_reader *r, uint32_t at)
{
    skip_space(r, r->depth > 0);
    while (!r->g->failed && (dsi_form_reader_peek(r) == '"' || dsi_form_reader_peek(r) == '[' ||
                             dsi_form_reader_peek(r) == '.' || dsi_form_reader_peek(r) == '(' ||
                             of_name(dsi_form_reader_peek(r)))) {
        at = dsi_form_reader_repeated(r, at, put_part);
        skip_space(r, r->depth > 0);
    }
    return at;
}

/* An alternative may begin on a line of its own, behind the bar. */
static uint32_t put_choice(dsi_form_reader *r, uint32_t at)
{
    const uint32_t done = dsi_grammar_state(r->g);
    bool another = false;
    do {
        skip_space(r, true);
        dsi_grammar_empty(r->g, put_sequence(r, dsi_form_reader_fresh(r, at)), done);
        const size_t behind = r->at;
        skip_space(r, true);
        another = dsi_form_reader_skip(r, "|");
        r->at = another ? r->at : behind;
    } while (!r->g->failed && another);
    return done;
}

static void read_rule(dsi_form_reader *r)
{
    name *own = read_name(r);
    if (own == NULL) {
        return;
    }
    if (own->defined) {
        (void)dsi_form_reader_fail(r, "a name that is defined twice");
        return;
    }
    own->defined = true;
    skip_space(r, false);
    if (!dsi_form_reader_skip(r, "::=")) {
        (void)dsi_form_reader_fail(r, "expected ::= behind a name");
        return;
    }
    const uint32_t start = r->g->failed ? 0 : r->g->rules[own->rule];
    dsi_grammar_end(r->g, put_choice(r, start));
    if (r->at < r->n && dsi_form_reader_peek(r) != '\n' && !r->g->failed) {
        (void)dsi_form_reader_fail(r, "something that is no part of an alternative");
    }
}

void dsi_form_gbnf(dsi_grammar *g, const char *text, size_t n, uint32_t *root_out)
{
    names all = {.names = calloc(MOST_NAMES, sizeof *all.names)};
    dsi_form_reader r = {.g = g, .text = text, .n = n, .what = "grammar", .names = &all};
    const name *root = NULL;
    if (all.names == NULL) {
        (void)dsi_grammar_fail(g, "no memory for a grammar");
        return;
    }
    for (skip_space(&r, true); r.at < n && !g->failed; skip_space(&r, true)) {
        read_rule(&r);
    }
    for (size_t i = 0; i < all.n && !g->failed; ++i) {
        const name *one = &all.names[i];
        if (!one->defined) {
            (void)dsi_grammar_fail(g, "grammar: %.*s is used, but not defined",
                                   one->n < 60 ? (int)one->n : 60, one->text);
        }
        root = one->n == 4 && memcmp(one->text, "root", 4) == 0 ? one : root;
    }
    if (root == NULL) {
        (void)dsi_grammar_fail(g, "grammar: there is no rule of the name root");
    }
    *root_out = root != NULL ? root->rule : 0;
    free(all.names);
}
