/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions. See jinja_run.h. */
#include "data/jinja/jinja_run.h"

#include <string.h>

static dsi_jv eval_list(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const size_t n = node->list.n;
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    for (size_t i = 0; i < n && !j->failed; ++i) {
        at[i] = dsi_ji_eval(j, node->list.at[i], scope);
    }
    return dsi_ji_list(j, at, n, node->kind == DSI_JN_LIST ? DSI_JV_LIST : DSI_JV_TUPLE);
}

static dsi_jv eval_dict(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_jv dict = dsi_ji_dict(j);
    for (uint32_t i = 0; i + 1 < node->list.n && !j->failed; i += 2) {
        const dsi_jv key = dsi_ji_eval(j, node->list.at[i], scope);
        const dsi_jv value = dsi_ji_eval(j, node->list.at[i + 1], scope);
        if (j->failed) {
            break;
        }
        if (!dsi_ji_hashable(key)) {
            return dsi_ji_wrong(j, "%s is no key of a dict", dsi_ji_type(key));
        }
        dsi_ji_dict_set(j, dict.dict, key, value);
    }
    return dict;
}

static dsi_jv eval_cond(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const bool yes = dsi_ji_truth(j, dsi_ji_eval(j, node->b, scope));
    if (j->failed) {
        return dsi_jv_none();
    }
    if (yes || node->c != NULL) {
        return dsi_ji_eval(j, yes ? node->a : node->c, scope);
    }
    return dsi_ji_undefined(j, NULL, "the \"if\" without \"else\" was false");
}

static dsi_jv eval_compare(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_jv left = dsi_ji_eval(j, node->a, scope);
    for (uint32_t i = 0; i < node->list.n && !j->failed; ++i) {
        const dsi_jn *operand = node->list.at[i];
        const dsi_jv right = dsi_ji_eval(j, operand->a, scope);
        if (j->failed || !dsi_ji_compares(j, operand->name, left, right)) {
            return dsi_jv_bool(false);
        }
        left = right;
    }
    return dsi_jv_bool(true);
}

static dsi_jv eval_concat(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_jv *parts = dsi_ji_alloc(j, node->list.n, sizeof *parts);
    for (uint32_t i = 0; i < node->list.n && !j->failed; ++i) {
        parts[i] = dsi_ji_eval(j, node->list.at[i], scope);
    }
    dsi_buf out = dsi_buf_make(1 << 28); /* not before: one at a time, however deep it is nested */
    for (uint32_t i = 0; i < node->list.n && !j->failed; ++i) {
        dsi_ji_put(j, &out, parts[i]);
    }
    return dsi_ji_buffer(j, &out);
}

static dsi_jv eval_sign(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const dsi_jv v = dsi_ji_eval(j, node->a, scope);
    if (j->failed || v.kind == DSI_JV_UNDEFINED) {
        return dsi_ji_use_undefined(j, v);
    }
    if (!dsi_jv_is_number(v)) {
        return dsi_ji_wrong(j, "%s has no sign", dsi_ji_type(v));
    }
    if (v.kind == DSI_JV_FLOAT) {
        return dsi_jv_float(node->kind == DSI_JN_NEG ? -v.f : v.f);
    }
    return node->kind == DSI_JN_NEG ? dsi_ji_binary(j, "-", dsi_jv_int(0), v)
                                    : dsi_jv_int(dsi_jv_int_of(v));
}

static dsi_jv eval_getitem(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const dsi_jv of = dsi_ji_eval(j, node->a, scope);
    if (node->b->kind != DSI_JN_SLICE) {
        const dsi_jv key = dsi_ji_eval(j, node->b, scope);
        j->node = node;
        return j->failed ? dsi_jv_none() : dsi_ji_getitem(j, of, key);
    }
    const dsi_jn *parts[] = {node->b->a, node->b->b, node->b->c};
    dsi_jv values[3];
    for (size_t i = 0; i < 3; ++i) {
        values[i] = parts[i] != NULL ? dsi_ji_eval(j, parts[i], scope) : dsi_jv_none();
    }
    j->node = node;
    return j->failed ? dsi_jv_none() : dsi_ji_slice(j, of, values[0], values[1], values[2]);
}

