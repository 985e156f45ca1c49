/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the rendezvous server: what has been read and not handled, what is to be sent.
 * Called by rendezvous_server.c.
 */
#ifndef DSI_COMM_RENDEZVOUS_CONN_H
#define DSI_COMM_RENDEZVOUS_CONN_H

#include "comm/rendezvous_frame.h"
#include "comm/rendezvous_socket.h"

typedef struct rdv_conn {
    int fd;
    bool joined, ended;
    uint32_t rank;
    double since;
    char address[RDV_ADDRESS_BYTES];
    uint8_t nonce[RDV_NONCE_BYTES];
    rdv_channel in, out;
    uint8_t *read, *write; /* what is not handled, what is not sent */
    size_t read_bytes, read_capacity, write_bytes, write_capacity;
    uint8_t serial; /* of the newest request: what is answered is that */
    bool waits;     /* for wait_key: a WAIT not answered yet */
    size_t wait_bytes;
    char wait_key[DSI_RDV_KEY_BYTES];
} rdv_conn;

/* Takes over fd (non-blocking) on success; makes the nonce. NULL: no memory, no random numbers. */
rdv_conn *rdv_conn_make(int fd);
void rdv_conn_free(rdv_conn *conn);

/* Appends to what is to be sent, and sends what it can. `ended` is set on an error, and when the
 * other side does not read: the queue has a ceiling. */
void rdv_conn_send(rdv_conn *conn, const rdv_frame *frame);
void rdv_conn_send_text(rdv_conn *conn, rdv_kind kind, uint32_t rank, const char *text);
void rdv_conn_flush(rdv_conn *conn);

/* Reads once. `ended` is set at the end of the stream, on errors, and when there is no room for
 * more than a greeting and the other side is not proved. */
void rdv_conn_receive(rdv_conn *conn);

#endif
