/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the rendezvous: what lies on the wire, and its codes of authenticity.
 *
 * A frame is a head of 24 bytes, key, value, and 16 bytes of code; numbers are little endian. The
 * parser trusts nothing and reads nothing beyond n. Called by server, client and the fuzzer.
 */
#ifndef DSI_COMM_RENDEZVOUS_FRAME_H
#define DSI_COMM_RENDEZVOUS_FRAME_H

#include "comm/rendezvous.h"

enum {
    RDV_HEAD_BYTES = 24,
    RDV_CODE_BYTES = 16,
    RDV_NONCE_BYTES = 32,
    RDV_PROOF_BYTES = 32,
    RDV_GREETING_BYTES = 256, /* largest value before both sides are proved */
    RDV_FRAME_BYTES = RDV_HEAD_BYTES + DSI_RDV_KEY_BYTES + DSI_RDV_VALUE_BYTES + RDV_CODE_BYTES
};

typedef enum rdv_kind {
    RDV_HELLO = 1, /* server: value = its nonce */
    RDV_JOIN,      /* client: rank, number = size, value = its nonce and proof */
    RDV_WELCOME,   /* server: value = its proof */
    RDV_REFUSE,    /* server: value = why; the connection ends */
    RDV_PUT,       /* client: key, value */
    RDV_WAIT,      /* client: key; answered when it is there */
    RDV_ASK,       /* client: rank; answered with its status text */
    RDV_MISSING,   /* client; answered with the ranks that have not joined as text, number: the
                      first of them, rank: the lowest other one that has */
    RDV_BEAT,      /* client: number = sequence, value = step (8 bytes) and what; no answer */
    RDV_ABORT,     /* client: value = reason; no answer */
    RDV_BYE,       /* client: no answer */
    RDV_DONE,      /* server's answer; value where one is asked for */
    RDV_ERROR,     /* server's answer: value = why */
    RDV_NOTICE,    /* server, unasked: rank died or gave up, value = reason */
    RDV_KIND_END
} rdv_kind;

typedef struct rdv_frame {
    rdv_kind kind;
    uint8_t serial; /* of a request; its answer has the same, so that a late one is known */
    uint32_t rank;
    uint64_t number;
    const char *key; /* not terminated */
    size_t key_bytes;
    const uint8_t *value;
    size_t value_bytes;
} rdv_frame;

/* One direction of a connection: the key of its codes, and how many frames have passed. */
typedef struct rdv_channel {
    uint8_t key[32];
    uint8_t direction; /* 'C': from the client, 'S': from the server */
    bool proved;       /* before: codes are zero */
    uint64_t n_frames;
} rdv_channel;

/* The first frame in data[0, n). DS_OK: frame_out points into data, *used_out bytes are its length
 * (code included, not checked). DS_IN_PROGRESS: more bytes are needed. DS_ERR_FORMAT: not a frame,
 * or one with a value above max_value. */
ds_status rdv_frame_parse(const uint8_t *data, size_t n, size_t max_value, rdv_frame *frame_out,
                          size_t *used_out);

/* Bytes that rdv_frame_write makes. */
size_t rdv_frame_bytes(const rdv_frame *frame);

/* Writes head, key, value and code; counts the frame. */
void rdv_frame_write(const rdv_frame *frame, rdv_channel *channel, uint8_t *to);

/* Checks the code of a parsed frame of `used` bytes at data; counts the frame. */
bool rdv_frame_authentic(rdv_channel *channel, const uint8_t *data, size_t used);

/* What a side proves: HMAC-SHA256 with the secret over its letter ('C', 'S'; 'K' makes the key of
 * the codes), both nonces, rank and size. */
void rdv_proof(const char *secret, char letter, const uint8_t *server_nonce,
               const uint8_t *client_nonce, uint32_t rank, uint32_t size, uint8_t *proof_out);

/* Comparison in constant time. */
bool rdv_same(const uint8_t *a, const uint8_t *b, size_t n);

#endif
