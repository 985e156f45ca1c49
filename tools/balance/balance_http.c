/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP thread of the front of replicas: bodies in, answers out. See balance.h. */
#include "balance.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BODIES = 256 << 20, PAGE_CEILING = 64 << 20, OUT_CEILING = 512 << 20 };

typedef struct exchange {
    balance *b;
    dsi_buf body;
    bool seen, refused;
    ask *a; /* NULL: none */
} exchange;

typedef enum path_kind { PATH_RELAYED, PATH_BARE, PATH_PAGE } path_kind;

typedef struct route {
    const char *method, *path;
    path_kind kind; /* BARE: relayed without "model", which the replica does not know there */
    bool open;      /* without a key */
} route;

static const route routes[] = {
    {"POST", "/v1/chat/completions", PATH_RELAYED, false},
    {"POST", "/v1/completions", PATH_RELAYED, false},
    {"POST", "/v1/responses", PATH_RELAYED, false},
    {"POST", "/v1/embeddings", PATH_RELAYED, false},
    {"POST", "/tokenize", PATH_BARE, false},
    {"POST", "/detokenize", PATH_BARE, false},
    {"POST", "/apply-template", PATH_BARE, false},
    {"GET", "/", PATH_PAGE, true},
    {"GET", "/v1/models", PATH_PAGE, false},
    {"GET", "/v1/models/", PATH_PAGE, false}, /* and what stands behind it */
    {"GET", "/health", PATH_PAGE, true},
    {"GET", "/ready", PATH_PAGE, true},
    {"GET", "/metrics", PATH_PAGE, false},
};

static enum MHD_Result send_response(balance *b, struct MHD_Connection *c, unsigned status,
                                     struct MHD_Response *response)
{
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE) {
        (void)MHD_add_response_header(response, "Retry-After", "1");
    }
    (void)pthread_mutex_lock(&b->lock);
    b->n_answers[status / 100 < 6 ? status / 100 : 5] += 1;
    const bool draining = b->draining;
    (void)pthread_mutex_unlock(&b->lock);
    if (draining) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    const enum MHD_Result result = MHD_queue_response(c, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Takes the text over. */
static enum MHD_Result send_text(balance *b, struct MHD_Connection *c, unsigned status,
                                 const char *type, dsi_buf *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        text->size, (void *)(uintptr_t)dsi_buf_text(text), MHD_RESPMEM_MUST_COPY);
    dsi_buf_free(text);
    if (response == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return send_response(b, c, status, response);
}

static enum MHD_Result send_error(balance *b, struct MHD_Connection *c, const api_error *e)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    api_error_print(e, &text);
    return send_text(b, c, e->status, "application/json", &text);
}

static enum MHD_Result refuse(balance *b, struct MHD_Connection *c, unsigned status,
                              const char *code, const char *message)
{
    api_error e;
    (void)api_fail(&e, status, code, "", "%s", message);
    return send_error(b, c, &e);
}

static enum MHD_Result answer_page(balance *b, struct MHD_Connection *c, const char *path)
{
    if (strcmp(path, "/") == 0) {
        struct MHD_Response *response = page_response();
        return response == NULL ? MHD_NO : send_response(b, c, MHD_HTTP_OK, response);
    }
    dsi_buf text = dsi_buf_make(PAGE_CEILING);
    unsigned status = MHD_HTTP_OK;
    const char *type = "application/json";
    (void)pthread_mutex_lock(&b->lock);
    if (strcmp(path, "/health") == 0) {
        pages_health(b, &text, &status);
    } else if (strcmp(path, "/ready") == 0) {
        pages_ready(b, &text, &status);
    } else if (strcmp(path, "/metrics") == 0) {
        pages_metrics(b, &text);
        type = "text/plain; version=0.0.4";
    } else if (strcmp(path, "/v1/models") == 0) {
        pages_models(b, &text);
    } else if (!pages_model(b, path + strlen("/v1/models/"), &text)) {
        status = MHD_HTTP_NOT_FOUND;
    }
    (void)pthread_mutex_unlock(&b->lock);
    if (status == MHD_HTTP_NOT_FOUND) {
        dsi_buf_free(&text);
        return refuse(b, c, status, "model_not_found", "there is no such model here");
    }
    return send_text(b, c, status, type, &text);
}

