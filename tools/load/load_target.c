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
    if (strncasecmp(p, "https://", 8) == 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s %s: https is not built here; name the server's http port, or a "
                       "proxy on this machine that speaks https to it",
                       flag, url);
    }
    p += strncasecmp(p, "http://", 7) == 0 ? 7 : 0;
    const bool bracket = *p == '[';
    const size_t n_host = bracket ? strcspn(p + 1, "]") : strcspn(p, ":/");
    const char *host = bracket ? p + 1 : p;
    p = host + n_host + (bracket && host[n_host] == ']');
    size_t n_port = 0;
    const char *port = p;
    if (*p == ':') {
        port = p + 1;
        n_port = strspn(port, "0123456789");
        p = port + n_port;
    }
    const bool no_port =
        n_port > 0 && n_port < sizeof t->port && (atoi(port) < 1 || atoi(port) > 65535);
    const bool open = bracket && host[n_host] != ']';
    const bool other = n_port == 0 && p == port && strncmp(p, "//", 2) == 0; /* a scheme */
    size_t n_path = strlen(p);
    while (n_path > 0 && p[n_path - 1] == '/') {
        --n_path;
    }
    n_path -= n_path >= 3 && memcmp(p + n_path - 3, "/v1", 3) == 0 ? 3 : 0;
    if (n_host == 0 || other || no_port || open || n_host >= sizeof t->host ||
        n_port >= sizeof t->port || n_path >= sizeof t->path || (*p != '\0' && *p != '/') ||
        strpbrk(url, " \r\n") != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: expected http://HOST[:PORT][/PATH], found '%s'", flag,
                       url);
    }
    (void)snprintf(t->host, sizeof t->host, "%.*s", (int)n_host, host);
    (void)snprintf(t->port, sizeof t->port, "%.*s", n_port > 0 ? (int)n_port : 2,
                   n_port > 0 ? port : "80");
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

int load_connect(const load_target *target)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *found = NULL;
    if (getaddrinfo(target->host, target->port, &hints, &found) != 0) {
        errno = EHOSTUNREACH;
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = try_address(a);
    }
    const int error = errno;
    freeaddrinfo(found);
    errno = error;
    return fd;
}

/* ---- GET /v1/models ---- */

static bool take_whole(void *user, const char *text, size_t n)
{
    dsi_buf_append(user, text, n);
    return true;
}

/* Sends the text and reads the answer; false: errno or `why` says it. */
static bool exchange(int fd, const dsi_buf *text, load_http *http, dsi_buf *body, const char **why)
{
    char bytes[4096];
    size_t n_sent = 0;
    while (http->place != LOAD_HTTP_DONE) {
        struct pollfd p = {.fd = fd,
                           .events = (short)(POLLIN | (n_sent < text->size ? POLLOUT : 0))};
        const int ready = poll(&p, 1, PATIENCE_MS);
        if (ready <= 0) {
            *why = ready == 0 ? "no answer for 30 seconds" : strerror(errno);
            return false;
        }
        if ((p.revents & POLLOUT) != 0) {
            const ssize_t n = send(fd, text->data + n_sent, text->size - n_sent, MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN) {
                *why = strerror(errno);
                return false;
            }
            n_sent += n > 0 ? (size_t)n : 0;
        }
        if ((p.revents & (POLLIN | POLLHUP | POLLERR)) == 0) {
            continue;
        }
        const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EAGAIN) {
            continue;
        }
        if (n < 0) {
            *why = strerror(errno);
            return false;
        }
        if (n == 0) {
            *why = "it closed the connection";
            return load_http_end(http, take_whole, body);
        }
        if (!load_http_feed(http, bytes, (size_t)n, take_whole, body)) {
            *why = http->error;
            return false;
        }
    }
    return true;
}

static ds_status get_models(ds_ctx *ctx, const load_target *t, load_http *http, dsi_buf *body)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    const char *why = NULL;
    dsi_buf_printf(&text, "GET %s/v1/models HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\n",
                   t->path, t->host, t->port);
    if (t->key[0] != '\0') {
        dsi_buf_printf(&text, "Authorization: Bearer %s\r\n", t->key);
    }
    dsi_buf_puts(&text, "\r\n");
    const int fd = load_connect(t);
    if (fd < 0) {
        why = strerror(errno);
    } else {
        load_http_begin(http);
        (void)exchange(fd, &text, http, body, &why);
        (void)close(fd);
    }
    dsi_buf_free(&text);
    if (fd >= 0 && http->place == LOAD_HTTP_DONE) {
        return http->status == 200
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_PEER, "http://%s:%s%s/v1/models: status %d", t->host,
                             t->port, t->path, http->status);
    }
    return ds_fail(ctx, DS_ERR_PEER, "http://%s:%s: %s", t->host, t->port,
                   why != NULL ? why : "no answer");
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

ds_status load_target_find(ds_ctx *ctx, const load_options *o, load_target *target)
{
    load_http http = {0};
    dsi_buf body = dsi_buf_make(MODELS_CEILING);
    *target = (load_target){.chat = strcmp(o->endpoint, "chat") == 0};
    DS_TRY(load_target_read(ctx, "--serve", o->url, target));
    DS_TRY(read_key(ctx, o, target));
    ds_status status = get_models(ctx, target, &http, &body);
    status = status == DS_OK ? read_models(ctx, o, &body, target) : status;
    if (target->chat || target->vocab < 16) {
        target->vocab = 0;
    }
    load_http_free(&http);
    dsi_buf_free(&body);
    return status;
}
