/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP exchange with a replica over a connection of its own, without waiting. See balance.h. */
#include "balance.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 16 << 10 };

static void end(call *c, const char *why)
{
    call_stop(c);
    c->place = CALL_ENDED;
    (void)snprintf(c->why, sizeof c->why, "%s", why);
}

void call_begin(call *c, const struct addrinfo *to, const dsi_trust *trust, const char *name)
{
    const int one = 1;
    int fd = -1;
    c->n_sent = 0;
    c->reached = false;
    c->why[0] = '\0';
    load_http_begin(&c->http);
    c->http.raw = true;
    c->http.header = c->header;
    c->place = CALL_SENDS;
    int error = EHOSTUNREACH;
    for (const struct addrinfo *a = to; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0) {
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
                error = errno;
                (void)close(fd);
                fd = -1;
            }
        } else {
            error = errno;
        }
    }
    dsi_link_open(&c->link, fd, trust, name);
    if (c->text.failed) {
        end(c, "no memory for the request");
    } else if (fd < 0) {
        end(c, strerror(error));
    }
}

short call_events(const call *c)
{
    return dsi_link_events(&c->link, c->place == CALL_READS, c->place == CALL_SENDS);
}

static void send_some(call *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    const bool broken =
        getsockopt(c->link.fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0;
    if (broken && !c->reached) {
        end(c, strerror(error));
        return;
    }
    const ssize_t n =
        broken ? -1 : dsi_link_send(&c->link, c->text.data + c->n_sent, c->text.size - c->n_sent);
    const bool failed = broken || (n < 0 && errno != EAGAIN && errno != EINTR);
    if (failed && !c->link.ready) {
        end(c, dsi_link_why(&c->link, broken ? error : errno));
        return;
    }
    c->reached = c->link.ready;
    if (failed) {
        c->place = CALL_READS; /* it may have said why before it closed */
        return;
    }
    c->n_sent += n > 0 ? (size_t)n : 0;
    if (c->n_sent == c->text.size) {
        c->place = CALL_READS;
    }
}

static void read_some(call *c)
{
    char data[READ_BYTES];
    const ssize_t n = dsi_link_recv(&c->link, data, sizeof data);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            end(c, dsi_link_why(&c->link, errno));
        }
    } else if (n == 0) {
        end(c, load_http_end(&c->http, c->take, c->user)
                   ? ""
                   : "the connection was closed within an answer");
    } else if (!load_http_feed(&c->http, data, (size_t)n, c->take, c->user)) {
        end(c, c->http.error != NULL ? c->http.error : "an answer that is too long");
    } else if (c->http.place == LOAD_HTTP_DONE) {
        end(c, "");
    }
}

void call_turn(call *c, short events)
{
    const short sends = c->link.ready ? POLLOUT : POLLOUT | POLLIN; /* its handshake */
    if (c->place == CALL_SENDS && (events & (sends | POLLERR | POLLHUP)) != 0) {
        send_some(c);
    } else if (c->place == CALL_READS && (events & (POLLIN | POLLERR | POLLHUP)) != 0) {
        do {
            read_some(c);
        } while (c->place == CALL_READS && dsi_link_pending(&c->link));
    }
}

void call_stop(call *c)
{
    if (c->place != CALL_NONE) {
        dsi_link_close(&c->link);
    }
    c->link.fd = -1;
}

void call_free(call *c)
{
    call_stop(c);
    dsi_buf_free(&c->text);
    load_http_free(&c->http);
}
