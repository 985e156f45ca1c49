/* SPDX-License-Identifier: Apache-2.0 */
/* Operators: arithmetic of Python's int (64 bits of it) and float, joining of texts and lists,
 * comparisons, "in". See jinja_run.h. */
#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_unicode.h"

#include <math.h>
#include <string.h>

static dsi_jv too_large(dsi_ji *j)
{
    return dsi_ji_refuse(j, "a whole number beyond 64 bits");
}

static dsi_jv by_zero(dsi_ji *j)
{
    return dsi_ji_wrong(j, "a division by zero");
}

static dsi_jv int_power(dsi_ji *j, int64_t a, int64_t b)
{
    int64_t result = 1;
    if (b < 0) {
        return a == 0 ? by_zero(j) : dsi_jv_float(pow((double)a, (double)b));
    }
    if (a == 0 || a == 1 || a == -1) {
        return dsi_jv_int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
    }
    for (int64_t i = 0; i < b; ++i) {
        if (__builtin_mul_overflow(result, a, &result)) {
            return too_large(j);
        }
    }
    return dsi_jv_int(result);
}

static dsi_jv int_divide(dsi_ji *j, char op, int64_t a, int64_t b)
{
    if (b == 0) {
        return by_zero(j);
    }
    if (b == -1) {
        return op == '%' ? dsi_jv_int(0) : a == INT64_MIN ? too_large(j) : dsi_jv_int(-a);
    }
    int64_t quotient = a / b;
    int64_t rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
        --quotient;
    }
    return dsi_jv_int(op == '%' ? rest : quotient);
}

static dsi_jv of_ints(dsi_ji *j, const char *op, int64_t a, int64_t b)
{
    static const int64_t exact = (int64_t)1 << 53;
    int64_t result = 0;
    bool over = false;
    if (strcmp(op, "**") == 0) {
        return int_power(j, a, b);
    }
    if (strcmp(op, "//") == 0 || *op == '%') {
        return int_divide(j, *op, a, b);
    }
    if (*op == '/') {
        if (a > exact || a < -exact || b > exact || b < -exact) {
            return dsi_ji_refuse(j, "a quotient of numbers beyond 2^53");
        }
        return b == 0 ? by_zero(j) : dsi_jv_float((double)a / (double)b);
    }
    if (*op == '+') {
        over = __builtin_add_overflow(a, b, &result);
    } else if (*op == '-') {
        over = __builtin_sub_overflow(a, b, &result);
    } else {
        over = __builtin_mul_overflow(a, b, &result);
    }
    return over ? too_large(j) : dsi_jv_int(result);
}

static dsi_jv float_divide(double a, double b, bool rest_wanted)
{
    double rest = fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0.0) {
        if ((b < 0) != (rest < 0)) {
            rest += b;
            quotient -= 1.0;
        }
    } else {
        rest = copysign(0.0, b);
    }
    if (rest_wanted) {
        return dsi_jv_float(rest);
    }
    if (quotient == 0.0) {
        return dsi_jv_float(copysign(0.0, a / b));
    }
    const double below = floor(quotient);
    return dsi_jv_float(quotient - below > 0.5 ? below + 1.0 : below);
}

static dsi_jv of_floats(dsi_ji *j, const char *op, double a, double b)
{
    if (strcmp(op, "**") == 0) {
        const double result = pow(a, b);
        if (a == 0.0 && b < 0) {
            return by_zero(j);
        }
        if (isnan(result) || (isinf(result) && !isinf(a) && !isinf(b))) {
            return dsi_ji_refuse(j, "a power that is no plain number");
        }
        return dsi_jv_float(result);
    }
    if ((*op == '/' || *op == '%') && b == 0.0) {
        return by_zero(j);
    }
    if (strcmp(op, "//") == 0 || *op == '%') {
        return float_divide(a, b, *op == '%');
    }
    return dsi_jv_float(*op == '+' ? a + b : *op == '-' ? a - b : *op == '*' ? a * b : a / b);
}

/* ---- joining and repeating ---- */

static dsi_jv join_texts(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    char *text = dsi_ji_alloc(j, (size_t)a.n + b.n + 1, 1);
    if (text == NULL || (size_t)a.n + b.n > UINT32_MAX) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "a text of more than 4 GiB");
    }
    memcpy(text, a.text, a.n);
    memcpy(text + a.n, b.text, b.n);
    return dsi_jv_str(text, (size_t)a.n + b.n);
}

static dsi_jv join_lists(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    const size_t n = a.list->n + b.list->n;
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    if (at == NULL) {
        return dsi_jv_none();
    }
    for (size_t i = 0; i < n; ++i) {
        at[i] = i < a.list->n ? a.list->at[i] : b.list->at[i - a.list->n];
    }
    return dsi_ji_list(j, at, n, a.kind == DSI_JV_LIST ? DSI_JV_LIST : DSI_JV_TUPLE);
}

static dsi_jv repeat(dsi_ji *j, dsi_jv of, int64_t times)
{
    const size_t unit = of.kind == DSI_JV_STR ? of.n : of.list->n;
    const size_t count = times > 0 && unit > 0 ? (size_t)times : 0;
    if (count > ((size_t)1 << 28) || (count > 0 && unit > ((size_t)1 << 28) / count)) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "more memory than a rendering may have");
    }
    if (of.kind == DSI_JV_STR) {
        char *text = dsi_ji_alloc(j, unit * count + 1, 1);
        for (size_t i = 0; i < count && text != NULL; ++i) {
            memcpy(text + i * unit, of.text, unit);
        }
        return text != NULL ? dsi_jv_str(text, unit * count) : dsi_jv_none();
    }
    dsi_jv *at = dsi_ji_alloc(j, unit * count, sizeof *at);
    for (size_t i = 0; i < unit * count && at != NULL; ++i) {
        at[i] = of.list->at[i % unit];
    }
    return dsi_ji_list(j, at, unit * count, of.kind == DSI_JV_LIST ? DSI_JV_LIST : DSI_JV_TUPLE);
}

