/* SPDX-License-Identifier: Apache-2.0 */
/* What the rendezvous server remembers. See rendezvous_store.h. */
#include "comm/rendezvous_store.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void rdv_store_free(rdv_store *store)
{
    for (size_t b = 0; b < RDV_BUCKETS; ++b) {
        while (store->buckets[b] != NULL) {
            rdv_entry *entry = store->buckets[b];
            store->buckets[b] = entry->next;
            free(entry);
        }
    }
}

static size_t bucket_of(const char *key, size_t key_bytes)
{
    return (size_t)(XXH3_64bits(key, key_bytes) % RDV_BUCKETS);
}

static rdv_entry **find(rdv_store *store, const char *key, size_t key_bytes)
{
    rdv_entry **at = &store->buckets[bucket_of(key, key_bytes)];
    while (*at != NULL &&
           ((*at)->key_bytes != key_bytes || memcmp((*at)->data, key, key_bytes) != 0)) {
        at = &(*at)->next;
    }
    return at;
}

const char *rdv_store_put(rdv_store *store, const char *key, size_t key_bytes, const void *value,
                          size_t value_bytes)
{
    rdv_entry **at = find(store, key, key_bytes);
    rdv_entry *old = *at;
    const size_t freed = old != NULL ? old->key_bytes + old->value_bytes + sizeof *old : 0;
    const size_t bytes = sizeof *old + key_bytes + value_bytes;
    if (key_bytes == 0) {
        return "an empty key";
    }
    if (store->bytes - freed + bytes > DSI_RDV_STORE_BYTES) {
        return "the store is full";
    }
    rdv_entry *entry = malloc(bytes);
    if (entry == NULL) {
        return "no memory";
    }
    *entry = (rdv_entry){
        .next = old != NULL ? old->next : NULL, .key_bytes = key_bytes, .value_bytes = value_bytes};
    memcpy(entry->data, key, key_bytes);
    if (value_bytes > 0) {
        memcpy(entry->data + key_bytes, value, value_bytes);
    }
    *at = entry;
    free(old);
    store->bytes = store->bytes - freed + bytes;
    return NULL;
}

const rdv_entry *rdv_store_get(const rdv_store *store, const char *key, size_t key_bytes)
{
    const rdv_entry *entry = store->buckets[bucket_of(key, key_bytes)];
    while (entry != NULL &&
           (entry->key_bytes != key_bytes || memcmp(entry->data, key, key_bytes) != 0)) {
        entry = entry->next;
    }
    return entry;
}

const uint8_t *rdv_entry_value(const rdv_entry *entry)
{
    return entry->data + entry->key_bytes;
}
