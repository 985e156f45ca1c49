/* The simulator. See simulate.h.
 *
 * State of a phase: the host thread's time `now`, and for each stream a queue of started work whose
 * head goes on. advance() moves time by computing or by waiting, and lets the heads progress: at
 * full speed while the thread waits, at the device's overlap while it computes.
 */
#include "cost/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 512 };

typedef struct lane {
    uint32_t head, tail; /* steps; DS_NONE: empty */
} lane;

typedef struct sim {
    ds_ctx *ctx;
    const dsi_sim_spec *spec;
    const dsi_device *device;
    dsi_timeline *timeline;
    double *seconds;   /* per step: its work alone */
    double *remaining; /* per step, of started work */
    double *began;     /* per step: when its work first progressed, < 0: not yet */
    uint32_t *next;    /* per step: behind it in its stream's queue */
    bool *done;        /* per step: started and ended */
    lane lanes[DSI_STREAM_COUNT];
    double now;
    dsi_sim_sum *sum; /* of the phase in progress */
} sim;

const char *dsi_sim_stream_name(dsi_sim_stream stream)
{
    static const char *const names[] = {
#define X(id, text) text,
        DSI_SIM_STREAM_LIST(X)
#undef X
    };
    return stream < DSI_STREAM_COUNT ? names[stream] : "unknown";
}

static bool holds_thread(const dsi_sim_step *step)
{
    return step->kind == DSI_SIM_RUN && step->stream == DSI_STREAM_COMPUTE;
}

static bool is_product(const dsi_sim_step *step)
{
    return step->stream == DSI_STREAM_COMPUTE && dsi_op_class_is_model(step->work.op_class);
}

static double step_seconds(const sim *sm, const dsi_sim_step *step)
{
    const dsi_device *d = sm->device;
    const uint32_t local = sm->spec->local_ranks;
    if (step->seconds > 0.0) {
        return step->seconds;
    }
    switch (step->stream) {
    case DSI_STREAM_COMPUTE:
        return dsi_time_work(d, &step->work);
    case DSI_STREAM_COMM:
        return dsi_time_collective(d, step->coll, step->group, step->work.bytes).seconds;
    case DSI_STREAM_HOST_IN:
    case DSI_STREAM_HOST_OUT:
        return dsi_time_host(d, step->work.bytes, local);
    case DSI_STREAM_HOST:
        return step->work.bytes * (double)(local > 0 ? local : 1) / d->host_bandwidth;
    case DSI_STREAM_DISK_READ:
    case DSI_STREAM_DISK_WRITE:
        return dsi_time_disk(d, step->stream == DSI_STREAM_DISK_WRITE, step->work.bytes, local);
    case DSI_STREAM_COUNT:
        break;
    }
    return NAN;
}

/* ---- checks ---- */

static ds_status bad_step(const sim *sm, uint32_t s, const char *why)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    return ds_fail(sm->ctx, DS_ERR_GRAPH, "simulated step %u (%s of %s): %s", s,
                   step->op != NULL ? step->op : "?", step->scope != NULL ? step->scope : "-", why);
}

static ds_status check_step(const sim *sm, uint32_t s)
{
    const dsi_sim_step *steps = sm->spec->steps;
    const dsi_sim_step *step = &steps[s];
    if (step->stream >= DSI_STREAM_COUNT || step->phase >= DS_PHASE_COUNT) {
        return bad_step(sm, s, "its stream or phase is out of range");
    }
    if (s > 0 && step->phase < steps[s - 1].phase) {
        return bad_step(sm, s, "phases are not in order");
    }
    if (step->kind == DSI_SIM_WAIT) {
        if (step->start >= s || steps[step->start].kind != DSI_SIM_START ||
            steps[step->start].phase != step->phase) {
            return bad_step(sm, s, "it waits for no start of its phase");
        }
        return DS_OK;
    }
    if (step->kind == DSI_SIM_START && step->stream == DSI_STREAM_COMPUTE) {
        return bad_step(sm, s, "computation runs, it is not started");
    }
    sm->seconds[s] = step_seconds(sm, step);
    if (!isfinite(sm->seconds[s]) || sm->seconds[s] < 0.0) {
        return ds_fail(
            sm->ctx, DS_ERR_ARG,
            "the device profile \"%s\" lacks a figure for the stream \"%s\" that step %u "
            "(%s) needs; for collectives over nodes it is \"network\"",
            sm->device->name, dsi_sim_stream_name(step->stream), s,
            step->op != NULL ? step->op : "?");
    }
    return DS_OK;
}

/* ---- events and sums ---- */

