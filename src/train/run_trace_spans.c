/* SPDX-License-Identifier: Apache-2.0 */
/* From records to spans. See run_trace_spans.h.
 *
 * Every rank runs the same plan, so the plan of this one names the steps of all.
 */
#include "train/run_trace_spans.h"

#include "comm/rank_names.h"
#include "plan/plan_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 1 << 22, TEXT_FLUSH = 1 << 20 };

typedef dsi_trace_writer writer;

/* Something that a stream did concurrently with the thread. */
typedef struct dsi_trace_piece {
    uint32_t stream, node, step;
    double begin, end, waited;
} piece;

static ds_phase phase_of(const writer *w, const dsi_run_record *r)
{
    if (r->node == (uint32_t)DSI_HOST_BATCH || r->node == (uint32_t)DSI_HOST_CLEAR) {
        return r->node == (uint32_t)DSI_HOST_BATCH
                   ? DS_PHASE_FORWARD
                   : dsi_phases_find(&w->engine->train_plan->phases, "backward");
    }
    return w->steps[r->node].phase;
}

static const char *name_of(const writer *w, ds_phase phase)
{
    return w->engine->train_plan->phases.items[phase].name;
}

static void put(writer *w, dsi_trace_span span, uint32_t step, double begin, double end)
{
    span.pid = w->pid;
    span.step = w->engine->trace->first + step;
    span.start = begin - w->origin;
    span.end = end - w->origin;
    dsi_trace_add(&w->trace, &span);
}

/* To be called between spans: a long trace is larger than its text may be. */
static ds_status flush(writer *w, size_t least)
{
    if (w->text.failed) {
        return ds_fail(w->engine->ctx, DS_ERR_NOMEM, "no memory for the text of a trace");
    }
    if (w->text.size >= least) {
        DS_TRY(w->sink(w->user, w->text.data, w->text.size));
        dsi_buf_clear(&w->text);
    }
    return DS_OK;
}

/* Spans of steps, and of phases inside of them. Steps come first: viewers want the outer one of two
 * spans that begin together first. */
static ds_status put_phases(writer *w, const dsi_run_record *records, size_t n)
{
    for (int whole = 1; whole >= 0; --whole) {
        for (size_t i = 0; i < n;) {
            const ds_phase phase = phase_of(w, &records[i]);
            size_t last = i;
            while (last + 1 < n && records[last + 1].step == records[i].step &&
                   (whole == 1 || phase_of(w, &records[last + 1]) == phase)) {
                ++last;
            }
            put(w, dsi_trace_of_phase(whole == 1 ? NULL : name_of(w, phase)), records[i].step,
                records[i].begin, records[last].end);
            DS_TRY(flush(w, TEXT_FLUSH));
            i = last + 1;
        }
    }
    return DS_OK;
}

static void put_host(writer *w, const dsi_run_record *r)
{
    dsi_trace_span span = dsi_trace_of_phase(name_of(w, phase_of(w, r)));
    span.tid = DSI_TRACE_THREAD;
    span.name = r->node == (uint32_t)DSI_HOST_BATCH ? "copy batch" : "clear gradients";
    span.category = "host";
    put(w, span, r->step, r->begin, r->end);
}

/* What began before the trace is shown from its begin. */
static void add_piece(writer *w, const dsi_run_record *r, uint32_t node, double begin, double end)
{
    begin = begin < w->first ? w->first : begin;
    if (end <= w->first) {
        return;
    }
    w->pieces[w->n_pieces++] = (piece){.stream = (uint32_t)w->steps[node].stream,
                                       .node = node,
                                       .step = r->step,
                                       .begin = begin,
                                       .end = end,
                                       .waited = r->waited};
}

/* What was started goes on from its START to its end, which its WAIT records. The START may be of a
 * step before the trace. */
static void put_wait(writer *w, const dsi_run_record *r)
{
    const uint32_t start = w->steps[r->node].start;
    const double *issued = w->issued[start];
    const double begin = r->since > 0.0f ? r->begin - r->since : issued[0];
    const double end = r->work > 0.0f ? begin + r->work : issued[1];
    add_piece(w, r, start, begin, end < r->end ? end : r->end);
    put(w, dsi_trace_of_step(&w->engine->train_plan->phases, w->steps, r->node, true), r->step,
        r->begin, r->end);
}

