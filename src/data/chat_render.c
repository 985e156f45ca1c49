/* SPDX-License-Identifier: Apache-2.0 */
/* Chats to text: a row's parts as the template's variables, as transformers' apply_chat_template
 * passes them. See chat.h.
 *
 * A chat is const here: any thread.
 */
#include "data/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status wrong(char *error, size_t error_size, const char *what)
{
    (void)snprintf(error, error_size, "%s", what);
    return DS_ERR_FORMAT;
}

static bool is_list(const json_t *json)
{
    return json == NULL || json_is_null(json) || json_is_array(json);
}

/* A message without its null members, its reasoning under the names that templates read. */
static json_t *message_of(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL;
    json_t *out = json_object();
    const char *key;
    json_t *value;
    for (size_t i = 0; i < 3 && (reasoning == NULL || json_is_null(reasoning)); ++i) {
        reasoning = json_object_get(message, names[i]);
    }
    reasoning = json_is_null(reasoning) ? NULL : reasoning;
    const json_t *thinking = json_object_get(message, "thinking");
    int bad = 0;
    if (reasoning != NULL) { /* stands first, with the message's own value when it has one */
        bad |= json_object_set(out, "thinking",
                               thinking != NULL && !json_is_null(thinking)
                                   ? (json_t *)(uintptr_t)thinking
                                   : reasoning);
    }
    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        if (!json_is_null(value)) {
            bad |= json_object_set(out, key, value);
        }
    }
    if (reasoning != NULL) {
        bad |= json_object_set(out, "reasoning_content", reasoning);
    }
    if (bad != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static json_t *messages_of(const json_t *messages)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(messages); ++i) {
        if (json_array_append_new(out, message_of(json_array_get(messages, i))) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Objects in a list, under a name of the row; null when there is none. */
static ds_status set_list(json_t *variables, const json_t *row, const char *name, char *error,
                          size_t error_size)
{
    json_t *list = json_object_get(row, name);
    char what[96];
    for (size_t i = 0; i < json_array_size(list); ++i) {
        if (!json_is_object(json_array_get(list, i))) {
            (void)snprintf(what, sizeof what, "\"%s\"[%zu] must be an object", name, i);
            return wrong(error, error_size, what);
        }
    }
    if (!is_list(list)) {
        (void)snprintf(what, sizeof what, "\"%s\" must be a list", name);
        return wrong(error, error_size, what);
    }
    return json_object_set_new(variables, name, list != NULL ? json_incref(list) : json_null()) == 0
               ? DS_OK
               : DS_ERR_NOMEM;
}

static ds_status set_kwargs(json_t *variables, const json_t *row, char *error, size_t error_size)
{
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt",
                                      "continue_final_message"};
    const json_t *kwargs = json_object_get(row, "chat_template_kwargs");
    if (kwargs != NULL && !json_is_null(kwargs) && !json_is_object(kwargs)) {
        return wrong(error, error_size, "\"chat_template_kwargs\" must be an object");
    }
    for (size_t i = 0; i < sizeof own / sizeof own[0]; ++i) {
        if (json_object_get(kwargs, own[i]) != NULL) {
            (void)snprintf(error, error_size, "\"chat_template_kwargs\" must not set \"%s\"",
                           own[i]);
            return DS_ERR_FORMAT;
        }
    }
    return kwargs == NULL || json_is_null(kwargs) ||
                   json_object_update(variables, (json_t *)(uintptr_t)kwargs) == 0
               ? DS_OK
               : DS_ERR_NOMEM;
}

static ds_status fill_variables(const ds_chat *chat, const json_t *row, uint32_t flags,
                                json_t *variables, char *error, size_t error_size)
{
    const json_t *messages = json_object_get(row, "messages");
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return wrong(error, error_size, "a chat without messages");
    }
    for (size_t i = 0; i < json_array_size(messages); ++i) {
        if (!json_is_object(json_array_get(messages, i))) {
            return wrong(error, error_size, "a message that is no object");
        }
    }
    if (json_object_update(variables, chat->tokens) != 0) {
        return DS_ERR_NOMEM;
    }
    DS_TRY(set_kwargs(variables, row, error, error_size));
    DS_TRY(set_list(variables, row, "tools", error, error_size));
    DS_TRY(set_list(variables, row, "documents", error, error_size));
    const bool prompt = (flags & DS_CHAT_GENERATION_PROMPT) != 0;
    if (((flags & DS_CHAT_NO_THINKING) != 0 &&
         json_object_set_new(variables, "enable_thinking", json_false()) != 0) ||
        json_object_set_new(variables, "add_generation_prompt", json_boolean(prompt)) != 0 ||
        json_object_set_new(variables, "messages", messages_of(messages)) != 0) {
        return DS_ERR_NOMEM;
    }
    return DS_OK;
}

