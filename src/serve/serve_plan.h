/* SPDX-License-Identifier: Apache-2.0 */
/* What a server takes, and how long its batches take on a device, from its plans alone. */
#ifndef DSI_SERVE_SERVE_PLAN_H
#define DSI_SERVE_SERVE_PLAN_H

#include "cost/simulate.h"

#include <deepspeed/serve.h>

/* Seconds of a step, by the cost model, with half of max_length in each text. */
typedef struct dsi_serve_times {
    double one;    /* the next id of one text */
    double all;    /* of max_sequences texts */
    double prompt; /* max_batch_tokens ids of a prompt */
} dsi_serve_times;

/* ds_serve_plan() of a rank of n_ranks that share the layers, on one host, and times on a device;
 * NULL: none, times_out is untouched. */
ds_status dsi_serve_plan_on(ds_ctx *ctx, const ds_serve_params *params, uint32_t n_ranks,
                            const dsi_device *device, ds_serve_needs *needs_out,
                            dsi_serve_times *times_out);

/* Positions of whole blocks that the longest text takes, of pairs with its source. */
int64_t dsi_serve_longest_text(const ds_model *model, int64_t max_length, int64_t block);

#endif
