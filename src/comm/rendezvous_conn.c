/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of the rendezvous server. See rendezvous_conn.h. */
#include "comm/rendezvous_conn.h"

#include "base/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { OUT_CEILING = 16 << 20, FIRST_BYTES = 2048 };

rdv_conn *rdv_conn_make(int fd)
{
    rdv_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        return NULL;
    }
    *conn = (rdv_conn){.fd = fd,
                       .since = dsi_clock_seconds(),
                       .in = {.direction = 'C'},
                       .out = {.direction = 'S'},
                       .read = malloc(FIRST_BYTES),
                       .read_capacity = FIRST_BYTES};
    if (conn->read == NULL ||
        getrandom(conn->nonce, sizeof conn->nonce, 0) != (ssize_t)sizeof conn->nonce) {
        free(conn->read);
        free(conn);
        return NULL;
    }
    rdv_tune(fd);
    return conn;
}

void rdv_conn_free(rdv_conn *conn)
{
    (void)close(conn->fd);
    free(conn->read);
    free(conn->write);
    free(conn);
}

void rdv_conn_flush(rdv_conn *conn)
{
    size_t done = 0;
    while (done < conn->write_bytes) {
        const ssize_t n =
            send(conn->fd, conn->write + done, conn->write_bytes - done, MSG_NOSIGNAL);
        if (n <= 0) {
            conn->ended = conn->ended || (n < 0 && errno != EAGAIN && errno != EINTR);
            break;
        }
        done += (size_t)n;
    }
    if (done > 0) {
        memmove(conn->write, conn->write + done, conn->write_bytes - done);
        conn->write_bytes -= done;
    }
}

void rdv_conn_send(rdv_conn *conn, const rdv_frame *given)
{
    rdv_frame copy = *given;
    const rdv_frame *frame = &copy;
    const size_t bytes = rdv_frame_bytes(frame);
    copy.serial = conn->serial;
    if (conn->ended) {
        return;
    }
    if (conn->write_bytes + bytes > conn->write_capacity) {
        size_t capacity = 2 * (conn->write_bytes + bytes);
        uint8_t *more = capacity <= OUT_CEILING ? realloc(conn->write, capacity) : NULL;
        if (more == NULL) {
            conn->ended = true; /* it does not read its answers */
            return;
        }
        conn->write = more;
        conn->write_capacity = capacity;
    }
    rdv_frame_write(frame, &conn->out, conn->write + conn->write_bytes);
    conn->write_bytes += bytes;
    rdv_conn_flush(conn);
}

void rdv_conn_send_text(rdv_conn *conn, rdv_kind kind, uint32_t rank, const char *text)
{
    rdv_conn_send(conn, &(rdv_frame){.kind = kind,
                                     .rank = rank,
                                     .value = (const uint8_t *)text,
                                     .value_bytes = strlen(text)});
}

void rdv_conn_receive(rdv_conn *conn)
{
    if (conn->read_bytes == conn->read_capacity) {
        const size_t capacity = 2 * conn->read_capacity;
        uint8_t *more = conn->joined && conn->read_capacity < RDV_FRAME_BYTES
                            ? realloc(conn->read, capacity)
                            : NULL;
        if (more == NULL) {
            conn->ended = true;
            return;
        }
        conn->read = more;
        conn->read_capacity = capacity;
    }
    const ssize_t n =
        recv(conn->fd, conn->read + conn->read_bytes, conn->read_capacity - conn->read_bytes, 0);
    if (n > 0) {
        conn->read_bytes += (size_t)n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        conn->ended = true;
    }
}
