/* SPDX-License-Identifier: Apache-2.0 */
/* Statements, scopes, and a rendering from its start to its end. See jinja_run.h.
 *
 * Scopes are jinja2's: the body of a loop, a macro, a block that is caught and a {% with %} have
 * their own, an "if" has none; what is set within is gone behind it, and only a namespace carries
 * something out.
 */
#include "data/jinja/jinja_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES = 256 << 20, TEXT_BYTES = 256 << 20 };

/* ---- scopes ---- */

dsi_ji_scope *dsi_ji_scope_in(dsi_ji *j, dsi_ji_scope *outer)
{
    dsi_ji_scope *scope = dsi_ji_alloc(j, 1, sizeof *scope);
    if (scope == NULL) {
        return outer;
    }
    *scope = (dsi_ji_scope){.outer = outer};
    return scope;
}

const dsi_jv *dsi_ji_find(const dsi_ji_scope *scope, const char *name)
{
    for (; scope != NULL; scope = scope->outer) {
        for (uint32_t i = 0; i < scope->n; ++i) {
            if (strcmp(scope->names[i], name) == 0) {
                return &scope->values[i];
            }
        }
    }
    return NULL;
}

void dsi_ji_assign(dsi_ji *j, dsi_ji_scope *scope, const char *name, dsi_jv value)
{
    for (uint32_t i = 0; i < scope->n; ++i) {
        if (strcmp(scope->names[i], name) == 0) {
            scope->values[i] = value;
            return;
        }
    }
    if (scope->n == scope->room) {
        const uint32_t room = scope->room * 2 + 4;
        const char **names = dsi_ji_alloc(j, room, sizeof *names);
        dsi_jv *values = dsi_ji_alloc(j, room, sizeof *values);
        if (names == NULL || values == NULL) {
            return;
        }
        if (scope->n > 0) {
            memcpy(names, scope->names, scope->n * sizeof *names);
            memcpy(values, scope->values, scope->n * sizeof *values);
        }
        scope->names = names;
        scope->values = values;
        scope->room = room;
    }
    scope->names[scope->n] = name;
    scope->values[scope->n++] = value;
}

static void assign_member(dsi_ji *j, dsi_ji_scope *scope, const dsi_jn *target, dsi_jv value)
{
    const dsi_jv *space = dsi_ji_find(scope, target->name);
    if (space == NULL || space->kind != DSI_JV_NAMESPACE) {
        (void)dsi_ji_wrong(j, "\"%.60s\" is no namespace: its members cannot be set", target->name);
    } else if (*target->text == '_') {
        (void)dsi_ji_wrong(j, "a namespace takes no name that begins with _");
    } else {
        dsi_ji_dict_set(j, space->dict, dsi_ji_literal(target->text), value);
    }
}

void dsi_ji_unpack(dsi_ji *j, dsi_ji_scope *scope, const dsi_jn *target, dsi_jv value)
{
    const dsi_jv *at;
    size_t n;
    if (j->failed) {
        return;
    }
    if (target->kind == DSI_JN_NAME) {
        dsi_ji_assign(j, scope, target->name, value);
    } else if (target->kind == DSI_JN_NSREF) {
        assign_member(j, scope, target, value);
    } else if (dsi_ji_items(j, value, &at, &n)) {
        if (n != target->list.n) {
            (void)dsi_ji_wrong(j, "%zu values for %u names", n, target->list.n);
        }
        for (uint32_t i = 0; i < target->list.n && !j->failed; ++i) {
            dsi_ji_unpack(j, scope, target->list.at[i], at[i]);
        }
    }
}

/* ---- statements ---- */

dsi_buf *dsi_ji_catch(dsi_ji *j, dsi_buf *text)
{
    dsi_buf *outer = j->out;
    *text = dsi_buf_make(outer->ceiling - outer->size);
    j->out = text;
    return outer;
}

dsi_jv dsi_ji_caught(dsi_ji *j, dsi_jn_list body, dsi_ji_scope *scope, dsi_ji_flow *flow_out)
{
    dsi_buf text;
    dsi_buf *outer = dsi_ji_catch(j, &text);
    const dsi_ji_flow flow = dsi_ji_exec(j, body, scope);
    j->out = outer;
    if (flow_out != NULL) {
        *flow_out = flow;
    }
    return dsi_ji_buffer(j, &text);
}

static dsi_ji_flow exec_set_block(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_flow flow;
    dsi_ji_scope *inner = dsi_ji_scope_in(j, scope);
    dsi_jv text = dsi_ji_caught(j, node->body, inner, &flow);
    if (flow != DSI_JI_GO_ON || j->failed) {
        return flow;
    }
    if (node->b != NULL) {
        j->caught = text;
        text = dsi_ji_eval(j, node->b, inner);
    }
    dsi_ji_unpack(j, scope, node->a, text);
    return flow;
}

