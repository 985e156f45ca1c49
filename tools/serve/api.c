/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: every field is read by its row, is named as without effect, or is an error.
 * See front.h. Called by the HTTP thread.
 */
#include "front.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool api_fail(api_error *e, unsigned status, const char *code, const char *param,
              const char *format, ...)
{
    va_list args;
    e->status = status;
    e->type = status == MHD_HTTP_NOT_FOUND           ? "not_found_error"
              : status == MHD_HTTP_UNAUTHORIZED      ? "authentication_error"
              : status >= 500                        ? "server_error"
              : status == MHD_HTTP_TOO_MANY_REQUESTS ? "rate_limit_error"
                                                     : "invalid_request_error";
    e->code = code;
    (void)snprintf(e->param, sizeof e->param, "%s", param);
    va_start(args, format);
    (void)vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

void api_error_print(const api_error *e, dsi_buf *out)
{
    dsi_buf_puts(out, "{\"error\":{\"message\":");
    put_clean(out, e->message, strlen(e->message));
    dsi_buf_printf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0] != '\0') {
        put_clean(out, e->param, strlen(e->param));
    } else {
        dsi_buf_puts(out, "null");
    }
    if (e->code != NULL) {
        dsi_buf_printf(out, ",\"code\":\"%s\"}}\n", e->code);
    } else {
        dsi_buf_puts(out, ",\"code\":null}}\n");
    }
}

/* What is read, besides the job's own. */
typedef struct reader {
    front *f;
    job *j;
    dsi_buf *ignored;
    api_error *e;
    bool ignore_eos, echo, has_seed, has_most;
    int64_t most, n, n_top;
    json_t *stop_ids;
    json_t *bias;
} reader;

static bool wrong(reader *r, const char *name, const char *expected)
{
    return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s: expected %s", name, expected);
}

static bool unsupported(reader *r, const char *name, const char *what)
{
    return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unsupported", name, "%s: %s", name, what);
}

static bool whole(reader *r, const char *name, json_t *v, int64_t least, int64_t most, int64_t *out)
{
    const double x = json_is_real(v) ? json_real_value(v) : 0.0;
    int64_t n = json_is_integer(v) ? json_integer_value(v) : (int64_t)x;
    if (!json_is_integer(v) && (!json_is_real(v) || x != floor(x) || fabs(x) > 1e15)) {
        return wrong(r, name, "a whole number");
    }
    if (n < least || n > most) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s is %lld, expected %lld to %lld",
                        name, (long long)n, (long long)least, (long long)most);
    }
    *out = n;
    return true;
}

static bool number(reader *r, const char *name, json_t *v, double least, double most, double *out)
{
    const double x = json_number_value(v);
    if (!json_is_number(v)) {
        return wrong(r, name, "a number");
    }
    if (!(x >= least && x <= most)) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, name, "%s is %g, expected %g to %g", name,
                        x, least, most);
    }
    *out = x;
    return true;
}

static bool boolean(reader *r, const char *name, json_t *v, bool *out)
{
    if (!json_is_boolean(v)) {
        return wrong(r, name, "true or false");
    }
    *out = json_is_true(v);
    return true;
}

/* ---- rows ---- */
static bool read_model(reader *r, json_t *v)
{
    if (!json_is_string(v)) {
        return wrong(r, "model", "a name");
    }
    if (strcmp(json_string_value(v), r->f->name) != 0) {
        return api_fail(r->e, MHD_HTTP_NOT_FOUND, "model_not_found", "model",
                        "the model %.200s is not here; this server has %.200s",
                        json_string_value(v), r->f->name);
    }
    return true;
}

static bool read_most(reader *r, json_t *v)
{
    int64_t most = 0;
    if (!whole(r, "max_tokens", v, 1, INT32_MAX, &most)) {
        return false;
    }
    r->most = r->has_most && r->most < most ? r->most : most;
    r->has_most = true;
    return true;
}

static bool read_temperature(reader *r, json_t *v)
{
    return number(r, "temperature", v, 0.0, 2.0, &r->j->request.sampling.temperature);
}

