/* SPDX-License-Identifier: Apache-2.0 */
/* The page of one run. See run_page.h. */
#include "monitor/run_page.h"

#include "monitor/chart.h"
#include "monitor/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PAGE_CEILING = 32 << 20, LINE_BYTES = 512 };

const dsi_run_curve_row dsi_run_curve_rows[] = {
    {DSI_RUN_LOSS, "Loss", "nats a token", "training", .wide = true, .smooth = true},
    {DSI_RUN_LR, "Learning rate", "", "learning rate", .from_zero = true},
    {DSI_RUN_NORM, "Gradient norm", "before clipping", "gradient norm", .log = true,
     .smooth = true},
    {DSI_RUN_SPEED, "Speed", "tokens a second", "speed", .from_zero = true, .smooth = true},
    {DSI_RUN_MEMORY, "Memory of rank 0", "", "most so far, without mapped files",
     .from_zero = true},
    {DSI_RUN_SCALE, "Loss scale", "", "loss scale", .log = true},
    {.title = NULL}};

const char *dsi_run_text(const dsi_run_history *h, const char *key)
{
    const char *text = json_string_value(json_object_get(h->start, key));
    return text != NULL ? text : "";
}

static double run_number(const dsi_run_history *h, const char *key)
{
    return json_number_value(json_object_get(h->start, key));
}

bool dsi_run_curve_tells(const dsi_run_history *h, dsi_run_curve curve)
{
    double least = NAN;
    double most = NAN;
    dsi_series_range(&h->curves[curve], &least, &most);
    return isfinite(most) && (curve != DSI_RUN_SCALE || least != 1.0 || most != 1.0);
}

const char *dsi_run_verdict(const dsi_run_history *h, bool live, const char **tone_out)
{
    const dsi_run_session *s = dsi_run_history_last(h);
    const char *verdict = s != NULL && s->verdict != NULL ? s->verdict : NULL;
    *tone_out = live ? "run" : "dim";
    if (verdict == NULL) {
        return live ? "running" : "no end recorded";
    }
    *tone_out = strcmp(verdict, "finished") == 0      ? "good"
                : strcmp(verdict, "interrupted") == 0 ? "warn"
                                                      : "bad";
    return verdict;
}

/* "2026-11-23 07:32:04 UTC". */
static const char *time_text(double seconds, char *text, size_t n)
{
    const time_t when = (time_t)seconds;
    struct tm tm;
    text[0] = '\0';
    if (seconds > 0.0 && gmtime_r(&when, &tm) != NULL) {
        (void)strftime(text, n, "%Y-%m-%d %H:%M:%S UTC", &tm);
    }
    return text;
}

/* ---- the head ------------------------------------------------------------------------------- */

static void put_head(dsi_buf *page, const dsi_run_history *h, bool live)
{
    const char *tone = "";
    const char *verdict = dsi_run_verdict(h, live, &tone);
    const dsi_run_session *s = dsi_run_history_last(h);
    const double steps = run_number(h, "steps");
    char began[64];
    char written[64];
    dsi_buf_puts(page, "<header><h1>");
    dsi_html_text(page, h->name);
    dsi_buf_printf(page, "</h1><span class=\"pill %s\">%s</span><p class=\"dim\">", tone, verdict);
    dsi_buf_printf(page, "step %llu", (unsigned long long)h->step);
    if (steps > 0.0) {
        dsi_buf_printf(page, " of %.0f", steps);
    }
    dsi_buf_puts(page, dsi_run_text(h, "model")[0] != '\0' ? " · " : "");
    dsi_html_text(page, dsi_run_text(h, "model"));
    if (s != NULL) {
        dsi_buf_printf(page, " · begun %s", time_text(h->sessions[0].began, began, sizeof began));
    }
    if (live || (s != NULL && s->ended > 0.0)) {
        dsi_buf_printf(page, " · %s %s", live ? "as of" : "ended",
                       time_text(live ? (double)time(NULL) : s->ended, written, sizeof written));
    }
    if (s != NULL && s->why != NULL) {
        dsi_buf_puts(page, " · ");
        dsi_html_text(page, s->why);
    }
    dsi_buf_puts(page, "</p></header>\n");
    if (s != NULL && s->error != NULL) {
        dsi_buf_puts(page, "<div class=\"card error\"><h3 class=\"bad\">The error</h3>");
        dsi_html_text(page, s->error);
        dsi_buf_puts(page, "</div>\n");
    }
}