static void put_record(writer *w, const dsi_run_record *r)
{
    if (r->node >= w->engine->train_plan->n_steps) {
        put_host(w, r);
        return;
    }
    const dsi_sim_step *step = &w->steps[r->node];
    dsi_trace_span span = dsi_trace_of_step(&w->engine->train_plan->phases, w->steps, r->node,
                                            step->stream != DSI_STREAM_COMPUTE);
    switch (step->kind) {
    case DSI_STEP_WAIT:
        put_wait(w, r);
        return;
    case DSI_STEP_START:
        w->issued[r->node][0] = r->begin;
        w->issued[r->node][1] = r->end;
        span.name = span.category = "start";
        break;
    case DSI_STEP_RUN:
        if (step->stream != DSI_STREAM_COMPUTE) {
            add_piece(w, r, r->node, r->begin, r->end);
        }
        break;
    }
    put(w, span, r->step, r->begin, r->end);
}

static int by_stream_then_end(const void *a, const void *b)
{
    const piece *x = a;
    const piece *y = b;
    if (x->stream != y->stream) {
        return x->stream < y->stream ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* As the simulator has it, a stream does one thing after the other: of several that were under way
 * together, each has the time from the end of the one before. The time that the stream is busy
 * stays what it is. */
static ds_status put_pieces(writer *w)
{
    double free_at = 0.0;
    qsort(w->pieces, w->n_pieces, sizeof *w->pieces, by_stream_then_end);
    for (uint32_t i = 0; i < w->n_pieces; ++i) {
        const piece *p = &w->pieces[i];
        if (i == 0 || p->stream != w->pieces[i - 1].stream) {
            free_at = p->begin;
        }
        dsi_trace_span span =
            dsi_trace_of_step(&w->engine->train_plan->phases, w->steps, p->node, false);
        span.waited = p->waited;
        put(w, span, p->step, p->begin > free_at ? p->begin : free_at, p->end);
        DS_TRY(flush(w, TEXT_FLUSH));
        free_at = p->end;
    }
    return DS_OK;
}

ds_status dsi_trace_writer_rank(writer *w, double origin)
{
    bool used[DSI_STREAM_COUNT] = {[DSI_STREAM_COMPUTE] = true};
    const dsi_run_record *records = w->engine->trace->records;
    const size_t n = (size_t)w->engine->trace->n;
    const uint32_t rank = ds_comm_rank(w->engine->comm);
    const uint32_t n_steps = w->engine->train_plan->n_steps;
    for (size_t i = 0; i < n; ++i) {
        if (records[i].node < n_steps) {
            used[w->steps[records[i].node].stream] = true;
        }
    }
    w->pid = DSI_TRACE_RANKS + rank;
    w->origin = origin;
    w->first = n > 0 ? records[0].begin : origin;
    dsi_trace_process(&w->trace, w->pid, dsi_comm_rank_name(w->engine->comm, rank).text);
    dsi_trace_streams(&w->trace, w->pid, used);
    DS_TRY(put_phases(w, records, n));
    for (size_t i = 0; i < n; ++i) {
        put_record(w, &records[i]);
        DS_TRY(flush(w, TEXT_FLUSH));
    }
    DS_TRY(put_pieces(w));
    return flush(w, 1);
}

ds_status dsi_trace_writer_open(writer *w, const ds_engine *engine, dsi_trace_sink sink, void *user)
{
    const dsi_plan *plan = engine->train_plan;
    const size_t room = (size_t)engine->trace->n + 1;
    w->engine = engine;
    w->sink = sink;
    w->user = user;
    w->text = dsi_buf_make(TEXT_CEILING);
    w->issued = calloc((size_t)plan->n_steps + 1, sizeof *w->issued);
    w->pieces = malloc(room * sizeof *w->pieces);
    if (w->issued == NULL || w->pieces == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a trace of %zu records", room);
    }
    DS_TRY(dsi_plan_sim_steps(plan, ds_comm_size(engine->comm), &engine->residencies, &w->steps));
    w->trace =
        ds_comm_rank(engine->comm) == 0 ? dsi_trace_begin(&w->text) : (dsi_trace){.text = &w->text};
    return DS_OK;
}

ds_status dsi_trace_writer_end(writer *w)
{
    dsi_trace_end(&w->trace);
    return flush(w, 0);
}

void dsi_trace_writer_close(writer *w)
{
    dsi_buf_free(&w->text);
    free(w->steps);
    free(w->issued);
    free(w->pieces);
}
