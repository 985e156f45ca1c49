/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous server: one thread, one connection a rank. See rendezvous.h.
 *
 * Called by net_open.c (rank 0) and by the launcher. Invariants, all kept by the server's thread:
 *  1. Nothing of a connection is believed before its JOIN is proved; until then a frame is at most
 *     RDV_GREETING_BYTES, and the connection ends after GREETING_SECONDS.
 *  2. A rank has at most one connection, and a connection at most one open request.
 *  3. A connection that ends without BYE is a death: every other rank gets a NOTICE, ranks that
 * join later too.
 */
#include "base/clock.h"
#include "comm/rendezvous_conn.h"
#include "comm/rendezvous_socket.h"
#include "comm/rendezvous_store.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GREETING_SECONDS 10.0

enum { MAX_STRANGERS = 256 };

typedef struct rdv_rank {
    rdv_conn *conn;
    bool ever, left, dead;
    uint64_t step, sequence;
    double heard;
    char address[RDV_ADDRESS_BYTES];
    char what[96];
} rdv_rank;

struct dsi_rdv_server {
    pthread_t thread;
    int listen_fd, wake[2];
    uint16_t port;
    char *secret;
    rdv_store store;
    rdv_rank *ranks;
    rdv_conn **conns;
    struct pollfd *polls;
    uint32_t n_conns, max_conns;
    bool failed;
    uint32_t failed_rank;
    char reason[DSI_RDV_TEXT_BYTES];
    double linger; /* written before wake[1] is */
};

static void notify_all(dsi_rdv_server *server, uint32_t rank, const char *reason)
{
    if (!server->failed) {
        server->failed = true;
        server->failed_rank = rank;
        (void)snprintf(server->reason, sizeof server->reason, "%s", reason);
    }
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        rdv_conn *conn = server->conns[c];
        if (conn->joined && conn->rank != rank) {
            rdv_conn_send_text(conn, RDV_NOTICE, rank, reason);
        }
    }
}

/* ---- what is known of ranks ---- */

static void status_text(const dsi_rdv_server *server, uint32_t r, char *text, size_t n)
{
    const rdv_rank *rank = &server->ranks[r];
    if (!rank->ever) {
        (void)snprintf(text, n, "rank %u (never came)", r);
        return;
    }
    (void)snprintf(text, n, "rank %u (%s, %sstep %llu, call %llu%s%s%s, last heard %.1f s ago)", r,
                   rank->address,
                   rank->dead   ? "dead, "
                   : rank->left ? "left, "
                                : "",
                   (unsigned long long)rank->step, (unsigned long long)rank->sequence,
                   rank->what[0] != '\0' ? ", \"" : "", rank->what,
                   rank->what[0] != '\0' ? "\"" : "", dsi_clock_seconds() - rank->heard);
}

/* Who is not in a meeting; with `joined` who has not joined the job. Returns the first of them. */
static uint32_t missing_text(const dsi_rdv_server *server, const rdv_meeting *meeting, bool joined,
                             char *text, size_t n)
{
    size_t used = 0;
    uint32_t more = 0;
    uint32_t first = server->store.size;
    text[0] = '\0';
    for (uint32_t r = 0; r < server->store.size; ++r) {
        const bool here = joined ? server->ranks[r].ever
                                 : meeting != NULL && (meeting->closed || meeting->here[r] != 0);
        if (here) {
            continue;
        }
        char one[256];
        first = r < first ? r : first;
        status_text(server, r, one, sizeof one);
        if (used + strlen(one) + 32 > n) {
            ++more;
            continue;
        }
        used += (size_t)snprintf(text + used, n - used, "%s%s", used > 0 ? ", " : "", one);
    }
    if (more > 0) {
        (void)snprintf(text + used, n - used, " and %u more", more);
    }
    return first;
}

