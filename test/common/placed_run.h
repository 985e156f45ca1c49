/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs run by reference kernels on ranks that exist in one process only, in lockstep: node by
 * node, all ranks of a node before the next one. Written apart from src/place/redistribute and
 * src/comm: a change of placement is "put the logical value together, then cut it anew".
 *
 *  logical_run  the graph on one rank; where inputs are each rank's own, once for each of them
 *  placed_run   the graph as a propagation places it
 *  local_run    the graph that localize made, its collectives by name
 */
#ifndef DS_TEST_PLACED_RUN_H
#define DS_TEST_PLACED_RUN_H

#include "ir/graph.h"
#include "place/localize.h"

/* Contents of all values: of each copy, or of each rank. Freed by tensors_free. */
typedef struct tensors {
    uint32_t n_values, n_each;
    void **at; /* at[value * n_each + each] */
} tensors;

typedef struct placed_case {
    ds_ctx *ctx;
    const ds_graph *graph;
    dsi_mesh mesh;
    const dsi_propagation *placed; /* cells are always placed, values for placed_run alone */
    uint32_t own;                  /* axes on which some cell is each rank's own */
    uint64_t seed;                 /* of contents */
} placed_case;

/* own_out: per value the axes on which it is each rank's own; the caller frees it. */
ds_status logical_run(const placed_case *c, tensors *copies_out, uint32_t **own_out);
ds_status placed_run(const placed_case *c, tensors *ranks_out);
ds_status local_run(const placed_case *c, const ds_graph *local, tensors *ranks_out);
void tensors_free(tensors *t);

/* The logical value, in the type of meta, as `rank` sees it where each rank's own is meant, put
 * together of what all ranks have: sums are added in the canonical order, averages divided. The
 * caller frees it. */
void *placed_whole(const placed_case *c, ds_meta meta, const dsi_spread *from, void *const *ranks,
                   uint32_t rank);
/* The logical value of a copy that `rank` belongs to, complete along axes: their mean. */
void *logical_whole(const placed_case *c, ds_meta meta, const tensors *copies, ds_value v,
                    uint32_t mean, uint32_t rank);

#endif
