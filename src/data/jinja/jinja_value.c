/* SPDX-License-Identifier: Apache-2.0 */
/* Making, asking and walking through values. See jinja_run.h. */
#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_unicode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { STEPS_MAX = 20000000, JSON_DEPTH_MAX = 200 };

dsi_jv dsi_ji_fail(dsi_ji *j, ds_status status, const char *format, ...)
{
    if (!j->failed) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(j->message, sizeof j->message, format, args);
        va_end(args);
        j->status = status;
        j->wrong_at = j->node;
        j->failed = true;
    }
    return dsi_jv_none();
}

bool dsi_ji_step(dsi_ji *j, size_t work)
{
    j->steps += work;
    if (j->steps > STEPS_MAX) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d steps", STEPS_MAX);
    }
    return !j->failed;
}

void *dsi_ji_alloc(dsi_ji *j, size_t n, size_t size)
{
    void *memory = dsi_ji_step(j, n / 16 + 1) ? dsi_arena_array(j->arena, n, size) : NULL;
    if (memory == NULL) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "more memory than a rendering may have");
    }
    return memory;
}

/* ---- making ---- */

dsi_jv dsi_ji_string(dsi_ji *j, const char *text, size_t n)
{
    char *copy = dsi_ji_alloc(j, n + 1, 1);
    if (copy == NULL || n > UINT32_MAX) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "a text of more than 4 GiB");
    }
    if (n > 0) {
        memcpy(copy, text, n);
    }
    return dsi_jv_str(copy, n);
}

dsi_jv dsi_ji_literal(const char *text)
{
    return dsi_jv_str(text, strlen(text));
}

dsi_jv dsi_ji_buffer(dsi_ji *j, dsi_buf *buf)
{
    dsi_jv v = dsi_jv_none();
    if (buf->failed) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "a text of more than %zu bytes", buf->ceiling);
    } else {
        v = dsi_ji_string(j, dsi_buf_text(buf), buf->size);
    }
    dsi_buf_free(buf);
    return v;
}

dsi_jv dsi_ji_list(dsi_ji *j, const dsi_jv *at, size_t n, dsi_jv_kind kind)
{
    dsi_jv_list *list = dsi_ji_alloc(j, 1, sizeof *list);
    if (list == NULL) {
        return dsi_jv_none();
    }
    *list = (dsi_jv_list){at, n};
    return (dsi_jv){.kind = (uint8_t)kind, .list = list};
}

dsi_jv dsi_ji_pair(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    dsi_jv *at = dsi_ji_alloc(j, 2, sizeof *at);
    if (at == NULL) {
        return dsi_jv_none();
    }
    at[0] = a;
    at[1] = b;
    return dsi_ji_list(j, at, 2, DSI_JV_TUPLE);
}

dsi_jv dsi_ji_iter(dsi_ji *j, const dsi_jv *at, size_t n)
{
    dsi_jv_iter *iter = dsi_ji_alloc(j, 1, sizeof *iter);
    if (iter == NULL) {
        return dsi_jv_none();
    }
    *iter = (dsi_jv_iter){.at = at, .n = n};
    return (dsi_jv){.kind = DSI_JV_ITER, .iter = iter};
}

dsi_jv dsi_ji_undefined(dsi_ji *j, const char *name, const char *of)
{
    dsi_jv_hint *hint = dsi_ji_alloc(j, 1, sizeof *hint);
    if (hint == NULL) {
        return dsi_jv_none();
    }
    *hint = (dsi_jv_hint){.name = name, .text = of};
    return (dsi_jv){.kind = DSI_JV_UNDEFINED, .hint = hint};
}

dsi_jv dsi_ji_use_undefined(dsi_ji *j, dsi_jv v)
{
    if (v.kind != DSI_JV_UNDEFINED) {
        return v;
    }
    if (v.hint->name == NULL) {
        return dsi_ji_wrong(j, "%.120s", v.hint->text);
    }
    if (v.hint->text == NULL) {
        return dsi_ji_wrong(j, "\"%.60s\" is undefined", v.hint->name);
    }
    return dsi_ji_wrong(j, "%.40s has no \"%.60s\"", v.hint->text, v.hint->name);
}

dsi_jv dsi_ji_dict(dsi_ji *j)
{
    dsi_jv_dict *dict = dsi_ji_alloc(j, 1, sizeof *dict);
    return dict != NULL ? (dsi_jv){.kind = DSI_JV_DICT, .dict = dict} : dsi_jv_none();
}

static bool same_key(dsi_ji *j, dsi_jv a, dsi_jv b)
{
    if (a.kind == DSI_JV_STR && b.kind == DSI_JV_STR) {
        return a.n == b.n && memcmp(a.text, b.text, a.n) == 0;
    }
    return dsi_ji_equal(j, a, b);
}

