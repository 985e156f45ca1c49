/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of a pipeline: in which order a stage runs the forward and backward phases of a step's
 * micro-batches. Pure lists; engine_pipe.c makes a program of one.
 *
 *     1f1b   min(m, p-r-1) forwards, then a forward and a backward in turn, then the backwards that
 *            are left: at most min(m, p-r) micro-batches are between the two
 *     gpipe  all forwards, then all backwards: m micro-batches are
 *
 * p stages, r one of them, m micro-batches. Source: PipeDream-Flush (Narayanan et al. 2021), GPipe
 * (Huang et al. 2019).
 */
#ifndef DSI_PIPE_PIPE_SCHEDULE_H
#define DSI_PIPE_PIPE_SCHEDULE_H

#include <deepspeed/context.h>

#include <stdbool.h>

typedef enum dsi_schedule_kind { DSI_SCHEDULE_1F1B, DSI_SCHEDULE_GPIPE } dsi_schedule_kind;

typedef struct dsi_schedule {
    dsi_schedule_kind kind;
    uint32_t n_stages, n_micro;
} dsi_schedule;

typedef struct dsi_turn {
    bool backward;
    uint32_t micro; /* its slot is micro % dsi_schedule_slots() */
} dsi_turn;

/* The turns of a stage: 2 · n_micro of them. */
void dsi_schedule_turns(const dsi_schedule *s, uint32_t stage, dsi_turn *turns_out);
/* Micro-batches of a stage between forward and backward at once, at most. */
uint32_t dsi_schedule_slots(const dsi_schedule *s, uint32_t stage);

/* What one stage sends to another behind its turn of each micro-batch. */
typedef struct dsi_schedule_edge {
    uint32_t source, target;
    bool backward;
    uint32_t buffers; /* that may be on their way; 0: one for each slot of the source */
} dsi_schedule_edge;

/* Runs the lists of all stages against one another, as stages do: a turn waits for all that it
 * receives, and for a buffer for what it sends, which is free once the other stage's turn has
 * begun. lists: for each stage its 2 · n_micro turns; slots: for each stage.
 * forward, backward: seconds of a stage's phases. *seconds_out: until the last has ended. Errors:
 * ERR_GRAPH: a list that never ends names its stage and turn; a turn that is missing or twice. */
ds_status dsi_schedule_run(ds_ctx *ctx, const dsi_schedule *s, const dsi_turn *const *lists,
                           const uint32_t *slots, const dsi_schedule_edge *edges, uint32_t n_edges,
                           double forward, double backward, double *seconds_out);
/* The same of the schedule's own lists. edges NULL: neighbours alone, a buffer a slot. */
ds_status dsi_schedule_check(ds_ctx *ctx, const dsi_schedule *s, const dsi_schedule_edge *edges,
                             uint32_t n_edges, double forward, double backward,
                             double *seconds_out);

const char *dsi_schedule_name(dsi_schedule_kind kind);

#endif
