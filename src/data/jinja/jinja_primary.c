/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to what operators stand between: literals, names, brackets, and behind them members,
 * calls, filters and tests. Called by jinja_expr.c. A filter binds closer than any operator but
 * after a sign.
 */
#include "data/jinja/jinja_node.h"

#include <string.h>

static void next(dsi_jp *p)
{
    dsi_jp_next(p);
}

static bool is_op(const dsi_jp *p, const char *text)
{
    return dsi_jp_is(p, DSI_JT_OPERATOR, text);
}

static bool is_name(const dsi_jp *p, const char *text)
{
    return dsi_jp_is(p, DSI_JT_NAME, text);
}

/* ---- literals and names ---- */

static dsi_jn *constant(dsi_jp *p, dsi_jv value)
{
    dsi_jn *node = dsi_jp_node(p, DSI_JN_CONST);
    if (!p->failed) {
        node->value = value;
    }
    return node;
}

static dsi_jn *name(dsi_jp *p, bool namespaces)
{
    const char *text = p->token->text;
    dsi_jn *node;
    if (strcmp(text, "true") == 0 || strcmp(text, "True") == 0) {
        node = constant(p, dsi_jv_bool(true));
    } else if (strcmp(text, "false") == 0 || strcmp(text, "False") == 0) {
        node = constant(p, dsi_jv_bool(false));
    } else if (strcmp(text, "none") == 0 || strcmp(text, "None") == 0) {
        node = constant(p, dsi_jv_none());
    } else {
        node = dsi_jp_node(p, DSI_JN_NAME);
        if (p->failed) {
            return node;
        }
        node->name = text;
        next(p);
        if (namespaces && is_op(p, ".")) {
            next(p);
            node->kind = DSI_JN_NSREF;
            node->text = dsi_jp_expect(p, DSI_JT_NAME, NULL)->text;
        }
        return node;
    }
    next(p);
    return node;
}

/* Neighbouring strings are one. */
static dsi_jn *strings(dsi_jp *p)
{
    size_t n = 0;
    const dsi_jt *first = p->token;
    for (const dsi_jt *t = first; t->kind == DSI_JT_STRING; ++t) {
        n += t->n;
    }
    char *text = dsi_arena_alloc(p->arena, n + 1);
    dsi_jn *node = constant(p, dsi_jv_str(text, n));
    if (text == NULL) {
        dsi_jp_fail(p, DS_ERR_NOMEM, "no memory for the template");
        return node;
    }
    for (; p->token->kind == DSI_JT_STRING; next(p)) {
        memcpy(text, p->token->text, p->token->n);
        text += p->token->n;
    }
    return node;
}

/* [a, b] or {a: b, c: d}, a comma may end it. */
static dsi_jn *brackets(dsi_jp *p, dsi_jn_kind kind, const char *close)
{
    dsi_jn *node = dsi_jp_node(p, kind);
    next(p);
    while (!p->failed && !is_op(p, close)) {
        if (node->list.n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
            if (is_op(p, close)) {
                break;
            }
        }
        dsi_jp_add(p, &node->list, dsi_jp_expression(p));
        if (kind == DSI_JN_DICT) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ":");
            dsi_jp_add(p, &node->list, dsi_jp_expression(p));
        }
    }
    (void)dsi_jp_expect(p, DSI_JT_OPERATOR, close);
    return node;
}

dsi_jn *dsi_jp_primary(dsi_jp *p, bool namespaces)
{
    const dsi_jt *token = p->token;
    if (token->kind == DSI_JT_NAME) {
        return name(p, namespaces);
    }
    if (token->kind == DSI_JT_STRING) {
        return strings(p);
    }
    if (token->kind == DSI_JT_INTEGER || token->kind == DSI_JT_FLOAT) {
        dsi_jn *node = constant(p, token->kind == DSI_JT_INTEGER ? dsi_jv_int(token->integer)
                                                                 : dsi_jv_float(token->real));
        next(p);
        return node;
    }
    if (is_op(p, "(")) {
        next(p);
        dsi_jn *node = dsi_jp_tuple_of(p, (dsi_jp_tuple){.parentheses = true});
        (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ")");
        return node;
    }
    if (is_op(p, "[")) {
        return brackets(p, DSI_JN_LIST, "]");
    }
    if (is_op(p, "{")) {
        return brackets(p, DSI_JN_DICT, "}");
    }
    dsi_jp_fail(p, DS_ERR_FORMAT, "expected an expression, found %s%s%.40s",
                dsi_jt_kind_name(token->kind), token->n > 0 ? " " : "",
                token->kind == DSI_JT_DATA ? "" : token->text);
    return dsi_jp_node(p, DSI_JN_CONST);
}

