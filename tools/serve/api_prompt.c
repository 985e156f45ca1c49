/* SPDX-License-Identifier: Apache-2.0 */
/* What a text goes on from: prompts, and messages by the chat template. See api.h. */
#include "api.h"

#include "data/chat_template.h"

#include <stdlib.h>
#include <string.h>

/* ---- prompts ---- */
/* The field that they come from. */
static const char *field_of(const job *j)
{
    return j->of_chat ? "messages" : j->embeds ? "input" : "prompt";
}

static bool encode(api_reader *r, const char *text, size_t n, uint32_t flags, choice *c)
{
    front *f = r->f;
    ds_tokens tokens;
    if (ds_tokenizer_encode(f->tokenizer, f->scratch, text, n, flags, &tokens) < 0) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, field_of(r->j), "%.400s",
                        ds_ctx_error(f->http_ctx));
    }
    c->ids = malloc((tokens.n + 1) * sizeof *c->ids);
    if (c->ids == NULL) {
        return api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory for a prompt");
    }
    memcpy(c->ids, tokens.ids, tokens.n * sizeof *c->ids);
    c->n_ids = tokens.n;
    c->owns_ids = true;
    return true;
}

static bool take_text(api_reader *r, json_t *v, choice *c)
{
    const char *text = json_string_value(v);
    if (!encode(r, text, json_string_length(v), DS_ENCODE_ADD_SPECIAL, c)) {
        return false;
    }
    c->echo = r->echo ? strdup(text) : NULL;
    c->echo_flags = DS_DECODE_SKIP_SPECIAL | DS_DECODE_REPAIR;
    return true;
}

static bool take_ids(api_reader *r, json_t *v, choice *c)
{
    const size_t n = json_array_size(v);
    size_t size = 0;
    c->ids = malloc((n + 1) * sizeof *c->ids);
    c->owns_ids = true;
    for (size_t i = 0; c->ids != NULL && i < n; ++i) {
        int64_t id = 0;
        if (!api_whole(r, field_of(r->j), json_array_get(v, i), 0, r->f->vocab_size - 1, &id)) {
            return false;
        }
        c->ids[c->n_ids++] = (uint32_t)id;
    }
    if (r->echo) {
        c->echo_flags = DS_DECODE_REPAIR;
        (void)ds_tokenizer_decode(r->f->tokenizer, c->ids, c->n_ids, DS_DECODE_REPAIR, &c->echo,
                                  &size);
    }
    return c->ids != NULL;
}

/* Room for the choices of n prompts. */
static bool make_choices(api_reader *r, size_t n)
{
    job *j = r->j;
    enum { MOST_INPUTS = 2048 }; /* as OpenAI's */
    const int64_t most = j->embeds ? MOST_INPUTS : r->f->options->max_choices;
    if (n == 0 || n > (size_t)(most / r->n)) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, field_of(j),
                        "%zu prompts with n %lld: 1 to %lld texts can be asked for", n,
                        (long long)r->n, (long long)most);
    }
    j->n_prompts = n;
    j->n_of_each = (size_t)r->n;
    j->choices = calloc(n * j->n_of_each, sizeof *j->choices);
    if (j->choices == NULL) {
        return api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
    }
    j->n_choices = n * j->n_of_each;
    return true;
}

bool api_take_prompts(api_reader *r, json_t *v)
{
    job *j = r->j;
    json_t *first = json_array_get(v, 0);
    const bool several = json_is_array(v) && (json_is_string(first) || json_is_array(first));
    if (!json_is_string(v) && !several && !json_is_integer(first)) {
        return api_wrong(r, field_of(j),
                         "a text, an array of texts, of token ids, or of arrays of ids");
    }
    if (!make_choices(r, several ? json_array_size(v) : 1)) {
        return false;
    }
    for (size_t i = 0; i < j->n_prompts; ++i) {
        json_t *one = several ? json_array_get(v, i) : v;
        choice *c = &j->choices[i * j->n_of_each];
        if (!json_is_string(one) && !json_is_array(one)) {
            return api_wrong(r, field_of(j), "texts, or arrays of token ids");
        }
        if (!(json_is_string(one) ? take_text(r, one, c) : take_ids(r, one, c))) {
            return false;
        }
    }
    return true;
}

/* ---- messages ---- */
/* Whether a part has no other members than type and text; what other servers' clients send is
 * named.
 */
static bool is_known_part(api_reader *r, json_t *part)
{
    const bool marked = json_object_get(part, "cache_control") != NULL;
    if (marked) {
        api_ignore(r->ignored, "messages.content.cache_control");
    }
    return json_object_size(part) == (marked ? 3 : 2);
}

/* {"type": "text", "text": …} parts become one text. */
static bool join_parts(api_reader *r, json_t *message, json_t *parts)
{
    dsi_buf text = dsi_buf_make(64u << 20);
    for (size_t i = 0; i < json_array_size(parts); ++i) {
        json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *words = json_string_value(json_object_get(part, "text"));
        if (type == NULL || strcmp(type, "text") != 0 || words == NULL || !is_known_part(r, part)) {
            dsi_buf_free(&text);
            return api_unsupported(r, "messages",
                                   "parts of a message can only be "
                                   "{\"type\": \"text\", \"text\": …}");
        }
        dsi_buf_puts(&text, words);
    }
    const bool whole = !text.failed && json_object_set_new(message, "content",
                                                           json_string(dsi_buf_text(&text))) == 0;
    dsi_buf_free(&text);
    return whole || api_wrong(r, "messages", "fewer texts in a message, there is no memory");
}

