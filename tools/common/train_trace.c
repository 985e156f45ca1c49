/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train --trace: the timeline of some steps of a run. */
#include "common/train.h"

#include "config/config_values.h"
#include "io/file.h"

#include <deepspeed/profile.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* "A" or "A:B", both from 1. */
static bool read_range(const char *text, uint64_t *first_out, uint64_t *last_out)
{
    char *end = NULL;
    errno = 0;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    *first_out = *last_out = strtoull(text, &end, 10);
    if (*end == ':' && end[1] >= '0' && end[1] <= '9') {
        *last_out = strtoull(end + 1, &end, 10);
    }
    return *end == '\0' && errno == 0 && *first_out > 0 && *last_out >= *first_out;
}

/* What cannot be written at the end is said at the start. */
static ds_status check_path(const train_run *run)
{
    if (ds_comm_rank(run->comm) != 0) {
        return DS_OK;
    }
    const ds_status status = dsi_file_check(run->ctx, run->options->trace);
    return status >= 0 ? DS_OK : ds_fail(run->ctx, status, "--trace: %s", ds_ctx_error(run->ctx));
}

/* A step that this run never takes is not profiled: that is said at its start. */
static void check_profile(const train_run *run, uint64_t done, uint64_t all)
{
    const ds_config_flops_profiler *f = &dsi_config_values(run->config)->flops_profiler;
    const uint64_t step = (uint64_t)f->profile_step;
    if (f->enabled && (step < done || step >= all) && ds_comm_rank(run->comm) == 0) {
        ds_log(run->ctx, DS_LOG_WARN,
               "flops_profiler.profile_step %llu: this run has %llu optimizer steps behind it and "
               "ends with %llu; nothing is profiled",
               (unsigned long long)step, (unsigned long long)done, (unsigned long long)all);
    }
}

ds_status train_trace_start(train_run *run)
{
    const train_options *o = run->options;
    const uint64_t done = ds_engine_global_steps(run->engine);
    const uint64_t all = run->total_steps;
    check_profile(run, done, all);
    if (o->trace == NULL || done >= all) {
        return DS_OK;
    }
    DS_TRY(check_path(run));
    run->trace_first = done + 2 <= all ? done + 2 : all; /* the first step of a run warms up */
    run->trace_last = done + 3 <= all ? done + 3 : all;
    if (o->trace_steps != NULL &&
        !read_range(o->trace_steps, &run->trace_first, &run->trace_last)) {
        return ds_fail(run->ctx, DS_ERR_ARG,
                       "--trace_steps %s: expected A:B, or A, optimizer steps counted from 1",
                       o->trace_steps);
    }
    if (run->trace_first <= done || run->trace_last > all) {
        return ds_fail(run->ctx, DS_ERR_ARG,
                       "--trace_steps %llu:%llu: this run goes from step %llu to step %llu",
                       (unsigned long long)run->trace_first, (unsigned long long)run->trace_last,
                       (unsigned long long)done + 1, (unsigned long long)all);
    }
    return ds_engine_trace_start(run->engine, run->trace_first, run->trace_last);
}

void train_trace_save(train_run *run, train_report *report, bool end)
{
    const uint64_t done = ds_engine_global_steps(run->engine);
    if (run->trace_first == 0 || (!end && !ds_engine_trace_is_done(run->engine))) {
        return;
    }
    const uint64_t first = run->trace_first;
    const uint64_t last = run->trace_last < done ? run->trace_last : done;
    run->trace_first = 0;
    if (done < first) {
        ds_engine_trace_drop(run->engine);
        train_report_say(report, "no trace: the run ended before step %llu",
                         (unsigned long long)first);
        return;
    }
    if (ds_engine_trace_save(run->engine, run->options->trace) < 0) {
        char text[512];
        ds_log(run->ctx, DS_LOG_ERROR, "no trace: %s; the run goes on", ds_ctx_error(run->ctx));
        (void)snprintf(text, sizeof text, "the trace %.400s was not written", run->options->trace);
        train_lost_note(run, text);
        ds_engine_trace_drop(run->engine);
        return;
    }
    train_report_say(report, "trace of steps %llu to %llu: %s", (unsigned long long)first,
                     (unsigned long long)last, run->options->trace);
}
