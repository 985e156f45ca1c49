/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP thread: paths, keys, limits, bodies in and out. See front.h.
 *
 * A connection that waits for the engine is suspended: its socket is nobody's then but the engine
 * thread's, which sees whether the client is still there.
 */
#include "front.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 1024,
    MOST_BODIES = 256 << 20 /* bytes of all bodies that are on their way */
};

/* One request of a connection. */
typedef struct exchange {
    front *f;
    dsi_buf body;
    bool seen, refused;
    job *j; /* NULL: none */
    dsi_buf ignored;
} exchange;

typedef struct route {
    const char *method, *path;
    enum MHD_Result (*answer)(exchange *x, struct MHD_Connection *c, const char *path);
    bool open;   /* without a key */
    bool prefix; /* and what stands behind the path */
} route;

static enum MHD_Result send_response(exchange *x, struct MHD_Connection *c, unsigned status,
                                     struct MHD_Response *response)
{
    front *f = x->f;
    if (x->ignored.size > 0) {
        (void)MHD_add_response_header(response, "X-Ignored-Fields", dsi_buf_text(&x->ignored));
    }
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE) {
        (void)MHD_add_response_header(response, "Retry-After", "1");
    }
    (void)pthread_mutex_lock(&f->lock);
    f->metrics.n_requests[status / 100 < 6 ? status / 100 : 5] += 1;
    const bool ends = f->draining;
    (void)pthread_mutex_unlock(&f->lock);
    if (ends) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    const enum MHD_Result result = MHD_queue_response(c, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Takes the text over. */
static enum MHD_Result send_text(exchange *x, struct MHD_Connection *c, unsigned status,
                                 const char *type, dsi_buf *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text->size, (void *)(uintptr_t)dsi_buf_text(text), MHD_RESPMEM_MUST_COPY);
    dsi_buf_free(text);
    if (response == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return send_response(x, c, status, response);
}

static enum MHD_Result send_error(exchange *x, struct MHD_Connection *c, const api_error *e)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    api_error_print(e, &text);
    return send_text(x, c, e->status, "application/json", &text);
}

static enum MHD_Result refuse(exchange *x, struct MHD_Connection *c, unsigned status,
                              const char *code, const char *message)
{
    api_error e;
    (void)api_fail(&e, status, code, "", "%s", message);
    return send_error(x, c, &e);
}

/* Whether another text may be asked for now. */
static bool may_begin(front *f, api_error *e)
{
    (void)pthread_mutex_lock(&f->lock);
    const bool over = f->draining || f->broken;
    const bool full = f->n_jobs >= f->options->max_waiting + f->metrics.stats.max_sequences;
    (void)pthread_mutex_unlock(&f->lock);
    if (over) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "the server ends");
    }
    return !full || api_fail(e, MHD_HTTP_TOO_MANY_REQUESTS, "queue_full", "",
                             "too many requests wait (--max_waiting %lld)",
                             (long long)f->options->max_waiting);
}

/* ---- plain answers ---- */
static enum MHD_Result answer_health(exchange *x, struct MHD_Connection *c, const char *path)
{
    front *f = x->f;
    (void)path;
    (void)pthread_mutex_lock(&f->lock);
    const bool draining = f->draining;
    const bool broken = f->broken;
    (void)pthread_mutex_unlock(&f->lock);
    dsi_buf text = dsi_buf_make(256 + 256 * f->n_ranks);
    dsi_buf_printf(&text, "{\"status\":\"%s\"", broken ? "broken" : draining ? "draining" : "ok");
    ranks_print(f, &text);
    dsi_buf_puts(&text, "}\n");
    return send_text(x, c, draining || broken ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
                     "application/json", &text);
}

