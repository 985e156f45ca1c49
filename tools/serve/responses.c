/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses: its body as that of a chat, and a chat's answer as its object and events. Nothing
 * is stored. See front.h.
 */
#include "front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the body ---- */
typedef struct reader {
    json_t *chat;   /* what it becomes */
    json_t *echoed; /* what the answer repeats */
    dsi_buf *ignored;
    api_error *e;
} reader;

static bool wrong(reader *r, const char *name, const char *expected)
{
    return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s: expected %s", name, expected);
}

/* How many of an object's members are those of an answer that comes back, without effect here. */
static size_t count_returned(reader *r, const char *of, json_t *object, const char *const *members)
{
    char name[64];
    size_t n = 0;
    for (; *members != NULL; ++members) {
        if (json_object_get(object, *members) != NULL) {
            (void)snprintf(name, sizeof name, "%s.%s", of, *members);
            api_ignore(r->ignored, name);
            ++n;
        }
    }
    return n;
}

/* Parts {"type": "input_text" or "output_text", "text": …} as those of a chat; a new reference. */
static json_t *read_parts(reader *r, json_t *parts)
{
    static const char *const returned[] = {"annotations", "logprobs", NULL};
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(parts); ++i) {
        json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(part, "text");
        if (type == NULL || !json_is_string(text) ||
            (strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0) ||
            json_object_size(part) != 2 + count_returned(r, "input.content", part, returned)) {
            json_decref(all);
            return NULL;
        }
        (void)json_array_append_new(all, json_pack("{s:s,s:O}", "type", "text", "text", text));
    }
    return all;
}

static bool add_message(reader *r, json_t *messages, json_t *item)
{
    static const char *const known[] = {"type", "role", "content"};
    static const char *const returned[] = {"id", "status", NULL};
    const char *type = json_string_value(json_object_get(item, "type"));
    json_t *content = json_object_get(item, "content");
    json_t *role = json_object_get(item, "role");
    size_t n_known = count_returned(r, "input", item, returned);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        n_known += json_object_get(item, known[i]) != NULL;
    }
    content = json_is_array(content) ? read_parts(r, content) : json_incref(content);
    if ((json_object_get(item, "type") != NULL && (type == NULL || strcmp(type, "message") != 0)) ||
        n_known != json_object_size(item) || !json_is_string(role) || content == NULL) {
        json_decref(content);
        return wrong(r, "input",
                     "a text, or messages with role and content of texts; other items "
                     "are not supported");
    }
    return json_array_append_new(messages,
                                 json_pack("{s:O,s:o}", "role", role, "content", content)) == 0;
}

static bool read_input(reader *r, json_t *body)
{
    json_t *instructions = json_object_get(body, "instructions");
    json_t *input = json_object_get(body, "input");
    json_t *messages = json_array();
    (void)json_object_set_new(r->chat, "messages", messages);
    if (json_is_string(instructions)) {
        (void)json_array_append_new(
            messages, json_pack("{s:s,s:O}", "role", "system", "content", instructions));
    } else if (instructions != NULL && !json_is_null(instructions)) {
        return wrong(r, "instructions", "a text");
    }
    if (json_is_string(input)) {
        return json_array_append_new(messages,
                                     json_pack("{s:s,s:O}", "role", "user", "content", input)) == 0;
    }
    if (!json_is_array(input) || json_array_size(input) == 0) {
        return wrong(r, "input", "a text, or an array of messages");
    }
    for (size_t i = 0; i < json_array_size(input); ++i) {
        if (!add_message(r, messages, json_array_get(input, i))) {
            return false;
        }
    }
    return true;
}

