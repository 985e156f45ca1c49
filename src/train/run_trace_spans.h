/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a rank recorded as spans of a trace. Called by run_trace_save.c on each rank, whose
 * plan alone says what its steps are.
 */
#ifndef DSI_TRAIN_RUN_TRACE_SPANS_H
#define DSI_TRAIN_RUN_TRACE_SPANS_H

#include "base/buf.h"
#include "cost/trace.h"
#include "train/run_trace.h"

struct dsi_trace_piece;

/* Takes text of a trace, in pieces. */
typedef ds_status (*dsi_trace_sink)(void *user, const void *data, size_t n);

typedef struct dsi_trace_writer {
    const ds_engine *engine;
    dsi_sim_step *steps; /* of the plan, as the simulator names them */
    double (*issued)[2]; /* per step of the plan: its newest run, of STARTs */
    struct dsi_trace_piece *pieces;
    uint32_t n_pieces;
    dsi_trace_sink sink;
    void *user;
    dsi_buf text;
    dsi_trace trace;
    double origin; /* on this rank's clock: when the trace begins */
    double first;  /* when its records begin, on that clock */
    uint32_t pid;
} dsi_trace_writer;

/* Rank 0 begins a trace, the others go on with it. The caller closes the writer in any case. */
ds_status dsi_trace_writer_open(dsi_trace_writer *w, const ds_engine *engine, dsi_trace_sink sink,
                                void *user);
/* Writes this rank's process. origin: the time, on its clock, at which the trace begins. Errors:
 * those of the sink. */
ds_status dsi_trace_writer_rank(dsi_trace_writer *w, double origin);
/* Ends the trace, on rank 0. */
ds_status dsi_trace_writer_end(dsi_trace_writer *w);
void dsi_trace_writer_close(dsi_trace_writer *w);

#endif
