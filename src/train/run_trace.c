/* SPDX-License-Identifier: Apache-2.0 */
/* Records the timeline of a run. See run_trace.h. */
#include "train/run_trace.h"

#include "base/clock.h"

#include <deepspeed/profile.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 30)

/* Records of one optimizer step. */
static size_t records_a_step(const ds_engine *engine)
{
    const dsi_plan *plan = engine->train_plan;
    const size_t micro = plan->phase_begin[dsi_phases_micro(&plan->phases)];
    return (size_t)engine->spec.train.accumulation * (micro + 1) +
           (plan->phase_begin[DS_MAX_PHASES] - micro) + 1;
}

static ds_status check_range(const ds_engine *engine, uint64_t first, uint64_t last)
{
    if (first <= engine->global_steps || last < first) {
        return ds_fail(engine->ctx, DS_ERR_ARG,
                       "steps %llu to %llu cannot be traced: the next one is %llu",
                       (unsigned long long)first, (unsigned long long)last,
                       (unsigned long long)engine->global_steps + 1);
    }
    if (engine->trace != NULL) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "steps %llu to %llu are being traced; save or drop that trace first",
                       (unsigned long long)engine->trace->first,
                       (unsigned long long)engine->trace->last);
    }
    if (dsi_engine_awaits(engine) != DSI_CALL_FORWARD || engine->micro_step != 0) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "a trace starts between two optimizer steps, not within one");
    }
    return DS_OK;
}

ds_status ds_engine_trace_start(ds_engine *engine, uint64_t first_step, uint64_t last_step)
{
    DS_TRY(check_range(engine, first_step, last_step));
    const size_t most = MOST_BYTES / sizeof(dsi_run_record) / records_a_step(engine);
    if (last_step - first_step >= most) {
        return ds_fail(
            engine->ctx, DS_ERR_LIMIT,
            "a trace of %llu steps takes more than %zu MiB a rank; at most %zu steps fit",
            (unsigned long long)(last_step - first_step + 1), MOST_BYTES >> 20, most);
    }
    dsi_run_trace *trace = calloc(1, sizeof *trace);
    const size_t n = (size_t)(last_step - first_step + 1) * records_a_step(engine);
    dsi_run_record *records = trace != NULL ? malloc(n * sizeof *records) : NULL;
    if (records == NULL) {
        free(trace);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a trace of %zu bytes",
                       n * sizeof *records);
    }
    memset(records, 0xff, n * sizeof *records); /* takes the pages now, not in the steps */
    *trace =
        (dsi_run_trace){.first = first_step, .last = last_step, .records = records, .capacity = n};
    engine->trace = trace;
    return DS_OK;
}

bool ds_engine_trace_is_done(const ds_engine *engine)
{
    return engine->trace != NULL && engine->global_steps >= engine->trace->last;
}

void ds_engine_trace_drop(ds_engine *engine)
{
    if (engine->trace != NULL) {
        free(engine->trace->records);
        free(engine->trace);
        engine->trace = NULL;
    }
}

bool dsi_run_trace_is_on(const ds_engine *engine)
{
    const dsi_run_trace *t = engine->trace;
    return t != NULL && engine->global_steps + 1 >= t->first && engine->global_steps < t->last;
}

static void add(ds_engine *engine, uint32_t node, const dsi_exec_times *times)
{
    dsi_run_trace *t = engine->trace;
    if (t->n == t->capacity) {
        t->n_lost += 1;
        return;
    }
    t->records[t->n++] = (dsi_run_record){.node = node,
                                          .step = (uint32_t)(engine->global_steps + 1 - t->first),
                                          .begin = times->begin,
                                          .end = times->end,
                                          .work = (float)times->work,
                                          .waited = (float)times->waited,
                                          .since = (float)times->since};
}

void dsi_run_trace_add(ds_engine *engine, const dsi_step *step, const dsi_exec_times *times)
{
    add(engine, (uint32_t)(step - engine->train_plan->steps), times);
}

double dsi_run_trace_begin(const ds_engine *engine)
{
    return dsi_run_trace_is_on(engine) ? dsi_clock_seconds() : 0.0;
}

void dsi_run_trace_end(ds_engine *engine, dsi_host_work what, double begin)
{
    if (dsi_run_trace_is_on(engine)) {
        const dsi_exec_times times = {.begin = begin, .end = dsi_clock_seconds()};
        add(engine, (uint32_t)what, &times);
    }
}
