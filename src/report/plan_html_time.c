/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated timeline of a plan's page: lanes over time. See plan_html.h. */
#include "monitor/chart.h"
#include "monitor/html.h"
#include "report/plan_html.h"
#include "report/plan_report.h"

#include <stdio.h>

enum { LANE = 100, BAR = 76, LANE_PIXELS = 38, LEFT_TICKS = 8 };

typedef struct lanes {
    const dsi_timeline *t;
    dsi_chart_axis x;
    double unit;              /* seconds */
    int at[DSI_STREAM_COUNT]; /* place of a stream, -1: it does nothing */
    int n;
} lanes;

static double total_of(const dsi_timeline *t)
{
    double total = 0.0;
    for (ds_phase phase = 0; phase < t->spec.phases->n; ++phase) {
        total += t->phases[phase].seconds;
    }
    return total;
}

static void find_lanes(lanes *l)
{
    bool used[DSI_STREAM_COUNT] = {false};
    for (uint32_t i = 0; i < l->t->n_events; ++i) {
        used[l->t->events[i].stream] = true;
    }
    for (int s = 0; s < DSI_STREAM_COUNT; ++s) {
        l->at[s] = used[s] ? l->n++ : -1;
    }
}

static void put_event(dsi_buf *page, const lanes *l, const dsi_sim_event *e, double x, double width)
{
    const dsi_sim_step *step = &l->t->spec.steps[e->step];
    char colour[16];
    (void)snprintf(colour, sizeof colour, "c%d", (int)e->stream);
    dsi_buf_printf(page,
                   "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
                   "style=\"fill:var(--%s)\"><title>",
                   x, l->at[e->stream] * LANE + (LANE - BAR) / 2, width, BAR,
                   e->stall ? "bad" : colour);
    dsi_html_text(page, e->stall ? "waits for " : "");
    dsi_html_text(page, step->op);
    dsi_buf_puts(page, " ");
    dsi_html_text(page, step->scope);
    dsi_buf_printf(page, " %.3f ms</title></rect>\n", 1e3 * (e->end - e->start));
}

/* Events of one phase; those too short to be seen are left out, so that a page stays small. */
static void put_events(dsi_buf *page, const lanes *l, ds_phase phase, double from)
{
    static const double least = 0.4;
    double last[DSI_STREAM_COUNT];
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        last[i] = -1.0;
    }
    for (uint32_t i = l->t->phase_begin[phase]; i < l->t->phase_begin[phase + 1]; ++i) {
        const dsi_sim_event *e = &l->t->events[i];
        const double x = dsi_chart_x(&l->x, (from + e->start) / l->unit);
        const double width = dsi_chart_x(&l->x, (from + e->end) / l->unit) - x;
        if (x + width >= last[e->stream] + least) {
            last[e->stream] = x + width;
            put_event(page, l, e, x, width > least ? width : least);
        }
    }
}

static void put_lane_names(dsi_buf *page, const lanes *l)
{
    for (int s = 0; s < DSI_STREAM_COUNT; ++s) {
        if (l->at[s] >= 0) {
            dsi_buf_printf(page, "<span class=\"y\" style=\"bottom:%.2f%%\">%s</span>",
                           100.0 * (l->n - l->at[s] - 0.5) / l->n,
                           dsi_sim_stream_name((dsi_sim_stream)s));
        }
    }
}

static void put_phases(dsi_buf *page, const lanes *l, bool names)
{
    double from = 0.0;
    for (ds_phase phase = 0; phase < l->t->spec.phases->n; ++phase) {
        const double to = from + l->t->phases[phase].seconds / l->unit;
        if (to > from && names) {
            dsi_plan_html_phase_name(page, &l->x, from, to, l->t->spec.phases->items[phase].name);
        } else if (to > from) {
            dsi_plan_html_phase_line(page, &l->x, from, l->n * LANE);
        }
        from = to;
    }
}

static void put_lanes(dsi_buf *page, const lanes *l)
{
    double from = 0.0;
    dsi_chart_open_sized(page, &l->x, l->unit < 1.0 ? "ms" : "s", l->n * LANE_PIXELS, l->n * LANE);
    put_phases(page, l, false);
    for (ds_phase phase = 0; phase < l->t->spec.phases->n; ++phase) {
        put_events(page, l, phase, from);
        from += l->t->phases[phase].seconds;
    }
    dsi_buf_puts(page, "</svg>\n");
    put_lane_names(page, l);
    put_phases(page, l, true);
    dsi_chart_close(page);
}

void dsi_plan_html_timeline(dsi_buf *page, const dsi_timeline *t)
{
    const double total = total_of(t);
    lanes l = {.t = t, .unit = total < 1.0 ? 1e-3 : 1.0};
    if (!(total > 0.0)) {
        return;
    }
    find_lanes(&l);
    l.x = dsi_chart_axis_make(0.0, total / l.unit, false, true, LEFT_TICKS);
    dsi_buf_printf(page,
                   "<section class=\"card wide\"><div class=\"head\"><h3>Simulated timeline "
                   "<small>one micro-batch, norm and update: %.4g %s on %s</small></h3>"
                   "<div class=\"key\"><span><i class=\"box\" style=\"background:var(--bad)\"></i>"
                   "computation waits</span></div></div>\n",
                   total / l.unit, l.unit < 1.0 ? "ms" : "s", t->device.name);
    put_lanes(page, &l);
    dsi_buf_puts(page, "</section>\n");
}
