/* Writes traces that Chrome's about:tracing and Perfetto open: the simulated timeline, and measured
 * ones, in one format, so that they can be laid over each other.
 *
 * A trace is one JSON object {"traceEvents":[…]}: begin, any number of names and spans, end. Times
 * are seconds here, microseconds in the file. The writer appends to a buffer whose `failed` flag
 * tells whether all fitted.
 */
#ifndef DSI_COST_TRACE_H
#define DSI_COST_TRACE_H

#include "cost/simulate.h"

typedef struct dsi_trace {
    dsi_buf *text;
    bool first;
} dsi_trace;

/* pid: the rank, or the run; tid: the stream (dsi_sim_stream). */
typedef struct dsi_trace_span {
    uint32_t pid, tid;
    const char *name;     /* operator or collective */
    const char *category; /* class: "linear", "comm", "stall" */
    const char *scope;    /* NULL: none */
    const char *phase;    /* NULL: none */
    double start, seconds;
    double flops, bytes; /* 0: not shown */
} dsi_trace_span;

dsi_trace dsi_trace_begin(dsi_buf *text);
void dsi_trace_process(dsi_trace *trace, uint32_t pid, const char *name);
void dsi_trace_stream(dsi_trace *trace, uint32_t pid, uint32_t tid, const char *name);
void dsi_trace_add(dsi_trace *trace, const dsi_trace_span *span);
void dsi_trace_end(dsi_trace *trace);

/* A whole timeline as process `pid`: at most `micro_batches` of the step's (0: one), then norm and
 * update. */
void dsi_trace_timeline(dsi_trace *trace, const dsi_timeline *timeline, uint32_t pid,
                        const char *name, int64_t micro_batches);

#endif
