/* SPDX-License-Identifier: Apache-2.0 */
/* Axes: round figures at which lines are drawn, and how they are written. */
#ifndef DSI_MONITOR_CHART_AXIS_H
#define DSI_MONITOR_CHART_AXIS_H

#include <stdbool.h>
#include <stddef.h>

enum { DSI_CHART_TICKS = 12, DSI_CHART_TEXT = 32 };

typedef struct dsi_chart_axis {
    double low, high; /* of what is shown; low < high */
    bool log;         /* then 0 < low */
    double ticks[DSI_CHART_TICKS];
    size_t n;
    int digits;      /* behind the point */
    bool scientific; /* the figures are too small or large for plain ones */
} dsi_chart_axis;

/* An axis around [low, high] with at most `most` ticks (2 to DSI_CHART_TICKS - 1); `fit`: it ends
 * where the values end, else at ticks. Values that are not finite, or none, give [0, 1]. A log axis
 * needs positive values and becomes a plain one without. */
dsi_chart_axis dsi_chart_axis_make(double low, double high, bool log, bool fit, size_t most);
/* Where a value lies: 0 at low, 1 at high. */
double dsi_chart_axis_at(const dsi_chart_axis *axis, double value);
/* A tick as text. Returns text. */
const char *dsi_chart_axis_text(const dsi_chart_axis *axis, double value,
                                char text[DSI_CHART_TEXT]);
/* A figure with about four digits: "0.0123", "12 300", "2e-05". Returns text. */
const char *dsi_figure(double value, char text[DSI_CHART_TEXT]);
/* Bytes as "1.50 GiB", seconds as "1:02:03". Return text. */
const char *dsi_bytes_text(double bytes, char text[DSI_CHART_TEXT]);
const char *dsi_clock_text(double seconds, char text[DSI_CHART_TEXT]);
/* The unit in which so many bytes are written, and its size. */
const char *dsi_bytes_unit(double bytes, double *size_out);

#endif
