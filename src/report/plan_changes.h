/* SPDX-License-Identifier: Apache-2.0 */
/* What would make a plan fit that does not. Each change is planned whole; those that cannot be
 * enough by what whole parameters and kept activations take are left out.
 *
 * The global batch stays as it is: a smaller micro-batch means more accumulation.
 */
#ifndef DSI_REPORT_PLAN_CHANGES_H
#define DSI_REPORT_PLAN_CHANGES_H

#include "report/plan_candidate.h"

enum { DSI_CANDIDATE_CHANGES = 3 };

/* The best changes, cheapest first: of one thing where that is enough, else of several. *n_out up
 * to DSI_CANDIDATE_CHANGES; 0 when none fits; then changes_out[0] is the one that needs least
 * (planned, not fits). Errors: ERR_NOMEM. */
ds_status dsi_fit_changes(ds_ctx *ctx, const dsi_plan_report *report, dsi_candidate *changes_out,
                          uint32_t *n_out);

#endif
