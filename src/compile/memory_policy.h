/* SPDX-License-Identifier: Apache-2.0 */
/* What memory is spent on: the one decider of what is kept or recomputed, prefetched,
 * bucketed and held for a later use. It makes a list of choices, the fastest first; the
 * first that the ledger has room for is taken (rank_plan.c), and every pass obeys it
 * (docs/adr/0020-one-memory-policy.md). No choice changes a bit (LAW 4).
 */
#ifndef DSI_COMPILE_MEMORY_POLICY_H
#define DSI_COMPILE_MEMORY_POLICY_H

#include "compile/run_spec.h"

/* How much of what the configuration allows for transfers: bytes ahead of their use or written
 * back, and elements of buckets. */
typedef enum dsi_transfers {
    DSI_TRANSFERS_ALL,
    DSI_TRANSFERS_FEW,
    DSI_TRANSFERS_LEAST
} dsi_transfers;

typedef struct dsi_memory_choice {
    ds_recompute recompute; /* not AUTO */
    dsi_kept_logits logits;
    dsi_transfers
        transfers; /* FEW: a sixteenth; LEAST: none ahead, each tensor a bucket of its own */
    bool hold;     /* a gathered or swapped parameter stays for its next use, as far as the
                      configuration     allows; false: it comes again */
} dsi_memory_choice;

enum { DSI_MEMORY_CHOICES = 16 };

/* The choices that spec leaves open, each with less memory and more time than the one before; at
 * least one. Without device_memory and room there is nothing to compare with, and no choice. Pure:
 * of spec.recompute.mode, device_memory, room, the number of ranks and offload. */
uint32_t dsi_memory_choices(const dsi_engine_spec *spec,
                            dsi_memory_choice choices_out[DSI_MEMORY_CHOICES]);

/* The spec with a choice in its limits. */
dsi_engine_spec dsi_memory_obey(const dsi_engine_spec *spec, const dsi_memory_choice *choice);

/* Whether a plan of so many bytes (dsi_rank_mapped_bytes: the ledger's sum for the device) is
 * taken: within device_memory; without one, what a faster choice adds must stay within the room. */
bool dsi_memory_fits(const dsi_engine_spec *spec, const dsi_memory_choice *choice, size_t bytes);

const char *dsi_recompute_name(ds_recompute how);
enum { DSI_MEMORY_CHOICE_BYTES = 160 };
/* What a choice comes to, as words for a line; "" of the usual one. n_kept: losses that keep their
 * logits. */
void dsi_memory_choice_text(const dsi_memory_choice *choice, uint32_t n_kept,
                            char text_out[DSI_MEMORY_CHOICE_BYTES]);

/* Of memory that a rank may use, what it fills where it has the choice: half. The rest is for what
 * no plan holds: other processes, files, copies of a checkpoint. */
size_t dsi_memory_room(size_t memory);

#endif
