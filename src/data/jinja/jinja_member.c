/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes, items and slices by the rules of the sandbox: a.b prefers the attribute, a['b'] the
 * item, and what is not there is undefined. See jinja_run.h. */
#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Attributes that the type has beside methods, and that are not known here. */
static bool has_unknown_attribute(dsi_jv of, const char *name)
{
    static const char *const of_numbers[] = {
        "real",       "imag",      "numerator",        "denominator", "conjugate",
        "bit_length", "bit_count", "to_bytes",         "from_bytes",  "is_integer",
        "hex",        "fromhex",   "as_integer_ratio", NULL};
    static const char *const of_macros[] = {
        "name", "arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller", NULL};
    const char *const *names = dsi_jv_is_number(of) ? of_numbers : of_macros;
    if (of.kind == DSI_JV_ITER || of.kind == DSI_JV_VIEW || of.kind == DSI_JV_RANGE ||
        of.kind == DSI_JV_FUNCTION || of.kind == DSI_JV_METHOD) {
        return true;
    }
    for (; (dsi_jv_is_number(of) || of.kind == DSI_JV_MACRO) && *names != NULL; ++names) {
        if (strcmp(*names, name) == 0) {
            return true;
        }
    }
    return false;
}

static dsi_jv method(dsi_ji *j, dsi_jv of, const char *name)
{
    dsi_jv_method *m = dsi_ji_alloc(j, 1, sizeof *m);
    if (m == NULL) {
        return dsi_jv_none();
    }
    *m = (dsi_jv_method){of, name};
    return (dsi_jv){.kind = DSI_JV_METHOD, .method = m};
}

/* getattr() alone, MISSING when there is none. */
static dsi_jv attribute(dsi_ji *j, dsi_jv of, const char *name)
{
    if (strncmp(name, "__", 2) == 0) {
        return dsi_ji_refuse(j, "the attribute \"%.40s\", which is Python's own", name);
    }
    if (of.kind == DSI_JV_NAMESPACE) {
        const dsi_jv *there = dsi_ji_dict_get(j, of.dict, dsi_ji_literal(name));
        return there != NULL ? *there : dsi_jv_missing();
    }
    if (of.kind == DSI_JV_LOOP) {
        return dsi_ji_loop_member(j, of.loop, name);
    }
    if (of.kind == DSI_JV_GROUP && strcmp(name, "grouper") == 0) {
        return of.list->at[0];
    }
    if (of.kind == DSI_JV_GROUP && strcmp(name, "list") == 0) {
        return of.list->at[1];
    }
    switch (dsi_ji_method_of(of, name)) {
    case DSI_JI_METHOD:
        return method(j, of, name);
    case DSI_JI_UNSAFE_METHOD:
        return dsi_ji_undefined(j, name, "the sandbox");
    case DSI_JI_UNKNOWN_METHOD:
        return dsi_ji_refuse(j, "%s.%.40s() is not supported", dsi_ji_type(of), name);
    default:
        break;
    }
    if (has_unknown_attribute(of, name)) {
        return dsi_ji_refuse(j, "the attribute \"%.40s\" of %s is not supported", name,
                             dsi_ji_type(of));
    }
    return dsi_jv_missing();
}

static bool usable(dsi_ji *j, dsi_jv of)
{
    if (of.kind == DSI_JV_UNDEFINED) {
        (void)dsi_ji_use_undefined(j, of);
    } else if (of.kind == DSI_JV_STR && of.safe) {
        (void)dsi_ji_refuse(j, "a member of a text that is marked safe");
    }
    return !j->failed;
}

dsi_jv dsi_ji_getattr(dsi_ji *j, dsi_jv of, const char *name)
{
    if (!usable(j, of)) {
        return dsi_jv_none();
    }
    const dsi_jv v = attribute(j, of, name);
    if (v.kind != DSI_JV_MISSING) {
        return v;
    }
    const dsi_jv *there =
        of.kind == DSI_JV_DICT ? dsi_ji_dict_get(j, of.dict, dsi_ji_literal(name)) : NULL;
    return there != NULL ? *there : dsi_ji_undefined(j, name, dsi_ji_type(of));
}

/* Item i of n, counted from the end when negative; false: out of range. */
static bool in_range(int64_t *i, size_t n)
{
    *i += *i < 0 ? (int64_t)n : 0;
    return *i >= 0 && (uint64_t)*i < n;
}