static bool read_top_p(reader *r, json_t *v)
{
    if (!number(r, "top_p", v, 0.0, 1.0, &r->j->request.sampling.top_p)) {
        return false;
    }
    if (r->j->request.sampling.top_p == 0.0) { /* the likeliest alone */
        r->j->request.sampling.top_p = 1e-12;
    }
    return true;
}

static bool read_top_k(reader *r, json_t *v)
{
    int64_t k = 0;
    if (!whole(r, "top_k", v, -1, INT32_MAX, &k)) {
        return false;
    }
    r->j->request.sampling.top_k = k > 0 ? k : 0;
    return true;
}

static bool read_min_p(reader *r, json_t *v)
{
    return number(r, "min_p", v, 0.0, 1.0, &r->j->request.sampling.min_p);
}

static bool read_presence(reader *r, json_t *v)
{
    return number(r, "presence_penalty", v, -2.0, 2.0, &r->j->request.presence);
}

static bool read_frequency(reader *r, json_t *v)
{
    return number(r, "frequency_penalty", v, -2.0, 2.0, &r->j->request.frequency);
}

static bool read_repetition(reader *r, json_t *v)
{
    return number(r, "repetition_penalty", v, 0.01, 10.0, &r->j->request.repetition);
}

static bool read_n(reader *r, json_t *v)
{
    return whole(r, "n", v, 1, r->f->options->max_choices, &r->n);
}

static bool read_seed(reader *r, json_t *v)
{
    int64_t seed = 0;
    if (!json_is_integer(v)) {
        return wrong(r, "seed", "a whole number");
    }
    seed = json_integer_value(v);
    r->j->request.sampling.seed = (uint64_t)seed;
    r->has_seed = true;
    return true;
}

static bool read_min_tokens(reader *r, json_t *v)
{
    return whole(r, "min_tokens", v, 0, INT32_MAX, &r->j->request.min_new_tokens);
}

static bool read_ignore_eos(reader *r, json_t *v)
{
    return boolean(r, "ignore_eos", v, &r->ignore_eos);
}

static bool read_stop_ids(reader *r, json_t *v)
{
    if (!json_is_array(v) || json_array_size(v) > 64) {
        return wrong(r, "stop_token_ids", "an array of at most 64 token ids");
    }
    r->stop_ids = v;
    return true;
}

static bool read_bias(reader *r, json_t *v)
{
    if (!json_is_object(v) || json_object_size(v) > 4096) {
        return wrong(r, "logit_bias", "an object of at most 4096 token ids with numbers");
    }
    r->bias = v;
    return true;
}

static bool add_stop(reader *r, json_t *v)
{
    job *j = r->j;
    const size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0 || n >= FRONT_STOP_BYTES || strlen(json_string_value(v)) != n ||
        j->n_stops == FRONT_STOPS) {
        return wrong(r, "stop", "a text of 1 to 255 bytes, or up to 16 of them in an array");
    }
    memcpy(j->stops[j->n_stops++], json_string_value(v), n + 1);
    return true;
}

static bool read_stop(reader *r, json_t *v)
{
    if (!json_is_array(v)) {
        return add_stop(r, v);
    }
    for (size_t i = 0; i < json_array_size(v); ++i) {
        if (!add_stop(r, json_array_get(v, i))) {
            return false;
        }
    }
    return true;
}

static bool read_stream(reader *r, json_t *v)
{
    return boolean(r, "stream", v, &r->j->streams);
}

static bool read_stream_options(reader *r, json_t *v)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(v)) {
        return wrong(r, "stream_options", "an object");
    }
    json_object_foreach(v, key, value)
    {
        bool unused = false;
        if (strcmp(key, "include_usage") == 0) {
            if (!boolean(r, "stream_options.include_usage", value, &r->j->usage)) {
                return false;
            }
        } else if (strcmp(key, "include_obfuscation") == 0) {
            if (!boolean(r, "stream_options.include_obfuscation", value, &unused)) {
                return false;
            }
            if (unused) {
                dsi_buf_puts(r->ignored, "stream_options.include_obfuscation ");
            }
        } else {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", "stream_options",
                            "stream_options.%.40s is not known", key);
        }
    }
    return true;
}

