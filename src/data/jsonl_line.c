/* One line of a .jsonl: JSON to tokens, with the loss on the answer only. Runs on any thread:
 * errors are texts in the result, not records in the context. */
#include "data/chat_template.h"
#include "data/source.h"
#include "io/json_load.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    const ds_dataset_params *params;
    ds_tokenizer_scratch *scratch;
    dsi_line *line;
} work;

DS_PRINTF(3, 4) static void refuse(work *w, ds_status status, const char *format, ...)
{
    dsi_line *line = w->line;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line->message, sizeof line->message, format, args);
    va_end(args);
    for (char *p = line->message; *p != '\0'; ++p) {
        *p = (unsigned char)*p < 0x20 || *p == 0x7F ? '?' : *p; /* keys and roles of a file */
    }
    line->status = status;
}

static const char *kind_of(const json_t *json)
{
    if (json == NULL) {
        return "nothing";
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
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

static bool is_one_of(const char *key, const char *const *names)
{
    for (; *names != NULL; ++names) {
        if (strcmp(key, *names) == 0) {
            return true;
        }
    }
    return false;
}

static void note_key(dsi_line *line, const char *whose, const char *key)
{
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

/* No part of a line is dropped in silence: of the keys that are not `read`, those to which trainers
 * give a meaning are refused, others are noted. null is as if the key were not there. */
static bool account_keys(work *w, const json_t *row, const char *const *read)
{
    static const char *const lost[] = {"tools",           "documents",       "chat_template_kwargs",
                                       "functions",       "image",           "images",
                                       "video",           "videos",          "audio",
                                       "audios",          "chosen",          "rejected",
                                       "completion_mask", "assistant_masks", "weight",
                                       "labels",          "train",           NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value)
    {
        if (json_is_null(value) || is_one_of(key, read)) {
            continue;
        }
        if (is_one_of(key, lost)) {
            refuse(w, DS_ERR_UNSUPPORTED,
                   "\"%s\" is not supported here and would be lost: take it out of the line", key);
            return false;
        }
        note_key(w->line, "", key);
    }
    return true;
}

/* Appends tokens; `counts` says whether they are in the loss. */
static bool append(work *w, const uint32_t *ids, size_t n, bool counts)
{
    dsi_line *line = w->line;
    uint32_t *grown = realloc(line->ids, (line->n + n + 1) * sizeof *grown);
    if (grown != NULL) {
        line->ids = grown;
    }
    uint8_t *flags = realloc(line->counted, line->n + n + 1);
    if (flags != NULL) {
        line->counted = flags;
    }
    if (grown == NULL || flags == NULL) {
        refuse(w, DS_ERR_NOMEM, "no memory for a line");
        return false;
    }
    if (n > 0) { /* ids may be NULL otherwise */
        memcpy(line->ids + line->n, ids, n * sizeof *ids);
    }
    memset(line->counted + line->n, counts ? 1 : 0, n);
    line->n += n;
    return true;
}

static bool encode(work *w, const char *text, size_t n, uint32_t flags, bool counts)
{
    ds_tokens tokens;
    const ds_status status =
        ds_tokenizer_encode(w->params->tokenizer, w->scratch, text, n, flags, &tokens);
    if (status < 0) {
        refuse(w, status, "the text cannot be tokenized: too long, or no memory");
        return false;
    }
    return append(w, tokens.ids, tokens.n, counts);
}

static bool append_eos(work *w, bool counts)
{
    const int64_t eos = ds_tokenizer_eos_id(w->params->tokenizer);
    const uint32_t id = (uint32_t)eos;
    return eos < 0 || append(w, &id, 1, counts);
}

static void take_text(work *w, const json_t *row, const json_t *text)
{
    static const char *const read[] = {"text", NULL};
    if (account_keys(w, row, read) &&
        encode(w, json_string_value(text), json_string_length(text),
               DS_ENCODE_ADD_SPECIAL | DS_ENCODE_NO_SPECIAL_PARSE, true) &&
        w->params->append_eos) {
        (void)append_eos(w, true);
    }
}

static void take_pair(work *w, const json_t *row)
{
    static const char *const read[] = {"prompt", "completion", NULL};
    const json_t *prompt = json_object_get(row, "prompt");
    const json_t *completion = json_object_get(row, "completion");
    w->line->sample = true;
    if (!json_is_string(prompt) || !json_is_string(completion)) {
        refuse(w, DS_ERR_FORMAT,
               "\"prompt\" and \"completion\" must both be strings; found %s and %s",
               kind_of(prompt), kind_of(completion));
        return;
    }
    if (account_keys(w, row, read) &&
        encode(w, json_string_value(prompt), json_string_length(prompt),
               DS_ENCODE_ADD_SPECIAL | DS_ENCODE_NO_SPECIAL_PARSE, false) &&
        encode(w, json_string_value(completion), json_string_length(completion),
               DS_ENCODE_NO_SPECIAL_PARSE, true)) {
        (void)append_eos(w, true);
    }
}

/* Marks the tokens that hold a byte of an assistant's span, also one that begins before it (a line
 * break of the header joined with the answer's), as transformers' assistant mask does. */
static void count_spans(dsi_line *line, const ds_tokens *tokens, const ds_chat_text *text)
{
    size_t s = 0;
    for (size_t i = 0; i < tokens->n; ++i) {
        const ds_token_range range = tokens->ranges[i];
        while (s < text->n_spans && text->spans[s].end <= range.begin) {
            ++s;
        }
        line->counted[i] = s < text->n_spans && range.end > range.begin &&
                           range.end > text->spans[s].begin && range.begin < text->spans[s].end;
    }
}

static void take_rendered(work *w, const ds_chat_text *text)
{
    ds_tokens tokens;
    const ds_status status = ds_tokenizer_encode(w->params->tokenizer, w->scratch, text->text,
                                                 text->size, DS_ENCODE_RANGES, &tokens);
    if (status < 0) {
        refuse(w, status, "the chat cannot be tokenized: too long, or no memory");
    } else if (append(w, tokens.ids, tokens.n, false)) {
        count_spans(w->line, &tokens, text);
    }
}

/* What is not text would be lost: the model sees no image. */
static bool check_parts(work *w, const char *where, const json_t *content)
{
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content); ++i) {
        const json_t *type = json_object_get(json_array_get(content, i), "type");
        if (json_is_string(type) && strcmp(json_string_value(type), "text") != 0) {
            refuse(w, DS_ERR_UNSUPPORTED,
                   "%scontent[%zu] is of the type \"%.40s\", and only text is supported", where, i,
                   json_string_value(type));
            return false;
        }
    }
    return true;
}

/* The names under which templates read a member of a message. */
static bool template_reads(const dsi_jinja *template, const char *key)
{
    static const char *const reasoning[] = {"reasoning_content", "thinking", "reasoning", NULL};
    if (!is_one_of(key, reasoning)) {
        return dsi_jinja_mentions(template, key);
    }
    return dsi_jinja_mentions(template, "reasoning_content") ||
           dsi_jinja_mentions(template, "thinking") || dsi_jinja_mentions(template, "reasoning");
}

/* Refuses a message whose calls or thoughts the template would leave out, and notes its other
 * members that it leaves out. */
static bool check_message(work *w, const dsi_jinja *template, const json_t *message, size_t i)
{
    static const char *const lost[] = {"tool_calls", "function_call", "reasoning_content",
                                       "reasoning",  "thinking",      "prefix",
                                       NULL};
    static const char *const never[] = {"weight", "train", NULL};
    char where[96];
    const char *key;
    json_t *value;
    (void)snprintf(where, sizeof where, "messages[%zu] (role \"%.40s\"): ", i,
                   json_string_value(json_object_get(message, "role")));
    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        const bool empty = json_is_null(value) ||
                           (json_is_array(value) && json_array_size(value) == 0) ||
                           (json_is_string(value) && json_string_length(value) == 0);
        if (is_one_of(key, never) && !json_is_null(value)) {
            refuse(w, DS_ERR_UNSUPPORTED,
                   "%s\"%s\" is not supported: the loss counts every turn of the assistant", where,
                   key);
            return false;
        }
        if (empty || template_reads(template, key) || strcmp(key, "role") == 0 ||
            strcmp(key, "content") == 0) {
            continue;
        }
        if (is_one_of(key, lost)) {
            refuse(w, DS_ERR_UNSUPPORTED,
                   "%s\"%s\" is not read by the chat template and would be lost: take it out of "
                   "the line, or choose another template by --chat_template",
                   where, key);
            return false;
        }
        note_key(w->line, "a message's ", key);
    }
    return check_parts(w, where, json_object_get(message, "content"));
}

