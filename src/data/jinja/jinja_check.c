/* SPDX-License-Identifier: Apache-2.0 */
/* What jinja2's compiler refuses although it parses: so that a template that is an error there is
 * one here, too, even where the wrong part is never reached.
 *
 * Called once after parsing. A filter or test that does not exist is an error at once, but within
 * the branches of an "if" only when it is reached, since a template may ask for it first.
 */
#include "data/jinja/jinja_node.h"

#include "data/jinja/jinja_run.h"

#include <stdio.h>
#include <string.h>

enum { CHECK_DEPTH_MAX = 600 };

typedef struct checker {
    dsi_ji_fault *fault;
    bool soft;       /* within the branches of an if */
    uint32_t loops;  /* loops around, within the function of Python's that this becomes */
    uint32_t target; /* loops around at all: "loop" is no target then */
    uint32_t depth;
    bool failed;
} checker;

static void walk(checker *c, dsi_jn *node);

static void fail(checker *c, const dsi_jn *node, ds_status status, const char *what,
                 const char *name)
{
    if (!c->failed) {
        (void)snprintf(c->fault->text, sizeof c->fault->text, what, name);
        c->fault->status = status;
        c->fault->line = node->line;
        c->fault->column = node->column;
        c->failed = true;
    }
}

static void walk_list(checker *c, dsi_jn_list list)
{
    for (uint32_t i = 0; i < list.n && !c->failed; ++i) {
        walk(c, list.at[i]);
    }
}

/* A part that is a frame of its own. */
static void walk_frame(checker *c, dsi_jn_list list)
{
    const bool soft = c->soft;
    c->soft = false;
    walk_list(c, list);
    c->soft = soft;
}

static void walk_soft(checker *c, dsi_jn *node)
{
    const bool soft = c->soft;
    c->soft = true;
    walk(c, node->a);
    walk(c, node->b);
    walk(c, node->c);
    walk_list(c, node->body);
    walk_list(c, node->other);
    c->soft = soft;
}

static void walk_target(checker *c, const dsi_jn *node, const char *name)
{
    if (c->target > 0 && strcmp(name, "loop") == 0) {
        fail(c, node, DS_ERR_FORMAT, "\"%s\" is the loop's own within a loop", name);
    }
}

static void walk_targets(checker *c, dsi_jn *node)
{
    if (node->kind == DSI_JN_NAME) {
        walk_target(c, node, node->name);
    }
    for (uint32_t i = 0; node->kind == DSI_JN_TUPLE && i < node->list.n; ++i) {
        walk_targets(c, node->list.at[i]);
    }
}

static void walk_for(checker *c, dsi_jn *node)
{
    if (++c->loops > DSI_JI_FOR_MAX) {
        fail(c, node, DS_ERR_LIMIT, "loops within each other to more than %s levels", "18");
    }
    ++c->target;
    const bool soft = c->soft;
    walk_targets(c, node->a);
    walk(c, node->b);
    c->soft = false;
    walk(c, node->c);
    walk_list(c, node->body);
    --c->loops;
    walk_list(c, node->other);
    c->soft = soft;
    --c->target;
}

/* A body that becomes a function: no loop around it can be left from within. */
static void walk_function(checker *c, dsi_jn *node)
{
    const uint32_t loops = c->loops;
    c->loops = 0;
    walk_frame(c, node->list);
    walk_frame(c, node->body);
    c->loops = loops;
}

static void walk_named(checker *c, dsi_jn *node)
{
    const bool filter = node->kind == DSI_JN_FILTER;
    const bool known = filter ? dsi_ji_filter_exists(node->name) : dsi_ji_test_exists(node->name);
    if (!known && !c->soft) {
        fail(c, node, DS_ERR_FORMAT,
             filter ? "no filter is named \"%.60s\"" : "no test is named \"%.60s\"", node->name);
    }
    walk(c, node->a);
    walk_list(c, node->list);
}

/* Two keywords of one name. */
static void check_keywords(checker *c, const dsi_jn *node)
{
    for (uint32_t i = 0; i < node->list.n; ++i) {
        const bool argument = node->list.at[i]->kind == DSI_JN_ARG;
        const char *name = argument ? node->list.at[i]->name : NULL;
        for (uint32_t k = 0; k < i && name != NULL && *name != '*'; ++k) {
            if (node->list.at[k]->name != NULL && strcmp(node->list.at[k]->name, name) == 0) {
                fail(c, node, DS_ERR_FORMAT, "the argument \"%.60s\" is given twice", name);
            }
        }
    }
}

/* Which of the names that a macro is given besides its parameters its body reads before it writes.
 */
