/* SPDX-License-Identifier: Apache-2.0 */
/* What the rendezvous server remembers. See rendezvous_store.h. */
#include "comm/rendezvous_store.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void free_meeting(rdv_meeting *meeting)
{
    free(meeting->here);
    free(meeting->digests);
    free(meeting);
}

void rdv_store_free(rdv_store *store)
{
    for (size_t b = 0; b < RDV_BUCKETS; ++b) {
        while (store->buckets[b] != NULL) {
            rdv_entry *entry = store->buckets[b];
            store->buckets[b] = entry->next;
            free(entry);
        }
    }
    while (store->meetings != NULL) {
        rdv_meeting *meeting = store->meetings;
        store->meetings = meeting->next;
        free_meeting(meeting);
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

rdv_meeting *rdv_store_meeting(const rdv_store *store, const char *name, size_t name_bytes)
{
    rdv_meeting *meeting = store->meetings;
    while (meeting != NULL &&
           (meeting->name_bytes != name_bytes || memcmp(meeting->name, name, name_bytes) != 0)) {
        meeting = meeting->next;
    }
    return meeting;
}

static rdv_meeting *new_meeting(rdv_store *store, const char *name, size_t name_bytes,
                                bool is_digest)
{
    rdv_meeting *meeting = calloc(1, sizeof *meeting);
    if (meeting == NULL) {
        return NULL;
    }
    meeting->is_digest = is_digest;
    meeting->name_bytes = name_bytes;
    memcpy(meeting->name, name, name_bytes);
    meeting->here = calloc(store->size, 1);
    meeting->digests = calloc(is_digest ? store->size : 1, sizeof *meeting->digests);
    if (meeting->here == NULL || meeting->digests == NULL) {
        free_meeting(meeting);
        return NULL;
    }
    meeting->next = store->meetings;
    store->meetings = meeting;
    ++store->n_meetings;
    return meeting;
}

/* What a closed meeting held is not needed any more, only that its name is used up. The oldest
 * names are forgotten beyond the ceiling. */
static void forget_oldest(rdv_store *store)
{
    rdv_meeting **at = &store->meetings;
    rdv_meeting **oldest = NULL;
    for (; *at != NULL; at = &(*at)->next) {
        oldest = (*at)->closed ? at : oldest;
    }
    if (oldest != NULL) {
        rdv_meeting *gone = *oldest;
        *oldest = gone->next;
        free_meeting(gone);
        --store->n_meetings;
    }
}

const char *rdv_store_meet(rdv_store *store, const char *name, size_t name_bytes, bool is_digest,
                           uint32_t rank, uint64_t digest, rdv_meeting **meeting_out)
{
    if (name_bytes == 0) {
        return "an empty name";
    }
    rdv_meeting *meeting = rdv_store_meeting(store, name, name_bytes);
    if (meeting == NULL) {
        if (store->n_meetings >= RDV_MAX_MEETINGS) {
            forget_oldest(store);
        }
        if (store->n_meetings >= RDV_MAX_MEETINGS) {
            return "too many meetings are open";
        }
        meeting = new_meeting(store, name, name_bytes, is_digest);
    }
    if (meeting == NULL) {
        return "no memory";
    }
    if (meeting->closed || meeting->here[rank] != 0 || meeting->is_digest != is_digest) {
        return "this name has been used already; a name serves once";
    }
    meeting->here[rank] = 1;
    if (is_digest) {
        meeting->digests[rank] = digest;
    }
    meeting->closed = ++meeting->n_here == store->size;
    *meeting_out = meeting;
    return NULL;
}

void rdv_meeting_differs(const rdv_meeting *meeting, uint32_t size, uint32_t *usual_out,
                         uint32_t *differs_out)
{
    uint32_t usual = 0;
    uint32_t most = 0;
    /* A digest that more than `most` ranks have shows at its first rank; equal jobs end at once. */
    for (uint32_t r = 0; r < size && most < size - r; ++r) {
        uint32_t n = 0;
        for (uint32_t other = r; other < size; ++other) {
            n += meeting->digests[other] == meeting->digests[r] ? 1 : 0;
        }
        if (n > most) {
            most = n;
            usual = r;
        }
    }
    uint32_t differs = 0;
    while (differs < size && meeting->digests[differs] == meeting->digests[usual]) {
        ++differs;
    }
    *usual_out = usual;
    *differs_out = differs;
}
