/* SPDX-License-Identifier: Apache-2.0 */
/* Curves as SVG. See chart.h. */
#include "monitor/chart.h"

#include "monitor/html.h"

#include <math.h>
#include <stdlib.h>

enum { X_TICKS = 8, Y_TICKS = 6, FEW = 40 };

double dsi_chart_x(const dsi_chart_axis *x, double value)
{
    return DSI_CHART_WIDTH * dsi_chart_axis_at(x, value);
}

double dsi_chart_y(const dsi_chart_axis *y, double value)
{
    return DSI_CHART_HEIGHT * (1.0 - dsi_chart_axis_at(y, value));
}

/* Of a narrow screen every second figure is hidden, the last stays. */
static void put_x_figures(dsi_buf *page, const dsi_chart_axis *x, const char *unit)
{
    for (size_t i = 0; i < x->n; ++i) {
        char text[DSI_CHART_TEXT];
        const double at = 100.0 * dsi_chart_axis_at(x, x->ticks[i]);
        const bool last = i + 1 == x->n;
        const bool odd = (x->n - 1 - i) % 2 == 1;
        const char *side = at > 94.0 ? " last" : "";
        dsi_buf_printf(page, "<span class=\"x%s%s\" style=\"left:%.2f%%\">", side,
                       odd ? " odd" : "", at);
        dsi_html_text(page, dsi_chart_axis_text(x, x->ticks[i], text));
        dsi_buf_printf(page, "%s%s</span>", last && unit[0] != '\0' ? " " : "", last ? unit : "");
    }
}

void dsi_chart_open(dsi_buf *page, const dsi_chart_axis *x, const dsi_chart_axis *y,
                    const char *x_unit)
{
    dsi_buf_printf(page, "<div class=\"plot\" data-x0=\"%.9g\" data-x1=\"%.9g\">", x->low, x->high);
    put_x_figures(page, x, x_unit);
    for (size_t i = 0; i < y->n; ++i) {
        char text[DSI_CHART_TEXT];
        dsi_buf_printf(page, "<span class=\"y\" style=\"bottom:%.2f%%\">",
                       100.0 * dsi_chart_axis_at(y, y->ticks[i]));
        dsi_html_text(page, dsi_chart_axis_text(y, y->ticks[i], text));
        dsi_buf_puts(page, "</span>");
    }
    dsi_buf_printf(page, "\n<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">\n",
                   DSI_CHART_WIDTH, DSI_CHART_HEIGHT);
    dsi_buf_puts(page, "<path class=\"grid\" d=\"");
    for (size_t i = 0; i < y->n; ++i) {
        dsi_buf_printf(page, "M0 %.1fH%d", dsi_chart_y(y, y->ticks[i]), DSI_CHART_WIDTH);
    }
    dsi_buf_printf(page, "\"/>\n<path class=\"base\" d=\"M0 %dH%d", DSI_CHART_HEIGHT,
                   DSI_CHART_WIDTH);
    dsi_buf_puts(page, "\"/>\n");
}

void dsi_chart_open_sized(dsi_buf *page, const dsi_chart_axis *x, const char *x_unit, int pixels,
                          int height)
{
    dsi_buf_printf(page, "<div class=\"plot lanes\" style=\"height:%dpx\">", pixels);
    put_x_figures(page, x, x_unit);
    dsi_buf_printf(page,
                   "\n<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\">\n"
                   "<path class=\"base\" d=\"M0 %dH%d\"/>\n",
                   DSI_CHART_WIDTH, height, height, DSI_CHART_WIDTH);
}

void dsi_chart_close(dsi_buf *page)
{
    dsi_buf_puts(page, "</div>\n");
}

/* ---- what is drawn ---- */

static double scale_of(const dsi_chart *c)
{
    return c->scale > 0.0 ? c->scale : 1.0;
}

static void put_path(dsi_buf *page, const dsi_chart *c, const dsi_chart_axis *x,
                     const dsi_chart_axis *y, const dsi_series *s, const double *values)
{
    bool pen = false;
    for (size_t i = 0; i < s->n; ++i) {
        const bool there = isfinite(values[i]);
        if (there) {
            dsi_buf_printf(page, "%s%.1f %.1f", pen ? "L" : "M",
                           dsi_chart_x(x, dsi_point_step(&s->points[i])),
                           dsi_chart_y(y, values[i] / scale_of(c)));
        }
        if (there && !pen && (i + 1 == s->n || !isfinite(values[i + 1]))) {
            dsi_buf_puts(page, "h0"); /* alone: a dot */
        }
        pen = there;
    }
}