static bool read_logprobs(reader *r, json_t *v)
{
    if (r->j->of_chat) {
        return boolean(r, "logprobs", v, &r->j->logprobs);
    }
    r->j->logprobs = true;
    return whole(r, "logprobs", v, 0, 5, &r->n_top);
}

static bool read_top_logprobs(reader *r, json_t *v)
{
    return whole(r, "top_logprobs", v, 0, DS_SERVE_MOST_TOP, &r->n_top);
}

static bool read_echo(reader *r, json_t *v)
{
    return boolean(r, "echo", v, &r->echo);
}

static bool read_best_of(reader *r, json_t *v)
{
    int64_t n = 0;
    if (!whole(r, "best_of", v, 1, INT32_MAX, &n)) {
        return false;
    }
    return n == 1 ? true
                  : unsupported(r, "best_of",
                                "choosing the best of several is not built; "
                                "ask for n texts");
}

static bool read_format(reader *r, json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type != NULL && strcmp(type, "text") == 0) {
        return true;
    }
    if (type != NULL && strcmp(type, "json_object") == 0 && json_object_size(v) == 1) {
        r->j->request.guide = json_guide;
        r->j->request.guide_user = r->f;
        return guide_prepare(r->f) || api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "",
                                               "no memory for the bytes of tokens");
    }
    return unsupported(r, "response_format",
                       "only {\"type\": \"text\"} and {\"type\": \"json_object\"}; schemas are "
                       "not built");
}

static bool read_tools(reader *r, json_t *v)
{
    if (json_is_array(v) && json_array_size(v) == 0) {
        return true;
    }
    return unsupported(r, "tools", "calls of tools are not built");
}

static bool read_tool_choice(reader *r, json_t *v)
{
    const char *text = json_string_value(v);
    if (text != NULL && (strcmp(text, "none") == 0 || strcmp(text, "auto") == 0)) {
        return true;
    }
    return unsupported(r, "tool_choice", "calls of tools are not built");
}

static bool read_modalities(reader *r, json_t *v)
{
    const char *first = json_string_value(json_array_get(v, 0));
    if (json_array_size(v) == 1 && first != NULL && strcmp(first, "text") == 0) {
        return true;
    }
    return unsupported(r, "modalities", "only [\"text\"]");
}

static bool read_suffix(reader *r, json_t *v)
{
    (void)v;
    return unsupported(r, "suffix", "text between a prompt and a suffix is not built");
}

static bool read_later(reader *r, json_t *v)
{
    (void)r;
    (void)v;
    return true;
}

enum { CHAT = 1, COMPLETION = 2, BOTH = 3 };

typedef struct row {
    const char *name;
    int where;
    bool (*read)(reader *r, json_t *value); /* NULL: without effect here, named in a header */
} row;

static const row rows[] = {
    {"model", BOTH, read_model},
    {"messages", CHAT, read_later},
    {"prompt", COMPLETION, read_later},
    {"max_tokens", BOTH, read_most},
    {"max_completion_tokens", CHAT, read_most},
    {"temperature", BOTH, read_temperature},
    {"top_p", BOTH, read_top_p},
    {"top_k", BOTH, read_top_k},
    {"min_p", BOTH, read_min_p},
    {"presence_penalty", BOTH, read_presence},
    {"frequency_penalty", BOTH, read_frequency},
    {"repetition_penalty", BOTH, read_repetition},
    {"n", BOTH, read_n},
    {"seed", BOTH, read_seed},
    {"stop", BOTH, read_stop},
    {"stop_token_ids", BOTH, read_stop_ids},
    {"min_tokens", BOTH, read_min_tokens},
    {"ignore_eos", BOTH, read_ignore_eos},
    {"logit_bias", BOTH, read_bias},
    {"stream", BOTH, read_stream},
    {"stream_options", BOTH, read_stream_options},
    {"logprobs", BOTH, read_logprobs},
    {"top_logprobs", CHAT, read_top_logprobs},
    {"echo", COMPLETION, read_echo},
    {"best_of", COMPLETION, read_best_of},
    {"suffix", COMPLETION, read_suffix},
    {"response_format", BOTH, read_format},
    {"tools", CHAT, read_tools},
    {"tool_choice", CHAT, read_tool_choice},
    {"modalities", CHAT, read_modalities},
    {"chat_template_kwargs", CHAT, read_later},
    {"user", BOTH, NULL},
    {"metadata", CHAT, NULL},
    {"store", CHAT, NULL},
    {"service_tier", CHAT, NULL},
    {"prompt_cache_key", CHAT, NULL},
    {"safety_identifier", CHAT, NULL},
    {"parallel_tool_calls", CHAT, NULL},
};