/* ---- postfix: members, calls, filters, tests ---- */

static dsi_jn *part(dsi_jp *p)
{
    return is_op(p, "]") || is_op(p, ",") || is_op(p, ":") ? NULL : dsi_jp_expression(p);
}

static dsi_jn *subscribed(dsi_jp *p)
{
    dsi_jn *node = dsi_jp_node(p, DSI_JN_SLICE);
    dsi_jn *first = is_op(p, ":") ? NULL : dsi_jp_expression(p);
    if (!is_op(p, ":")) {
        return first;
    }
    if (p->failed) {
        return node;
    }
    next(p);
    node->a = first;
    node->b = part(p);
    if (dsi_jp_skip_if(p, DSI_JT_OPERATOR, ":")) {
        node->c = part(p);
    }
    return node;
}

static dsi_jn *member(dsi_jp *p, dsi_jn *of)
{
    dsi_jn *node = dsi_jp_node(p, DSI_JN_GETITEM);
    if (p->failed) {
        return node;
    }
    node->a = of;
    if (dsi_jp_skip_if(p, DSI_JT_OPERATOR, ".")) {
        if (p->token->kind == DSI_JT_INTEGER) {
            node->b = dsi_jp_primary(p, false);
        } else {
            node->kind = DSI_JN_GETATTR;
            node->name = dsi_jp_expect(p, DSI_JT_NAME, NULL)->text;
        }
        return node;
    }
    next(p); /* [ */
    dsi_jn *all = dsi_jp_node(p, DSI_JN_TUPLE);
    while (!p->failed && !is_op(p, "]")) {
        if (all->list.n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
        }
        dsi_jp_add(p, &all->list, subscribed(p));
    }
    (void)dsi_jp_expect(p, DSI_JT_OPERATOR, "]");
    node->b = all->list.n == 1 ? all->list.at[0] : all;
    for (uint32_t i = 0; i < all->list.n && all->list.n > 1; ++i) {
        if (all->list.at[i]->kind == DSI_JN_SLICE) {
            dsi_jp_fail(p, DS_ERR_UNSUPPORTED, "a slice within a tuple");
        }
    }
    return node;
}

static bool next_is_assign(const dsi_jp *p)
{
    return p->token->kind == DSI_JT_NAME && p->token[1].kind == DSI_JT_OPERATOR &&
           strcmp(p->token[1].text, "=") == 0;
}

/* "(a, b, *c, d=e, **f)" into list. */
static void arguments(dsi_jp *p, dsi_jn_list *list)
{
    bool stars = false;
    bool double_stars = false;
    bool keywords = false;
    (void)dsi_jp_expect(p, DSI_JT_OPERATOR, "(");
    while (!p->failed && !is_op(p, ")")) {
        if (list->n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
            if (is_op(p, ")")) {
                break;
            }
        }
        dsi_jn *arg = dsi_jp_node(p, DSI_JN_ARG);
        bool fits;
        if (p->failed) {
            return;
        }
        if (dsi_jp_skip_if(p, DSI_JT_OPERATOR, "*")) {
            fits = !stars && !double_stars;
            arg->name = "*";
            stars = true;
        } else if (dsi_jp_skip_if(p, DSI_JT_OPERATOR, "**")) {
            fits = !double_stars;
            arg->name = "**";
            double_stars = true;
        } else if (next_is_assign(p)) {
            fits = !double_stars;
            arg->name = p->token->text;
            keywords = true;
            p->token += 2;
        } else {
            fits = !stars && !double_stars && !keywords;
        }
        if (!fits) {
            dsi_jp_fail(p, DS_ERR_FORMAT, "these arguments cannot stand in this order");
            return;
        }
        arg->a = dsi_jp_expression(p);
        dsi_jp_add(p, list, arg);
    }
    (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ")");
}

static dsi_jn *call(dsi_jp *p, dsi_jn *of)
{
    dsi_jn *node = dsi_jp_node(p, DSI_JN_CALL);
    if (!p->failed) {
        node->a = of;
        arguments(p, &node->list);
    }
    return node;
}

