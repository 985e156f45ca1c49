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
#include "comm/rendezvous_server_impl.h"
#include "comm/rendezvous_socket.h"
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
            rdv_server_request(server, conn, &frame);
        } else {
            rdv_server_join(server, conn, &frame);
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
                rdv_server_status(server, conn->rank, status, sizeof status);
                (void)snprintf(reason, sizeof reason, "%s died: its connection closed", status);
                rdv_server_notify(server, conn->rank, reason);
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
    server->size = options->size;
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
