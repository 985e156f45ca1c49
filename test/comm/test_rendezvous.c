/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous: join, keys, deaths, refusals, strangers, heartbeats.
 * labels: threads */
#include "comm/rendezvous.h"

#include "base/clock.h"
#include "comm/rendezvous_frame.h"
#include "common/check.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 8 };

typedef struct job_rank {
    dsi_rdv_options options;
    ds_ctx *ctx;
    dsi_rdv *rdv;
    ds_status (*body)(struct job_rank *self);
    ds_status status;
    char text[2048];
} job_rank;

static void *rank_main(void *opaque)
{
    job_rank *self = opaque;
    self->status = dsi_rdv_join(self->ctx, &self->options, &self->rdv);
    if (self->status == DS_OK) {
        self->status = self->body(self);
    }
    (void)snprintf(self->text, sizeof self->text, "%s", ds_ctx_error(self->ctx));
    dsi_rdv_leave(&self->rdv);
    return NULL;
}

static void run_job(const char *host, const char *secret, uint32_t size,
                    ds_status (*body)(job_rank *self), job_rank *ranks)
{
    pthread_t threads[MAX_RANKS];
    dsi_rdv_server *server;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    dsi_rdv_options options = {.host = host, .secret = secret, .size = size, .timeout = 5.0};
    ds_ctx *ctx;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    if (dsi_rdv_serve(ctx, &options, &server) != DS_OK) {
        fail_msg("%s", ds_ctx_error(ctx));
    }
    options.port = dsi_rdv_server_port(server);
    for (uint32_t r = 0; r < size; ++r) {
        ranks[r] = (job_rank){.options = options, .body = body};
        ranks[r].options.rank = r;
        assert_int_equal(ds_ctx_create(&params, &ranks[r].ctx), DS_OK);
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < size; ++r) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
        ds_ctx_destroy(&ranks[r].ctx);
    }
    dsi_rdv_server_stop(&server, 1.0);
    ds_ctx_destroy(&ctx);
}

static void all_are(const job_rank *ranks, uint32_t size, ds_status status)
{
    for (uint32_t r = 0; r < size; ++r) {
        if (ranks[r].status != status) {
            fail_msg("rank %u: %s: %s", r, ds_status_name(ranks[r].status), ranks[r].text);
        }
    }
}

/* Returns when each rank has come to the meeting of this name. */
static ds_status meet(dsi_rdv *rdv, const char *name, uint32_t rank, uint32_t size, double timeout)
{
    char key[64];
    (void)snprintf(key, sizeof key, "%s/%u", name, rank);
    DS_TRY(dsi_rdv_put(rdv, key, NULL, 0));
    for (uint32_t r = 0; r < size; ++r) {
        void *value;
        size_t n;
        (void)snprintf(key, sizeof key, "%s/%u", name, r);
        DS_TRY(dsi_rdv_get_from(rdv, r, key, timeout, &value, &n));
        free(value);
    }
    return DS_OK;
}

static ds_status body_keys(job_rank *self)
{
    char key[64];
    const uint32_t size = self->options.size;
    const uint32_t rank = self->options.rank;
    (void)snprintf(key, sizeof key, "big/%u", rank);
    char *big = malloc(DSI_RDV_VALUE_BYTES);
    assert_non_null(big);
    memset(big, 'a' + (int)rank, DSI_RDV_VALUE_BYTES);
    void *value;
    size_t n;
    DS_TRY(dsi_rdv_put(self->rdv, key, big, DSI_RDV_VALUE_BYTES));
    DS_TRY(dsi_rdv_put(self->rdv, "empty", NULL, 0));
    free(big);
    for (uint32_t r = 0; r < size; ++r) {
        (void)snprintf(key, sizeof key, "big/%u", r);
        DS_TRY(dsi_rdv_get_from(self->rdv, r, key, 5.0, &value, &n));
        const bool right =
            n == DSI_RDV_VALUE_BYTES && ((char *)value)[n - 1] == (char)('a' + (int)r);
        free(value);
        if (!right) {
            return DS_ERR_CORRUPT;
        }
    }
    DS_TRY(meet(self->rdv, "first", self->options.rank, size, 5.0));
    if (dsi_rdv_put(self->rdv, "a b", "", 0) != DS_ERR_ARG ||
        dsi_rdv_get_from(self->rdv, 0, "never", 0.05, &value, &n) != DS_ERR_PEER) {
        return DS_ERR_INTERNAL;
    }
    return meet(self->rdv, "second", self->options.rank, size, 5.0);
}

static void test_keys(void **state)
{
    (void)state;
    job_rank ranks[MAX_RANKS];
    run_job("127.0.0.1", NULL, 3, body_keys, ranks);
    all_are(ranks, 3, DS_OK);
    run_job("localhost", "a secret", 8, body_keys, ranks);
    all_are(ranks, 8, DS_OK);
}

