/* wall_clock_breakdown and dump_state: what the engine says of itself while it runs. */
#include "base/clock.h"
#include "train/engine.h"

#include <string.h>

ds_status dsi_engine_run_phase(ds_engine *engine, ds_phase phase)
{
    if (!engine->spec.wall_clock_breakdown) {
        return dsi_exec_run(engine->exec, engine->train_id, phase);
    }
    const double start = dsi_clock_seconds();
    const ds_status status = dsi_exec_run(engine->exec, engine->train_id, phase);
    engine->timers.seconds[phase] += dsi_clock_seconds() - start;
    return status;
}

void dsi_engine_report_times(ds_engine *engine)
{
    dsi_engine_timers *t = &engine->timers;
    const int64_t every = engine->spec.steps_per_print;
    t->n_steps += 1;
    if (!engine->spec.wall_clock_breakdown || every < 1 ||
        engine->global_steps % (uint64_t)every != 0) {
        return;
    }
    const double per_step = 1e3 / (double)t->n_steps;
    const double step = t->seconds[DS_PHASE_NORM] + t->seconds[DS_PHASE_UPDATE];
    ds_log(engine->ctx, DS_LOG_JOB,
           "time (ms) of a step, mean of %llu | forward: %.2f | backward: %.2f | step: %.2f",
           (unsigned long long)t->n_steps, t->seconds[DS_PHASE_FORWARD] * per_step,
           t->seconds[DS_PHASE_BACKWARD] * per_step, step * per_step);
    memset(t, 0, sizeof *t);
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
