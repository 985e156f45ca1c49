/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP thread of the front of replicas: bodies in, answers out. See balance.h. */
#include "balance.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_CEILING = 64 << 20, OUT_CEILING = 512 << 20 };

static balance *balance_of(const exchange *x)
{
    return x->door->owner;
}

/* ---- what the front says itself ---- */
static enum MHD_Result answer_chat_page(exchange *x, const char *behind)
{
    (void)behind;
    return reply_response(x, MHD_HTTP_OK, page_response());
}

/* Prints a page with the lock. */
static enum MHD_Result answer_state(exchange *x,
                                    void (*print)(balance *b, dsi_buf *out, unsigned *status_out))
{
    balance *b = balance_of(x);
    dsi_buf text = dsi_buf_make(PAGE_CEILING);
    unsigned status = MHD_HTTP_OK;
    (void)pthread_mutex_lock(&b->lock);
    print(b, &text, &status);
    (void)pthread_mutex_unlock(&b->lock);
    return reply_json(x, status, &text);
}

static enum MHD_Result answer_health(exchange *x, const char *behind)
{
    (void)behind;
    return answer_state(x, pages_health);
}

static enum MHD_Result answer_ready(exchange *x, const char *behind)
{
    (void)behind;
    return answer_state(x, pages_ready);
}

static enum MHD_Result answer_models(exchange *x, const char *behind)
{
    (void)behind;
    return answer_state(x, pages_models);
}

static enum MHD_Result answer_model(exchange *x, const char *behind)
{
    balance *b = balance_of(x);
    dsi_buf text = dsi_buf_make(PAGE_CEILING);
    (void)pthread_mutex_lock(&b->lock);
    const bool found = pages_model(b, behind, &text);
    (void)pthread_mutex_unlock(&b->lock);
    if (found) {
        return reply_json(x, MHD_HTTP_OK, &text);
    }
    dsi_buf_free(&text);
    return reply_refusal(x, MHD_HTTP_NOT_FOUND, "model_not_found", "there is no such model here");
}

static enum MHD_Result answer_metrics(exchange *x, const char *behind)
{
    balance *b = balance_of(x);
    dsi_buf text = dsi_buf_make(PAGE_CEILING);
    (void)behind;
    (void)pthread_mutex_lock(&b->lock);
    pages_metrics(b, &text);
    (void)pthread_mutex_unlock(&b->lock);
    return reply_text(x, MHD_HTTP_OK, "text/plain; version=0.0.4", &text);
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
    json_t *prompts = json_object_get(body, "prompts"); /* MII's */
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
    mark_value(a, json_is_array(prompts) ? json_array_get(prompts, 0) : prompts);
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

/* name NULL: the client names none, in `field`. false: *e. */
static bool read_model(exchange *x, ask *a, const char *name, const char *field, api_error *e)
{
    balance *b = balance_of(x);
    bool several = false;
    if (name != NULL && strlen(name) >= sizeof a->model) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, field, "%s: expected a name", field);
    }
    (void)snprintf(a->model, sizeof a->model, "%s", name != NULL ? name : "");
    (void)pthread_mutex_lock(&b->lock);
    const bool known = is_known(b, a->model, &several);
    const bool over = b->door.draining || b->stop;
    (void)pthread_mutex_unlock(&b->lock);
    if (over) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "the server ends");
    }
    if (!known) {
        return api_fail(e, MHD_HTTP_NOT_FOUND, "model_not_found", field,
                        "no replica has the model %.200s; /v1/models lists those that are there",
                        a->model);
    }
    return name != NULL || !several ||
           api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, field,
                    "%s: several are served here, name one (/v1/models lists them)", field);
}

/* Fills the request from the body; false: *e. */
static bool read_ask(exchange *x, ask *a, const char *behind, json_t *body, api_error *e)
{
    json_t *model = json_object_get(body, "model");
    const bool by_path = (x->route->flags & ROUTE_PREFIX) != 0;
    if (!by_path && model != NULL && !json_is_string(model)) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, "model", "model: expected a name");
    }
    if (!read_model(x, a, by_path ? behind : json_string_value(model), "model", e)) {
        return false;
    }
    mark_prompt(a, body);
    if ((x->route->flags & ROUTE_BARE) != 0 && model != NULL) {
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

static void drop(void *waits)
{
    ask *a = waits;
    balance *b = a->b;
    (void)pthread_mutex_lock(&b->lock);
    a->gone = true;
    a->suspended = false;
    ask_release(a);
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
}

/* What the library has decoded is encoded again. */
static void put_path(ask *a, const char *path, const char *behind)
{
    int n = snprintf(a->path, sizeof a->path, "%s", path);
    for (; *behind != '\0' && (size_t)n + 4 < sizeof a->path; ++behind) {
        const bool plain = strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789-._~/",
                                  *behind) != NULL;
        n += snprintf(a->path + n, 4, plain ? "%c" : "%%%02X", (unsigned char)*behind);
    }
}

