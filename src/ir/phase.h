/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a graph and of the plan made from it, in the order in which they run: forward and
 * backward for each micro-batch, then those that whoever built the graph has added, once a step.
 * What a phase is for is its builder's business; passes and executor ask for flags alone. */
#ifndef DSI_IR_PHASE_H
#define DSI_IR_PHASE_H

#include "base/arena.h"

#include <deepspeed/graph.h>

typedef struct dsi_phase_info {
    const char *name;
    uint32_t flags; /* DS_PHASE_SKIPPABLE, … */
} dsi_phase_info;

typedef struct dsi_phases {
    dsi_phase_info items[DS_MAX_PHASES];
    uint32_t n;
} dsi_phases;

/* Forward and backward. */
dsi_phases dsi_phases_make(void);
/* Errors: ERR_ARG (a name that is not [a-z0-9_]+ or is there, a second phase on a side stream),
 * ERR_LIMIT. The name is copied to the arena. */
ds_status dsi_phases_add(ds_ctx *ctx, dsi_arena *arena, dsi_phases *phases, const char *name,
                         uint32_t flags, ds_phase *phase_out);
ds_status dsi_phases_copy(ds_ctx *ctx, dsi_arena *arena, const dsi_phases *from, dsi_phases *to);
/* DS_NONE when there is none. */
ds_phase dsi_phases_find(const dsi_phases *phases, const char *name);
/* The one that may run on a side stream; DS_NONE without. */
ds_phase dsi_phases_side(const dsi_phases *phases);
/* Whether every step runs every phase. */
bool dsi_phases_all_run(const dsi_phases *phases);

/* What graph text says behind a phase for each of its flags, in order of their bits. */
extern const char *const dsi_phase_words[3];

#endif