/* ---- which prompts begin alike ---- */
static void mark_text(ask *a, const char *text)
{
    route_mark(&a->marks, text, strlen(text) + 1); /* with its end */
}

static void mark_value(ask *a, json_t *value)
{
    if (json_is_string(value)) {
        mark_text(a, json_string_value(value));
    } else if (value != NULL) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        mark_text(a, text != NULL ? text : "");
        free(text);
    }
}

/* In the order of the prompt. A text that only goes on behind another one begins as it does. */
static void mark_prompt(ask *a, json_t *body)
{
    size_t i = 0;
    json_t *message = NULL;
    json_t *lora = json_object_get(body, "lora");
    json_t *prompt = json_object_get(body, "prompt");
    mark_text(a, a->model);
    mark_value(a, lora);
    mark_value(a, json_object_get(body, "tools"));
    mark_value(a, json_object_get(body, "instructions"));
    json_array_foreach(json_object_get(body, "messages"), i, message)
    {
        mark_value(a, message);
    }
    if (json_is_string(prompt)) {
        mark_text(a, json_string_value(prompt));
    } else if (json_is_array(prompt)) {
        json_t *first = json_array_get(prompt, 0);
        mark_value(a, json_is_integer(first) ? prompt : first);
    }
    mark_value(a, json_object_get(body, "input"));
}

/* ---- requests ---- */
static bool is_known(balance *b, const char *model, bool *several_out)
{
    bool known = false;
    const char *first = NULL;
    *several_out = false;
    for (size_t i = 0; i < b->n; ++i) {
        size_t k = 0;
        json_t *one = NULL;
        known = known || replica_has(&b->replicas[i], model) || b->replicas[i].models == NULL;
        json_array_foreach(b->replicas[i].models, k, one)
        {
            const char *id = json_string_value(json_object_get(one, "id"));
            const bool base = json_object_get(one, "parent") == NULL; /* no adapter */
            if (base && id != NULL) {
                *several_out = *several_out || (first != NULL && strcmp(first, id) != 0);
                first = id;
            }
        }
    }
    return known;
}

/* Fills the request from the body; false: *e. */
static bool read_ask(exchange *x, ask *a, const route *r, json_t *body, api_error *e)
{
    balance *b = x->b;
    json_t *model = json_object_get(body, "model");
    const char *name = json_string_value(model);
    bool several = false;
    if (model != NULL && (name == NULL || strlen(name) >= sizeof a->model)) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "model", "model: expected a name");
    }
    (void)snprintf(a->model, sizeof a->model, "%s", name != NULL ? name : "");
    (void)pthread_mutex_lock(&b->lock);
    const bool known = is_known(b, a->model, &several);
    const bool over = b->draining || b->stop;
    (void)pthread_mutex_unlock(&b->lock);
    if (over) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "the server ends");
    }
    if (!known) {
        return api_fail(e, MHD_HTTP_NOT_FOUND, "model_not_found", "model",
                        "no replica has the model %.200s; /v1/models lists those that are there",
                        a->model);
    }
    if (name == NULL && several) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "model",
                        "model: several are served here, name one (/v1/models lists them)");
    }
    mark_prompt(a, body);
    if (r->kind == PATH_BARE && model != NULL) {
        (void)json_object_del(body, "model");
        char *text = json_dumps(body, JSON_COMPACT);
        a->sent = dsi_buf_make(x->body.ceiling * 6 + 64); /* what was plain may be escaped */
        dsi_buf_puts(&a->sent, text != NULL ? text : "");
        free(text);
    } else {
        a->sent = dsi_buf_make(x->body.ceiling);
        dsi_buf_append(&a->sent, dsi_buf_text(&x->body), x->body.size);
    }
    return a->sent.failed ? api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory") : true;
}

