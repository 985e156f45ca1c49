/* SPDX-License-Identifier: Apache-2.0 */
/* Which schema a row is of, and that nothing of it is dropped in silence. See schema.h. */
#include "data/schema/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors and notices ---- */

bool dsi_schema_refuse(const dsi_schema_row *r, ds_status status, const char *format, ...)
{
    dsi_line *line = r->line;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line->message, sizeof line->message, format, args);
    va_end(args);
    for (char *p = line->message; *p != '\0'; ++p) {
        *p = (unsigned char)*p < 0x20 || *p == 0x7F ? '?' : *p; /* keys and roles of a file */
    }
    line->status = status;
    return false;
}

bool dsi_schema_no_memory(const dsi_schema_row *r)
{
    return dsi_schema_refuse(r, DS_ERR_NOMEM, "no memory for a row");
}

const char *dsi_schema_kind(const json_t *json)
{
    if (json == NULL) {
        return "nothing";
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return json_array_size(json) > 0 ? "a list" : "an empty list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

bool dsi_schema_is_one_of(const char *key, const char *const *names)
{
    for (; *names != NULL; ++names) {
        if (strcmp(key, *names) == 0) {
            return true;
        }
    }
    return false;
}

void dsi_schema_note(const dsi_schema_row *r, const char *whose, const char *key)
{
    dsi_line *line = r->line;
    char text[sizeof line->unread[0]];
    (void)snprintf(text, sizeof text, "%s\"%.24s\"", whose, key);
    for (uint32_t i = 0; i < line->n_unread; ++i) {
        if (strcmp(line->unread[i], text) == 0) {
            return;
        }
    }
    if (line->n_unread < DSI_UNREAD_KEYS) {
        memcpy(line->unread[line->n_unread++], text, sizeof text);
    }
}

bool dsi_schema_is_empty(const json_t *value)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

json_t *dsi_schema_field(const dsi_schema_row *r, const char *field)
{
    json_t *value = json_object_get(r->row, field);
    return json_is_null(value) ? NULL : value;
}

/* ---- schemas ---- */

typedef struct schema_rule {
    dsi_schema schema;
    const char *fields[3]; /* that must be there, NULL at the end */
    const char *read[8];   /* these and others that it reads */
    bool (*reader)(const dsi_schema_row *r, dsi_form *form);
} schema_rule;

#define CONTEXT "tools", "documents", "chat_template_kwargs"

static bool read_text(const dsi_schema_row *r, dsi_form *form)
{
    form->answer = json_incref(dsi_schema_field(r, "text"));
    return true;
}

/* In the order in which errors look at what is there of them. */
static const schema_rule rules[] = {
    {DSI_SCHEMA_CHAT, {"messages"}, {"messages", "system", CONTEXT}, dsi_schema_chat},
    {DSI_SCHEMA_CHAT, {"conversations"}, {"conversations", "system", CONTEXT}, dsi_schema_chat},
    {DSI_SCHEMA_PREFERENCE,
     {"chosen", "rejected"},
     {"prompt", "chosen", "rejected", CONTEXT},
     dsi_schema_preference},
    {DSI_SCHEMA_PAIR, {"prompt", "completion"}, {"prompt", "completion", CONTEXT}, dsi_schema_pair},
    {DSI_SCHEMA_ALPACA,
     {"instruction", "output"},
     {"instruction", "input", "output", "system", "history"},
     dsi_schema_alpaca},
    {DSI_SCHEMA_TEXT, {"text"}, {"text"}, read_text},
};
enum { N_RULES = sizeof rules / sizeof rules[0] };

const char *dsi_schema_name(dsi_schema schema)
{
    static const char *const names[DSI_N_SCHEMAS] = {
        "text",       "prompt-completion",   "messages", "Alpaca",
        "preference", "unpaired preference", "classes"};
    return names[schema];
}

/* Whether the fields are there, each of a kind that it may have. */
static bool fits(const dsi_schema_row *r, const schema_rule *rule)
{
    for (size_t i = 0; rule->fields[i] != NULL; ++i) {
        const json_t *value = dsi_schema_field(r, rule->fields[i]);
        const bool list = json_is_array(value) && rule->schema != DSI_SCHEMA_TEXT &&
                          rule->schema != DSI_SCHEMA_ALPACA;
        const char *text = json_string_value(value);
        const bool list_text = rule->schema == DSI_SCHEMA_CHAT && text != NULL && *text == '[';
        if (!list && !list_text && (rule->schema == DSI_SCHEMA_CHAT || text == NULL)) {
            return false;
        }
    }
    return true;
}

/* Of those that fit: whether nothing is in what it needs. */
static bool is_hollow(const dsi_schema_row *r, const schema_rule *rule)
{
    bool empty = true;
    for (size_t i = 0; rule->fields[i] != NULL; ++i) {
        empty = empty && dsi_schema_is_empty(dsi_schema_field(r, rule->fields[i]));
    }
    return empty;
}

static bool is_mapped(const dsi_schema_row *r, const schema_rule *rule)
{
    for (size_t i = 0; rule->fields[i] != NULL; ++i) {
        if (dsi_columns_maps(r->params, rule->fields[i])) {
            return true;
        }
    }
    return false;
}

/* Those that fit; the hollow ones only when no other does. */
static size_t find_fitting(const dsi_schema_row *r, const schema_rule *fitting[N_RULES])
{
    size_t n = 0;
    for (int hollow = 0; hollow < 2 && n == 0; ++hollow) {
        for (size_t i = 0; i < N_RULES; ++i) {
            if (fits(r, &rules[i]) && is_hollow(r, &rules[i]) == (hollow == 1)) {
                fitting[n++] = &rules[i];
            }
        }
    }
    return n;
}

/* Of those that fit the only one, or the only one of them that --column_map names. NULL: an error,
 * or *none_out. */
static const schema_rule *choose(const dsi_schema_row *r, bool *none_out)
{
    const schema_rule *fitting[N_RULES];
    const schema_rule *mapped = NULL;
    const size_t n = find_fitting(r, fitting);
    size_t n_mapped = 0;
    for (size_t i = 0; i < n; ++i) {
        if (is_mapped(r, fitting[i])) {
            mapped = fitting[i];
            ++n_mapped;
        }
    }
    *none_out = n == 0;
    if (n < 2 || n_mapped == 1) {
        return n == 0 ? NULL : n == 1 ? fitting[0] : mapped;
    }
    char names[2][DSI_COLUMN_NAME];
    (void)dsi_schema_refuse(
        r, DS_ERR_FORMAT,
        "two schemas fit, %s by \"%s\" and %s by \"%s\": choose by --column_map %s=%s or %s=%s",
        dsi_schema_name(fitting[0]->schema),
        dsi_columns_name(r->params, fitting[0]->fields[0], names[0]),
        dsi_schema_name(fitting[1]->schema),
        dsi_columns_name(r->params, fitting[1]->fields[0], names[1]), fitting[0]->fields[0],
        dsi_columns_name(r->params, fitting[0]->fields[0], names[0]), fitting[1]->fields[0],
        dsi_columns_name(r->params, fitting[1]->fields[0], names[1]));
    return NULL;
}

/* ---- rows that fit no schema ---- */

/* Names the keys that are there; null is no value, and counts as none. */
static bool refuse_keys(const dsi_schema_row *r)
{
    enum { SHOWN = 4 };
    char keys[200] = "";
    size_t used = 0;
    size_t shown = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)r->columns, key, value)
    {
        if (shown < SHOWN) {
            used +=
                (size_t)snprintf(keys + used, sizeof keys - used, "%s\"%.20s\"%s",
                                 shown > 0 ? ", " : "", key, json_is_null(value) ? " (null)" : "");
            ++shown;
        }
    }
    return dsi_schema_refuse(
        r, DS_ERR_FORMAT,
        "expected \"text\", \"messages\", \"prompt\" and \"completion\", \"instruction\" and "
        "\"output\", or \"chosen\" and \"rejected\" (--column_map names other columns); found "
        "%s%s%s",
        json_object_size(r->columns) == 0 ? "an empty object" : "the keys ", keys,
        json_object_size(r->columns) > SHOWN ? ", …" : "");
}

