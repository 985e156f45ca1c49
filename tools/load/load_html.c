/* SPDX-License-Identifier: Apache-2.0 */
/* A load as one page that stands alone: figures; distributions; what happened over time. See
 * load.h. */
#include "load/load.h"

#include "monitor/chart.h"
#include "monitor/html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 120, POINTS = 300, MOST_DOTS = 4000, X_TICKS = 8, Y_TICKS = 6, TEXT_BYTES = 160 };

static void open_card(dsi_buf *page, const char *title, const char *unit)
{
    dsi_buf_puts(page, "<section class=\"card\"><div class=\"head\"><h3>");
    dsi_html_text(page, title);
    dsi_buf_printf(page, " <small>%s</small></h3></div>\n", unit);
}

static void close_card(dsi_buf *page)
{
    dsi_buf_puts(page, "</svg>\n");
    dsi_chart_close(page);
    dsi_buf_puts(page, "</section>\n");
}

/* ---- distributions ---- */

static void put_limit(dsi_buf *page, const dsi_chart_axis *x, double limit)
{
    if (limit > 0 && limit <= x->high) {
        dsi_buf_printf(page,
                       "<path style=\"stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4\" "
                       "d=\"M%.1f 0V%d\"><title>limit: %.4g ms</title></path>\n",
                       dsi_chart_x(x, limit), DSI_CHART_HEIGHT, limit);
    }
}

/* How many percent are below a value, up to the 99.5th percentile or the limit. */
static void put_distribution(dsi_buf *page, const load_measure *m, const char *name, double limit)
{
    char title[TEXT_BYTES];
    if (m->n == 0) {
        return;
    }
    const double most = fmax(load_quantile(m->values, m->n, 0.995), limit);
    const dsi_chart_axis x = dsi_chart_axis_make(0.0, most, false, true, X_TICKS);
    const dsi_chart_axis y = dsi_chart_axis_make(0.0, 100.0, false, false, Y_TICKS);
    (void)snprintf(title, sizeof title, "%s: so many are faster", name);
    open_card(page, title, "percent");
    dsi_chart_open(page, &x, &y, "ms");
    dsi_buf_printf(page, "<path style=\"stroke:var(--c0);stroke-width:2;fill:none\" d=\"");
    for (int i = 0; i <= POINTS; ++i) {
        const double part = (double)i / POINTS;
        const double value = load_quantile(m->values, m->n, part);
        if (value <= x.high) {
            dsi_buf_printf(page, "%s%.1f %.1f", i > 0 ? "L" : "M", dsi_chart_x(&x, value),
                           dsi_chart_y(&y, 100.0 * part));
        }
    }
    dsi_buf_puts(page, "\"/>\n");
    put_limit(page, &x, limit);
    close_card(page);
}

/* ---- over time ---- */

static void put_steps(dsi_buf *page, const char *title, const char *unit, const double *values,
                      double seconds)
{
    double most = 0;
    for (int i = 0; i < BINS; ++i) {
        most = fmax(most, values[i]);
    }
    const dsi_chart_axis x = dsi_chart_axis_make(0.0, seconds, false, true, X_TICKS);
    const dsi_chart_axis y = dsi_chart_axis_make(0.0, most, false, false, Y_TICKS);
    open_card(page, title, unit);
    dsi_chart_open(page, &x, &y, "s");
    dsi_buf_puts(page, "<path style=\"stroke:var(--c0);stroke-width:2;fill:none\" d=\"");
    for (int i = 0; i < BINS; ++i) {
        dsi_buf_printf(page, "%s%.1f %.1fH%.1f", i > 0 ? "L" : "M",
                       dsi_chart_x(&x, seconds * i / BINS), dsi_chart_y(&y, values[i]),
                       dsi_chart_x(&x, seconds * (i + 1) / BINS));
    }
    dsi_buf_puts(page, "\"/>\n");
    close_card(page);
}

static int bin_of(double at, double seconds)
{
    const int bin = (int)(at / seconds * BINS);
    return bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin;
}

/* Requests between their arrival and their end, in the mean over a bin. */
static void count_running(const load_run *run, double *values)
{
    const double width = run->seconds / BINS;
    for (size_t i = 0; i < run->n; ++i) {
        const load_result *r = &run->results[i];
        for (int b = bin_of(r->due, run->seconds); b <= bin_of(r->last, run->seconds); ++b) {
            const double begin = fmax(r->due, width * b);
            const double end = fmin(r->last, width * (b + 1));
            values[b] += fmax(0.0, end - begin) / width;
        }
    }
}