static bool is_list(dsi_jv v)
{
    return v.kind == DSI_JV_LIST || v.kind == DSI_JV_TUPLE || v.kind == DSI_JV_GROUP;
}

static dsi_jv no_such(dsi_ji *j, const char *op, dsi_jv a, dsi_jv b)
{
    return dsi_ji_wrong(j, "%s %s %s has no meaning", dsi_ji_type(a), op, dsi_ji_type(b));
}

static dsi_jv of_others(dsi_ji *j, const char *op, dsi_jv a, dsi_jv b)
{
    if (strcmp(op, "+") == 0) {
        if (a.kind == DSI_JV_STR && b.kind == DSI_JV_STR) {
            return join_texts(j, a, b);
        }
        const bool lists = a.kind == DSI_JV_LIST && b.kind == DSI_JV_LIST;
        if (lists || (is_list(a) && is_list(b) && a.kind != DSI_JV_LIST && b.kind != DSI_JV_LIST)) {
            return join_lists(j, a, b);
        }
    } else if (strcmp(op, "*") == 0) {
        if ((a.kind == DSI_JV_STR || is_list(a)) && dsi_jv_is_int(b)) {
            return repeat(j, a, dsi_jv_int_of(b));
        }
        if ((b.kind == DSI_JV_STR || is_list(b)) && dsi_jv_is_int(a)) {
            return repeat(j, b, dsi_jv_int_of(a));
        }
    } else if (a.kind == DSI_JV_DICT || a.kind == DSI_JV_VIEW || b.kind == DSI_JV_VIEW) {
        return dsi_ji_refuse(j, "%s %s %s", dsi_ji_type(a), op, dsi_ji_type(b));
    }
    return no_such(j, op, a, b);
}

dsi_jv dsi_ji_binary(dsi_ji *j, const char *op, dsi_jv a, dsi_jv b)
{
    if (!dsi_ji_step(j, 1)) {
        return dsi_jv_none();
    }
    if ((a.kind == DSI_JV_STR && a.safe) || (b.kind == DSI_JV_STR && b.safe)) {
        return dsi_ji_refuse(j, "an operator on a text that is marked safe");
    }
    if (a.kind == DSI_JV_STR && strcmp(op, "%") == 0) {
        return dsi_ji_format_percent(j, a, b);
    }
    if (a.kind == DSI_JV_UNDEFINED || b.kind == DSI_JV_UNDEFINED) {
        return dsi_ji_use_undefined(j, a.kind == DSI_JV_UNDEFINED ? a : b);
    }
    if (dsi_jv_is_int(a) && dsi_jv_is_int(b)) {
        return of_ints(j, op, dsi_jv_int_of(a), dsi_jv_int_of(b));
    }
    if (dsi_jv_is_number(a) && dsi_jv_is_number(b)) {
        return of_floats(j, op, dsi_jv_float_of(a), dsi_jv_float_of(b));
    }
    return of_others(j, op, a, b);
}

/* ---- comparisons ---- */

static bool in_items(dsi_ji *j, dsi_jv item, dsi_jv of)
{
    const dsi_jv *at;
    size_t n;
    if (of.kind == DSI_JV_ITER) { /* is read up to the item */
        while (of.iter->used < of.iter->n && !j->failed) {
            if (dsi_ji_equal(j, of.iter->at[of.iter->used++], item)) {
                return true;
            }
        }
        (void)dsi_ji_items(j, of, &at, &n);
        return false;
    }
    if (!dsi_ji_items(j, of, &at, &n)) {
        return false;
    }
    for (size_t i = 0; i < n && !j->failed; ++i) {
        if (dsi_ji_equal(j, at[i], item)) {
            return true;
        }
    }
    return false;
}

bool dsi_ji_contains(dsi_ji *j, dsi_jv item, dsi_jv of)
{
    if (of.kind == DSI_JV_STR) {
        if (item.kind != DSI_JV_STR) {
            (void)dsi_ji_wrong(j, "%s in a text: only a text can be", dsi_ji_type(item));
            return false;
        }
        (void)dsi_ji_step(j, of.n / 16);
        return item.n == 0 || memmem(of.text, of.n, item.text, item.n) != NULL;
    }
    const bool hashed =
        of.kind == DSI_JV_DICT || (of.kind == DSI_JV_VIEW && of.view->part == DSI_JV_KEYS);
    if (hashed && !dsi_ji_hashable(item)) {
        (void)dsi_ji_wrong(j, "%s is no key of a dict", dsi_ji_type(item));
        return false;
    }
    return in_items(j, item, of);
}

bool dsi_ji_compares(dsi_ji *j, const char *op, dsi_jv a, dsi_jv b)
{
    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
        return dsi_ji_equal(j, a, b) == (*op == '=');
    }
    if (strcmp(op, "in") == 0 || strcmp(op, "not in") == 0) {
        return dsi_ji_contains(j, a, b) == (*op == 'i');
    }
    if (a.kind == DSI_JV_UNDEFINED || b.kind == DSI_JV_UNDEFINED) {
        (void)dsi_ji_use_undefined(j, a.kind == DSI_JV_UNDEFINED ? a : b);
        return false;
    }
    const int order = dsi_ji_compare(j, a, b);
    return *op == '<' ? (op[1] == '=' ? order <= 0 : order < 0)
                      : (op[1] == '=' ? order >= 0 : order > 0);
}