static void drop_body(exchange *x)
{
    x->b->n_body -= x->body.size;
    dsi_buf_free(&x->body);
}

static void drop(ask *a)
{
    balance *b = a->b;
    (void)pthread_mutex_lock(&b->lock);
    a->gone = true;
    a->suspended = false;
    ask_release(a);
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
}

static ask *make_ask(balance *b, struct MHD_Connection *c, const route *r)
{
    ask *a = calloc(1, sizeof *a);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (a == NULL) {
        return NULL;
    }
    a->b = b;
    a->connection = c;
    a->fd = info != NULL ? (int)info->connect_fd : -1;
    a->holders = 1;
    a->method = r->method;
    (void)snprintf(a->path, sizeof a->path, "%s", r->path);
    a->of_response = strcmp(r->path, "/v1/responses") == 0;
    a->call.fd = -1;
    a->out = dsi_buf_make(OUT_CEILING);
    (void)pthread_mutex_lock(&b->lock);
    b->n_asks += 1;
    (void)pthread_mutex_unlock(&b->lock);
    return a;
}

static enum MHD_Result begin_ask(exchange *x, struct MHD_Connection *c, const route *r)
{
    balance *b = x->b;
    api_error e = {0};
    json_error_t error;
    json_t *body = json_loadb(dsi_buf_text(&x->body), x->body.size, JSON_REJECT_DUPLICATES, &error);
    ask *a = make_ask(b, c, r);
    bool ok = a != NULL;
    if (!ok) {
        (void)api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory");
    } else if (!json_is_object(body)) {
        ok = api_fail(&e, MHD_HTTP_BAD_REQUEST, NULL, "", "the body is no JSON object: %.200s",
                      body == NULL ? error.text : "it is something else");
    }
    ok = ok && read_ask(x, a, r, body, &e);
    json_decref(body);
    drop_body(x);
    if (!ok) {
        if (a != NULL) {
            drop(a);
        }
        return send_error(b, c, &e);
    }
    x->a = a;
    (void)pthread_mutex_lock(&b->lock);
    if (b->stop) {
        (void)pthread_mutex_unlock(&b->lock);
        return refuse(b, c, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "the server ends");
    }
    a->holders = 2;
    *b->queued_end = a;
    b->queued_end = &a->next;
    a->suspended = true;
    MHD_suspend_connection(c);
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
    return MHD_YES;
}

/* What a stream sends next. */
static ssize_t read_stream(void *opaque, uint64_t at, char *to, size_t room)
{
    ask *a = opaque;
    balance *b = a->b;
    ssize_t n = 0;
    (void)at;
    (void)pthread_mutex_lock(&b->lock);
    const size_t left = a->out.size - a->n_out;
    if (left > 0) {
        n = (ssize_t)(left < room ? left : room);
        memcpy(to, a->out.data + a->n_out, (size_t)n);
        a->n_out += (size_t)n;
        if (a->n_out == a->out.size) {
            dsi_buf_clear(&a->out);
            a->n_out = 0;
        }
    } else if (a->done) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (a->gone) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        a->suspended = true;
        MHD_suspend_connection(a->connection);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return n;
}

/* A connection that waited for the begin of a stream, or for a whole answer. */
static enum MHD_Result end_ask(exchange *x, struct MHD_Connection *c)
{
    ask *a = x->a;
    balance *b = x->b;
    struct MHD_Response *response = NULL;
    (void)pthread_mutex_lock(&b->lock);
    const bool streams = a->begun && a->streams;
    const bool gone = a->gone;
    const bool waits = !gone && !streams && !a->done;
    if (waits) {
        a->suspended = true;
        MHD_suspend_connection(c);
    } else if (streams) {
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, a, NULL);
    } else if (!gone) {
        response = MHD_create_response_from_buffer(
            a->out.size, (void *)(uintptr_t)dsi_buf_text(&a->out), MHD_RESPMEM_MUST_COPY);
        dsi_buf_free(&a->out);
    }
    (void)pthread_mutex_unlock(&b->lock);
    if (waits || response == NULL) {
        return waits ? MHD_YES : MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                                  a->type[0] != '\0' ? a->type : "application/json");
    if (streams) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    }
    if (a->ignored[0] != '\0') {
        (void)MHD_add_response_header(response, "X-Ignored-Fields", a->ignored);
    }
    if (a->request_id[0] != '\0') {
        (void)MHD_add_response_header(response, "X-Request-Id", a->request_id);
    }
    return send_response(b, c, a->status, response);
}

