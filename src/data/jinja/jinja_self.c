/* SPDX-License-Identifier: Apache-2.0 */
/* The name "self", which jinja2 gives a template that reads it: an object of the template's blocks.
 *
 * Called once after parsing, behind jinja_check.c. There are no blocks here, so a member of it is
 * undefined, as in jinja2, and becomes a constant. Every other use is refused: the object itself,
 * and a variable of that name, which may or may not be the object.
 */
#include "data/jinja/jinja_node.h"

#include "data/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

typedef struct search {
    dsi_arena *arena;
    const dsi_jn *other; /* a use that is no member */
    bool no_memory;
} search;

static void visit(search *s, dsi_jn *node);

static void visit_list(search *s, dsi_jn_list list)
{
    for (uint32_t i = 0; i < list.n; ++i) {
        visit(s, list.at[i]);
    }
}

/* "_x" is hidden by the sandbox, and another error. */
static bool is_member(const dsi_jn *node)
{
    return node->kind == DSI_JN_GETATTR && node->a->kind == DSI_JN_NAME &&
           strcmp(node->a->name, "self") == 0 && node->name[0] != '_';
}

static void make_undefined(search *s, dsi_jn *node)
{
    dsi_jv_hint *hint = dsi_arena_alloc(s->arena, sizeof *hint);
    if (hint == NULL) {
        s->no_memory = true;
        return;
    }
    *hint = (dsi_jv_hint){.name = node->name, .text = "the template"};
    node->kind = DSI_JN_CONST;
    node->value = (dsi_jv){.kind = DSI_JV_UNDEFINED, .hint = hint};
}

/* A variable that is read or written, a parameter, a macro. */
static bool is_name(const dsi_jn *node)
{
    const bool names = node->kind == DSI_JN_NAME || node->kind == DSI_JN_NSREF ||
                       node->kind == DSI_JN_PARAMETER || node->kind == DSI_JN_MACRO;
    return names && strcmp(node->name, "self") == 0;
}

static void visit(search *s, dsi_jn *node)
{
    if (node == NULL || s->other != NULL || s->no_memory) {
        return;
    }
    if (is_member(node)) {
        make_undefined(s, node);
        return;
    }
    if (is_name(node)) {
        s->other = node;
        return;
    }
    visit(s, node->a);
    visit(s, node->b);
    visit(s, node->c);
    visit_list(s, node->list);
    visit_list(s, node->body);
    visit_list(s, node->other);
}

bool dsi_ji_settle_self(dsi_jinja *template, dsi_ji_fault *fault)
{
    search s = {.arena = template->arena};
    if (dsi_jinja_mentions(template, "self")) {
        visit_list(&s, template->body);
    }
    if (s.other != NULL) {
        fault->status = DS_ERR_UNSUPPORTED;
        fault->line = s.other->line;
        fault->column = s.other->column;
        (void)snprintf(fault->text, sizeof fault->text,
                       "\"self\" is known for its members only, which are undefined");
    }
    return s.other == NULL && !s.no_memory;
}
