/* SPDX-License-Identifier: Apache-2.0 */
/* A report of a plan as one page: figures, memory over the steps as stacked areas, the simulated
 * timeline as lanes, its text. No scripts, no links: it opens anywhere. */
#include "report/plan_html.h"

#include "config/config_values.h"
#include "cost/trace.h"
#include "monitor/chart.h"
#include "monitor/html.h"
#include "report/plan_print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_CEILING = 64 << 20, CURVE_POINTS = 600, TICKS = 7, TEXT_BYTES = 128 };

static const double room_for_name = 0.09; /* of the width, below which a phase has none */

void dsi_plan_html_phase_line(dsi_buf *page, const dsi_chart_axis *x, double begin, int height)
{
    dsi_buf_printf(page,
                   "<path style=\"stroke:var(--dim);stroke-dasharray:3 3\" d=\"M%.2f 0V%d\"/>\n",
                   dsi_chart_x(x, begin), height);
}

void dsi_plan_html_phase_name(dsi_buf *page, const dsi_chart_axis *x, double begin, double end,
                              const char *name)
{
    const double part = dsi_chart_axis_at(x, end) - dsi_chart_axis_at(x, begin);
    if (part >= room_for_name) {
        dsi_buf_printf(page, "<span class=\"phase%s\" style=\"left:%.2f%%\">%s</span>",
                       part < 2.0 * room_for_name ? " odd" : "",
                       100.0 * dsi_chart_axis_at(x, begin), name);
    }
}

/* ---- figures -------------------------------------------------------------------------------- */

static double sum_of(const dsi_plan_report *r, int from, int to)
{
    double sum = 0.0;
    for (int place = 0; place < DSI_RESIDENCY_COUNT; ++place) {
        for (int kind = from; kind <= to && place != DSI_RESIDENCY_DISK; ++kind) {
            sum += (double)r->peak[place][kind];
        }
    }
    return sum;
}

/* What is there whatever the batch, beside what the tokens of a micro-batch bring. */
static void put_parts(dsi_buf *page, const dsi_plan_report *r)
{
    char value[DSI_CHART_TEXT];
    char note[TEXT_BYTES];
    const ds_config_values *v = dsi_config_values(r->request.config);
    dsi_html_tile(page, "Model",
                  dsi_bytes_text(sum_of(r, DSI_MEMORY_PARAM, DSI_MEMORY_MOMENT), value),
                  "parameters, gradients, optimizer", "");
    (void)snprintf(note, sizeof note, "%lld × %lld tokens, at the peak",
                   (long long)v->batch.train_micro_batch_size_per_gpu,
                   (long long)r->request.seq_length);
    dsi_html_tile(page, "Context",
                  dsi_bytes_text(sum_of(r, DSI_MEMORY_ACTIVATION, DSI_MEMORY_GAPS), value), note,
                  "");
    dsi_html_tile(page, "Program",
                  dsi_bytes_text(sum_of(r, DSI_MEMORY_HOST_STATE, DSI_MEMORY_PROCESS), value),
                  "plans, libraries, host state", "");
}

static void put_tiles(dsi_buf *page, const dsi_plan_report *r)
{
    char value[TEXT_BYTES];
    char note[TEXT_BYTES];
    char text[DSI_CHART_TEXT];
    dsi_shortage lack;
    const bool lacks = dsi_report_lacks(r, &lack);
    dsi_buf_puts(page, "<section class=\"tiles\">\n");
    (void)snprintf(note, sizeof note, "%s %s", lacks ? "more than" : "of",
                   dsi_bytes_text((double)(lacks ? lack.have : r->request.memory), text));
    dsi_html_tile(page, "Memory of a rank", dsi_bytes_text((double)dsi_report_need(r), value),
                  lacks || r->request.memory > 0 ? note : NULL,
                  lacks                   ? "bad"
                  : r->request.memory > 0 ? "good"
                                          : "");
    put_parts(page, r);
    (void)snprintf(value, sizeof value, "%.2f M", (double)r->n_parameters / 1e6);
    (void)snprintf(note, sizeof note, "%.2f M trained", (double)r->n_trainable / 1e6);
    dsi_html_tile(page, "Parameters", value, note, "");
    if (r->timeline != NULL) {
        (void)snprintf(note, sizeof note, "%s tokens a second a rank",
                       dsi_figure(round(r->timeline->tokens_per_second), text));
        dsi_html_tile(page, "A step", dsi_clock_text(r->timeline->step.seconds, value), note, "");
        (void)snprintf(value, sizeof value, "%.1f %%", 100.0 * r->timeline->mfu);
        dsi_html_tile(page, "MFU", value, "of the device's peak", "");
    }
    dsi_buf_puts(page, "</section>\n");
}

