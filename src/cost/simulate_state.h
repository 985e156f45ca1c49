/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the simulator. Shared by simulate*.c alone:
 *
 *     simulate.c        the thread, its streams and their time
 *     simulate_sums.c   events, rows and sums
 */
#ifndef DSI_COST_SIMULATE_STATE_H
#define DSI_COST_SIMULATE_STATE_H

#include "cost/simulate.h"

enum { SIM_MOST_ROWS = 512 };

typedef struct dsi_sim_lane {
    uint32_t head, tail; /* steps; DS_NONE: empty */
} dsi_sim_lane;

typedef struct dsi_sim {
    ds_ctx *ctx;
    const dsi_sim_spec *spec;
    const dsi_device *device;
    dsi_timeline *timeline;
    double *seconds;   /* per step: its work alone */
    double *remaining; /* per step, of started work */
    double *began;     /* per step: when its work first progressed, NAN: not yet */
    double *origin;    /* per step: begin of the phase that started it */
    uint32_t *next;    /* per step: behind it in its stream's queue */
    bool *under_way;   /* per step: started and not ended */
    bool *counts;      /* per step: started in the step that counts */
    bool *awaited;     /* per step: a WAIT is for it */
    dsi_sim_lane lanes[DSI_STREAM_COUNT];
    double now, phase_start;
    double repeated;  /* seconds of waits for the step before that the sums count too often */
    bool counting;    /* the step in progress is the one that counts */
    dsi_sim_sum *sum; /* of the phase in progress */
    dsi_sim_sum none; /* of phases that do not count */
} dsi_sim;

/* origin: the begin of the step's phase. Nothing without duration is one. */
void dsi_sim_add_event(dsi_sim *sm, uint32_t s, dsi_sim_stream stream, bool stall, double start,
                       double end, double origin);
/* The row that a step belongs to; beyond the ceiling the last one takes all. */
dsi_sim_row *dsi_sim_row_of(dsi_timeline *t, const dsi_sim_step *step);
/* Enters a step that begins: its row, and the sum of its phase. */
void dsi_sim_count_step(dsi_sim *sm, uint32_t s);
/* At the end: events by phase and start, and the whole step from its phases. */
void dsi_sim_sort_events(dsi_timeline *t);
void dsi_sim_compose(dsi_sim *sm);

#endif
