/* SPDX-License-Identifier: Apache-2.0 */
/* The FLOPs profiler: parameters, operations and time by module, from the plan and one measured
 * step. Layout of the report after DeepSpeed's flops profiler. */
#ifndef DSI_TRAIN_FLOPS_PROFILE_H
#define DSI_TRAIN_FLOPS_PROFILE_H

#include "config/config_values.h"
#include "plan/plan.h"

/* The section flops_profiler. */
typedef struct dsi_flops_spec {
    bool enabled;
    int64_t profile_step; /* optimizer steps done before the one that is profiled */
    int64_t module_depth; /* of the report; -1: all */
    int64_t top_modules;  /* listed at each depth */
    bool detailed;        /* the tree of all modules too */
    char output_file[DS_CONFIG_TEXT_BYTES]; /* "": the log */
} dsi_flops_spec;

/* What a report needs beside plan and cells. */
typedef struct dsi_flops_run {
    const double *seconds;          /* of each step of the plan, one micro-batch */
    double forward, backward, step; /* seconds of the phases */
    uint64_t global_step;
    uint32_t n_ranks;
    int64_t micro_batch, accumulation;
    const char *model;
} dsi_flops_run;

/* The report as text; the caller frees it. cells: the logical ones of the plan's model. Errors:
 * ERR_NOMEM. */
ds_status dsi_flops_print(const dsi_flops_spec *spec, const dsi_plan *plan, const ds_cells *cells,
                          const dsi_flops_run *run, char **text_out);

#endif
