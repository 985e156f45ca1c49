/* SPDX-License-Identifier: Apache-2.0 */
/* A report of a plan in its forms: for people, for programs, as a page, as a trace. The caller
 * frees every *text_out with free(). Errors: ERR_NOMEM.
 */
#ifndef DSI_REPORT_PLAN_PRINT_H
#define DSI_REPORT_PLAN_PRINT_H

#include "report/plan_changes.h"
#include "report/plan_fit.h"

#include <deepspeed/plan.h>

/* What is printed: a report, and where it does not fit the changes that dsi_fit_changes found. */
typedef struct dsi_printed {
    const dsi_plan_report *report;
    const dsi_candidate
        *changes; /* n_changes; with 0 and least: [0] needs least and does not fit */
    uint32_t n_changes;
    bool least;
} dsi_printed;

/* A report with what would make it fit. printed points into it: it stays where it is. */
typedef struct dsi_full_report {
    dsi_plan_report report;
    dsi_candidate changes[DSI_CANDIDATE_CHANGES];
    dsi_printed printed;
    bool fits;
} dsi_full_report;

/* Plans, and where that does not fit looks for changes. The caller frees full->report. Errors: as
 * dsi_report_make. */
ds_status dsi_full_report_make(ds_ctx *ctx, const dsi_report_request *request,
                               dsi_full_report *full);
/* Offload to the host is real only where the device's memory is said: of a device that has its own
 * it is. *limited_out: the configuration with it, owned by the caller; NULL where it is as it is.
 */
ds_status dsi_report_limit_device(ds_ctx *ctx, const dsi_report_request *request,
                                  ds_config **limited_out);

ds_status dsi_report_text(const dsi_printed *printed, char **text_out);
/* One JSON object, {"ds_plan": 1, …}. */
ds_status dsi_report_json(const dsi_printed *printed, char **text_out);
/* How dsi_html_check knows that page. */
#define DSI_PLAN_PAGE_KIND "plan"
/* One page without scripts or links: text, memory over the steps, the simulated timeline. */
ds_status dsi_report_html(const dsi_printed *printed, char **text_out);
/* The simulated timeline for Chrome's tracing page and Perfetto. ERR_ARG without a timeline. */
ds_status dsi_report_trace(const dsi_plan_report *report, char **text_out);

/* What a search tried, best first, and what it chose. */
ds_status dsi_fit_text(ds_ctx *ctx, const dsi_fit *fit, size_t memory, char **text_out);

#endif
