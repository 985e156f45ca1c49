/* SPDX-License-Identifier: Apache-2.0 */
/* The trace writer. See trace.h. The format: Google's "Trace Event Format", JSON object form, with
 * complete events (ph X), metadata events (ph M) and times in microseconds. */
#include "cost/trace.h"

#include <math.h>
#include <string.h>

static void text_field(dsi_buf *text, const char *key, const char *value)
{
    dsi_buf_printf(text, "\"%s\":\"", key);
    dsi_buf_json(text, value, strlen(value));
    dsi_buf_putc(text, '"');
}

static void begin_event(dsi_trace *trace)
{
    dsi_buf_puts(trace->text, trace->first ? "\n" : ",\n");
    trace->first = false;
}

dsi_trace dsi_trace_begin(dsi_buf *text)
{
    dsi_buf_puts(text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    return (dsi_trace){.text = text, .first = true};
}

static void name_event(dsi_trace *trace, uint32_t pid, uint32_t tid, const char *what,
                       const char *name)
{
    begin_event(trace);
    dsi_buf_printf(trace->text, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s\",\"args\":{",
                   pid, tid, what);
    text_field(trace->text, "name", name);
    dsi_buf_puts(trace->text, "}}");
}

void dsi_trace_process(dsi_trace *trace, uint32_t pid, const char *name)
{
    name_event(trace, pid, DSI_TRACE_PHASES, "process_name", name);
}

static void trace_stream(dsi_trace *trace, uint32_t pid, uint32_t tid, const char *name)
{
    name_event(trace, pid, tid, "thread_name", name);
    begin_event(trace);
    dsi_buf_printf(trace->text,
                   "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\",\"args\":{"
                   "\"sort_index\":%u}}",
                   pid, tid, tid);
}

void dsi_trace_streams(dsi_trace *trace, uint32_t pid, const bool used[DSI_STREAM_COUNT])
{
    trace_stream(trace, pid, DSI_TRACE_PHASES, "phases");
    for (uint32_t i = 0; i < DSI_STREAM_COUNT; ++i) {
        if (used[i]) {
            trace_stream(trace, pid, DSI_TRACE_STREAMS + i, dsi_sim_stream_name((dsi_sim_stream)i));
        }
    }
}

/* Adds a number to the arguments of a span. */
static void put_number(dsi_trace *trace, const char *key, double value, const char **between)
{
    dsi_buf_printf(trace->text, "%s\"%s\":%.9g", *between, key, value);
    *between = ",";
}

void dsi_trace_add(dsi_trace *trace, const dsi_trace_span *span)
{
    dsi_buf *text = trace->text;
    const char *between = "";
    begin_event(trace);
    const double start = nearbyint(1e9 * span->start);
    const double end = nearbyint(1e9 * span->end);
    dsi_buf_printf(text, "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,", span->pid,
                   span->tid, 1e-3 * start, end > start ? 1e-3 * (end - start) : 0.0);
    text_field(text, "name", span->name);
    dsi_buf_putc(text, ',');
    text_field(text, "cat", span->category);
    dsi_buf_puts(text, ",\"args\":{");
    if (span->scope != NULL) {
        text_field(text, "scope", span->scope);
        between = ",";
    }
    if (span->phase != NULL) {
        dsi_buf_puts(text, between);
        text_field(text, "phase", span->phase);
        between = ",";
    }
    if (span->node != DS_NONE) {
        put_number(trace, "node", span->node, &between);
    }
    if (span->step > 0) {
        put_number(trace, "step", (double)span->step, &between);
    }
    if (span->flops > 0.0) {
        put_number(trace, "flops", span->flops, &between);
    }
    if (span->bytes > 0.0) {
        put_number(trace, "bytes", span->bytes, &between);
    }
    if (span->waited > 0.0) {
        put_number(trace, "waited_us", 1e6 * span->waited, &between);
    }
    if (span->runs != 1.0) {
        put_number(trace, "runs", span->runs, &between);
    }
    dsi_buf_puts(text, "}}");
}

void dsi_trace_end(dsi_trace *trace)
{
    dsi_buf_puts(trace->text, "\n]}\n");
}

/* ---- a timeline ---- */

dsi_trace_span dsi_trace_of_step(const dsi_phases *phases, const dsi_sim_step *steps, uint32_t s,
                                 bool stall)
{
    const dsi_sim_step *step = &steps[s];
    const dsi_sim_step *work = step->kind == DSI_STEP_WAIT ? &steps[step->start] : step;
    const char *category = work->stream == DSI_STREAM_COMPUTE
                               ? dsi_op_class_name(work->work.op_class)
                               : dsi_sim_stream_name(work->stream);
    return (dsi_trace_span){.tid = stall ? (uint32_t)DSI_TRACE_THREAD
                                         : DSI_TRACE_STREAMS + (uint32_t)work->stream,
                            .name = stall ? "wait" : work->op,
                            .category = stall ? "stall" : category,
                            .scope = work->scope,
                            .phase = phases->items[step->phase].name,
                            .node = s,
                            .flops = stall ? 0.0 : work->work.flops,
                            .bytes = stall ? 0.0 : work->work.bytes,
                            .runs = 1.0};
}

dsi_trace_span dsi_trace_of_phase(const char *phase)
{
    const bool whole = phase == NULL;
    return (dsi_trace_span){.tid = DSI_TRACE_PHASES,
                            .name = whole ? "step" : phase,
                            .category = whole ? "step" : "phase",
                            .phase = phase,
                            .node = DS_NONE,
                            .runs = 1.0};
}

/* Adds one run of a phase that begins at `start`; gives its end. */
static double add_phase(dsi_trace *trace, const dsi_timeline *t, uint32_t pid, ds_phase phase,
                        double start)
{
    dsi_trace_span span = dsi_trace_of_phase(t->spec.phases->items[phase].name);
    span.pid = pid;
    span.start = start;
    span.end = start + t->phases[phase].seconds;
    span.runs = dsi_phase_is_micro(t->spec.phases, phase) ? 1.0 : dsi_timeline_repeats(t, phase);
    if (span.end > start) {
        dsi_trace_add(trace, &span);
    }
    for (uint32_t i = t->phase_begin[phase]; i < t->phase_begin[phase + 1]; ++i) {
        const dsi_sim_event *event = &t->events[i];
        span = dsi_trace_of_step(t->spec.phases, t->spec.steps, event->step, event->stall);
        span.pid = pid;
        span.start = start + event->start;
        span.end = start + event->end;
        dsi_trace_add(trace, &span);
    }
    return start + t->phases[phase].seconds;
}

void dsi_trace_timeline(dsi_trace *trace, const dsi_timeline *timeline, uint32_t pid,
                        const char *name, int64_t micro_batches)
{
    const int64_t all = (int64_t)dsi_timeline_repeats(timeline, DS_PHASE_FORWARD);
    const uint32_t n_micro = dsi_phases_micro(timeline->spec.phases);
    const int64_t wanted = micro_batches > 0 ? micro_batches : 1;
    bool used[DSI_STREAM_COUNT] = {false};
    double now = 0.0;
    for (uint32_t i = 0; i < timeline->n_events; ++i) {
        used[timeline->events[i].stream] = true;
    }
    dsi_trace_process(trace, pid, name);
    dsi_trace_streams(trace, pid, used);
    const int64_t runs = wanted < all ? wanted : all;
    dsi_trace_span step = dsi_trace_of_phase(NULL);
    step.pid = pid;
    for (uint32_t p = 0; p < timeline->spec.phases->n; ++p) {
        step.end += (dsi_phase_is_micro(timeline->spec.phases, p) ? (double)runs : 1.0) *
                    timeline->phases[p].seconds;
    }
    dsi_trace_add(trace, &step); /* before the phases inside of it */
    for (int64_t i = 0; i < runs; ++i) {
        for (ds_phase p = 0; p < n_micro; ++p) {
            now = add_phase(trace, timeline, pid, p, now);
        }
    }
    for (ds_phase p = n_micro; p < timeline->spec.phases->n; ++p) {
        now = add_phase(trace, timeline, pid, p, now);
    }
}