const dsi_jinja *dsi_chat_template_for(const ds_chat *chat, const json_t *row)
{
    const json_t *tools = json_object_get(row, "tools");
    const bool with_tools = tools != NULL && !json_is_null(tools);
    return with_tools && chat->with_tools != NULL ? chat->with_tools : chat->plain;
}

/* Renders, and finds the spans when they are asked for. */
static ds_status render(const ds_chat *chat, const dsi_jinja *template, json_t *variables,
                        const uint8_t *counts, uint32_t flags, ds_chat_text *text_out, char *error,
                        size_t error_size)
{
    char why[DSI_JINJA_ERROR];
    dsi_jinja_result result;
    ds_chat_span *spans = NULL;
    size_t n_spans = 0;
    ds_status status = dsi_jinja_render(template, variables, &result, why, sizeof why);
    if (status < 0) {
        (void)snprintf(error, error_size, "the chat template %.60s: %s", chat->name, why);
        return status;
    }
    if (flags & DS_CHAT_SPANS) {
        status = dsi_chat_find_spans(template, variables, counts, &result, &spans, &n_spans, why,
                                     sizeof why);
    }
    if (status < 0) {
        (void)snprintf(error, error_size, "the chat template %.60s: %s", chat->name, why);
    } else {
        *text_out = (ds_chat_text){
            .text = result.out.data, .size = result.out.size, .spans = spans, .n_spans = n_spans};
        result.out = dsi_buf_make(0); /* moved */
    }
    dsi_jinja_result_free(&result);
    return status;
}

ds_status dsi_chat_render_row(const ds_chat *chat, const json_t *row, const uint8_t *counts,
                              uint32_t flags, ds_chat_text *text_out, char *error,
                              size_t error_size)
{
    json_t *variables = json_object();
    const dsi_jinja *template = dsi_chat_template_for(chat, row);
    (void)snprintf(error, error_size, "no memory to render a chat");
    if (variables == NULL) {
        return DS_ERR_NOMEM;
    }
    ds_status status = fill_variables(chat, row, flags, variables, error, error_size);
    if (status >= 0 && template == NULL) {
        status = wrong(error, error_size,
                       "the tokenizer has several chat templates and none is the default");
    }
    if (status >= 0) {
        status = render(chat, template, variables, counts, flags, text_out, error, error_size);
    }
    json_decref(variables);
    return status;
}

ds_status ds_chat_render_json(const ds_chat *chat, const char *json, size_t n, uint32_t flags,
                              ds_chat_text *text_out)
{
    char error[DSI_CHAT_ERROR];
    json_error_t wrong_at;
    json_t *row = json_loadb(json, n, JSON_ALLOW_NUL, &wrong_at);
    if (!json_is_object(row)) {
        json_decref(row);
        return ds_fail(chat->ctx, DS_ERR_FORMAT, "a chat must be a JSON object: %s",
                       row == NULL ? wrong_at.text : "it is another value");
    }
    const ds_status status =
        dsi_chat_render_row(chat, row, NULL, flags, text_out, error, sizeof error);
    json_decref(row);
    return status < 0 ? ds_fail(chat->ctx, status, "%s", error) : status;
}

ds_status ds_chat_render(const ds_chat *chat, const ds_chat_message *messages, size_t n_messages,
                         uint32_t flags, ds_chat_text *text_out)
{
    char error[DSI_CHAT_ERROR] = "a message that is not UTF-8, or no memory";
    ds_status status = DS_ERR_FORMAT;
    json_t *list = json_array();
    bool fine = list != NULL;
    for (size_t i = 0; i < n_messages && fine; ++i) {
        const ds_chat_message *m = &messages[i];
        json_t *message =
            json_pack("{s:s, s:o}", "role", m->role, "content", json_stringn_nocheck("", 0));
        fine = message != NULL &&
               json_object_set_new(message, "content", json_stringn(m->content, m->content_size)) ==
                   0 &&
               json_array_append(list, message) == 0;
        json_decref(message);
    }
    json_t *row = fine ? json_pack("{s:O}", "messages", list) : NULL;
    json_decref(list);
    if (row != NULL) {
        status = dsi_chat_render_row(chat, row, NULL, flags, text_out, error, sizeof error);
        json_decref(row);
    }
    return status < 0 ? ds_fail(chat->ctx, status, "%s", error) : status;
}

void ds_chat_text_free(ds_chat_text *text)
{
    free((void *)(uintptr_t)text->text);
    free((void *)(uintptr_t)text->spans);
    *text = (ds_chat_text){0};
}
