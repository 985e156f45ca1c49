/* SPDX-License-Identifier: Apache-2.0 */
/* Charts of a page: curves over steps, with axes, units, a legend, marks, and the figures under the
 * pointer. */
#ifndef DSI_MONITOR_CHART_H
#define DSI_MONITOR_CHART_H

#include "base/buf.h"
#include "monitor/chart_axis.h"
#include "monitor/series.h"

#include <stdbool.h>

enum { DSI_CHART_WIDTH = 1000, DSI_CHART_HEIGHT = 1000 }; /* of the SVG, before it is stretched */

typedef struct dsi_chart_line {
    const char *name;
    const dsi_series *series;
    int colour;       /* 0 to 12 */
    bool dots;        /* few values, each a dot */
    bool smooth;      /* a mean in full colour over the values in faint */
    bool only_smooth; /* the mean alone */
} dsi_chart_line;

/* Something that happened at steps. */
typedef struct dsi_chart_marks {
    const char *name, *colour; /* colour: a variable of the style sheet, such as "bad" */
    const dsi_series *series;
    bool full; /* a dashed line of full height, else a tick at the lower edge */
} dsi_chart_marks;

typedef struct dsi_chart {
    const char *title, *unit; /* unit may be "" */
    const dsi_chart_line *lines;
    size_t n_lines;
    const dsi_chart_marks *marks;
    size_t n_marks;
    double x_high; /* the last step shown */
    bool log, from_zero, wide;
    double scale; /* values are divided by it; 0: 1 */
    double level; /* a line across, in the values' unit; 0: none */
    const char *level_name;
} dsi_chart;

void dsi_chart_put(dsi_buf *page, const dsi_chart *chart);

/* The parts, for other charts: the place with grid, figures and an open <svg>, and its end. x_unit
 * is written behind the last figure of the x axis. */
void dsi_chart_open(dsi_buf *page, const dsi_chart_axis *x, const dsi_chart_axis *y,
                    const char *x_unit);
/* The same without a y axis, so many pixels high, for a drawing of `height` units: lanes, with room
 * for names at the left. */
void dsi_chart_open_sized(dsi_buf *page, const dsi_chart_axis *x, const char *x_unit, int pixels,
                          int height);
void dsi_chart_close(dsi_buf *page);
/* Places in the SVG. */
double dsi_chart_x(const dsi_chart_axis *x, double value);
double dsi_chart_y(const dsi_chart_axis *y, double value);

#endif