typedef struct special {
    const char *name;
    bool read, written;
} special;

static void seek(const dsi_jn *node, special *s, uint32_t depth);

static void seek_list(dsi_jn_list list, special *s, uint32_t depth)
{
    for (uint32_t i = 0; i < list.n; ++i) {
        seek(list.at[i], s, depth);
    }
}

static void seek_targets(const dsi_jn *node, special *s)
{
    if (node->kind == DSI_JN_NAME && strcmp(node->name, s->name) == 0) {
        s->written = true;
    }
    for (uint32_t i = 0; node->kind == DSI_JN_TUPLE && i < node->list.n; ++i) {
        seek_targets(node->list.at[i], s);
    }
}

static void seek(const dsi_jn *node, special *s, uint32_t depth)
{
    if (node == NULL || depth > CHECK_DEPTH_MAX || s->read || s->written) {
        return;
    }
    if (node->kind == DSI_JN_NAME && strcmp(node->name, s->name) == 0) {
        s->read = true;
    }
    const bool sets =
        node->kind == DSI_JN_FOR || node->kind == DSI_JN_SET || node->kind == DSI_JN_SET_BLOCK;
    if (sets) {
        seek_targets(node->a, s);
    } else {
        seek(node->a, s, depth + 1);
    }
    if (node->kind == DSI_JN_PARAMETER && strcmp(node->name, s->name) == 0) {
        s->written = true;
    }
    seek(node->b, s, depth + 1);
    seek(node->c, s, depth + 1);
    seek_list(node->list, s, depth + 1);
    seek_list(node->body, s, depth + 1);
    seek_list(node->other, s, depth + 1);
}

static bool reads(const dsi_jn *node, const char *name)
{
    special s = {.name = name};
    seek_list(node->body, &s, 0);
    for (uint32_t i = 0; i < node->list.n; ++i) {
        if (strcmp(node->list.at[i]->name, name) == 0) {
            return false; /* an ordinary parameter */
        }
    }
    return s.read;
}

static void walk_macro(checker *c, dsi_jn *node)
{
    node->takes_caller = reads(node, "caller");
    node->takes_kwargs = reads(node, "kwargs");
    node->takes_varargs = reads(node, "varargs");
    for (uint32_t i = 0; i < node->list.n; ++i) {
        if (strcmp(node->list.at[i]->name, "caller") == 0) {
            fail(c, node, DS_ERR_UNSUPPORTED, "a parameter that is named \"%s\"", "caller");
        }
    }
    if (node->kind == DSI_JN_CALL_BLOCK) {
        walk(c, node->a);
    }
    walk_function(c, node);
}

static void walk_statement(checker *c, dsi_jn *node)
{
    switch (node->kind) {
    case DSI_JN_FOR:
        walk_for(c, node);
        break;
    case DSI_JN_SET:
    case DSI_JN_SET_BLOCK:
        walk_targets(c, node->a);
        walk(c, node->b);
        walk_frame(c, node->body);
        break;
    case DSI_JN_MACRO:
    case DSI_JN_CALL_BLOCK:
    case DSI_JN_GENERATION:
        walk_macro(c, node);
        break;
    case DSI_JN_BREAK:
    case DSI_JN_CONTINUE:
        if (c->loops == 0) {
            fail(c, node, DS_ERR_FORMAT, "%s outside of a loop",
                 node->kind == DSI_JN_BREAK ? "break" : "continue");
        }
        break;
    default:
        walk(c, node->a);
        walk(c, node->b);
        walk(c, node->c);
        walk_frame(c, node->list);
        walk_frame(c, node->body);
        walk_frame(c, node->other);
        break;
    }
}

static void walk(checker *c, dsi_jn *node)
{
    if (node == NULL || c->failed) {
        return;
    }
    if (++c->depth > CHECK_DEPTH_MAX) {
        fail(c, node, DS_ERR_LIMIT, "parts within each other to more than %s levels", "600");
    }
    if (node->kind == DSI_JN_COND || node->kind == DSI_JN_IF) {
        walk_soft(c, node);
    } else if (node->kind == DSI_JN_FILTER || node->kind == DSI_JN_TEST) {
        check_keywords(c, node);
        walk_named(c, node);
    } else if (node->kind >= DSI_JN_DATA) {
        walk_statement(c, node);
    } else {
        check_keywords(c, node);
        walk(c, node->a);
        walk(c, node->b);
        walk(c, node->c);
        walk_list(c, node->list);
    }
    --c->depth;
}

bool dsi_ji_check(dsi_jinja *template, dsi_ji_fault *fault)
{
    checker c = {.fault = fault};
    walk_list(&c, template->body);
    return !c.failed;
}
