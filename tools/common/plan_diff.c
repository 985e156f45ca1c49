/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan diff: two plans side by side, the figures that differ; of traces (plan_trace.h) the
 * times. */
#include "common/plan_run.h"

#include "base/buf.h"
#include "common/plan_trace.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_CEILING = 512 << 20, PATH_BYTES = 512 };

/* The JSON of a file; NULL when it is none, as a configuration may be. */
static ds_status read_json(ds_ctx *ctx, const char *path, json_t **json_out)
{
    dsi_buf file = dsi_buf_make(FILE_CEILING);
    const ds_status read = dsi_buf_read_file(ctx, path, &file);
    *json_out = read < 0 ? NULL : json_loads(dsi_buf_text(&file), 0, NULL);
    dsi_buf_free(&file);
    return read;
}

/* The plan of the configuration at `path`: its report, or its trace. */
static ds_status plan_of(ds_ctx *ctx, const plan_options *options, const char *path, bool trace,
                         json_t **json_out)
{
    plan_run run;
    dsi_plan_report report;
    char *text = NULL;
    ds_status status = plan_run_open(ctx, options, path, &run);
    if (status >= 0) {
        status = dsi_report_make(ctx, &run.request, &report);
    }
    if (status >= 0) {
        const dsi_printed printed = {.report = &report};
        status = trace ? dsi_report_trace(&report, &text) : dsi_report_json(&printed, &text);
        dsi_report_free(&report);
    }
    plan_run_close(&run);
    *json_out = status >= 0 ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return status;
}

/* Makes a side of what was read: a report or a trace as it is, else the plan of a configuration. */
static ds_status complete(ds_ctx *ctx, const plan_options *options, const char *path, bool traces,
                          json_t **json)
{
    const bool report = json_object_get(*json, "ds_plan") != NULL;
    if (trace_is_one(*json) || (report && !traces)) {
        return DS_OK;
    }
    if (report) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s is a report, which has no spans to compare with a trace; give the trace "
                       "that ds_plan --trace wrote, or the configuration",
                       path);
    }
    json_decref(*json);
    *json = NULL;
    if (options->model == NULL && options->model_config == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s is no report of ds_plan --json and no trace; to compare the plans of "
                       "configurations give --model DIR or --model_config FILE too",
                       path);
    }
    return plan_of(ctx, options, path, traces, json);
}

/* The element of `list` that stands for the same thing as `item`, which is at `index` of its own.
 */
static json_t *partner(json_t *list, const json_t *item, size_t index)
{
    static const char *const keys[] = {"collective", "phase", "name", "what", "kind", "stream"};
    if (!json_is_object(item)) {
        return json_array_get(list, index);
    }
    for (size_t i = 0; i < json_array_size(list); ++i) {
        json_t *other = json_array_get(list, i);
        bool same = true;
        for (size_t k = 0; k < sizeof keys / sizeof *keys; ++k) {
            same = same &&
                   json_equal(json_object_get(item, keys[k]), json_object_get(other, keys[k])) ==
                       (json_object_get(item, keys[k]) != NULL);
        }
        if (same) {
            return other;
        }
    }
    return NULL;
}

static void label(const json_t *item, size_t index, char *text, size_t n)
{
    const char *a = json_string_value(json_object_get(item, "collective"));
    const char *b = json_string_value(json_object_get(item, "phase"));
    if (a != NULL && b != NULL) {
        (void)snprintf(text, n, "%s of %s", a, b);
    } else {
        (void)snprintf(text, n, "%zu", index);
    }
}

static void print_pair(const char *path, const json_t *a, const json_t *b)
{
    const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(9); /* as reports have them */
    char *x = a != NULL ? json_dumps(a, flags) : NULL;
    char *y = b != NULL ? json_dumps(b, flags) : NULL;
    (void)printf("%-46s %18s %18s", path, x != NULL ? x : "-", y != NULL ? y : "-");
    const double from = json_number_value(a);
    const double to = json_number_value(b);
    const bool amount = strncmp(path, "run.", 4) != 0 && strcmp(path, "memory.peak_step") != 0;
    if (amount && json_is_number(a) && json_is_number(b) && from != 0.0) {
        (void)printf(" %+8.1f %%", 100.0 * (to / from - 1.0));
    }
    (void)printf("\n");
    free(x);
    free(y);
}