static bool check_message(api_reader *r, json_t *message)
{
    static const char *const known[] = {"role",         "content", "name", "tool_calls",
                                        "tool_call_id", "refusal", NULL};
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content");
    const char *key = NULL;
    json_t *value = NULL;
    if (role == NULL || (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
                         strcmp(role, "assistant") != 0 && strcmp(role, "developer") != 0 &&
                         strcmp(role, "tool") != 0)) {
        return api_wrong(r, "messages", "a role of system, developer, user, assistant or tool");
    }
    json_object_foreach(message, key, value)
    {
        bool is_known = json_is_null(value);
        for (size_t i = 0; known[i] != NULL; ++i) {
            is_known = is_known || strcmp(known[i], key) == 0;
        }
        if (!is_known) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", "messages",
                            "%.60s is no field of a message that this server knows", key);
        }
    }
    if (json_object_get(message, "refusal") != NULL) { /* of an answer that comes back */
        if (!json_is_null(json_object_get(message, "refusal"))) {
            api_ignore(r->ignored, "messages.refusal");
        }
        (void)json_object_del(message, "refusal");
    }
    if (json_is_null(json_object_get(message, "tool_calls"))) {
        (void)json_object_del(message, "tool_calls");
    }
    if (!api_check_calls(r, message)) {
        return false;
    }
    content = json_object_get(message, "content");
    if (json_is_array(content)) {
        if (!join_parts(r, message, content)) {
            return false;
        }
    } else if (!json_is_string(content)) {
        return api_wrong(r, "messages", "a content that is a text or an array of texts");
    }
    if (json_object_get(message, "name") != NULL) {
        api_ignore(r->ignored, "messages.name");
        (void)json_object_del(message, "name");
    }
    if (strcmp(role, "developer") == 0) { /* what newer clients call it */
        (void)json_object_set_new(message, "role", json_string("system"));
    }
    return true;
}

/* Names variables that the template does not read. */
static bool check_variables(api_reader *r, const json_t *chat)
{
    enum { MOST_BYTES = 512 }; /* of names in the header */
    const dsi_jinja *template = dsi_chat_template_for(r->f->chat, chat);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(json_object_get(chat, "chat_template_kwargs"), key, value)
    {
        char name[128];
        if (template == NULL || (*key != '\0' && dsi_jinja_mentions(template, key))) {
            continue;
        }
        if (!api_is_name(key) || r->ignored->size > MOST_BYTES) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", "chat_template_kwargs",
                            "chat_template_kwargs.%.60s is nothing that the chat template reads",
                            key);
        }
        (void)snprintf(name, sizeof name, "chat_template_kwargs.%s", key);
        api_ignore(r->ignored, name);
    }
    return true;
}

static bool render(api_reader *r, json_t *body, ds_chat_text *text_out)
{
    front *f = r->f;
    json_t *messages = json_object_get(body, "messages");
    json_t *variables = json_object_get(body, "chat_template_kwargs");
    if (f->chat == NULL) {
        return api_unsupported(r, "messages",
                               "the model has no chat template; use /v1/completions or "
                               "--chat_template");
    }
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return api_wrong(r, "messages", "an array of at least one message");
    }
    for (size_t i = 0; i < json_array_size(messages); ++i) {
        if (!check_message(r, json_array_get(messages, i))) {
            return false;
        }
    }
    json_t *chat = json_pack("{s:O}", "messages", messages);
    if (variables != NULL && !json_is_null(variables)) {
        (void)json_object_set(chat, "chat_template_kwargs", variables);
    }
    if (r->tools != NULL) {
        (void)json_object_set(chat, "tools", r->tools);
    }
    if (!check_variables(r, chat)) {
        json_decref(chat);
        return false;
    }
    char *text = json_dumps(chat, JSON_COMPACT);
    const ds_status status = text != NULL ? ds_chat_render_json(f->chat, text, strlen(text),
                                                                DS_CHAT_GENERATION_PROMPT, text_out)
                                          : DS_ERR_NOMEM;
    free(text);
    json_decref(chat);
    return status >= 0 || api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "messages", "%.400s",
                                   ds_ctx_error(f->http_ctx));
}

bool api_render(front *f, json_t *body, ds_chat_text *text_out, dsi_buf *ignored, api_error *e)
{
    api_reader r = {.f = f, .ignored = ignored, .e = e, .tools = json_object_get(body, "tools")};
    if (json_array_size(r.tools) > 0 && f->calls == NULL) {
        return api_unsupported(&r, "tools", "the model's chat template has no place for tools");
    }
    return render(&r, body, text_out);
}

bool api_take_messages(api_reader *r, json_t *body)
{
    ds_chat_text text = {0};
    if (!make_choices(r, 1) || !render(r, body, &text)) {
        return false;
    }
    const bool ok = encode(r, text.text, text.size, 0, r->j->choices);
    ds_chat_text_free(&text);
    return ok;
}
