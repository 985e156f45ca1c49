/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator. See simulate.h.
 *
 * State: the host thread's time `now`, and for each stream a queue of started work whose head goes
 * on. elapse() moves time by computing or by waiting, and lets the heads progress: at full speed
 * while the thread waits, at the device's overlap while it computes.
 */
#include "cost/simulate_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    return step->kind == DSI_STEP_RUN && step->stream == DSI_STREAM_COMPUTE;
}

/* What the processor does: updates at the profile's rate of Adam, else what memory carries. */
static double host_seconds(const dsi_device *d, const dsi_work *work)
{
    const double adam = 28.0; /* bytes a parameter: value and two moments both ways, gradient */
    const bool update = work->op_class == DS_CLASS_OPTIMIZER && d->host_adam > 0.0;
    return work->bytes / (update ? adam * d->host_adam : d->host_bandwidth);
}

static double step_seconds(const dsi_sim *sm, const dsi_sim_step *step)
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
        return host_seconds(d, &step->work) * (double)(local > 0 ? local : 1);
    case DSI_STREAM_DISK_READ:
    case DSI_STREAM_DISK_WRITE:
        return dsi_time_disk(d, step->stream == DSI_STREAM_DISK_WRITE, step->work.bytes, local);
    case DSI_STREAM_COUNT:
        break;
    }
    return NAN;
}

/* ---- checks ---- */

static ds_status bad_step(const dsi_sim *sm, uint32_t s, const char *why)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    return ds_fail(sm->ctx, DS_ERR_GRAPH, "simulated step %u (%s of %s): %s", s,
                   step->op != NULL ? step->op : "?", step->scope != NULL ? step->scope : "-", why);
}

/* Where a profile has the figures of a stream. */
static const char *figure_of(dsi_sim_stream stream)
{
    switch (stream) {
    case DSI_STREAM_COMM:
        return "\"node\", or over nodes \"network\"";
    case DSI_STREAM_DISK_READ:
    case DSI_STREAM_DISK_WRITE:
        return "\"disk\" (ds_bench --profile with --profile_folder measures it)";
    case DSI_STREAM_HOST_IN:
    case DSI_STREAM_HOST_OUT:
    case DSI_STREAM_HOST:
        return "\"host\"";
    default:
        return "\"rates\"";
    }
}

static ds_status check_step(const dsi_sim *sm, uint32_t s)
{
    const dsi_sim_step *steps = sm->spec->steps;
    const dsi_sim_step *step = &steps[s];
    if (step->stream >= DSI_STREAM_COUNT || step->phase >= sm->spec->phases->n) {
        return bad_step(sm, s, "its stream or phase is out of range");
    }
    if (s > 0 && step->phase < steps[s - 1].phase) {
        return bad_step(sm, s, "phases are not in order");
    }
    if (step->kind == DSI_STEP_WAIT) {
        const dsi_sim_step *start =
            step->start < sm->spec->n_steps ? &steps[step->start] : &steps[s];
        const bool here = step->start < s && start->phase == step->phase;
        if (start->kind != DSI_STEP_START || (!here && start->stream == DSI_STREAM_COMM)) {
            return bad_step(sm, s, "it waits for no start of its phase");
        }
        sm->awaited[step->start] = true;
        return DS_OK;
    }
    if (step->kind == DSI_STEP_START && step->stream == DSI_STREAM_COMPUTE) {
        return bad_step(sm, s, "computation runs, it is not started");
    }
    for (uint32_t i = 0; i < step->n_after; ++i) {
        if (step->kind != DSI_STEP_START || step->after[i] >= s ||
            steps[step->after[i]].kind != DSI_STEP_START) {
            return bad_step(sm, s, "it is behind no earlier start");
        }
    }
    sm->seconds[s] = step_seconds(sm, step);
    if (!isfinite(sm->seconds[s]) || sm->seconds[s] < 0.0) {
        return ds_fail(
            sm->ctx, DS_ERR_ARG,
            "the device profile \"%s\" lacks a figure for the stream \"%s\" that step %u "
            "(%s) needs: %s",
            sm->device->name, dsi_sim_stream_name(step->stream), s,
            step->op != NULL ? step->op : "?", figure_of(step->stream));
    }
    return DS_OK;
}

/* ---- time ---- */

static bool is_disk(dsi_sim_stream stream)
{
    return stream == DSI_STREAM_DISK_READ || stream == DSI_STREAM_DISK_WRITE;
}

/* Share of its own rate that a disk's stream has while the other one is busy too: half of what
 * both reach together. */
