/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: arguments to parameters, macros, the global functions. See jinja_run.h. */
#include "data/jinja/jinja_run.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANGE_MAX = 100000 }; /* the sandbox's */

/* Whether word i of names is name; *blind_out: it is positional only. */
static int parameter_index(const char *names, const char *name, size_t *count_out)
{
    int found = -1;
    size_t i = 0;
    const size_t n = strlen(name);
    for (const char *p = names; *p != '\0'; ++i) {
        const size_t size = strcspn(p, " ");
        if (size == n && memcmp(p, name, n) == 0) {
            found = (int)i;
        }
        p += size;
        p += *p == ' ';
    }
    *count_out = i;
    return found;
}

bool dsi_ji_bind(dsi_ji *j, const dsi_ji_args *args, const char *what, const char *names,
                 dsi_jv out[DSI_JI_ARGS])
{
    size_t count;
    (void)parameter_index(names, "", &count);
    for (size_t i = 0; i < DSI_JI_ARGS; ++i) {
        out[i] = i < args->n && i < count ? args->at[i] : dsi_jv_missing();
    }
    if (args->n > count) {
        (void)dsi_ji_wrong(j, "%.40s takes at most %zu arguments, and %zu are given", what, count,
                           args->n);
        return false;
    }
    for (size_t i = 0; i < args->n_names; ++i) {
        const int at = parameter_index(names, args->names[i], &count);
        if (at < 0 || out[at].kind != DSI_JV_MISSING) {
            (void)dsi_ji_wrong(j, "%.40s takes no %sargument \"%.60s\"", what,
                               at < 0 ? "" : "second ", args->names[i]);
            return false;
        }
        out[at] = args->values[i];
    }
    return !j->failed;
}

/* ---- macros ---- */

static const dsi_jv *keyword(const dsi_ji_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_names; ++i) {
        if (strcmp(args->names[i], name) == 0) {
            return &args->values[i];
        }
    }
    return NULL;
}