const dsi_jv *dsi_ji_dict_get(dsi_ji *j, const dsi_jv_dict *dict, dsi_jv key)
{
    (void)dsi_ji_step(j, dict->n / 16);
    for (size_t i = 0; i < dict->n && !j->failed; ++i) {
        if (same_key(j, dict->keys[i], key)) {
            return &dict->values[i];
        }
    }
    return NULL;
}

void dsi_ji_dict_set(dsi_ji *j, dsi_jv_dict *dict, dsi_jv key, dsi_jv value)
{
    const dsi_jv *there = dsi_ji_dict_get(j, dict, key);
    if (there != NULL) {
        dict->values[there - dict->values] = value;
        return;
    }
    if (dict->n == dict->room) {
        const size_t room = dict->room * 2 + 4;
        dsi_jv *keys = dsi_ji_alloc(j, room, sizeof *keys);
        dsi_jv *values = dsi_ji_alloc(j, room, sizeof *values);
        if (keys == NULL || values == NULL) {
            return;
        }
        if (dict->n > 0) {
            memcpy(keys, dict->keys, dict->n * sizeof *keys);
            memcpy(values, dict->values, dict->n * sizeof *values);
        }
        dict->keys = keys;
        dict->values = values;
        dict->room = room;
    }
    dict->keys[dict->n] = key;
    dict->values[dict->n++] = value;
}

static dsi_jv list_from_json(dsi_ji *j, const json_t *json, uint32_t depth)
{
    const size_t n = json_array_size(json);
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    for (size_t i = 0; i < n && !j->failed; ++i) {
        at[i] = dsi_ji_from_json(j, json_array_get(json, i), depth + 1);
    }
    return dsi_ji_list(j, at, n, DSI_JV_LIST);
}

/* The keys of a JSON object are distinct: no search. */
static dsi_jv dict_from_json(dsi_ji *j, const json_t *json, uint32_t depth)
{
    const size_t n = json_object_size(json);
    dsi_jv dict = dsi_ji_dict(j);
    dsi_jv *keys = dsi_ji_alloc(j, n, sizeof *keys);
    dsi_jv *values = dsi_ji_alloc(j, n, sizeof *values);
    const char *key;
    json_t *value;
    size_t i = 0;
    if (j->failed) {
        return dict;
    }
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        keys[i] = dsi_ji_string(j, key, strlen(key));
        values[i++] = dsi_ji_from_json(j, value, depth + 1);
    }
    *dict.dict = (dsi_jv_dict){keys, values, i, n};
    return dict;
}