/* The lowest rank that has joined, besides the one that asks; without another that one. */
static uint32_t lowest_here(const dsi_rdv_server *server, uint32_t asks)
{
    for (uint32_t r = 0; r < server->store.size; ++r) {
        if (r != asks && server->ranks[r].ever) {
            return r;
        }
    }
    return asks;
}

/* ---- joining ---- */

static void refuse(rdv_conn *conn, const char *why)
{
    rdv_conn_send_text(conn, RDV_REFUSE, 0, why);
    conn->ended = true;
}

static void on_join(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    uint8_t proof[RDV_PROOF_BYTES];
    char why[200];
    const uint32_t size = server->store.size;
    if (frame->kind != RDV_JOIN || frame->value_bytes != RDV_NONCE_BYTES + RDV_PROOF_BYTES) {
        conn->ended = true;
        return;
    }
    const uint8_t *nonce = frame->value;
    rdv_proof(server->secret, 'C', conn->nonce, nonce, frame->rank, (uint32_t)frame->number, proof);
    if (!rdv_same(proof, frame->value + RDV_NONCE_BYTES, RDV_PROOF_BYTES)) {
        refuse(conn, "the secret differs: DS_JOB_SECRET must be the same on all ranks");
        return;
    }
    if (frame->number != size || frame->rank >= size) {
        (void)snprintf(why, sizeof why, "it calls itself rank %u of %llu, this job has %u ranks",
                       frame->rank, (unsigned long long)frame->number, size);
        refuse(conn, why);
        return;
    }
    rdv_rank *rank = &server->ranks[frame->rank];
    if (rank->ever) {
        (void)snprintf(why, sizeof why, "rank %u %s from %s: two processes have the same rank",
                       frame->rank, rank->conn != NULL ? "is here already" : "was here already",
                       rank->address);
        refuse(conn, why);
        return;
    }
    conn->joined = true;
    conn->rank = frame->rank;
    *rank = (rdv_rank){.conn = conn, .ever = true, .heard = dsi_clock_seconds()};
    (void)snprintf(rank->address, sizeof rank->address, "%s", conn->address);
    rdv_proof(server->secret, 'K', conn->nonce, nonce, frame->rank, size, conn->in.key);
    memcpy(conn->out.key, conn->in.key, sizeof conn->out.key);
    rdv_proof(server->secret, 'S', conn->nonce, nonce, frame->rank, size, proof);
    rdv_conn_send(conn,
                  &(rdv_frame){.kind = RDV_WELCOME, .value = proof, .value_bytes = sizeof proof});
    conn->in.proved = conn->out.proved = true;
    if (server->failed) {
        rdv_conn_send_text(conn, RDV_NOTICE, server->failed_rank, server->reason);
    }
}

/* ---- requests ---- */

static void send_entry(rdv_conn *conn, const rdv_entry *entry)
{
    rdv_conn_send(conn, &(rdv_frame){.kind = RDV_DONE,
                                     .value = rdv_entry_value(entry),
                                     .value_bytes = entry->value_bytes});
}

static void open_request(rdv_conn *conn, const rdv_frame *frame)
{
    conn->open = frame->kind;
    conn->open_bytes = frame->key_bytes;
    memcpy(conn->open_key, frame->key, frame->key_bytes);
}

static bool waits_for(const rdv_conn *conn, rdv_kind kind, const char *key, size_t n)
{
    return conn->open == kind && conn->open_bytes == n && memcmp(conn->open_key, key, n) == 0;
}

static void on_put(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    const char *why = rdv_store_put(&server->store, frame->key, frame->key_bytes, frame->value,
                                    frame->value_bytes);
    if (why != NULL) {
        rdv_conn_send_text(conn, RDV_ERROR, 0, why);
        return;
    }
    rdv_conn_send(conn, &(rdv_frame){.kind = RDV_DONE});
    const rdv_entry *entry = rdv_store_get(&server->store, frame->key, frame->key_bytes);
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        if (waits_for(server->conns[c], RDV_WAIT, frame->key, frame->key_bytes)) {
            server->conns[c]->open = (rdv_kind)0;
            send_entry(server->conns[c], entry);
        }
    }
}