/* {"format": …}, whose schema stands beside its type. */
static bool read_text(reader *r, json_t *v)
{
    json_t *format = json_object_get(v, "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type == NULL || json_object_size(v) != 1) {
        return wrong(r, "text", "{\"format\": {\"type\": text, json_object or json_schema, …}}");
    }
    if (strcmp(type, "json_schema") != 0) {
        return json_object_set(r->chat, "response_format", format) == 0;
    }
    json_t *schema = json_copy(format);
    (void)json_object_del(schema, "type");
    return json_object_set_new(
               r->chat, "response_format",
               json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", schema)) == 0;
}

typedef enum field_kind { SAME, RENAMED, APART, IGNORED, REFUSED } field_kind;

static const struct {
    const char *name;
    field_kind kind;
    const char *other; /* its name in a chat; or what to do instead */
} fields[] = {
    {"model", SAME, "model"},
    {"temperature", SAME, "temperature"},
    {"top_p", SAME, "top_p"},
    {"stream", SAME, "stream"},
    {"max_output_tokens", RENAMED, "max_completion_tokens"},
    {"input", APART, NULL},
    {"instructions", APART, NULL},
    {"text", APART, NULL},
    {"user", IGNORED, NULL},
    {"metadata", IGNORED, NULL},
    {"store", IGNORED, NULL},
    {"service_tier", IGNORED, NULL},
    {"prompt_cache_key", IGNORED, NULL},
    {"safety_identifier", IGNORED, NULL},
    {"previous_response_id", REFUSED, "nothing is stored; send the messages"},
    {"tools", REFUSED, "not supported here; /v1/chat/completions has them"},
    {"tool_choice", REFUSED, "not supported here; /v1/chat/completions has it"},
};

static bool read_field(reader *r, const char *name, json_t *value)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
        if (strcmp(fields[i].name, name) != 0 || json_is_null(value)) {
            continue;
        }
        switch (fields[i].kind) {
        case SAME:
        case RENAMED:
            return json_object_set(r->chat, fields[i].other, value) == 0;
        case APART:
            return strcmp(name, "text") != 0 || read_text(r, value);
        case IGNORED:
            api_ignore(r->ignored, name);
            return true;
        default:
            return (json_is_array(value) && json_array_size(value) == 0) ||
                   api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unsupported", name, "%s: %s", name,
                            fields[i].other);
        }
    }
    return json_is_null(value) || api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", name,
                                           "%.60s is no field that this server knows", name);
}

/* A member of the answer: as it was asked, else what holds without it. */
static void echo(dsi_buf *out, json_t *body, const char *name, const char *otherwise)
{
    json_t *value = json_object_get(body, name);
    char *text = value != NULL
                     ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))
                     : NULL;
    dsi_buf_printf(out, ",\"%s\":%s", name, text != NULL ? text : otherwise);
    free(text);
}

json_t *response_body(json_t *body, dsi_buf *echoed, dsi_buf *ignored, api_error *e)
{
    reader r = {.chat = json_object(), .ignored = ignored, .e = e};
    const char *key = NULL;
    json_t *value = NULL;
    bool ok = r.chat != NULL;
    json_object_foreach(body, key, value)
    {
        ok = ok && read_field(&r, key, value);
    }
    if (!ok || !read_input(&r, body)) {
        json_decref(r.chat);
        return NULL;
    }
    echo(echoed, body, "instructions", "null");
    echo(echoed, body, "max_output_tokens", "null");
    echo(echoed, body, "temperature", "1.0");
    echo(echoed, body, "top_p", "1.0");
    echo(echoed, body, "text", "{\"format\":{\"type\":\"text\"}}");
    echo(echoed, body, "metadata", "{}");
    return r.chat;
}

/* ---- the answer ---- */
static void put_message(job *j, dsi_buf *out, const char *status, bool with_text)
{
    const choice *c = j->choices;
    dsi_buf_printf(
        out,
        "{\"type\":\"message\",\"id\":\"msg_%s\",\"status\":\"%s\",\"role\":\"assistant\","
        "\"content\":[",
        j->id, status);
    if (with_text) {
        dsi_buf_puts(out,
                     "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":\"");
        dsi_buf_json(out, dsi_buf_text(&c->text), c->text.size);
        dsi_buf_puts(out, "\"}");
    }
    dsi_buf_puts(out, "]}");
}

static bool is_cut(const job *j)
{
    return j->choices[0].finish != NULL && strcmp(j->choices[0].finish, "length") == 0;
}