/* Whether keyword i goes to a parameter that no positional argument fills, or to "caller". */
static bool is_taken(const dsi_jn *node, const dsi_ji_args *args, size_t i)
{
    if (node->takes_caller && strcmp(args->names[i], "caller") == 0) {
        return true;
    }
    for (size_t p = args->n; p < node->list.n; ++p) {
        if (strcmp(node->list.at[p]->name, args->names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static const char *macro_name(const dsi_jn *node)
{
    return node->name != NULL ? node->name : "caller";
}

/* What the parameters leave over: "kwargs" and "varargs", or an error. */
static void bind_rest(dsi_ji *j, const dsi_jn *node, const dsi_ji_args *args, dsi_ji_scope *scope)
{
    dsi_jv kwargs = dsi_ji_dict(j);
    for (size_t i = 0; i < args->n_names && !j->failed; ++i) {
        if (is_taken(node, args, i)) {
            continue;
        }
        if (!node->takes_kwargs) {
            (void)dsi_ji_wrong(j, "the macro %.60s takes no argument \"%.60s\"", macro_name(node),
                               args->names[i]);
            return;
        }
        dsi_ji_dict_set(j, kwargs.dict, dsi_ji_literal(args->names[i]), args->values[i]);
    }
    if (node->takes_kwargs) {
        dsi_ji_assign(j, scope, "kwargs", kwargs);
    }
    const size_t more = args->n > node->list.n ? args->n - node->list.n : 0;
    if (node->takes_varargs) {
        dsi_ji_assign(
            j, scope, "varargs",
            dsi_ji_list(j, more > 0 ? args->at + node->list.n : NULL, more, DSI_JV_TUPLE));
    } else if (more > 0) {
        (void)dsi_ji_wrong(j, "the macro %.60s takes at most %u arguments, and %zu are given",
                           macro_name(node), node->list.n, args->n);
    }
}

static dsi_jv call_macro(dsi_ji *j, const dsi_jv_macro *macro, const dsi_ji_args *args)
{
    const dsi_jn *node = macro->node;
    dsi_ji_scope *scope = dsi_ji_scope_in(j, macro->scope);
    for (uint32_t i = 0; i < node->list.n && !j->failed; ++i) {
        const char *name = node->list.at[i]->name;
        const dsi_jv *given = i < args->n ? &args->at[i] : keyword(args, name);
        dsi_ji_assign(j, scope, name, given != NULL ? *given : dsi_jv_missing());
    }
    if (node->takes_caller && !j->failed) {
        const dsi_jv *caller = keyword(args, "caller");
        const bool none = caller == NULL || caller->kind == DSI_JV_NONE;
        dsi_ji_assign(j, scope, "caller",
                      none ? dsi_ji_undefined(j, NULL, "no caller is defined") : *caller);
    }
    if (!j->failed) {
        bind_rest(j, node, args, scope);
    }
    for (uint32_t i = 0; i < node->list.n && !j->failed; ++i) {
        const dsi_jn *parameter = node->list.at[i];
        if (dsi_ji_find(scope, parameter->name)->kind == DSI_JV_MISSING) {
            dsi_ji_assign(j, scope, parameter->name,
                          parameter->a != NULL
                              ? dsi_ji_eval(j, parameter->a, scope)
                              : dsi_ji_undefined(j, NULL, "a parameter was not provided"));
        }
    }
    return j->failed ? dsi_jv_none() : dsi_ji_caught(j, node->body, scope, NULL);
}

/* ---- global functions ---- */

static dsi_jv call_raise(dsi_ji *j, const dsi_ji_args *args)
{
    dsi_jv message[DSI_JI_ARGS];
    if (!dsi_ji_bind(j, args, "raise_exception", "message", message)) {
        return dsi_jv_none();
    }
    dsi_buf text = dsi_buf_make(1 << 20);
    if (message[0].kind != DSI_JV_MISSING) {
        dsi_ji_put(j, &text, message[0]);
    }
    if (!j->failed) {
        (void)dsi_ji_wrong(j, "the template raises: %.160s", dsi_buf_text(&text));
    }
    dsi_buf_free(&text);
    return dsi_jv_none();
}

static dsi_jv call_range(dsi_ji *j, const dsi_ji_args *args)
{
    int64_t part[3] = {0, 0, 1};
    if (args->n_names > 0 || args->n < 1 || args->n > 3) {
        return dsi_ji_wrong(j, "range() takes one to three whole numbers");
    }
    for (size_t i = 0; i < args->n; ++i) {
        if (!dsi_jv_is_int(args->at[i])) {
            return args->at[i].kind == DSI_JV_UNDEFINED
                       ? dsi_ji_use_undefined(j, args->at[i])
                       : dsi_ji_wrong(j, "range() of %s", dsi_ji_type(args->at[i]));
        }
        part[args->n == 1 ? 1 : i] = dsi_jv_int_of(args->at[i]);
    }
    const int64_t step = part[2];
    int64_t span;
    if (step == 0 || step == INT64_MIN) {
        return dsi_ji_wrong(j, "range() with step 0");
    }
    if (__builtin_sub_overflow(step > 0 ? part[1] : part[0], step > 0 ? part[0] : part[1], &span)) {
        return dsi_ji_wrong(j, "range() of more than %d items", RANGE_MAX);
    }
    const int64_t n = span > 0 ? (span - 1) / (step > 0 ? step : -step) + 1 : 0;
    if (n > RANGE_MAX) {
        return dsi_ji_wrong(j, "range() of more than %d items", RANGE_MAX);
    }
    dsi_jv_range *range = dsi_ji_alloc(j, 1, sizeof *range);
    if (range == NULL) {
        return dsi_jv_none();
    }
    *range = (dsi_jv_range){.start = part[0], .step = step, .stop = part[1], .n = (size_t)n};
    return (dsi_jv){.kind = DSI_JV_RANGE, .range = range};
}

static void set_pairs(dsi_ji *j, dsi_jv_dict *dict, dsi_jv from)
{
    const dsi_jv *at;
    const dsi_jv *pair;
    size_t n;
    size_t two;
    if (from.kind == DSI_JV_DICT) {
        for (size_t i = 0; i < from.dict->n && !j->failed; ++i) {
            dsi_ji_dict_set(j, dict, from.dict->keys[i], from.dict->values[i]);
        }
        return;
    }
    if (from.kind == DSI_JV_NAMESPACE || from.kind == DSI_JV_UNDEFINED) {
        (void)(from.kind == DSI_JV_UNDEFINED ? dsi_ji_use_undefined(j, from)
                                             : dsi_ji_refuse(j, "dict() of a namespace"));
        return;
    }
    if (!dsi_ji_items(j, from, &at, &n)) {
        return;
    }
    for (size_t i = 0; i < n && !j->failed; ++i) {
        if (!dsi_ji_items(j, at[i], &pair, &two)) {
            return;
        }
        if (two != 2 || !dsi_ji_hashable(pair[0])) {
            (void)dsi_ji_wrong(j, "dict() of what are no pairs of a key and a value");
            return;
        }
        dsi_ji_dict_set(j, dict, pair[0], pair[1]);
    }
}

static dsi_jv call_dict(dsi_ji *j, const dsi_ji_args *args, bool space)
{
    dsi_jv dict = dsi_ji_dict(j);
    if (args->n > 1) {
        return dsi_ji_wrong(j, "%s() takes at most one argument without a name",
                            space ? "namespace" : "dict");
    }
    if (args->n == 1 && !j->failed) {
        set_pairs(j, dict.dict, args->at[0]);
    }
    for (size_t i = 0; i < args->n_names && !j->failed; ++i) {
        dsi_ji_dict_set(j, dict.dict, dsi_ji_literal(args->names[i]), args->values[i]);
    }
    for (size_t i = 0; space && !j->failed && i < dict.dict->n; ++i) {
        const dsi_jv key = dict.dict->keys[i];
        if (key.kind == DSI_JV_STR && key.n > 0 && *key.text == '_') {
            return dsi_ji_wrong(j, "a namespace takes no name that begins with _");
        }
    }
    dict.kind = space ? DSI_JV_NAMESPACE : dict.kind;
    return dict;
}

/* Python's strftime of a time without a zone, in English whatever the locale. */
static dsi_jv call_strftime(dsi_ji *j, const dsi_ji_args *args)
{
    dsi_jv format[DSI_JI_ARGS];
    char text[8192] = ""; /* 256 characters of a format, each up to 32 of a date */
    struct tm now;
    const time_t seconds = time(NULL);
    if (!dsi_ji_bind(j, args, "strftime_now", "format", format)) {
        return dsi_jv_none();
    }
    if (format[0].kind != DSI_JV_STR) {
        return dsi_ji_wrong(j, "strftime_now() needs a format");
    }
    for (uint32_t i = 0; i + 1 < format[0].n; ++i) {
        if (format[0].text[i] == '%') {
            const char c = format[0].text[++i];
            if (c == '\0' || strchr("aAbBdHIjmMpSyYUWwxXcDFTReu%-GV", c) == NULL) {
                return dsi_ji_refuse(j, "strftime_now() with %%%c", c);
            }
        }
    }
    if (format[0].n > 256 || memchr(format[0].text, '\0', format[0].n) != NULL ||
        localtime_r(&seconds, &now) == NULL) {
        return dsi_ji_refuse(j, "strftime_now() of such a format");
    }
    char spec[257];
    (void)snprintf(spec, sizeof spec, "%.*s", (int)format[0].n, format[0].text);
    const locale_t english = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (english == (locale_t)0) {
        return dsi_ji_fail(j, DS_ERR_NOMEM, "no memory for a date");
    }
    const size_t n = strftime_l(text, sizeof text, spec, &now, english);
    freelocale(english);
    return dsi_ji_string(j, text, n);
}

static dsi_jv call_function(dsi_ji *j, const char *name, const dsi_ji_args *args)
{
    if (strcmp(name, "raise_exception") == 0) {
        return call_raise(j, args);
    }
    if (strcmp(name, "range") == 0) {
        return call_range(j, args);
    }
    if (strcmp(name, "dict") == 0 || strcmp(name, "namespace") == 0) {
        return call_dict(j, args, *name == 'n');
    }
    if (strcmp(name, "strftime_now") == 0) {
        return call_strftime(j, args);
    }
    return dsi_ji_refuse(j, "%s() is not supported", name);
}

static bool same_args(dsi_ji *j, dsi_jv seen, const dsi_ji_args *args)
{
    if (seen.kind != DSI_JV_TUPLE || seen.list->n != args->n) {
        return false;
    }
    for (size_t i = 0; i < args->n; ++i) {
        if (!dsi_ji_equal(j, seen.list->at[i], args->at[i])) {
            return false;
        }
    }
    return true;
}

static dsi_jv call_loop_method(dsi_ji *j, dsi_jv_loop *loop, const char *name,
                               const dsi_ji_args *args)
{
    if (args->n_names > 0) {
        return dsi_ji_wrong(j, "loop.%s() takes no arguments with names", name);
    }
    if (strcmp(name, "cycle") == 0) {
        return args->n > 0 ? args->at[(size_t)loop->index0 % args->n]
                           : dsi_ji_wrong(j, "loop.cycle() needs what to cycle through");
    }
    const bool changed = !same_args(j, loop->changed, args);
    if (changed) {
        loop->changed = dsi_ji_list(j, args->at, args->n, DSI_JV_TUPLE);
    }
    return dsi_jv_bool(changed);
}

static dsi_jv call_any(dsi_ji *j, dsi_jv function, const dsi_ji_args *args)
{
    switch ((dsi_jv_kind)function.kind) {
    case DSI_JV_UNDEFINED:
        return dsi_ji_use_undefined(j, function);
    case DSI_JV_FUNCTION:
        return call_function(j, function.name, args);
    case DSI_JV_MACRO:
        return call_macro(j, function.macro, args);
    case DSI_JV_LOOP:
        return dsi_ji_call_loop(j, function.loop, args);
    case DSI_JV_METHOD:
        if (function.method->self.kind == DSI_JV_LOOP) {
            return call_loop_method(j, function.method->self.loop, function.method->name, args);
        }
        return dsi_ji_call_method(j, function.method->self, function.method->name, args);
    default:
        return dsi_ji_wrong(j, "%s cannot be called", dsi_ji_type(function));
    }
}

dsi_jv dsi_ji_call(dsi_ji *j, dsi_jv function, const dsi_ji_args *args)
{
    if (!dsi_ji_step(j, 1) || ++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d levels", DSI_JI_RUN_DEPTH_MAX);
    }
    const dsi_jv v = call_any(j, function, args);
    --j->depth;
    return v;
}
