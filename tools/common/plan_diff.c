/* ds_plan diff: two plans side by side, the figures that differ. */
#include "common/plan_run.h"

#include "base/buf.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_CEILING = 64 << 20, PATH_BYTES = 512 };

/* The report in a file, or that of the configuration in it. */
static ds_status open_side(ds_ctx *ctx, const plan_options *options, const char *path,
                           json_t **json_out)
{
    dsi_buf file = dsi_buf_make(FILE_CEILING);
    const ds_status read = dsi_buf_read_file(ctx, path, &file);
    json_t *json = read < 0 ? NULL : json_loads(dsi_buf_text(&file), 0, NULL);
    dsi_buf_free(&file);
    if (read < 0 || json_object_get(json, "ds_plan") != NULL) {
        *json_out = json;
        return read;
    }
    json_decref(json);
    if (options->model == NULL && options->model_config == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s is no report of ds_plan --json; to compare the plans of configurations "
                       "give --model DIR or --model_config FILE too",
                       path);
    }
    plan_run run;
    dsi_plan_report report;
    char *text = NULL;
    ds_status status = plan_run_open(ctx, options, path, &run);
    if (status >= 0) {
        status = dsi_report_make(ctx, &run.request, &report);
    }
    if (status >= 0) {
        const dsi_printed printed = {.report = &report};
        status = dsi_report_json(&printed, &text);
        dsi_report_free(&report);
    }
    plan_run_close(&run);
    *json_out = status >= 0 ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return status;
}

/* The element of `list` that stands for the same thing as `item`, which is at `index` of its own.
 */
static json_t *partner(json_t *list, const json_t *item, size_t index)
{
    static const char *const keys[] = {"collective", "phase", "name", "what", "kind"};
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
    char *x = a != NULL ? json_dumps(a, JSON_ENCODE_ANY) : NULL;
    char *y = b != NULL ? json_dumps(b, JSON_ENCODE_ANY) : NULL;
    (void)printf("%-46s %18s %18s", path, x != NULL ? x : "-", y != NULL ? y : "-");
    const double from = json_number_value(a);
    const double to = json_number_value(b);
    if (json_is_number(a) && json_is_number(b) && from != 0.0) {
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

ds_status plan_diff(ds_ctx *ctx, const plan_options *options)
{
    json_t *sides[2] = {NULL, NULL};
    ds_status status = open_side(ctx, options, options->files[0], &sides[0]);
    if (status >= 0) {
        status = open_side(ctx, options, options->files[1], &sides[1]);
    }
    if (status >= 0 && compare("", sides[0], sides[1]) == 0) {
        (void)printf("the plans are alike\n");
    }
    json_decref(sides[0]);
    json_decref(sides[1]);
    return status;
}
