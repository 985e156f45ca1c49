/* SPDX-License-Identifier: Apache-2.0 */
/* See client_http.h. The socket never waits: connection and handshake have 30 s, or what the answer
 * has where that is less. HTTP 1.0 is asked for, whose answers have no chunks. */
#include "serve/client_http.h"

#include "base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_SECONDS = 30, REQUEST_CEILING = 256 << 20, HOUR = 3600 };

/* ---- where it is ---- */
/* HOST[:PORT], HOST may be [IPv6]; of a URL the rest may be a slash. false: it is something else.
 */
static bool split(const char *text, bool is_url, const char *usual_port, dsi_client_peer *p)
{
    const bool bracket = text[0] == '[';
    const char *host = text + bracket;
    const char *colon = is_url ? NULL : strrchr(text, ':');
    const size_t n = bracket         ? strcspn(host, "]")
                     : colon != NULL ? (size_t)(colon - text)
                                     : strcspn(host, ":/");
    const char *rest = host + n + (bracket && host[n] == ']');
    const char *port = rest[0] == ':' ? rest + 1 : usual_port;
    const size_t n_port = port != NULL ? strspn(port, "0123456789") : 0;
    const char *end = rest[0] == ':' ? port + n_port : rest;
    if (n == 0 || n_port == 0 || n_port > 5 || (bracket && host[n] != ']') ||
        (end[0] == '/' ? !is_url || end[1] != '\0' : end[0] != '\0') || atoi(port) < 1 ||
        atoi(port) > 65535 || strpbrk(text, " \r\n") != NULL) {
        return false;
    }
    p->host = strndup(host, n);
    p->port = strndup(port, n_port);
    return true;
}

/* Whom https trusts. */
static ds_status find_trust(ds_ctx *ctx, const ds_client_params *params, bool tls,
                            dsi_client_peer *p)
{
    const dsi_trust_params trust = {.ca_file = params->ca_file,
                                    .insecure = params->insecure,
                                    .hint = "ca_file says whom to trust, insecure trusts any"};
    if (tls && params->ca_file != NULL && params->insecure) {
        return ds_fail(ctx, DS_ERR_ARG, "ca_file has no effect beside insecure");
    }
    if (tls) {
        return dsi_trust_open(ctx, &trust, &p->trust);
    }
    return params->ca_file == NULL && !params->insecure
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG, "%s goes with an address of https://, and it is %s",
                         params->ca_file != NULL ? "ca_file" : "insecure", p->address);
}

ds_status dsi_client_peer_open(ds_ctx *ctx, const ds_client_params *params, dsi_client_peer *p)
{
    const char *address = params->address != NULL ? params->address : "";
    const char *key = params->api_key;
    const bool tls = strncasecmp(address, "https://", 8) == 0;
    const bool is_url = tls || strncasecmp(address, "http://", 7) == 0;
    const size_t skip = tls ? 8 : is_url ? 7 : 0;
    if (!(params->timeout_seconds >= 0.0)) {
        return ds_fail(ctx, DS_ERR_ARG, "timeout_seconds: expected 0 or more");
    }
    if (key != NULL && (key[0] == '\0' || strpbrk(key, "\r\n") != NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "api_key: expected a line of text");
    }
    if (!split(address + skip, is_url, tls ? "443" : is_url ? "80" : NULL, p)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "expected HOST:PORT, http://HOST[:PORT] or https://HOST[:PORT], found "
                       "\"%s\"",
                       address);
    }
    p->address = strdup(address);
    p->key = key != NULL ? strdup(key) : NULL;
    p->seconds = params->timeout_seconds > 0.0 ? params->timeout_seconds : HOUR;
    if (p->host == NULL || p->port == NULL || p->address == NULL || (key != NULL && !p->key)) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a client");
    }
    return find_trust(ctx, params, tls, p);
}

void dsi_client_peer_close(dsi_client_peer *p)
{
    dsi_trust_close(&p->trust);
    free(p->host);
    free(p->port);
    free(p->address);
    free(p->key);
    *p = (dsi_client_peer){0};
}

/* ---- an exchange ---- */
typedef struct exchange {
    ds_ctx *ctx;
    const dsi_client_peer *peer;
    double connect_seconds;
    dsi_link link;
    dsi_buf request, answer;
    size_t n_sent;
    bool ended; /* the server has closed */
} exchange;

static ds_status fail(const exchange *x, const char *why)
{
    return ds_fail(x->ctx, DS_ERR_IO, "%s: %s", x->peer->address, why);
}

