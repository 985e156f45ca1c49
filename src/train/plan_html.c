/* A report of a plan as one page: its text, memory over the steps as stacked areas, the simulated
 * timeline as lanes. No scripts, no links: it opens anywhere. */
#include "base/buf.h"
#include "cost/trace.h"
#include "train/plan_print.h"

#include <stdlib.h>

enum { TEXT_CEILING = 64 << 20, CURVE_POINTS = 600, WIDTH = 1100, HEIGHT = 320, LANE = 26 };

static const char *const colours[] = {"#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f",
                                      "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
                                      "#e0e0e0", "#8c8c8c", "#5c5c5c"};

static void put_escaped(dsi_buf *page, const char *text)
{
    for (; *text != '\0'; ++text) {
        switch (*text) {
        case '<':
            dsi_buf_puts(page, "&lt;");
            break;
        case '>':
            dsi_buf_puts(page, "&gt;");
            break;
        case '&':
            dsi_buf_puts(page, "&amp;");
            break;
        case '"':
            dsi_buf_puts(page, "&quot;");
            break;
        default:
            dsi_buf_putc(page, *text);
        }
    }
}

/* ---- memory -------------------------------------------------------------------------------- */

typedef struct curve {
    size_t points[CURVE_POINTS][DSI_MEMORY_KIND_COUNT];
    uint32_t n, run;
    double most; /* bytes at the top edge */
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
    return c->n > 1 ? (double)i * WIDTH / (c->n - 1) : 0.0;
}

static double y_of(const curve *c, double bytes)
{
    return HEIGHT * (1.0 - bytes / c->most);
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
    const size_t largest = largest_of(c, kind);
    if (largest == 0) {
        return;
    }
    dsi_buf_printf(page, "<polygon fill=\"%s\" points=\"", colours[kind]);
    for (uint32_t i = 0; i < c->n; ++i) {
        dsi_buf_printf(page, "%.1f,%.1f ", x_of(c, i), y_of(c, sum_below(c->points[i], kind + 1)));
    }
    for (uint32_t i = c->n; i-- > 0;) {
        dsi_buf_printf(page, "%.1f,%.1f ", x_of(c, i), y_of(c, sum_below(c->points[i], kind)));
    }
    dsi_buf_printf(page, "\"><title>%s: up to %.2f MiB</title></polygon>\n",
                   dsi_memory_kind_name((dsi_memory_kind)kind), (double)largest / 1048576.0);
}

static void put_line(dsi_buf *page, const curve *c, double bytes, const char *colour,
                     const char *what)
{
    dsi_buf_printf(page,
                   "<line x1=\"0\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>"
                   "<text x=\"4\" y=\"%.1f\">%s: %.2f GiB</text>\n",
                   WIDTH, y_of(c, bytes), y_of(c, bytes), colour, y_of(c, bytes) - 4.0, what,
                   bytes / 1073741824.0);
}

/* Where phases begin. */
static void put_phases(dsi_buf *page, const dsi_plan_report *r)
{
    const dsi_plan *plan = r->plan.train_plan;
    for (int phase = 0; phase < DS_PHASE_COUNT; ++phase) {
        const double x = (double)plan->phase_begin[phase] * WIDTH / (plan->n_steps + 1.0);
        if (plan->phase_begin[phase] == plan->phase_begin[phase + 1]) {
            continue;
        }
        dsi_buf_printf(page,
                       "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\" stroke=\"#444\" "
                       "stroke-dasharray=\"3 3\"/><text x=\"%.1f\" y=\"%d\">%s</text>\n",
                       x, x, HEIGHT, x + 3.0, HEIGHT + 14, dsi_phase_name((ds_phase)phase));
    }
}

static void put_legend(dsi_buf *page, const curve *c)
{
    dsi_buf_puts(page, "<p>");
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        if (largest_of(c, k) > 0) {
            dsi_buf_printf(page,
                           "<span style=\"border-left:1em solid %s;padding:0 1em 0 .4em\">%s"
                           "</span>",
                           colours[k], dsi_memory_kind_name((dsi_memory_kind)k));
        }
    }
    dsi_buf_puts(page, "</p>\n");
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
        const double beside =
            (double)dsi_report_need(r) - peak; /* the host's, where it is shared */
        const double limit = (double)r->request.memory - beside;
        c->most = 1.08 * (limit > peak && limit < 2.0 * peak ? limit : peak);
        dsi_buf_printf(page, "<h2>Memory of a rank over the %u steps of its plan</h2>\n",
                       r->ledger->n_steps);
        if (beside > 0.0) {
            dsi_buf_printf(page,
                           "<p>Beside it, in every step: %.2f GiB of the program, its plans and "
                           "what is offloaded to the host's memory; %.2f GiB in all.</p>\n",
                           beside / 1073741824.0, (peak + beside) / 1073741824.0);
        }
        dsi_buf_printf(page, "<svg viewBox=\"0 0 %d %d\" width=\"100%%\">\n", WIDTH, HEIGHT + 20);
        for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
            put_area(page, c, k);
        }
        put_line(page, c, peak, "#000", "peak");
        if (limit > 0.0 && limit < c->most) {
            put_line(page, c, limit, "#c00", "memory");
        }
        put_phases(page, r);
        dsi_buf_puts(page, "</svg>\n");
        put_legend(page, c);
    }
    free(c);
    return status;
}

