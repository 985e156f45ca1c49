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

/* What collectives carry as blocks of whole numbers: docs/internals/quantized.md. */
typedef struct dsi_quantized {
    bool weights;        /* parameters that are gathered: 8 bits (qwZ) */
    bool frozen_weights; /* those of them that are frozen */
    bool gradients;      /* sums of gradients into slices, of more than one dim: 4 bits (qgZ) */
    bool errors;         /* what is lost of them is added to the next ones (LoCo), from … */
    double beta;         /* … the cells of dsi_quantized_errors; so much of an error stays */
    bool seeded;         /* gradients have the loss seed as a factor that changes */
} dsi_quantized;

/* What a rank keeps of a gradient's exchanges with n_inner ranks of its group, then with those of
 * n_outer groups: the types of cells of kinds WORKER_ERROR and SERVER_ERROR named like the
 * parameter. dtype NONE: that exchange is none. */
void dsi_quantized_errors(int64_t n_inner, int64_t n_outer, ds_shape gradient, ds_meta *worker_out,
                          ds_meta *server_out);

typedef struct dsi_localize_params {
    const dsi_propagation *placed;
    dsi_quantized quantized;
    bool sum;            /* gradients are summed over samples, not averaged */
    ds_dtype comm_dtype; /* terms of gradients are rounded to it before they are reduced */
    int64_t reduce_bucket, gather_bucket; /* elements that share a collective */
    /* A gathered parameter is used again while fewer than both of these elements of parameters were
     * used in between. */
    int64_t max_live, max_reuse_distance;
    bool by_phase; /* … and in the same phase: several micro-batches may be between two */
} dsi_localize_params;

/* The local form of a value or cell that is placed so: one dimension where it is flat. */
ds_meta dsi_local_meta(const dsi_mesh *mesh, const dsi_placement *at, ds_meta whole);

/* Lowers a graph (after fusion). `local` receives the local form of each cell that it lacks: its
 * ids are those of graph's table. Errors: ERR_UNSUPPORTED names a value and a change of placement
 * that has no collective here; ERR_NOMEM. Pure. The caller destroys *local_out. */
ds_status dsi_localize(const ds_graph *graph, const dsi_localize_params *params, ds_cells *local,
                       ds_graph **local_out);

#endif