static void put_loss_tiles(dsi_buf *page, const dsi_run_history *h)
{
    char value[DSI_CHART_TEXT];
    char best[DSI_CHART_TEXT];
    char note[LINE_BYTES];
    const dsi_series *loss = &h->curves[DSI_RUN_LOSS];
    if (loss->n == 0) {
        return;
    }
    const dsi_point first = loss->points[0];
    (void)snprintf(note, sizeof note, "from %s at step %llu",
                   dsi_figure(dsi_point_value(&first), best), (unsigned long long)first.first);
    dsi_html_tile(page, "Loss", dsi_figure(h->loss, value), note, isfinite(h->loss) ? "" : "bad");
    if (h->n_evals > 0) {
        (void)snprintf(note, sizeof note, "best %s at step %llu", dsi_figure(h->best_eval, best),
                       (unsigned long long)h->best_eval_step);
        dsi_html_tile(page, "Validation loss", dsi_figure(h->eval_loss, value), note,
                      isfinite(h->eval_loss) ? "" : "bad");
    }
    if (h->model_step > 0) {
        const bool is_best = h->model_step == h->best_eval_step;
        (void)snprintf(value, sizeof value, "step %llu", (unsigned long long)h->model_step);
        (void)snprintf(note, sizeof note, "%s, of %llu steps",
                       is_best ? "the best evaluation" : "the last one",
                       (unsigned long long)h->step);
        dsi_html_tile(page, "Weights of the model", value, note, "");
    }
}

static void put_speed_tiles(dsi_buf *page, const dsi_run_history *h)
{
    char value[DSI_CHART_TEXT];
    char note[LINE_BYTES];
    char text[DSI_CHART_TEXT];
    if (!(h->seconds > 0.0)) {
        return;
    }
    (void)snprintf(note, sizeof note, "%s in all", dsi_figure(h->tokens, text));
    dsi_html_tile(page, "Tokens a second", dsi_figure(round(h->tokens / h->seconds), value), note,
                  "");
    (void)snprintf(note, sizeof note, "%s a step",
                   dsi_clock_text(h->seconds / (double)h->n_steps, text));
    dsi_html_tile(page, "Time in steps", dsi_clock_text(h->seconds, value), note, "");
}

static void put_tiles(dsi_buf *page, const dsi_run_history *h)
{
    char value[DSI_CHART_TEXT];
    char note[LINE_BYTES];
    char text[DSI_CHART_TEXT];
    const double plan = run_number(h, "planned_bytes");
    dsi_buf_puts(page, "<section class=\"tiles\">\n");
    put_loss_tiles(page, h);
    put_speed_tiles(page, h);
    if (h->peak_bytes > 0.0) {
        (void)snprintf(note, sizeof note, "planned %s", dsi_bytes_text(plan, text));
        dsi_html_tile(page, "Peak memory", dsi_bytes_text(h->peak_bytes, value),
                      plan > 0.0 ? note : NULL, "");
    }
    (void)snprintf(value, sizeof value, "%llu", (unsigned long long)h->n_skipped);
    dsi_html_tile(page, "Skipped steps", value, "gradients not finite",
                  h->n_skipped > 0 ? "warn" : "");
    (void)snprintf(value, sizeof value, "%llu", (unsigned long long)h->n_saves);
    (void)snprintf(note, sizeof note, "steps stood still %s",
                   dsi_clock_text(h->save_seconds, text));
    dsi_html_tile(page, "Saves", value, h->n_saves > 0 ? note : NULL, "");
    dsi_buf_puts(page, "</section>\n");
}

