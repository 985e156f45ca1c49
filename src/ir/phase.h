/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a graph and of the plan made from it, in the order in which they run: forward and
 * backward for each micro-batch, then those that whoever built the graph has added, once a step.
 * What a phase is for is its builder's business; passes and executor ask for flags alone. */
#ifndef DSI_IR_PHASE_H
#define DSI_IR_PHASE_H

#include "base/arena.h"

#include <deepspeed/graph.h>

#include <stdbool.h>

typedef struct dsi_phase_info {
    const char *name;
    uint32_t flags; /* DS_PHASE_SKIPPABLE, … */
    ds_phase like;  /* DS_PHASE_FORWARD or DS_PHASE_BACKWARD: of each micro-batch (a part of such a
                       phase, where a pipeline runs it in several); else DS_PHASE_STEP */
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
/* Makes the first phases n parts of the two of a micro-batch, n_forward of them of the forward
 * phase: "forward", "forward_1", …, then "backward_1", "backward". split: each backward phase is
 * two, "backward_1", "weights_1", "backward", "weights". The graph has no nodes in them yet. n is
 * at least 2. Errors: as of dsi_phases_add, when n is more than the phases of micro-batches there
 * are. */
ds_status dsi_phases_part(ds_ctx *ctx, dsi_arena *arena, dsi_phases *phases, uint32_t n_forward,
                          bool split);

static inline bool dsi_phase_is_forward(const dsi_phases *phases, ds_phase phase)
{
    return phases->items[phase].like == DS_PHASE_FORWARD;
}

/* Whether each micro-batch runs it. */
static inline bool dsi_phase_is_micro(const dsi_phases *phases, ds_phase phase)
{
    return phases->items[phase].like < DS_PHASE_STEP;
}

/* How many of them there are; they are the first. */
uint32_t dsi_phases_micro(const dsi_phases *phases);
/* How many of these are parts of the forward phase, one a chunk; which chunk a phase of a
 * micro-batch is of. */
uint32_t dsi_phases_forward(const dsi_phases *phases);
uint32_t dsi_phases_chunk(const dsi_phases *phases, ds_phase phase);
/* Whether it is the weights' half of a backward phase. A schedule may put it off behind backward
 * phases of other chunks, which follow it here, but not behind another weights' half. */
bool dsi_phase_is_weights(const dsi_phases *phases, ds_phase phase);

/* DS_NONE when there is none. */
ds_phase dsi_phases_find(const dsi_phases *phases, const char *name);
/* The one that may run on a side stream; DS_NONE without. */
ds_phase dsi_phases_side(const dsi_phases *phases);
/* Whether every step runs every phase. */
bool dsi_phases_all_run(const dsi_phases *phases);

/* What graph text says behind a phase for each of its flags, in order of their bits. */
extern const char *const dsi_phase_words[3];

#endif
