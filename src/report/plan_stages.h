/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of a pipeline for the planner: how long a step takes with what each stage does, and the
 * choice of stages, schedule and chunks where the configuration says "auto".
 */
#ifndef DSI_REPORT_PLAN_STAGES_H
#define DSI_REPORT_PLAN_STAGES_H

#include "base/buf.h"
#include "pipe/pipe_time.h"
#include "report/plan_report.h"

/* What the planned ranks of a pipeline take: seconds, without a device operations. */
typedef struct dsi_stage_clock {
    dsi_schedule_times stages[DSI_STAGES_MOST];
    bool known[DSI_STAGES_MOST];         /* per stage */
    dsi_stage_way ways[DSI_STAGES_MOST]; /* from each to the next; without a device none */
    double rest;                         /* of the slowest rank: behind the micro-batches */
    dsi_stage_cores shared;              /* with a device: cores of a host */
} dsi_stage_clock;

/* Adds what the rank of a report takes. */
void dsi_stage_clock_add(dsi_stage_clock *clock, const dsi_plan_report *report);
/* A step of the whole pipeline: the schedule's turns with these times. A stage whose rank was not
 * planned takes what the same chunk of the second rank does, or of the first. */
ds_status dsi_stage_clock_step(ds_ctx *ctx, const dsi_stage_clock *clock, const dsi_schedule *s,
                               double *step_out);

/* Whether the configuration leaves stages or schedule to the planner, by "auto". */
bool dsi_stages_are_open(const ds_config *config);
/* Plans stages (divisors of the ranks), schedules and chunks as far as they are open, and takes
 * those whose step is fastest for its samples among what fits request->memory; where nothing fits,
 * what needs least. Equal ones: fewer stages, then 1f1b, zb-h1, zb-v, interleaved. *config_out: the
 * request's with the choice in it, the caller destroys it. why: the choice and what stood beside it
 * is added. Errors: ERR_CONFIG where no choice can be planned, with the reason of the last. */
ds_status dsi_stages_choose(ds_ctx *ctx, const dsi_report_request *request, ds_config **config_out,
                            dsi_buf *why);

#endif
