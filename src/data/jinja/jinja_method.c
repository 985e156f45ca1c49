/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of str, list, tuple and dict, as far as templates use them. See jinja_run.h.
 *
 * A method that Python has and this table has not is refused when a template asks for it; one that
 * changes a list or dict is hidden by the sandbox.
 */
#include "data/jinja/jinja_strings.h"

#include <string.h>

/* ---- dict and list ---- */

static dsi_jv view(dsi_ji *j, dsi_jv self, dsi_jv_part part)
{
    dsi_jv_view *v = dsi_ji_alloc(j, 1, sizeof *v);
    if (v == NULL) {
        return dsi_jv_none();
    }
    *v = (dsi_jv_view){self.dict, part};
    return (dsi_jv){.kind = DSI_JV_VIEW, .view = v};
}

static dsi_jv d_items(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    (void)a;
    return view(j, self, DSI_JV_ITEMS);
}

static dsi_jv d_keys(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    (void)a;
    return view(j, self, DSI_JV_KEYS);
}

static dsi_jv d_values(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    (void)a;
    return view(j, self, DSI_JV_VALUES);
}

static dsi_jv d_get(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    if (a[0].kind == DSI_JV_MISSING || !dsi_ji_hashable(a[0])) {
        return dsi_ji_wrong(j, "get() needs a key");
    }
    const dsi_jv *there = dsi_ji_dict_get(j, self.dict, a[0]);
    return there != NULL ? *there : a[1].kind != DSI_JV_MISSING ? a[1] : dsi_jv_none();
}

static dsi_jv itself(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    (void)j;
    (void)a;
    return self; /* a copy, as nothing changes */
}

static dsi_jv l_index(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    if (a[1].kind != DSI_JV_MISSING) {
        return dsi_ji_refuse(j, "index() in a part of a list");
    }
    for (size_t i = 0; i < self.list->n && !j->failed; ++i) {
        if (dsi_ji_equal(j, self.list->at[i], a[0])) {
            return dsi_jv_int((int64_t)i);
        }
    }
    return dsi_ji_wrong(j, "index() finds nothing");
}

static dsi_jv l_count(dsi_ji *j, dsi_jv self, const dsi_jv *a)
{
    int64_t n = 0;
    if (a[0].kind == DSI_JV_MISSING) {
        return dsi_ji_wrong(j, "count() needs what to count");
    }
    for (size_t i = 0; i < self.list->n && !j->failed; ++i) {
        n += dsi_ji_equal(j, self.list->at[i], a[0]);
    }
    return dsi_jv_int(n);
}

/* ---- the tables; "-" is a parameter without a name ---- */

/* clang-format off */
static const dsi_ji_method_row of_dict[] = {
    {"items", "", d_items}, {"keys", "", d_keys}, {"values", "", d_values}, {"get", "- -", d_get},
    {"copy", "", itself}, {NULL, NULL, NULL}};
static const dsi_ji_method_row of_list[] = {
    {"index", "- - -", l_index}, {"count", "-", l_count}, {"copy", "", itself}, {NULL, NULL, NULL}};
static const dsi_ji_method_row of_tuple[] = {
    {"index", "- - -", l_index}, {"count", "-", l_count}, {NULL, NULL, NULL}};
/* clang-format on */
static const char *const unknown_of_str[] = {
    "casefold",     "encode",      "expandtabs", "format_map", "isascii",
    "isidentifier", "isprintable", "istitle",    "maketrans",  "swapcase",
    "translate",    "zfill",       NULL};
static const char *const unsafe_of_dict[] = {"clear",      "pop",    "popitem",
                                             "setdefault", "update", NULL};
static const char *const unknown_of_dict[] = {"fromkeys", NULL};
static const char *const unsafe_of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                             "sort",   "extend", "remove", NULL};
static const char *const no_names[] = {NULL};

static const dsi_ji_method_row *rows_of(dsi_jv of)
{
    static const dsi_ji_method_row none[] = {{NULL, NULL, NULL}};
    switch ((dsi_jv_kind)of.kind) {
    case DSI_JV_STR:
        return dsi_ji_str_methods();
    case DSI_JV_DICT:
        return of_dict;
    case DSI_JV_LIST:
        return of_list;
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        return of_tuple;
    default:
        return none;
    }
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names != NULL; ++names) {
        if (strcmp(*names, name) == 0) {
            return true;
        }
    }
    return false;
}

static const dsi_ji_method_row *row_of(dsi_jv of, const char *name)
{
    for (const dsi_ji_method_row *row = rows_of(of); row->name != NULL; ++row) {
        if (strcmp(row->name, name) == 0) {
            return row;
        }
    }
    return NULL;
}

dsi_ji_method_kind dsi_ji_method_of(dsi_jv of, const char *name)
{
    const bool dict = of.kind == DSI_JV_DICT;
    if (row_of(of, name) != NULL || (of.kind == DSI_JV_STR && strcmp(name, "format") == 0)) {
        return DSI_JI_METHOD;
    }
    if (is_one_of(name, dict                     ? unsafe_of_dict
                        : of.kind == DSI_JV_LIST ? unsafe_of_list
                                                 : no_names)) {
        return DSI_JI_UNSAFE_METHOD;
    }
    if (is_one_of(name, dict                    ? unknown_of_dict
                        : of.kind == DSI_JV_STR ? unknown_of_str
                                                : no_names)) {
        return DSI_JI_UNKNOWN_METHOD;
    }
    return DSI_JI_NO_METHOD;
}

dsi_jv dsi_ji_call_method(dsi_ji *j, dsi_jv self, const char *name, const dsi_ji_args *args)
{
    dsi_jv values[DSI_JI_ARGS];
    const dsi_ji_method_row *row = row_of(self, name);
    if (row == NULL) { /* the one that takes any arguments */
        return dsi_ji_str_format(j, self, args);
    }
    return dsi_ji_bind(j, args, name, row->parameters, values) ? row->run(j, self, values)
                                                               : dsi_jv_none();
}
