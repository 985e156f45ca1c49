/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to expressions, by jinja2's precedence: if-else, or, and, not, comparisons, + -, ~,
 * * / // %, **, and what jinja_primary.c reads. Called by jinja_parse.c.
 */
#include "data/jinja/jinja_node.h"

#include <string.h>

static dsi_jn *expression(dsi_jp *p, bool condition);

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

static dsi_jn *two(dsi_jp *p, dsi_jn_kind kind, const char *op, dsi_jn *a, dsi_jn *b)
{
    dsi_jn *node = dsi_jp_node(p, kind);
    if (!p->failed) {
        node->name = op;
        node->a = a;
        node->b = b;
    }
    return node;
}

/* One of the operators of a level, NULL when none is in hand. */
static const char *operator_of(const dsi_jp *p, const char *const *ops)
{
    for (; *ops != NULL; ++ops) {
        if (is_op(p, *ops)) {
            return *ops;
        }
    }
    return NULL;
}

static dsi_jn *power(dsi_jp *p)
{
    dsi_jn *left = dsi_jp_unary(p, true);
    while (!p->failed && is_op(p, "**")) {
        next(p);
        left = two(p, DSI_JN_BINARY, "**", left, dsi_jp_unary(p, true));
    }
    return left;
}

static dsi_jn *product(dsi_jp *p)
{
    static const char *const ops[] = {"*", "/", "//", "%", NULL};
    dsi_jn *left = power(p);
    for (const char *op; !p->failed && (op = operator_of(p, ops)) != NULL;) {
        next(p);
        left = two(p, DSI_JN_BINARY, op, left, power(p));
    }
    return left;
}

static dsi_jn *concatenation(dsi_jp *p)
{
    dsi_jn *first = product(p);
    if (!is_op(p, "~")) {
        return first;
    }
    dsi_jn *node = dsi_jp_node(p, DSI_JN_CONCAT);
    if (p->failed) {
        return node;
    }
    dsi_jp_add(p, &node->list, first);
    while (dsi_jp_skip_if(p, DSI_JT_OPERATOR, "~")) {
        dsi_jp_add(p, &node->list, product(p));
    }
    return node;
}

static dsi_jn *sum(dsi_jp *p)
{
    static const char *const ops[] = {"+", "-", NULL};
    dsi_jn *left = concatenation(p);
    for (const char *op; !p->failed && (op = operator_of(p, ops)) != NULL;) {
        next(p);
        left = two(p, DSI_JN_BINARY, op, left, concatenation(p));
    }
    return left;
}

/* Takes a comparison's operator, NULL when none is in hand. */
static const char *comparison(dsi_jp *p)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">=", NULL};
    const char *op = operator_of(p, ops);
    if (op != NULL) {
        next(p);
    } else if (dsi_jp_skip_if(p, DSI_JT_NAME, "in")) {
        op = "in";
    } else if (is_name(p, "not") && p->token[1].kind == DSI_JT_NAME &&
               strcmp(p->token[1].text, "in") == 0) {
        p->token += 2;
        op = "not in";
    }
    return op;
}

static dsi_jn *compare(dsi_jp *p)
{
    dsi_jn *first = sum(p);
    dsi_jn *node = NULL;
    for (const char *op; !p->failed && (op = comparison(p)) != NULL;) {
        if (node == NULL) {
            node = two(p, DSI_JN_COMPARE, NULL, first, NULL);
        }
        dsi_jn *right = sum(p);
        dsi_jn *operand = two(p, DSI_JN_OPERAND, op, right, NULL);
        if (!p->failed) {
            dsi_jp_add(p, &node->list, operand);
        }
    }
    return node != NULL ? node : first;
}

static dsi_jn *negation(dsi_jp *p)
{
    if (!is_name(p, "not")) {
        return compare(p);
    }
    if (++p->depth > DSI_JI_DEPTH_MAX) {
        dsi_jp_fail(p, DS_ERR_LIMIT, "an expression of more than %d levels", DSI_JI_DEPTH_MAX);
    }
    next(p);
    dsi_jn *node = dsi_jp_negated(p, negation(p));
    --p->depth;
    return node;
}

static dsi_jn *conjunction(dsi_jp *p)
{
    dsi_jn *left = negation(p);
    while (dsi_jp_skip_if(p, DSI_JT_NAME, "and")) {
        left = two(p, DSI_JN_AND, NULL, left, negation(p));
    }
    return left;
}

static dsi_jn *disjunction(dsi_jp *p)
{
    dsi_jn *left = conjunction(p);
    while (dsi_jp_skip_if(p, DSI_JT_NAME, "or")) {
        left = two(p, DSI_JN_OR, NULL, left, conjunction(p));
    }
    return left;
}

static dsi_jn *conditional(dsi_jp *p)
{
    dsi_jn *value = disjunction(p);
    while (dsi_jp_skip_if(p, DSI_JT_NAME, "if")) {
        dsi_jn *node = two(p, DSI_JN_COND, NULL, value, disjunction(p));
        if (dsi_jp_skip_if(p, DSI_JT_NAME, "else")) {
            dsi_jn *otherwise = expression(p, true);
            if (!p->failed) {
                node->c = otherwise;
            }
        }
        value = node;
    }
    return value;
}

static dsi_jn *expression(dsi_jp *p, bool condition)
{
    if (++p->depth > DSI_JI_DEPTH_MAX) {
        dsi_jp_fail(p, DS_ERR_LIMIT, "an expression of more than %d levels", DSI_JI_DEPTH_MAX);
    }
    dsi_jn *node = condition ? conditional(p) : disjunction(p);
    --p->depth;
    return node;
}

dsi_jn *dsi_jp_expression(dsi_jp *p)
{
    return expression(p, true);
}

/* A name that may follow, such as "in", does not end it: jinja2 takes it for an item, too. */
static bool tuple_ends(const dsi_jp *p)
{
    return p->token->kind == DSI_JT_VARIABLE_END || p->token->kind == DSI_JT_BLOCK_END ||
           is_op(p, ")");
}

dsi_jn *dsi_jp_tuple_of(dsi_jp *p, dsi_jp_tuple how)
{
    dsi_jn *node = dsi_jp_node(p, DSI_JN_TUPLE);
    bool is_tuple = false;
    if (p->failed) {
        return node;
    }
    for (;;) {
        if (node->list.n > 0) {
            (void)dsi_jp_expect(p, DSI_JT_OPERATOR, ",");
        }
        if (p->failed || tuple_ends(p)) {
            break;
        }
        dsi_jp_add(p, &node->list,
                   how.names_only ? dsi_jp_primary(p, !how.no_namespaces)
                                  : expression(p, !how.no_condition));
        if (!is_op(p, ",")) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && node->list.n > 0) {
        return node->list.at[0];
    }
    if (!is_tuple && !how.parentheses) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "expected an expression");
    }
    return node;
}