static bool check_messages(work *w, const json_t *row, const json_t *messages)
{
    const dsi_jinja *template = dsi_chat_template_for(w->params->chat, row);
    for (size_t i = 0; i < json_array_size(messages); ++i) {
        const json_t *message = json_array_get(messages, i);
        const json_t *role = json_object_get(message, "role");
        if (!json_is_object(message)) {
            refuse(w, DS_ERR_FORMAT,
                   "messages[%zu] must be an object with \"role\" and \"content\"; found %s", i,
                   kind_of(message));
            return false;
        }
        if (!json_is_string(role)) {
            refuse(w, DS_ERR_FORMAT, "messages[%zu]: \"role\" must be a string; found %s", i,
                   kind_of(role));
            return false;
        }
        if (template != NULL && !check_message(w, template, message, i)) {
            return false;
        }
    }
    return true;
}

/* Lists of tools and documents that the template would leave out are refused, variables noted. */
static bool check_lists(work *w, const json_t *row)
{
    static const char *const names[] = {"tools", "documents"};
    const dsi_jinja *template = dsi_chat_template_for(w->params->chat, row);
    for (size_t i = 0; i < 2; ++i) {
        const json_t *list = json_object_get(row, names[i]);
        if (json_array_size(list) > 0 && template != NULL &&
            !dsi_jinja_mentions(template, names[i])) {
            refuse(w, DS_ERR_UNSUPPORTED,
                   "\"%s\" is not read by the chat template and would be lost: take it out of the "
                   "line, or choose another template by --chat_template",
                   names[i]);
            return false;
        }
    }
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(row, "chat_template_kwargs"), key, value)
    {
        if (template != NULL && !dsi_jinja_mentions(template, key)) {
            note_key(w->line, "chat_template_kwargs' ", key);
        }
    }
    return true;
}