static dsi_ji_flow exec_filter_block(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_flow flow;
    dsi_ji_scope *inner = dsi_ji_scope_in(j, scope);
    j->caught = dsi_ji_caught(j, node->body, inner, &flow);
    if (flow == DSI_JI_GO_ON && !j->failed) {
        const dsi_jv v = dsi_ji_eval(j, node->a, inner);
        dsi_ji_put(j, j->out, v);
    }
    return flow;
}

static dsi_jv macro_value(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_jv_macro *macro = dsi_ji_alloc(j, 1, sizeof *macro);
    if (macro == NULL) {
        return dsi_jv_none();
    }
    *macro = (dsi_jv_macro){node, scope};
    return (dsi_jv){.kind = DSI_JV_MACRO, .macro = macro};
}

/* The call with "caller" among its arguments. */
static void exec_call_block(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_args args;
    const dsi_jv function = dsi_ji_eval(j, node->a->a, scope);
    if (!dsi_ji_eval_args(j, node->a->list, scope, &args)) {
        return;
    }
    const char **names = dsi_ji_alloc(j, args.n_names + 1, sizeof *names);
    dsi_jv *values = dsi_ji_alloc(j, args.n_names + 1, sizeof *values);
    if (names == NULL || values == NULL) {
        return;
    }
    for (size_t i = 0; i < args.n_names; ++i) {
        names[i] = args.names[i];
        values[i] = args.values[i];
    }
    names[args.n_names] = "caller";
    values[args.n_names] = macro_value(j, node, scope);
    args.names = names;
    args.values = values;
    ++args.n_names;
    j->node = node;
    const dsi_jv v = dsi_ji_call(j, function, &args);
    if (!j->failed) {
        dsi_ji_put(j, j->out, v);
    }
}

static dsi_ji_flow exec_with(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    dsi_ji_scope *inner = dsi_ji_scope_in(j, scope);
    for (uint32_t i = 0; i < node->list.n && !j->failed; ++i) {
        const dsi_jn *set = node->list.at[i];
        dsi_ji_unpack(j, inner, set->a, dsi_ji_eval(j, set->b, scope));
    }
    return dsi_ji_exec(j, node->body, inner);
}

static void exec_generation(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const size_t begin = j->out->size;
    (void)dsi_ji_exec(j, node->body, dsi_ji_scope_in(j, scope));
    if (j->failed) {
        return;
    }
    if (j->out != j->result) {
        j->ranges_hidden = true;
        return;
    }
    if (j->n_ranges == j->room_ranges) {
        const size_t room = j->room_ranges * 2 + 16;
        dsi_jinja_range *grown = realloc(j->ranges, room * sizeof *grown);
        if (grown == NULL) {
            (void)dsi_ji_fail(j, DS_ERR_NOMEM, "no memory to render a chat");
            return;
        }
        j->ranges = grown;
        j->room_ranges = room;
    }
    j->ranges[j->n_ranges++] = (dsi_jinja_range){begin, j->out->size};
}

static dsi_ji_flow exec_if(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    for (;;) {
        const bool yes = dsi_ji_truth(j, dsi_ji_eval(j, node->a, scope));
        if (j->failed) {
            return DSI_JI_GO_ON;
        }
        if (yes || node->other.n != 1 || node->other.at[0]->kind != DSI_JN_IF) {
            return dsi_ji_exec(j, yes ? node->body : node->other, scope);
        }
        node = node->other.at[0];
    }
}

static dsi_ji_flow exec_one(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    switch (node->kind) {
    case DSI_JN_DATA:
        dsi_buf_append(j->out, node->value.text, node->value.n);
        return DSI_JI_GO_ON;
    case DSI_JN_OUTPUT: {
        const dsi_jv v = dsi_ji_eval(j, node->a, scope);
        j->node = node;
        dsi_ji_put(j, j->out, v);
        return DSI_JI_GO_ON;
    }
    case DSI_JN_IF:
        return exec_if(j, node, scope);
    case DSI_JN_FOR:
        dsi_ji_exec_for(j, node, scope);
        return DSI_JI_GO_ON;
    case DSI_JN_SET:
        dsi_ji_unpack(j, scope, node->a, dsi_ji_eval(j, node->b, scope));
        return DSI_JI_GO_ON;
    case DSI_JN_SET_BLOCK:
        return exec_set_block(j, node, scope);
    case DSI_JN_FILTER_BLOCK:
        return exec_filter_block(j, node, scope);
    case DSI_JN_MACRO:
        dsi_ji_assign(j, scope, node->name, macro_value(j, node, scope));
        return DSI_JI_GO_ON;
    case DSI_JN_CALL_BLOCK:
        exec_call_block(j, node, scope);
        return DSI_JI_GO_ON;
    case DSI_JN_WITH:
        return exec_with(j, node, scope);
    case DSI_JN_GENERATION:
        exec_generation(j, node, scope);
        return DSI_JI_GO_ON;
    case DSI_JN_BREAK:
        return DSI_JI_BREAK;
    default:
        return DSI_JI_CONTINUE;
    }
}

