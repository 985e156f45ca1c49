/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a plan's page: plan_html.c (figures, memory), plan_html_time.c (timeline). */
#ifndef DSI_REPORT_PLAN_HTML_H
#define DSI_REPORT_PLAN_HTML_H

#include "base/buf.h"
#include "cost/simulate.h"
#include "monitor/chart_axis.h"

/* A dashed line where a phase begins, inside of the SVG; and its name behind the SVG, where there
 * is room for it: from begin to end, in the unit of the axis. */
void dsi_plan_html_phase_line(dsi_buf *page, const dsi_chart_axis *x, double begin, int height);
void dsi_plan_html_phase_name(dsi_buf *page, const dsi_chart_axis *x, double begin, double end,
                              const char *name);
/* The simulated timeline as lanes, one a stream that does anything. Nothing when it takes no time.
 */
void dsi_plan_html_timeline(dsi_buf *page, const dsi_timeline *timeline);

#endif
