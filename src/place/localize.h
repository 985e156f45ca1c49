/* SPDX-License-Identifier: Apache-2.0 */
/* Localize: lowers a placed graph to one rank's form: local shapes, collectives explicit.
 *
 * propagate.h says where every value is and how each node needs it; this makes nodes of the
 * differences: a gather before a flat parameter is used, one reduction of a complete gradient, a
 * slice where a whole cell is updated by flat states and the gather behind it, and the terms of
 * maxima and exact sums combined. Equal differences of one value are made once.
 *
 * Invariants of the result: a node of the logical graph is there once, in its order; operands have
 * the shapes of their placements; a collective belongs to one phase.
 */
#ifndef DSI_PLACE_LOCALIZE_H
#define DSI_PLACE_LOCALIZE_H

#include "place/propagate.h"

typedef struct dsi_localize_params {
    const dsi_propagation *placed;
    bool sum;            /* gradients are summed over samples, not averaged */
    ds_dtype comm_dtype; /* terms of gradients are rounded to it before they are reduced */
    int64_t reduce_bucket, gather_bucket; /* elements that share a collective */
    /* A gathered parameter is used again while fewer than both of these elements of parameters were
     * used in between. */
    int64_t max_live, max_reuse_distance;
} dsi_localize_params;

/* The local form of a value or cell that is placed so: one dimension where it is flat. */
ds_meta dsi_local_meta(const dsi_mesh *mesh, const dsi_placement *at, ds_meta whole);

/* Lowers a graph (after fusion). `local` receives the local form of each cell that it lacks: its
 * ids are those of graph's table. Errors: ERR_UNSUPPORTED names a value and a change of placement
 * that has no collective here; ERR_NOMEM. Pure. The caller destroys *local_out. */
ds_status dsi_localize(const ds_graph *graph, const dsi_localize_params *params, ds_cells *local,
                       ds_graph **local_out);

#endif
