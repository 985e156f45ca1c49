/* SPDX-License-Identifier: Apache-2.0 */
/* The FLOPs profiler: parameters, operations and time by module, from the plan and one measured
 * step. Layout of the report after DeepSpeed's flops profiler. */
#ifndef DSI_REPORT_FLOPS_PROFILE_H
#define DSI_REPORT_FLOPS_PROFILE_H

#include "compile/run_spec.h"
#include "plan/plan.h"

/* What a report needs beside plan and cells. */
typedef struct dsi_flops_run {
    const double *seconds;          /* of each step of the plan, one micro-batch */
    double forward, backward, step; /* seconds of the phases */
    double rank_params;             /* elements of parameters that a rank computes with */
    uint64_t global_step;
    uint32_t n_ranks, n_data_ranks;
    int64_t micro_batch, accumulation;
    const char *model;
} dsi_flops_run;

/* The report as text; the caller frees it. cells: the logical ones of the plan's model. Errors:
 * ERR_NOMEM. */
ds_status dsi_flops_print(const dsi_flops_spec *spec, const dsi_plan *plan, const ds_cells *cells,
                          const dsi_flops_run *run, char **text_out);

#endif
