/* SPDX-License-Identifier: Apache-2.0 */
/* The port, and signals. See door.h. */
#include "door.h"

#include <linux/filter.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTION_BYTES = 64 << 10 };

/* ---- signals and descriptors ---- */
void listen_hold_signals(sigset_t *signals)
{
    (void)sigemptyset(signals);
    (void)sigaddset(signals, SIGTERM);
    (void)sigaddset(signals, SIGINT);
    (void)sigaddset(signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, signals, NULL);
}

void listen_raise_descriptors(int64_t n_connections)
{
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)n_connections + 128;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* ---- the port ---- */
static void be_silent(void *opaque, const char *format, va_list args)
{
    (void)opaque;
    (void)format;
    (void)args;
}

/* Whether a socket of ours could listen there. */
static bool may_listen(const struct addrinfo *a)
{
    const int one = 1;
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool may = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                     bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return may;
}

ds_status listen_start(ds_ctx *ctx, door *d)
{
    const serve_options *o = d->options;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *address = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%lld", (long long)o->port);
    const int error = getaddrinfo(o->host, port, &hints, &address);
    if (error != 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--host %s: %s", o->host, gai_strerror(error));
    }
    const unsigned v6 = address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    const bool tls = d->tls_cert != NULL;
    struct MHD_OptionItem secure[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)d->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)d->tls_key},
        {MHD_OPTION_END, 0, NULL}};
    d->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | v6 |
            (tls ? MHD_USE_TLS : 0u),
        (uint16_t)o->port, NULL, NULL, door_handle, d, MHD_OPTION_EXTERNAL_LOGGER, be_silent, NULL,
        MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->timeout_seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_URI_LOG_CALLBACK,
        door_begin, d, MHD_OPTION_NOTIFY_COMPLETED, door_end, d, MHD_OPTION_ARRAY,
        tls ? &secure[0] : &secure[2], MHD_OPTION_END);
    const bool bad_pair = d->daemon == NULL && tls && may_listen(address);
    freeaddrinfo(address);
    if (bad_pair) {
        return ds_fail(ctx, DS_ERR_ARG, "--tls_cert %s and --tls_key %s are no pair in PEM",
                       o->tls_cert != NULL ? o->tls_cert : "of --replica_tls",
                       o->tls_key != NULL ? o->tls_key : "of --replica_tls");
    }
    return d->daemon != NULL
               ? DS_OK
               : ds_fail(ctx, DS_ERR_IO,
                         "--host and --port: cannot listen on %s port %lld: it is taken, or not "
                         "allowed",
                         o->host, (long long)o->port);
}

unsigned listen_port(const door *d)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d->daemon, MHD_DAEMON_INFO_BIND_PORT);
    return info != NULL ? (unsigned)info->port : 0u;
}

/* ---- the end ---- */
/* The kernel answers no SYN any more, but brings the handshakes that have begun to their end: who
 * comes later is refused when the port is closed, and nobody is between. On a listening socket a
 * filter sees segments from their TCP header on; byte 13 has the flags. */
static void refuse_new(int fd)
{
    enum { FLAGS = 13, SYN = 0x02, ACK = 0x10 };
    struct sock_filter code[] = {{BPF_LD | BPF_B | BPF_ABS, 0, 0, FLAGS},
                                 {BPF_ALU | BPF_AND | BPF_K, 0, 0, SYN | ACK},
                                 {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYN},
                                 {BPF_RET | BPF_K, 0, 0, 0},
                                 {BPF_RET | BPF_K, 0, 0, 0xffffffffu}};
    const struct sock_fprog program = {sizeof code / sizeof code[0], code};
    (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void listen_end(door *d)
{
    enum { TICK_MS = 20, QUIET_TICKS = 5, MOST_TICKS = 100 };
    const struct timespec tick = {0, TICK_MS * 1000000L};
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d->daemon, MHD_DAEMON_INFO_LISTEN_FD);
    struct pollfd waits = {.fd = info != NULL ? info->listen_fd : -1, .events = POLLIN};
    refuse_new(waits.fd);
    for (int i = 0, quiet = 0; i < MOST_TICKS && quiet < QUIET_TICKS; ++i) {
        (void)nanosleep(&tick, NULL);
        const bool idle = atomic_load(&d->n_exchanges) == 0 && poll(&waits, 1, 0) == 0;
        quiet = idle ? quiet + 1 : 0;
    }
    MHD_stop_daemon(d->daemon);
}
