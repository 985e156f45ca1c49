/* SPDX-License-Identifier: Apache-2.0 */
/* The server that is loaded: its address, and what it says of its model. See load.h. */
#include "load/load.h"

#include "config/config_read.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    KEY_CEILING = 1 << 16,
    MODELS_CEILING = 1 << 22,
    ARENA_CEILING = 1 << 26,
    PATIENCE_MS = 30000
};

ds_status load_target_read(ds_ctx *ctx, const char *flag, const char *url, load_target *t)
{
    const char *p = url;
    t->tls = strncasecmp(p, "https://", 8) == 0;
    p += t->tls ? 8 : strncasecmp(p, "http://", 7) == 0 ? 7 : 0;
    const bool bracket = *p == '[';
    const size_t n_host = bracket ? strcspn(p + 1, "]") : strcspn(p, ":/");
    const char *host = bracket ? p + 1 : p;
    p = host + n_host + (bracket && host[n_host] == ']');
    size_t n_port = 0;
    const char *port = p;
    const bool colon = *p == ':';
    if (colon) {
        port = p + 1;
        n_port = strspn(port, "0123456789");
        p = port + n_port;
    }
    const bool no_port =
        n_port > 0 && n_port < sizeof t->port && (atoi(port) < 1 || atoi(port) > 65535);
    const bool open = bracket && host[n_host] != ']';
    const bool other = colon && n_port == 0; /* a scheme, or half of one */
    size_t n_path = strlen(p);
    while (n_path > 0 && p[n_path - 1] == '/') {
        --n_path;
    }
    n_path -= n_path >= 3 && memcmp(p + n_path - 3, "/v1", 3) == 0 ? 3 : 0;
    if (n_host == 0 || other || no_port || open || n_host >= sizeof t->host ||
        n_port >= sizeof t->port || n_path >= sizeof t->path || (*p != '\0' && *p != '/') ||
        strpbrk(url, " \r\n") != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: expected http[s]://HOST[:PORT][/PATH], found '%s'",
                       flag, url);
    }
    (void)snprintf(t->host, sizeof t->host, "%.*s", (int)n_host, host);
    (void)snprintf(t->port, sizeof t->port, "%.*s", n_port > 0 ? (int)n_port : 3,
                   n_port > 0 ? port
                   : t->tls   ? "443"
                              : "80");
    (void)snprintf(t->path, sizeof t->path, "%.*s", (int)n_path, p);
    return DS_OK;
}

static ds_status read_key(ds_ctx *ctx, const load_options *o, load_target *t)
{
    dsi_buf file = dsi_buf_make(KEY_CEILING);
    if (o->api_key_file == NULL) {
        return DS_OK;
    }
    ds_status status = dsi_buf_read_file(ctx, o->api_key_file, &file);
    const size_t n = strcspn(dsi_buf_text(&file), "\r\n");
    if (status == DS_OK && (n == 0 || n >= sizeof t->key)) {
        status = ds_fail(ctx, DS_ERR_ARG, "--api_key_file %s: expected a key in its first line",
                         o->api_key_file);
    }
    if (status == DS_OK) {
        (void)snprintf(t->key, sizeof t->key, "%.*s", (int)n, dsi_buf_text(&file));
    }
    dsi_buf_free(&file);
    return status;
}

static int try_address(const struct addrinfo *a)
{
    const int one = 1;
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS) {
        return fd;
    }
    const int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
}

bool load_connect(const load_target *target, dsi_link *link)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    if (getaddrinfo(target->host, target->port, &hints, &found) != 0) {
        errno = EHOSTUNREACH;
        return false;
    }
    int fd = -1;
    for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = try_address(a);
    }
    const int error = errno;
    freeaddrinfo(found);
    dsi_link_open(link, fd, target->trust, target->host);
    errno = error;
    return fd >= 0;
}

/* ---- GET /v1/models ---- */

