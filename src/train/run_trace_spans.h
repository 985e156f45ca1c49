/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what ranks recorded as spans of a trace. Called by run_trace_save.c on rank 0, which opens
 * a writer, gives it one rank after the other, and closes the file.
 */
#ifndef DSI_TRAIN_RUN_TRACE_SPANS_H
#define DSI_TRAIN_RUN_TRACE_SPANS_H

#include "base/buf.h"
#include "cost/trace.h"
#include "io/file.h"
#include "train/run_trace.h"

struct dsi_trace_piece;

typedef struct dsi_trace_writer {
    const ds_engine *engine;
    dsi_sim_step *steps;     /* of the plan, as the simulator names them */
    double (*issued)[2];     /* per step of the plan: its newest run, of STARTs */
    dsi_run_record *records; /* room for the largest rank's, for the caller */
    struct dsi_trace_piece *pieces;
    uint32_t n_pieces;
    dsi_file_out *file;
    dsi_buf text;
    dsi_trace trace;
    double origin; /* on the clock of the rank that is being written */
    double first;  /* when its records begin, on that clock */
    uint32_t pid;
} dsi_trace_writer;

/* most: records of any rank. The file is a staged one. The caller closes the writer in any case. */
ds_status dsi_trace_writer_open(dsi_trace_writer *w, const ds_engine *engine, uint64_t most,
                                const char *path);
/* Adds a rank's process. origin: the time, on its clock, at which the trace begins. Errors:
 * ERR_PEER (records that are none), those of the file. */
ds_status dsi_trace_writer_rank(dsi_trace_writer *w, uint32_t rank, const dsi_run_record *records,
                                size_t n, double origin);
/* Ends the trace and puts the file in its place. */
ds_status dsi_trace_writer_commit(dsi_trace_writer *w);
/* Frees; without a commit there is no file. */
void dsi_trace_writer_close(dsi_trace_writer *w);

#endif