static void take_messages(work *w, const json_t *row, const json_t *messages)
{
    static const char *const read[] = {"messages", "tools", "documents", "chat_template_kwargs",
                                       NULL};
    char error[DSI_CHAT_ERROR];
    ds_chat_text text = {0};
    w->line->sample = true;
    if (!json_is_array(messages)) {
        refuse(w, DS_ERR_FORMAT, "\"messages\" must be a list; found %s", kind_of(messages));
        return;
    }
    if (w->params->chat == NULL) {
        refuse(w, DS_ERR_ARG,
               "\"messages\" need a chat template, and the tokenizer has none: give "
               "--chat_template, such as chatml");
        return;
    }
    if (!account_keys(w, row, read) || !check_messages(w, row, messages) || !check_lists(w, row)) {
        return;
    }
    const ds_status status =
        dsi_chat_render_row(w->params->chat, row, DS_CHAT_SPANS, &text, error, sizeof error);
    if (status < 0) {
        refuse(w, status, "%s", error);
        return;
    }
    take_rendered(w, &text);
    ds_chat_text_free(&text);
}

/* Names the keys that are there. */
static void refuse_keys(work *w, const json_t *json)
{
    enum { SHOWN = 4 };
    char keys[120] = "";
    size_t used = 0;
    size_t shown = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        if (shown < SHOWN) {
            used += (size_t)snprintf(keys + used, sizeof keys - used, "%s\"%.20s\"",
                                     shown > 0 ? ", " : "", key);
            ++shown;
        }
    }
    refuse(w, DS_ERR_FORMAT,
           "expected \"text\", or \"prompt\" and \"completion\", or \"messages\"; found %s%s%s",
           json_object_size(json) == 0 ? "an empty object" : "the keys ", keys,
           json_object_size(json) > SHOWN ? ", …" : "");
}

static void take_object(work *w, const json_t *json)
{
    const json_t *messages = json_object_get(json, "messages");
    const bool pair =
        json_object_get(json, "prompt") != NULL || json_object_get(json, "completion") != NULL;
    const json_t *text = json_object_get(json, "text");
    if (!json_is_object(json)) {
        refuse(w, DS_ERR_FORMAT, "a line must be a JSON object; found %s", kind_of(json));
    } else if (json_is_array(messages)) {
        take_messages(w, json, messages);
    } else if (pair) {
        take_pair(w, json);
    } else if (json_is_string(text)) {
        take_text(w, json, text);
    } else if (messages != NULL) {
        take_messages(w, json, messages);
    } else if (text != NULL) {
        refuse(w, DS_ERR_FORMAT, "\"text\" must be a string; found %s", kind_of(text));
    } else {
        refuse_keys(w, json);
    }
}

static void refuse_json(work *w, const json_error_t *error)
{
    if (error->text[0] == '\0' || json_error_code(error) == json_error_out_of_memory) {
        refuse(w, DS_ERR_NOMEM, "no memory for a line");
    } else {
        refuse(w, DS_ERR_FORMAT, "column %d: %s", error->column, error->text);
    }
}

void dsi_line_tokenize(const ds_dataset_params *params, ds_tokenizer_scratch *scratch,
                       const char *text, size_t n, dsi_line *line_out)
{
    json_error_t error;
    work w = {params, scratch, line_out};
    *line_out = (dsi_line){0};
    while (n > 0 && (text[n - 1] == '\r' || text[n - 1] == ' ' || text[n - 1] == '\t')) {
        --n;
    }
    if (n == 0) {
        return;
    }
    json_t *json = dsi_json_parse(text, n, JSON_ALLOW_NUL, &error);
    if (json == NULL) {
        refuse_json(&w, &error);
        return;
    }
    take_object(&w, json);
    json_decref(json);
}

void dsi_line_free(dsi_line *line)
{
    free(line->ids);
    free(line->counted);
    line->ids = NULL;
    line->counted = NULL;
}