/* Whether a text could begin now: for who shares requests among servers. */
static enum MHD_Result answer_ready(exchange *x, struct MHD_Connection *c, const char *path)
{
    api_error e = {0};
    dsi_buf text = dsi_buf_make(256);
    (void)path;
    if (!may_begin(x->f, &e)) {
        e.status = MHD_HTTP_SERVICE_UNAVAILABLE;
        return send_error(x, c, &e);
    }
    dsi_buf_puts(&text, "{\"status\":\"ready\"}\n");
    return send_text(x, c, MHD_HTTP_OK, "application/json", &text);
}

static enum MHD_Result answer_slots(exchange *x, struct MHD_Connection *c, const char *path)
{
    dsi_buf text = dsi_buf_make(64u << 20);
    (void)path;
    (void)pthread_mutex_lock(&x->f->lock);
    slots_print(x->f, &text);
    (void)pthread_mutex_unlock(&x->f->lock);
    return send_text(x, c, MHD_HTTP_OK, "application/json", &text);
}

/* adapter NULL: the model itself. */
static void put_model(front *f, const front_adapter *adapter, dsi_buf *text)
{
    dsi_buf_puts(text, "{\"id\":");
    put_clean(text, adapter != NULL ? adapter->name : f->name,
              strlen(adapter != NULL ? adapter->name : f->name));
    dsi_buf_printf(text, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"local\",",
                   (long long)(adapter != NULL ? adapter->created : f->created));
    if (adapter != NULL) {
        dsi_buf_puts(text, "\"parent\":");
        put_clean(text, f->name, strlen(f->name));
        dsi_buf_putc(text, ',');
    }
    dsi_buf_printf(text, "\"max_model_len\":%lld,\"vocab_size\":%lld}", (long long)f->max_length,
                   (long long)f->vocab_size);
}

static enum MHD_Result answer_models(exchange *x, struct MHD_Connection *c, const char *path)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    (void)path;
    dsi_buf_puts(&text, "{\"object\":\"list\",\"data\":[");
    put_model(x->f, NULL, &text);
    for (size_t i = 0; i < x->f->n_adapters; ++i) {
        dsi_buf_putc(&text, ',');
        put_model(x->f, &x->f->adapters[i], &text);
    }
    dsi_buf_puts(&text, "]}\n");
    return send_text(x, c, MHD_HTTP_OK, "application/json", &text);
}

static enum MHD_Result answer_model(exchange *x, struct MHD_Connection *c, const char *path)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    const front_adapter *adapter = lora_find(x->f, path);
    if (strcmp(path, x->f->name) != 0 && adapter == NULL) {
        return refuse(x, c, MHD_HTTP_NOT_FOUND, "model_not_found", "there is no such model here");
    }
    put_model(x->f, adapter, &text);
    dsi_buf_putc(&text, '\n');
    return send_text(x, c, MHD_HTTP_OK, "application/json", &text);
}

static enum MHD_Result answer_metrics(exchange *x, struct MHD_Connection *c, const char *path)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    (void)path;
    (void)pthread_mutex_lock(&x->f->lock);
    metrics_print(x->f, &text);
    (void)pthread_mutex_unlock(&x->f->lock);
    return send_text(x, c, MHD_HTTP_OK, "text/plain; version=0.0.4", &text);
}

/* ---- bodies ---- */
static json_t *parse(exchange *x, api_error *e)
{
    json_error_t error;
    json_t *body = json_loadb(dsi_buf_text(&x->body), x->body.size, JSON_REJECT_DUPLICATES, &error);
    if (body == NULL || !json_is_object(body)) {
        (void)api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "", "the body is no JSON object: %.200s",
                       body == NULL ? error.text : "it is something else");
        json_decref(body);
        return NULL;
    }
    return body;
}

