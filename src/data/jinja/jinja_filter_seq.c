/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of sequences: map, select, sort, join and the like. See jinja_run.h.
 *
 * jinja2's generators do their work when they are read. Here it is done at once, which is the same
 * as no filter has effects; a mistake in it is kept behind the items and shows when it is reached.
 */
#include "data/jinja/jinja_strings.h"

#include <string.h>

static bool given(dsi_jv v)
{
    return v.kind != DSI_JV_MISSING;
}

static bool flag(dsi_ji *j, dsi_jv v)
{
    return given(v) && dsi_ji_truth(j, v);
}

/* An iterator over the items so far; a mistake is put behind them. */
static dsi_jv lazy(dsi_ji *j, const dsi_jv *at, size_t n)
{
    const bool mistake =
        j->failed && (j->status == DS_ERR_FORMAT || j->status == DS_ERR_UNSUPPORTED);
    const ds_status status = j->status;
    if (j->failed && !mistake) {
        return dsi_jv_none();
    }
    j->failed = false;
    dsi_jv v = dsi_ji_iter(j, at, n);
    if (mistake && !j->failed) {
        v.iter->fault = status;
        v.iter->fault_text = dsi_ji_string(j, j->message, strlen(j->message)).text;
    }
    return v;
}

/* Texts compare without their case unless told otherwise. */
static dsi_jv folded(dsi_ji *j, dsi_jv v, bool case_sensitive)
{
    return v.kind == DSI_JV_STR && !case_sensitive ? dsi_ji_recased(j, v, DSI_JI_LOWER) : v;
}

/* ---- taking and joining ---- */

static dsi_jv f_first(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    (void)a;
    if (v.kind == DSI_JV_ITER && v.iter->used < v.iter->n) {
        return v.iter->at[v.iter->used++];
    }
    if (v.kind == DSI_JV_STR && v.n > 0) {
        return dsi_ji_getitem(j, v, dsi_jv_int(0));
    }
    if (!dsi_ji_items(j, v, &at, &n)) {
        return dsi_jv_none();
    }
    return n > 0 ? at[0] : dsi_ji_undefined(j, NULL, "there is no first item");
}

static dsi_jv f_last(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    (void)a;
    if (v.kind == DSI_JV_ITER) {
        return dsi_ji_wrong(j, "last of an iterator");
    }
    if (!dsi_ji_items(j, v, &at, &n)) {
        return dsi_jv_none();
    }
    return n > 0 ? at[n - 1] : dsi_ji_undefined(j, NULL, "there is no last item");
}

static dsi_jv f_list(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    (void)a;
    return dsi_ji_items(j, v, &at, &n) ? dsi_ji_list(j, at, n, DSI_JV_LIST) : dsi_jv_none();
}

static dsi_jv f_join(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    if (!dsi_ji_items(j, v, &at, &n)) {
        return dsi_jv_none();
    }
    const dsi_jv between = given(a[0]) ? dsi_ji_str(j, a[0]) : dsi_ji_literal("");
    if (given(a[1]) && a[1].kind != DSI_JV_NONE) {
        dsi_jv *parts = dsi_ji_alloc(j, n, sizeof *parts);
        for (size_t i = 0; i < n && !j->failed; ++i) {
            parts[i] = dsi_ji_path(j, at[i], a[1], dsi_jv_missing());
        }
        at = parts;
    }
    return j->failed ? dsi_jv_none() : dsi_ji_join(j, between, at, n);
}

static dsi_jv f_reverse(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    (void)a;
    if (v.kind == DSI_JV_STR) {
        return dsi_ji_slice(j, v, dsi_jv_none(), dsi_jv_none(), dsi_jv_int(-1));
    }
    if (!dsi_ji_items(j, v, &at, &n)) {
        return dsi_jv_none();
    }
    dsi_jv *back = dsi_ji_alloc(j, n, sizeof *back);
    for (size_t i = 0; i < n && back != NULL; ++i) {
        back[i] = at[n - 1 - i];
    }
    return v.kind == DSI_JV_ITER ? dsi_ji_list(j, back, n, DSI_JV_LIST) : dsi_ji_iter(j, back, n);
}

