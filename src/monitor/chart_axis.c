/* SPDX-License-Identifier: Apache-2.0 */
/* Round figures for axes. See chart_axis.h. */
#include "monitor/chart_axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 1, 2 or 5 times a power of ten, at least `step`. */
static double round_step(double step)
{
    const double power = pow(10.0, floor(log10(step)));
    const double part = step / power;
    return power * (part <= 1.0001 ? 1.0 : part <= 2.0001 ? 2.0 : part <= 5.0001 ? 5.0 : 10.0);
}

static void make_plain(dsi_chart_axis *a, bool fit, size_t most)
{
    const double step = round_step((a->high - a->low) / (double)(most - 1));
    if (!fit) {
        a->low = floor(a->low / step + 1e-9) * step;
        a->high = ceil(a->high / step - 1e-9) * step;
    }
    for (double i = ceil(a->low / step - 1e-9);
         i * step <= a->high + 1e-9 * step && a->n < DSI_CHART_TICKS; ++i) {
        a->ticks[a->n++] = i == 0.0 ? 0.0 : i * step;
    }
    const double largest = fmax(fabs(a->low), fabs(a->high));
    a->scientific = largest < 1e-3 || largest >= 1e7;
    a->digits = step < 1.0 ? (int)ceil(-log10(step) - 1e-9) : 0;
}

/* Powers of ten; of two where few of those lie between. */
static void make_log(dsi_chart_axis *a, size_t most)
{
    const double base = a->high / a->low >= 100.0 ? 10.0 : 2.0;
    const double from = floor(log(a->low) / log(base) + 1e-9);
    const double to = fmax(ceil(log(a->high) / log(base) - 1e-9), from + 1.0);
    const double every = ceil((to - from + 1.0) / (double)most);
    a->low = pow(base, from);
    a->high = pow(base, to);
    for (double i = from; i <= to && a->n < DSI_CHART_TICKS; i += every) {
        a->ticks[a->n++] = pow(base, i);
    }
    a->scientific = a->low < 1e-3 || a->high >= 1e7;
    a->digits = a->low < 1.0 ? (int)ceil(-log10(a->low) - 1e-9) : 0;
}

dsi_chart_axis dsi_chart_axis_make(double low, double high, bool log, bool fit, size_t most)
{
    if (!isfinite(low) || !isfinite(high)) {
        low = 0.0;
        high = 1.0;
    }
    if (!(high - low > 1e-12 * fmax(fabs(low), fabs(high)))) { /* one value: some room about it */
        const double room = low == 0.0 ? 1.0 : 0.1 * fabs(low);
        high = low + room;
        low -= low > 0.0 || low < 0.0 ? room : 0.0;
    }
    dsi_chart_axis a = {.low = low, .high = high, .log = log && low > 0.0};
    if (a.log) {
        make_log(&a, most);
    } else {
        make_plain(&a, fit, most);
    }
    return a;
}

double dsi_chart_axis_at(const dsi_chart_axis *a, double value)
{
    return a->log ? log(fmax(value, a->low) / a->low) / log(a->high / a->low)
                  : (value - a->low) / (a->high - a->low);
}

/* Thousands apart, by a narrow space that does not break. */
static void group(char *text, size_t room)
{
    static const char space[] = "\u202f";
    const size_t sign = text[0] == '-' ? 1 : 0;
    const size_t digits = strcspn(text + sign, ".");
    for (size_t n = 3; digits > 4 && n < digits; n += 3) {
        char *at = text + sign + digits - n;
        if (strlen(text) + sizeof space > room) {
            return;
        }
        memmove(at + sizeof space - 1, at, strlen(at) + 1);
        memcpy(at, space, sizeof space - 1);
    }
}

/* "2e-05" as "2e-5". */
static void shorten(char *text)
{
    char *e = strchr(text, 'e');
    if (e != NULL) {
        char *from = e + (e[1] == '-' ? 2 : 1);
        size_t skip = strspn(from, "+0");
        skip -= from[skip] == '\0' && skip > 0 ? 1 : 0;
        memmove(from, from + skip, strlen(from + skip) + 1);
    }
}

const char *dsi_chart_axis_text(const dsi_chart_axis *a, double value, char text[DSI_CHART_TEXT])
{
    if (a->scientific && value != 0.0) {
        (void)snprintf(text, DSI_CHART_TEXT, "%.3g", value);
        shorten(text);
        return text;
    }
    int digits = a->digits;
    if (a->log) {
        digits = value < 1.0 ? (int)ceil(-log10(value) - 1e-9) : 0;
    }
    (void)snprintf(text, DSI_CHART_TEXT, "%.*f", digits, value);
    group(text, DSI_CHART_TEXT);
    return text;
}

const char *dsi_figure(double value, char text[DSI_CHART_TEXT])
{
    const double size = fabs(value);
    if (!isfinite(value)) {
        (void)snprintf(text, DSI_CHART_TEXT, "%s", isnan(value) ? "none" : "infinite");
    } else if (size != 0.0 && (size < 1e-3 || size >= 1e12)) {
        (void)snprintf(text, DSI_CHART_TEXT, "%.4g", value);
        shorten(text);
    } else {
        const int whole = size >= 1.0 ? (int)floor(log10(size)) + 1 : 1;
        (void)snprintf(text, DSI_CHART_TEXT, "%.*f",
                       whole < 5 && value != floor(value) ? 5 - whole : 0, value);
        group(text, DSI_CHART_TEXT);
    }
    return text;
}

const char *dsi_bytes_unit(double bytes, double *size_out)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    *size_out = 1.0;
    while (bytes / *size_out >= 1024.0 && i + 1 < sizeof names / sizeof *names) {
        *size_out *= 1024.0;
        ++i;
    }
    return names[i];
}

const char *dsi_bytes_text(double bytes, char text[DSI_CHART_TEXT])
{
    double size = 1.0;
    const char *unit = dsi_bytes_unit(bytes, &size);
    const double value = bytes / size;
    (void)snprintf(text, DSI_CHART_TEXT, "%.*f %s",
                   size == 1.0    ? 0
                   : value < 10.0 ? 2
                                  : 1,
                   value, unit);
    return text;
}

const char *dsi_clock_text(double seconds, char text[DSI_CHART_TEXT])
{
    const long long s = llround(fmin(fmax(seconds, 0.0), 1e12));
    if (seconds < 1.0) {
        (void)snprintf(text, DSI_CHART_TEXT, "%.3g ms", 1e3 * seconds);
    } else if (seconds < 10.0) {
        (void)snprintf(text, DSI_CHART_TEXT, "%.3g s", seconds);
    } else if (s < 3600) {
        (void)snprintf(text, DSI_CHART_TEXT, "%lld:%02lld min", s / 60, s % 60);
    } else {
        (void)snprintf(text, DSI_CHART_TEXT, "%lld:%02lld:%02lld h", s / 3600, s / 60 % 60, s % 60);
    }
    return text;
}