static enum MHD_Result answer_tokenize(exchange *x, struct MHD_Connection *c, const char *path)
{
    front *f = x->f;
    api_error e = {0};
    const char *key = NULL;
    json_t *value = NULL;
    ds_tokens tokens;
    uint32_t flags = 0;
    (void)path;
    json_t *body = parse(x, &e);
    json_t *content = json_object_get(body, "content");
    bool ok = body != NULL;
    json_object_foreach(body, key, value)
    {
        if (ok && strcmp(key, "add_special") == 0 && json_is_boolean(value)) {
            flags |= json_is_true(value) ? DS_ENCODE_ADD_SPECIAL : 0;
        } else if (ok && strcmp(key, "parse_special") == 0 && json_is_boolean(value)) {
            flags |= json_is_true(value) ? 0 : DS_ENCODE_NO_SPECIAL_PARSE;
        } else if (ok && strcmp(key, "content") != 0) {
            ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                          "expected content, and true or false as add_special and parse_special");
        }
    }
    if (ok && !json_is_string(content)) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "content", "content: expected a text");
    }
    if (ok && ds_tokenizer_encode(f->tokenizer, f->scratch, json_string_value(content),
                                  json_string_length(content), flags, &tokens) < 0) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "content", "%.400s",
                      ds_ctx_error(f->http_ctx));
    }
    json_decref(body);
    if (!ok) {
        return send_error(x, c, &e);
    }
    dsi_buf text = dsi_buf_make(1u << 30);
    dsi_buf_puts(&text, "{\"tokens\":[");
    for (size_t i = 0; i < tokens.n; ++i) {
        dsi_buf_printf(&text, i > 0 ? ",%u" : "%u", tokens.ids[i]);
    }
    dsi_buf_puts(&text, "]}\n");
    return send_text(x, c, MHD_HTTP_OK, "application/json", &text);
}

/* The ids of an array; false: something else is among them. */
static bool read_ids(const front *f, json_t *array, uint32_t *ids)
{
    for (size_t i = 0; i < json_array_size(array); ++i) {
        json_t *v = json_array_get(array, i);
        const json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= ds_tokenizer_vocab_size(f->tokenizer)) {
            return false;
        }
        ids[i] = (uint32_t)id;
    }
    return true;
}

static enum MHD_Result answer_detokenize(exchange *x, struct MHD_Connection *c, const char *path)
{
    front *f = x->f;
    api_error e = {0};
    char *text = NULL;
    size_t size = 0;
    (void)path;
    json_t *body = parse(x, &e);
    json_t *tokens = json_object_get(body, "tokens");
    const size_t n = json_array_size(tokens);
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    bool ok = body != NULL;
    if (ok && (!json_is_array(tokens) || json_object_size(body) != 1 || ids == NULL ||
               !read_ids(f, tokens, ids))) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "tokens",
                      "expected tokens alone: an array of ids of the tokenizer");
    }
    if (ok && ds_tokenizer_decode(f->tokenizer, ids, n, DS_DECODE_REPAIR, &text, &size) < 0) {
        ok =
            api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "tokens", "%.400s", ds_ctx_error(f->http_ctx));
    }
    free(ids);
    json_decref(body);
    if (!ok) {
        return send_error(x, c, &e);
    }
    dsi_buf out = dsi_buf_make(1u << 30);
    dsi_buf_puts(&out, "{\"content\":\"");
    dsi_buf_json(&out, text, size);
    dsi_buf_puts(&out, "\"}\n");
    free(text);
    return send_text(x, c, MHD_HTTP_OK, "application/json", &out);
}

static enum MHD_Result answer_template(exchange *x, struct MHD_Connection *c, const char *path)
{
    api_error e = {0};
    ds_chat_text text = {0};
    const char *key = NULL;
    json_t *value = NULL;
    (void)path;
    json_t *body = parse(x, &e);
    bool ok = body != NULL;
    json_object_foreach(body, key, value)
    {
        if (ok && strcmp(key, "messages") != 0 && strcmp(key, "chat_template_kwargs") != 0 &&
            strcmp(key, "tools") != 0) {
            ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, "unknown_field", key,
                          "expected messages, tools and chat_template_kwargs");
        }
    }
    ok = ok && api_render(x->f, body, &text, &e);
    json_decref(body);
    if (!ok) {
        return send_error(x, c, &e);
    }
    dsi_buf out = dsi_buf_make(1u << 30);
    dsi_buf_puts(&out, "{\"prompt\":\"");
    dsi_buf_json(&out, text.text, text.size);
    dsi_buf_puts(&out, "\"}\n");
    ds_chat_text_free(&text);
    return send_text(x, c, MHD_HTTP_OK, "application/json", &out);
}

