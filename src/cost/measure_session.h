/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a measurement share: measure.c puts them together, measure_kernels.c times
 * operators, measure_parts.c memory, collectives and the disk. Figures are of one rank until
 * measure.c makes them the node's.
 */
#ifndef DSI_COST_MEASURE_SESSION_H
#define DSI_COST_MEASURE_SESSION_H

#include "cost/measure.h"

typedef struct dsi_measure_session {
    ds_ctx *ctx;
    const dsi_measure_spec *spec;
    dsi_device *device;
    double n_ranks;
    double n_active; /* ranks that compute at once: no more than there are cores for */
    bool active;     /* this one does */
} dsi_measure_session;

/* The mean over the active ranks. All ranks meet here, so that what follows begins on all at
 * once. */
ds_status dsi_measure_average(const dsi_measure_session *s, double *value);

/* Peaks, rates and the latency of a step. */
ds_status dsi_measure_kernels(dsi_measure_session *s);

ds_status dsi_measure_memory(dsi_measure_session *s);
ds_status dsi_measure_collectives(dsi_measure_session *s); /* nothing on one rank */
ds_status dsi_measure_disk(dsi_measure_session *s);        /* nothing without a folder */

#endif
