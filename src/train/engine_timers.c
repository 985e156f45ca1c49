/* SPDX-License-Identifier: Apache-2.0 */
/* wall_clock_breakdown and dump_state: what the engine reports of itself while it runs. */
#include "base/clock.h"
#include "train/run_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the flops profiler wants the step in progress. */
static bool is_profiled(const ds_engine *engine)
{
    return engine->spec.flops.enabled &&
           engine->global_steps == (uint64_t)engine->spec.flops.profile_step;
}

/* Called after each step of a plan. */
static void note_step(void *user, const dsi_step *step, const dsi_exec_times *times)
{
    ds_engine *engine = user;
    const double seconds = times->end - times->begin;
    const dsi_phases *phases = &engine->train_plan->phases;
    if (phases->items[step->phase].like == DS_PHASE_BACKWARD &&
        (step->op->flags & DS_OP_COMM) != 0) {
        engine->timers.reduce += seconds;
    }
    if (is_profiled(engine)) {
        engine->step_seconds[step - engine->train_plan->steps] += seconds;
    }
    if (dsi_run_trace_is_on(engine)) {
        dsi_run_trace_add(engine, step, times);
    }
}

/* A forward pass changes nothing that lasts. */
static ds_status run(ds_engine *engine, ds_phase phase)
{
    const ds_status status = dsi_exec_run(engine->exec, engine->train_id, phase);
    engine->broken =
        engine->broken || (status < 0 && !dsi_phase_is_forward(&engine->train_plan->phases, phase));
    return status;
}

ds_status dsi_engine_run_phase(ds_engine *engine, ds_phase phase)
{
    const bool breakdown = engine->spec.wall_clock_breakdown;
    const ds_phase like = engine->train_plan->phases.items[phase].like;
    const ds_phase as = like < DS_PHASE_STEP ? like : phase; /* parts of a phase together */
    const bool reduces =
        breakdown && like == DS_PHASE_BACKWARD && engine->spec.zero.mesh.n_ranks > 1;
    const bool measured = engine->spec.autotune.enabled;
    engine->phases_run |= 1u << phase;
    const bool noted = is_profiled(engine) || dsi_run_trace_is_on(engine);
    if (!breakdown && !measured && !noted) {
        return run(engine, phase);
    }
    dsi_exec_set_trace(engine->exec, reduces || noted ? note_step : NULL, engine);
    const double start = dsi_clock_seconds();
    const ds_status status = run(engine, phase);
    const double seconds = dsi_clock_seconds() - start;
    engine->timers.seconds[as] += seconds;
    if (measured) {
        dsi_engine_measure_phase(engine, as, start, seconds);
    }
    dsi_exec_set_trace(engine->exec, NULL, NULL);
    return status;
}

void dsi_engine_log_lines(const ds_engine *engine, const char *line)
{
    while (*line != '\0') {
        const size_t n = strcspn(line, "\n");
        ds_log(engine->ctx, DS_LOG_JOB, "%.*s", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

ds_engine_times ds_engine_step_times(const ds_engine *engine)
{
    return engine->timers.last;
}

/* Closes the step in progress. */
static void finish_step(dsi_engine_timers *t)
{
    t->last = (ds_engine_times){.forward = 1e3 * t->seconds[DS_PHASE_FORWARD],
                                .backward = 1e3 * t->seconds[DS_PHASE_BACKWARD],
                                .backward_inner = 1e3 * (t->seconds[DS_PHASE_BACKWARD] - t->reduce),
                                .backward_allreduce = 1e3 * t->reduce,
                                .step = 0.0};
    for (ds_phase phase = DS_PHASE_STEP; phase < DS_MAX_PHASES; ++phase) {
        t->last.step += 1e3 * t->seconds[phase];
    }
    t->sum.forward += t->last.forward;
    t->sum.backward += t->last.backward;
    t->sum.step += t->last.step;
    t->n_steps += 1;
    t->reduce = 0.0;
    memset(t->seconds, 0, sizeof t->seconds);
}

void dsi_engine_report_times(ds_engine *engine)
{
    dsi_engine_timers *t = &engine->timers;
    const int64_t every = engine->spec.steps_per_print;
    if (!engine->spec.wall_clock_breakdown) {
        return;
    }
    finish_step(t);
    if (every < 1 || engine->global_steps % (uint64_t)every != 0) {
        return;
    }
    const double n = (double)t->n_steps;
    ds_log(engine->ctx, DS_LOG_JOB,
           "time (ms) of a step, mean of %llu | forward: %.2f | backward: %.2f | step: %.2f",
           (unsigned long long)t->n_steps, t->sum.forward / n, t->sum.backward / n,
           t->sum.step / n);
    t->sum = (ds_engine_times){0};
    t->n_steps = 0;
}

void dsi_engine_dump_state(const ds_engine *engine)
{
    if (engine->config_text != NULL) {
        dsi_engine_log_lines(engine, engine->config_text);
    }
}