/* Says what is missing, or of a wrong kind, of the first schema of which a part is there. */
static bool refuse_part(const dsi_schema_row *r)
{
    for (size_t i = 0; i < N_RULES; ++i) {
        const schema_rule *rule = &rules[i];
        const json_t *one = dsi_schema_field(r, rule->fields[0]);
        const json_t *two = rule->fields[1] != NULL ? dsi_schema_field(r, rule->fields[1]) : NULL;
        char names[2][DSI_COLUMN_NAME];
        const char *name = dsi_columns_name(r->params, rule->fields[0], names[0]);
        if (one == NULL && two == NULL) {
            continue;
        }
        if (rule->fields[1] == NULL) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" must be a %s; found %s", name,
                                     rule->schema == DSI_SCHEMA_TEXT ? "string"
                                                                     : "list of messages",
                                     dsi_schema_kind(one));
        }
        return dsi_schema_refuse(
            r, DS_ERR_FORMAT, "\"%s\" and \"%s\" must both be strings%s; found %s and %s", name,
            dsi_columns_name(r->params, rule->fields[1], names[1]),
            rule->schema == DSI_SCHEMA_ALPACA ? "" : ", or both lists of messages",
            dsi_schema_kind(one), dsi_schema_kind(two));
    }
    return refuse_keys(r);
}

