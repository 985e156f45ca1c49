/* One line of a .jsonl: JSON to tokens, with the loss on the answer only. Runs on any thread:
 * errors are texts in the result, not records in the context. */
#include "data/source.h"
#include "io/json_load.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    const ds_dataset_params *params;
    ds_tokenizer_scratch *scratch;
    dsi_line *line;
} work;

static void refuse(work *w, ds_status status, const char *message)
{
    w->line->status = status;
    (void)snprintf(w->line->message, sizeof w->line->message, "%s", message);
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

static void take_text(work *w, const json_t *text)
{
    if (encode(w, json_string_value(text), json_string_length(text),
               DS_ENCODE_ADD_SPECIAL | DS_ENCODE_NO_SPECIAL_PARSE, true) &&
        w->params->append_eos) {
        (void)append_eos(w, true);
    }
}

static void take_pair(work *w, const json_t *prompt, const json_t *completion)
{
    w->line->sample = true;
    if (!json_is_string(prompt) || !json_is_string(completion)) {
        refuse(w, DS_ERR_FORMAT, "\"prompt\" and \"completion\" must both be strings");
        return;
    }
    if (encode(w, json_string_value(prompt), json_string_length(prompt),
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

static void take_messages(work *w, const json_t *messages)
{
    const size_t n = json_array_size(messages);
    ds_chat_text text = {0};
    w->line->sample = true;
    if (w->params->chat == NULL) {
        refuse(w, DS_ERR_ARG,
               "\"messages\" need a chat template, and the tokenizer has none: give "
               "--chat_template");
        return;
    }
    ds_chat_message *list = calloc(n + 1, sizeof *list);
    if (list == NULL) {
        refuse(w, DS_ERR_NOMEM, "no memory for a line");
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        const json_t *message = json_array_get(messages, i);
        const json_t *role = json_object_get(message, "role");
        const json_t *content = json_object_get(message, "content");
        if (!json_is_string(role) || !json_is_string(content)) {
            refuse(w, DS_ERR_FORMAT, "each message needs the strings \"role\" and \"content\"");
            free(list);
            return;
        }
        list[i] = (ds_chat_message){json_string_value(role), json_string_value(content),
                                    json_string_length(content)};
    }
    const ds_status status = ds_chat_render(w->params->chat, list, n, 0, &text);
    if (status < 0) {
        refuse(w, status, "the chat template refuses these roles or their order");
    } else {
        take_rendered(w, &text);
        ds_chat_text_free(&text);
    }
    free(list);
}

static void take_object(work *w, const json_t *json)
{
    const json_t *messages = json_object_get(json, "messages");
    const json_t *prompt = json_object_get(json, "prompt");
    const json_t *text = json_object_get(json, "text");
    if (json_is_array(messages)) {
        take_messages(w, messages);
    } else if (prompt != NULL) {
        take_pair(w, prompt, json_object_get(json, "completion"));
    } else if (json_is_string(text)) {
        take_text(w, text);
    } else {
        refuse(w, DS_ERR_FORMAT,
               "expected an object with \"text\", \"prompt\" and \"completion\", or "
               "\"messages\"");
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
        refuse(&w, DS_ERR_FORMAT, error.text);
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
