/* SPDX-License-Identifier: Apache-2.0 */
/* Tools: which the model may call, and messages about calls. See api.h. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

/* As OpenAI allows it; nothing of it is escaped in JSON. */
bool api_is_name(const char *text)
{
    const size_t n = text != NULL ? strlen(text) : 0;
    return n >= 1 && n <= 64 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

/* ---- what may be called ---- */
static bool is_object_schema(json_t *schema)
{
    json_t *type = json_object_get(schema, "type");
    const char *name = json_string_value(type);
    return json_is_object(schema) && ((name != NULL && strcmp(name, "object") == 0) ||
                                      (type == NULL && json_object_size(schema) == 0));
}

/* A function of the request; its parameters as text, which the caller frees. */
static bool read_tool(api_reader *r, json_t *v, dsi_guide_tool *tool)
{
    static const char none[] = "{\"type\":\"object\",\"properties\":{}}";
    json_t *function = json_object_get(v, "function");
    json_t *parameters = json_object_get(function, "parameters");
    const char *type = json_string_value(json_object_get(v, "type"));
    const char *key = NULL;
    json_t *value = NULL;
    tool->name = json_string_value(json_object_get(function, "name"));
    if (type == NULL || strcmp(type, "function") != 0 || json_object_size(v) != 2 ||
        !api_is_name(tool->name)) {
        return api_wrong(
            r, "tools",
            "{\"type\": \"function\", \"function\": {\"name\": …}} with a name of 1 to "
            "64 letters, digits, _ and -");
    }
    json_object_foreach(function, key, value)
    {
        const bool strict = strcmp(key, "strict") == 0;
        if (strict && json_is_false(value)) {
            api_ignore(r->ignored, "tools.function.strict"); /* arguments always fit */
        } else if (!strict && strcmp(key, "name") != 0 && strcmp(key, "description") != 0 &&
                   strcmp(key, "parameters") != 0) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", "tools",
                            "tools.function.%.40s is not known", key);
        }
    }
    const bool given = parameters != NULL && !json_is_null(parameters);
    if (given && !is_object_schema(parameters)) {
        return api_wrong(r, "tools", "parameters with \"type\": \"object\"");
    }
    char *text = given && json_object_size(parameters) > 0 ? json_dumps(parameters, JSON_COMPACT)
                                                           : strdup(none);
    tool->parameters = text;
    tool->n = text != NULL ? strlen(text) : 0;
    return text != NULL || api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
}

typedef struct choice_of_tool {
    bool none, forced;
    const char *name; /* the only one; NULL: any */
} choice_of_tool;

static bool read_choice(api_reader *r, choice_of_tool *c)
{
    json_t *v = r->tool_choice;
    const char *word = json_string_value(v);
    const char *type = json_string_value(json_object_get(v, "type"));
    if (v == NULL || (word != NULL && strcmp(word, "auto") == 0)) {
        return true;
    }
    c->none = word != NULL && strcmp(word, "none") == 0;
    c->forced = !c->none;
    c->name = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    const bool named = type != NULL && strcmp(type, "function") == 0 && c->name != NULL &&
                       json_object_size(v) == 2 &&
                       json_object_size(json_object_get(v, "function")) == 1;
    return c->none || (word != NULL && strcmp(word, "required") == 0) || named ||
           api_wrong(
               r, "tool_choice",
               "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": …}}");
}

static bool make_guide(api_reader *r, const dsi_guide_tool *tools, size_t n,
                       const choice_of_tool *c)
{
    front *f = r->f;
    const bool several = r->parallel == NULL || json_is_true(r->parallel);
    if (!api_find_words(r)) {
        return false;
    }
    r->j->calls = f->calls;
    return api_end_form(r, "tools",
                        dsi_guide_of_calls(f->http_ctx, f->words, f->calls, tools, n, c->forced,
                                           several && c->name == NULL, &r->j->guide));
}

