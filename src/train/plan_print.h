/* A report of a plan in its forms: for people, for programs, as a page, as a trace. The caller
 * frees every *text_out with free(). Errors: ERR_NOMEM.
 */
#ifndef DSI_TRAIN_PLAN_PRINT_H
#define DSI_TRAIN_PLAN_PRINT_H

#include "train/plan_changes.h"
#include "train/plan_fit.h"

/* What is printed: a report, and where it does not fit the changes that dsi_fit_changes found. */
typedef struct dsi_printed {
    const dsi_plan_report *report;
    const dsi_candidate
        *changes; /* n_changes; with 0 and least: [0] needs least and does not fit */
    uint32_t n_changes;
    bool least;
} dsi_printed;

ds_status dsi_report_text(const dsi_printed *printed, char **text_out);
/* One JSON object, {"ds_plan": 1, …}. */
ds_status dsi_report_json(const dsi_printed *printed, char **text_out);
/* One page without scripts or links: text, memory over the steps, the simulated timeline. */
ds_status dsi_report_html(const dsi_printed *printed, char **text_out);
/* The simulated timeline for Chrome's tracing page and Perfetto. ERR_ARG without a timeline. */
ds_status dsi_report_trace(const dsi_plan_report *report, char **text_out);

/* What a search tried, best first, and what it chose. */
ds_status dsi_fit_text(ds_ctx *ctx, const dsi_fit *fit, size_t memory, char **text_out);

/* "zero_optimization.stage 3, train_micro_batch_size_per_gpu 1". */
void dsi_candidate_print(const dsi_candidate *candidate, dsi_buf *text);
const char *dsi_recompute_name(ds_recompute how);

#endif