static const row *find_row(const char *name, int where)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (strcmp(rows[i].name, name) == 0 && (rows[i].where & where) != 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static bool read_rows(reader *r, json_t *body)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(body, key, value)
    {
        const row *at = find_row(key, r->j->of_chat ? CHAT : COMPLETION);
        if (at == NULL) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                            "%.60s is no field that this server knows", key);
        }
        if (json_is_null(value)) {
            continue; /* as if it were not there */
        }
        if (at->read == NULL) {
            dsi_buf_printf(r->ignored, "%s ", key);
        } else if (!at->read(r, value)) {
            return false;
        }
    }
    return true;
}

/* ---- ids ---- */
static bool take_bias(reader *r)
{
    ds_serve_request *q = &r->j->request;
    const size_t n = json_object_size(r->bias);
    const char *key = NULL;
    json_t *value = NULL;
    ds_serve_bias *bias = n > 0 ? calloc(n, sizeof *bias) : NULL;
    q->bias = bias;
    json_object_foreach(r->bias, key, value)
    {
        char *end = NULL;
        const long long id = strtoll(key, &end, 10);
        double x = 0.0;
        if (bias == NULL || key[0] < '0' || key[0] > '9' || *end != '\0' ||
            id >= r->f->vocab_size) {
            return wrong(r, "logit_bias", "token ids of the model's vocabulary as keys");
        }
        if (!number(r, "logit_bias", value, -100.0, 100.0, &x)) {
            return false;
        }
        bias[q->n_bias++] = (ds_serve_bias){(uint32_t)id, (float)x};
    }
    return true;
}

static bool take_stop_ids(reader *r)
{
    front *f = r->f;
    ds_serve_request *q = &r->j->request;
    const size_t n = json_array_size(r->stop_ids);
    uint32_t *ids = calloc(n + f->n_stop_ids + 1, sizeof *ids);
    q->stop_ids = ids;
    for (size_t i = 0; ids != NULL && i < n; ++i) {
        int64_t id = 0;
        if (!whole(r, "stop_token_ids", json_array_get(r->stop_ids, i), 0, f->vocab_size - 1,
                   &id)) {
            return false;
        }
        ids[q->n_stop_ids++] = (uint32_t)id;
    }
    for (size_t i = 0; ids != NULL && !r->ignore_eos && i < f->n_stop_ids; ++i) {
        ids[q->n_stop_ids++] = f->stop_ids[i];
    }
    return ids != NULL || wrong(r, "stop_token_ids", "fewer, there is no memory");
}

/* ---- prompts ---- */
static bool encode(reader *r, const char *text, size_t n, uint32_t flags, choice *c)
{
    front *f = r->f;
    ds_tokens tokens;
    if (ds_tokenizer_encode(f->tokenizer, f->scratch, text, n, flags, &tokens) < 0) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, r->j->of_chat ? "messages" : "prompt",
                        "%.400s", ds_ctx_error(f->http_ctx));
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

static bool take_text(reader *r, json_t *v, choice *c)
{
    const char *text = json_string_value(v);
    if (!encode(r, text, json_string_length(v), DS_ENCODE_ADD_SPECIAL, c)) {
        return false;
    }
    c->echo = r->echo ? strdup(text) : NULL;
    return true;
}

static bool take_ids(reader *r, json_t *v, choice *c)
{
    const size_t n = json_array_size(v);
    size_t size = 0;
    c->ids = malloc((n + 1) * sizeof *c->ids);
    c->owns_ids = true;
    for (size_t i = 0; c->ids != NULL && i < n; ++i) {
        int64_t id = 0;
        if (!whole(r, "prompt", json_array_get(v, i), 0, r->f->vocab_size - 1, &id)) {
            return false;
        }
        c->ids[c->n_ids++] = (uint32_t)id;
    }
    if (r->echo) {
        (void)ds_tokenizer_decode(r->f->tokenizer, c->ids, c->n_ids, DS_DECODE_REPAIR, &c->echo,
                                  &size);
    }
    return c->ids != NULL;
}