/* ---- texts ---- */
/* What a stream sends next. Called by the HTTP thread alone. */
static ssize_t read_stream(void *opaque, uint64_t at, char *to, size_t room)
{
    job *j = opaque;
    front *f = j->f;
    ssize_t n = 0;
    (void)at;
    (void)pthread_mutex_lock(&f->lock);
    const size_t left = j->out.size - j->n_sent;
    if (left > 0) {
        n = (ssize_t)(left < room ? left : room);
        memcpy(to, j->out.data + j->n_sent, (size_t)n);
        j->n_sent += (size_t)n;
        if (j->n_sent == j->out.size) { /* a long text does not grow what is kept */
            dsi_buf_clear(&j->out);
            j->n_sent = 0;
        }
    } else if (j->done) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (j->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    (void)pthread_mutex_unlock(&f->lock);
    return n;
}

static void drop(job *j)
{
    front *f = j->f;
    (void)pthread_mutex_lock(&f->lock);
    j->gone = true;
    j->suspended = false;
    job_release(j);
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_mutex_unlock(&f->lock);
}

static void drop_body(exchange *x)
{
    x->f->n_body -= x->body.size;
    dsi_buf_free(&x->body);
}

static job *make_job(exchange *x, struct MHD_Connection *c, const char *kind)
{
    front *f = x->f;
    job *j = calloc(1, sizeof *j);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (j == NULL) {
        return NULL;
    }
    j->f = f;
    j->connection = c;
    j->fd = info != NULL ? (int)info->connect_fd : -1;
    j->holders = 1;
    j->out = dsi_buf_make(512u << 20);
    j->arrived = dsi_clock_seconds();
    (void)pthread_mutex_lock(&f->lock);
    f->n_jobs += 1;
    (void)snprintf(j->id, sizeof j->id, "%s-%llx%06llx", kind, (unsigned long long)f->created,
                   (unsigned long long)++f->last_job);
    (void)pthread_mutex_unlock(&f->lock);
    return j;
}

static enum MHD_Result begin_stream(exchange *x, struct MHD_Connection *c)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, x->j, NULL);
    if (response == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    (void)MHD_add_response_header(response, "X-Request-Id", x->j->id);
    return send_response(x, c, MHD_HTTP_OK, response);
}

/* Reads the body of a job; that of a response becomes one of a chat first. */
static bool read_job(exchange *x, job *j, json_t *body, bool of_chat, api_error *e)
{
    if (j->embeds) {
        return embed_read(x->f, body, j, &x->ignored, e);
    }
    if (x->f->server == NULL) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, "unsupported", "model",
                        "the model is an encoder: it gives no text; ask /v1/embeddings");
    }
    if (j->of_mii) {
        json_t *completion = mii_body(body, j->model_asked, j, e);
        const bool fine =
            completion != NULL && api_read(x->f, completion, false, j, &x->ignored, e);
        json_decref(completion);
        return fine;
    }
    if (!j->of_response) {
        return api_read(x->f, body, of_chat, j, &x->ignored, e);
    }
    j->echoed = dsi_buf_make((size_t)x->f->options->max_body * 8);
    json_t *chat = response_body(body, &j->echoed, &x->ignored, e);
    const bool ok = chat != NULL && api_read(x->f, chat, true, j, &x->ignored, e);
    json_decref(chat);
    return ok;
}