static double beside_other(const dsi_sim *sm, dsi_sim_stream stream)
{
    const dsi_device *d = sm->device;
    const bool write = stream == DSI_STREAM_DISK_WRITE;
    const dsi_sim_stream other = write ? DSI_STREAM_DISK_READ : DSI_STREAM_DISK_WRITE;
    const double own = write ? d->disk_write : d->disk_read;
    const bool shares = sm->lanes[other].head != DS_NONE && d->disk_both > 0.0 && own > 0.0;
    return shares ? fmin(1.0, 0.5 * d->disk_both / own) : 1.0;
}

/* Whether what a stream has next waits for another one. The first of all that is under way never
 * does. */
static bool is_held(const dsi_sim *sm, uint32_t s)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    for (uint32_t i = 0; i < step->n_after; ++i) {
        if (sm->under_way[step->after[i]]) {
            return true;
        }
    }
    return false;
}

/* Speed of a stream's work: of its own rate. */
static double speed_of(const dsi_sim *sm, dsi_sim_stream stream, bool computing)
{
    const uint32_t head = sm->lanes[stream].head;
    if (head != DS_NONE && is_held(sm, head)) {
        return 0.0;
    }
    if (is_disk(stream)) {
        return beside_other(sm, stream);
    }
    return computing ? sm->device->overlap : 1.0;
}

/* Speed of computation while collectives are in flight. */
static double compute_speed(const dsi_sim *sm)
{
    const bool comm = sm->lanes[DSI_STREAM_COMM].head != DS_NONE && sm->device->overlap > 0.0;
    return comm ? 1.0 - sm->device->slowdown : 1.0;
}

/* Moves time by dt; every head progresses. */
static void elapse(dsi_sim *sm, double dt, bool computing)
{
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        const uint32_t s = sm->lanes[i].head;
        const double speed = speed_of(sm, (dsi_sim_stream)i, computing);
        if (s != DS_NONE && speed > 0.0 && (dt > 0.0 || sm->remaining[s] <= 0.0)) {
            sm->began[s] = isnan(sm->began[s]) ? sm->now : sm->began[s];
            sm->remaining[s] -= dt * speed;
        }
    }
    sm->now += dt;
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        const uint32_t s = sm->lanes[i].head;
        if (s != DS_NONE && sm->remaining[s] <= 1e-9 * sm->seconds[s] && !is_held(sm, s)) {
            sm->began[s] = isnan(sm->began[s]) ? sm->now : sm->began[s];
            sm->under_way[s] = false;
            sm->lanes[i].head = sm->next[s];
            if (sm->counts[s]) {
                dsi_sim_add_event(sm, s, (dsi_sim_stream)i, false, sm->began[s], sm->now,
                                  sm->origin[s]);
            }
        }
    }
}

/* Seconds until the first head ends, at most `limit`. */
static double until_first_end(const dsi_sim *sm, double limit, bool computing)
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

static void compute(dsi_sim *sm, uint32_t s)
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
    if (sm->counting) {
        dsi_sim_add_event(sm, s, DSI_STREAM_COMPUTE, false, start, sm->now, sm->phase_start);
    }
}

static void post(dsi_sim *sm, uint32_t s)
{
    dsi_sim_lane *l = &sm->lanes[sm->spec->steps[s].stream];
    sm->remaining[s] = sm->seconds[s];
    sm->began[s] = NAN;
    sm->origin[s] = sm->phase_start;
    sm->next[s] = DS_NONE;
    sm->under_way[s] = true;
    sm->counts[s] = sm->counting;
    if (l->head == DS_NONE) {
        l->head = s;
    } else {
        sm->next[l->tail] = s;
    }
    l->tail = s;
}

/* Until the started step has ended; the time counts as exposed. */
static void await(dsi_sim *sm, uint32_t s, uint32_t waiter)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    const double start = sm->now;
    while (sm->under_way[s]) {
        elapse(sm, until_first_end(sm, INFINITY, false), false);
    }
    const double stalled = sm->now - start;
    if (step->stream == DSI_STREAM_COMM) {
        sm->sum->exposed_comm += stalled;
    } else {
        sm->sum->exposed_moves += stalled;
    }
    if (sm->counting) {
        const double repeats = dsi_timeline_repeats(sm->timeline, sm->spec->steps[waiter].phase);
        const bool deferred = s > waiter; /* the first micro-batch alone waits */
        sm->repeated += deferred ? stalled * (repeats - 1.0) : 0.0;
        dsi_sim_row_of(sm->timeline, step)->exposed += stalled * (deferred ? 1.0 : repeats);
        dsi_sim_add_event(sm, waiter, DSI_STREAM_COMPUTE, true, start, sm->now, sm->phase_start);
    }
}

