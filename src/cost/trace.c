/* The trace writer. See trace.h. The format: Google's "Trace Event Format", JSON object form, with
 * complete events (ph X), metadata events (ph M) and times in microseconds. */
#include "cost/trace.h"

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
    name_event(trace, pid, 0, "process_name", name);
}

void dsi_trace_stream(dsi_trace *trace, uint32_t pid, uint32_t tid, const char *name)
{
    name_event(trace, pid, tid, "thread_name", name);
    begin_event(trace);
    dsi_buf_printf(trace->text,
                   "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\",\"args\":{"
                   "\"sort_index\":%u}}",
                   pid, tid, tid);
}

void dsi_trace_add(dsi_trace *trace, const dsi_trace_span *span)
{
    dsi_buf *text = trace->text;
    const char *between = "";
    begin_event(trace);
    dsi_buf_printf(text, "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,", span->pid,
                   span->tid, 1e6 * span->start, 1e6 * span->seconds);
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
    if (span->flops > 0.0) {
        dsi_buf_printf(text, "%s\"flops\":%.9g", between, span->flops);
        between = ",";
    }
    if (span->bytes > 0.0) {
        dsi_buf_printf(text, "%s\"bytes\":%.9g", between, span->bytes);
    }
    dsi_buf_puts(text, "}}");
}

void dsi_trace_end(dsi_trace *trace)
{
    dsi_buf_puts(trace->text, "\n]}\n");
}

/* ---- a timeline ---- */

static const char *phase_name(ds_phase phase)
{
    static const char *const names[] = {
#define X(id, text) text,
        DS_PHASE_LIST(X)
#undef X
    };
    return names[phase];
}

static const char *category_of(const dsi_sim_event *event, const dsi_sim_step *step)
{
    if (event->stall) {
        return "stall";
    }
    return event->stream == DSI_STREAM_COMPUTE ? dsi_op_class_name(step->work.op_class)
                                               : dsi_sim_stream_name(event->stream);
}

/* Adds one run of a phase that begins at `start`. */
static void add_phase(dsi_trace *trace, const dsi_timeline *t, uint32_t pid, ds_phase phase,
                      double start)
{
    for (uint32_t i = t->phase_begin[phase]; i < t->phase_begin[phase + 1]; ++i) {
        const dsi_sim_event *event = &t->events[i];
        const dsi_sim_step *step = &t->spec.steps[event->step];
        const dsi_sim_step *work = step->kind == DSI_SIM_WAIT ? &t->spec.steps[step->start] : step;
        const dsi_trace_span span = {.pid = pid,
                                     .tid = (uint32_t)event->stream,
                                     .name = event->stall ? "wait" : step->op,
                                     .category = category_of(event, step),
                                     .scope = work->scope,
                                     .phase = phase_name(phase),
                                     .start = start + event->start,
                                     .seconds = event->end - event->start,
                                     .flops = event->stall ? 0.0 : step->work.flops,
                                     .bytes = event->stall ? 0.0 : step->work.bytes};
        dsi_trace_add(trace, &span);
    }
}

static void name_streams(dsi_trace *trace, const dsi_timeline *t, uint32_t pid)
{
    bool used[DSI_STREAM_COUNT] = {false};
    for (uint32_t i = 0; i < t->n_events; ++i) {
        used[t->events[i].stream] = true;
    }
    for (uint32_t i = 0; i < DSI_STREAM_COUNT; ++i) {
        if (used[i]) {
            dsi_trace_stream(trace, pid, i, dsi_sim_stream_name((dsi_sim_stream)i));
        }
    }
}

void dsi_trace_timeline(dsi_trace *trace, const dsi_timeline *timeline, uint32_t pid,
                        const char *name, int64_t micro_batches)
{
    const int64_t all = dsi_timeline_repeats(timeline, DS_PHASE_FORWARD);
    const int64_t wanted = micro_batches > 0 ? micro_batches : 1;
    double now = 0.0;
    dsi_trace_process(trace, pid, name);
    name_streams(trace, timeline, pid);
    for (int64_t i = 0; i < (wanted < all ? wanted : all); ++i) {
        add_phase(trace, timeline, pid, DS_PHASE_FORWARD, now);
        now += timeline->phases[DS_PHASE_FORWARD].seconds;
        add_phase(trace, timeline, pid, DS_PHASE_BACKWARD, now);
        now += timeline->phases[DS_PHASE_BACKWARD].seconds;
    }
    add_phase(trace, timeline, pid, DS_PHASE_NORM, now);
    now += timeline->phases[DS_PHASE_NORM].seconds;
    add_phase(trace, timeline, pid, DS_PHASE_UPDATE, now);
}
