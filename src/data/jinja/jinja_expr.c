/* Tokens to expressions, by jinja2's precedence: if-else, or, and, not, comparisons, + -, ~,
 * * / // %, **, unary, postfix, filters and tests.
 *
 * Called by jinja_parse.c. A filter binds closer than any operator but after a sign.
 */
#include "data/jinja/jinja_node.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const dsi_jt the_end = {.kind = DSI_JT_EOF, .text = ""};

static dsi_jn *expression(dsi_jp *p, bool condition);
static dsi_jn *unary(dsi_jp *p, bool filters);

void dsi_jp_fail(dsi_jp *p, ds_status status, const char *format, ...)
{
    if (p->failed) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(p->fault->text, sizeof p->fault->text, format, args);
    va_end(args);
    p->fault->status = status;
    p->fault->line = p->token->line;
    p->fault->column = p->token->column;
    p->failed = true;
    p->token = &the_end;
}

bool dsi_jp_is(const dsi_jp *p, dsi_jt_kind kind, const char *text)
{
    return p->token->kind == kind && (text == NULL || strcmp(p->token->text, text) == 0);
}

static void next(dsi_jp *p)
{
    if (p->token->kind != DSI_JT_EOF) {
        ++p->token;
    }
}

bool dsi_jp_skip_if(dsi_jp *p, dsi_jt_kind kind, const char *text)
{
    if (!dsi_jp_is(p, kind, text)) {
        return false;
    }
    next(p);
    return true;
}

static const char *kind_name(dsi_jt_kind kind)
{
    static const char *const names[] = {"the end of the template",
                                        "text",
                                        "{{",
                                        "}}",
                                        "{%",
                                        "%}",
                                        "a name",
                                        "a string",
                                        "a number",
                                        "a number",
                                        "an operator"};
    return names[kind];
}

static bool is_op(const dsi_jp *p, const char *text)
{
    return dsi_jp_is(p, DSI_JT_OPERATOR, text);
}

static bool is_name(const dsi_jp *p, const char *text)
{
    return dsi_jp_is(p, DSI_JT_NAME, text);
}

const dsi_jt *dsi_jp_expect(dsi_jp *p, dsi_jt_kind kind, const char *text)
{
    const dsi_jt *token = p->token;
    if (!dsi_jp_is(p, kind, text)) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "expected %s, found %s%s%.40s",
                    text != NULL ? text : kind_name(kind), kind_name(token->kind),
                    token->n > 0 ? " " : "", token->kind == DSI_JT_DATA ? "" : token->text);
        return &the_end;
    }
    next(p);
    return token;
}

dsi_jn *dsi_jp_node(dsi_jp *p, dsi_jn_kind kind)
{
    static dsi_jn nothing = {.kind = DSI_JN_CONST, .value = {.kind = DSI_JV_NONE}};
    dsi_jn *node = dsi_arena_alloc(p->arena, sizeof *node);
    if (node == NULL) {
        dsi_jp_fail(p, DS_ERR_NOMEM, "no memory for the template");
        node = &nothing;
        return node;
    }
    *node = (dsi_jn){.kind = kind, .line = p->token->line, .column = p->token->column};
    return node;
}

void dsi_jp_add(dsi_jp *p, dsi_jn_list *list, dsi_jn *node)
{
    if ((list->n & (list->n - 1)) == 0) { /* a power of two is full */
        dsi_jn **grown = dsi_arena_array(p->arena, list->n == 0 ? 1 : list->n * 2, sizeof *grown);
        if (grown == NULL) {
            dsi_jp_fail(p, DS_ERR_NOMEM, "no memory for the template");
            return;
        }
        if (list->n > 0) {
            memcpy(grown, list->at, list->n * sizeof *grown);
        }
        list->at = grown;
    }
    list->at[list->n++] = node;
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

static dsi_jn *primary(dsi_jp *p, bool namespaces)
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
    dsi_jp_fail(p, DS_ERR_FORMAT, "expected an expression, found %s%s%.40s", kind_name(token->kind),
                token->n > 0 ? " " : "", token->kind == DSI_JT_DATA ? "" : token->text);
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
            node->b = primary(p, false);
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

static dsi_jn *negated(dsi_jp *p, dsi_jn *of)
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
        arg->a = postfix(p, primary(p, false));
        dsi_jp_add(p, &node->list, arg);
    }
    return negate ? negated(p, node) : node;
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
    dsi_jn *of = unary(p, false);
    if (!p->failed) {
        node->a = of;
    }
    return node;
}

static dsi_jn *unary(dsi_jp *p, bool filters)
{
    if (++p->depth > DSI_JI_DEPTH_MAX) {
        dsi_jp_fail(p, DS_ERR_LIMIT, "an expression of more than %d levels", DSI_JI_DEPTH_MAX);
    }
    dsi_jn *node = is_op(p, "-") || is_op(p, "+") ? signed_unary(p) : primary(p, false);
    node = postfix(p, node);
    node = filters ? filters_and_tests(p, node) : node;
    --p->depth;
    return node;
}

/* ---- operators ---- */

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
    dsi_jn *left = unary(p, true);
    while (!p->failed && is_op(p, "**")) {
        next(p);
        left = two(p, DSI_JN_BINARY, "**", left, unary(p, true));
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
    dsi_jn *node = negated(p, negation(p));
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
                   how.names_only ? primary(p, !how.no_namespaces)
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