static ask *make_ask(exchange *x, const char *behind)
{
    balance *b = balance_of(x);
    ask *a = calloc(1, sizeof *a);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (a == NULL) {
        return NULL;
    }
    a->b = b;
    a->connection = x->connection;
    a->fd = info != NULL ? (int)info->connect_fd : -1;
    a->holders = 1;
    a->method = x->route->method;
    put_path(a, x->route->path, behind);
    a->of_response = strcmp(x->route->path, "/v1/responses") == 0;
    a->call.link.fd = -1;
    a->out = dsi_buf_make(OUT_CEILING);
    (void)pthread_mutex_lock(&b->lock);
    b->n_asks += 1;
    (void)pthread_mutex_unlock(&b->lock);
    return a;
}

/* Gives it to the relay thread; the connection waits. */
static enum MHD_Result queue(exchange *x, ask *a)
{
    balance *b = balance_of(x);
    x->waits = a;
    (void)pthread_mutex_lock(&b->lock);
    if (b->stop) {
        (void)pthread_mutex_unlock(&b->lock);
        return reply_refusal(x, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "the server ends");
    }
    a->holders = 2;
    *b->queued_end = a;
    b->queued_end = &a->next;
    a->suspended = true;
    MHD_suspend_connection(x->connection);
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
    return MHD_YES;
}

/* It is not asked for; a may be NULL. */
static enum MHD_Result refuse_ask(exchange *x, ask *a, const api_error *e)
{
    if (a != NULL) {
        drop(a);
    }
    return reply_error(x, e);
}

static enum MHD_Result answer_ask(exchange *x, const char *behind)
{
    api_error e = {0};
    json_t *body = door_json(x, &e);
    ask *a = body != NULL ? make_ask(x, behind) : NULL;
    if (body != NULL && a == NULL) {
        (void)api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory");
    }
    const bool ok = a != NULL && read_ask(x, a, behind, body, &e);
    json_decref(body);
    door_drop_body(x);
    return ok ? queue(x, a) : refuse_ask(x, a, &e);
}

/* ---- what goes to each replica ---- */
static enum MHD_Result answer_slots(exchange *x, const char *behind)
{
    api_error e;
    ask *a = make_ask(x, behind);
    if (a != NULL) {
        a->visit = visit_make(VISIT_SLOTS, NULL);
    }
    if (a == NULL || a->visit == NULL) {
        (void)api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory");
        return refuse_ask(x, a, &e);
    }
    return queue(x, a);
}

/* {"model": a folder or file, as the replicas see it}, or {} for what each serves; "name": which
 * model it is for, where there are several. false: *e. */
static bool read_reload(exchange *x, ask *a, json_t *body, api_error *e)
{
    const door *d = x->door;
    json_t *path = json_object_get(body, "model");
    json_t *name = json_object_get(body, "name");
    const size_t known = (size_t)(path != NULL) + (size_t)(name != NULL);
    if (json_object_size(body) != known) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, "unknown_field", "",
                        "expected model and name alone");
    }
    if ((path != NULL && !json_is_string(path)) || (name != NULL && !json_is_string(name))) {
        return api_fail(e, MHD_HTTP_BAD_REQUEST, NULL, path != NULL ? "model" : "name",
                        "model: expected a folder or file; name: that of a model");
    }
    if (d->n_keys == 0) {
        return api_fail(e, MHD_HTTP_FORBIDDEN, "not_allowed", "",
                        "requests may reload only where clients have keys (--api_key_file); SIGHUP "
                        "reloads what is served");
    }
    if (path == NULL && name == NULL) {
        a->model[0] = '\0'; /* all of them, each what it serves */
    } else if (!read_model(x, a, json_string_value(name), "name", e)) {
        return false;
    }
    a->visit = visit_make(VISIT_RELOAD, json_string_value(path));
    return a->visit != NULL || api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory");
}

