/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulation counts: events, rows, and the sums of the whole step. See simulate_state.h. */
#include "cost/simulate_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_product(const dsi_sim_step *step)
{
    return step->stream == DSI_STREAM_COMPUTE && dsi_op_class_is_model(step->work.op_class);
}

void dsi_sim_add_event(dsi_sim *sm, uint32_t s, dsi_sim_stream stream, bool stall, double start,
                       double end, double origin)
{
    if (end > start) {
        sm->timeline->events[sm->timeline->n_events++] =
            (dsi_sim_event){.step = s,
                            .phase = sm->spec->steps[s].phase,
                            .stream = stream,
                            .stall = stall,
                            .start = start - origin,
                            .end = end - origin};
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

dsi_sim_row *dsi_sim_row_of(dsi_timeline *t, const dsi_sim_step *step)
{
    const char *name = row_name(step);
    const int64_t axes = step->stream == DSI_STREAM_COMM ? step->axes : 0;
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        dsi_sim_row *row = &t->rows[i];
        if (row->phase == step->phase && row->stream == step->stream &&
            strcmp(row->name, name) == 0 && row->axes == axes) {
            return row;
        }
    }
    if (t->n_rows < SIM_MOST_ROWS) {
        t->rows[t->n_rows++] =
            (dsi_sim_row){.name = name, .stream = step->stream, .axes = axes, .phase = step->phase};
    }
    return &t->rows[t->n_rows - 1];
}

void dsi_sim_count_step(dsi_sim *sm, uint32_t s)
{
    const dsi_sim_step *step = &sm->spec->steps[s];
    const double times = dsi_timeline_repeats(sm->timeline, step->phase);
    if (!sm->counting) {
        return;
    }
    dsi_sim_row *row = dsi_sim_row_of(sm->timeline, step);
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

double dsi_timeline_repeats(const dsi_timeline *timeline, ds_phase phase)
{
    const int64_t n = timeline->spec.accumulation;
    const double share = timeline->spec.share[phase];
    const bool micro = dsi_phase_is_micro(timeline->spec.phases, phase) && n > 0;
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

/* A phase on the side stream has the steps' processor for its computation, so that costs them as
 * much as ever; but it waits for its moves while they go on, as far as they last. */
static void hide_side(dsi_timeline *t, ds_phase side)
{
    const double share = dsi_timeline_repeats(t, side);
    const double others = t->step.seconds - share * t->phases[side].seconds;
    const double hidden = fmin(share * t->phases[side].exposed_moves, others);
    t->step.seconds -= hidden;
    t->step.exposed_moves -= hidden;
}

/* What a stage waits for others: a share of the time that its micro-batches take with it. */
static void add_idle(dsi_timeline *t)
{
    const dsi_sim_spec *spec = &t->spec;
    double busy = 0.0;
    for (uint32_t p = 0; p < spec->phases->n; ++p) {
        busy += dsi_phase_is_micro(spec->phases, p)
                    ? dsi_timeline_repeats(t, p) * t->phases[p].seconds
                    : 0.0;
    }
    const double idle = busy * spec->idle_share / (1.0 - spec->idle_share);
    t->step.seconds += idle;
    t->step.bubble += idle;
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

void dsi_sim_compose(dsi_sim *sm)
{
    dsi_timeline *t = sm->timeline;
    const dsi_sim_spec *spec = sm->spec;
    for (uint32_t p = 0; p < spec->phases->n; ++p) {
        add_sum(&t->step, &t->phases[p], dsi_timeline_repeats(t, p));
    }
    t->step.seconds -= sm->repeated;
    t->step.exposed_moves -= sm->repeated;
    const ds_phase side = dsi_phases_side(spec->phases);
    if (side != DS_NONE) {
        hide_side(t, side);
    }
    if (spec->idle_share > 0.0) {
        add_idle(t);
    }
    const dsi_work clear = {
        .op_class = DS_CLASS_COPY, .dtype = DS_DTYPE_F32, .bytes = spec->clear_bytes};
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

/* By phase, then by start. */
static int by_start(const void *a, const void *b)
{
    const dsi_sim_event *x = a;
    const dsi_sim_event *y = b;
    if (x->phase != y->phase) {
        return x->phase < y->phase ? -1 : 1;
    }
    if (x->start != y->start) {
        return x->start < y->start ? -1 : 1;
    }
    if (x->stream != y->stream) {
        return x->stream < y->stream ? -1 : 1;
    }
    return x->step < y->step ? -1 : x->step > y->step;
}

void dsi_sim_sort_events(dsi_timeline *t)
{
    uint32_t at = 0;
    qsort(t->events, t->n_events, sizeof *t->events, by_start);
    for (int p = 0; p <= DS_MAX_PHASES; ++p) {
        while (at < t->n_events && (int)t->events[at].phase < p) {
            ++at;
        }
        t->phase_begin[p] = at;
    }
}
