/* SPDX-License-Identifier: Apache-2.0 */
/* Reads traces for ds_plan diff, and lays two over each other in one file. See plan_trace.h. */
#include "common/plan_trace.h"

#include "common/output.h"

#include <stdlib.h>
#include <string.h>

bool trace_is_one(const json_t *json)
{
    return json_is_array(json_object_get(json, "traceEvents"));
}

uint32_t trace_phase(const trace_side *side, const char *name)
{
    uint32_t i = 0;
    while (i < side->n_phases && (name == NULL || strcmp(name, side->phases[i]) != 0)) {
        ++i;
    }
    return i < side->n_phases ? i : TRACE_PHASES;
}

const char *trace_arg(const json_t *event, const char *key)
{
    return json_string_value(json_object_get(json_object_get(event, "args"), key));
}

static bool is(const json_t *event, const char *key, const char *value)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text != NULL && strcmp(text, value) == 0;
}

uint32_t trace_side_process(trace_side *side, const json_t *event)
{
    const int64_t pid = json_integer_value(json_object_get(event, "pid"));
    uint32_t i = 0;
    if (side->newest < side->n_pids && side->pids[side->newest] == pid) {
        return side->newest;
    }
    while (i < side->n_pids && side->pids[i] != pid) {
        ++i;
    }
    side->newest = i;
    return i;
}

/* The processes that have a name, and whether it is the planner's. */
static ds_status find_processes(ds_ctx *ctx, trace_side *side)
{
    const json_t *events = json_object_get(side->json, "traceEvents");
    const size_t n = json_array_size(events);
    side->pids = calloc(n + 1, sizeof *side->pids);
    if (side->pids == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a trace");
    }
    for (size_t i = 0; i < n; ++i) {
        const json_t *event = json_array_get(events, i);
        if (is(event, "ph", "M") && is(event, "name", "process_name") &&
            trace_side_process(side, event) == side->n_pids) {
            const char *name = trace_arg(event, "name");
            side->pids[side->n_pids++] = json_integer_value(json_object_get(event, "pid"));
            side->planned = side->planned || (name != NULL && strcmp(name, "planned rank") == 0);
        }
    }
    return DS_OK;
}

/* A plan's trace has a phase once, and says of how many steps that is one. */
static double count_of(const json_t *event)
{
    const json_t *runs = json_object_get(json_object_get(event, "args"), "runs");
    const double n = json_is_number(runs) ? json_number_value(runs) : 1.0;
    return n > 1e-9 ? 1.0 / n : 1e9;
}

/* A run's trace has a phase as often as it ran. */
static void count_updates(trace_side *side)
{
    const uint32_t update = trace_phase(side, "update");
    for (uint32_t i = 0; i < side->n_pids && !side->planned && update != TRACE_PHASES; ++i) {
        double *runs = side->runs[i];
        for (uint32_t p = 0; p < side->n_phases; ++p) {
            const bool of_step =
                strcmp(side->phases[p], "forward") != 0 && strcmp(side->phases[p], "backward") != 0;
            runs[p] = of_step && runs[p] > 0.0 && runs[update] > 0.0 ? runs[update] : runs[p];
        }
    }
}

/* The index of a phase, which is entered at its first span. */
static uint32_t enter_phase(trace_side *side, const char *name)
{
    const uint32_t phase = trace_phase(side, name);
    if (phase != TRACE_PHASES || name == NULL || side->n_phases == TRACE_PHASES) {
        return phase;
    }
    side->phases[side->n_phases] = name;
    return side->n_phases++;
}

static ds_status count_phases(ds_ctx *ctx, trace_side *side)
{
    const json_t *events = json_object_get(side->json, "traceEvents");
    double all = 0.0;
    side->runs = calloc((size_t)side->n_pids + 1, sizeof *side->runs);
    if (side->runs == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a trace");
    }
    for (size_t i = 0; i < json_array_size(events); ++i) {
        const json_t *event = json_array_get(events, i);
        const uint32_t process = trace_side_process(side, event);
        const uint32_t phase = is(event, "cat", "phase") && process < side->n_pids
                                   ? enter_phase(side, trace_arg(event, "phase"))
                                   : TRACE_PHASES;
        if (phase < TRACE_PHASES) {
            side->runs[process][phase] += count_of(event);
            all += 1.0;
        }
    }
    count_updates(side);
    return all > 0.0 ? DS_OK
                     : ds_fail(ctx, DS_ERR_ARG,
                               "%s has no phases of a step: no trace of ds_plan --trace or "
                               "ds_train --trace",
                               side->path);
}

ds_status trace_side_open(ds_ctx *ctx, const char *path, json_t *json, trace_side *side_out)
{
    *side_out = (trace_side){.path = path, .json = json};
    DS_TRY(find_processes(ctx, side_out));
    return count_phases(ctx, side_out);
}

void trace_side_close(trace_side *side)
{
    free(side->pids);
    free(side->runs);
    *side = (trace_side){0};
}

/* How far the processes of the second trace are moved, so that none has the number of one of the
 * first. */
static int64_t shift_of(const trace_side sides[2])
{
    int64_t most = 0;
    bool meet = false;
    for (uint32_t i = 0; i < sides[0].n_pids; ++i) {
        most = sides[0].pids[i] > most ? sides[0].pids[i] : most;
        for (uint32_t k = 0; k < sides[1].n_pids; ++k) {
            meet = meet || sides[0].pids[i] == sides[1].pids[k];
        }
    }
    return meet ? most + 1 : 0;
}

/* Adds copies of a side's events; where processes have the same numbers, names say the file. */
static bool add_events(json_t *events, const trace_side *side, int64_t shift, bool name_file)
{
    const json_t *from = json_object_get(side->json, "traceEvents");
    bool fine = true;
    for (size_t i = 0; i < json_array_size(from) && fine; ++i) {
        if (!json_is_object(json_array_get(from, i))) {
            continue;
        }
        json_t *event = json_deep_copy(json_array_get(from, i));
        const int64_t pid = json_integer_value(json_object_get(event, "pid"));
        json_t *args = json_object_get(event, "args");
        const char *name = json_string_value(json_object_get(args, "name"));
        fine = event != NULL && json_object_set_new(event, "pid", json_integer(pid + shift)) == 0;
        if (fine && name_file && is(event, "name", "process_name") && name != NULL) {
            json_t *named = json_sprintf("%s (%s)", name, side->path);
            fine = named != NULL && json_object_set_new(args, "name", named) == 0;
        }
        fine = json_array_append_new(events, event) == 0 && fine;
    }
    return fine;
}

ds_status trace_merge(ds_ctx *ctx, const trace_side sides[2], const char *path)
{
    const int64_t shift = shift_of(sides);
    json_t *events = json_array();
    json_t *root = json_pack("{s:s, s:o}", "displayTimeUnit", "ms", "traceEvents", events);
    ds_status status = DS_OK;
    if (root == NULL || !add_events(events, &sides[0], 0, shift > 0) ||
        !add_events(events, &sides[1], shift, shift > 0)) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to lay two traces over each other");
    } else {
        char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(15));
        status = text != NULL ? output_put(ctx, path, text, strlen(text))
                              : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the text of two traces");
        free(text);
    }
    json_decref(root);
    return status;
}