static void on_get(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    const rdv_entry *entry = rdv_store_get(&server->store, frame->key, frame->key_bytes);
    if (entry != NULL) {
        send_entry(conn, entry);
    } else if (frame->kind == RDV_GET) {
        rdv_conn_send(conn, &(rdv_frame){.kind = RDV_ABSENT});
    } else {
        open_request(conn, frame);
    }
}

static void on_meet(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    rdv_meeting *meeting = NULL;
    const char *why =
        rdv_store_meet(&server->store, frame->key, frame->key_bytes, frame->kind == RDV_DIGEST,
                       conn->rank, frame->number, &meeting);
    if (why != NULL) {
        rdv_conn_send_text(conn, RDV_ERROR, 0, why);
        return;
    }
    open_request(conn, frame);
    if (!meeting->closed) {
        return;
    }
    uint32_t usual = 0;
    uint32_t differs = server->store.size;
    if (meeting->is_digest) {
        rdv_meeting_differs(meeting, server->store.size, &usual, &differs);
    }
    const rdv_frame answer = {.kind = RDV_DONE,
                              .rank = usual,
                              .number = differs < server->store.size ? 1 + (uint64_t)differs : 0};
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        if (waits_for(server->conns[c], frame->kind, frame->key, frame->key_bytes)) {
            server->conns[c]->open = (rdv_kind)0;
            rdv_conn_send(server->conns[c], &answer);
        }
    }
}

static void on_beat(rdv_rank *rank, const rdv_frame *frame)
{
    if (frame->value_bytes < 8) {
        return;
    }
    uint64_t step = 0;
    for (size_t i = 0; i < 8; ++i) {
        step |= (uint64_t)frame->value[i] << (8 * i);
    }
    rank->step = step;
    rank->sequence = frame->number;
    (void)snprintf(rank->what, sizeof rank->what, "%.*s", (int)(frame->value_bytes - 8),
                   (const char *)frame->value + 8);
}

static void on_abort(dsi_rdv_server *server, const rdv_conn *conn, const rdv_frame *frame)
{
    char reason[DSI_RDV_TEXT_BYTES];
    char who[32] = "";
    if (frame->number == 0) { /* else the text says it */
        (void)snprintf(who, sizeof who, "rank %u gives up: ", conn->rank);
    }
    (void)snprintf(reason, sizeof reason, "%s%.*s", who,
                   (int)(frame->value_bytes < 400 ? frame->value_bytes : 400),
                   (const char *)frame->value);
    notify_all(server, conn->rank, reason);
}

static void on_request(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    char text[8 * DSI_RDV_TEXT_BYTES];
    uint32_t missing;
    rdv_rank *rank = &server->ranks[conn->rank];
    rank->heard = dsi_clock_seconds();
    if (frame->kind < RDV_BEAT) { /* a request: it ends an open one, whose sender gave up */
        conn->serial = frame->serial;
        conn->open = (rdv_kind)0;
    }
    switch (frame->kind) {
    case RDV_PUT:
        on_put(server, conn, frame);
        return;
    case RDV_GET:
    case RDV_WAIT:
        on_get(server, conn, frame);
        return;
    case RDV_BARRIER:
    case RDV_DIGEST:
        on_meet(server, conn, frame);
        return;
    case RDV_ASK:
        if (frame->rank >= server->store.size) {
            rdv_conn_send_text(conn, RDV_ERROR, 0, "no such rank");
            return;
        }
        status_text(server, frame->rank, text, DSI_RDV_TEXT_BYTES);
        rdv_conn_send_text(conn, RDV_DONE, frame->rank, text);
        return;
    case RDV_MISSING:
        missing =
            missing_text(server, rdv_store_meeting(&server->store, frame->key, frame->key_bytes),
                         frame->key_bytes == 0, text, sizeof text);
        rdv_conn_send(conn, &(rdv_frame){.kind = RDV_DONE,
                                         .rank = lowest_here(server, conn->rank),
                                         .number = missing,
                                         .value = (const uint8_t *)text,
                                         .value_bytes = strlen(text)});
        return;
    case RDV_BEAT:
        on_beat(rank, frame);
        return;
    case RDV_ABORT:
        on_abort(server, conn, frame);
        return;
    case RDV_BYE:
        rank->left = true;
        conn->ended = true;
        return;
    default:
        conn->ended = true;
    }
}