/* ---- timeline -------------------------------------------------------------------------------- */

static int lane_of(const dsi_sim_event *event)
{
    return (int)event->stream;
}

/* Events of one phase; those too short to be seen are left out, so that a page stays small. */
static void put_events(dsi_buf *page, const dsi_timeline *t, ds_phase phase, double from,
                       double scale)
{
    double last[DSI_STREAM_COUNT];
    for (int i = 0; i < DSI_STREAM_COUNT; ++i) {
        last[i] = -1.0;
    }
    for (uint32_t i = t->phase_begin[phase]; i < t->phase_begin[phase + 1]; ++i) {
        const dsi_sim_event *e = &t->events[i];
        const dsi_sim_step *step = &t->spec.steps[e->step];
        const double x = (from + e->start) * scale;
        const double width = (e->end - e->start) * scale;
        const int lane = lane_of(e);
        if (x + width < last[lane] + 0.4) {
            continue;
        }
        last[lane] = x + width;
        dsi_buf_printf(
            page, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>", x,
            lane * LANE, width > 0.4 ? width : 0.4, LANE - 6, e->stall ? "#c00" : colours[lane]);
        put_escaped(page, e->stall ? "waits for " : "");
        put_escaped(page, step->op);
        dsi_buf_puts(page, " ");
        put_escaped(page, step->scope != NULL ? step->scope : "");
        dsi_buf_printf(page, " %.3f ms</title></rect>\n", 1e3 * (e->end - e->start));
    }
}

static void put_timeline(dsi_buf *page, const dsi_timeline *t)
{
    double total = 0.0;
    double from = 0.0;
    for (int phase = 0; phase < DS_PHASE_COUNT; ++phase) {
        total += t->phases[phase].seconds;
    }
    if (total <= 0.0) {
        return;
    }
    dsi_buf_printf(page,
                   "<h2>Simulated timeline: one micro-batch, norm and update, %.3f s</h2>\n"
                   "<svg viewBox=\"-130 0 %d %d\" width=\"100%%\">\n",
                   total, WIDTH + 130, LANE * DSI_STREAM_COUNT + 16);
    for (int lane = 0; lane < DSI_STREAM_COUNT; ++lane) {
        dsi_buf_printf(page, "<text x=\"-128\" y=\"%d\">%s</text>\n", lane * LANE + 14,
                       dsi_sim_stream_name((dsi_sim_stream)lane));
    }
    for (int phase = 0; phase < DS_PHASE_COUNT; ++phase) {
        put_events(page, t, (ds_phase)phase, from, WIDTH / total);
        from += t->phases[phase].seconds;
    }
    dsi_buf_puts(page, "</svg>\n<p>red: computation waits</p>\n");
}

ds_status dsi_report_html(const dsi_printed *printed, char **text_out)
{
    const dsi_plan_report *r = printed->report;
    char *text = NULL;
    dsi_buf page = dsi_buf_make(TEXT_CEILING);
    DS_TRY(dsi_report_text(printed, &text));
    dsi_buf_puts(&page, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                        "<title>ds_plan</title>\n<style>body{font:14px sans-serif;margin:2em;"
                        "max-width:1240px}svg{background:#fafafa}text{font:11px sans-serif}"
                        "</style></head><body>\n<h1>");
    put_escaped(&page, ds_model_get_info(r->request.model)->architecture);
    dsi_buf_printf(&page, ", ZeRO stage %u, %u rank%s</h1>\n", r->spec.zero.stage,
                   r->request.n_ranks, r->request.n_ranks == 1 ? "" : "s");
    const ds_status status = put_memory(&page, r);
    if (r->timeline != NULL) {
        put_timeline(&page, r->timeline);
    }
    dsi_buf_puts(&page, "<pre>\n");
    put_escaped(&page, text);
    dsi_buf_puts(&page, "</pre>\n</body></html>\n");
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
