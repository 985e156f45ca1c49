/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of requests: which is in which slot. A slot whose adapter was unloaded is taken again
 * when no sequence of it is left. An adapter's keys are found by its own requests alone, and those
 * of a prompt whose length they depend on by prompts of that length: the begin of such sequences
 * has a serial of its own. */
#include "serve/server.h"

#include <stdlib.h>

/* Serials of blocks count from 1; those of begins have this bit, an adapter's number from
 * LENGTH_BITS on, and below that the length of a prompt on which keys depend. */
#define BEGIN_BIT (UINT64_C(1) << 63)
enum { LENGTH_BITS = 32 };

static bool has_slot(const dsi_sequences *list, int32_t slot)
{
    for (const dsi_sequence *q = list->first; q != NULL; q = q->next) {
        if (q->slot == slot) {
            return true;
        }
    }
    return false;
}

/* The slot of a loaded adapter; -1: there is none. */
static int32_t slot_of(const ds_server *s, uint64_t id)
{
    for (int64_t i = 0; i < s->n_slots && id != 0; ++i) {
        if (s->slots[i].id == id && !s->slots[i].leaves) {
            return (int32_t)i;
        }
    }
    return -1;
}

void dsi_serve_adapter_begin(const ds_server *s, dsi_sequence *q, uint64_t id)
{
    q->slot = slot_of(s, id);
    const uint64_t adapter = q->slot >= 0 ? id : 0;
    const uint64_t own = adapter << LENGTH_BITS | (uint64_t)dsi_sequence_grown(s, q);
    q->begin = q->serial = own != 0 ? BEGIN_BIT | own : 0;
}

ds_status dsi_serve_adapter_check(ds_server *s, uint64_t id)
{
    return id == 0 || slot_of(s, id) >= 0
               ? DS_OK
               : ds_fail(s->ctx, DS_ERR_NOT_FOUND, "ds_serve_request: there is no adapter %llu",
                         (unsigned long long)id);
}

ds_status ds_serve_adapter_load(ds_server *s, const char *folder, uint64_t *id_out)
{
    ds_adapter *adapter = NULL;
    int32_t slot = 0;
    DS_TRY(dsi_serve_check_leads(s));
    while (slot < s->n_slots &&
           (s->slots[slot].id != 0 &&
            !(s->slots[slot].leaves && !has_slot(&s->running, slot) &&
              !has_slot(&s->waiting, slot) && !has_slot(&s->embedding, slot)))) {
        ++slot;
    }
    if (slot == s->n_slots) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "%s: all %lld slots for adapters are taken (ds_serve_params.adapters, "
                       "--max_loras); unload one",
                       folder, (long long)s->n_slots);
    }
    DS_TRY(ds_adapter_open(s->ctx, folder, &adapter));
    s->slots[slot] = (dsi_serve_slot){0};
    const ds_status status = dsi_generator_slot_load(s->generator, slot, adapter);
    ds_adapter_destroy(&adapter);
    DS_TRY(status);
    s->slots[slot].id = ++s->last_adapter;
    *id_out = s->last_adapter;
    return DS_OK;
}

ds_status ds_serve_adapter_unload(ds_server *s, uint64_t id)
{
    const int32_t slot = slot_of(s, id);
    if (slot < 0) {
        return ds_fail(s->ctx, DS_ERR_NOT_FOUND,
                       "ds_serve_adapter_unload: there is no adapter %llu", (unsigned long long)id);
    }
    s->slots[slot].leaves = true;
    return DS_OK;
}
