/* SPDX-License-Identifier: Apache-2.0 */
/* Equality, order and hashing of values: Python's. 1 == 1.0 == true, an undefined equals an
 * undefined, lists compare item by item, and there is no order between kinds. See jinja_run.h. */
#include "data/jinja/jinja_run.h"

#include <math.h>
#include <string.h>

static bool equal_lists(dsi_ji *j, const dsi_jv_list *a, const dsi_jv_list *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; ++i) {
        same = dsi_ji_equal(j, a->at[i], b->at[i]);
    }
    return same;
}

static bool equal_dicts(dsi_ji *j, const dsi_jv_dict *a, const dsi_jv_dict *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; ++i) {
        const dsi_jv *other = dsi_ji_dict_get(j, b, a->keys[i]);
        same = other != NULL && dsi_ji_equal(j, a->values[i], *other);
    }
    return same;
}

static bool equal_numbers(dsi_jv a, dsi_jv b)
{
    if (dsi_jv_is_int(a) && dsi_jv_is_int(b)) {
        return dsi_jv_int_of(a) == dsi_jv_int_of(b);
    }
    const double x = dsi_jv_float_of(a);
    const double y = dsi_jv_float_of(b);
    if (x != y) {
        return false;
    }
    /* a whole number beyond 2^53 may round to the other's value */
    const dsi_jv whole = dsi_jv_is_int(a) ? a : b;
    return !dsi_jv_is_int(whole) ||
           (x < 9223372036854775808.0 && (int64_t)x == dsi_jv_int_of(whole));
}

static bool is_tuple(dsi_jv v)
{
    return v.kind == DSI_JV_TUPLE || v.kind == DSI_JV_GROUP;
}

static bool equal_others(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    switch ((dsi_jv_kind)a.kind) {
    case DSI_JV_UNDEFINED:
    case DSI_JV_NONE:
        return true;
    case DSI_JV_STR:
        return a.n == b.n && memcmp(a.text, b.text, a.n) == 0;
    case DSI_JV_LIST:
        return equal_lists(j, a.list, b.list);
    case DSI_JV_DICT:
        return equal_dicts(j, a.dict, b.dict);
    case DSI_JV_RANGE:
        return a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start &&
                                    (a.range->n == 1 || a.range->step == b.range->step)));
    case DSI_JV_ITER:
    case DSI_JV_LOOP:
    case DSI_JV_NAMESPACE:
        return a.iter == b.iter;
    default:
        (void)dsi_ji_refuse(j, "a comparison of two values of the kind %s", dsi_ji_type(a));
        return false;
    }
}

bool dsi_ji_equal(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    if (!dsi_ji_step(j, 1 + (a.kind == DSI_JV_STR ? a.n / 256 : 0)) ||
        ++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d levels", DSI_JI_RUN_DEPTH_MAX);
        return false;
    }
    bool same;
    if (dsi_jv_is_number(a) && dsi_jv_is_number(b)) {
        same = equal_numbers(a, b);
    } else if (is_tuple(a) && is_tuple(b)) {
        same = equal_lists(j, a.list, b.list);
    } else {
        same = a.kind == b.kind && equal_others(j, a, b);
    }
    --j->depth;
    return same;
}

static int compare_numbers(dsi_jv a, dsi_jv b)
{
    if (dsi_jv_is_int(a) && dsi_jv_is_int(b)) {
        const int64_t x = dsi_jv_int_of(a);
        const int64_t y = dsi_jv_int_of(b);
        return x < y ? -1 : x > y;
    }
    const double x = dsi_jv_float_of(a);
    const double y = dsi_jv_float_of(b);
    return x < y ? -1 : x > y;
}

static int compare_lists(dsi_ji *j, const dsi_jv_list *a, const dsi_jv_list *b)
{
    for (size_t i = 0; i < a->n && i < b->n && !j->failed; ++i) {
        if (!dsi_ji_equal(j, a->at[i], b->at[i])) {
            return dsi_ji_compare(j, a->at[i], b->at[i]);
        }
    }
    return a->n < b->n ? -1 : a->n > b->n;
}

int dsi_ji_compare(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    int order = 0;
    if (!dsi_ji_step(j, 1) || ++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d levels", DSI_JI_RUN_DEPTH_MAX);
        return 0;
    }
    if (dsi_jv_is_number(a) && dsi_jv_is_number(b)) {
        if (isnan(dsi_jv_float_of(a)) || isnan(dsi_jv_float_of(b))) {
            (void)dsi_ji_refuse(j, "an order of numbers of which one is no number");
        }
        order = compare_numbers(a, b);
    } else if (a.kind == DSI_JV_STR && b.kind == DSI_JV_STR) {
        const size_t n = a.n < b.n ? a.n : b.n;
        (void)dsi_ji_step(j, n / 256);
        order = memcmp(a.text, b.text, n); /* UTF-8 has the order of its characters */
        order = order != 0 ? order : a.n < b.n ? -1 : a.n > b.n;
    } else if ((a.kind == DSI_JV_LIST && b.kind == DSI_JV_LIST) || (is_tuple(a) && is_tuple(b))) {
        order = compare_lists(j, a.list, b.list);
    } else {
        (void)dsi_ji_wrong(j, "%s and %s have no order", dsi_ji_type(a), dsi_ji_type(b));
    }
    --j->depth;
    return order;
}

/* left: values that may still be looked at. Tuples that are nested too deep, or hold too many
 * values, count as not hashable. */
static bool hashable(dsi_jv v, uint32_t depth, size_t *left)
{
    if (depth > DSI_JI_RUN_DEPTH_MAX || *left == 0) {
        return false;
    }
    --*left;
    for (size_t i = 0; is_tuple(v) && i < v.list->n; ++i) {
        if (!hashable(v.list->at[i], depth + 1, left)) {
            return false;
        }
    }
    return v.kind != DSI_JV_LIST && v.kind != DSI_JV_DICT && v.kind != DSI_JV_VIEW;
}

bool dsi_ji_hashable(dsi_jv v)
{
    size_t left = 100000;
    return hashable(v, 0, &left);
}
