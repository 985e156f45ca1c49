/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline as text and as JSON. See simulate.h. */
#include "cost/simulate.h"

#include "place/mesh.h"

#include <string.h>

enum { MOST_PRINTED = 16 };

static const char *phase_name(const dsi_timeline *t, ds_phase phase)
{
    return t->spec.phases->items[phase].name;
}

/* "12.34 ms", right-aligned in 11 places. */
static void put_seconds(dsi_buf *text, double s)
{
    const char *unit = s >= 1.0 ? "s " : s >= 1e-3 ? "ms" : "us";
    const double scale = s >= 1.0 ? 1.0 : s >= 1e-3 ? 1e3 : 1e6;
    if (s == 0.0) {
        dsi_buf_printf(text, " %10s", "-");
    } else {
        dsi_buf_printf(text, " %7.2f %s", s * scale, unit);
    }
}

static void put_sum(dsi_buf *text, const char *name, double times, const dsi_sim_sum *sum)
{
    dsi_buf_printf(text, "%-9s %5.4g", name, times);
    put_seconds(text, sum->seconds);
    put_seconds(text, sum->compute);
    put_seconds(text, sum->comm);
    put_seconds(text, sum->exposed_comm);
    put_seconds(text, sum->moves);
    put_seconds(text, sum->exposed_moves);
    put_seconds(text, sum->bubble);
    dsi_buf_putc(text, '\n');
}

static void print_rows(const dsi_timeline *t, dsi_buf *text)
{
    dsi_buf_printf(text, "%-20s %-16s %-9s %7s %10s %10s %6s %10s %9s\n", "what", "stream", "phase",
                   "calls", "time", "exposed", "share", "TFLOP/s", "GB/s");
    for (uint32_t i = 0; i < t->n_rows && i < MOST_PRINTED; ++i) {
        const dsi_sim_row *row = &t->rows[i];
        const bool compute = row->stream == DSI_STREAM_COMPUTE;
        const double counts = compute ? row->seconds : row->exposed;
        char axes[DSI_AXES_LABEL];
        dsi_buf_printf(text, "%-20s %-16s %-9s %7llu", row->name,
                       row->stream == DSI_STREAM_COMM ? dsi_axes_label(row->axes, axes)
                                                      : dsi_sim_stream_name(row->stream),
                       phase_name(t, row->phase), (unsigned long long)row->calls);
        put_seconds(text, row->seconds);
        put_seconds(text, row->exposed);
        dsi_buf_printf(text, " %5.1f%%",
                       t->step.seconds > 0.0 ? 100.0 * counts / t->step.seconds : 0.0);
        if (row->seconds > 0.0 && compute) {
            dsi_buf_printf(text, " %10.2f", 1e-12 * row->flops / row->seconds);
        } else {
            dsi_buf_printf(text, " %10s", "");
        }
        dsi_buf_printf(text, " %9.1f\n",
                       row->seconds > 0.0 ? 1e-9 * row->bytes / row->seconds : 0.0);
    }
}

/* What the step waits for on each group of axes. */
static void print_axes(const dsi_timeline *t, dsi_buf *text)
{
    bool any = false;
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        const dsi_sim_row *row = &t->rows[i];
        double exposed = 0.0;
        bool first = row->stream == DSI_STREAM_COMM;
        for (uint32_t k = 0; k < t->n_rows && first; ++k) {
            const bool same = t->rows[k].stream == DSI_STREAM_COMM && t->rows[k].axes == row->axes;
            first = !same || k >= i;
            exposed += same ? t->rows[k].exposed : 0.0;
        }
        if (!first || exposed <= 0.0) {
            continue;
        }
        char axes[DSI_AXES_LABEL];
        dsi_buf_printf(text, "%s %s %.4g ms", any ? "," : "exposed communication by axes:",
                       dsi_axes_label(row->axes, axes), 1e3 * exposed);
        any = true;
    }
    if (any) {
        dsi_buf_putc(text, '\n');
    }
}

/* What a step may leave out, only where it has something. */
static bool is_shown(const dsi_timeline *t, ds_phase phase)
{
    return (t->spec.phases->items[phase].flags & DS_PHASE_SKIPPABLE) == 0 ||
           t->phases[phase].seconds > 0.0;
}