static void put_dots(dsi_buf *page, const load_report *r)
{
    const load_run *run = r->run;
    const size_t step = run->n / MOST_DOTS + 1;
    if (r->measures[LOAD_TTFT].n == 0) {
        return;
    }
    const dsi_chart_axis x = dsi_chart_axis_make(0.0, run->seconds, false, true, X_TICKS);
    const dsi_chart_axis y =
        dsi_chart_axis_make(0.0, r->measures[LOAD_TTFT].most, false, false, Y_TICKS);
    open_card(page, "First token, by arrival", "ms");
    dsi_chart_open(page, &x, &y, "s");
    for (int good = 0; good < 2; ++good) {
        dsi_buf_printf(page,
                       "<path style=\"stroke:var(--%s);stroke-width:4;stroke-linecap:round\" d=\"",
                       good ? "c0" : "bad");
        for (size_t i = 0; i < run->n; i += step) {
            const load_result *q = &run->results[i];
            if (q->first > 0 && load_is_good(r->o, q) == (good == 1)) {
                dsi_buf_printf(page, "M%.1f %.1fh0", dsi_chart_x(&x, q->due),
                               dsi_chart_y(&y, 1e3 * (q->first - q->due)));
            }
        }
        dsi_buf_puts(page, "\"/>\n");
    }
    close_card(page);
}

static void put_times(dsi_buf *page, const load_report *r)
{
    const load_run *run = r->run;
    double texts[BINS] = {0};
    double running[BINS] = {0};
    if (run->n == 0 || run->seconds <= 0) {
        return;
    }
    /* a frame stands for as many tokens as frames do in the mean */
    const double tokens = run->frames.n > 0 ? (double)r->n_output / (double)run->frames.n : 0.0;
    for (size_t i = 0; i < run->frames.n; ++i) {
        texts[bin_of((double)run->frames.items[i], run->seconds)] += tokens * BINS / run->seconds;
    }
    count_running(run, running);
    put_steps(page, "Tokens a second", "out", texts, run->seconds);
    put_steps(page, "Requests that wait or run", "", running, run->seconds);
    put_dots(page, r);
}

/* ---- the page ---- */

static void put_tiles(dsi_buf *page, const load_report *r)
{
    char value[TEXT_BYTES];
    char note[TEXT_BYTES];
    dsi_buf_puts(page, "<section class=\"tiles\">\n");
    (void)snprintf(value, sizeof value, "%zu", r->n_done);
    (void)snprintf(note, sizeof note, "%zu failed, %.4g a second%s", r->n_failed, r->requests_s,
                   r->run->interrupted ? "; interrupted" : "");
    dsi_html_tile(page, "Requests", value, note, r->n_failed > 0 ? "bad" : "");
    (void)snprintf(value, sizeof value, "%.4g /s", r->output_s);
    (void)snprintf(note, sizeof note, "%.4g /s in", r->input_s);
    dsi_html_tile(page, "Tokens out", value, note, "");
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        const load_measure *m = &r->measures[k];
        (void)snprintf(value, sizeof value, "%.4g ms", m->p50);
        (void)snprintf(note, sizeof note, "median; 99 %%: %.4g ms", m->p99);
        dsi_html_tile(page, load_measure_names[k], value, note, "");
    }
    if (r->o->slo_ttft > 0 || r->o->slo_tpot > 0 || r->o->slo_e2e > 0) {
        (void)snprintf(value, sizeof value, "%.4g /s", r->good_s);
        (void)snprintf(note, sizeof note, "%zu of %zu requests", r->n_good, r->run->n);
        dsi_html_tile(page, "Within limits", value, note, r->n_good == r->run->n ? "good" : "warn");
    }
    dsi_buf_puts(page, "</section>\n");
}

void load_report_html(const load_report *r, dsi_buf *page)
{
    const double limits[LOAD_MEASURES] = {
        [LOAD_TTFT] = r->o->slo_ttft, [LOAD_TPOT] = r->o->slo_tpot, [LOAD_E2E] = r->o->slo_e2e};
    dsi_buf text = dsi_buf_make(1 << 20);
    dsi_html_begin(page, "Load of a server", "load report");
    put_tiles(page, r);
    dsi_buf_puts(page, "<div class=\"charts\">\n");
    for (int k = 0; k < LOAD_MEASURES; ++k) {
        put_distribution(page, &r->measures[k], load_measure_names[k], limits[k]);
    }
    put_times(page, r);
    dsi_buf_puts(page, "</div>\n<pre>");
    load_report_text(r, &text);
    dsi_html_text(page, dsi_buf_text(&text));
    dsi_buf_puts(page, "</pre>\n");
    dsi_html_end(page, false);
    dsi_buf_free(&text);
}