/* ---- connections ---- */

/* Handles every whole frame that has been read. */
static void handle(dsi_rdv_server *server, rdv_conn *conn)
{
    size_t done = 0;
    while (!conn->ended) {
        rdv_frame frame;
        size_t used = 0;
        const size_t most = conn->joined ? DSI_RDV_VALUE_BYTES : RDV_GREETING_BYTES;
        const ds_status status =
            rdv_frame_parse(conn->read + done, conn->read_bytes - done, most, &frame, &used);
        if (status == DS_IN_PROGRESS) {
            break;
        }
        if (status < 0 || !rdv_frame_authentic(&conn->in, conn->read + done, used)) {
            conn->ended = true;
            break;
        }
        if (conn->joined) {
            on_request(server, conn, &frame);
        } else {
            on_join(server, conn, &frame);
        }
        done += used;
    }
    memmove(conn->read, conn->read + done, conn->read_bytes - done);
    conn->read_bytes -= done;
}

static void accept_one(dsi_rdv_server *server)
{
    struct sockaddr_storage address = {0};
    socklen_t n = sizeof address;
    const int fd =
        accept4(server->listen_fd, (struct sockaddr *)&address, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    rdv_conn *conn = server->n_conns < server->max_conns ? rdv_conn_make(fd) : NULL;
    if (conn == NULL) {
        (void)close(fd);
        return;
    }
    rdv_address_text((const struct sockaddr *)&address, n, conn->address);
    server->conns[server->n_conns++] = conn;
    rdv_conn_send(
        conn,
        &(rdv_frame){.kind = RDV_HELLO, .value = conn->nonce, .value_bytes = sizeof conn->nonce});
}

/* Removes connections that have ended; each of a rank that did not say good-bye is a death. */
static void sweep(dsi_rdv_server *server)
{
    const double now = dsi_clock_seconds();
    for (uint32_t c = 0; c < server->n_conns;) {
        rdv_conn *conn = server->conns[c];
        if (!conn->ended && (conn->joined || now - conn->since < GREETING_SECONDS)) {
            ++c;
            continue;
        }
        server->conns[c] = server->conns[--server->n_conns];
        if (conn->joined) {
            rdv_rank *rank = &server->ranks[conn->rank];
            rank->conn = NULL;
            if (!rank->left) {
                char status[256];
                char reason[DSI_RDV_TEXT_BYTES];
                rank->dead = true;
                status_text(server, conn->rank, status, sizeof status);
                (void)snprintf(reason, sizeof reason, "%s died: its connection closed", status);
                notify_all(server, conn->rank, reason);
            }
        }
        rdv_conn_free(conn);
        c = 0; /* a notice may have ended another one */
    }
}

static bool all_gone(const dsi_rdv_server *server)
{
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        if (server->conns[c]->joined) {
            return false;
        }
    }
    return true;
}