/* kind: how its id begins; name: of the model, where the path says it. */
static enum MHD_Result begin_job(exchange *x, struct MHD_Connection *c, const char *kind,
                                 const char *name)
{
    front *f = x->f;
    api_error e = {0};
    if (!may_begin(f, &e)) {
        return send_error(x, c, &e);
    }
    json_t *body = parse(x, &e);
    if (body == NULL) {
        return send_error(x, c, &e);
    }
    job *j = make_job(x, c, kind);
    if (j != NULL) {
        j->of_response = strcmp(kind, "resp") == 0;
        j->embeds = strcmp(kind, "embd") == 0;
        j->of_mii = strcmp(kind, "mii") == 0;
        j->model_asked = name;
    }
    const bool ok = j != NULL && read_job(x, j, body, strcmp(kind, "chatcmpl") == 0, &e);
    json_decref(body);
    drop_body(x);
    if (!ok) {
        if (j != NULL) {
            drop(j);
        }
        return send_error(x, c, &e);
    }
    x->j = j;
    (void)pthread_mutex_lock(&f->lock);
    if (f->stop) {
        (void)pthread_mutex_unlock(&f->lock);
        return refuse(x, c, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "the server ends");
    }
    j->holders = 2;
    j->next = NULL;
    *f->queued_end = j;
    f->queued_end = &j->next;
    if (!j->streams) {
        j->suspended = true;
        MHD_suspend_connection(c);
    }
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_mutex_unlock(&f->lock);
    return j->streams ? begin_stream(x, c) : MHD_YES;
}

/* A connection that waited for its whole text. */
static enum MHD_Result end_job(exchange *x, struct MHD_Connection *c)
{
    job *j = x->j;
    front *f = j->f;
    (void)pthread_mutex_lock(&f->lock);
    const bool done = j->done;
    const bool gone = j->gone;
    const unsigned status = j->status;
    dsi_buf text = j->out;
    if (done) {
        j->out = dsi_buf_make(0);
    } else if (!gone) {
        j->suspended = true;
        MHD_suspend_connection(c);
    }
    (void)pthread_mutex_unlock(&f->lock);
    if (!done) {
        return gone ? MHD_NO : MHD_YES;
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text.size, (void *)(uintptr_t)dsi_buf_text(&text), MHD_RESPMEM_MUST_COPY);
    dsi_buf_free(&text);
    if (response == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
    (void)MHD_add_response_header(response, "X-Request-Id", j->id);
    return send_response(x, c, status, response);
}

static enum MHD_Result answer_chat(exchange *x, struct MHD_Connection *c, const char *path)
{
    (void)path;
    return begin_job(x, c, "chatcmpl", NULL);
}

static enum MHD_Result answer_completion(exchange *x, struct MHD_Connection *c, const char *path)
{
    (void)path;
    return begin_job(x, c, "cmpl", NULL);
}

static enum MHD_Result answer_embeddings(exchange *x, struct MHD_Connection *c, const char *path)
{
    (void)path;
    return begin_job(x, c, "embd", NULL);
}

static enum MHD_Result answer_response(exchange *x, struct MHD_Connection *c, const char *path)
{
    (void)path;
    return begin_job(x, c, "resp", NULL);
}

static enum MHD_Result answer_mii(exchange *x, struct MHD_Connection *c, const char *path)
{
    return begin_job(x, c, "mii", path);
}

/* MII's. */
static enum MHD_Result answer_healthz(exchange *x, struct MHD_Connection *c, const char *path)
{
    dsi_buf text = dsi_buf_make(16);
    (void)path;
    (void)pthread_mutex_lock(&x->f->lock);
    const bool well = !x->f->draining && !x->f->broken;
    (void)pthread_mutex_unlock(&x->f->lock);
    dsi_buf_puts(&text, well ? "ok" : "ends");
    return send_text(x, c, well ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain", &text);
}

static enum MHD_Result update_lora(exchange *x, struct MHD_Connection *c, bool loads)
{
    api_error e = {0};
    json_t *body = parse(x, &e);
    const bool ok = body != NULL && (loads ? lora_load : lora_unload)(x->f, body, &e);
    json_decref(body);
    if (!ok) {
        return send_error(x, c, &e);
    }
    dsi_buf text = dsi_buf_make(256);
    dsi_buf_puts(&text, "{\"status\":\"ok\"}\n");
    return send_text(x, c, MHD_HTTP_OK, "application/json", &text);
}

static enum MHD_Result answer_load(exchange *x, struct MHD_Connection *c, const char *path)
{
    (void)path;
    return update_lora(x, c, true);
}

static enum MHD_Result answer_unload(exchange *x, struct MHD_Connection *c, const char *path)
{
    (void)path;
    return update_lora(x, c, false);
}

/* Other weights: {"model": a folder or file of this machine}, or {} for what is served. */
static enum MHD_Result answer_reload(exchange *x, struct MHD_Connection *c, const char *path)
{
    front *f = x->f;
    api_error e = {0};
    const char *key = NULL;
    json_t *value = NULL;
    (void)path;
    json_t *body = x->body.size > 0 ? parse(x, &e) : json_object();
    json_t *model = json_object_get(body, "model");
    bool ok = body != NULL;
    json_object_foreach(body, key, value)
    {
        if (ok && strcmp(key, "model") != 0) {
            ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, "unknown_field", key, "expected model alone");
        }
    }
    if (ok && model != NULL && !json_is_string(model)) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "model", "model: expected a folder or file");
    }
    if (ok && f->n_keys == 0) {
        ok = api_fail(&e, MHD_HTTP_FORBIDDEN, "not_allowed", "",
                      "requests may reload only where clients have keys (--api_key_file); SIGHUP "
                      "reloads what is served");
    }
    job *j = ok ? make_job(x, c, "reload") : NULL;
    ok = ok && (j != NULL || api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory"));
    ok = ok && reload_begin(f, json_string_value(model), j, &e);
    json_decref(body);
    drop_body(x);
    if (!ok) {
        if (j != NULL) {
            drop(j);
        }
        return send_error(x, c, &e);
    }
    x->j = j;
    return MHD_YES;
}