static dsi_jv f_items(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    (void)a;
    if (v.kind == DSI_JV_UNDEFINED) {
        return dsi_ji_iter(j, NULL, 0);
    }
    if (v.kind != DSI_JV_DICT) {
        (void)dsi_ji_wrong(j, "items of %s", dsi_ji_type(v));
        return lazy(j, NULL, 0);
    }
    dsi_jv *at = dsi_ji_alloc(j, v.dict->n, sizeof *at);
    for (size_t i = 0; i < v.dict->n && !j->failed; ++i) {
        at[i] = dsi_ji_pair(j, v.dict->keys[i], v.dict->values[i]);
    }
    return dsi_ji_iter(j, at, v.dict->n);
}

static dsi_jv f_sum(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    dsi_jv sum = given(a[1]) ? a[1] : dsi_jv_int(0);
    if (sum.kind == DSI_JV_STR) {
        return dsi_ji_wrong(j, "sum of texts");
    }
    if (!dsi_ji_items(j, v, &at, &n)) {
        return dsi_jv_none();
    }
    for (size_t i = 0; i < n && !j->failed; ++i) {
        const dsi_jv one = dsi_ji_path(j, at[i], a[0], dsi_jv_missing());
        sum = j->failed ? sum : dsi_ji_binary(j, "+", sum, one);
    }
    return sum;
}

/* ---- map and select ---- */

static dsi_ji_args without_first(const dsi_ji_args *args, size_t n)
{
    dsi_ji_args rest = *args;
    rest.at = rest.at != NULL ? rest.at + n : NULL;
    rest.n -= n;
    return rest;
}

static const dsi_jv *keyword(const dsi_ji_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_names; ++i) {
        if (strcmp(args->names[i], name) == 0) {
            return &args->values[i];
        }
    }
    return NULL;
}

/* A name of a filter or test among the arguments. */
static const char *name_in(dsi_ji *j, const dsi_ji_args *args, size_t i)
{
    if (args->at[i].kind != DSI_JV_STR) {
        (void)dsi_ji_wrong(j, "%s is no name of a filter or test", dsi_ji_type(args->at[i]));
        return "";
    }
    return dsi_ji_string(j, args->at[i].text, args->at[i].n).text;
}

static dsi_jv f_map(dsi_ji *j, dsi_jv v, const dsi_ji_args *args)
{
    const dsi_jv *at = NULL;
    size_t n = 0;
    const dsi_jv *attribute = args->n == 0 ? keyword(args, "attribute") : NULL;
    const dsi_jv *standard = keyword(args, "default");
    if (!dsi_ji_truth(j, v)) {
        return lazy(j, NULL, 0);
    }
    if (attribute != NULL && args->n_names > 1u + (standard != NULL)) {
        (void)dsi_ji_wrong(j, "map takes an attribute and a default");
    } else if (attribute == NULL && args->n == 0) {
        (void)dsi_ji_wrong(j, "map needs a filter or an attribute");
    }
    const char *name = j->failed || attribute != NULL ? NULL : name_in(j, args, 0);
    (void)(!j->failed && dsi_ji_items(j, v, &at, &n));
    const dsi_ji_args rest = without_first(args, args->n > 0);
    dsi_jv *out = j->failed ? NULL : dsi_ji_alloc(j, n, sizeof *out);
    size_t done = 0;
    for (; done < n && !j->failed; ++done) {
        out[done] = name != NULL ? dsi_ji_filter(j, name, at[done], &rest)
                                 : dsi_ji_path(j, at[done], *attribute,
                                               standard != NULL ? *standard : dsi_jv_missing());
        if (j->failed) {
            break;
        }
    }
    return lazy(j, out, done);
}

static dsi_jv chosen(dsi_ji *j, dsi_jv v, const dsi_ji_args *args, bool by_attribute, bool wanted)
{
    const dsi_jv *at = NULL;
    size_t n = 0;
    size_t kept = 0;
    const size_t off = by_attribute;
    if (!dsi_ji_truth(j, v)) {
        return lazy(j, NULL, 0);
    }
    if (args->n < off) {
        (void)dsi_ji_wrong(j, "an attribute is missing");
    }
    const char *name = !j->failed && args->n > off ? name_in(j, args, off) : NULL;
    const dsi_ji_args rest = without_first(args, args->n > off ? off + 1 : args->n);
    (void)(!j->failed && dsi_ji_items(j, v, &at, &n));
    dsi_jv *out = j->failed ? NULL : dsi_ji_alloc(j, n, sizeof *out);
    for (size_t i = 0; i < n && !j->failed; ++i) {
        const dsi_jv one =
            by_attribute ? dsi_ji_path(j, at[i], args->at[0], dsi_jv_missing()) : at[i];
        const bool yes =
            !j->failed && (name != NULL ? dsi_ji_test(j, name, one, &rest) : dsi_ji_truth(j, one));
        if (!j->failed && yes == wanted) {
            out[kept++] = at[i];
        }
    }
    return lazy(j, out, kept);
}