static size_t count_args(dsi_jn_list list, bool keywords)
{
    size_t n = 0;
    for (uint32_t i = 0; i < list.n; ++i) {
        const char *name = list.at[i]->name;
        n += keywords ? name != NULL && *name != '*' : name == NULL;
    }
    return n;
}

/* *args behind the others. */
static void add_positional(dsi_ji *j, dsi_ji_args *args, dsi_jv more)
{
    const dsi_jv *at;
    size_t n;
    if (!dsi_ji_items(j, more, &at, &n) || n == 0) {
        return;
    }
    dsi_jv *all = dsi_ji_alloc(j, args->n + n, sizeof *all);
    if (all == NULL) {
        return;
    }
    if (args->n > 0) {
        memcpy(all, args->at, args->n * sizeof *all);
    }
    memcpy(all + args->n, at, n * sizeof *all);
    args->at = all;
    args->n += n;
}

static void add_keywords(dsi_ji *j, dsi_ji_args *args, dsi_jv more)
{
    if (j->failed) {
        return;
    }
    if (more.kind != DSI_JV_DICT) {
        (void)dsi_ji_wrong(j, "%s after ** is no dict", dsi_ji_type(more));
        return;
    }
    const size_t n = args->n_names + more.dict->n;
    const char **names = dsi_ji_alloc(j, n, sizeof *names);
    dsi_jv *values = dsi_ji_alloc(j, n, sizeof *values);
    if (names == NULL || values == NULL) {
        return;
    }
    for (size_t i = 0; i < n && !j->failed; ++i) {
        const bool old = i < args->n_names;
        const dsi_jv key = old ? dsi_jv_none() : more.dict->keys[i - args->n_names];
        if (!old && key.kind != DSI_JV_STR) {
            (void)dsi_ji_wrong(j, "a name of an argument that is no text");
            return;
        }
        names[i] = old ? args->names[i] : dsi_ji_string(j, key.text, key.n).text;
        values[i] = old ? args->values[i] : more.dict->values[i - args->n_names];
        for (size_t k = 0; k < i && !j->failed && !old; ++k) {
            if (strcmp(names[k], names[i]) == 0) {
                (void)dsi_ji_wrong(j, "the argument \"%.60s\" is given twice", names[i]);
            }
        }
    }
    args->names = names;
    args->values = values;
    args->n_names = n;
}

bool dsi_ji_eval_args(dsi_ji *j, dsi_jn_list list, dsi_ji_scope *scope, dsi_ji_args *args_out)
{
    const size_t n = count_args(list, false);
    const size_t n_names = count_args(list, true);
    dsi_jv *at = dsi_ji_alloc(j, n, sizeof *at);
    const char **names = dsi_ji_alloc(j, n_names, sizeof *names);
    dsi_jv *values = dsi_ji_alloc(j, n_names, sizeof *values);
    size_t p = 0;
    size_t k = 0;
    *args_out = (dsi_ji_args){at, n, names, values, n_names};
    for (uint32_t i = 0; i < list.n && !j->failed; ++i) {
        const dsi_jn *arg = list.at[i];
        const dsi_jv v = dsi_ji_eval(j, arg->a, scope);
        if (arg->name == NULL) {
            at[p++] = v;
        } else if (*arg->name != '*') {
            names[k] = arg->name;
            values[k++] = v;
        } else if (arg->name[1] == '\0') {
            add_positional(j, args_out, v);
        } else {
            add_keywords(j, args_out, v);
        }
    }
    return !j->failed;
}

static dsi_jv eval_call(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_args args;
    const dsi_jv function = dsi_ji_eval(j, node->a, scope);
    if (!dsi_ji_eval_args(j, node->list, scope, &args)) {
        return dsi_jv_none();
    }
    j->node = node;
    return dsi_ji_call(j, function, &args);
}