dsi_jv dsi_ji_from_json(dsi_ji *j, const json_t *json, uint32_t depth)
{
    if (!dsi_ji_step(j, 1) || depth > JSON_DEPTH_MAX) {
        return dsi_ji_fail(j, DS_ERR_LIMIT,
                           "lists and objects within each other to more than %d levels",
                           JSON_DEPTH_MAX);
    }
    switch (json != NULL ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT:
        return dict_from_json(j, json, depth);
    case JSON_ARRAY:
        return list_from_json(j, json, depth);
    case JSON_STRING:
        return dsi_ji_string(j, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return dsi_jv_int((int64_t)json_integer_value(json));
    case JSON_REAL:
        if (fabs(json_real_value(json)) >= 9223372036854775808.0) { /* may have been a whole one */
            return dsi_ji_refuse(j, "a number of 2^63 or more");
        }
        return dsi_jv_float(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return dsi_jv_bool(json_is_true(json));
    default:
        return dsi_jv_none();
    }
}

/* ---- asking ---- */

bool dsi_ji_is(dsi_jv v, const char *text)
{
    return v.kind == DSI_JV_STR && v.n == strlen(text) && memcmp(v.text, text, v.n) == 0;
}

const char *dsi_ji_type(dsi_jv v)
{
    static const char *const names[] = {"nothing",
                                        "an undefined value",
                                        "None",
                                        "bool",
                                        "int",
                                        "float",
                                        "str",
                                        "list",
                                        "tuple",
                                        "dict",
                                        "a view of a dict",
                                        "range",
                                        "an iterator",
                                        "namespace",
                                        "loop",
                                        "macro",
                                        "function",
                                        "method",
                                        "tuple"};
    return names[v.kind];
}

bool dsi_ji_truth(dsi_ji *j, dsi_jv v)
{
    switch ((dsi_jv_kind)v.kind) {
    case DSI_JV_MISSING:
    case DSI_JV_UNDEFINED:
    case DSI_JV_NONE:
        return false;
    case DSI_JV_BOOL:
        return v.flag;
    case DSI_JV_INT:
        return v.i != 0;
    case DSI_JV_FLOAT:
        return v.f != 0.0;
    case DSI_JV_ITER:
    case DSI_JV_NAMESPACE:
    case DSI_JV_MACRO:
    case DSI_JV_FUNCTION:
    case DSI_JV_METHOD:
        return true;
    default:
        return dsi_ji_length(j, v) != 0;
    }
}

int64_t dsi_ji_length(dsi_ji *j, dsi_jv v)
{
    switch ((dsi_jv_kind)v.kind) {
    case DSI_JV_UNDEFINED:
        return 0;
    case DSI_JV_STR:
        (void)dsi_ji_step(j, v.n / 64);
        return (int64_t)dsi_ji_n_chars(v.text, v.n);
    case DSI_JV_LIST:
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        return (int64_t)v.list->n;
    case DSI_JV_DICT:
        return (int64_t)v.dict->n;
    case DSI_JV_VIEW:
        return (int64_t)v.view->dict->n;
    case DSI_JV_RANGE:
        return (int64_t)v.range->n;
    case DSI_JV_LOOP:
        return dsi_ji_loop_member(j, v.loop, "length").i;
    default:
        return -1;
    }
}

bool dsi_ji_iterable(dsi_jv v)
{
    return v.kind == DSI_JV_UNDEFINED || (v.kind >= DSI_JV_STR && v.kind <= DSI_JV_ITER) ||
           v.kind == DSI_JV_GROUP || v.kind == DSI_JV_LOOP;
}

static const dsi_jv *characters(dsi_ji *j, dsi_jv v, size_t *n_out)
{
    const size_t n = dsi_ji_n_chars(v.text, v.n);
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    const char *p = v.text;
    const char *end = v.text + v.n;
    for (size_t i = 0; i < n && !j->failed; ++i) {
        const char *begin = p++;
        while (p < end && ((unsigned char)*p & 0xC0) == 0x80) {
            ++p;
        }
        at[i] = dsi_jv_str(begin, (size_t)(p - begin));
    }
    *n_out = n;
    return at;
}

static const dsi_jv *view_items(dsi_ji *j, const dsi_jv_view *view, size_t *n_out)
{
    const dsi_jv_dict *dict = view->dict;
    *n_out = dict->n;
    if (view->part != DSI_JV_ITEMS) {
        return view->part == DSI_JV_KEYS ? dict->keys : dict->values;
    }
    dsi_jv *at = dsi_ji_alloc(j, dict->n, sizeof *at);
    for (size_t i = 0; i < dict->n && !j->failed; ++i) {
        at[i] = dsi_ji_pair(j, dict->keys[i], dict->values[i]);
    }
    return at;
}

static const dsi_jv *range_items(dsi_ji *j, const dsi_jv_range *range, size_t *n_out)
{
    dsi_jv *at = dsi_ji_alloc(j, range->n, sizeof *at);
    for (size_t i = 0; i < range->n && !j->failed; ++i) {
        at[i] = dsi_jv_int(range->start + (int64_t)i * range->step);
    }
    *n_out = range->n;
    return at;
}

static const dsi_jv *rest_of(dsi_ji *j, dsi_jv_iter *iter, size_t *n_out)
{
    const dsi_jv *at = iter->at != NULL ? iter->at + iter->used : NULL;
    *n_out = iter->n - iter->used;
    iter->used = iter->n;
    if (iter->fault < 0) {
        (void)dsi_ji_fail(j, iter->fault, "%s", iter->fault_text);
    }
    return at;
}

bool dsi_ji_items(dsi_ji *j, dsi_jv v, const dsi_jv **at_out, size_t *n_out)
{
    *at_out = NULL;
    *n_out = 0;
    switch ((dsi_jv_kind)v.kind) {
    case DSI_JV_UNDEFINED:
        break;
    case DSI_JV_LIST:
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        *at_out = v.list->at;
        *n_out = v.list->n;
        break;
    case DSI_JV_DICT:
        *at_out = v.dict->keys;
        *n_out = v.dict->n;
        break;
    case DSI_JV_STR:
        *at_out = characters(j, v, n_out);
        break;
    case DSI_JV_VIEW:
        *at_out = view_items(j, v.view, n_out);
        break;
    case DSI_JV_RANGE:
        *at_out = range_items(j, v.range, n_out);
        break;
    case DSI_JV_ITER:
        *at_out = rest_of(j, v.iter, n_out);
        break;
    case DSI_JV_LOOP:
        (void)dsi_ji_refuse(j, "a loop over \"loop\"");
        break;
    default:
        (void)dsi_ji_wrong(j, "%s cannot be iterated over", dsi_ji_type(v));
        break;
    }
    if (j->failed) {
        *n_out = 0;
    }
    return dsi_ji_step(j, *n_out / 8);
}