static enum MHD_Result answer_reload(exchange *x, const char *behind)
{
    balance *b = balance_of(x);
    api_error e = {0};
    json_t *body = x->body.size > 0 ? door_json(x, &e) : json_object();
    ask *a = body != NULL ? make_ask(x, behind) : NULL;
    if (body != NULL && a == NULL) {
        (void)api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "no memory");
    }
    bool ok = a != NULL && read_reload(x, a, body, &e);
    json_decref(body);
    door_drop_body(x);
    (void)pthread_mutex_lock(&b->lock);
    const bool busy = b->reloads;
    b->reloads = b->reloads || ok;
    (void)pthread_mutex_unlock(&b->lock);
    if (ok && busy) {
        ok = api_fail(&e, MHD_HTTP_CONFLICT, "reload_runs", "", "a reload is under way");
    }
    return ok ? queue(x, a) : refuse_ask(x, a, &e);
}

/* What a stream sends next. */
static ssize_t read_stream(void *opaque, uint64_t at, char *to, size_t room)
{
    ask *a = opaque;
    balance *b = a->b;
    ssize_t n = 0;
    (void)at;
    (void)pthread_mutex_lock(&b->lock);
    const size_t left = a->n_whole - a->n_out;
    if (left > 0) {
        n = (ssize_t)(left < room ? left : room);
        memcpy(to, a->out.data + a->n_out, (size_t)n);
        a->n_out += (size_t)n;
        if (a->n_out == a->n_whole) { /* the begin of a frame stays */
            a->out.size -= a->n_whole;
            a->n_seen -= a->n_seen < a->n_whole ? a->n_seen : a->n_whole;
            memmove(a->out.data, a->out.data + a->n_whole, a->out.size);
            a->out.data[a->out.size] = '\0';
            a->n_out = a->n_whole = 0;
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
static enum MHD_Result resume(exchange *x)
{
    ask *a = x->waits;
    balance *b = balance_of(x);
    struct MHD_Response *response = NULL;
    (void)pthread_mutex_lock(&b->lock);
    const bool streams = a->begun && a->streams;
    const bool gone = a->gone;
    const char *type = a->type[0] != '\0' ? a->type : "application/json";
    const bool waits = !gone && !streams && !a->done;
    if (waits) {
        a->suspended = true;
        MHD_suspend_connection(x->connection);
    } else if (streams) {
        response = reply_stream(read_stream, a, type);
    } else if (!gone) {
        response = reply_whole(&a->out, type);
    }
    (void)pthread_mutex_unlock(&b->lock);
    if (waits || response == NULL) {
        return waits ? MHD_YES : MHD_NO;
    }
    if (a->ignored[0] != '\0') {
        (void)MHD_add_response_header(response, "X-Ignored-Fields", a->ignored);
    }
    if (a->request_id[0] != '\0') {
        (void)MHD_add_response_header(response, "X-Request-Id", a->request_id);
    }
    return reply_response(x, a->status, response);
}

/* ---- paths ---- */
static const route routes[] = {
    {"POST", "/v1/chat/completions", answer_ask, 0},
    {"POST", "/v1/completions", answer_ask, 0},
    {"POST", "/v1/responses", answer_ask, 0},
    {"POST", "/v1/embeddings", answer_ask, 0},
    {"POST", "/tokenize", answer_ask, ROUTE_BARE},
    {"POST", "/detokenize", answer_ask, ROUTE_BARE},
    {"POST", "/apply-template", answer_ask, ROUTE_BARE},
    {"POST", "/mii/", answer_ask, ROUTE_PREFIX},
    {"POST", "/v1/reload", answer_reload, 0},
    {"GET", "/slots", answer_slots, 0},
    {"GET", "/", answer_chat_page, ROUTE_OPEN},
    {"GET", "/v1/models", answer_models, 0},
    {"GET", "/v1/models/", answer_model, ROUTE_PREFIX},
    {"GET", "/health", answer_health, ROUTE_OPEN},
    {"GET", "/ready", answer_ready, ROUTE_OPEN},
    {"GET", "/metrics", answer_metrics, 0},
};

ds_status balance_listen(ds_ctx *ctx, balance *b)
{
    b->door.owner = b;
    b->door.lock = &b->lock;
    b->door.routes = routes;
    b->door.n_routes = sizeof routes / sizeof routes[0];
    b->door.unknown = "there is no such path at the front of replicas";
    b->door.resume = resume;
    b->door.drop = drop;
    return listen_start(ctx, &b->door);
}