static void test_ipv6(void **state)
{
    (void)state;
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    const bool there =
        fd >= 0 && bind(fd, (const struct sockaddr *)&loopback, sizeof loopback) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (!there) {
        print_message("no IPv6 on this machine\n");
        skip();
    }
    job_rank ranks[MAX_RANKS];
    run_job("::1", NULL, 2, body_keys, ranks);
    all_are(ranks, 2, DS_OK);
    run_job("[::1]", "s", 2, body_keys, ranks);
    all_are(ranks, 2, DS_OK);
}

static ds_status body_status(job_rank *self)
{
    dsi_rdv_beat(self->rdv, 12, 55, "grad layer 3");
    if (self->options.rank == 1) {
        (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 200000000}, NULL);
        return DS_OK;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
    char text[DSI_RDV_TEXT_BYTES];
    DS_TRY(dsi_rdv_status(self->rdv, 1, 5.0, text));
    if (strstr(text, "step 12, call 55, \"grad layer 3\"") == NULL) {
        return ds_fail(self->ctx, DS_ERR_CORRUPT, "%s", text);
    }
    return meet(self->rdv, "meeting", self->options.rank, self->options.size, 0.2);
}

static void test_status(void **state)
{
    (void)state;
    job_rank ranks[MAX_RANKS];
    run_job("127.0.0.1", NULL, 3, body_status, ranks);
    assert_int_equal(ranks[0].status, DS_ERR_PEER);
    assert_int_equal(ranks[1].status, DS_OK);
    assert_non_null(strstr(ranks[0].text, "rank 1 (it has joined, not more)"));
}

static ds_status body_abort(job_rank *self)
{
    if (self->options.rank == 2) {
        dsi_rdv_abort(self->rdv, "the disk is full");
        return DS_OK;
    }
    return meet(self->rdv, "save", self->options.rank, self->options.size, 5.0);
}

static void test_abort(void **state)
{
    (void)state;
    job_rank ranks[MAX_RANKS];
    run_job("127.0.0.1", NULL, 3, body_abort, ranks);
    assert_int_equal(ranks[0].status, DS_ERR_PEER);
    assert_int_equal(ranks[1].status, DS_ERR_PEER);
    assert_non_null(strstr(ranks[1].text, "rank 2 gives up: the disk is full"));
}

/* ---- one server, and clients one by one ---- */

typedef struct site {
    ds_ctx *ctx;
    dsi_rdv_server *server;
    dsi_rdv_options options;
} site;

static site open_site(const char *host, const char *secret, uint32_t size)
{
    site s = {.options = {.host = host, .secret = secret, .size = size, .timeout = 2.0}};
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    assert_int_equal(ds_ctx_create(&params, &s.ctx), DS_OK);
    assert_int_equal(dsi_rdv_serve(s.ctx, &s.options, &s.server), DS_OK);
    s.options.port = dsi_rdv_server_port(s.server);
    return s;
}

static void close_site(site *s)
{
    dsi_rdv_server_stop(&s->server, 1.0);
    ds_ctx_destroy(&s->ctx);
}

static void test_refusals(void **state)
{
    (void)state;
    dsi_rdv *first;
    dsi_rdv *rdv;
    site s = open_site("127.0.0.1", "right", 2);
    dsi_rdv_options options = s.options;
    options.secret = "wrong";
    assert_int_equal(dsi_rdv_join(s.ctx, &options, &rdv), DS_ERR_CONFIG);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "the secret differs: DS_JOB_SECRET"));
    options.secret = NULL;
    assert_int_equal(dsi_rdv_join(s.ctx, &options, &rdv), DS_ERR_CONFIG);
    options = s.options;
    options.size = 3;
    assert_int_equal(dsi_rdv_join(s.ctx, &options, &rdv), DS_ERR_CONFIG);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "rank 0 of 3, this job has 2 ranks"));
    assert_int_equal(dsi_rdv_join(s.ctx, &s.options, &first), DS_OK);
    assert_int_equal(dsi_rdv_join(s.ctx, &s.options, &rdv), DS_ERR_CONFIG);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "two processes have the same rank"));
    dsi_rdv_leave(&first);
    close_site(&s);

    s = open_site("127.0.0.1", NULL, 1);
    options = s.options;
    options.host = "192.0.2.1";
    assert_int_equal(dsi_rdv_join(s.ctx, &options, &rdv), DS_ERR_CONFIG);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "DS_JOB_SECRET"));
    dsi_rdv_server *other;
    assert_int_equal(dsi_rdv_serve(s.ctx, &options, &other), DS_ERR_CONFIG);
    assert_int_equal(dsi_rdv_serve(s.ctx, &s.options, &other), DS_ERR_IO);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "choose another MASTER_PORT"));
    options = s.options;
    options.timeout = 0.2;
    close_site(&s);
    assert_int_equal(ds_ctx_create(NULL, &s.ctx), DS_OK);
    assert_int_equal(dsi_rdv_join(s.ctx, &options, &rdv), DS_ERR_PEER);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "Connection refused"));
    ds_ctx_destroy(&s.ctx);
}

