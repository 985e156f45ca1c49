/* SPDX-License-Identifier: Apache-2.0 */
/* The table of ds_plan diff for traces. See plan_trace.h.
 *
 * Rows are sums over spans, divided by how often the phase ran in that process, or the update: a
 * plan's trace has one micro-batch, a run's all of some steps. Of several ranks the mean is shown,
 * and the slowest.
 */
#include "common/plan_trace.h"

#include "cost/trace.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96, MOST_ROWS = 4096, SHOWN_SCOPES = 30 };

typedef enum table_part { BY_PHASE, BY_WORK, CONCURRENT, BY_SCOPE, PART_COUNT } table_part;

typedef struct row {
    table_part part;
    char name[NAME_BYTES];
    uint32_t place;                /* in which it first came */
    double seconds[2], slowest[2]; /* per side: mean of its processes, most of one */
} row;

typedef struct table {
    ds_ctx *ctx;
    row *rows;
    uint32_t n_rows;
    double *sums[2]; /* per side: [row * n_pids + process] */
} table;

/* Layers are one row: "model.layers.*.mlp" of "model.layers.7.mlp". */
static void fold(const char *scope, char name[NAME_BYTES])
{
    size_t n = 0;
    for (const char *p = scope; *p != '\0' && n + 1 < NAME_BYTES;) {
        size_t digits = 0;
        while (isdigit((unsigned char)p[digits])) {
            ++digits;
        }
        const bool begins = p == scope || p[-1] == '.';
        if (digits > 0 && begins && (p[digits] == '.' || p[digits] == '\0')) {
            name[n++] = '*';
            p += digits;
        } else {
            name[n++] = *p++;
        }
    }
    name[n] = '\0';
}

static row *row_of(table *t, table_part part, const char *name)
{
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        if (t->rows[i].part == part && strcmp(t->rows[i].name, name) == 0) {
            return &t->rows[i];
        }
    }
    row *r = &t->rows[t->n_rows < MOST_ROWS ? t->n_rows++ : MOST_ROWS - 1];
    if (r->name[0] == '\0') {
        r->part = part;
        r->place = (uint32_t)(r - t->rows);
        (void)snprintf(r->name, sizeof r->name, "%s", name);
    }
    return r;
}

static void add(table *t, int which, const trace_side *side, uint32_t process, const row *r,
                double seconds)
{
    t->sums[which][(size_t)(r - t->rows) * side->n_pids + process] += seconds;
}

/* What a span counts for: its phase, or the thread's work and its scope, or a stream's. */
static void add_event(table *t, int which, trace_side *side, const json_t *event)
{
    const char *category = json_string_value(json_object_get(event, "cat"));
    const char *name = trace_arg(event, "phase");
    const char *scope = trace_arg(event, "scope");
    const uint32_t process = trace_side_process(side, event);
    const uint32_t phase = trace_phase(side, name);
    char folded[NAME_BYTES];
    if (category == NULL || phase == TRACE_PHASES || process == side->n_pids ||
        side->runs[process][phase] <= 0.0) {
        return;
    }
    const double seconds =
        1e-6 * json_number_value(json_object_get(event, "dur")) / side->runs[process][phase];
    if (strcmp(category, "phase") == 0) {
        add(t, which, side, process, row_of(t, BY_PHASE, name), seconds);
        return;
    }
    if (json_integer_value(json_object_get(event, "tid")) != DSI_TRACE_THREAD) {
        add(t, which, side, process, row_of(t, CONCURRENT, category), seconds);
        return;
    }
    const bool stall = strcmp(category, "stall") == 0;
    add(t, which, side, process, row_of(t, BY_WORK, stall ? "waiting" : category), seconds);
    fold(scope == NULL ? "(none)" : scope[0] == '\0' ? "(model)" : scope, folded);
    add(t, which, side, process, row_of(t, BY_SCOPE, folded), seconds);
}

/* Means and slowest of each row over the processes that ran. */
static void reduce(table *t, int which, const trace_side *side)
{
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        row *r = &t->rows[i];
        for (uint32_t p = 0; p < side->n_pids; ++p) {
            const double s = t->sums[which][(size_t)i * side->n_pids + p];
            r->seconds[which] += s / side->n_pids;
            r->slowest[which] = fmax(r->slowest[which], s);
        }
    }
}

