/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to statements, and opening and closing of a template. See jinja.h. */
#include "data/jinja/jinja_node.h"

#include "data/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES = 256 << 20 };

static dsi_jn_list statements_until(dsi_jp *p, const char *const *ends);
static dsi_jn *statement(dsi_jp *p);

static void add(dsi_jp *p, dsi_jn_list *list, dsi_jn *node)
{
    if (!p->failed) {
        dsi_jp_add(p, list, node);
    }
}

static bool is_end(const dsi_jp *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ++ends) {
        if (dsi_jp_is(p, DSI_JT_NAME, *ends)) {
            return true;
        }
    }
    return false;
}

/* What stands up to one of the end tags, whose name is in hand then; ends NULL: to the end. */
static dsi_jn_list nodes_until(dsi_jp *p, const char *const *ends)
{
    dsi_jn_list list = {0};
    while (!p->failed && p->token->kind != DSI_JT_EOF) {
        if (p->token->kind == DSI_JT_DATA) {
            dsi_jn *node = dsi_jp_node(p, DSI_JN_DATA);
            if (!p->failed) {
                node->value = dsi_jv_str(p->token->text, p->token->n);
                ++p->token;
                add(p, &list, node);
            }
        } else if (dsi_jp_skip_if(p, DSI_JT_VARIABLE_BEGIN, NULL)) {
            dsi_jn *node = dsi_jp_node(p, DSI_JN_OUTPUT);
            dsi_jn *value = dsi_jp_tuple_of(p, (dsi_jp_tuple){0});
            (void)dsi_jp_expect(p, DSI_JT_VARIABLE_END, NULL);
            if (!p->failed) {
                node->a = value;
                add(p, &list, node);
            }
        } else {
            (void)dsi_jp_expect(p, DSI_JT_BLOCK_BEGIN, NULL);
            if (is_end(p, ends)) {
                return list;
            }
            dsi_jn *node = statement(p);
            (void)dsi_jp_expect(p, DSI_JT_BLOCK_END, NULL);
            add(p, &list, node);
        }
    }
    if (!p->failed && ends != NULL) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "the template ends before %s", ends[0]);
    }
    return list;
}

/* The body of a block whose opening tag ends here. */
static dsi_jn_list statements_until(dsi_jp *p, const char *const *ends)
{
    if (++p->depth > DSI_JI_DEPTH_MAX) {
        dsi_jp_fail(p, DS_ERR_LIMIT, "blocks within each other to more than %d levels",
                    DSI_JI_DEPTH_MAX);
    }
    (void)dsi_jp_skip_if(p, DSI_JT_OPERATOR, ":");
    (void)dsi_jp_expect(p, DSI_JT_BLOCK_END, NULL);
    const dsi_jn_list list = nodes_until(p, ends);
    --p->depth;
    return list;
}

/* The same with the end tag taken. */
static dsi_jn_list body_until(dsi_jp *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    const dsi_jn_list list = statements_until(p, ends);
    (void)dsi_jp_expect(p, DSI_JT_NAME, end);
    return list;
}

/* ---- targets ---- */

static bool assignable(const dsi_jn *node)
{
    if (node->kind == DSI_JN_TUPLE) {
        for (uint32_t i = 0; i < node->list.n; ++i) {
            if (!assignable(node->list.at[i])) {
                return false;
            }
        }
        return true;
    }
    return node->kind == DSI_JN_NAME || node->kind == DSI_JN_NSREF;
}

static dsi_jn *target(dsi_jp *p, dsi_jp_tuple how)
{
    how.names_only = true;
    dsi_jn *node = dsi_jp_tuple_of(p, how);
    if (!p->failed && !assignable(node)) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "this cannot be assigned to");
    }
    return node;
}

static const char *plain_name(dsi_jp *p)
{
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None", NULL};
    if (is_end(p, constants)) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "this cannot be assigned to");
    }
    return dsi_jp_expect(p, DSI_JT_NAME, NULL)->text;
}

/* ---- statements; the tag's name is taken ---- */

static void parse_for(dsi_jp *p, dsi_jn *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    node->kind = DSI_JN_FOR;
    node->a = target(p, (dsi_jp_tuple){.no_namespaces = true});
    (void)dsi_jp_expect(p, DSI_JT_NAME, "in");
    node->b = dsi_jp_tuple_of(p, (dsi_jp_tuple){.no_condition = true});
    if (dsi_jp_skip_if(p, DSI_JT_NAME, "if")) {
        node->c = dsi_jp_expression(p);
    }
    node->recursive = dsi_jp_skip_if(p, DSI_JT_NAME, "recursive");
    node->body = statements_until(p, ends);
    if (dsi_jp_skip_if(p, DSI_JT_NAME, "else")) {
        node->other = body_until(p, "endfor");
    } else {
        (void)dsi_jp_expect(p, DSI_JT_NAME, "endfor");
    }
}