static void add_event(sim *sm, uint32_t s, dsi_sim_stream stream, bool stall, double start,
                      double end)
{
    if (end > start) {
        sm->timeline->events[sm->timeline->n_events++] = (dsi_sim_event){
            .step = s, .stream = stream, .stall = stall, .start = start, .end = end};
    }
}

static const char *row_name(const dsi_sim_step *step)
{
    if (step->stream == DSI_STREAM_COMPUTE) {
        return dsi_op_class_name(step->work.op_class);
    }
    return step->stream == DSI_STREAM_COMM ? dsi_coll_name(step->coll)
                                           : dsi_sim_stream_name(step->stream);
}

static bool same_axis(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* The row that a step belongs to; beyond the ceiling the last one takes all. */
static dsi_sim_row *row_of(dsi_timeline *t, const dsi_sim_step *step)
{
    const char *name = row_name(step);
    const char *axis = step->stream == DSI_STREAM_COMM ? step->axis : NULL;
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        dsi_sim_row *row = &t->rows[i];
        if (row->phase == step->phase && row->stream == step->stream &&
            strcmp(row->name, name) == 0 && same_axis(row->axis, axis)) {
            return row;
        }
    }
    if (t->n_rows < MOST_ROWS) {
        t->rows[t->n_rows++] =
            (dsi_sim_row){.name = name, .stream = step->stream, .axis = axis, .phase = step->phase};
    }
    return &t->rows[t->n_rows - 1];
}

static void count_step(sim *sm, uint32_t s)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    const double times = dsi_timeline_repeats(sm->timeline, step->phase);
    dsi_sim_row *row = row_of(sm->timeline, step);
    row->calls += (uint64_t)ceil(times);
    row->seconds += times * sm->seconds[s];
    row->flops += times * step->work.flops;
    row->bytes += times * step->work.bytes;
    sm->sum->flops += is_product(step) ? step->work.flops : 0.0;
    if (step->stream == DSI_STREAM_COMM) {
        sm->sum->comm += sm->seconds[s];
        sm->sum->comm_bytes += step->work.bytes;
    } else if (step->stream != DSI_STREAM_COMPUTE) {
        sm->sum->moves += sm->seconds[s];
        sm->sum->move_bytes += step->work.bytes;
    }
}

/* ---- time ---- */

static bool is_disk(dsi_sim_stream stream)
{
    return stream == DSI_STREAM_DISK_READ || stream == DSI_STREAM_DISK_WRITE;
}

/* Share of its own rate that a disk's stream has while the other one is busy too: half of what
 * both reach together. */
static double beside_other(const sim *sm, dsi_sim_stream stream)
{
    const dsi_device *d = sm->device;
    const bool write = stream == DSI_STREAM_DISK_WRITE;
    const dsi_sim_stream other = write ? DSI_STREAM_DISK_READ : DSI_STREAM_DISK_WRITE;
    const double own = write ? d->disk_write : d->disk_read;
    const bool shares = sm->lanes[other].head != DS_NONE && d->disk_both > 0.0 && own > 0.0;
    return shares ? fmin(1.0, 0.5 * d->disk_both / own) : 1.0;
}

/* Speed of a stream's work: of its own rate. */
static double speed_of(const sim *sm, dsi_sim_stream stream, bool computing)
{
    if (is_disk(stream)) {
        return beside_other(sm, stream);
    }
    return computing ? sm->device->overlap : 1.0;
}

/* Speed of computation beside what is under way. */
static double compute_speed(const sim *sm)
{
    const bool comm = sm->lanes[DSI_STREAM_COMM].head != DS_NONE && sm->device->overlap > 0.0;
    return comm ? 1.0 - sm->device->slowdown : 1.0;
}

/* Moves time by dt; every head progresses. */
static void elapse(sim *sm, double dt, bool computing)
{
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        const uint32_t s = sm->lanes[i].head;
        const double speed = speed_of(sm, (dsi_sim_stream)i, computing);
        if (s != DS_NONE && speed > 0.0 && (dt > 0.0 || sm->remaining[s] <= 0.0)) {
            sm->began[s] = sm->began[s] < 0.0 ? sm->now : sm->began[s];
            sm->remaining[s] -= dt * speed;
        }
    }
    sm->now += dt;
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        const uint32_t s = sm->lanes[i].head;
        if (s != DS_NONE && sm->remaining[s] <= 1e-9 * sm->seconds[s]) {
            sm->began[s] = sm->began[s] < 0.0 ? sm->now : sm->began[s];
            sm->done[s] = true;
            sm->lanes[i].head = sm->next[s];
            add_event(sm, s, (dsi_sim_stream)i, false, sm->began[s], sm->now);
        }
    }
}