static dsi_jv f_select(dsi_ji *j, dsi_jv v, const dsi_ji_args *args)
{
    return chosen(j, v, args, false, true);
}

static dsi_jv f_reject(dsi_ji *j, dsi_jv v, const dsi_ji_args *args)
{
    return chosen(j, v, args, false, false);
}

static dsi_jv f_selectattr(dsi_ji *j, dsi_jv v, const dsi_ji_args *args)
{
    return chosen(j, v, args, true, true);
}

static dsi_jv f_rejectattr(dsi_ji *j, dsi_jv v, const dsi_ji_args *args)
{
    return chosen(j, v, args, true, false);
}

/* ---- order ---- */

/* The items' order by their keys; equal ones keep theirs, also when reversed. */
static void order_by(dsi_ji *j, const dsi_jv *keys, dsi_jv *at, size_t n, bool reverse)
{
    size_t *order = dsi_ji_alloc(j, n, sizeof *order);
    dsi_jv *sorted = dsi_ji_alloc(j, n, sizeof *sorted);
    if (order == NULL || sorted == NULL) {
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        size_t k = i;
        for (; k > 0 && !j->failed; --k) {
            const int way = dsi_ji_compare(j, keys[i], keys[order[k - 1]]);
            if (reverse ? way <= 0 : way >= 0) {
                break;
            }
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
    for (size_t i = 0; i < n; ++i) {
        sorted[i] = at[order[i]];
    }
    if (n > 0) {
        memcpy(at, sorted, n * sizeof *at);
    }
}

/* The key of one item: its attributes, as a list; "a,b" names two. */
static dsi_jv sort_key(dsi_ji *j, dsi_jv item, dsi_jv attribute, bool case_sensitive)
{
    size_t n = 1;
    if (attribute.kind == DSI_JV_STR) {
        for (uint32_t i = 0; i < attribute.n; ++i) {
            n += attribute.text[i] == ',';
        }
    }
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    const char *p = attribute.kind == DSI_JV_STR ? attribute.text : NULL;
    for (size_t i = 0; i < n && !j->failed; ++i) {
        dsi_jv path = attribute;
        if (p != NULL) {
            const char *end = attribute.text + attribute.n;
            const char *comma = memchr(p, ',', (size_t)(end - p));
            path = dsi_jv_str(p, (size_t)((comma != NULL ? comma : end) - p));
            p = comma != NULL ? comma + 1 : end;
        }
        at[i] = folded(j, dsi_ji_path(j, item, path, dsi_jv_missing()), case_sensitive);
    }
    return dsi_ji_list(j, at, n, DSI_JV_LIST);
}

/* A copy of the items, to put in order. */
static dsi_jv *copied(dsi_ji *j, dsi_jv v, size_t *n_out)
{
    const dsi_jv *at;
    if (!dsi_ji_items(j, v, &at, n_out)) {
        return NULL;
    }
    dsi_jv *copy = dsi_ji_alloc(j, *n_out, sizeof *copy);
    if (copy != NULL && *n_out > 0) {
        memcpy(copy, at, *n_out * sizeof *copy);
    }
    return copy;
}

static dsi_jv f_sort(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    size_t n = 0;
    dsi_jv *at = copied(j, v, &n);
    dsi_jv *keys = at != NULL ? dsi_ji_alloc(j, n, sizeof *keys) : NULL;
    for (size_t i = 0; i < n && keys != NULL && !j->failed; ++i) {
        keys[i] = sort_key(j, at[i], a[2], flag(j, a[1]));
    }
    if (keys != NULL && !j->failed) {
        order_by(j, keys, at, n, flag(j, a[0]));
    }
    return dsi_ji_list(j, at, n, DSI_JV_LIST);
}

static dsi_jv f_dictsort(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const bool by_value = given(a[1]) && dsi_ji_is(a[1], "value");
    if (given(a[1]) && !by_value && !dsi_ji_is(a[1], "key")) {
        return dsi_ji_wrong(j, "dictsort sorts by key or by value");
    }
    if (v.kind != DSI_JV_DICT) {
        return v.kind == DSI_JV_UNDEFINED ? dsi_ji_use_undefined(j, v)
                                          : dsi_ji_wrong(j, "dictsort of %s", dsi_ji_type(v));
    }
    const size_t n = v.dict->n;
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    dsi_jv *keys = dsi_ji_alloc(j, n, sizeof *keys);
    for (size_t i = 0; i < n && !j->failed; ++i) {
        at[i] = dsi_ji_pair(j, v.dict->keys[i], v.dict->values[i]);
        keys[i] = folded(j, by_value ? v.dict->values[i] : v.dict->keys[i], flag(j, a[0]));
    }
    if (!j->failed) {
        order_by(j, keys, at, n, flag(j, a[2]));
    }
    return dsi_ji_list(j, at, n, DSI_JV_LIST);
}

static dsi_jv extreme(dsi_ji *j, dsi_jv v, const dsi_jv *a, int way)
{
    const dsi_jv *at;
    size_t n;
    if (!dsi_ji_items(j, v, &at, &n)) {
        return dsi_jv_none();
    }
    if (n == 0) {
        return dsi_ji_undefined(j, NULL, "there is no item to choose from");
    }
    size_t best = 0;
    dsi_jv best_key = dsi_jv_none();
    for (size_t i = 0; i < n && !j->failed; ++i) {
        const dsi_jv key = folded(j, dsi_ji_path(j, at[i], a[1], dsi_jv_missing()), flag(j, a[0]));
        if (!j->failed && (i == 0 || dsi_ji_compare(j, key, best_key) * way > 0)) {
            best = i;
            best_key = key;
        }
    }
    return at[best];
}

static dsi_jv f_min(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    return extreme(j, v, a, -1);
}

static dsi_jv f_max(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    return extreme(j, v, a, 1);
}

static dsi_jv f_unique(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at = NULL;
    size_t n = 0;
    size_t kept = 0;
    (void)dsi_ji_items(j, v, &at, &n);
    dsi_jv *out = j->failed ? NULL : dsi_ji_alloc(j, n, sizeof *out);
    dsi_jv seen = j->failed ? dsi_jv_none() : dsi_ji_dict(j);
    for (size_t i = 0; i < n && !j->failed; ++i) {
        const dsi_jv key = folded(j, dsi_ji_path(j, at[i], a[1], dsi_jv_missing()), flag(j, a[0]));
        if (!j->failed && !dsi_ji_hashable(key)) {
            (void)dsi_ji_wrong(j, "unique of %s", dsi_ji_type(key));
        }
        if (!j->failed && dsi_ji_dict_get(j, seen.dict, key) == NULL) {
            dsi_ji_dict_set(j, seen.dict, key, dsi_jv_none());
            out[kept++] = at[i];
        }
    }
    return lazy(j, out, kept);
}

/* ---- groups ---- */

static dsi_jv f_groupby(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    size_t n = 0;
    dsi_jv *at = copied(j, v, &n);
    dsi_jv *keys = at != NULL ? dsi_ji_alloc(j, n, sizeof *keys) : NULL;
    dsi_jv *groups = keys != NULL ? dsi_ji_alloc(j, n, sizeof *groups) : NULL;
    size_t n_groups = 0;
    const bool case_sensitive = flag(j, a[2]);
    for (size_t i = 0; i < n && groups != NULL && !j->failed; ++i) {
        keys[i] = folded(j, dsi_ji_path(j, at[i], a[0], a[1]), case_sensitive);
    }
    if (groups == NULL || j->failed) {
        return dsi_jv_none();
    }
    if (!given(a[0])) {
        return dsi_ji_wrong(j, "groupby needs an attribute");
    }
    order_by(j, keys, at, n, false);
    for (size_t i = 0; i < n && !j->failed;) {
        const dsi_jv key = dsi_ji_path(j, at[i], a[0], a[1]);
        size_t end = i + 1;
        while (end < n && !j->failed &&
               dsi_ji_equal(j, folded(j, key, case_sensitive),
                            folded(j, dsi_ji_path(j, at[end], a[0], a[1]), case_sensitive))) {
            ++end;
        }
        dsi_jv group = dsi_ji_pair(j, key, dsi_ji_list(j, at + i, end - i, DSI_JV_LIST));
        group.kind = j->failed ? DSI_JV_NONE : DSI_JV_GROUP;
        groups[n_groups++] = group;
        i = end;
    }
    return dsi_ji_list(j, groups, n_groups, DSI_JV_LIST);
}

/* Part [from,to) of the items, filled up to `full`. */
static dsi_jv part(dsi_ji *j, const dsi_jv *at, size_t from, size_t to, size_t full, dsi_jv fill)
{
    const bool fills = given(fill) && fill.kind != DSI_JV_NONE && to - from < full;
    const size_t n = fills ? full : to - from;
    dsi_jv *out = dsi_ji_alloc(j, n, sizeof *out);
    for (size_t i = 0; i < n && out != NULL; ++i) {
        out[i] = from + i < to ? at[from + i] : fill;
    }
    return dsi_ji_list(j, out, n, DSI_JV_LIST);
}

static dsi_jv f_batch(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at = NULL;
    size_t n = 0;
    size_t count = 0;
    if (!dsi_jv_is_int(a[0]) || dsi_jv_int_of(a[0]) < 1 || dsi_jv_int_of(a[0]) > 1 << 20) {
        return dsi_ji_refuse(j, "batch of other than 1 to %d items", 1 << 20);
    }
    const size_t size = (size_t)dsi_jv_int_of(a[0]);
    (void)dsi_ji_items(j, v, &at, &n);
    dsi_jv *out = j->failed ? NULL : dsi_ji_alloc(j, n / size + 1, sizeof *out);
    for (size_t i = 0; i < n && !j->failed; i += size) {
        out[count++] = part(j, at, i, i + size < n ? i + size : n, size, a[1]);
    }
    return lazy(j, out, count);
}

static dsi_jv f_slice(dsi_ji *j, dsi_jv v, const dsi_jv *a)
{
    const dsi_jv *at = NULL;
    size_t n = 0;
    size_t from = 0;
    if (!dsi_jv_is_int(a[0]) || dsi_jv_int_of(a[0]) < 1 || dsi_jv_int_of(a[0]) > 1 << 20) {
        return dsi_ji_refuse(j, "slice into other than 1 to %d parts", 1 << 20);
    }
    const size_t parts = (size_t)dsi_jv_int_of(a[0]);
    (void)dsi_ji_items(j, v, &at, &n);
    dsi_jv *out = j->failed ? NULL : dsi_ji_alloc(j, parts, sizeof *out);
    for (size_t i = 0; i < parts && !j->failed; ++i) {
        const size_t size = n / parts + (i < n % parts);
        const size_t full =
            i < n % parts ? 0 : n / parts + 1; /* jinja2 fills these, needed or not */
        out[i] = part(j, at, from, from + size, full, a[1]);
        from += size;
    }
    return lazy(j, out, parts);
}

/* clang-format off */
static const dsi_ji_filter_row rows[] = {
    {"batch", "linecount fill_with", f_batch, NULL},
    {"dictsort", "case_sensitive by reverse", f_dictsort, NULL}, {"first", "", f_first, NULL},
    {"groupby", "attribute default case_sensitive", f_groupby, NULL},
    {"items", "", f_items, NULL}, {"join", "d attribute", f_join, NULL},
    {"last", "", f_last, NULL}, {"list", "", f_list, NULL}, {"map", NULL, NULL, f_map},
    {"max", "case_sensitive attribute", f_max, NULL},
    {"min", "case_sensitive attribute", f_min, NULL}, {"reject", NULL, NULL, f_reject},
    {"rejectattr", NULL, NULL, f_rejectattr}, {"reverse", "", f_reverse, NULL},
    {"select", NULL, NULL, f_select}, {"selectattr", NULL, NULL, f_selectattr},
    {"slice", "slices fill_with", f_slice, NULL},
    {"sort", "reverse case_sensitive attribute", f_sort, NULL},
    {"sum", "attribute start", f_sum, NULL},
    {"unique", "case_sensitive attribute", f_unique, NULL},
};
/* clang-format on */

const dsi_ji_filter_row *dsi_ji_seq_filters(size_t *n_out)
{
    *n_out = sizeof rows / sizeof rows[0];
    return rows;
}