static void parse_if(dsi_jp *p, dsi_jn *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    for (;;) {
        node->kind = DSI_JN_IF;
        node->a = dsi_jp_tuple_of(p, (dsi_jp_tuple){.no_condition = true});
        node->body = statements_until(p, ends);
        if (!dsi_jp_is(p, DSI_JT_NAME, "elif") || p->failed) {
            break;
        }
        dsi_jn *other = dsi_jp_node(p, DSI_JN_IF);
        ++p->token;
        if (p->failed) {
            return;
        }
        dsi_jp_add(p, &node->other, other);
        node = other;
    }
    if (dsi_jp_skip_if(p, DSI_JT_NAME, "else")) {
        node->other = body_until(p, "endif");
    } else {
        (void)dsi_jp_expect(p, DSI_JT_NAME, "endif");
    }
}

static void parse_set(dsi_jp *p, dsi_jn *node)
{
    node->a = target(p, (dsi_jp_tuple){0});
    if (dsi_jp_skip_if(p, DSI_JT_OPERATOR, "=")) {
        node->kind = DSI_JN_SET;
        node->b = dsi_jp_tuple_of(p, (dsi_jp_tuple){0});
        return;
    }
    node->kind = DSI_JN_SET_BLOCK;
    node->b = dsi_jp_filters(p, NULL, false);
    node->body = body_until(p, "endset");
}

static void parse_signature(dsi_jp *p, dsi_jn *node)
{
    bool defaults = false;
    (void)dsi_jp_expect(p, DSI_JT_OPERATOR, "(");
    while (!p->failed && !dsi_jp_is(p, DSI_JT_OPERATOR, ")")) {
        if (node->list.n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
        }
        dsi_jn *parameter = dsi_jp_node(p, DSI_JN_PARAMETER);
        if (p->failed) {
            return;
        }
        parameter->name = plain_name(p);
        for (uint32_t i = 0; i < node->list.n; ++i) {
            if (strcmp(node->list.at[i]->name, parameter->name) == 0) {
                dsi_jp_fail(p, DS_ERR_FORMAT, "two parameters are named %.60s", parameter->name);
                return;
            }
        }
        if (dsi_jp_skip_if(p, DSI_JT_OPERATOR, "=")) {
            parameter->a = dsi_jp_expression(p);
            defaults = true;
        } else if (defaults) {
            dsi_jp_fail(p, DS_ERR_FORMAT, "a parameter without default after one with a default");
        }
        add(p, &node->list, parameter);
    }
    (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ")");
}

static void parse_macro(dsi_jp *p, dsi_jn *node)
{
    node->kind = DSI_JN_MACRO;
    node->name = plain_name(p);
    parse_signature(p, node);
    node->body = body_until(p, "endmacro");
}

static void parse_call(dsi_jp *p, dsi_jn *node)
{
    node->kind = DSI_JN_CALL_BLOCK;
    if (dsi_jp_is(p, DSI_JT_OPERATOR, "(")) {
        parse_signature(p, node);
    }
    node->a = dsi_jp_expression(p);
    if (!p->failed && node->a->kind != DSI_JN_CALL) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "expected a call");
    }
    node->body = body_until(p, "endcall");
}

static void parse_filter(dsi_jp *p, dsi_jn *node)
{
    node->kind = DSI_JN_FILTER_BLOCK;
    node->a = dsi_jp_filters(p, NULL, true);
    node->body = body_until(p, "endfilter");
}

static void parse_with(dsi_jp *p, dsi_jn *node)
{
    node->kind = DSI_JN_WITH;
    while (!p->failed && p->token->kind != DSI_JT_BLOCK_END) {
        if (node->list.n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
        }
        dsi_jn *set = dsi_jp_node(p, DSI_JN_SET);
        dsi_jn *name = target(p, (dsi_jp_tuple){.no_namespaces = true});
        (void)dsi_jp_expect(p, DSI_JT_OPERATOR, "=");
        dsi_jn *value = dsi_jp_expression(p);
        if (!p->failed) {
            set->a = name;
            set->b = value;
            dsi_jp_add(p, &node->list, set);
        }
    }
    node->body = body_until(p, "endwith");
}

static void parse_generation(dsi_jp *p, dsi_jn *node)
{
    node->kind = DSI_JN_GENERATION;
    node->body = body_until(p, "endgeneration");
}