static void put_response(job *j, dsi_buf *out, bool ended)
{
    const choice *c = j->choices;
    const char *status = !ended ? "in_progress" : is_cut(j) ? "incomplete" : "completed";
    dsi_buf_printf(out,
                   "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
                   "\"error\":null,\"incomplete_details\":%s,\"model\":\"",
                   j->id, (long long)j->created, status,
                   ended && is_cut(j) ? "{\"reason\":\"max_output_tokens\"}" : "null");
    const char *model = j->model != NULL ? j->model : j->f->name;
    dsi_buf_json(out, model, strlen(model));
    dsi_buf_puts(out, "\",\"output\":[");
    if (ended) {
        put_message(j, out, status, true);
    }
    dsi_buf_printf(out,
                   "],\"parallel_tool_calls\":false,\"previous_response_id\":null,\"store\":false,"
                   "\"tool_choice\":\"none\",\"tools\":[],\"truncation\":\"disabled\"%s,\"usage\":",
                   dsi_buf_text(&j->echoed));
    if (!ended) {
        dsi_buf_puts(out, "null}");
        return;
    }
    dsi_buf_printf(out,
                   "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%lld},"
                   "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":0},"
                   "\"total_tokens\":%lld}}",
                   c->n_ids, (long long)c->n_cached, (long long)c->n_new,
                   (long long)c->n_new + (long long)c->n_ids);
}

/* The begin of an event, up to its own members. */
static void put_event(job *j, const char *type)
{
    dsi_buf_printf(&j->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", type,
                   type, (long long)j->n_events++);
}

static void put_state(job *j, const char *type, bool ended)
{
    put_event(j, type);
    dsi_buf_puts(&j->out, ",\"response\":");
    put_response(j, &j->out, ended);
    dsi_buf_puts(&j->out, "}\n\n");
}

static void put_item(job *j, const char *type, bool ended)
{
    put_event(j, type);
    dsi_buf_puts(&j->out, ",\"output_index\":0,\"item\":");
    put_message(j, &j->out, !ended ? "in_progress" : is_cut(j) ? "incomplete" : "completed", ended);
    dsi_buf_puts(&j->out, "}\n\n");
}

/* An event of the text, with a member of n bytes. */
static void put_text_event(job *j, const char *type, const char *member, const char *text, size_t n)
{
    put_event(j, type);
    dsi_buf_printf(&j->out, ",\"item_id\":\"msg_%s\",\"output_index\":0,\"content_index\":0,",
                   j->id);
    if (member == NULL) {
        dsi_buf_puts(&j->out,
                     "\"part\":{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],"
                     "\"text\":\"");
    } else {
        dsi_buf_printf(&j->out, "\"logprobs\":[],\"%s\":\"", member);
    }
    dsi_buf_json(&j->out, text, n);
    dsi_buf_puts(&j->out, member == NULL ? "\"}}\n\n" : "\"}\n\n");
}

void response_begin(job *j)
{
    put_state(j, "response.created", false);
    put_state(j, "response.in_progress", false);
    put_item(j, "response.output_item.added", false);
    put_text_event(j, "response.content_part.added", NULL, "", 0);
}

void response_delta(job *j, const char *text, size_t n)
{
    put_text_event(j, "response.output_text.delta", "delta", text, n);
}

void response_end(job *j)
{
    const dsi_buf *text = &j->choices[0].text;
    if (!j->streams) {
        put_response(j, &j->out, true);
        dsi_buf_putc(&j->out, '\n');
        return;
    }
    put_text_event(j, "response.output_text.done", "text", dsi_buf_text(text), text->size);
    put_text_event(j, "response.content_part.done", NULL, dsi_buf_text(text), text->size);
    put_item(j, "response.output_item.done", true);
    put_state(j, is_cut(j) ? "response.incomplete" : "response.completed", true);
}

void response_fail(job *j, const api_error *e)
{
    put_event(j, "error");
    dsi_buf_printf(&j->out, ",\"code\":\"%s\",\"param\":null,\"message\":", e->type);
    put_clean(&j->out, e->message, strlen(e->message));
    dsi_buf_puts(&j->out, "}\n\n");
}
