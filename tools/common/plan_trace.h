/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan diff of two traces: a plan's and a run's, or any two. */
#ifndef DSI_TOOLS_PLAN_TRACE_H
#define DSI_TOOLS_PLAN_TRACE_H

#include <deepspeed/context.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { TRACE_PHASES = 32 }; /* most */

/* The processes of one trace, and by what the times of each phase are divided: of forward and
 * backward how often they ran, of what follows the updates, since some phases are not of each. */
typedef struct trace_side {
    const char *path;
    json_t *json; /* borrowed */
    bool planned; /* made by ds_plan */
    int64_t *pids;
    uint32_t n_pids;
    uint32_t newest; /* the process that was asked for last: a rank's events stand together */
    const char *phases[TRACE_PHASES]; /* in the order of their first spans; of the JSON */
    uint32_t n_phases;
    double (*runs)[TRACE_PHASES]; /* per process */
} trace_side;

/* Whether a file's JSON is a trace. NULL is none. */
bool trace_is_one(const json_t *json);
/* Errors: ERR_ARG (no spans of phases: another program's trace), ERR_NOMEM. The caller closes the
 * side in any case. */
ds_status trace_side_open(ds_ctx *ctx, const char *path, json_t *json, trace_side *side_out);
void trace_side_close(trace_side *side);
/* The index of a span's process; n_pids when it is not there. */
uint32_t trace_side_process(trace_side *side, const json_t *event);
/* The index of a phase; TRACE_PHASES where the side has none of that name, and for NULL. */
uint32_t trace_phase(const trace_side *side, const char *name);
/* An argument of a span that is text; NULL when absent. */
const char *trace_arg(const json_t *event, const char *key);

/* Prints both side by side: milliseconds of one micro-batch's forward and backward and of one
 * update, by phase, by what was done, by scope. */
ds_status trace_table_print(ds_ctx *ctx, trace_side sides[2]);
/* Writes both into one file, as processes of one trace. */
ds_status trace_merge(ds_ctx *ctx, const trace_side sides[2], const char *path);

#endif