/* From the least to the largest value of each point, where points hold several. */
static void put_band(dsi_buf *page, const dsi_chart *c, const dsi_chart_axis *x,
                     const dsi_chart_axis *y, const dsi_chart_line *line)
{
    const dsi_series *s = line->series;
    dsi_buf_printf(page, "<path style=\"stroke:var(--c%d);opacity:.25\" d=\"", line->colour);
    for (size_t i = 0; i < s->n; ++i) {
        if (s->points[i].n_finite > 0) {
            dsi_buf_printf(page, "M%.1f %.1fV%.1f", dsi_chart_x(x, dsi_point_step(&s->points[i])),
                           dsi_chart_y(y, s->points[i].least / scale_of(c)),
                           dsi_chart_y(y, s->points[i].most / scale_of(c)));
        }
    }
    dsi_buf_puts(page, "\"/>\n");
}

static void put_dots(dsi_buf *page, const dsi_chart *c, const dsi_chart_axis *x,
                     const dsi_chart_axis *y, const dsi_chart_line *line, const double *values)
{
    const dsi_series *s = line->series;
    dsi_buf_printf(page,
                   "<path style=\"stroke:var(--c%d);stroke-width:%d;stroke-linecap:round\" d=\"",
                   line->colour, s->n > FEW ? 4 : 7);
    for (size_t i = 0; i < s->n; ++i) {
        if (isfinite(values[i])) {
            dsi_buf_printf(page, "M%.1f %.1fh0", dsi_chart_x(x, dsi_point_step(&s->points[i])),
                           dsi_chart_y(y, values[i] / scale_of(c)));
        }
    }
    dsi_buf_puts(page, "\"/>\n");
}

static void put_line(dsi_buf *page, const dsi_chart *c, const dsi_chart_axis *x,
                     const dsi_chart_axis *y, const dsi_chart_line *line)
{
    double *values = malloc((line->series->n + 1) * sizeof *values);
    if (values == NULL) {
        page->failed = true;
        return;
    }
    const size_t span = dsi_series_smooth(line->series, values);
    const bool faint = line->smooth && span > 1;
    if (line->series->width > 1 && !line->only_smooth) {
        put_band(page, c, x, y, line);
    }
    if (line->only_smooth || faint) {
        dsi_buf_printf(page, "<path style=\"stroke:var(--c%d);stroke-width:2\" d=\"", line->colour);
        put_path(page, c, x, y, line->series, values);
        dsi_buf_puts(page, "\"/>\n");
    }
    for (size_t i = 0; i < line->series->n; ++i) {
        values[i] = dsi_point_value(&line->series->points[i]);
    }
    if (!line->only_smooth && (!faint || line->series->width == 1)) {
        dsi_buf_printf(page, "<path style=\"stroke:var(--c%d);stroke-width:%s%s\" d=\"",
                       line->colour, faint ? "1" : "2", faint ? ";opacity:var(--faint)" : "");
        put_path(page, c, x, y, line->series, values);
        dsi_buf_puts(page, "\"/>\n");
    }
    if (line->dots) {
        put_dots(page, c, x, y, line, values);
    }
    free(values);
}

static void put_marks(dsi_buf *page, const dsi_chart_axis *x, const dsi_chart_marks *marks)
{
    dsi_buf_printf(page, "<path style=\"stroke:var(--%s);%s\" d=\"", marks->colour,
                   marks->full ? "stroke-dasharray:3 3" : "stroke-width:2");
    for (size_t i = 0; i < marks->series->n; ++i) {
        dsi_buf_printf(page, "M%.1f %dV%d",
                       dsi_chart_x(x, dsi_point_step(&marks->series->points[i])), DSI_CHART_HEIGHT,
                       marks->full ? 0 : DSI_CHART_HEIGHT * 19 / 20);
    }
    dsi_buf_puts(page, "\"/>\n");
}

/* ---- around it ---- */

static bool needs_key(const dsi_chart *c)
{
    const dsi_chart_line *line = &c->lines[0];
    bool marked = c->level > 0.0;
    for (size_t i = 0; i < c->n_marks; ++i) {
        marked = marked || c->marks[i].series->n > 0;
    }
    return marked || c->n_lines > 1 || line->smooth || line->only_smooth;
}

