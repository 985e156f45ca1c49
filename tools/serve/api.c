/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests: every field is read by its row, is named as without effect, or is an error.
 * See api.h. Called by the HTTP thread.
 */
#include "api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- rows ---- */
/* By `model` or by `lora`. */
static bool choose_adapter(api_reader *r, const char *field, const front_adapter *adapter)
{
    job *j = r->j;
    if (j->request.adapter != 0 && j->request.adapter != adapter->id) {
        return api_wrong(r, field, "one adapter, but model and lora name two");
    }
    j->request.adapter = adapter->id;
    j->model = j->model != NULL ? j->model : strdup(adapter->name);
    return j->model != NULL;
}

static bool read_lora(api_reader *r, json_t *v)
{
    const front_adapter *adapter = json_is_string(v) ? lora_find(r->f, json_string_value(v)) : NULL;
    return adapter != NULL
               ? choose_adapter(r, "lora", adapter)
               : api_fail(r->e, MHD_HTTP_NOT_FOUND, "model_not_found", "lora",
                          "lora: expected the name of an adapter, as /v1/models lists them");
}

bool api_check_model(api_reader *r, json_t *v)
{
    if (!json_is_string(v)) {
        return api_wrong(r, "model", "a name");
    }
    const front_adapter *adapter = lora_find(r->f, json_string_value(v));
    if (adapter != NULL) {
        return choose_adapter(r, "model", adapter);
    }
    if (strcmp(json_string_value(v), r->f->name) != 0) {
        return api_fail(r->e, MHD_HTTP_NOT_FOUND, "model_not_found", "model",
                        "the model %.200s is not here; this server has %.200s",
                        json_string_value(v), r->f->name);
    }
    return true;
}

static bool read_most(api_reader *r, json_t *v)
{
    int64_t most = 0;
    if (!api_whole(r, "max_tokens", v, 0, INT32_MAX, &most)) {
        return false;
    }
    r->most = r->has_most && r->most < most ? r->most : most;
    r->has_most = true;
    return true;
}

static bool read_temperature(api_reader *r, json_t *v)
{
    return api_number(r, "temperature", v, 0.0, 2.0, &r->j->request.sampling.temperature);
}

static bool read_top_p(api_reader *r, json_t *v)
{
    if (!api_number(r, "top_p", v, 0.0, 1.0, &r->j->request.sampling.top_p)) {
        return false;
    }
    if (r->j->request.sampling.top_p == 0.0) { /* the likeliest alone */
        r->j->request.sampling.top_p = 1e-12;
    }
    return true;
}

static bool read_top_k(api_reader *r, json_t *v)
{
    int64_t k = 0;
    if (!api_whole(r, "top_k", v, -1, INT32_MAX, &k)) {
        return false;
    }
    r->j->request.sampling.top_k = k > 0 ? k : 0;
    return true;
}

static bool read_min_p(api_reader *r, json_t *v)
{
    return api_number(r, "min_p", v, 0.0, 1.0, &r->j->request.sampling.min_p);
}

static bool read_presence(api_reader *r, json_t *v)
{
    return api_number(r, "presence_penalty", v, -2.0, 2.0, &r->j->request.presence);
}

static bool read_frequency(api_reader *r, json_t *v)
{
    return api_number(r, "frequency_penalty", v, -2.0, 2.0, &r->j->request.frequency);
}

static bool read_repetition(api_reader *r, json_t *v)
{
    return api_number(r, "repetition_penalty", v, 0.01, 10.0, &r->j->request.repetition);
}

static bool read_n(api_reader *r, json_t *v)
{
    return api_whole(r, "n", v, 1, r->f->options->max_choices, &r->n);
}

static bool read_seed(api_reader *r, json_t *v)
{
    int64_t seed = 0;
    if (!json_is_integer(v)) {
        return api_wrong(r, "seed", "a whole number");
    }
    seed = json_integer_value(v);
    r->j->request.sampling.seed = (uint64_t)seed;
    r->has_seed = true;
    return true;
}

static bool read_min_tokens(api_reader *r, json_t *v)
{
    return api_whole(r, "min_tokens", v, 0, INT32_MAX, &r->j->request.min_new_tokens);
}

static bool read_ignore_eos(api_reader *r, json_t *v)
{
    return api_boolean(r, "ignore_eos", v, &r->ignore_eos);
}

static bool read_stop_ids(api_reader *r, json_t *v)
{
    if (!json_is_array(v) || json_array_size(v) > 64) {
        return api_wrong(r, "stop_token_ids", "an array of at most 64 token ids");
    }
    r->stop_ids = v;
    return true;
}