static void parse_print(dsi_jp *p, dsi_jn *node)
{
    node->kind = DSI_JN_IF; /* a true one around the outputs */
    node->a = dsi_jp_node(p, DSI_JN_CONST);
    if (p->failed) {
        return;
    }
    node->a->value = dsi_jv_bool(true);
    while (!p->failed && p->token->kind != DSI_JT_BLOCK_END) {
        if (node->body.n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
        }
        dsi_jn *output = dsi_jp_node(p, DSI_JN_OUTPUT);
        dsi_jn *value = dsi_jp_expression(p);
        if (!p->failed) {
            output->a = value;
            dsi_jp_add(p, &node->body, output);
        }
    }
}

static dsi_jn *statement(dsi_jp *p)
{
    static const struct {
        const char *name;
        void (*parse)(dsi_jp *, dsi_jn *);
        dsi_jn_kind kind; /* of one without a parser */
    } known[] = {
        {"for", parse_for, 0},
        {"if", parse_if, 0},
        {"set", parse_set, 0},
        {"macro", parse_macro, 0},
        {"call", parse_call, 0},
        {"filter", parse_filter, 0},
        {"with", parse_with, 0},
        {"generation", parse_generation, 0},
        {"print", parse_print, 0},
        {"break", NULL, DSI_JN_BREAK},
        {"continue", NULL, DSI_JN_CONTINUE},
    };
    static const char *const others[] = {"block", "extends",    "include", "import",
                                         "from",  "autoescape", NULL};
    dsi_jn *node = dsi_jp_node(p, DSI_JN_BREAK);
    if (is_end(p, others)) {
        dsi_jp_fail(p, DS_ERR_UNSUPPORTED, "the tag \"%s\" is not supported", p->token->text);
    }
    const char *name = p->token->text;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !p->failed; ++i) {
        if (dsi_jp_is(p, DSI_JT_NAME, known[i].name)) {
            ++p->token;
            node->kind = known[i].kind;
            if (known[i].parse != NULL) {
                known[i].parse(p, node);
            }
            return node;
        }
    }
    dsi_jp_fail(p, DS_ERR_FORMAT, "unknown tag \"%.40s\"", name);
    return node;
}

static bool parse_all(dsi_jinja *template, const char *text, size_t n, dsi_ji_fault *fault)
{
    const dsi_jt *tokens = dsi_ji_lex(template->arena, text, n, fault);
    if (tokens == NULL) {
        return false;
    }
    for (const dsi_jt *t = tokens; t->kind != DSI_JT_EOF; ++t) {
        template->has_generation |= t->kind == DSI_JT_BLOCK_BEGIN &&t[1].kind ==
                                    DSI_JT_NAME &&strcmp(t[1].text, "generation") == 0;
    }
    template->tokens = tokens;
    dsi_jp p = {.arena = template->arena, .token = tokens, .fault = fault};
    template->body = nodes_until(&p, NULL);
    return !p.failed && dsi_ji_check(template, fault) && dsi_ji_settle_self(template, fault);
}

ds_status dsi_jinja_parse(const char *text, size_t n, dsi_jinja **template_out, char *error,
                          size_t error_size)
{
    dsi_ji_fault fault = {.status = DS_ERR_NOMEM};
    dsi_jinja *template = calloc(1, sizeof *template);
    (void)snprintf(fault.text, sizeof fault.text, "no memory for the template");
    if (template == NULL || dsi_arena_create(TEMPLATE_BYTES, &template->arena) < 0 ||
        !parse_all(template, text, n, &fault)) {
        (void)snprintf(error, error_size, "line %u, column %u: %s", fault.line, fault.column,
                       fault.text);
        dsi_jinja_destroy(&template);
        return fault.status;
    }
    *template_out = template;
    return DS_OK;
}

void dsi_jinja_destroy(dsi_jinja **template_inout)
{
    dsi_jinja *template = *template_inout;
    if (template != NULL) {
        dsi_arena_destroy(&template->arena);
        free(template);
    }
    *template_inout = NULL;
}

bool dsi_jinja_has_generation(const dsi_jinja *template)
{
    return template->has_generation;
}

bool dsi_jinja_mentions(const dsi_jinja *template, const char *word)
{
    for (const dsi_jt *t = template->tokens; t->kind != DSI_JT_EOF; ++t) {
        if ((t->kind == DSI_JT_NAME || t->kind == DSI_JT_STRING) && strcmp(t->text, word) == 0) {
            return true;
        }
    }
    return false;
}