static dsi_jv eval_filter(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_args args;
    const dsi_jv value = dsi_ji_eval(j, node->a, scope);
    if (j->failed || !dsi_ji_eval_args(j, node->list, scope, &args)) {
        return dsi_jv_none();
    }
    j->node = node;
    return dsi_ji_filter(j, node->name, value, &args);
}

static dsi_jv eval_test(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_args args;
    const dsi_jv value = dsi_ji_eval(j, node->a, scope);
    if (j->failed || !dsi_ji_eval_args(j, node->list, scope, &args)) {
        return dsi_jv_none();
    }
    j->node = node;
    return dsi_jv_bool(dsi_ji_test(j, node->name, value, &args));
}

static dsi_jv eval_name(dsi_ji *j, const dsi_jn *node, const dsi_ji_scope *scope)
{
    const dsi_jv *there = dsi_ji_find(scope, node->name);
    return there != NULL && there->kind != DSI_JV_MISSING ? *there
                                                          : dsi_ji_undefined(j, node->name, NULL);
}

static dsi_jv eval_logic(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const dsi_jv left = dsi_ji_eval(j, node->a, scope);
    const bool yes = !j->failed && dsi_ji_truth(j, left);
    if (node->kind == DSI_JN_NOT) {
        return dsi_jv_bool(!yes);
    }
    return yes == (node->kind == DSI_JN_OR) ? left : dsi_ji_eval(j, node->b, scope);
}

static dsi_jv eval_binary(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const dsi_jv a = dsi_ji_eval(j, node->a, scope);
    const dsi_jv b = dsi_ji_eval(j, node->b, scope);
    j->node = node;
    return j->failed ? dsi_jv_none() : dsi_ji_binary(j, node->name, a, b);
}

static dsi_jv eval_getattr(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const dsi_jv of = dsi_ji_eval(j, node->a, scope);
    j->node = node;
    return j->failed ? dsi_jv_none() : dsi_ji_getattr(j, of, node->name);
}

static dsi_jv eval_kind(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    switch (node->kind) {
    case DSI_JN_CONST:
        return node->value;
    case DSI_JN_NAME:
        return eval_name(j, node, scope);
    case DSI_JN_LIST:
    case DSI_JN_TUPLE:
        return eval_list(j, node, scope);
    case DSI_JN_DICT:
        return eval_dict(j, node, scope);
    case DSI_JN_COND:
        return eval_cond(j, node, scope);
    case DSI_JN_OR:
    case DSI_JN_AND:
    case DSI_JN_NOT:
        return eval_logic(j, node, scope);
    case DSI_JN_COMPARE:
        return eval_compare(j, node, scope);
    case DSI_JN_BINARY:
        return eval_binary(j, node, scope);
    case DSI_JN_CONCAT:
        return eval_concat(j, node, scope);
    case DSI_JN_NEG:
    case DSI_JN_POS:
        return eval_sign(j, node, scope);
    case DSI_JN_GETATTR:
        return eval_getattr(j, node, scope);
    case DSI_JN_GETITEM:
        return eval_getitem(j, node, scope);
    case DSI_JN_CALL:
        return eval_call(j, node, scope);
    case DSI_JN_FILTER:
        return eval_filter(j, node, scope);
    case DSI_JN_TEST:
        return eval_test(j, node, scope);
    default:
        return dsi_ji_refuse(j, "an expression that is not known");
    }
}

dsi_jv dsi_ji_eval(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    if (!dsi_ji_step(j, 1)) {
        return dsi_jv_none();
    }
    if (++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d levels", DSI_JI_RUN_DEPTH_MAX);
    }
    j->node = node != NULL ? node : j->node;
    const dsi_jv v = node != NULL ? eval_kind(j, node, scope) : j->caught;
    --j->depth;
    return v;
}
