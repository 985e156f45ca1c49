/* SPDX-License-Identifier: Apache-2.0 */
/* What the rendezvous server remembers: keys with values, and meetings (barriers and digests).
 * Plain data, no sockets; only the server's thread touches it. Called by rendezvous_server.c.
 */
#ifndef DSI_COMM_RENDEZVOUS_STORE_H
#define DSI_COMM_RENDEZVOUS_STORE_H

#include "comm/rendezvous.h"

typedef struct rdv_entry {
    struct rdv_entry *next;
    size_t key_bytes, value_bytes;
    uint8_t data[]; /* key, value */
} rdv_entry;

typedef struct rdv_meeting {
    struct rdv_meeting *next;
    bool is_digest, closed;
    uint32_t n_here;
    size_t name_bytes;
    char name[DSI_RDV_KEY_BYTES];
    uint8_t *here;     /* size bytes */
    uint64_t *digests; /* size of them */
} rdv_meeting;

enum { RDV_BUCKETS = 4096, RDV_MAX_MEETINGS = 4096 };

typedef struct rdv_store {
    uint32_t size;
    size_t bytes; /* of all entries */
    uint32_t n_meetings;
    rdv_entry *buckets[RDV_BUCKETS];
    rdv_meeting *meetings;
} rdv_store;

void rdv_store_free(rdv_store *store);

/* Sets a key; an older value is replaced. NULL: done; else why not. */
const char *rdv_store_put(rdv_store *store, const char *key, size_t key_bytes, const void *value,
                          size_t value_bytes);
const rdv_entry *rdv_store_get(const rdv_store *store, const char *key, size_t key_bytes);
const uint8_t *rdv_entry_value(const rdv_entry *entry);

/* The meeting of this name, NULL when there is none. */
rdv_meeting *rdv_store_meeting(const rdv_store *store, const char *name, size_t name_bytes);

/* A rank comes to a meeting, which begins with the first. NULL: done; else why not. The meeting is
 * closed when the last one has come. */
const char *rdv_store_meet(rdv_store *store, const char *name, size_t name_bytes, bool is_digest,
                           uint32_t rank, uint64_t digest, rdv_meeting **meeting_out);

/* The most frequent digest's first rank, and the first rank that has another (size: none). */
void rdv_meeting_differs(const rdv_meeting *meeting, uint32_t size, uint32_t *usual_out,
                         uint32_t *differs_out);

#endif