/* What nobody waits for ends with the phase. */
static void drain(dsi_sim *sm, uint32_t begin, uint32_t end)
{
    for (uint32_t s = begin; s < end; ++s) {
        if (sm->spec->steps[s].kind == DSI_STEP_START && !sm->awaited[s]) {
            await(sm, s, s);
        }
    }
}

static void run_phase(dsi_sim *sm, ds_phase phase, uint32_t begin, uint32_t end)
{
    sm->phase_start = sm->now;
    sm->sum = sm->counting ? &sm->timeline->phases[phase] : &sm->none;
    for (uint32_t s = begin; s < end; ++s) {
        const dsi_sim_step *step = &sm->spec->steps[s];
        if (step->kind == DSI_STEP_WAIT) {
            await(sm, step->start, s);
            continue;
        }
        dsi_sim_count_step(sm, s);
        if (holds_thread(step)) {
            compute(sm, s);
            continue;
        }
        post(sm, s);
        if (step->kind == DSI_STEP_RUN) {
            await(sm, s, s);
        }
    }
    drain(sm, begin, end);
    const double seconds = sm->now - sm->phase_start;
    sm->sum->seconds = seconds;
    sm->sum->bubble =
        fmax(0.0, seconds - sm->sum->compute - sm->sum->exposed_comm - sm->sum->exposed_moves);
}

/* ---- the whole step ---- */

static ds_status make_arrays(dsi_sim *sm)
{
    const size_t n = (size_t)sm->spec->n_steps + 1;
    dsi_timeline *t = sm->timeline;
    sm->seconds = calloc(n, sizeof *sm->seconds);
    sm->remaining = calloc(n, sizeof *sm->remaining);
    sm->began = calloc(n, sizeof *sm->began);
    sm->origin = calloc(n, sizeof *sm->origin);
    sm->next = calloc(n, sizeof *sm->next);
    sm->under_way = calloc(n, sizeof *sm->under_way);
    sm->counts = calloc(n, sizeof *sm->counts);
    sm->awaited = calloc(n, sizeof *sm->awaited);
    t->events = calloc(2 * n, sizeof *t->events);
    t->rows = calloc(SIM_MOST_ROWS, sizeof *t->rows);
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        sm->lanes[i] = (dsi_sim_lane){DS_NONE, DS_NONE};
    }
    const bool ok = sm->seconds != NULL && sm->remaining != NULL && sm->began != NULL &&
                    sm->origin != NULL && sm->next != NULL && sm->under_way != NULL &&
                    sm->counts != NULL && sm->awaited != NULL && t->events != NULL &&
                    t->rows != NULL;
    return ok ? DS_OK : ds_fail(sm->ctx, DS_ERR_NOMEM, "no memory for a timeline of %zu steps", n);
}

/* The phases before `until`. */
static void run_phases(dsi_sim *sm, bool counting, uint32_t until)
{
    const dsi_sim_spec *spec = sm->spec;
    uint32_t begin = 0;
    sm->counting = counting;
    for (ds_phase p = 0; p < until; ++p) {
        uint32_t end = begin;
        while (end < spec->n_steps && spec->steps[end].phase == p) {
            ++end;
        }
        run_phase(sm, p, begin, end);
        begin = end;
    }
}

/* Whether a step begins with moves of the one before. */
static bool is_deferred(const dsi_sim_spec *spec)
{
    for (uint32_t s = 0; s < spec->n_steps; ++s) {
        if (spec->steps[s].kind == DSI_STEP_WAIT && spec->steps[s].start > s) {
            return true;
        }
    }
    return false;
}

static ds_status run_all(dsi_sim *sm)
{
    const dsi_sim_spec *spec = sm->spec;
    for (uint32_t s = 0; s < spec->n_steps; ++s) {
        DS_TRY(check_step(sm, s));
    }
    if (is_deferred(spec)) {
        run_phases(sm, false, spec->phases->n);
        run_phases(sm, true, spec->phases->n);
        run_phases(sm, false, DS_PHASE_FORWARD + 1); /* until what it has left under way ends */
    } else {
        run_phases(sm, true, spec->phases->n);
    }
    dsi_sim_sort_events(sm->timeline);
    dsi_sim_compose(sm);
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
    dsi_sim sm = {.ctx = ctx, .spec = &t->spec, .device = &t->device, .timeline = t};
    ds_status status = make_arrays(&sm);
    if (status == DS_OK) {
        status = run_all(&sm);
    }
    free(sm.seconds);
    free(sm.remaining);
    free(sm.began);
    free(sm.origin);
    free(sm.next);
    free(sm.under_way);
    free(sm.counts);
    free(sm.awaited);
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
