/* SPDX-License-Identifier: Apache-2.0 */
/* What a server of a model and a front of replicas share: the port, keys, signals. See front.h. */
#include "front.h"

#include <linux/filter.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { CONNECTION_BYTES = 64 << 10 };

/* ---- keys ---- */
/* In a time that does not depend on where they differ. */
static bool same_key(const char *a, const char *b)
{
    const size_t n = strlen(a);
    const size_t m = strlen(b);
    unsigned differs = n != m;
    for (size_t i = 0; i < m; ++i) {
        differs |= (unsigned)((unsigned char)b[i] ^ (unsigned char)(n > 0 ? a[i % n] : 0));
    }
    return differs == 0;
}

bool listen_has_key(char *const *keys, size_t n, struct MHD_Connection *c)
{
    const char *bearer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *key = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    bool found = n == 0;
    if (bearer != NULL && strncasecmp(bearer, "Bearer ", 7) == 0) {
        key = bearer + 7;
    }
    for (size_t i = 0; key != NULL && i < n; ++i) {
        found = same_key(key, keys[i]) || found;
    }
    return found;
}

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

ds_status listen_start(ds_ctx *ctx, const listen_params *p, struct MHD_Daemon **daemon_out)
{
    const serve_options *o = p->options;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *address = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%lld", (long long)o->port);
    const int error = getaddrinfo(o->host, port, &hints, &address);
    if (error != 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--host %s: %s", o->host, gai_strerror(error));
    }
    const unsigned v6 = address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    const bool tls = p->tls_cert != NULL;
    struct MHD_OptionItem secure[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)p->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)p->tls_key},
        {MHD_OPTION_END, 0, NULL}};
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | v6 |
            (tls ? MHD_USE_TLS : 0u),
        (uint16_t)o->port, NULL, NULL, p->handle, p->user, MHD_OPTION_EXTERNAL_LOGGER, be_silent,
        NULL, MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->timeout_seconds,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_URI_LOG_CALLBACK,
        p->begin, p->user, MHD_OPTION_NOTIFY_COMPLETED, p->end, p->user,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_ARRAY, tls ? &secure[0] : &secure[2],
        MHD_OPTION_END);
    freeaddrinfo(address);
    if (daemon == NULL) {
        return ds_fail(
            ctx, DS_ERR_IO, "cannot listen on %s port %lld: it is taken, or not allowed%s", o->host,
            (long long)o->port, tls ? "; or --tls_cert and --tls_key are no pair in PEM" : "");
    }
    *daemon_out = daemon;
    return DS_OK;
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

void listen_end(struct MHD_Daemon *daemon, const atomic_long *n_exchanges)
{
    enum { TICK_MS = 20, QUIET_TICKS = 5, MOST_TICKS = 100 };
    const struct timespec tick = {0, TICK_MS * 1000000L};
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_LISTEN_FD);
    struct pollfd waits = {.fd = info != NULL ? info->listen_fd : -1, .events = POLLIN};
    refuse_new(waits.fd);
    for (int i = 0, quiet = 0; i < MOST_TICKS && quiet < QUIET_TICKS; ++i) {
        (void)nanosleep(&tick, NULL);
        const bool idle = atomic_load(n_exchanges) == 0 && poll(&waits, 1, 0) == 0;
        quiet = idle ? quiet + 1 : 0;
    }
    MHD_stop_daemon(daemon);
}