/* ---- keys that nothing reads ---- */

/* Whether another schema reads it, which was not chosen. */
static bool is_of_other(const char *key)
{
    for (size_t i = 0; i < N_RULES; ++i) {
        if (dsi_schema_is_one_of(key, rules[i].fields)) {
            return true;
        }
    }
    return false;
}

/* No part of a row is dropped in silence: of the keys that are not read, those to which trainers
 * give a meaning are refused, others are noted. null is as if the key were not there. */
static bool account_keys(const dsi_schema_row *r, const schema_rule *rule, const dsi_form *form)
{
    static const char *const lost[] = {
        "functions",       "image",  "images", "video",    "videos",
        "audio",           "audios", "chosen", "rejected", "completion_mask",
        "assistant_masks", "weight", "labels", "train",    NULL};
    static const char *const of_chats[] = {CONTEXT, NULL};
    static const char *const references[] = {"ref_chosen_logps", "ref_rejected_logps", NULL};
    const bool chats = form->context != NULL;
    const bool chosen = is_mapped(r, rule);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)r->row, key, value)
    {
        const bool of_chat = dsi_schema_is_one_of(key, of_chats);
        if (dsi_schema_is_empty(value) ||
            (of_chat ? chats : dsi_schema_is_one_of(key, rule->read)) ||
            (form->schema == DSI_SCHEMA_UNPAIRED && strcmp(key, "label") == 0) ||
            (form->schema == DSI_SCHEMA_PREFERENCE && r->params->rows != DS_ROWS_LABELLED &&
             dsi_schema_is_one_of(key, references))) {
            continue;
        }
        if (dsi_columns_maps(r->params, key) && !is_of_other(key)) {
            char column[DSI_COLUMN_NAME];
            return dsi_schema_refuse(
                r, DS_ERR_UNSUPPORTED, "--column_map %s=%s: rows of the schema %s have no \"%s\"",
                key, dsi_columns_name(r->params, key, column), dsi_schema_name(form->schema), key);
        }
        if ((of_chat || dsi_schema_is_one_of(key, lost)) && !(chosen && is_of_other(key))) {
            return dsi_schema_refuse(
                r, DS_ERR_UNSUPPORTED,
                "\"%s\" is not supported here and would be lost: take it out of the row", key);
        }
        dsi_schema_note(r, "", key);
    }
    return true;
}

bool dsi_schema_read(const dsi_schema_row *r, dsi_form *form_out)
{
    bool none = false;
    *form_out = (dsi_form){0};
    if (!json_is_object(r->row)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "a row must be a JSON object; found %s",
                                 dsi_schema_kind(r->row));
    }
    const schema_rule *rule = choose(r, &none);
    if (rule == NULL) {
        return none ? refuse_part(r) : false;
    }
    const bool labelled =
        rule->schema == DSI_SCHEMA_PAIR && json_is_boolean(dsi_schema_field(r, "label"));
    form_out->schema = labelled ? DSI_SCHEMA_UNPAIRED : rule->schema;
    r->line->schema = form_out->schema;
    r->line->sample = rule->schema != DSI_SCHEMA_TEXT;
    r->line->label = labelled && json_is_true(dsi_schema_field(r, "label"));
    return rule->reader(r, form_out) && account_keys(r, rule, form_out);
}

void dsi_form_free(dsi_form *form)
{
    json_decref(form->prompt);
    json_decref(form->answer);
    json_decref(form->rejected);
    json_decref(form->context);
    free(form->counts);
    *form = (dsi_form){0};
}
