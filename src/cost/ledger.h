/* SPDX-License-Identifier: Apache-2.0 */
/* The one account of bytes over the steps of a plan (LAW 2): what lies where, of what kind, from
 * which step to which. plan_build fills one for the arena of each plan; the rank's ledger adds
 * cells and what the host holds (compile/rank_ledger.h). Policies, reports and the engine ask it.
 *
 * Invariants: first <= last < n_steps of every entry; a kind and a residency of the lists below.
 * One thread; queries are const.
 */
#ifndef DSI_COST_LEDGER_H
#define DSI_COST_LEDGER_H

#include "base/residency.h"

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

#define DSI_MEMORY_KIND_LIST(X)                                                                    \
    X(PARAM, "parameters")                                                                         \
    X(GRAD, "gradients")                                                                           \
    X(MASTER, "master weights")                                                                    \
    X(MOMENT, "moments")                                                                           \
    X(ACTIVATION, "activations")                                                                   \
    X(ACTIVATION_GRAD, "activation gradients")                                                     \
    X(GATHERED, "gathered parameters")                                                             \
    X(COMM, "communication")                                                                       \
    X(WORKSPACE, "workspace")                                                                      \
    X(INPUT, "inputs and scalars")                                                                 \
    X(GAPS, "arena not in use then")                                                               \
    X(HOST_STATE, "host state")                                                                    \
    X(PROCESS, "process")

typedef enum dsi_memory_kind {
#define X(id, text) DSI_MEMORY_##id,
    DSI_MEMORY_KIND_LIST(X)
#undef X
        DSI_MEMORY_KIND_COUNT
} dsi_memory_kind;

typedef struct dsi_ledger_entry {
    dsi_memory_kind kind;
    dsi_residency residency;
    uint32_t first, last; /* steps, both inclusive */
    size_t bytes;
    const char *name; /* borrowed: scope of the step, or name of the cell */
    const char *what; /* borrowed: operator, or kind of the cell */
} dsi_ledger_entry;

typedef struct dsi_ledger {
    ds_ctx *ctx;
    dsi_ledger_entry *entries;
    uint32_t n_entries, capacity;
    uint32_t n_steps;
} dsi_ledger;

/* An empty ledger over n_steps steps (at least 1 is kept). */
ds_status dsi_ledger_create(ds_ctx *ctx, uint32_t n_steps, dsi_ledger **ledger_out);
void dsi_ledger_destroy(dsi_ledger **ledger);
/* Adds a copy; of 0 bytes: nothing. Errors: ERR_NOMEM. */
ds_status dsi_ledger_add(dsi_ledger *ledger, const dsi_ledger_entry *entry);
/* Adds all entries of another ledger over the same steps. */
ds_status dsi_ledger_add_all(dsi_ledger *ledger, const dsi_ledger *from);

/* Bytes by kind at a step. */
void dsi_ledger_at(const dsi_ledger *ledger, dsi_residency residency, uint32_t step,
                   size_t bytes_out[DSI_MEMORY_KIND_COUNT]);
/* Bytes at every step: by_kind[step * DSI_MEMORY_KIND_COUNT + kind], room for all. */
void dsi_ledger_curve(const dsi_ledger *ledger, dsi_residency residency, size_t *by_kind);
/* The first step of the most bytes. */
ds_status dsi_ledger_peak(const dsi_ledger *ledger, dsi_residency residency, uint32_t *step_out,
                          size_t *bytes_out);
/* The largest entries in use at a step, largest first; equal ones in order. Fills up to room ids.
 */
uint32_t dsi_ledger_largest(const dsi_ledger *ledger, dsi_residency residency, uint32_t step,
                            uint32_t *ids, uint32_t room);

const char *dsi_memory_kind_name(dsi_memory_kind kind);

#endif