/* Room for the choices of n prompts. */
static bool make_choices(reader *r, size_t n)
{
    job *j = r->j;
    if (n == 0 || n > (size_t)r->f->options->max_choices / (size_t)r->n) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "prompt",
                        "%zu prompts with n %lld: 1 to %lld texts can be asked for", n,
                        (long long)r->n, (long long)r->f->options->max_choices);
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

static bool take_prompts(reader *r, json_t *v)
{
    job *j = r->j;
    json_t *first = json_array_get(v, 0);
    const bool several = json_is_array(v) && (json_is_string(first) || json_is_array(first));
    if (!json_is_string(v) && !several && !json_is_integer(first)) {
        return wrong(r, "prompt", "a text, an array of texts, of token ids, or of arrays of ids");
    }
    if (!make_choices(r, several ? json_array_size(v) : 1)) {
        return false;
    }
    for (size_t i = 0; i < j->n_prompts; ++i) {
        json_t *one = several ? json_array_get(v, i) : v;
        choice *c = &j->choices[i * j->n_of_each];
        if (!json_is_string(one) && !json_is_array(one)) {
            return wrong(r, "prompt", "texts, or arrays of token ids");
        }
        if (!(json_is_string(one) ? take_text(r, one, c) : take_ids(r, one, c))) {
            return false;
        }
    }
    return true;
}

/* ---- messages ---- */
/* {"type": "text", "text": …} parts become one text. */
static bool join_parts(reader *r, json_t *message, json_t *parts)
{
    dsi_buf text = dsi_buf_make(64u << 20);
    for (size_t i = 0; i < json_array_size(parts); ++i) {
        json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const char *words = json_string_value(json_object_get(part, "text"));
        if (type == NULL || strcmp(type, "text") != 0 || words == NULL) {
            dsi_buf_free(&text);
            return unsupported(r, "messages",
                               "parts of a message can only be "
                               "{\"type\": \"text\", \"text\": …}");
        }
        dsi_buf_puts(&text, words);
    }
    (void)json_object_set_new(message, "content", json_string(dsi_buf_text(&text)));
    dsi_buf_free(&text);
    return true;
}

static bool check_message(reader *r, json_t *message)
{
    static const char *const known[] = {"role", "content", "name", NULL};
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *content = json_object_get(message, "content");
    const char *key = NULL;
    json_t *value = NULL;
    if (role == NULL || (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
                         strcmp(role, "assistant") != 0 && strcmp(role, "developer") != 0)) {
        return unsupported(r, "messages",
                           "expected a role of system, developer, user or "
                           "assistant; those of tools are not built");
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
    if (json_is_array(content)) {
        if (!join_parts(r, message, content)) {
            return false;
        }
    } else if (!json_is_string(content)) {
        return wrong(r, "messages", "a content that is a text or an array of texts");
    }
    if (json_object_get(message, "name") != NULL) {
        dsi_buf_puts(r->ignored, "messages.name ");
        (void)json_object_del(message, "name");
    }
    if (strcmp(role, "developer") == 0) { /* what newer clients call it */
        (void)json_object_set_new(message, "role", json_string("system"));
    }
    return true;
}

static bool render(reader *r, json_t *body, ds_chat_text *text_out)
{
    front *f = r->f;
    json_t *messages = json_object_get(body, "messages");
    json_t *variables = json_object_get(body, "chat_template_kwargs");
    if (f->chat == NULL) {
        return unsupported(r, "messages",
                           "the model has no chat template; use /v1/completions or "
                           "--chat_template");
    }
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        return wrong(r, "messages", "an array of at least one message");
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
    char *text = json_dumps(chat, JSON_COMPACT);
    const ds_status status = text != NULL ? ds_chat_render_json(f->chat, text, strlen(text),
                                                                DS_CHAT_GENERATION_PROMPT, text_out)
                                          : DS_ERR_NOMEM;
    free(text);
    json_decref(chat);
    return status >= 0 || api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "messages", "%.400s",
                                   ds_ctx_error(f->http_ctx));
}