static void put_key(dsi_buf *page, const dsi_chart *c)
{
    if (!needs_key(c)) {
        return;
    }
    dsi_buf_puts(page, "<div class=\"key\">");
    for (size_t i = 0; i < c->n_lines; ++i) {
        const dsi_chart_line *line = &c->lines[i];
        const size_t span = line->series->n / FEW + 1; /* as dsi_series_smooth */
        const uint64_t steps = span * line->series->width;
        dsi_buf_printf(page, "<span><i class=\"%s\" style=\"color:var(--c%d)\"></i>",
                       line->dots ? "dot" : "", line->colour);
        dsi_html_text(page, line->name);
        if ((line->smooth || line->only_smooth) && span > 1) {
            dsi_buf_printf(page, ", mean of about %llu steps", (unsigned long long)steps);
        }
        dsi_buf_puts(page, "</span>");
        if (line->smooth && span > 1) {
            dsi_buf_printf(page,
                           "<span><i class=\"faint\" style=\"color:var(--c%d)\"></i>%s</span>",
                           line->colour, line->series->width > 1 ? "least to most" : "each step");
        }
    }
    for (size_t i = 0; i < c->n_marks; ++i) {
        if (c->marks[i].series->n > 0) {
            dsi_buf_printf(page, "<span><i class=\"bar%s\" style=\"border-color:var(--%s)\"></i>",
                           c->marks[i].full ? " dashed" : "", c->marks[i].colour);
            dsi_html_text(page, c->marks[i].name);
            dsi_buf_puts(page, "</span>");
        }
    }
    if (c->level > 0.0) {
        dsi_buf_puts(page, "<span><i class=\"dash\" style=\"color:var(--bad)\"></i>");
        dsi_html_text(page, c->level_name);
        dsi_buf_puts(page, "</span>");
    }
    dsi_buf_puts(page, "</div>");
}

/* The figures, for the script of the page and for other programs. */
static void put_figures(dsi_buf *page, const dsi_chart *c)
{
    dsi_buf_puts(page, "<script type=\"application/json\">[");
    for (size_t i = 0; i < c->n_lines; ++i) {
        const dsi_series *s = c->lines[i].series;
        dsi_buf_printf(page, "%s{\"n\":\"", i > 0 ? "," : "");
        dsi_html_json(page, c->lines[i].name);
        dsi_buf_puts(page, "\",\"x\":[");
        for (size_t k = 0; k < s->n; ++k) {
            dsi_buf_printf(page, "%s%.10g", k > 0 ? "," : "", dsi_point_step(&s->points[k]));
        }
        dsi_buf_puts(page, "],\"y\":[");
        for (size_t k = 0; k < s->n; ++k) {
            const double value = dsi_point_value(&s->points[k]) / scale_of(c);
            dsi_buf_puts(page, k > 0 ? "," : "");
            if (isfinite(value)) {
                dsi_buf_printf(page, "%.9g", value);
            } else {
                dsi_buf_puts(page, "null");
            }
        }
        dsi_buf_puts(page, "]}");
    }
    dsi_buf_puts(page, "]</script>\n");
}

/* Around every value: none is cut off. */
static dsi_chart_axis y_axis(const dsi_chart *c)
{
    double low = c->from_zero ? 0.0 : NAN;
    double high = c->level > 0.0 ? c->level / scale_of(c) : NAN;
    for (size_t i = 0; i < c->n_lines; ++i) {
        double least = NAN;
        double most = NAN;
        dsi_series_range(c->lines[i].series, &least, &most);
        low = fmin(low, least / scale_of(c));
        high = fmax(high, most / scale_of(c));
    }
    return dsi_chart_axis_make(low, high, c->log, false, Y_TICKS);
}

void dsi_chart_put(dsi_buf *page, const dsi_chart *c)
{
    const dsi_chart_axis x = dsi_chart_axis_make(0.0, c->x_high, false, true, X_TICKS);
    const dsi_chart_axis y = y_axis(c);
    dsi_buf_printf(page, "<section class=\"card%s\"><div class=\"head\"><h3>",
                   c->wide ? " wide" : "");
    dsi_html_text(page, c->title);
    if (c->unit[0] != '\0') {
        dsi_buf_printf(page, " <small>%s</small>", c->unit);
    }
    dsi_buf_puts(page, "</h3>");
    put_key(page, c);
    dsi_buf_puts(page, "</div>\n");
    dsi_chart_open(page, &x, &y, "steps");
    for (size_t i = 0; i < c->n_marks; ++i) {
        put_marks(page, &x, &c->marks[i]);
    }
    for (size_t i = 0; i < c->n_lines; ++i) {
        put_line(page, c, &x, &y, &c->lines[i]);
    }
    if (c->level > 0.0) {
        dsi_buf_printf(page,
                       "<path style=\"stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4\" "
                       "d=\"M0 %.1fH%d\"/>\n",
                       dsi_chart_y(&y, c->level / scale_of(c)), DSI_CHART_WIDTH);
    }
    dsi_buf_puts(page, "</svg>\n");
    put_figures(page, c);
    dsi_chart_close(page);
    dsi_buf_puts(page, "</section>\n");
}