static dsi_jn *postfix(dsi_jp *p, dsi_jn *node)
{
    while (!p->failed) {
        if (is_op(p, ".") || is_op(p, "[")) {
            node = member(p, node);
        } else if (is_op(p, "(")) {
            node = call(p, node);
        } else {
            break;
        }
    }
    return node;
}

/* "a.b" as a filter's or test's name: none is known, but it is one. */
static const char *dotted_name(dsi_jp *p)
{
    const char *text = dsi_jp_expect(p, DSI_JT_NAME, NULL)->text;
    while (dsi_jp_skip_if(p, DSI_JT_OPERATOR, ".")) {
        (void)dsi_jp_expect(p, DSI_JT_NAME, NULL);
        text = "with a dot";
    }
    return text;
}

dsi_jn *dsi_jp_filters(dsi_jp *p, dsi_jn *node, bool begun)
{
    while (!p->failed && (begun || is_op(p, "|"))) {
        if (!begun) {
            next(p);
        }
        begun = false;
        dsi_jn *filter = dsi_jp_node(p, DSI_JN_FILTER);
        if (p->failed) {
            break;
        }
        filter->a = node;
        filter->name = dotted_name(p);
        if (is_op(p, "(")) {
            arguments(p, &filter->list);
        }
        node = filter;
    }
    return node;
}

dsi_jn *dsi_jp_negated(dsi_jp *p, dsi_jn *of)
{
    dsi_jn *node = dsi_jp_node(p, DSI_JN_NOT);
    if (!p->failed) {
        node->a = of;
    }
    return node;
}

/* Whether an argument without parentheses begins here. */
static bool bare_argument(const dsi_jp *p)
{
    switch (p->token->kind) {
    case DSI_JT_NAME:
        return !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and");
    case DSI_JT_STRING:
    case DSI_JT_INTEGER:
    case DSI_JT_FLOAT:
        return true;
    default:
        return is_op(p, "[") || is_op(p, "{");
    }
}

static dsi_jn *test(dsi_jp *p, dsi_jn *of)
{
    next(p); /* is */
    const bool negate = dsi_jp_skip_if(p, DSI_JT_NAME, "not");
    dsi_jn *node = dsi_jp_node(p, DSI_JN_TEST);
    if (p->failed) {
        return node;
    }
    node->a = of;
    node->name = dotted_name(p);
    if (is_op(p, "(")) {
        arguments(p, &node->list);
    } else if (bare_argument(p)) {
        if (is_name(p, "is")) {
            dsi_jp_fail(p, DS_ERR_FORMAT, "tests with \"is\" cannot be chained");
        }
        dsi_jn *arg = dsi_jp_node(p, DSI_JN_ARG);
        if (p->failed) {
            return node;
        }
        arg->a = postfix(p, dsi_jp_primary(p, false));
        dsi_jp_add(p, &node->list, arg);
    }
    return negate ? dsi_jp_negated(p, node) : node;
}

static dsi_jn *filters_and_tests(dsi_jp *p, dsi_jn *node)
{
    while (!p->failed) {
        if (is_op(p, "|")) {
            node = dsi_jp_filters(p, node, false);
        } else if (is_name(p, "is")) {
            node = test(p, node);
        } else if (is_op(p, "(")) {
            node = call(p, node);
        } else {
            break;
        }
    }
    return node;
}

static dsi_jn *signed_unary(dsi_jp *p)
{
    dsi_jn *node = dsi_jp_node(p, is_op(p, "-") ? DSI_JN_NEG : DSI_JN_POS);
    next(p);
    dsi_jn *of = dsi_jp_unary(p, false);
    if (!p->failed) {
        node->a = of;
    }
    return node;
}

dsi_jn *dsi_jp_unary(dsi_jp *p, bool filters)
{
    if (++p->depth > DSI_JI_DEPTH_MAX) {
        dsi_jp_fail(p, DS_ERR_LIMIT, "an expression of more than %d levels", DSI_JI_DEPTH_MAX);
    }
    dsi_jn *node = is_op(p, "-") || is_op(p, "+") ? signed_unary(p) : dsi_jp_primary(p, false);
    node = postfix(p, node);
    node = filters ? filters_and_tests(p, node) : node;
    --p->depth;
    return node;
}