static int in_order(const void *a, const void *b)
{
    const row *x = a;
    const row *y = b;
    if (x->part != y->part) {
        return x->part < y->part ? -1 : 1;
    }
    if (x->part == BY_PHASE) {
        return x->place < y->place ? -1 : 1;
    }
    const double s = fmax(x->seconds[0], x->seconds[1]);
    const double u = fmax(y->seconds[0], y->seconds[1]);
    if (s != u) {
        return s > u ? -1 : 1;
    }
    return x->place < y->place ? -1 : 1;
}

static void print_line(const char *name, const row *r, bool ranks)
{
    const double ratio = r->seconds[1] / r->seconds[0];
    (void)printf("  %-44s %11.3f %11.3f", name, 1e3 * r->seconds[0], 1e3 * r->seconds[1]);
    if (r->seconds[0] > 0.0) {
        (void)printf(" %8.2f", ratio);
    } else {
        (void)printf(" %8s", "-");
    }
    if (ranks && r->slowest[1] > 0.0) {
        (void)printf(" %11.3f", 1e3 * r->slowest[1]);
    }
    (void)printf("\n");
}

static void add_row(row *sum, const row *r)
{
    for (int i = 0; i < 2; ++i) {
        sum->seconds[i] += r->seconds[i]; /* the slowest of rows are not one rank's */
    }
}

static void print_part(const table *t, table_part part, const char *title, bool ranks)
{
    row sum = {0};
    row rest = {0};
    uint32_t shown = 0;
    uint32_t n_rest = 0;
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        const row *r = &t->rows[i];
        if (r->part != part) {
            continue;
        }
        if (shown == 0) {
            (void)printf("%s\n", title);
        }
        add_row(&sum, r);
        if (part == BY_SCOPE && shown == SHOWN_SCOPES) {
            add_row(&rest, r);
            ++n_rest;
        } else {
            print_line(r->name, r, ranks);
            ++shown;
        }
    }
    if (n_rest > 0) {
        char name[NAME_BYTES];
        (void)snprintf(name, sizeof name, "%u more", n_rest);
        print_line(name, &rest, ranks);
    }
    if (part != CONCURRENT && shown > 1) {
        print_line("sum", &sum, ranks);
    }
}

static void print(const table *t, const trace_side sides[2])
{
    static const char *const titles[PART_COUNT] = {
        [BY_PHASE] = "phases",
        [BY_WORK] = "what the rank's thread did",
        [CONCURRENT] = "concurrent with it",
        [BY_SCOPE] = "the thread, by scope; * stands for every layer"};
    const bool ranks = sides[1].n_pids > 1;
    const bool both = sides[0].planned == sides[1].planned;
    (void)printf("A  %s: %s\nB  %s: %s\n", sides[0].path, sides[0].planned ? "planned" : "measured",
                 sides[1].path, sides[1].planned ? "planned" : "measured");
    (void)printf("milliseconds of one micro-batch's forward and backward and of one update%s\n",
                 sides[0].n_pids > 1 || ranks ? ", means of the ranks" : "");
    (void)printf("  %-44s %11s %11s %8s%s\n", "",
                 both               ? "A"
                 : sides[0].planned ? "planned"
                                    : "measured",
                 both               ? "B"
                 : sides[1].planned ? "planned"
                                    : "measured",
                 "ratio", ranks ? "  slowest B" : "");
    for (int s = 0; s < PART_COUNT; ++s) {
        print_part(t, (table_part)s, titles[s], ranks);
    }
}

ds_status trace_table_print(ds_ctx *ctx, trace_side sides[2])
{
    table t = {.ctx = ctx, .rows = calloc(MOST_ROWS, sizeof *t.rows)};
    ds_status status = DS_OK;
    for (int i = 0; i < 2; ++i) {
        t.sums[i] = calloc((size_t)MOST_ROWS * (sides[i].n_pids + 1), sizeof *t.sums[i]);
    }
    if (t.rows == NULL || t.sums[0] == NULL || t.sums[1] == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to compare two traces");
    }
    for (int i = 0; i < 2 && status >= 0; ++i) {
        const json_t *events = json_object_get(sides[i].json, "traceEvents");
        for (size_t k = 0; k < json_array_size(events); ++k) {
            add_event(&t, i, &sides[i], json_array_get(events, k));
        }
    }
    for (int i = 0; i < 2 && status >= 0; ++i) {
        reduce(&t, i, &sides[i]);
    }
    if (status >= 0) {
        qsort(t.rows, t.n_rows, sizeof *t.rows, in_order);
        print(&t, sides);
    }
    free(t.rows);
    free(t.sums[0]);
    free(t.sums[1]);
    return status;
}
