/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules of a pipeline: in which order a rank runs the phases of a step's micro-batches. Pure
 * lists of turns; pipe_list.h makes instructions of them. p ranks, r one of them, m micro-batches:
 *
 * 1f1b: min(m, p-r-1) forwards, then a forward and a backward in turn, then the backwards that are
 * left: at most min(m, p-r) micro-batches are between the two.
 *
 * gpipe: all forwards, then all backwards: m micro-batches are. Of several chunks: all
 * micro-batches through one, then through the next.
 *
 * interleaved: a rank has v chunks of layers, chunk c of rank r is stage c·p + r of p·v. The j-th
 * forward is of chunk (j div p) mod v, likewise the j-th backward, counted from the last chunk: p
 * micro-batches go through a chunk, then p through the next. First 2(p-r-1) + (v-1)p forwards, then
 * in turn: idle (p-1)(F+B)/v. m is a multiple of p.
 *
 * zb-h1: the backward phase is cut into B, which makes the gradients of inputs, and W, those of
 * weights: min(m, p-r) forwards, then B, the W that is r behind, F; idle (p-1)(F+B-W); at most
 * min(m, p) micro-batches are between F and W.
 *
 * zb-v: a rank has two chunks, stages r and 2p-1-r (dsi_stage_parts folded), their backward phases
 * cut likewise: 2(p-r)-1 forwards of the first, r of either in turn, p-r of the second with B and
 * W, then F, B, W of the first and of the second in turn; the last r B of each without their W,
 * which come last. Of 2p-1 micro-batches and more, where F, B, W are alike, a rank is idle while
 * the first chunk comes down to the last rank, (p-1)F/2; at most 2p chunks are between F and W, as
 * with 1f1b on the first rank.
 *
 * Sources: GPipe (Huang et al. 2019), PipeDream-Flush and
 * interleaved 1F1B (Narayanan et al. 2021), zero bubble (Qi et al. 2024), its
 * V-schedules' memory (Qi et al. 2024, arXiv 2405.15362).
 */
#ifndef DSI_PIPE_PIPE_SCHEDULE_H
#define DSI_PIPE_PIPE_SCHEDULE_H

#include "place/stages.h"
#include "plan/plan_pool.h"

typedef enum dsi_schedule_kind {
    DSI_SCHEDULE_1F1B,
    DSI_SCHEDULE_GPIPE,
    DSI_SCHEDULE_INTERLEAVED,
    DSI_SCHEDULE_ZB_H1,
    DSI_SCHEDULE_ZB_V
} dsi_schedule_kind;

typedef struct dsi_schedule {
    dsi_schedule_kind kind;
    uint32_t n_ranks, n_micro;
    uint32_t n_chunks; /* of a rank: 2 with zb-v, else 1 but with interleaved; gpipe
                          goes with any */
} dsi_schedule;

typedef struct dsi_turn {
    uint32_t phase; /* of the rank's plan: see dsi_stage_parts */
    uint32_t micro; /* its slot is micro % the plan's slots */
} dsi_turn;

/* Which phases a micro-batch has on each rank. */
dsi_stage_parts dsi_schedule_parts(const dsi_schedule *s);
/* How many turns a rank has: its phases of each micro-batch. */
uint32_t dsi_schedule_count(const dsi_schedule *s);
/* The turns of a rank: dsi_schedule_count() of them. */
void dsi_schedule_turns(const dsi_schedule *s, uint32_t rank, dsi_turn *turns_out);
/* The most micro-batches between their first phase and their last on a rank at once; and chunks of
 * micro-batches. */
uint32_t dsi_schedule_in_flight(const dsi_schedule *s, uint32_t rank, uint32_t *chunks_out);
/* When chunks of micro-batches begin and end on a rank: 2 · n_chunks · n_micro events. */
void dsi_schedule_events(const dsi_schedule *s, uint32_t rank, dsi_slot_event *events_out);
/* ERR_CONFIG names what the schedule needs: interleaved a multiple of n_ranks micro-batches. */
ds_status dsi_schedule_allowed(ds_ctx *ctx, const dsi_schedule *s);

/* Seconds of a rank's phases, all its chunks together. */
typedef struct dsi_schedule_times {
    double forward, backward, weights; /* backward: without weights, where they are apart */
} dsi_schedule_times;

/* Idle seconds of a rank in a step where all ranks take as long and messages nothing; zb-h1, zb-v:
 * where the three are alike as well, otherwise about so many. */
double dsi_schedule_idle(const dsi_schedule *s, const dsi_schedule_times *t);

/* Its share of the step where forward, gradients of inputs and those of weights take as long. */
double dsi_schedule_idle_share(const dsi_schedule *s);

const char *dsi_schedule_name(dsi_schedule_kind kind);

#endif