dsi_ji_flow dsi_ji_exec(dsi_ji *j, dsi_jn_list body, dsi_ji_scope *scope)
{
    dsi_ji_flow flow = DSI_JI_GO_ON;
    if (j->failed || ++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "more than %d levels", DSI_JI_RUN_DEPTH_MAX);
        return flow;
    }
    for (uint32_t i = 0; i < body.n && flow == DSI_JI_GO_ON && dsi_ji_step(j, 1); ++i) {
        j->node = body.at[i];
        flow = exec_one(j, body.at[i], scope);
    }
    --j->depth;
    return flow;
}

/* ---- a rendering ---- */

enum { VARIABLES_MAX = 4096 }; /* names are searched one by one */

/* The variables, and the messages among them as what turns belong to. */
static dsi_ji_scope *variables_of(dsi_ji *j, const json_t *variables)
{
    static const char *const functions[] = {"raise_exception", "strftime_now", "range",  "dict",
                                            "namespace",       "cycler",       "joiner", "lipsum"};
    dsi_ji_scope *globals = dsi_ji_scope_in(j, NULL);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && !j->failed; ++i) {
        dsi_ji_assign(j, globals, functions[i],
                      (dsi_jv){.kind = DSI_JV_FUNCTION, .name = functions[i]});
    }
    dsi_ji_scope *scope = dsi_ji_scope_in(j, globals);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)variables, name, value)
    {
        if (!j->failed && scope->n == VARIABLES_MAX) {
            (void)dsi_ji_fail(j, DS_ERR_LIMIT, "a row has more than %d keys for its template",
                              VARIABLES_MAX);
        }
        if (!j->failed) {
            dsi_ji_assign(j, scope, name, dsi_ji_from_json(j, value, 0));
        }
    }
    const dsi_jv *messages = j->failed ? NULL : dsi_ji_find(scope, "messages");
    if (messages != NULL && messages->kind == DSI_JV_LIST) {
        j->n_turns = messages->list->n;
        j->turns = dsi_ji_alloc(j, j->n_turns, sizeof *j->turns);
        for (size_t i = 0; i < j->n_turns && j->turns != NULL; ++i) {
            const dsi_jv one = messages->list->at[i];
            j->turns[i] = (dsi_ji_turn){.message = one.kind == DSI_JV_DICT ? one.dict : NULL};
        }
    }
    return dsi_ji_scope_in(j, scope);
}

static ds_status give(dsi_ji *j, dsi_jinja_result *result)
{
    result->turns = calloc(j->n_turns + 1, sizeof *result->turns);
    if (result->turns == NULL) {
        (void)dsi_ji_fail(j, DS_ERR_NOMEM, "no memory to render a chat");
        return DS_ERR_NOMEM;
    }
    for (size_t i = 0; i < j->n_turns; ++i) {
        result->turns[i] = (dsi_jinja_range){j->turns[i].begin, j->turns[i].end};
    }
    result->turns_hidden = j->turns_hidden;
    result->generated = j->ranges;
    result->n_generated = j->n_ranges;
    result->generated_hidden = j->ranges_hidden;
    j->ranges = NULL;
    return DS_OK;
}

ds_status dsi_jinja_render(const dsi_jinja *template, const json_t *variables,
                           dsi_jinja_result *result_out, char *error, size_t error_size)
{
    dsi_jinja_result result = {.out = dsi_buf_make(TEXT_BYTES)};
    dsi_ji j = {.template = template, .out = &result.out, .result = &result.out};
    if (dsi_arena_create(ARENA_BYTES, &j.arena) < 0) {
        (void)snprintf(error, error_size, "no memory to render a chat");
        return DS_ERR_NOMEM;
    }
    dsi_buf_puts(&result.out, ""); /* an empty text is a text, too */
    dsi_ji_scope *scope = variables_of(&j, variables);
    if (!j.failed) {
        (void)dsi_ji_exec(&j, template->body, scope);
    }
    if (result.out.failed) {
        (void)dsi_ji_fail(&j, DS_ERR_LIMIT, "a chat of more than %d bytes", TEXT_BYTES);
    }
    if (!j.failed) {
        (void)give(&j, &result);
    }
    if (j.failed) {
        const dsi_jn *at = j.wrong_at;
        (void)snprintf(error, error_size, "line %u, column %u: %s", at != NULL ? at->line : 0,
                       at != NULL ? at->column : 0, j.message);
        dsi_jinja_result_free(&result);
        free(j.ranges);
    } else {
        *result_out = result;
    }
    dsi_arena_destroy(&j.arena);
    return j.failed ? j.status : DS_OK;
}

void dsi_jinja_result_free(dsi_jinja_result *result)
{
    dsi_buf_free(&result->out);
    free(result->generated);
    free(result->turns);
    *result = (dsi_jinja_result){0};
}
