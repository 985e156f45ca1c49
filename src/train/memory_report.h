/* SPDX-License-Identifier: Apache-2.0 */
/* memory_breakdown: planned and measured memory by kind at points of a step.
 *
 * The view is the plan's account (cost/ledger.h) summed once for each point at which an engine can
 * be asked; it is made before training when the configuration wants reports in steps, which
 * allocate nothing then.
 */
#ifndef DSI_TRAIN_MEMORY_REPORT_H
#define DSI_TRAIN_MEMORY_REPORT_H

#include "train/engine.h"

enum { DSI_MEMORY_POINTS = DSI_CALL_STEP + 1 }; /* by the call that an engine awaits */

typedef struct dsi_memory_view {
    size_t cells[DSI_RESIDENCY_COUNT][DSI_MEMORY_KIND_COUNT]; /* the whole run */
    size_t values[DSI_MEMORY_POINTS][DSI_MEMORY_KIND_COUNT];  /* in the arenas, in each state */
    size_t most[DS_MAX_PHASES][DSI_MEMORY_KIND_COUNT];        /* in any step of a phase */
    size_t most_sum[DS_MAX_PHASES];                           /* of all kinds together */
    size_t program; /* plans and tables, program, libraries, communicator */
} dsi_memory_view;

/* Makes engine->memory, when there is none yet. Errors: ERR_NOMEM. */
ds_status dsi_engine_view_memory(ds_engine *engine);
/* Logs the report under `message` on rank 0, when the configuration has memory_breakdown. */
void dsi_engine_see_memory(ds_engine *engine, const char *message);

#endif