static enum MHD_Result answer_page(exchange *x, struct MHD_Connection *c, const char *path)
{
    struct MHD_Response *response = page_response();
    (void)path;
    return response == NULL ? MHD_NO : send_response(x, c, MHD_HTTP_OK, response);
}

static const route routes[] = {
    {"GET", "/", answer_page, true, false},
    {"POST", "/v1/reload", answer_reload, false, false},
    {"POST", "/v1/chat/completions", answer_chat, false, false},
    {"POST", "/v1/completions", answer_completion, false, false},
    {"POST", "/v1/responses", answer_response, false, false},
    {"POST", "/v1/embeddings", answer_embeddings, false, false},
    {"POST", "/v1/load_lora_adapter", answer_load, false, false},
    {"POST", "/v1/unload_lora_adapter", answer_unload, false, false},
    {"POST", "/mii/", answer_mii, false, true},
    {"GET", "/healthz", answer_healthz, true, false},
    {"GET", "/v1/models", answer_models, false, false},
    {"GET", "/v1/models/", answer_model, false, true},
    {"GET", "/health", answer_health, true, false},
    {"GET", "/ready", answer_ready, true, false},
    {"GET", "/metrics", answer_metrics, false, false},
    {"GET", "/slots", answer_slots, false, false},
    {"POST", "/tokenize", answer_tokenize, false, false},
    {"POST", "/detokenize", answer_detokenize, false, false},
    {"POST", "/apply-template", answer_template, false, false},
};