static dsi_jv character(dsi_ji *j, dsi_jv of, int64_t i)
{
    (void)dsi_ji_step(j, of.n / 64);
    if (!in_range(&i, dsi_ji_n_chars(of.text, of.n))) {
        return dsi_jv_missing();
    }
    const char *begin = dsi_ji_char_at(of.text, of.n, (size_t)i);
    const char *end = dsi_ji_char_at(of.text, of.n, (size_t)i + 1);
    return dsi_jv_str(begin, (size_t)(end - begin));
}

/* obj[key] alone, MISSING for an error that counts as "not there". */
static dsi_jv item(dsi_ji *j, dsi_jv of, dsi_jv key)
{
    if (of.kind == DSI_JV_DICT) {
        const dsi_jv *there = dsi_ji_hashable(key) ? dsi_ji_dict_get(j, of.dict, key) : NULL;
        return there != NULL ? *there : dsi_jv_missing();
    }
    if (!dsi_jv_is_int(key)) {
        return dsi_jv_missing();
    }
    int64_t i = dsi_jv_int_of(key);
    switch ((dsi_jv_kind)of.kind) {
    case DSI_JV_STR:
        return character(j, of, i);
    case DSI_JV_LIST:
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        return in_range(&i, of.list->n) ? of.list->at[i] : dsi_jv_missing();
    case DSI_JV_RANGE:
        return in_range(&i, of.range->n) ? dsi_jv_int(of.range->start + i * of.range->step)
                                         : dsi_jv_missing();
    default:
        return dsi_jv_missing();
    }
}

/* The text of a key as a name, which lives as long as the value. */
static const char *name_of(dsi_ji *j, dsi_jv key)
{
    if (memchr(key.text, '\0', key.n) != NULL) {
        return "\1"; /* no attribute is called so */
    }
    return dsi_ji_string(j, key.text, key.n).text;
}

dsi_jv dsi_ji_getitem(dsi_ji *j, dsi_jv of, dsi_jv key)
{
    if (!usable(j, of)) {
        return dsi_jv_none();
    }
    dsi_jv v = item(j, of, key);
    if (v.kind != DSI_JV_MISSING || j->failed) {
        return v;
    }
    const char *name = key.kind == DSI_JV_STR ? name_of(j, key) : NULL;
    if (name != NULL && !j->failed) {
        v = attribute(j, of, name);
    }
    if (v.kind == DSI_JV_MISSING) {
        v = dsi_ji_undefined(j, name != NULL ? name : "[…]", dsi_ji_type(of));
    }
    return v;
}

/* ---- slices ---- */

typedef struct cut {
    int64_t begin, step;
    size_t n;
} cut;

static bool whole(dsi_ji *j, dsi_jv v, int64_t standard, int64_t *out)
{
    *out = standard;
    if (v.kind == DSI_JV_NONE) {
        return true;
    }
    if (!dsi_jv_is_int(v)) {
        (void)dsi_ji_wrong(j, "a slice of %s, which is no whole number", dsi_ji_type(v));
        return false;
    }
    *out = dsi_jv_int_of(v);
    return true;
}

static int64_t clamp(int64_t i, int64_t n, bool down)
{
    if (i < 0) {
        i += n;
        return i < 0 ? (down ? -1 : 0) : i;
    }
    return i >= n ? (down ? n - 1 : n) : i;
}

/* Which of n items a slice takes. */
static bool cut_of(dsi_ji *j, size_t count, dsi_jv begin, dsi_jv end, dsi_jv step, cut *out)
{
    const int64_t n = (int64_t)count;
    int64_t by;
    int64_t from;
    int64_t to;
    if (!whole(j, step, 1, &by)) {
        return false;
    }
    if (by == 0 || by == INT64_MIN) {
        (void)dsi_ji_wrong(j, "a slice with step 0");
        return false;
    }
    const bool down = by < 0;
    if (!whole(j, begin, down ? n - 1 : 0, &from) || !whole(j, end, 0, &to)) {
        return false;
    }
    from = begin.kind == DSI_JV_NONE ? from : clamp(from, n, down);
    to = end.kind == DSI_JV_NONE ? (down ? -1 : n) : clamp(to, n, down);
    const int64_t span = down ? from - to : to - from;
    *out = (cut){from, by, span > 0 ? (size_t)((span - 1) / (down ? -by : by)) + 1 : 0};
    return true;
}

