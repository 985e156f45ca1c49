/* SPDX-License-Identifier: Apache-2.0 */
/* Tests: "x is defined". See jinja_run.h. */
#include "data/jinja/jinja_strings.h"

#include <string.h>

typedef bool (*test_fn)(dsi_ji *j, dsi_jv v, dsi_jv arg);

typedef struct test_row {
    const char *name;
    const char *parameter; /* "": none */
    test_fn run;
    const char *op; /* in place of run: a comparison */
} test_row;

static bool t_defined(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind != DSI_JV_UNDEFINED;
}

static bool t_undefined(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_UNDEFINED;
}

static bool t_none(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_NONE;
}

static bool t_boolean(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_BOOL;
}

static bool t_true(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_BOOL && v.flag;
}

static bool t_false(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_BOOL && !v.flag;
}

static bool t_integer(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_INT;
}

static bool t_float(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_FLOAT;
}

static bool t_number(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return dsi_jv_is_number(v);
}

static bool t_string(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_STR;
}

static bool t_mapping(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_DICT;
}

/* What has a length and items by []; an undefined value has both. */
static bool t_sequence(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_UNDEFINED || (v.kind >= DSI_JV_STR && v.kind <= DSI_JV_DICT) ||
           v.kind == DSI_JV_RANGE || v.kind == DSI_JV_GROUP;
}

static bool t_iterable(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return dsi_ji_iterable(v);
}

static bool t_callable(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_UNDEFINED || v.kind == DSI_JV_FUNCTION || v.kind == DSI_JV_METHOD ||
           v.kind == DSI_JV_MACRO || v.kind == DSI_JV_LOOP;
}

static bool t_escaped(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)j;
    (void)a;
    return v.kind == DSI_JV_STR && v.safe;
}

static bool t_odd(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)a;
    return dsi_ji_equal(j, dsi_ji_binary(j, "%", v, dsi_jv_int(2)), dsi_jv_int(1));
}

static bool t_even(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)a;
    return dsi_ji_equal(j, dsi_ji_binary(j, "%", v, dsi_jv_int(2)), dsi_jv_int(0));
}

static bool t_divisible(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    return dsi_ji_equal(j, dsi_ji_binary(j, "%", v, a), dsi_jv_int(0));
}

static bool t_lower(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)a;
    return dsi_ji_is_cased(j, dsi_ji_str(j, v), DSI_JI_CASED_LOWER);
}

static bool t_upper(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)a;
    return dsi_ji_is_cased(j, dsi_ji_str(j, v), DSI_JI_CASED_UPPER);
}

/* Python's "is", where it does not hang on what the interpreter shares. */
static bool t_same(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    if (v.kind != a.kind) {
        return false;
    }
    switch ((dsi_jv_kind)v.kind) {
    case DSI_JV_NONE:
        return true;
    case DSI_JV_BOOL:
        return v.flag == a.flag;
    case DSI_JV_DICT:
    case DSI_JV_NAMESPACE:
        return v.dict == a.dict;
    default:
        (void)dsi_ji_refuse(j, "\"is sameas\" of two values of the kind %s", dsi_ji_type(v));
        return false;
    }
}

static bool t_in(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    return dsi_ji_contains(j, v, a);
}

static bool t_filter(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)a;
    return v.kind == DSI_JV_STR && dsi_ji_filter_exists(dsi_ji_string(j, v.text, v.n).text);
}

static bool t_test(dsi_ji *j, dsi_jv v, dsi_jv a)
{
    (void)a;
    return v.kind == DSI_JV_STR && dsi_ji_test_exists(dsi_ji_string(j, v.text, v.n).text);
}

/* clang-format off */
static const test_row rows[] = {
    {"defined", "", t_defined, NULL}, {"undefined", "", t_undefined, NULL},
    {"none", "", t_none, NULL}, {"boolean", "", t_boolean, NULL}, {"true", "", t_true, NULL},
    {"false", "", t_false, NULL}, {"integer", "", t_integer, NULL}, {"float", "", t_float, NULL},
    {"number", "", t_number, NULL}, {"string", "", t_string, NULL},
    {"mapping", "", t_mapping, NULL}, {"sequence", "", t_sequence, NULL},
    {"iterable", "", t_iterable, NULL}, {"callable", "", t_callable, NULL},
    {"escaped", "", t_escaped, NULL}, {"odd", "", t_odd, NULL}, {"even", "", t_even, NULL},
    {"divisibleby", "num", t_divisible, NULL}, {"lower", "", t_lower, NULL},
    {"upper", "", t_upper, NULL}, {"sameas", "other", t_same, NULL}, {"in", "seq", t_in, NULL},
    {"filter", "", t_filter, NULL}, {"test", "", t_test, NULL},
    {"==", "-", NULL, "=="}, {"eq", "-", NULL, "=="}, {"equalto", "-", NULL, "=="},
    {"!=", "-", NULL, "!="}, {"ne", "-", NULL, "!="}, {">", "-", NULL, ">"},
    {"gt", "-", NULL, ">"}, {"greaterthan", "-", NULL, ">"}, {">=", "-", NULL, ">="},
    {"ge", "-", NULL, ">="}, {"<", "-", NULL, "<"}, {"lt", "-", NULL, "<"},
    {"lessthan", "-", NULL, "<"}, {"<=", "-", NULL, "<="}, {"le", "-", NULL, "<="},
};
/* clang-format on */

static const test_row *row_of(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

bool dsi_ji_test_exists(const char *name)
{
    return row_of(name) != NULL;
}

bool dsi_ji_test(dsi_ji *j, const char *name, dsi_jv value, const dsi_ji_args *args)
{
    const test_row *row = row_of(name);
    dsi_jv a[DSI_JI_ARGS];
    if (row == NULL) {
        (void)dsi_ji_wrong(j, "no test is named \"%.60s\"", name);
        return false;
    }
    if (!dsi_ji_bind(j, args, name, row->parameter, a)) {
        return false;
    }
    if (*row->parameter != '\0' && a[0].kind == DSI_JV_MISSING) {
        (void)dsi_ji_wrong(j, "the test \"%s\" needs an argument", name);
        return false;
    }
    return row->op != NULL ? dsi_ji_compares(j, row->op, value, a[0]) : row->run(j, value, a[0]);
}
