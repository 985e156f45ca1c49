/* SPDX-License-Identifier: Apache-2.0 */
/* The page of a run, and of several side by side, made of their histories. */
#ifndef DSI_MONITOR_RUN_PAGE_H
#define DSI_MONITOR_RUN_PAGE_H

#include "monitor/run_history.h"

/* For dsi_html_check: the page of a run, and of several, which ds_report can make again. */
#define DSI_RUN_PAGE_KIND    "run report"
#define DSI_RUN_COMPARE_KIND "comparison of runs"

enum { DSI_RUN_PAGE_MOST = 12 /* runs on a page */, DSI_RUN_PAGE_REFRESH = 5 /* seconds */ };

/* A run: figures, curves, events, configuration, machine. silence > 0: it is going on, and the page
 * loads itself anew until it was not written for so many seconds; then it says so. The caller frees
 * *text_out. Errors: ERR_NOMEM. */
ds_status dsi_run_page(ds_ctx *ctx, const dsi_run_history *history, double silence,
                       char **text_out);
/* 2 to DSI_RUN_PAGE_MOST runs: a table, their curves in one chart each, and what their
 * configurations and command lines differ in. Errors: ERR_NOMEM. */
ds_status dsi_run_page_compare(ds_ctx *ctx, dsi_run_history *const *histories, size_t n,
                               char **text_out);

/* ---- shared by the two pages ---- */

typedef struct dsi_run_curve_row {
    dsi_run_curve curve;
    const char *title, *unit, *name;
    bool log, from_zero, wide, smooth;
} dsi_run_curve_row;

/* The charts of a page in their order; the last has title NULL. */
extern const dsi_run_curve_row dsi_run_curve_rows[];
/* Whether a curve says anything: it has a value, and a loss scale one other than 1. */
bool dsi_run_curve_tells(const dsi_run_history *history, dsi_run_curve curve);
/* "finished", "running", "interrupted", "failed", "no end recorded"; and its tone. */
const char *dsi_run_verdict(const dsi_run_history *history, bool live, const char **tone_out);
/* A field of the newest start: "" or 0 without one. */
const char *dsi_run_text(const dsi_run_history *history, const char *key);

#endif