static bool take_whole(void *user, const char *text, size_t n)
{
    dsi_buf_append(user, text, n);
    return true;
}

typedef struct exchange {
    dsi_link link;
    const dsi_buf *text;
    size_t n_sent;
    load_http *http;
    dsi_buf *body;
    char why[DSI_TLS_ERROR_BYTES];
} exchange;

static bool fail(exchange *x, const char *why)
{
    (void)snprintf(x->why, sizeof x->why, "%s", why);
    return false;
}

static bool would_wait(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static bool send_some(exchange *x)
{
    const ssize_t n = dsi_link_send(&x->link, x->text->data + x->n_sent, x->text->size - x->n_sent);
    if (n < 0 && !would_wait()) {
        return fail(x, dsi_link_why(&x->link, errno));
    }
    x->n_sent += n > 0 ? (size_t)n : 0;
    return true;
}

static bool receive_some(exchange *x)
{
    char bytes[4096];
    do {
        const ssize_t n = dsi_link_recv(&x->link, bytes, sizeof bytes);
        if (n < 0) {
            return would_wait() || fail(x, dsi_link_why(&x->link, errno));
        }
        if (n == 0) {
            return load_http_end(x->http, take_whole, x->body) ||
                   fail(x, "it closed the connection");
        }
        if (!load_http_feed(x->http, bytes, (size_t)n, take_whole, x->body)) {
            return fail(x, x->http->error);
        }
    } while (x->http->place != LOAD_HTTP_DONE && dsi_link_pending(&x->link));
    return true;
}

/* Sends the text and reads the answer; false: `why` says it. */
static bool run_exchange(exchange *x)
{
    while (x->http->place != LOAD_HTTP_DONE) {
        const bool sends = x->n_sent < x->text->size;
        struct pollfd p = {.fd = x->link.fd, .events = dsi_link_events(&x->link, true, sends)};
        const int ready = poll(&p, 1, PATIENCE_MS);
        if (ready <= 0) {
            return fail(x, ready == 0 ? "no answer for 30 seconds" : strerror(errno));
        }
        const bool opens = !x->link.ready;
        if (sends && (opens || (p.revents & POLLOUT) != 0) && !send_some(x)) {
            return false;
        }
        if (!opens && (p.revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !receive_some(x)) {
            return false;
        }
    }
    return true;
}

static ds_status get_models(ds_ctx *ctx, const load_target *t, load_http *http, dsi_buf *body)
{
    const char *scheme = t->tls ? "https" : "http";
    dsi_buf text = dsi_buf_make(1 << 16);
    exchange x = {.link = {.fd = -1}, .text = &text, .http = http, .body = body};
    dsi_buf_printf(&text, "GET %s/v1/models HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n",
                   t->path, t->host, t->port);
    if (t->key[0] != '\0') {
        dsi_buf_printf(&text, "Authorization: Bearer %s\r\n", t->key);
    }
    dsi_buf_puts(&text, "\r\n");
    load_http_begin(http);
    if (load_connect(t, &x.link)) {
        (void)run_exchange(&x);
    } else {
        (void)fail(&x, strerror(errno));
    }
    dsi_link_close(&x.link);
    dsi_buf_free(&text);
    if (http->place == LOAD_HTTP_DONE) {
        return http->status == 200 ? DS_OK
                                   : ds_fail(ctx, DS_ERR_PEER, "%s://%s:%s%s/v1/models: status %d",
                                             scheme, t->host, t->port, t->path, http->status);
    }
    const bool nothing = !t->tls && x.n_sent > 0 && http->status == 0;
    return ds_fail(ctx, DS_ERR_PEER, "%s://%s:%s: %s%s", scheme, t->host, t->port,
                   x.why[0] != '\0' ? x.why : "no answer",
                   nothing ? " (does it speak https:// there?)" : "");
}

/* The model that was named, else the only one. */
static const dsi_node *choose(const dsi_node *list, const char *name)
{
    if (list == NULL || list->kind != DSI_NODE_LIST) {
        return NULL;
    }
    for (const dsi_node *m = list->first; m != NULL; m = m->next) {
        if (name == NULL || dsi_node_is_text(dsi_node_find(m, "id"), name)) {
            return m;
        }
    }
    return NULL;
}

/* Under the names of ds_serve and vLLM, and of llama.cpp. */
static int64_t number_of(const dsi_node *model, const char *name, const char *meta_name)
{
    int64_t value = 0;
    const dsi_node *node = dsi_node_find(model, name);
    node = node != NULL ? node : dsi_node_find(dsi_node_find(model, "meta"), meta_name);
    return node != NULL && dsi_node_int(node, &value) && value > 0 ? value : 0;
}

static ds_status read_models(ds_ctx *ctx, const load_options *o, const dsi_buf *body,
                             load_target *t)
{
    dsi_arena *arena = NULL;
    dsi_diags *diags = calloc(1, sizeof *diags);
    if (diags == NULL || dsi_arena_create(ARENA_CEILING, &arena) < 0) {
        free(diags);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory");
    }
    diags->name = "/v1/models";
    diags->arena = arena;
    const dsi_node *root = dsi_config_read(diags, dsi_buf_text(body), body->size);
    const dsi_node *model = choose(dsi_node_find(root, "data"), o->model);
    const dsi_node *id = dsi_node_find(model, "id");
    ds_status status = DS_OK;
    if (id == NULL || id->kind != DSI_NODE_TEXT || strlen(id->as.text) >= sizeof t->model) {
        status = o->model != NULL
                     ? ds_fail(ctx, DS_ERR_ARG, "--model: the server has no '%s'", o->model)
                     : ds_fail(ctx, DS_ERR_PEER, "/v1/models: it names no model");
    } else {
        (void)snprintf(t->model, sizeof t->model, "%s", id->as.text);
        t->vocab = number_of(model, "vocab_size", "n_vocab");
        t->max_length = number_of(model, "max_model_len", "n_ctx");
    }
    dsi_arena_destroy(&arena);
    free(diags);
    return status;
}

/* Whom https trusts; the flags are of https alone. */
static ds_status find_trust(ds_ctx *ctx, const load_options *o, load_target *t,
                            dsi_trust **trust_out)
{
    const dsi_trust_params params = {.ca_file = o->cacert,
                                     .insecure = o->insecure,
                                     .hint = "--cacert FILE says whom to trust, --insecure trusts "
                                             "any"};
    if (!t->tls) {
        return o->cacert == NULL && !o->insecure
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_ARG,
                             "--%s goes with an https:// address, and --serve is %s",
                             o->cacert != NULL ? "cacert" : "insecure", o->url);
    }
    if (o->cacert != NULL && o->insecure) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--cacert has no effect beside --insecure, which trusts any certificate");
    }
    DS_TRY(dsi_trust_open(ctx, &params, trust_out));
    t->trust = *trust_out;
    return DS_OK;
}

ds_status load_target_find(ds_ctx *ctx, const load_options *o, load_target *target,
                           dsi_trust **trust_out)
{
    load_http http = {0};
    dsi_buf body = dsi_buf_make(MODELS_CEILING);
    *target = (load_target){.chat = strcmp(o->endpoint, "chat") == 0};
    DS_TRY(load_target_read(ctx, "--serve", o->url, target));
    DS_TRY(read_key(ctx, o, target));
    DS_TRY(find_trust(ctx, o, target, trust_out));
    ds_status status = get_models(ctx, target, &http, &body);
    status = status == DS_OK ? read_models(ctx, o, &body, target) : status;
    if (target->chat || target->vocab < 16) {
        target->vocab = 0;
    }
    load_http_free(&http);
    dsi_buf_free(&body);
    return status;
}