void dsi_timeline_print(const dsi_timeline *t, dsi_buf *text)
{
    dsi_buf_printf(text, "device %s\n%-9s %5s %10s %10s %10s %10s %10s %10s %10s\n", t->device.name,
                   "phase", "times", "time", "compute", "comm", "(exposed)", "moves", "(exposed)",
                   "bubble");
    for (ds_phase p = 0; p < t->spec.phases->n; ++p) {
        if (!is_shown(t, p)) {
            continue;
        }
        put_sum(text, phase_name(t, p), dsi_timeline_repeats(t, p), &t->phases[p]);
    }
    put_sum(text, "step", 1, &t->step);
    dsi_buf_printf(text, "MFU %.1f %%, HFU %.1f %% of %.4g TFLOP/s", 100.0 * t->mfu, 100.0 * t->hfu,
                   1e-12 * dsi_device_peak(&t->device, t->spec.peak_dtype));
    if (t->tokens_per_second > 0.0) {
        dsi_buf_printf(text, "; %.0f tokens/s a rank", t->tokens_per_second);
    }
    dsi_buf_putc(text, '\n');
    print_axes(t, text);
    dsi_buf_putc(text, '\n');
    print_rows(t, text);
}

static void json_sum(dsi_buf *text, const dsi_sim_sum *sum)
{
    dsi_buf_printf(text,
                   "\"seconds\": %.9g, \"compute\": %.9g, \"communication\": %.9g, "
                   "\"exposed_communication\": %.9g, \"moves\": %.9g, \"exposed_moves\": %.9g, "
                   "\"bubble\": %.9g, \"flops\": %.9g, \"communication_bytes\": %.9g, "
                   "\"move_bytes\": %.9g",
                   sum->seconds, sum->compute, sum->comm, sum->exposed_comm, sum->moves,
                   sum->exposed_moves, sum->bubble, sum->flops, sum->comm_bytes, sum->move_bytes);
}

static void json_row(dsi_buf *text, const dsi_timeline *t, const dsi_sim_row *row)
{
    dsi_buf_printf(text, "{\"name\": \"%s\", \"stream\": \"%s\", ", row->name,
                   dsi_sim_stream_name(row->stream));
    if (row->stream == DSI_STREAM_COMM) {
        char axes[DSI_AXES_LABEL];
        dsi_buf_printf(text, "\"axis\": \"%s\", ", dsi_axes_label(row->axes, axes));
    }
    dsi_buf_printf(text,
                   "\"phase\": \"%s\", \"calls\": %llu, \"seconds\": %.9g, \"exposed\": %.9g, "
                   "\"flops\": %.9g, \"bytes\": %.9g}",
                   phase_name(t, row->phase), (unsigned long long)row->calls, row->seconds,
                   row->exposed, row->flops, row->bytes);
}

void dsi_timeline_json(const dsi_timeline *t, dsi_buf *text)
{
    dsi_buf_puts(text, "{\"device\": \"");
    dsi_buf_json(text, t->device.name, strlen(t->device.name));
    dsi_buf_puts(text, "\", \"step\": {");
    json_sum(text, &t->step);
    dsi_buf_puts(text, "}, \"phases\": [");
    for (ds_phase p = 0; p < t->spec.phases->n; ++p) {
        if (!is_shown(t, p)) {
            continue;
        }
        dsi_buf_printf(text, "%s\n  {\"name\": \"%s\", \"repeats\": %.9g, ", p > 0 ? "," : "",
                       phase_name(t, p), dsi_timeline_repeats(t, p));
        json_sum(text, &t->phases[p]);
        dsi_buf_putc(text, '}');
    }
    dsi_buf_printf(text, "],\n \"mfu\": %.9g, \"hfu\": %.9g, \"tokens_per_second\": %.9g,\n",
                   t->mfu, t->hfu, t->tokens_per_second);
    dsi_buf_puts(text, " \"rows\": [");
    for (uint32_t i = 0; i < t->n_rows; ++i) {
        dsi_buf_puts(text, i > 0 ? ",\n  " : "\n  ");
        json_row(text, t, &t->rows[i]);
    }
    dsi_buf_puts(text, "]}");
}
