/* SPDX-License-Identifier: Apache-2.0 */
/* What the rendezvous server remembers: keys with values. Plain data, no sockets; only
 * the server's thread touches it. Called by rendezvous_server.c.
 */
#ifndef DSI_COMM_RENDEZVOUS_STORE_H
#define DSI_COMM_RENDEZVOUS_STORE_H

#include "comm/rendezvous.h"

typedef struct rdv_entry {
    struct rdv_entry *next;
    size_t key_bytes, value_bytes;
    uint8_t data[]; /* key, value */
} rdv_entry;

enum { RDV_BUCKETS = 4096 };

typedef struct rdv_store {
    size_t bytes; /* of all entries */
    rdv_entry *buckets[RDV_BUCKETS];
} rdv_store;

void rdv_store_free(rdv_store *store);

/* Sets a key; an older value is replaced. NULL: done; else why not. */
const char *rdv_store_put(rdv_store *store, const char *key, size_t key_bytes, const void *value,
                          size_t value_bytes);
const rdv_entry *rdv_store_get(const rdv_store *store, const char *key, size_t key_bytes);
const uint8_t *rdv_entry_value(const rdv_entry *entry);

#endif