bool api_render(front *f, json_t *body, ds_chat_text *text_out, api_error *e)
{
    dsi_buf ignored = dsi_buf_make(4096);
    reader r = {.f = f, .ignored = &ignored, .e = e};
    const bool ok = render(&r, body, text_out);
    dsi_buf_free(&ignored);
    return ok;
}

static bool take_messages(reader *r, json_t *body)
{
    ds_chat_text text = {0};
    if (!make_choices(r, 1) || !render(r, body, &text)) {
        return false;
    }
    const bool ok = encode(r, text.text, text.size, 0, r->j->choices);
    ds_chat_text_free(&text);
    return ok;
}

/* ---- all together ---- */
/* Prompts are not empty and leave room; choices of one prompt share its ids. */
static bool fit(reader *r)
{
    job *j = r->j;
    const front *f = r->f;
    const char *param = j->of_chat ? "messages" : "prompt";
    int64_t longest = 0;
    for (size_t i = 0; i < j->n_choices; ++i) {
        choice *c = &j->choices[i];
        const choice *first = &j->choices[i / j->n_of_each * j->n_of_each];
        if (c != first) {
            c->ids = first->ids;
            c->n_ids = first->n_ids;
            c->echo = first->echo != NULL ? strdup(first->echo) : NULL;
        }
        if (c->n_ids == 0) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, param, "the prompt has no token");
        }
        longest = (int64_t)c->n_ids > longest ? (int64_t)c->n_ids : longest;
        if (ds_detokenizer_create(f->tokenizer, DS_DECODE_SKIP_SPECIAL, &c->decoder) < 0) {
            return api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
        }
        c->text = c->pending = c->logprobs = c->tops = c->offsets = c->pieces =
            dsi_buf_make(256u << 20);
    }
    const int64_t room = f->max_length - longest;
    const int64_t otherwise = j->of_chat ? room : 16;
    j->request.max_new_tokens = r->has_most ? r->most : otherwise;
    if (room < 1 || j->request.max_new_tokens > room) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "context_length_exceeded", param,
                        "the prompt has %lld tokens and %lld more are asked for; this server's "
                        "context holds %lld",
                        (long long)longest, (long long)j->request.max_new_tokens,
                        (long long)f->max_length);
    }
    return true;
}

static bool check_together(reader *r)
{
    job *j = r->j;
    if (j->usage && !j->streams) {
        return wrong(r, "stream_options", "stream true beside it");
    }
    if (j->of_chat && r->n_top > 0 && !j->logprobs) {
        return wrong(r, "top_logprobs", "logprobs true beside it");
    }
    if (r->echo && j->logprobs) {
        return unsupported(r, "echo",
                           "log-probabilities of the prompt (echo with logprobs) are "
                           "not built");
    }
    j->request.logprobs = j->logprobs;
    j->request.n_top = (int32_t)r->n_top;
    return true;
}

bool api_read(front *f, json_t *body, bool of_chat, job *j, dsi_buf *ignored, api_error *e)
{
    reader r = {.f = f, .j = j, .ignored = ignored, .e = e, .n = 1};
    j->of_chat = of_chat;
    j->f = f;
    j->request.sampling.temperature = 1.0;
    j->created = (int64_t)time(NULL);
    if (!json_is_object(body)) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "", "expected a JSON object as the body");
    }
    if (!json_is_string(json_object_get(body, "model"))) {
        return wrong(&r, "model", "the name of a model, as /v1/models lists it");
    }
    if (!read_rows(&r, body) || !check_together(&r) || !take_bias(&r) || !take_stop_ids(&r)) {
        return false;
    }
    json_t *prompt = json_object_get(body, "prompt");
    if (!of_chat && (prompt == NULL || json_is_null(prompt))) {
        return wrong(&r, "prompt", "a text, an array of texts, of token ids, or of arrays of ids");
    }
    if (!(of_chat ? take_messages(&r, body) : take_prompts(&r, prompt)) || !fit(&r)) {
        return false;
    }
    if (!r.has_seed) {
        j->request.sampling.seed = f->secret + 0x9e3779b97f4a7c15u * ++f->last_job;
    }
    return true;
}