/* Reads all of them, and leaves those that may be called. */
static bool read_all(api_reader *r, const choice_of_tool *c, dsi_guide_tool *tools)
{
    size_t n = 0;
    bool ok = true;
    for (size_t i = 0; i < json_array_size(r->tools) && ok; ++i) {
        dsi_guide_tool one = {0};
        ok = read_tool(r, json_array_get(r->tools, i), &one);
        if (ok && (c->name == NULL || strcmp(c->name, one.name) == 0)) {
            tools[n++] = one;
        } else {
            free((void *)(uintptr_t)one.parameters);
        }
    }
    if (ok && n == 0) {
        ok = api_wrong(r, "tool_choice", "the name of one of the tools");
    }
    if (ok && c->none) { /* the model does not see them */
        api_ignore(r->ignored, "tools");
        if (r->parallel != NULL) {
            api_ignore(r->ignored, "parallel_tool_calls");
        }
        r->tools = NULL;
    }
    ok = ok && (c->none || make_guide(r, tools, n, c));
    for (size_t i = 0; i < n; ++i) {
        free((void *)(uintptr_t)tools[i].parameters);
    }
    return ok;
}

bool api_take_tools(api_reader *r)
{
    choice_of_tool c = {0};
    const size_t n = json_array_size(r->tools);
    if (!read_choice(r, &c)) {
        return false;
    }
    if (r->tools != NULL && (!json_is_array(r->tools) || n > DSI_GUIDE_TOOLS)) {
        return api_wrong(r, "tools", "an array of at most 128 functions");
    }
    if (n == 0) {
        r->tools = NULL;
        return (!c.forced || api_wrong(r, "tool_choice", "tools beside it")) &&
               (r->parallel == NULL || api_wrong(r, "parallel_tool_calls", "tools beside it"));
    }
    if (r->f->calls == NULL && !c.none) {
        return api_unsupported(r, "tools", "the model's chat template has no place for tools");
    }
    if (r->j->guide != NULL && !c.none) {
        return api_unsupported(r, "tools",
                               "not possible beside response_format and "
                               "structured_outputs");
    }
    dsi_guide_tool *tools = calloc(n, sizeof *tools);
    const bool ok = tools != NULL
                        ? read_all(r, &c, tools)
                        : api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
    free(tools);
    return ok;
}

/* ---- messages ---- */
/* Whether a call has no other members than these. */
static bool is_call(json_t *call)
{
    json_t *type = json_object_get(call, "type");
    const char *name = json_string_value(type);
    return (type == NULL || (name != NULL && strcmp(name, "function") == 0)) &&
           json_object_size(call) == (type == NULL ? 2 : 3) &&
           json_object_size(json_object_get(call, "function")) == 2;
}

/* Arguments come as text; templates want them as values. */
static bool read_call(api_reader *r, json_t *call)
{
    json_t *function = json_object_get(call, "function");
    json_t *arguments = json_object_get(function, "arguments");
    if (json_object_get(call, "index") != NULL) { /* of a stream's answer that comes back */
        api_ignore(r->ignored, "messages.tool_calls.index");
        (void)json_object_del(call, "index");
    }
    const char *text = json_string_value(arguments);
    json_t *value = text != NULL ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!is_call(call) || !json_is_string(json_object_get(call, "id")) || !json_is_object(value) ||
        !api_is_name(json_string_value(json_object_get(function, "name")))) {
        json_decref(value);
        return api_wrong(
            r, "messages",
            "tool_calls of {\"id\": …, \"type\": \"function\", \"function\": {\"name\": "
            "…, \"arguments\": a JSON object as text}}");
    }
    return json_object_set_new(function, "arguments", value) == 0;
}

bool api_check_calls(api_reader *r, json_t *message)
{
    json_t *calls = json_object_get(message, "tool_calls");
    const bool answers = json_object_get(message, "tool_call_id") != NULL;
    const bool of_tool = strcmp(json_string_value(json_object_get(message, "role")), "tool") == 0;
    if ((calls != NULL || of_tool) && r->f->calls == NULL) {
        return api_unsupported(r, "messages", "the model's chat template has no place for tools");
    }
    if (of_tool != answers ||
        (of_tool && !json_is_string(json_object_get(message, "tool_call_id")))) {
        return api_wrong(r, "messages", "a tool_call_id in messages of tools, and there alone");
    }
    if (calls == NULL) {
        return true;
    }
    if (!json_is_array(calls) || json_array_size(calls) == 0 ||
        strcmp(json_string_value(json_object_get(message, "role")), "assistant") != 0) {
        return api_wrong(r, "messages", "tool_calls of the assistant, an array");
    }
    for (size_t i = 0; i < json_array_size(calls); ++i) {
        if (!read_call(r, json_array_get(calls, i))) {
            return false;
        }
    }
    json_t *content = json_object_get(message, "content");
    if (content == NULL || json_is_null(content)) {
        (void)json_object_set_new(message, "content", json_string(""));
    }
    return true;
}