/* A process that is killed is a death that others learn at once. */
static void test_killed(void **state)
{
    (void)state;
    dsi_rdv *rdv;
    char text[DSI_RDV_TEXT_BYTES];
    uint32_t who;
    site s = open_site("127.0.0.1", "right", 2);
    const pid_t child = fork();
    if (child == 0) {
        s.options.rank = 1;
        ds_ctx *ctx;
        dsi_rdv *mine;
        if (ds_ctx_create(NULL, &ctx) != DS_OK || dsi_rdv_join(ctx, &s.options, &mine) != DS_OK) {
            _exit(1);
        }
        dsi_rdv_beat(mine, 4, 9, "all_gather of w");
        (void)meet(mine, "both_are_here", 1, 2, 5.0);
        (void)nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
        abort();
    }
    assert_int_equal(dsi_rdv_join(s.ctx, &s.options, &rdv), DS_OK);
    assert_int_equal(meet(rdv, "both_are_here", 0, 2, 5.0), DS_OK);
    assert_false(dsi_rdv_failed(rdv, text, &who));
    const double begin = dsi_clock_seconds();
    assert_int_equal(meet(rdv, "the_end", 0, 2, 10.0), DS_ERR_PEER);
    assert_true(dsi_clock_seconds() - begin < 5.0);
    assert_non_null(strstr(ds_ctx_error(s.ctx), "rank 1 (127.0.0.1:"));
    assert_non_null(strstr(ds_ctx_error(s.ctx), "dead, step 4, call 9, \"all_gather of w\""));
    assert_true(dsi_rdv_failed(rdv, text, &who));
    assert_int_equal(who, 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    dsi_rdv_leave(&rdv);
    close_site(&s);
}

static void test_server_ends(void **state)
{
    (void)state;
    dsi_rdv *rdv;
    char text[DSI_RDV_TEXT_BYTES];
    uint32_t who;
    site s = open_site("127.0.0.1", NULL, 1);
    assert_int_equal(dsi_rdv_join(s.ctx, &s.options, &rdv), DS_OK);
    dsi_rdv_server_stop(&s.server, 0.0);
    for (int i = 0; i < 100 && !dsi_rdv_failed(rdv, text, &who); ++i) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    assert_true(dsi_rdv_failed(rdv, text, &who));
    assert_int_equal(who, UINT32_MAX);
    assert_int_equal(dsi_rdv_put(rdv, "k", "v", 1), DS_ERR_PEER);
    dsi_rdv_leave(&rdv);
    ds_ctx_destroy(&s.ctx);
}

static void send_raw(uint16_t port, const void *data, size_t n)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    (void)!send(fd, data, n, MSG_NOSIGNAL);
    char sink[4096];
    struct timeval patience = {.tv_sec = 2};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ssize_t got;
    do {
        got = recv(fd, sink, sizeof sink, 0);
    } while (got > 0);
    assert_true(got == 0 || errno == ECONNRESET); /* it hung up on us */
    (void)close(fd);
}

/* Whoever is not of the job cannot disturb it. */
static void test_strangers(void **state)
{
    (void)state;
    dsi_rdv *rdv;
    site s = open_site("127.0.0.1", "right", 1);
    send_raw(s.options.port, "GET / HTTP/1.0\r\n\r\n", 18);
    uint8_t frame[256];
    rdv_channel channel = {.direction = 'C'};
    const rdv_frame put = {.kind = RDV_PUT, .key = "k", .key_bytes = 1};
    rdv_frame_write(&put, &channel, frame);
    send_raw(s.options.port, frame, rdv_frame_bytes(&put));
    frame[8] = frame[9] = frame[10] = frame[11] = 0xff; /* 4 GiB to come */
    send_raw(s.options.port, frame, rdv_frame_bytes(&put));
    assert_int_equal(dsi_rdv_join(s.ctx, &s.options, &rdv), DS_OK);
    void *value;
    size_t n;
    assert_int_equal(dsi_rdv_get_from(rdv, 0, "k", 0.05, &value, &n), DS_ERR_PEER);
    dsi_rdv_leave(&rdv);
    close_site(&s);
}

/* ---- a port for later ---- */

/* Not one that an outgoing connection may have when a server comes to listen. */
static void test_free_port(void **state)
{
    unsigned first = 0;
    (void)state;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%u", &first), 1);
    (void)fclose(file);
    for (int i = 0; i < 64; ++i) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
        uint16_t port = 0;
        CHECK_OK(NULL, dsi_rdv_free_port(NULL, &port));
        assert_true(port >= 1024 && (first <= 20000 || port < first));
        at.sin_port = htons(port);
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
        assert_int_equal(listen(fd, 1), 0);
        (void)close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_status),      cmocka_unit_test(test_abort),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_killed),
        cmocka_unit_test(test_server_ends), cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_free_port),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