static bool would_wait(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* Until the socket moves. deadline: of the clock, of the thing that `what` names. */
static ds_status wait_for(const exchange *x, short events, double deadline, const char *what,
                          double seconds)
{
    struct pollfd p = {.fd = x->link.fd, .events = events};
    char why[128];
    for (;;) {
        const double left = deadline - dsi_clock_seconds();
        const int n = left > 0 ? poll(&p, 1, left < HOUR ? (int)(left * 1e3) + 1 : HOUR * 1000) : 0;
        if (n > 0) {
            return DS_OK;
        }
        if (n < 0 && errno != EINTR) {
            return fail(x, strerror(errno));
        }
        if (n == 0 && deadline <= dsi_clock_seconds()) {
            (void)snprintf(why, sizeof why, "%s within %g s", what, seconds);
            return fail(x, why);
        }
    }
}

/* One address of the host: the connection is made, or why not. */
static ds_status dial_one(exchange *x, const struct addrinfo *a, double deadline)
{
    const int one = 1;
    int error = 0;
    socklen_t size = sizeof error;
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return fail(x, strerror(errno));
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one); /* a host that went away */
    dsi_link_open(&x->link, fd, x->peer->trust, x->peer->host);
    ds_status status = DS_OK;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        error = errno;
        if (error == EINPROGRESS) {
            status = wait_for(x, POLLOUT, deadline, "no connection", x->connect_seconds);
            error = 0;
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        }
        if (status == DS_OK && error != 0) {
            status = ds_fail(x->ctx, DS_ERR_IO, "%s: nobody answers: %s", x->peer->address,
                             strerror(error));
        }
    }
    if (status < 0) {
        dsi_link_close(&x->link);
    }
    return status;
}

static ds_status dial(exchange *x, double deadline)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    const int error = getaddrinfo(x->peer->host, x->peer->port, &hints, &all);
    if (error != 0) {
        return ds_fail(x->ctx, DS_ERR_IO, "%s: nobody answers: %s", x->peer->address,
                       gai_strerror(error));
    }
    ds_status status = DS_ERR_IO;
    int left = 0; /* addresses, which share the time */
    for (const struct addrinfo *a = all; a != NULL; a = a->ai_next) {
        ++left;
    }
    for (const struct addrinfo *a = all; a != NULL && status < 0; a = a->ai_next, --left) {
        const double now = dsi_clock_seconds();
        status = dial_one(x, a, now + (deadline - now) / left);
    }
    freeaddrinfo(all);
    return status;
}

static ds_status send_some(exchange *x)
{
    const ssize_t n =
        dsi_link_send(&x->link, x->request.data + x->n_sent, x->request.size - x->n_sent);
    if (n < 0 && !would_wait()) {
        if (x->link.ready) { /* it may have said why before it closed */
            x->n_sent = x->request.size;
            return DS_OK;
        }
        return fail(x, dsi_link_why(&x->link, errno));
    }
    x->n_sent += n > 0 ? (size_t)n : 0;
    return DS_OK;
}

/* The connection ended without an answer. */
static ds_status broken(const exchange *x, const char *why)
{
    return x->peer->trust == NULL && x->answer.size == 0
               ? ds_fail(x->ctx, DS_ERR_IO,
                         "%s: the server broke off: %s (does it speak https:// there?)",
                         x->peer->address, why)
               : ds_fail(x->ctx, DS_ERR_IO, "%s: the server broke off: %s", x->peer->address, why);
}

/* The bytes that a head says its body has; -1: it does not say. */
static long long length_of(const char *head, const char *end)
{
    static const char name[] = "Content-Length:";
    for (const char *line = head; line < end; line = strstr(line, "\r\n") + 2) {
        if (strncasecmp(line, name, sizeof name - 1) == 0) {
            return strtoll(line + sizeof name - 1, NULL, 10);
        }
    }
    return -1;
}

/* Whether all that the head of an answer promises has come. */
static bool is_whole(const dsi_buf *answer)
{
    const char *text = dsi_buf_text(answer);
    const char *end = strstr(text, "\r\n\r\n");
    const long long length = end != NULL ? length_of(text, end) : -1;
    return length >= 0 && (unsigned long long)length <= answer->size - (size_t)(end + 4 - text);
}

static ds_status receive_some(exchange *x)
{
    char piece[1 << 14];
    do {
        const ssize_t n = dsi_link_recv(&x->link, piece, sizeof piece);
        if (n < 0 && !would_wait() && is_whole(&x->answer)) {
            x->ended = true; /* without TLS's goodbye, or reset behind its last byte */
            return DS_OK;
        }
        if (n < 0) {
            return would_wait() ? DS_OK : broken(x, dsi_link_why(&x->link, errno));
        }
        x->ended = n == 0;
        dsi_buf_append(&x->answer, piece, (size_t)n);
        if (x->answer.failed) {
            return fail(x, "the answer is too long");
        }
    } while (!x->ended && dsi_link_pending(&x->link));
    return DS_OK;
}

