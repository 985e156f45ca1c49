/* SPDX-License-Identifier: Apache-2.0 */
/* Writes traces that Chrome's about:tracing and Perfetto open: the simulated timeline, and measured
 * ones, in one format, so that they can be laid over each other.
 *
 * A trace is one JSON object {"traceEvents":[…]}: begin, any number of names and spans, end. Times
 * are seconds here, microseconds in the file. The writer appends to a buffer whose `failed` flag
 * says whether all fitted; whoever writes much takes the text out between two events.
 *
 * A plan's trace and a run's have different processes, so that they can stand in one file. Spans of
 * one thread never overlap, they may only nest: viewers drop others.
 */
#ifndef DSI_COST_TRACE_H
#define DSI_COST_TRACE_H

#include "cost/simulate.h"

typedef struct dsi_trace {
    dsi_buf *text;
    bool first;
} dsi_trace;

/* Numbers in the file. Viewers treat a process or thread 0, and a thread with the number of its
 * process, as something special: there is none. */
enum {
    DSI_TRACE_PHASES = 1,  /* thread: steps, in them phases */
    DSI_TRACE_STREAMS = 2, /* threads: of the first stream … */
    DSI_TRACE_THREAD = DSI_TRACE_STREAMS + DSI_STREAM_COMPUTE, /* the rank's own */
    DSI_TRACE_PLAN = 100,                                      /* process: the planned rank */
    DSI_TRACE_RANKS = 1000                                     /* processes: of rank 0 … */
};

typedef struct dsi_trace_span {
    uint32_t pid, tid;
    const char *name;     /* operator or collective */
    const char *category; /* class: "product", "communication", "stall" */
    const char *scope;    /* NULL: none */
    const char *phase;    /* NULL: none */
    uint32_t node;        /* step of the plan; DS_NONE: none */
    uint64_t step;        /* of the run, the first is 1; 0: not shown */
    double start, end;
    double flops, bytes; /* 0: not shown */
    double waited;       /* seconds for the last rank; 0: not shown */
    double runs;         /* of a planned phase: how often a step has it; 1: not shown */
} dsi_trace_span;

dsi_trace dsi_trace_begin(dsi_buf *text);
void dsi_trace_process(dsi_trace *trace, uint32_t pid, const char *name);
/* Names every thread that `used` has, and the one of phases. */
void dsi_trace_streams(dsi_trace *trace, uint32_t pid, const bool used[DSI_STREAM_COUNT]);
/* What a trace says of a step of a plan, whether simulated or measured: all but process and times.
 * stall: of the wait for it, or `s` is one. */
dsi_trace_span dsi_trace_of_step(const dsi_phases *phases, const dsi_sim_step *steps, uint32_t s,
                                 bool stall);
/* The span of a phase, or (NULL) of a whole step; likewise. */
dsi_trace_span dsi_trace_of_phase(const char *phase);
void dsi_trace_add(dsi_trace *trace, const dsi_trace_span *span);
void dsi_trace_end(dsi_trace *trace);

/* A whole timeline as process `pid`: at most `micro_batches` of the step's (0: one), then norm and
 * update. */
void dsi_trace_timeline(dsi_trace *trace, const dsi_timeline *timeline, uint32_t pid,
                        const char *name, int64_t micro_batches);

#endif