/* Seconds until the first head ends, at most `limit`. */
static double until_first_end(const sim *sm, double limit, bool computing)
{
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        const uint32_t s = sm->lanes[i].head;
        const double speed = speed_of(sm, (dsi_sim_stream)i, computing);
        if (s != DS_NONE && speed > 0.0) {
            limit = fmin(limit, fmax(sm->remaining[s], 0.0) / speed);
        }
    }
    return limit;
}

static void compute(sim *sm, uint32_t s)
{
    const double start = sm->now;
    double left = sm->seconds[s];
    while (left > 1e-12 * sm->seconds[s]) {
        const double speed = compute_speed(sm);
        const double dt = until_first_end(sm, left / speed, true);
        elapse(sm, dt, true);
        left -= dt * speed;
    }
    sm->sum->compute += sm->now - start;
    add_event(sm, s, DSI_STREAM_COMPUTE, false, start, sm->now);
}

static void post(sim *sm, uint32_t s)
{
    lane *l = &sm->lanes[sm->spec->steps[s].stream];
    sm->remaining[s] = sm->seconds[s];
    sm->began[s] = -1.0;
    sm->next[s] = DS_NONE;
    if (l->head == DS_NONE) {
        l->head = s;
    } else {
        sm->next[l->tail] = s;
    }
    l->tail = s;
}

/* Until the started step has ended; the time counts as exposed. */
static void await(sim *sm, uint32_t s, uint32_t waiter)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    const double start = sm->now;
    while (!sm->done[s]) {
        elapse(sm, until_first_end(sm, INFINITY, false), false);
    }
    const double stalled = sm->now - start;
    if (step->stream == DSI_STREAM_COMM) {
        sm->sum->exposed_comm += stalled;
    } else {
        sm->sum->exposed_moves += stalled;
    }
    row_of(sm->timeline, step)->exposed +=
        stalled * dsi_timeline_repeats(sm->timeline, step->phase);
    add_event(sm, waiter, DSI_STREAM_COMPUTE, true, start, sm->now);
}

/* What nobody waited for ends with the phase. */
static void drain(sim *sm)
{
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        while (sm->lanes[i].head != DS_NONE) {
            await(sm, sm->lanes[i].head, sm->lanes[i].head);
        }
    }
}

static int by_start(const void *a, const void *b)
{
    const dsi_sim_event *x = a;
    const dsi_sim_event *y = b;
    if (x->start != y->start) {
        return x->start < y->start ? -1 : 1;
    }
    if (x->stream != y->stream) {
        return x->stream < y->stream ? -1 : 1;
    }
    return x->step < y->step ? -1 : x->step > y->step;
}

static void run_phase(sim *sm, ds_phase phase, uint32_t begin, uint32_t end)
{
    dsi_timeline *t = sm->timeline;
    sm->now = 0.0;
    sm->sum = &t->phases[phase];
    t->phase_begin[phase] = t->n_events;
    for (uint32_t s = begin; s < end; ++s) {
        const dsi_sim_step *step = &sm->spec->steps[s];
        if (step->kind == DSI_SIM_WAIT) {
            await(sm, step->start, s);
            continue;
        }
        count_step(sm, s);
        if (holds_thread(step)) {
            compute(sm, s);
            continue;
        }
        post(sm, s);
        if (step->kind == DSI_SIM_RUN) {
            await(sm, s, s);
        }
    }
    drain(sm);
    sm->sum->seconds = sm->now;
    sm->sum->bubble =
        fmax(0.0, sm->now - sm->sum->compute - sm->sum->exposed_comm - sm->sum->exposed_moves);
    qsort(t->events + t->phase_begin[phase], t->n_events - t->phase_begin[phase], sizeof *t->events,
          by_start);
}

/* ---- the whole step ---- */

double dsi_timeline_repeats(const dsi_timeline *timeline, ds_phase phase)
{
    const int64_t n = timeline->spec.accumulation;
    const double share = timeline->spec.share[phase];
    const bool micro = (phase == DS_PHASE_FORWARD || phase == DS_PHASE_BACKWARD) && n > 0;
    return (micro ? (double)n : 1.0) * (share == 0.0 ? 1.0 : fmax(0.0, share));
}

static void add_sum(dsi_sim_sum *total, const dsi_sim_sum *part, double times)
{
    total->seconds += times * part->seconds;
    total->compute += times * part->compute;
    total->comm += times * part->comm;
    total->exposed_comm += times * part->exposed_comm;
    total->moves += times * part->moves;
    total->exposed_moves += times * part->exposed_moves;
    total->bubble += times * part->bubble;
    total->flops += times * part->flops;
    total->comm_bytes += times * part->comm_bytes;
    total->move_bytes += times * part->move_bytes;
}

/* A rest beside the steps has their processor for its computation, so that costs them as much as
 * ever; but it waits for its moves while they go on, as far as they last. */