/* ---- connections ---- */
static const route *find_route(const char *method, const char *path, bool *path_known)
{
    *path_known = false;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; ++i) {
        const route *r = &routes[i];
        const size_t n = strlen(r->path);
        if (n > 1 && r->path[n - 1] == '/' ? strncmp(path, r->path, n) != 0 || path[n] == '\0'
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
    balance *b = x->b;
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    x->refused = true;
    if (r == NULL) {
        return path_known
                   ? refuse(b, c, MHD_HTTP_METHOD_NOT_ALLOWED, NULL, "another method is expected")
                   : refuse(b, c, MHD_HTTP_NOT_FOUND, "unknown_path",
                            "there is no such path at the front of replicas");
    }
    if (!r->open && !listen_has_key(b->keys, b->n_keys, c)) {
        return refuse(b, c, MHD_HTTP_UNAUTHORIZED, "invalid_api_key",
                      "expected a key of this server in the header Authorization: Bearer …");
    }
    if (length != NULL && strtoull(length, NULL, 10) > (uint64_t)b->o->max_body) {
        return refuse(b, c, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large",
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
    x->b = opaque;
    if (!x->seen) {
        x->seen = true;
        x->body = dsi_buf_make((size_t)x->b->o->max_body);
        return look(x, c, r, path_known);
    }
    if (*n_data > 0) {
        if (!x->refused && x->b->n_body + *n_data > MOST_BODIES) {
            x->body.failed = true; /* many clients send much at a time */
        } else if (!x->refused) {
            const size_t before = x->body.size;
            dsi_buf_append(&x->body, data, *n_data);
            x->b->n_body += x->body.size - before;
        }
        *n_data = 0;
        return MHD_YES;
    }
    if (x->refused || r == NULL) {
        return MHD_YES; /* the answer is queued */
    }
    if (x->body.failed) {
        return refuse(x->b, c, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large",
                      "the body is larger than this server takes (--max_body)");
    }
    if (r->kind == PATH_PAGE) {
        return answer_page(x->b, c, path);
    }
    return x->a != NULL ? end_ask(x, c) : begin_ask(x, c, r);
}

static void *begin_exchange(void *opaque, const char *uri, struct MHD_Connection *c)
{
    balance *b = opaque;
    exchange *x = calloc(1, sizeof *x);
    (void)uri;
    (void)c;
    atomic_fetch_add(&b->n_exchanges, x != NULL);
    return x;
}

static void end_exchange(void *opaque, struct MHD_Connection *c, void **of_exchange,
                         enum MHD_RequestTerminationCode code)
{
    exchange *x = *of_exchange;
    balance *b = opaque;
    (void)c;
    (void)code;
    if (x == NULL) {
        return;
    }
    if (x->a != NULL) {
        drop(x->a);
    }
    if (x->b != NULL) {
        drop_body(x);
    }
    free(x);
    *of_exchange = NULL;
    atomic_fetch_sub(&b->n_exchanges, 1);
}

ds_status balance_listen(ds_ctx *ctx, balance *b)
{
    const listen_params params = {.options = b->o,
                                  .tls_cert = b->tls_cert,
                                  .tls_key = b->tls_key,
                                  .handle = handle,
                                  .begin = begin_exchange,
                                  .end = end_exchange,
                                  .user = b};
    return listen_start(ctx, &params, &b->daemon);
}