static bool read_bias(api_reader *r, json_t *v)
{
    if (!json_is_object(v) || json_object_size(v) > 4096) {
        return api_wrong(r, "logit_bias", "an object of at most 4096 token ids with numbers");
    }
    r->bias = v;
    return true;
}

static bool add_stop(api_reader *r, json_t *v)
{
    job *j = r->j;
    const size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0 || n >= FRONT_STOP_BYTES || strlen(json_string_value(v)) != n ||
        j->n_stops == FRONT_STOPS) {
        return api_wrong(r, "stop", "a text of 1 to 255 bytes, or up to 16 of them in an array");
    }
    memcpy(j->stops[j->n_stops++], json_string_value(v), n + 1);
    return true;
}

static bool read_stop(api_reader *r, json_t *v)
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

static bool read_stream(api_reader *r, json_t *v)
{
    return api_boolean(r, "stream", v, &r->j->streams);
}

static bool read_stream_options(api_reader *r, json_t *v)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(v)) {
        return api_wrong(r, "stream_options", "an object");
    }
    json_object_foreach(v, key, value)
    {
        bool unused = false;
        if (strcmp(key, "include_usage") == 0) {
            if (!api_boolean(r, "stream_options.include_usage", value, &r->j->usage)) {
                return false;
            }
        } else if (strcmp(key, "include_obfuscation") == 0) {
            if (!api_boolean(r, "stream_options.include_obfuscation", value, &unused)) {
                return false;
            }
            if (unused) {
                api_ignore(r->ignored, "stream_options.include_obfuscation");
            }
        } else {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", "stream_options",
                            "stream_options.%.40s is not known", key);
        }
    }
    return true;
}

static bool read_logprobs(api_reader *r, json_t *v)
{
    if (r->j->of_chat) {
        return api_boolean(r, "logprobs", v, &r->j->logprobs);
    }
    r->j->logprobs = true;
    return api_whole(r, "logprobs", v, 0, 5, &r->n_top);
}

static bool read_top_logprobs(api_reader *r, json_t *v)
{
    return api_whole(r, "top_logprobs", v, 0, DS_SERVE_MOST_TOP, &r->n_top);
}

static bool read_echo(api_reader *r, json_t *v)
{
    return api_boolean(r, "echo", v, &r->echo);
}

static bool read_prompt_logprobs(api_reader *r, json_t *v)
{
    return api_whole(r, "prompt_logprobs", v, 0, DS_SERVE_MOST_TOP, &r->prompt_top);
}

static bool read_best_of(api_reader *r, json_t *v)
{
    return api_whole(r, "best_of", v, 1, INT32_MAX, &r->best_of);
}

static bool read_format(api_reader *r, json_t *v)
{
    r->format = v;
    return true;
}

static bool read_structured(api_reader *r, json_t *v)
{
    r->structured = v;
    return true;
}

static bool read_tools(api_reader *r, json_t *v)
{
    r->tools = v;
    return true;
}

static bool read_tool_choice(api_reader *r, json_t *v)
{
    r->tool_choice = v;
    return true;
}

static bool read_parallel(api_reader *r, json_t *v)
{
    bool several = false;
    r->parallel = v;
    return api_boolean(r, "parallel_tool_calls", v, &several);
}

static bool read_modalities(api_reader *r, json_t *v)
{
    const char *first = json_string_value(json_array_get(v, 0));
    if (json_array_size(v) == 1 && first != NULL && strcmp(first, "text") == 0) {
        return true;
    }
    return api_unsupported(r, "modalities", "only [\"text\"]");
}

static bool read_suffix(api_reader *r, json_t *v)
{
    (void)v;
    return api_unsupported(r, "suffix", "text between a prompt and a suffix is not built");
}

static bool read_later(api_reader *r, json_t *v)
{
    (void)r;
    (void)v;
    return true;
}

enum { CHAT = 1, COMPLETION = 2, BOTH = 3 };

typedef struct row {
    const char *name;
    int where;
    bool (*read)(api_reader *r, json_t *value); /* NULL: without effect here, named in a header */
} row;

