/* wall_clock_breakdown and dump_state: what the engine says of itself while it runs. */
#include "base/clock.h"
#include "train/engine.h"

#include <string.h>

/* Called after each step of a plan: a step without kernel is a collective, or a wait for one. */
static void add_collective(void *user, const dsi_step *step, double seconds)
{
    dsi_engine_timers *timers = user;
    timers->reduce += step->kernel == NULL ? seconds : 0.0;
}

ds_status dsi_engine_run_phase(ds_engine *engine, ds_phase phase)
{
    if (!engine->spec.wall_clock_breakdown) {
        return dsi_exec_run(engine->exec, engine->train_id, phase);
    }
    const bool reduces = phase == DS_PHASE_BACKWARD && engine->spec.zero.n_ranks > 1;
    dsi_exec_set_trace(engine->exec, reduces ? add_collective : NULL, &engine->timers);
    const double start = dsi_clock_seconds();
    const ds_status status = dsi_exec_run(engine->exec, engine->train_id, phase);
    engine->timers.seconds[phase] += dsi_clock_seconds() - start;
    dsi_exec_set_trace(engine->exec, NULL, NULL);
    return status;
}

ds_engine_times ds_engine_step_times(const ds_engine *engine)
{
    return engine->timers.last;
}

/* Closes the step in progress. */
static void finish_step(dsi_engine_timers *t)
{
    t->last =
        (ds_engine_times){.forward = 1e3 * t->seconds[DS_PHASE_FORWARD],
                          .backward = 1e3 * t->seconds[DS_PHASE_BACKWARD],
                          .backward_inner = 1e3 * (t->seconds[DS_PHASE_BACKWARD] - t->reduce),
                          .backward_allreduce = 1e3 * t->reduce,
                          .step = 1e3 * (t->seconds[DS_PHASE_NORM] + t->seconds[DS_PHASE_UPDATE])};
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
    const char *line = engine->config_text;
    while (line != NULL && *line != '\0') {
        const size_t n = strcspn(line, "\n");
        ds_log(engine->ctx, DS_LOG_JOB, "%.*s", (int)n, line);
        line += n + (line[n] == '\n');
    }
}