static ds_status run(exchange *x)
{
    double deadline = dsi_clock_seconds() + x->connect_seconds;
    DS_TRY(dial(x, deadline));
    bool was_ready = false;
    while (!x->ended) {
        const bool sends = x->n_sent < x->request.size;
        const bool opens = !x->link.ready;
        const size_t before = x->n_sent + x->answer.size;
        DS_TRY(wait_for(x, dsi_link_events(&x->link, !sends, sends), deadline,
                        opens ? "no handshake of TLS" : "no answer",
                        opens ? x->connect_seconds : x->peer->seconds));
        DS_TRY(sends ? send_some(x) : receive_some(x));
        if (x->link.ready && (!was_ready || x->n_sent + x->answer.size > before)) {
            deadline = dsi_clock_seconds() + x->peer->seconds; /* a byte moved */
            was_ready = true;
        }
    }
    return DS_OK;
}

/* ---- HTTP ---- */
/* The name as it stands in a path. */
static void put_name(dsi_buf *out, const char *name)
{
    for (; *name != '\0'; ++name) {
        const unsigned char b = (unsigned char)*name;
        const bool plain = (b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') ||
                           (b >= 'A' && b <= 'Z') || strchr("-._~", b) != NULL;
        dsi_buf_printf(out, plain ? "%c" : "%%%02X", b);
    }
}

static void put_request(exchange *x, const char *name, const char *body)
{
    const dsi_client_peer *p = x->peer;
    const bool v6 = strchr(p->host, ':') != NULL;
    dsi_buf_puts(&x->request, "POST /mii/");
    put_name(&x->request, name);
    dsi_buf_printf(&x->request,
                   " HTTP/1.0\r\nHost: %s%s%s:%s\r\nContent-Type: application/json\r\n"
                   "Connection: close\r\nContent-Length: %zu\r\n",
                   v6 ? "[" : "", p->host, v6 ? "]" : "", p->port, strlen(body));
    if (p->key != NULL) {
        dsi_buf_printf(&x->request, "Authorization: Bearer %s\r\n", p->key);
    }
    dsi_buf_puts(&x->request, "\r\n");
    dsi_buf_puts(&x->request, body);
}

static ds_status read_answer(const exchange *x, int *code_out, dsi_buf *body_out)
{
    const char *text = dsi_buf_text(&x->answer);
    const char *end = strstr(text, "\r\n\r\n");
    int code = 0;
    if (x->answer.size > 1 && (text[0] == 0x15 || text[0] == 0x16) && text[1] == 0x03) {
        return ds_fail(x->ctx, DS_ERR_FORMAT, "%s: it speaks TLS there: ask it by https://",
                       x->peer->address);
    }
    if (sscanf(text, "HTTP/1.%*d %d", &code) != 1 || end == NULL) {
        return x->answer.size == 0
                   ? broken(x, "it closed the connection without an answer")
                   : ds_fail(x->ctx, DS_ERR_FORMAT, "%s: the answer is no HTTP", x->peer->address);
    }
    const size_t n = x->answer.size - (size_t)(end + 4 - text);
    const long long length = length_of(text, end);
    if (length >= 0 && (unsigned long long)length > n) {
        return fail(x, "the server broke off within its answer");
    }
    dsi_buf_append(body_out, end + 4, n);
    *code_out = code;
    return body_out->failed ? ds_fail(x->ctx, DS_ERR_NOMEM, "no memory for an answer") : DS_OK;
}

ds_status dsi_client_post(ds_ctx *ctx, const dsi_client_peer *peer, const char *name,
                          const char *body, int *code_out, dsi_buf *body_out)
{
    exchange x = {.ctx = ctx,
                  .peer = peer,
                  .connect_seconds =
                      peer->seconds < CONNECT_SECONDS ? peer->seconds : CONNECT_SECONDS,
                  .link = {.fd = -1},
                  .request = dsi_buf_make(REQUEST_CEILING),
                  .answer = dsi_buf_make(REQUEST_CEILING)};
    put_request(&x, name, body);
    ds_status status =
        x.request.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for a request") : run(&x);
    dsi_link_close(&x.link);
    status = status < 0 ? status : read_answer(&x, code_out, body_out);
    dsi_buf_free(&x.request);
    dsi_buf_free(&x.answer);
    return status;
}