static const row rows[] = {
    {"model", BOTH, api_check_model},
    {"lora", BOTH, read_lora},
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
    {"prompt_logprobs", BOTH, read_prompt_logprobs},
    {"best_of", COMPLETION, read_best_of},
    {"suffix", COMPLETION, read_suffix},
    {"response_format", BOTH, read_format},
    {"structured_outputs", BOTH, read_structured},
    {"tools", CHAT, read_tools},
    {"tool_choice", CHAT, read_tool_choice},
    {"parallel_tool_calls", CHAT, read_parallel},
    {"modalities", CHAT, read_modalities},
    {"chat_template_kwargs", CHAT, read_later},
    {"user", BOTH, NULL},
    {"metadata", CHAT, NULL},
    {"store", CHAT, NULL},
    {"service_tier", CHAT, NULL},
    {"prompt_cache_key", CHAT, NULL},
    {"safety_identifier", CHAT, NULL},
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

static bool read_rows(api_reader *r, json_t *body)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(body, key, value)
    {
        if (api_is_sampler(key)) {
            if (!json_is_null(value) && !api_read_sampler(r, key, value)) {
                return false;
            }
            continue;
        }
        if (api_is_beam(key)) {
            if (!json_is_null(value) && !api_read_beam(r, key, value)) {
                return false;
            }
            continue;
        }
        const row *at = find_row(key, r->j->of_chat ? CHAT : COMPLETION);
        if (at == NULL) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                            "%.60s is no field that this server knows", key);
        }
        if (json_is_null(value)) {
            continue; /* as if it were not there */
        }
        if (at->read == NULL) {
            api_ignore(r->ignored, key);
        } else if (!at->read(r, value)) {
            return false;
        }
    }
    return true;
}

/* ---- ids ---- */
static bool take_bias(api_reader *r)
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
            return api_wrong(r, "logit_bias", "token ids of the model's vocabulary as keys");
        }
        if (!api_number(r, "logit_bias", value, -100.0, 100.0, &x)) {
            return false;
        }
        bias[q->n_bias++] = (ds_serve_bias){(uint32_t)id, (float)x};
    }
    return true;
}

static bool take_stop_ids(api_reader *r)
{
    front *f = r->f;
    ds_serve_request *q = &r->j->request;
    const size_t n = json_array_size(r->stop_ids);
    uint32_t *ids = calloc(n + f->n_stop_ids + 1, sizeof *ids);
    q->stop_ids = ids;
    for (size_t i = 0; ids != NULL && i < n; ++i) {
        int64_t id = 0;
        if (!api_whole(r, "stop_token_ids", json_array_get(r->stop_ids, i), 0, f->vocab_size - 1,
                       &id)) {
            return false;
        }
        ids[q->n_stop_ids++] = (uint32_t)id;
    }
    const size_t n_own = r->j->of_mii ? f->n_eos_ids : f->n_stop_ids;
    for (size_t i = 0; ids != NULL && !r->ignore_eos && i < n_own; ++i) {
        ids[q->n_stop_ids++] = f->stop_ids[i];
    }
    return ids != NULL || api_wrong(r, "stop_token_ids", "fewer, there is no memory");
}

/* ---- all together ---- */
/* Prompts are not empty and leave room; choices of one prompt share its ids. */
static bool fit(api_reader *r)
{
    job *j = r->j;
    const front *f = r->f;
    const char *param = j->of_chat ? "messages" : "prompt";
    int64_t longest = 0;
    int64_t shortest = INT64_MAX;
    for (size_t i = 0; i < j->n_choices; ++i) {
        choice *c = &j->choices[i];
        const choice *first = &j->choices[i / j->n_of_each * j->n_of_each];
        if (c != first) {
            c->ids = first->ids;
            c->n_ids = first->n_ids;
            c->echo = first->echo != NULL ? strdup(first->echo) : NULL;
            c->echo_flags = first->echo_flags;
        }
        if (c->n_ids == 0) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, param, "the prompt has no token");
        }
        if (f->pairs && (int64_t)c->n_ids > f->max_length) {
            return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "context_length_exceeded", param,
                            "the prompt has %zu tokens; this server reads sources of up to %lld",
                            c->n_ids, (long long)f->max_length);
        }
        const int64_t own = front_positions(f, c->n_ids);
        longest = own > longest ? own : longest;
        shortest = own < shortest ? own : shortest;
        if (ds_detokenizer_create(f->tokenizer, DS_DECODE_SKIP_SPECIAL, &c->decoder) < 0) {
            return api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
        }
        c->text = c->pending = c->drawn = c->calls = c->arguments = c->reader.held = c->logprobs =
            c->tops = c->offsets = c->pieces = c->prompt = dsi_buf_make(256u << 20);
    }
    const int64_t most = j->most_together > 0 ? j->most_together : f->max_length;
    const int64_t room = most - longest;
    const bool fills = j->of_chat || j->most_together > 0;
    const int64_t otherwise = fills ? most - shortest : 16;
    j->request.max_new_tokens = j->prompt_alone ? 1 : r->has_most ? r->most : otherwise;
    if (room < 1 || (j->most_together == 0 && j->request.max_new_tokens > room)) {
        return api_fail(r->e, MHD_HTTP_BAD_REQUEST, "context_length_exceeded", param,
                        "the prompt has %lld tokens and %lld more are asked for; this server's "
                        "context holds %lld",
                        (long long)longest, (long long)j->request.max_new_tokens, (long long)most);
    }
    return j->request.min_new_tokens <= j->request.max_new_tokens ||
           api_fail(r->e, MHD_HTTP_BAD_REQUEST, NULL, "min_tokens",
                    "min_tokens is %lld, expected at most max_tokens, which is %lld",
                    (long long)j->request.min_new_tokens, (long long)j->request.max_new_tokens);
}