static void poll_once(dsi_rdv_server *server)
{
    const uint32_t n = server->n_conns;
    server->polls[0] = (struct pollfd){.fd = server->listen_fd, .events = POLLIN};
    server->polls[1] = (struct pollfd){.fd = server->wake[0], .events = POLLIN};
    for (uint32_t c = 0; c < n; ++c) {
        const rdv_conn *conn = server->conns[c];
        const short out = conn->write_bytes > 0 ? POLLOUT : 0;
        server->polls[2 + c] = (struct pollfd){.fd = conn->fd, .events = (short)(POLLIN | out)};
    }
    if (poll(server->polls, 2 + n, 250) <= 0) {
        return;
    }
    for (uint32_t c = 0; c < n; ++c) {
        const short what = server->polls[2 + c].revents;
        if ((what & POLLOUT) != 0) {
            rdv_conn_flush(server->conns[c]);
        }
        if ((what & (POLLIN | POLLHUP | POLLERR)) != 0 && !server->conns[c]->ended) {
            rdv_conn_receive(server->conns[c]);
            handle(server, server->conns[c]);
        }
    }
    if ((server->polls[0].revents & POLLIN) != 0) {
        accept_one(server);
    }
}

static void *serve(void *opaque)
{
    dsi_rdv_server *server = opaque;
    double until = 0.0;
    for (;;) {
        poll_once(server);
        sweep(server);
        if (until == 0.0 && (server->polls[1].revents & POLLIN) != 0) {
            char byte;
            if (read(server->wake[0], &byte, 1) == 1) {
                until = dsi_clock_seconds() + server->linger;
            }
        }
        if (until > 0.0 && (all_gone(server) || dsi_clock_seconds() > until)) {
            return NULL;
        }
    }
}

/* ---- begin and end ---- */

static void free_server(dsi_rdv_server *server)
{
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        rdv_conn_free(server->conns[c]);
    }
    const int fds[3] = {server->listen_fd, server->wake[0], server->wake[1]};
    for (size_t i = 0; i < 3; ++i) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    rdv_store_free(&server->store);
    free(server->ranks);
    free(server->conns);
    free(server->polls);
    free(server->secret);
    free(server);
}

ds_status dsi_rdv_serve(ds_ctx *ctx, const dsi_rdv_options *options, dsi_rdv_server **server_out)
{
    if (options->size == 0 || options->size > DSI_RDV_MAX_RANKS) {
        return ds_fail(ctx, DS_ERR_ARG, "a rendezvous of %u ranks; 1 to %d are possible",
                       options->size, (int)DSI_RDV_MAX_RANKS);
    }
    dsi_rdv_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the rendezvous");
    }
    ds_status status = DS_OK;
    server->listen_fd = server->wake[0] = server->wake[1] = -1;
    server->store.size = options->size;
    server->max_conns = options->size + MAX_STRANGERS;
    server->ranks = calloc(options->size, sizeof *server->ranks);
    server->conns = calloc(server->max_conns, sizeof *server->conns);
    server->polls = calloc(server->max_conns + 2, sizeof *server->polls);
    server->secret = strdup(options->secret != NULL ? options->secret : "");
    if (server->ranks == NULL || server->conns == NULL || server->polls == NULL ||
        server->secret == NULL || pipe2(server->wake, O_CLOEXEC) != 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory or descriptors for the rendezvous");
        goto free_all;
    }
    DS_TRY_GOTO(status, rdv_listen(ctx, options, &server->listen_fd, &server->port), free_all);
    if (pthread_create(&server->thread, NULL, serve, server) != 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no thread for the rendezvous");
        goto free_all;
    }
    *server_out = server;
    return DS_OK;
free_all:
    free_server(server);
    return status;
}

uint16_t dsi_rdv_server_port(const dsi_rdv_server *server)
{
    return server->port;
}

void dsi_rdv_server_stop(dsi_rdv_server **server_inout, double linger)
{
    dsi_rdv_server *server = server_inout != NULL ? *server_inout : NULL;
    if (server == NULL) {
        return;
    }
    server->linger = linger;
    ssize_t sent;
    do {
        sent = write(server->wake[1], "", 1);
    } while (sent < 0 && errno == EINTR);
    (void)pthread_join(server->thread, NULL);
    free_server(server);
    *server_inout = NULL;
}