/* ---- memory --------------------------------------------------------------------------------- */

typedef struct curve {
    size_t points[CURVE_POINTS][DSI_MEMORY_KIND_COUNT];
    uint32_t n, run;
    double unit; /* bytes */
    const char *unit_name;
    dsi_chart_axis x, y;
} curve;

static double sum_below(const size_t *point, int kind)
{
    double sum = 0.0;
    for (int k = 0; k < kind; ++k) {
        sum += (double)point[k];
    }
    return sum;
}

static double x_of(const curve *c, uint32_t i)
{
    const double step = (double)i * c->run;
    return dsi_chart_x(&c->x, i + 1 == c->n || step > c->x.high ? c->x.high : step);
}

static double y_of(const curve *c, double bytes)
{
    return dsi_chart_y(&c->y, bytes / c->unit);
}

static size_t largest_of(const curve *c, int kind)
{
    size_t largest = 0;
    for (uint32_t i = 0; i < c->n; ++i) {
        largest = c->points[i][kind] > largest ? c->points[i][kind] : largest;
    }
    return largest;
}

static void put_area(dsi_buf *page, const curve *c, int kind)
{
    char text[DSI_CHART_TEXT];
    const size_t largest = largest_of(c, kind);
    if (largest == 0) {
        return;
    }
    dsi_buf_printf(page, "<polygon style=\"fill:var(--c%d)\" points=\"",
                   kind == DSI_MEMORY_GAPS ? 10 : kind);
    for (uint32_t i = 0; i < c->n; ++i) {
        dsi_buf_printf(page, "%.1f,%.1f ", x_of(c, i), y_of(c, sum_below(c->points[i], kind + 1)));
    }
    for (uint32_t i = c->n; i-- > 0;) {
        dsi_buf_printf(page, "%.1f,%.1f ", x_of(c, i), y_of(c, sum_below(c->points[i], kind)));
    }
    dsi_buf_printf(page, "\"><title>%s: up to %s</title></polygon>\n",
                   dsi_memory_kind_name((dsi_memory_kind)kind),
                   dsi_bytes_text((double)largest, text));
}

static void put_level(dsi_buf *page, const curve *c, double bytes, const char *colour)
{
    dsi_buf_printf(page,
                   "<path style=\"stroke:var(--%s);stroke-width:1.5;stroke-dasharray:5 4\" "
                   "d=\"M0 %.1fH%d\"/>\n",
                   colour, y_of(c, bytes), DSI_CHART_WIDTH);
}

static void put_phases(dsi_buf *page, const curve *c, const dsi_plan *plan, bool names)
{
    for (ds_phase phase = 0; phase < plan->phases.n; ++phase) {
        const double begin = plan->phase_begin[phase];
        const double end = plan->phase_begin[phase + 1];
        if (end > begin && names) {
            dsi_plan_html_phase_name(page, &c->x, begin, end, plan->phases.items[phase].name);
        } else if (end > begin) {
            dsi_plan_html_phase_line(page, &c->x, begin, DSI_CHART_HEIGHT);
        }
    }
}

static void put_key(dsi_buf *page, const curve *c, double peak, double limit)
{
    char text[DSI_CHART_TEXT];
    dsi_buf_puts(page, "<div class=\"key\">");
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        if (largest_of(c, k) > 0) {
            dsi_buf_printf(page,
                           "<span><i class=\"box\" style=\"background:var(--c%d)\"></i>%s, up to "
                           "%s</span>",
                           k == DSI_MEMORY_GAPS ? 10 : k, dsi_memory_kind_name((dsi_memory_kind)k),
                           dsi_bytes_text((double)largest_of(c, k), text));
        }
    }
    dsi_buf_printf(page, "<span><i class=\"dash\" style=\"color:var(--ink)\"></i>peak, %s</span>",
                   dsi_bytes_text(peak, text));
    if (limit > 0.0) {
        dsi_buf_printf(page,
                       "<span><i class=\"dash\" style=\"color:var(--bad)\"></i>room, %s</span>",
                       dsi_bytes_text(limit, text));
    }
    dsi_buf_puts(page, "</div>\n");
}

static void put_rest(dsi_buf *page, double peak, double rest)
{
    char text[DSI_CHART_TEXT];
    if (rest > 0.0) {
        dsi_buf_printf(page,
                       "<p class=\"dim\">Beside it, in every step: %s of the program, its plans "
                       "and what is offloaded to the host's memory; ",
                       dsi_bytes_text(rest, text));
        dsi_buf_printf(page, "%s in all.</p>\n", dsi_bytes_text(peak + rest, text));
    }
}