static dsi_jv slice_str(dsi_ji *j, dsi_jv of, cut c)
{
    if (c.step == 1) {
        const char *begin = dsi_ji_char_at(of.text, of.n, (size_t)c.begin);
        const char *end =
            c.n > 0 ? dsi_ji_char_at(begin, (size_t)(of.text + of.n - begin), c.n) : begin;
        return dsi_jv_str(begin, (size_t)(end - begin));
    }
    const dsi_jv *at;
    size_t n;
    dsi_buf out = dsi_buf_make(1 << 28);
    if (dsi_ji_items(j, of, &at, &n)) {
        for (size_t i = 0; i < c.n; ++i) {
            const dsi_jv one = at[c.begin + (int64_t)i * c.step];
            dsi_buf_append(&out, one.text, one.n);
        }
    }
    return dsi_ji_buffer(j, &out);
}

static dsi_jv slice_list(dsi_ji *j, dsi_jv of, cut c)
{
    if (c.step == 1 || c.n == 0) {
        return dsi_ji_list(j, c.n > 0 ? of.list->at + c.begin : NULL, c.n,
                           of.kind == DSI_JV_LIST ? DSI_JV_LIST : DSI_JV_TUPLE);
    }
    dsi_jv *at = dsi_ji_alloc(j, c.n, sizeof *at);
    for (size_t i = 0; i < c.n && at != NULL; ++i) {
        at[i] = of.list->at[c.begin + (int64_t)i * c.step];
    }
    return dsi_ji_list(j, at, c.n, of.kind == DSI_JV_LIST ? DSI_JV_LIST : DSI_JV_TUPLE);
}

dsi_jv dsi_ji_slice(dsi_ji *j, dsi_jv of, dsi_jv begin, dsi_jv end, dsi_jv step)
{
    cut c;
    if (!usable(j, of)) {
        return dsi_jv_none();
    }
    switch ((dsi_jv_kind)of.kind) {
    case DSI_JV_STR:
        return cut_of(j, (size_t)dsi_ji_length(j, of), begin, end, step, &c) ? slice_str(j, of, c)
                                                                             : dsi_jv_none();
    case DSI_JV_LIST:
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        return cut_of(j, of.list->n, begin, end, step, &c) ? slice_list(j, of, c) : dsi_jv_none();
    case DSI_JV_RANGE:
        return dsi_ji_refuse(j, "a slice of a range");
    default:
        return dsi_ji_wrong(j, "%s has no slices", dsi_ji_type(of));
    }
}

/* ---- paths of filters ---- */

static dsi_jv one_part(dsi_ji *j, dsi_jv of, const char *part, size_t n)
{
    bool digits = n > 0;
    for (size_t i = 0; i < n; ++i) {
        digits = digits && part[i] >= '0' && part[i] <= '9';
        if ((unsigned char)part[i] >= 0x80) {
            return dsi_ji_refuse(j, "an attribute beyond ASCII");
        }
    }
    if (digits && n < 18) {
        return dsi_ji_getitem(j, of, dsi_jv_int(strtoll(part, NULL, 10)));
    }
    return dsi_ji_getitem(j, of, dsi_ji_string(j, part, n));
}

dsi_jv dsi_ji_path(dsi_ji *j, dsi_jv of, dsi_jv path, dsi_jv default_value)
{
    const bool has_default =
        default_value.kind > DSI_JV_NONE || default_value.kind == DSI_JV_UNDEFINED;
    if (path.kind == DSI_JV_NONE || path.kind == DSI_JV_MISSING) {
        return of;
    }
    if (path.kind != DSI_JV_STR) {
        const dsi_jv v = dsi_ji_getitem(j, of, path);
        return v.kind == DSI_JV_UNDEFINED && has_default ? default_value : v;
    }
    const char *p = path.text;
    const char *end = p + path.n;
    do {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        const char *stop = dot != NULL ? dot : end;
        of = one_part(j, of, p, (size_t)(stop - p));
        if (of.kind == DSI_JV_UNDEFINED && has_default) {
            of = default_value;
        }
        p = dot != NULL ? dot + 1 : NULL;
    } while (p != NULL && !j->failed);
    return of;
}