static void hide_rest(dsi_timeline *t)
{
    const double share = dsi_timeline_repeats(t, DS_PHASE_REST);
    const double others = t->step.seconds - share * t->phases[DS_PHASE_REST].seconds;
    const double hidden = fmin(share * t->phases[DS_PHASE_REST].exposed_moves, others);
    t->step.seconds -= hidden;
    t->step.exposed_moves -= hidden;
}

static int slower_first(const void *a, const void *b)
{
    const dsi_sim_row *x = a;
    const dsi_sim_row *y = b;
    if (x->seconds != y->seconds) {
        return x->seconds < y->seconds ? 1 : -1;
    }
    const int names = strcmp(x->name, y->name);
    return names != 0 ? names : (int)x->phase - (int)y->phase;
}

static void compose(sim *sm)
{
    dsi_timeline *t = sm->timeline;
    const dsi_sim_spec *spec = sm->spec;
    for (int p = 0; p < DS_PHASE_COUNT; ++p) {
        add_sum(&t->step, &t->phases[p], dsi_timeline_repeats(t, (ds_phase)p));
    }
    if (spec->rest_beside) {
        hide_rest(t);
    }
    const dsi_work clear = {
        .op_class = DSI_CLASS_COPY, .dtype = DS_DTYPE_F32, .bytes = spec->clear_bytes};
    const double cleared = spec->clear_bytes > 0.0 ? dsi_time_work(&t->device, &clear) : 0.0;
    t->step.seconds += cleared;
    t->step.compute += cleared;
    const double batches = dsi_timeline_repeats(t, DS_PHASE_FORWARD);
    const double full = t->step.seconds * dsi_device_peak(&t->device, spec->peak_dtype);
    if (t->step.seconds > 0.0) {
        t->mfu = spec->model_flops * batches / full;
        t->hfu = t->step.flops / full;
        t->tokens_per_second = spec->tokens * batches / t->step.seconds;
    }
    qsort(t->rows, t->n_rows, sizeof *t->rows, slower_first);
}

static ds_status make_arrays(sim *sm)
{
    const size_t n = (size_t)sm->spec->n_steps + 1;
    dsi_timeline *t = sm->timeline;
    sm->seconds = calloc(n, sizeof *sm->seconds);
    sm->remaining = calloc(n, sizeof *sm->remaining);
    sm->began = calloc(n, sizeof *sm->began);
    sm->next = calloc(n, sizeof *sm->next);
    sm->done = calloc(n, sizeof *sm->done);
    t->events = calloc(2 * n, sizeof *t->events);
    t->rows = calloc(MOST_ROWS, sizeof *t->rows);
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        sm->lanes[i] = (lane){DS_NONE, DS_NONE};
    }
    const bool ok = sm->seconds != NULL && sm->remaining != NULL && sm->began != NULL &&
                    sm->next != NULL && sm->done != NULL && t->events != NULL && t->rows != NULL;
    return ok ? DS_OK : ds_fail(sm->ctx, DS_ERR_NOMEM, "no memory for a timeline of %zu steps", n);
}

static ds_status run_all(sim *sm)
{
    const dsi_sim_spec *spec = sm->spec;
    for (uint32_t s = 0; s < spec->n_steps; ++s) {
        DS_TRY(check_step(sm, s));
    }
    uint32_t begin = 0;
    for (int p = 0; p < DS_PHASE_COUNT; ++p) {
        uint32_t end = begin;
        while (end < spec->n_steps && spec->steps[end].phase == (ds_phase)p) {
            ++end;
        }
        run_phase(sm, (ds_phase)p, begin, end);
        begin = end;
    }
    sm->timeline->phase_begin[DS_PHASE_COUNT] = sm->timeline->n_events;
    compose(sm);
    return DS_OK;
}

ds_status dsi_simulate(ds_ctx *ctx, const dsi_sim_spec *spec, dsi_timeline **timeline_out)
{
    dsi_timeline *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a timeline");
    }
    t->spec = *spec;
    t->device = *spec->device;
    t->spec.device = &t->device;
    sim sm = {.ctx = ctx, .spec = &t->spec, .device = &t->device, .timeline = t};
    ds_status status = make_arrays(&sm);
    if (status == DS_OK) {
        status = run_all(&sm);
    }
    free(sm.seconds);
    free(sm.remaining);
    free(sm.began);
    free(sm.next);
    free(sm.done);
    if (status < 0) {
        dsi_timeline_destroy(&t);
        return status;
    }
    *timeline_out = t;
    return DS_OK;
}

void dsi_timeline_destroy(dsi_timeline **timeline)
{
    if (timeline != NULL && *timeline != NULL) {
        free((*timeline)->events);
        free((*timeline)->rows);
        free(*timeline);
        *timeline = NULL;
    }
}
