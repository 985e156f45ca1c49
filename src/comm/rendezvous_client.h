/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the rendezvous client. Shared by rendezvous_client.c, _join.c and _digest.c alone.
 *
 * Locks: `requests` is held for a whole request; `write` for the bytes of one frame; `state` guards
 * what the reader and the callers share. Order: requests, then write or state, never both of these.
 */
#ifndef DSI_COMM_RENDEZVOUS_CLIENT_H
#define DSI_COMM_RENDEZVOUS_CLIENT_H

#include "comm/rendezvous_frame.h"
#include "comm/rendezvous_socket.h"
#include <pthread.h>
#include <stdatomic.h>

enum { BEAT_MILLISECONDS = 500, WHAT_BYTES = 96, ASK_SECONDS = 5 };

struct dsi_rdv {
    ds_ctx *ctx;
    uint32_t rank, size;
    int fd;
    char where[RDV_ADDRESS_BYTES];
    pthread_t thread;
    pthread_mutex_t requests, write, state;
    pthread_cond_t answered;
    rdv_channel in, out;
    uint8_t *read; /* RDV_FRAME_BYTES; the reader's, and join's before it */
    size_t read_bytes, handled_bytes;
    uint8_t *frame; /* RDV_FRAME_BYTES; under `write` */
    uint8_t serial; /* under `requests` */
    /* under `state` */
    bool waiting, has_answer, leaving, closed;
    uint8_t waiting_serial;
    rdv_frame answer; /* value in answer_value */
    uint8_t *answer_value;
    uint64_t step, sequence;
    char what[WHAT_BYTES];
    char reason[DSI_RDV_TEXT_BYTES];
    uint32_t failed_rank;
    atomic_bool failed;
};

/* Sends one frame; whether the bytes left. */
bool rdv_send(dsi_rdv *rdv, const rdv_frame *frame);

/* Reads until a whole frame is there, at most until `milliseconds` have passed without a byte.
 * DS_IN_PROGRESS: time passed. ERR_PEER: closed. ERR_FORMAT: not ours. The frame lies in rdv->read
 * until the next call. */
ds_status rdv_read(dsi_rdv *rdv, int milliseconds, rdv_frame *frame_out);

/* The client's thread: reads frames, sends heartbeats. */
void *rdv_run(void *opaque);

/* One request and its answer, whose value is the caller's to free. DS_IN_PROGRESS: none in time.
 * heed: a failure of the job ends the wait. */
ds_status rdv_request(dsi_rdv *rdv, rdv_kind kind, const char *key, rdv_frame frame, double timeout,
                      bool heed, rdv_frame *answer_out, uint8_t **value_out);

#endif