/* Of two lengths the shorter one is in force. */
static void name_longer(api_reader *r, json_t *body)
{
    const double old = json_number_value(json_object_get(body, "max_tokens"));
    const double now = json_number_value(json_object_get(body, "max_completion_tokens"));
    if (old > 0 && now > 0 && old != now) {
        api_ignore(r->ignored, old > now ? "max_tokens" : "max_completion_tokens");
    }
}

static bool check_together(api_reader *r, json_t *body)
{
    job *j = r->j;
    name_longer(r, body);
    if (j->usage && !j->streams) {
        return api_wrong(r, "stream_options", "stream true beside it");
    }
    if (j->of_chat && r->n_top > 0 && !j->logprobs) {
        return api_wrong(r, "top_logprobs", "logprobs true beside it");
    }
    if (r->prompt_top >= 0 && j->streams) {
        return api_wrong(r, "prompt_logprobs", "stream false beside it");
    }
    j->prompt_alone = r->has_most && r->most == 0;
    if (j->prompt_alone && !r->echo && r->prompt_top < 0) {
        return api_wrong(r, j->of_chat ? "max_completion_tokens" : "max_tokens",
                         "at least 1; 0 goes with echo or prompt_logprobs");
    }
    if (j->prompt_alone && j->request.min_new_tokens > 0) {
        return api_wrong(r, "min_tokens", "at most max_tokens, which is 0");
    }
    j->request.logprobs = j->logprobs;
    j->request.n_top = (int32_t)r->n_top;
    j->ranks_prompt = r->prompt_top >= 0;
    j->request.prompt_logprobs = j->ranks_prompt || (r->echo && j->logprobs);
    j->n_ranked = j->ranks_prompt ? (int32_t)r->prompt_top : 0;
    j->request.n_prompt_top = j->n_ranked;
    if (r->echo && j->request.n_top > j->n_ranked) {
        j->request.n_prompt_top = j->request.n_top;
    }
    if (r->f->pairs && j->request.prompt_logprobs) {
        return api_unsupported(r, r->echo && j->logprobs ? "echo" : "prompt_logprobs",
                               "log-probabilities of prompts: this model's are sources, which it "
                               "reads as a whole");
    }
    j->own_stops = json_array_size(r->stop_ids) > 0;
    return true;
}

bool api_read(front *f, json_t *body, bool of_chat, job *j, dsi_buf *ignored, api_error *e)
{
    api_reader r = {.f = f, .j = j, .ignored = ignored, .e = e, .n = 1, .prompt_top = -1};
    j->of_chat = of_chat;
    j->f = f;
    j->request.sampling.temperature = 1.0;
    j->created = (int64_t)time(NULL);
    if (!json_is_object(body)) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "", "expected a JSON object as the body");
    }
    if (!json_is_string(json_object_get(body, "model"))) {
        return api_wrong(&r, "model", "the name of a model, as /v1/models lists it");
    }
    if (!read_rows(&r, body) || !check_together(&r, body) || !take_bias(&r) || !take_stop_ids(&r) ||
        !api_take_samplers(&r) || !api_take_beams(&r, body) || !api_take_form(&r) ||
        !api_take_tools(&r)) {
        return false;
    }
    json_t *prompt = json_object_get(body, "prompt");
    if (!of_chat && (prompt == NULL || json_is_null(prompt))) {
        return api_wrong(&r, "prompt",
                         "a text, an array of texts, of token ids, or of arrays of ids");
    }
    if (!(of_chat ? api_take_messages(&r, body) : api_take_prompts(&r, prompt)) || !fit(&r)) {
        return false;
    }
    if (!r.has_seed) {
        /* another step than that of the texts of one request (engine.c), which would meet */
        j->request.sampling.seed = f->secret + 0xd1342543de82ef95u * ++f->last_job;
    }
    return true;
}
