/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets of the rendezvous. See rendezvous_socket.h. */
#include "comm/rendezvous_socket.h"

#include "base/clock.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void rdv_address_text(const struct sockaddr *address, socklen_t n, char *text_out)
{
    char host[INET6_ADDRSTRLEN + 16];
    char port[8];
    if (getnameinfo(address, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        (void)snprintf(text_out, RDV_ADDRESS_BYTES, "unknown address");
        return;
    }
    const char *mapped = "::ffff:"; /* an IPv4 peer of a socket for both */
    const size_t skip =
        strncmp(host, mapped, 7) == 0 && strchr(host, '.') != NULL ? strlen(mapped) : 0;
    const bool six = strchr(host + skip, ':') != NULL;
    (void)snprintf(text_out, RDV_ADDRESS_BYTES, "%s%.46s%s:%.7s", six ? "[" : "", host + skip,
                   six ? "]" : "", port);
}

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) != 0;
    }
    return false;
}

/* The addresses of the host, "[::1]" taken as "::1". Without a secret all must be loopback. */
static ds_status resolve(ds_ctx *ctx, const dsi_rdv_options *options, struct addrinfo **list_out)
{
    char host[256];
    char port[8];
    const char *from = options->host != NULL ? options->host : "";
    size_t n = strlen(from);
    const bool brackets = n > 2 && from[0] == '[' && from[n - 1] == ']';
    (void)snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), from + brackets);
    (void)snprintf(port, sizeof port, "%u", options->port);
    if (host[0] == '\0' || n >= sizeof host) {
        return ds_fail(ctx, DS_ERR_CONFIG, "the rendezvous needs a host in MASTER_ADDR, found %s",
                       n == 0 ? "none" : "one that is too long");
    }
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const int failed = getaddrinfo(host, port, &hints, list_out);
    if (failed != 0) {
        return ds_fail(ctx, failed == EAI_AGAIN ? DS_ERR_IO : DS_ERR_CONFIG,
                       "the rendezvous host \"%s\" (MASTER_ADDR) has no address: %s", host,
                       gai_strerror(failed));
    }
    const bool secret = options->secret != NULL && options->secret[0] != '\0';
    for (const struct addrinfo *a = *list_out; a != NULL && !secret; a = a->ai_next) {
        if (!is_loopback(a->ai_addr)) {
            char text[RDV_ADDRESS_BYTES];
            rdv_address_text(a->ai_addr, a->ai_addrlen, text);
            freeaddrinfo(*list_out);
            return ds_fail(ctx, DS_ERR_CONFIG,
                           "the rendezvous at %s (%s) can be reached by other hosts and needs "
                           "a secret: give the same DS_JOB_SECRET to all ranks (the launcher does)",
                           host, text);
        }
    }
    return DS_OK;
}

void rdv_tune(int fd)
{
    const int on = 1;
    const int idle = 5;
    const int count = 3;
    const unsigned int milliseconds = 20000;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}

static int listen_at(const struct sockaddr *address, socklen_t n)
{
    const int on = 1;
    const int off = 0;
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->sa_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, address, n) != 0 || listen(fd, 1024) != 0) {
        const int why = errno;
        (void)close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t n = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
        return 0;
    }
    if (address.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &address, sizeof v6);
        return ntohs(v6.sin6_port);
    }
    struct sockaddr_in v4;
    memcpy(&v4, &address, sizeof v4);
    return ntohs(v4.sin_port);
}

ds_status rdv_listen(ds_ctx *ctx, const dsi_rdv_options *options, int *fd_out, uint16_t *port_out)
{
    struct addrinfo *list;
    DS_TRY(resolve(ctx, options, &list));
    const bool secret = options->secret != NULL && options->secret[0] != '\0';
    int fd = -1;
    if (secret) {
        const struct sockaddr_in6 any6 = {
            .sin6_family = AF_INET6, .sin6_port = htons(options->port), .sin6_addr = in6addr_any};
        const struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(options->port)};
        fd = listen_at((const struct sockaddr *)&any6, sizeof any6);
        if (fd < 0 && errno != EADDRINUSE && errno != EACCES) {
            fd = listen_at((const struct sockaddr *)&any4, sizeof any4);
        }
    } else {
        for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
            fd = listen_at(a->ai_addr, a->ai_addrlen);
        }
    }
    const int why = errno;
    freeaddrinfo(list);
    if (fd < 0) {
        return ds_fail(ctx, DS_ERR_IO, "the rendezvous cannot listen at %s port %u: %s%s",
                       options->host, options->port, strerror(why),
                       why == EADDRINUSE ? "; choose another MASTER_PORT" : "");
    }
    *port_out = port_of(fd);
    *fd_out = fd;
    return DS_OK;
}

/* Connects within the time; -1 with errno. The socket is blocking afterwards. */
static int connect_to(const struct addrinfo *a, double timeout)
{
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    int why = 0;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        why = errno;
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        if (why == EINPROGRESS) {
            socklen_t n = sizeof why;
            why = poll(&one, 1, (int)(timeout * 1000.0) + 1) == 1 ? 0 : ETIMEDOUT;
            if (why == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0) {
                why = errno;
            }
        }
    }
    if (why != 0) {
        (void)close(fd);
        errno = why;
        return -1;
    }
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    rdv_tune(fd);
    return fd;
}

ds_status rdv_connect(ds_ctx *ctx, const dsi_rdv_options *options, double timeout, int *fd_out,
                      char *why_out, size_t why_bytes)
{
    struct addrinfo *list;
    DS_TRY(resolve(ctx, options, &list));
    size_t used = 0;
    int fd = -1;
    why_out[0] = '\0';
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = connect_to(a, timeout);
        if (fd < 0 && used < why_bytes) {
            const int why = errno;
            char text[RDV_ADDRESS_BYTES];
            rdv_address_text(a->ai_addr, a->ai_addrlen, text);
            used += (size_t)snprintf(why_out + used, why_bytes - used, "%s%s: %s",
                                     used > 0 ? ", " : "", text, strerror(why));
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return DS_IN_PROGRESS;
    }
    *fd_out = fd;
    return DS_OK;
}