/* ---- charts --------------------------------------------------------------------------------- */

/* Where a run went on. */
static void find_resumes(const dsi_run_history *h, dsi_series *resumes)
{
    for (size_t i = 0; i < h->n_sessions; ++i) {
        if (h->sessions[i].resumed || h->sessions[i].restarted) {
            dsi_series_add(resumes, h->sessions[i].from, 1.0);
        }
    }
}

static void put_chart(dsi_buf *page, const dsi_run_history *h, const dsi_run_curve_row *row,
                      const dsi_series *resumes)
{
    const bool loss = row->curve == DSI_RUN_LOSS;
    const bool memory = row->curve == DSI_RUN_MEMORY;
    const double plan = memory ? run_number(h, "planned_bytes") : 0.0;
    const double steps = run_number(h, "steps");
    const dsi_chart_line lines[] = {
        {.name = row->name, .series = &h->curves[row->curve], .smooth = row->smooth},
        {.name = "validation", .series = &h->curves[DSI_RUN_EVAL], .colour = 1, .dots = true}};
    const dsi_chart_marks marks[] = {
        {"resumed or restarted", "c3", resumes, .full = true},
        {"saved", "c2", &h->curves[DSI_RUN_SAVES], .full = false},
        {"skipped", "bad", &h->curves[DSI_RUN_SKIPPED], .full = false}};
    dsi_chart chart = {.title = row->title,
                       .unit = row->unit,
                       .lines = lines,
                       .n_lines = loss && h->n_evals > 0 ? 2 : 1,
                       .marks = marks,
                       .n_marks = loss ? 3 : 1,
                       .x_high = fmax((double)h->step, steps),
                       .log = row->log,
                       .from_zero = row->from_zero,
                       .wide = row->wide,
                       .level = plan,
                       .level_name = "planned"};
    if (memory) {
        chart.unit = dsi_bytes_unit(fmax(h->peak_bytes, plan), &chart.scale);
    }
    dsi_chart_put(page, &chart);
}

static void put_charts(dsi_buf *page, const dsi_run_history *h)
{
    static const dsi_series none;
    dsi_series resumes = none;
    find_resumes(h, &resumes);
    dsi_buf_puts(page, "<section class=\"charts\">\n");
    for (const dsi_run_curve_row *row = dsi_run_curve_rows; row->title != NULL; ++row) {
        if (dsi_run_curve_tells(h, row->curve)) {
            put_chart(page, h, row, &resumes);
        }
    }
    dsi_buf_puts(page, "</section>\n");
}

/* ---- tables --------------------------------------------------------------------------------- */

static void put_sessions(dsi_buf *page, const dsi_run_history *h)
{
    if (h->n_sessions == 0) {
        return;
    }
    dsi_buf_puts(page, "<h2>Sessions</h2>\n<div class=\"card scroll\"><table><tr><th>begun</th><th>"
                       "</th><th>ended</th><th></th></tr>\n");
    for (size_t i = 0; i < h->n_sessions; ++i) {
        const dsi_run_session *s = &h->sessions[i];
        char began[64];
        char ended[64];
        const bool last = i + 1 == h->n_sessions;
        dsi_buf_printf(page,
                       "<tr><td>%s</td><td>%s after step %llu</td><td>%s</td><td class=\"text\">",
                       time_text(s->began, began, sizeof began),
                       s->restarted ? "restarted"
                       : s->resumed ? "resumed"
                                    : "started",
                       (unsigned long long)s->from, time_text(s->ended, ended, sizeof ended));
        dsi_html_text(page, s->verdict != NULL ? s->verdict : last ? "" : "no end recorded");
        dsi_buf_puts(page, s->error != NULL || s->why != NULL ? ": " : "");
        dsi_html_text(page, s->error != NULL ? s->error : s->why);
        dsi_buf_puts(page, "</td></tr>\n");
    }
    dsi_buf_puts(page, "</table></div>\n");
}

