/* SPDX-License-Identifier: Apache-2.0 */
/* One message, of role and content or of from and value (ShareGPT), as chat templates read it, and
 * whether it counts. See schema.h. */
#include "data/schema/schema.h"

#include <stdio.h>
#include <string.h>

enum { WHERE = 160 };

/* What ShareGPT's "from" says, as LLaMA-Factory and axolotl read it. */
static const char *role_of_from(const char *from)
{
    static const char *const roles[][2] = {
        {"human", "user"},    {"user", "user"}, {"gpt", "assistant"},   {"assistant", "assistant"},
        {"system", "system"}, {"tool", "tool"}, {"observation", "tool"}};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; ++i) {
        if (strcmp(from, roles[i][0]) == 0) {
            return roles[i][1];
        }
    }
    return strcmp(from, "function_call") == 0 ? "assistant" : NULL;
}

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* What is being read, for errors. */
typedef struct place {
    const dsi_schema_row *r;
    const dsi_jinja *template; /* NULL: none is the default */
    const char *list;          /* messages */
    size_t index;              /* 2 */
    char where[WHERE];         /* messages[2] (role "user"): */
} place;

static bool check_part(const place *p, size_t i, const json_t *part)
{
    const json_t *type = member(part, "type");
    const json_t *text = member(part, "text");
    if (json_is_string(type) && strcmp(json_string_value(type), "text") != 0) {
        return dsi_schema_refuse(p->r, DS_ERR_UNSUPPORTED,
                                 "%scontent[%zu] is of the type \"%.40s\", and only text is "
                                 "supported",
                                 p->where, i, json_string_value(type));
    }
    return (json_is_string(type) && json_is_string(text)) ||
           dsi_schema_refuse(p->r, DS_ERR_FORMAT,
                             "%scontent[%zu] must be {\"type\": \"text\", \"text\": \"…\"}; found "
                             "%s",
                             p->where, i, dsi_schema_kind(part));
}

