/* SPDX-License-Identifier: Apache-2.0 */
/* Chats: lists of messages and what stands beside them for the template. See schema.h. */
#include "data/schema/schema.h"
#include "io/json_load.h"

#include <stdlib.h>
#include <string.h>

bool dsi_schema_nested(const dsi_schema_row *r, const char *name, const json_t *value,
                       json_t **value_out)
{
    json_error_t error;
    const char *text = json_string_value(value);
    *value_out = NULL;
    if (value == NULL || json_is_null(value) || (text != NULL && *text == '\0')) {
        return true;
    }
    if (text == NULL) {
        *value_out = json_incref((json_t *)(uintptr_t)value);
        return true;
    }
    *value_out = dsi_json_parse(text, json_string_length(value), JSON_ALLOW_NUL, &error);
    return *value_out != NULL ||
           dsi_schema_refuse(r, DS_ERR_FORMAT,
                             "%s is a text that is no JSON: its line %d, column %d: %s", name,
                             error.line, error.column, error.text);
}

/* ---- lists of messages ---- */

static bool read_list(const dsi_schema_row *r, const dsi_jinja *template, const char *name,
                      const json_t *list, json_t *out, uint8_t *counts)
{
    for (size_t i = 0; i < json_array_size(list); ++i) {
        json_t *message = dsi_schema_message(r, template, name, i, json_array_get(list, i),
                                             counts != NULL ? &counts[i] : NULL);
        if (message == NULL) {
            return false;
        }
        if (json_array_append_new(out, message) != 0) {
            return dsi_schema_no_memory(r);
        }
    }
    return true;
}

json_t *dsi_schema_messages(const dsi_schema_row *r, const dsi_form *form, const char *field,
                            uint8_t **counts_out)
{
    char column[DSI_COLUMN_NAME];
    const char *name = dsi_columns_name(r->params, field, column);
    const dsi_jinja *template = dsi_chat_template_for(r->params->chat, form->context);
    json_t *list = NULL;
    if (!dsi_schema_nested(r, name, dsi_schema_field(r, field), &list)) {
        return NULL;
    }
    if (!json_is_array(list) || json_array_size(list) == 0) {
        (void)dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" must be a list of messages; found %s",
                                name, dsi_schema_kind(list));
        json_decref(list);
        return NULL;
    }
    json_t *out = json_array();
    uint8_t *counts = calloc(json_array_size(list) + 1, 1); /* a system turn may be put before */
    const bool fine = out != NULL && counts != NULL ? read_list(r, template, name, list, out,
                                                                counts_out != NULL ? counts : NULL)
                                                    : dsi_schema_no_memory(r);
    json_decref(list);
    if (!fine || counts_out == NULL) {
        free(counts);
    } else {
        *counts_out = counts;
    }
    if (!fine) {
        json_decref(out);
        return NULL;
    }
    return out;
}

/* ---- what stands beside the messages ---- */

/* The objects of a list, which may be JSON texts too. */
static bool read_objects(const dsi_schema_row *r, const char *name, const json_t *list, json_t *out)
{
    for (size_t i = 0; i < json_array_size(list); ++i) {
        json_t *item = NULL;
        if (!dsi_schema_nested(r, name, json_array_get(list, i), &item)) {
            return false;
        }
        if (!json_is_object(item)) {
            json_decref(item);
            return dsi_schema_refuse(r, DS_ERR_FORMAT, "%s[%zu] must be an object; found %s", name,
                                     i, dsi_schema_kind(json_array_get(list, i)));
        }
        if (json_array_append_new(out, item) != 0) {
            return dsi_schema_no_memory(r);
        }
    }
    return true;
}

/* A list of objects, or an object, into the context. */
static bool read_beside(const dsi_schema_row *r, const char *field, bool is_list, json_t *context)
{
    char column[DSI_COLUMN_NAME];
    const char *name = dsi_columns_name(r->params, field, column);
    json_t *value = NULL;
    if (!dsi_schema_nested(r, name, dsi_schema_field(r, field), &value) || value == NULL) {
        return r->line->status >= 0;
    }
    json_t *read = is_list ? json_array() : json_incref(value);
    bool fine = false;
    if (is_list ? !json_is_array(value) : !json_is_object(value)) {
        (void)dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" must be %s; found %s", name,
                                is_list ? "a list" : "an object", dsi_schema_kind(value));
    } else if (!is_list || read_objects(r, name, value, read)) {
        fine = json_object_set(context, field, read) == 0 || dsi_schema_no_memory(r);
    }
    json_decref(read);
    json_decref(value);
    return fine;
}

bool dsi_schema_context(const dsi_schema_row *r, dsi_form *form)
{
    if (r->params->chat == NULL) {
        return dsi_schema_refuse(r, DS_ERR_ARG,
                                 "messages need a chat template, and the tokenizer has none: give "
                                 "--chat_template, such as chatml");
    }
    form->context = json_object();
    return read_beside(r, "tools", true, form->context) &&
           read_beside(r, "documents", true, form->context) &&
           read_beside(r, "chat_template_kwargs", false, form->context) &&
           dsi_schema_lost_context(r, dsi_chat_template_for(r->params->chat, form->context),
                                   form->context);
}

/* A "system" beside the messages stands before them, unless they begin with one. */
static bool put_system(const dsi_schema_row *r, dsi_form *form)
{
    const json_t *system = dsi_schema_field(r, "system");
    const json_t *first = json_object_get(json_array_get(form->answer, 0), "role");
    const size_t n = json_array_size(form->answer);
    char column[DSI_COLUMN_NAME];
    const char *name = dsi_columns_name(r->params, "system", column);
    if (system == NULL || (json_is_string(system) && json_string_length(system) == 0)) {
        return true;
    }
    if (!json_is_string(system)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" must be a string; found %s", name,
                                 dsi_schema_kind(system));
    }
    if (strcmp(json_string_value(first), "system") == 0) {
        dsi_schema_note(r, "beside a message of the role system ", name);
        return true;
    }
    memmove(form->counts + 1, form->counts, n);
    form->counts[0] = 0;
    return json_array_insert_new(form->answer, 0,
                                 json_pack("{s:s, s:O}", "role", "system", "content", system)) ==
               0 ||
           dsi_schema_no_memory(r);
}

bool dsi_schema_chat(const dsi_schema_row *r, dsi_form *form)
{
    const char *field = dsi_schema_field(r, "messages") != NULL ? "messages" : "conversations";
    if (!dsi_schema_context(r, form)) {
        return false;
    }
    form->answer = dsi_schema_messages(r, form, field, &form->counts);
    return form->answer != NULL && put_system(r, form);
}
