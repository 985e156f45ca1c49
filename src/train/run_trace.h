/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of a run: what a rank records while it runs. Written to a file by run_trace_save.c
 * and run_trace_spans.c.
 *
 * Called by the engine around phases (engine_timers.c) and what it does between them.
 *
 * Invariants: records are in the order in which their steps ended, which is that of the plan within
 * a phase; n <= capacity; nothing is allocated between start and save.
 */
#ifndef DSI_TRAIN_RUN_TRACE_H
#define DSI_TRAIN_RUN_TRACE_H

#include "train/engine.h"

/* What the engine's thread does itself, in the place of a node. */
typedef enum dsi_host_work {
    DSI_HOST_BATCH = -2, /* copies a batch in */
    DSI_HOST_CLEAR = -3  /* clears the accumulators */
} dsi_host_work;

typedef struct dsi_run_record {
    uint32_t node; /* step of the training plan, or a dsi_host_work */
    uint32_t step; /* optimizer step, from the first of the trace */
    double begin, end;
    float work, waited, since; /* as in dsi_exec_times */
} dsi_run_record;

typedef struct dsi_run_trace {
    uint64_t first, last; /* optimizer steps, counted from 1 */
    dsi_run_record *records;
    size_t n, capacity;
    uint64_t n_lost; /* records that did not fit: more micro-batches than the configuration says */
} dsi_run_trace;

/* Whether the optimizer step in progress is recorded. */
bool dsi_run_trace_is_on(const ds_engine *engine);
/* Records a step of the training plan. */
void dsi_run_trace_add(ds_engine *engine, const dsi_step *step, const dsi_exec_times *times);
/* Records work of the host between begin and end of the two calls: nothing when it is off. */
double dsi_run_trace_begin(const ds_engine *engine);
void dsi_run_trace_end(ds_engine *engine, dsi_host_work what, double begin);

#endif
