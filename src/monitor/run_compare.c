/* SPDX-License-Identifier: Apache-2.0 */
/* The page of several runs. See run_page.h. */
#include "monitor/chart.h"
#include "monitor/html.h"
#include "monitor/run_page.h"

#include <math.h>
#include <string.h>

enum { PAGE_CEILING = 64 << 20 };

static void put_cell(dsi_buf *page, const char *text)
{
    dsi_buf_puts(page, "<td class=\"n\">");
    dsi_html_text(page, text);
    dsi_buf_puts(page, "</td>");
}

static void put_row(dsi_buf *page, const dsi_run_history *h, size_t i)
{
    const char *tone = "";
    char text[DSI_CHART_TEXT];
    const char *verdict = dsi_run_verdict(h, false, &tone);
    dsi_buf_printf(page, "<tr><td><b style=\"color:var(--c%zu)\">■</b> ", i);
    dsi_html_text(page, h->name);
    dsi_buf_printf(page, "</td><td class=\"%s\">%s</td><td class=\"n\">%llu</td>", tone, verdict,
                   (unsigned long long)h->step);
    put_cell(page, dsi_figure(h->loss, text));
    put_cell(page, dsi_figure(h->eval_loss, text));
    put_cell(page, dsi_figure(h->best_eval, text));
    put_cell(page, h->seconds > 0.0 ? dsi_figure(round(h->tokens / h->seconds), text) : "");
    put_cell(page, h->seconds > 0.0 ? dsi_clock_text(h->seconds, text) : "");
    put_cell(page, dsi_bytes_text(h->peak_bytes, text));
    dsi_buf_printf(page, "<td class=\"n\">%llu</td></tr>\n", (unsigned long long)h->n_skipped);
}

static void put_table(dsi_buf *page, dsi_run_history *const *runs, size_t n)
{
    static const char *const heads[] = {"steps",           "loss", "validation loss", "best",
                                        "tokens a second", "time", "peak memory",     "skipped"};
    dsi_buf_puts(page, "<div class=\"card scroll\"><table><tr><th>run</th><th></th>");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; ++i) {
        dsi_buf_printf(page, "<th class=\"n\">%s</th>", heads[i]);
    }
    dsi_buf_puts(page, "</tr>\n");
    for (size_t i = 0; i < n; ++i) {
        put_row(page, runs[i], i);
    }
    dsi_buf_puts(page, "</table></div>\n");
}

static void put_chart(dsi_buf *page, dsi_run_history *const *runs, size_t n,
                      const dsi_run_curve_row *row)
{
    dsi_chart_line lines[DSI_RUN_PAGE_MOST];
    dsi_chart chart = {.title = row->title,
                       .unit = row->unit,
                       .lines = lines,
                       .log = row->log,
                       .from_zero = row->from_zero,
                       .wide = row->wide};
    double peak = 0.0;
    for (size_t i = 0; i < n; ++i) {
        if (dsi_run_curve_tells(runs[i], row->curve)) {
            lines[chart.n_lines++] = (dsi_chart_line){.name = runs[i]->name,
                                                      .series = &runs[i]->curves[row->curve],
                                                      .colour = (int)i,
                                                      .dots = row->curve == DSI_RUN_EVAL,
                                                      .only_smooth = row->smooth};
        }
        chart.x_high = fmax(chart.x_high, (double)runs[i]->step);
        peak = fmax(peak, runs[i]->peak_bytes);
    }
    if (row->curve == DSI_RUN_MEMORY) {
        chart.unit = dsi_bytes_unit(peak, &chart.scale);
    }
    if (chart.n_lines > 0) {
        dsi_chart_put(page, &chart);
    }
}

static void put_charts(dsi_buf *page, dsi_run_history *const *runs, size_t n)
{
    static const dsi_run_curve_row eval = {DSI_RUN_EVAL, "Validation loss", "nats a token",
                                           "validation", .wide = true};
    dsi_buf_puts(page, "<h2>Curves</h2>\n<section class=\"charts\">\n");
    for (const dsi_run_curve_row *row = dsi_run_curve_rows; row->title != NULL; ++row) {
        put_chart(page, runs, n, row);
        if (row->curve == DSI_RUN_LOSS) {
            put_chart(page, runs, n, &eval);
        }
    }
    dsi_buf_puts(page, "</section>\n");
}

/* ---- what differs --------------------------------------------------------------------------- */