/* A template that never says "text" cannot read parts, and would print them as Python's lists. */
static json_t *joined(const json_t *parts)
{
    dsi_buf text = dsi_buf_make(DSI_ROW_TEXT_MAX);
    for (size_t i = 0; i < json_array_size(parts); ++i) {
        const json_t *part = json_object_get(json_array_get(parts, i), "text");
        dsi_buf_append(&text, json_string_value(part), json_string_length(part));
    }
    json_t *all = text.failed ? NULL : json_stringn_nocheck(dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    return all;
}

/* *content_out NULL: there is none. What a tool gives may be any object. */
static bool read_content(const place *p, const char *role, const json_t *content,
                         json_t **content_out)
{
    const bool parts = json_is_array(content);
    *content_out = NULL;
    if (content == NULL) {
        return true;
    }
    if (!parts && !json_is_string(content) &&
        !(json_is_object(content) && strcmp(role, "tool") == 0)) {
        return dsi_schema_refuse(p->r, DS_ERR_FORMAT,
                                 "%scontent must be a string, a list of parts or null; found %s",
                                 p->where, dsi_schema_kind(content));
    }
    for (size_t i = 0; parts && i < json_array_size(content); ++i) {
        if (!check_part(p, i, json_array_get(content, i))) {
            return false;
        }
    }
    const bool joins = parts && p->template != NULL && !dsi_jinja_mentions(p->template, "text");
    *content_out = joins ? joined(content) : json_incref((json_t *)(uintptr_t)content);
    return *content_out != NULL || dsi_schema_no_memory(p->r);
}

/* A member that may be JSON text. */
static bool read_nested(const place *p, const char *key, const json_t *value, json_t **value_out)
{
    char name[WHERE];
    (void)snprintf(name, sizeof name, "%s[%zu].%s", p->list, p->index, key);
    return dsi_schema_nested(p->r, name, value, value_out);
}

/* One call of a function_call turn: {"name", "arguments"} as templates read calls. */
static json_t *call_of(const place *p, const json_t *call)
{
    if (!json_is_string(member(call, "name")) || member(call, "arguments") == NULL) {
        (void)dsi_schema_refuse(p->r, DS_ERR_FORMAT,
                                "%sa call must be {\"name\": \"…\", \"arguments\": {…}}; found %s",
                                p->where, dsi_schema_kind(call));
        return NULL;
    }
    return json_pack("{s:s, s:{s:O, s:O}}", "type", "function", "function", "name",
                     member(call, "name"), "arguments", member(call, "arguments"));
}

/* ShareGPT's turn of the role function_call: its value is a call or a list of calls, as JSON. */
static bool set_calls(const place *p, json_t *message, const json_t *value)
{
    json_t *calls = NULL;
    if (!read_nested(p, "value", value, &calls)) {
        return false;
    }
    const size_t n = json_is_array(calls) ? json_array_size(calls) : 1;
    json_t *list = json_array();
    bool fine = true;
    for (size_t i = 0; i < n && fine; ++i) {
        json_t *call = call_of(p, json_is_array(calls) ? json_array_get(calls, i) : calls);
        fine = call != NULL && json_array_append_new(list, call) == 0;
    }
    json_decref(calls);
    if (!fine) {
        json_decref(list);
        return p->r->line->status < 0 ? false : dsi_schema_no_memory(p->r);
    }
    return (json_object_set_new(message, "tool_calls", list) == 0 &&
            json_object_set_new(message, "content", json_string("")) == 0) ||
           dsi_schema_no_memory(p->r);
}

/* Whether a turn says that it counts: "train" and "training" by true and false, "weight" by 1 and
 * 0; -1: it says nothing, -2: an error. */
static int said_to_count(const place *p, const json_t *message)
{
    static const char *const keys[] = {"train", "training", "weight"};
    int said = -1;
    for (size_t i = 0; i < 3; ++i) {
        const json_t *value = member(message, keys[i]);
        const bool number = i == 2;
        const double x = json_number_value(value);
        if (value == NULL) {
            continue;
        }
        if (number && json_is_number(value) && x != 0.0 && x != 1.0) {
            (void)dsi_schema_refuse(p->r, DS_ERR_UNSUPPORTED,
                                    "%s\"weight\" is %g, and only 0 and 1 are supported: a turn "
                                    "counts in the loss or it does not",
                                    p->where, x);
            return -2;
        }
        if (number ? !json_is_number(value) : !json_is_boolean(value)) {
            (void)dsi_schema_refuse(p->r, DS_ERR_FORMAT, "%s\"%s\" must be %s; found %s", p->where,
                                    keys[i], number ? "0 or 1" : "true or false",
                                    dsi_schema_kind(value));
            return -2;
        }
        const int now = number ? x == 1.0 : json_is_true(value);
        if (said >= 0 && said != now) {
            (void)dsi_schema_refuse(p->r, DS_ERR_FORMAT,
                                    "%s\"%s\" says otherwise than \"train\" or \"training\"",
                                    p->where, keys[i]);
            return -2;
        }
        said = now;
    }
    return said;
}

static bool read_counts(const place *p, const json_t *message, const char *role,
                        uint8_t *counts_out)
{
    const bool assistant = strcmp(role, "assistant") == 0;
    const int said = said_to_count(p, message);
    if (said == -2) {
        return false;
    }
    if (said >= 0 && counts_out == NULL) {
        return dsi_schema_refuse(p->r, DS_ERR_UNSUPPORTED,
                                 "%s\"train\" and \"weight\" choose among the turns of "
                                 "\"messages\"; here the answer counts: take them out",
                                 p->where);
    }
    if (said == 1 && !assistant && member(message, "weight") == NULL) {
        return dsi_schema_refuse(p->r, DS_ERR_UNSUPPORTED,
                                 "%sis to count in the loss, and only turns of the assistant can",
                                 p->where);
    }
    if (counts_out != NULL) {
        *counts_out = assistant && said != 0;
    }
    return true;
}

/* Members that stay as they are; tool_calls may be JSON text. */
static bool copy_members(const place *p, const json_t *message, json_t *out)
{
    static const char *const read[] = {"role",  "content",  "from",   "value",
                                       "train", "training", "weight", NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        json_t *copy = NULL;
        if (dsi_schema_is_one_of(key, read)) {
            continue;
        }
        if (strcmp(key, "tool_calls") != 0) {
            copy = json_incref(value);
        } else if (!read_nested(p, key, value, &copy)) {
            return false;
        }
        if (copy != NULL && json_object_set_new(out, key, copy) != 0) {
            return dsi_schema_no_memory(p->r);
        }
    }
    return true;
}

/* The message's value under one of two names. */
static bool either(const place *p, const json_t *message, const char *key, const char *other,
                   json_t **value_out)
{
    json_t *value = member(message, key);
    *value_out = value != NULL ? value : member(message, other);
    return value == NULL || member(message, other) == NULL ||
           dsi_schema_refuse(p->r, DS_ERR_FORMAT, "%sboth \"%s\" and \"%s\" are there", p->where,
                             key, other);
}

/* Its role as templates name it; NULL on an error. Adds it to p->where. */
static const char *read_role(place *p, const json_t *message)
{
    json_t *given = NULL;
    const size_t n = strlen(p->where);
    if (!either(p, message, "role", "from", &given)) {
        return NULL;
    }
    const bool from = given != NULL && member(message, "role") == NULL;
    const char *key = from ? "from" : "role";
    const char *role = json_string_value(given);
    if (role == NULL) {
        (void)dsi_schema_refuse(p->r, DS_ERR_FORMAT, "%s\"%s\" must be a string; found %s",
                                p->where, key, dsi_schema_kind(given));
        return NULL;
    }
    (void)snprintf(p->where + n - 2, WHERE - n + 2, " (%s \"%.40s\"): ", key, role);
    if (!from) {
        return role;
    }
    const char *mapped = role_of_from(role);
    if (mapped == NULL) {
        (void)dsi_schema_refuse(p->r, DS_ERR_FORMAT,
                                "%s\"from\" must be human, user, gpt, assistant, system, tool, "
                                "function_call or observation",
                                p->where);
    }
    return mapped;
}

static bool fill_message(place *p, const json_t *message, json_t *out, uint8_t *counts_out)
{
    json_t *content = NULL;
    const char *role = read_role(p, message);
    if (role == NULL || !either(p, message, "content", "value", &content) ||
        !read_counts(p, message, role, counts_out)) {
        return false;
    }
    const json_t *from = member(message, "from");
    const bool calls = from != NULL && strcmp(json_string_value(from), "function_call") == 0;
    if (json_object_set_new(out, "role", json_string(role)) != 0) {
        return dsi_schema_no_memory(p->r);
    }
    if (calls) {
        return set_calls(p, out, content) && copy_members(p, message, out);
    }
    json_t *read = NULL;
    return read_content(p, role, content, &read) &&
           (read == NULL || json_object_set_new(out, "content", read) == 0 ||
            dsi_schema_no_memory(p->r)) &&
           copy_members(p, message, out);
}

json_t *dsi_schema_message(const dsi_schema_row *r, const dsi_jinja *template, const char *name,
                           size_t i, const json_t *message, uint8_t *counts_out)
{
    place p = {.r = r, .template = template, .list = name, .index = i};
    (void)snprintf(p.where, WHERE, "%s[%zu]: ", name, i);
    if (!json_is_object(message)) {
        (void)dsi_schema_refuse(r, DS_ERR_FORMAT,
                                "%s[%zu] must be an object with \"role\" and \"content\"; found %s",
                                name, i, dsi_schema_kind(message));
        return NULL;
    }
    json_t *out = json_object();
    if (out == NULL || !fill_message(&p, message, out, counts_out) ||
        !dsi_schema_lost_message(r, template, p.where, out)) {
        json_decref(out);
        return NULL;
    }
    return out;
}
