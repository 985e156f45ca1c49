/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes over steps. See ledger.h. */
#include "cost/ledger.h"

#include <stdlib.h>
#include <string.h>

const char *dsi_memory_kind_name(dsi_memory_kind kind)
{
    static const char *const names[DSI_MEMORY_KIND_COUNT] = {
#define X(id, text) [DSI_MEMORY_##id] = text,
        DSI_MEMORY_KIND_LIST(X)
#undef X
    };
    return names[kind];
}

ds_status dsi_ledger_create(ds_ctx *ctx, uint32_t n_steps, dsi_ledger **ledger_out)
{
    dsi_ledger *ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a ledger");
    }
    ledger->ctx = ctx;
    ledger->n_steps = n_steps > 0 ? n_steps : 1;
    *ledger_out = ledger;
    return DS_OK;
}

void dsi_ledger_destroy(dsi_ledger **ledger)
{
    if (ledger != NULL && *ledger != NULL) {
        free((*ledger)->entries);
        free(*ledger);
        *ledger = NULL;
    }
}

static ds_status reserve(dsi_ledger *ledger, uint32_t need)
{
    uint32_t capacity = ledger->capacity > 0 ? ledger->capacity : 64;
    if (need <= ledger->capacity) {
        return DS_OK;
    }
    while (capacity < need && capacity < UINT32_MAX / 2) {
        capacity *= 2;
    }
    dsi_ledger_entry *entries =
        need <= capacity ? realloc(ledger->entries, capacity * sizeof *entries) : NULL;
    if (entries == NULL) {
        return ds_fail(ledger->ctx, DS_ERR_NOMEM, "no memory for a ledger of %u entries", need);
    }
    ledger->entries = entries;
    ledger->capacity = capacity;
    return DS_OK;
}

ds_status dsi_ledger_add(dsi_ledger *ledger, const dsi_ledger_entry *entry)
{
    if (entry->bytes == 0) {
        return DS_OK;
    }
    if (entry->first > entry->last || entry->last >= ledger->n_steps) {
        return ds_fail(ledger->ctx, DS_ERR_GRAPH, "%s (%s) lives from step %u to %u of %u",
                       entry->name, entry->what, entry->first, entry->last, ledger->n_steps);
    }
    DS_TRY(reserve(ledger, ledger->n_entries + 1));
    ledger->entries[ledger->n_entries++] = *entry;
    return DS_OK;
}

ds_status dsi_ledger_add_all(dsi_ledger *ledger, const dsi_ledger *from)
{
    DS_TRY(reserve(ledger, ledger->n_entries + from->n_entries));
    for (uint32_t i = 0; i < from->n_entries; ++i) {
        DS_TRY(dsi_ledger_add(ledger, &from->entries[i]));
    }
    return DS_OK;
}

void dsi_ledger_at(const dsi_ledger *ledger, dsi_residency residency, uint32_t step,
                   size_t bytes_out[DSI_MEMORY_KIND_COUNT])
{
    memset(bytes_out, 0, DSI_MEMORY_KIND_COUNT * sizeof *bytes_out);
    for (uint32_t i = 0; i < ledger->n_entries; ++i) {
        const dsi_ledger_entry *e = &ledger->entries[i];
        if (e->residency == residency && e->first <= step && step <= e->last) {
            bytes_out[e->kind] += e->bytes;
        }
    }
}

/* What begins and ends at each step, then the running sum. Sizes wrap around and back. */
void dsi_ledger_curve(const dsi_ledger *ledger, dsi_residency residency, size_t *by_kind)
{
    enum { KINDS = DSI_MEMORY_KIND_COUNT };
    memset(by_kind, 0, (size_t)ledger->n_steps * KINDS * sizeof *by_kind);
    for (uint32_t i = 0; i < ledger->n_entries; ++i) {
        const dsi_ledger_entry *e = &ledger->entries[i];
        if (e->residency != residency) {
            continue;
        }
        by_kind[(size_t)e->first * KINDS + e->kind] += e->bytes;
        if (e->last + 1 < ledger->n_steps) {
            by_kind[((size_t)e->last + 1) * KINDS + e->kind] -= e->bytes;
        }
    }
    for (size_t at = KINDS; at < (size_t)ledger->n_steps * KINDS; ++at) {
        by_kind[at] += by_kind[at - KINDS];
    }
}

ds_status dsi_ledger_peak(const dsi_ledger *ledger, dsi_residency residency, uint32_t *step_out,
                          size_t *bytes_out)
{
    enum { KINDS = DSI_MEMORY_KIND_COUNT };
    size_t *curve = malloc((size_t)ledger->n_steps * KINDS * sizeof *curve);
    size_t most = 0;
    uint32_t at = 0;
    if (curve == NULL) {
        return ds_fail(ledger->ctx, DS_ERR_NOMEM, "no memory for the curve of %u steps",
                       ledger->n_steps);
    }
    dsi_ledger_curve(ledger, residency, curve);
    for (uint32_t s = 0; s < ledger->n_steps; ++s) {
        size_t sum = 0;
        for (int k = 0; k < KINDS; ++k) {
            sum += curve[(size_t)s * KINDS + (size_t)k];
        }
        if (sum > most) {
            most = sum;
            at = s;
        }
    }
    free(curve);
    *step_out = at;
    *bytes_out = most;
    return DS_OK;
}

uint32_t dsi_ledger_largest(const dsi_ledger *ledger, dsi_residency residency, uint32_t step,
                            uint32_t *ids, uint32_t room)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ledger->n_entries && room > 0; ++i) {
        const dsi_ledger_entry *e = &ledger->entries[i];
        if (e->residency != residency || step < e->first || step > e->last ||
            (n == room && ledger->entries[ids[n - 1]].bytes >= e->bytes)) {
            continue;
        }
        uint32_t at = n < room ? n++ : n - 1;
        for (; at > 0 && ledger->entries[ids[at - 1]].bytes < e->bytes; --at) {
            ids[at] = ids[at - 1];
        }
        ids[at] = i;
    }
    return n;
}