/* The value of a fact; NULL: the run says none. */
static const char *fact_of(const dsi_run_history *h, const char *title, const char *name)
{
    size_t i = 0;
    size_t k = 0;
    const json_t *section = NULL;
    const json_t *row = NULL;
    json_array_foreach(json_object_get(h->start, "facts"), i, section)
    {
        const char *own = json_string_value(json_object_get(section, "title"));
        if (own == NULL || strcmp(own, title) != 0) {
            continue;
        }
        json_array_foreach(json_object_get(section, "rows"), k, row)
        {
            const char *key = json_string_value(json_array_get(row, 0));
            if (key != NULL && strcmp(key, name) == 0) {
                return json_string_value(json_array_get(row, 1));
            }
        }
    }
    return NULL;
}

static bool same(const char *a, const char *b)
{
    return (a == NULL || b == NULL) ? a == b : strcmp(a, b) == 0;
}

static void put_difference(dsi_buf *page, dsi_run_history *const *runs, size_t n, const char *title,
                           const char *name)
{
    bool differs = false;
    const char *values[DSI_RUN_PAGE_MOST];
    size_t first = n; /* run that says it: --metrics files do not */
    for (size_t i = 0; i < n; ++i) {
        values[i] = fact_of(runs[i], title, name);
        first = first == n && runs[i]->start != NULL ? i : first;
        differs = differs || (runs[i]->start != NULL && !same(values[first], values[i]));
    }
    if (!differs) {
        return;
    }
    dsi_buf_puts(page, "<tr><td>");
    dsi_html_text(page, name);
    dsi_buf_puts(page, "</td>");
    for (size_t i = 0; i < n; ++i) {
        dsi_buf_puts(page, "<td class=\"text\">");
        dsi_html_text(page, values[i] != NULL ? values[i] : "–");
        dsi_buf_puts(page, "</td>");
    }
    dsi_buf_puts(page, "</tr>\n");
}

/* Whether an earlier run says it: then it has its row. */
static bool told_before(dsi_run_history *const *runs, size_t n, const char *title, const char *name)
{
    for (size_t i = 0; i < n; ++i) {
        if (fact_of(runs[i], title, name) != NULL) {
            return true;
        }
    }
    return false;
}

static void put_differences_of(dsi_buf *page, dsi_run_history *const *runs, size_t n, size_t at)
{
    size_t i = 0;
    size_t k = 0;
    const json_t *section = NULL;
    const json_t *row = NULL;
    json_array_foreach(json_object_get(runs[at]->start, "facts"), i, section)
    {
        const char *title = json_string_value(json_object_get(section, "title"));
        json_array_foreach(json_object_get(section, "rows"), k, row)
        {
            const char *name = json_string_value(json_array_get(row, 0));
            if (title != NULL && name != NULL && !told_before(runs, at, title, name)) {
                put_difference(page, runs, n, title, name);
            }
        }
    }
}

static void put_differences(dsi_buf *page, dsi_run_history *const *runs, size_t n)
{
    dsi_buf_puts(page, "<h2>What differs</h2>\n<div class=\"card scroll\"><table><tr><th></th>");
    for (size_t i = 0; i < n; ++i) {
        dsi_buf_printf(page, "<th><b style=\"color:var(--c%zu)\">■</b> ", i);
        dsi_html_text(page, runs[i]->name);
        dsi_buf_puts(page, "</th>");
    }
    dsi_buf_puts(page, "</tr>\n<tr><td>command line</td>");
    for (size_t i = 0; i < n; ++i) {
        const char *command = dsi_run_text(runs[i], "command");
        dsi_buf_puts(page, "<td class=\"text\"><code>");
        dsi_html_text(page, command[0] != '\0' ? command : "not recorded");
        dsi_buf_puts(page, "</code></td>");
    }
    dsi_buf_puts(page, "</tr>\n");
    for (size_t i = 0; i < n; ++i) {
        put_differences_of(page, runs, n, i);
    }
    dsi_buf_puts(page, "</table></div>\n");
}

ds_status dsi_run_page_compare(ds_ctx *ctx, dsi_run_history *const *runs, size_t n, char **text_out)
{
    dsi_buf page = dsi_buf_make(PAGE_CEILING);
    dsi_html_begin(&page, "Runs compared", DSI_RUN_COMPARE_KIND);
    dsi_buf_printf(&page, "<header><h1>%zu runs compared</h1></header>\n", n);
    put_table(&page, runs, n);
    put_charts(&page, runs, n);
    put_differences(&page, runs, n);
    dsi_html_end(&page, true);
    if (page.failed) {
        dsi_buf_free(&page);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the page of runs");
    }
    *text_out = page.data;
    return DS_OK;
}