/* Rows of [name, value] or [name, value, where it is from]. */
static void put_rows(dsi_buf *page, const json_t *rows)
{
    size_t i = 0;
    const json_t *row = NULL;
    dsi_buf_puts(page, "<table class=\"facts\">\n");
    json_array_foreach(rows, i, row)
    {
        dsi_buf_puts(page, "<tr>");
        for (size_t k = 0; k < json_array_size(row); ++k) {
            dsi_buf_puts(page, k == 2 ? "<td class=\"dim\">" : "<td>");
            dsi_html_text(page, json_string_value(json_array_get(row, k)));
            dsi_buf_puts(page, "</td>");
        }
        dsi_buf_puts(page, "</tr>\n");
    }
    dsi_buf_puts(page, "</table>\n");
}

/* What the start of the run said: [{"title": …, "rows": […], "closed": true}, …]. */
static void put_facts(dsi_buf *page, const dsi_run_history *h)
{
    size_t i = 0;
    const json_t *section = NULL;
    const char *command = dsi_run_text(h, "command");
    if (command[0] != '\0') {
        dsi_buf_puts(page, "<h2>Command line</h2>\n<div class=\"card\"><pre>");
        dsi_html_text(page, command);
        dsi_buf_puts(page, "</pre></div>\n");
    }
    json_array_foreach(json_object_get(h->start, "facts"), i, section)
    {
        const bool closed = json_is_true(json_object_get(section, "closed"));
        const char *title = json_string_value(json_object_get(section, "title"));
        dsi_buf_puts(page, closed ? "<details><summary>" : "<h2>");
        dsi_html_text(page, title);
        dsi_buf_puts(page, closed ? "</summary>\n<div class=\"card\">\n"
                                  : "</h2>\n<div class=\"card\">\n");
        put_rows(page, json_object_get(section, "rows"));
        dsi_buf_puts(page, closed ? "</div></details>\n" : "</div>\n");
    }
}

/* The page of a run that goes on loads itself anew while it is news. After `silence` seconds
 * without a new one nobody writes it: it says so and stays as it is. No <meta> refresh, which could
 * not end. */
static void put_reload(dsi_buf *page, double silence)
{
    dsi_buf_printf(page,
                   "<script>\n"
                   "(function () {\n"
                   "  var written = %.0f, silence = %.0f;\n"
                   "  if (Date.now() / 1000 - written <= silence) {\n"
                   "    setTimeout(function () { location.reload(); }, %d);\n"
                   "    return;\n"
                   "  }\n"
                   "  document.getElementById('silent').hidden = false;\n"
                   "  var pill = document.querySelector('.pill');\n"
                   "  pill.className = 'pill bad';\n"
                   "  pill.textContent = 'no news';\n"
                   "})();\n"
                   "</script>\n",
                   (double)time(NULL), silence, 1000 * DSI_RUN_PAGE_REFRESH);
}

static void put_silent(dsi_buf *page, double silence)
{
    char text[DSI_CHART_TEXT];
    dsi_buf_printf(page,
                   "<div class=\"card error\" id=\"silent\" hidden><h3 class=\"bad\">No news</h3>"
                   "Nothing was written here for more than %s: the run was killed, or it stands "
                   "still. This page no longer loads itself anew.</div>\n",
                   dsi_clock_text(silence, text));
}

ds_status dsi_run_page(ds_ctx *ctx, const dsi_run_history *h, double silence, char **text_out)
{
    const bool live = silence > 0.0;
    dsi_buf page = dsi_buf_make(PAGE_CEILING);
    dsi_html_begin(&page, h->name, DSI_RUN_PAGE_KIND);
    put_head(&page, h, live);
    if (live) {
        put_silent(&page, silence);
    }
    put_tiles(&page, h);
    put_charts(&page, h);
    put_sessions(&page, h);
    put_facts(&page, h);
    if (live) {
        put_reload(&page, silence);
    }
    dsi_html_end(&page, true);
    if (page.failed) {
        dsi_buf_free(&page);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the page of a run");
    }
    *text_out = page.data;
    return DS_OK;
}