static uint32_t compare(const char *path, json_t *a, json_t *b);

static uint32_t compare_member(const char *path, const char *key, json_t *a, json_t *b)
{
    char below[PATH_BYTES];
    (void)snprintf(below, sizeof below, "%s%s%s", path, path[0] != '\0' ? "." : "", key);
    return compare(below, a, b);
}

static uint32_t compare_objects(const char *path, json_t *a, json_t *b)
{
    const char *key = NULL;
    json_t *value = NULL;
    uint32_t n = 0;
    json_object_foreach(a, key, value)
    {
        n += compare_member(path, key, value, json_object_get(b, key));
    }
    json_object_foreach(b, key, value)
    {
        n += json_object_get(a, key) == NULL ? compare_member(path, key, NULL, value) : 0;
    }
    return n;
}

static uint32_t compare_lists(const char *path, json_t *a, json_t *b)
{
    char key[64];
    uint32_t n = 0;
    for (size_t i = 0; i < json_array_size(a); ++i) {
        json_t *item = json_array_get(a, i);
        label(item, i, key, sizeof key);
        n += compare_member(path, key, item, partner(b, item, i));
    }
    for (size_t i = 0; i < json_array_size(b); ++i) {
        json_t *item = json_array_get(b, i);
        label(item, i, key, sizeof key);
        n += partner(a, item, i) == NULL ? compare_member(path, key, NULL, item) : 0;
    }
    return n;
}

/* Prints what differs; the curve, the list of the largest and of simulated rows follow from the
 * rest and are left out. Counts lines. */
static uint32_t compare(const char *path, json_t *a, json_t *b)
{
    static const char *const skipped[] = {"memory.curve", "memory.largest", "changes",
                                          "timeline.rows"};
    for (size_t i = 0; i < sizeof skipped / sizeof *skipped; ++i) {
        if (strcmp(path, skipped[i]) == 0) {
            return 0;
        }
    }
    if (json_is_object(a != NULL ? a : b) && (a == NULL || b == NULL || json_is_object(b))) {
        return compare_objects(path, a, b);
    }
    if (json_is_array(a) && json_is_array(b)) {
        return compare_lists(path, a, b);
    }
    if (json_equal(a, b) == 1) {
        return 0;
    }
    print_pair(path, a, b);
    return 1;
}

static ds_status compare_traces(ds_ctx *ctx, const plan_options *options, json_t *const jsons[2])
{
    trace_side sides[2] = {{0}};
    ds_status status = trace_side_open(ctx, options->files[0], jsons[0], &sides[0]);
    if (status >= 0) {
        status = trace_side_open(ctx, options->files[1], jsons[1], &sides[1]);
    }
    if (status >= 0) {
        status = trace_table_print(ctx, sides);
    }
    if (status >= 0 && options->trace != NULL) {
        status = trace_merge(ctx, sides, options->trace);
    }
    trace_side_close(&sides[0]);
    trace_side_close(&sides[1]);
    return status;
}

ds_status plan_diff(ds_ctx *ctx, const plan_options *options)
{
    json_t *sides[2] = {NULL, NULL};
    ds_status status = read_json(ctx, options->files[0], &sides[0]);
    if (status >= 0) {
        status = read_json(ctx, options->files[1], &sides[1]);
    }
    const bool traces = trace_is_one(sides[0]) || trace_is_one(sides[1]);
    for (int i = 0; i < 2 && status >= 0; ++i) {
        status = complete(ctx, options, options->files[i], traces, &sides[i]);
    }
    if (status >= 0 && !traces && options->trace != NULL) {
        status = ds_fail(ctx, DS_ERR_ARG,
                         "--trace lays two traces over each other: give a trace as A or B, the "
                         "other may be a configuration");
    } else if (status >= 0 && traces) {
        status = compare_traces(ctx, options, sides);
    } else if (status >= 0 && compare("", sides[0], sides[1]) == 0) {
        (void)printf("the plans are alike\n");
    }
    json_decref(sides[0]);
    json_decref(sides[1]);
    return status;
}