/* limit: 0 where it is not known, or so far above that the curve would be flat below it. */
static void put_curve(dsi_buf *page, const dsi_plan_report *r, curve *c, double peak, double limit,
                      double rest)
{
    c->unit_name = dsi_bytes_unit(limit > peak ? limit : peak, &c->unit);
    c->x = dsi_chart_axis_make(0.0, r->ledger->n_steps, false, true, TICKS + 1);
    c->y = dsi_chart_axis_make(0.0, (limit > peak ? limit : peak) / c->unit, false, false, TICKS);
    dsi_buf_printf(page,
                   "<section class=\"card wide plan\"><div class=\"head\"><h3>Memory of a rank "
                   "<small>%s over the %u steps of its plan</small></h3>",
                   c->unit_name, r->ledger->n_steps);
    put_key(page, c, peak, limit);
    dsi_buf_puts(page, "</div>\n");
    dsi_chart_open(page, &c->x, &c->y, "steps");
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        put_area(page, c, k);
    }
    put_level(page, c, peak, "ink");
    if (limit > 0.0) {
        put_level(page, c, limit, "bad");
    }
    put_phases(page, c, r->plan.train_plan, false);
    dsi_buf_puts(page, "</svg>\n");
    put_phases(page, c, r->plan.train_plan, true);
    dsi_chart_close(page);
    put_rest(page, peak, rest);
    dsi_buf_puts(page, "</section>\n");
}

static ds_status put_memory(dsi_buf *page, const dsi_plan_report *r)
{
    curve *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return ds_fail(r->plan.ctx, DS_ERR_NOMEM, "no memory for a page");
    }
    const ds_status status = dsi_report_curve(r, c->points, CURVE_POINTS, &c->n, &c->run);
    if (status >= 0) {
        const double peak = (double)r->total[DSI_RESIDENCY_DEVICE];
        const double rest = (double)dsi_report_need(r) - peak; /* the host's, where it is shared */
        const double limit = (double)r->request.memory - rest;
        put_curve(page, r, c, peak, limit > 0.0 && limit < 2.0 * peak ? limit : 0.0, rest);
    }
    free(c);
    return status;
}

/* ---- the page ------------------------------------------------------------------------------- */

static void put_head(dsi_buf *page, const dsi_plan_report *r)
{
    dsi_shortage lack;
    const bool lacks = dsi_report_lacks(r, &lack);
    const bool known = lacks || r->request.memory > 0;
    dsi_buf_puts(page, "<header><h1>");
    dsi_html_text(page, ds_model_get_info(r->request.model)->architecture);
    dsi_buf_printf(page, ", ZeRO stage %u, %u rank%s</h1>", r->spec.zero.stage, r->request.n_ranks,
                   r->request.n_ranks == 1 ? "" : "s");
    if (known) {
        dsi_buf_printf(page, "<span class=\"pill %s\">%s</span>", lacks ? "bad" : "good",
                       lacks ? "does not fit" : "fits");
    }
    dsi_buf_puts(page, "</header>\n");
}

ds_status dsi_report_html(const dsi_printed *printed, char **text_out)
{
    const dsi_plan_report *r = printed->report;
    char *text = NULL;
    dsi_buf page = dsi_buf_make(TEXT_CEILING);
    DS_TRY(dsi_report_text(printed, &text));
    dsi_html_begin(&page, "ds_plan", DSI_PLAN_PAGE_KIND);
    put_head(&page, r);
    put_tiles(&page, r);
    dsi_buf_puts(&page, "<section class=\"charts\">\n");
    const ds_status status = put_memory(&page, r);
    if (r->timeline != NULL) {
        dsi_plan_html_timeline(&page, r->timeline);
    }
    dsi_buf_puts(&page, "</section>\n<h2>The report</h2>\n<div class=\"card scroll\">"
                        "<pre class=\"wide-text\">");
    dsi_html_text(&page, text);
    dsi_buf_puts(&page, "</pre></div>\n");
    dsi_html_end(&page, false);
    free(text);
    if (status < 0 || page.failed) {
        dsi_buf_free(&page);
        return status < 0 ? status : ds_fail(r->plan.ctx, DS_ERR_NOMEM, "no memory for a page");
    }
    *text_out = page.data;
    return DS_OK;
}

ds_status dsi_report_trace(const dsi_plan_report *report, char **text_out)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    if (report->timeline == NULL) {
        return ds_fail(report->plan.ctx, DS_ERR_ARG,
                       "a trace needs times: give --device PROFILE too");
    }
    dsi_trace trace = dsi_trace_begin(&text);
    dsi_trace_timeline(&trace, report->timeline, DSI_TRACE_PLAN, "planned rank", 0);
    dsi_trace_end(&trace);
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(report->plan.ctx, DS_ERR_NOMEM, "no memory for a trace");
    }
    *text_out = text.data;
    return DS_OK;
}