/* ---- connections ---- */
static const route *find_route(const char *method, const char *path, bool *path_known)
{
    *path_known = false;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; ++i) {
        const route *r = &routes[i];
        const size_t n = strlen(r->path);
        if (r->prefix ? strncmp(path, r->path, n) != 0 || path[n] == '\0'
                      : strcmp(path, r->path) != 0) {
            continue;
        }
        *path_known = true;
        if (strcmp(method, r->method) == 0 ||
            (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0)) {
            return r;
        }
    }
    return NULL;
}

/* What can be said before the body is there. */
static enum MHD_Result look(exchange *x, struct MHD_Connection *c, const route *r, bool path_known)
{
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    x->refused = true;
    if (r == NULL) {
        return path_known
                   ? refuse(x, c, MHD_HTTP_METHOD_NOT_ALLOWED, NULL, "another method is expected")
                   : refuse(x, c, MHD_HTTP_NOT_FOUND, "unknown_path", "there is no such path here");
    }
    if (!r->open && !listen_has_key(x->f->keys, x->f->n_keys, c)) {
        return refuse(x, c, MHD_HTTP_UNAUTHORIZED, "invalid_api_key",
                      "expected a key of this server in the header Authorization: Bearer …");
    }
    if (length != NULL && strtoull(length, NULL, 10) > (uint64_t)x->f->options->max_body) {
        return refuse(x, c, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large",
                      "the body is larger than this server takes (--max_body)");
    }
    x->refused = false;
    return MHD_YES;
}

static enum MHD_Result handle(void *opaque, struct MHD_Connection *c, const char *path,
                              const char *method, const char *version, const char *data,
                              size_t *n_data, void **of_exchange)
{
    exchange *x = *of_exchange;
    bool path_known = false;
    const route *r = find_route(method, path, &path_known);
    (void)version;
    if (x == NULL) {
        return MHD_NO;
    }
    x->f = opaque;
    if (!x->seen) {
        x->seen = true;
        x->body = dsi_buf_make((size_t)x->f->options->max_body);
        x->ignored = dsi_buf_make(HEADER_BYTES);
        return look(x, c, r, path_known);
    }
    if (*n_data > 0) {
        if (!x->refused && x->f->n_body + *n_data > MOST_BODIES) {
            x->body.failed = true; /* many clients send much at a time */
        } else if (!x->refused) {
            const size_t before = x->body.size;
            dsi_buf_append(&x->body, data, *n_data);
            x->f->n_body += x->body.size - before;
        }
        *n_data = 0;
        return MHD_YES;
    }
    if (x->refused || r == NULL) {
        return MHD_YES; /* the answer is queued */
    }
    if (x->body.failed) {
        return refuse(x, c, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large",
                      "the body is larger than this server takes (--max_body)");
    }
    return x->j != NULL ? end_job(x, c) : r->answer(x, c, path + (r->prefix ? strlen(r->path) : 0));
}

static void *begin_exchange(void *opaque, const char *uri, struct MHD_Connection *c)
{
    front *f = opaque;
    exchange *x = calloc(1, sizeof *x);
    (void)uri;
    (void)c;
    atomic_fetch_add(&f->n_exchanges, x != NULL);
    return x;
}

static void end_exchange(void *opaque, struct MHD_Connection *c, void **of_exchange,
                         enum MHD_RequestTerminationCode code)
{
    exchange *x = *of_exchange;
    front *f = opaque;
    (void)c;
    (void)code;
    if (x == NULL) {
        return;
    }
    if (x->j != NULL) {
        drop(x->j);
    }
    if (x->f != NULL) {
        drop_body(x);
    }
    dsi_buf_free(&x->ignored);
    free(x);
    *of_exchange = NULL;
    atomic_fetch_sub(&f->n_exchanges, 1);
}

ds_status http_start(ds_ctx *ctx, front *f)
{
    const listen_params params = {.options = f->options,
                                  .tls_cert = f->tls_cert,
                                  .tls_key = f->tls_key,
                                  .handle = handle,
                                  .begin = begin_exchange,
                                  .end = end_exchange,
                                  .user = f};
    return listen_start(ctx, &params, &f->daemon);
}
