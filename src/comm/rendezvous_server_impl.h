/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the rendezvous server: shared by rendezvous_server.c (thread and connections) and
 * rendezvous_answer.c (what is asked) alone. */
#ifndef DSI_COMM_RENDEZVOUS_SERVER_IMPL_H
#define DSI_COMM_RENDEZVOUS_SERVER_IMPL_H

#include "comm/rendezvous_conn.h"
#include "comm/rendezvous_store.h"

#include <poll.h>
#include <pthread.h>

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
    uint32_t size; /* ranks */
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

/* ---- rendezvous_answer.c: on the server's thread ---- */

/* The first frame of a connection: welcomes its rank, or refuses it. */
void rdv_server_join(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame);
/* Any further frame. */
void rdv_server_request(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame);
/* Where a rank stands, as text. */
void rdv_server_status(const dsi_rdv_server *server, uint32_t r, char *text, size_t n);
/* A rank is lost, or gives up: to all, and to ranks that join later. */
void rdv_server_notify(dsi_rdv_server *server, uint32_t rank, const char *reason);

#endif
