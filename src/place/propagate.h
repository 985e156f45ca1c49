/* SPDX-License-Identifier: Apache-2.0 */
/* Propagation: from the placements of cells to those of every value of a graph, and to the
 * redistributions in between.
 *
 * Pure: every rank gets the same. The graph stays as it is; localize reads the result. One walk in
 * program order: a node is placed by what its inputs are (place_node.h), never by what follows. A
 * node that writes a cell must leave it as the cell is placed.
 *
 * Gradients: what is stored, or accumulated, in a cell of kind GRAD, and what the operator
 * `gradient` marks, is complete for this rank's own samples; along the axes where it is the rank's
 * own it is there a term of the mean over them. A cell of such terms is reduced for its readers.
 * Parameters are gathered before they are read.
 */
#ifndef DSI_PLACE_PROPAGATE_H
#define DSI_PLACE_PROPAGATE_H

#include "ir/graph.h"
#include "place/place_node.h"

/* Where a cell lies: the rules of a configuration. Fills *spread_out, which is {0}: replicated. */
typedef void (*dsi_place_cell_fn)(void *user, ds_cell cell, const ds_cell_info *info,
                                  dsi_spread *spread_out);

typedef struct dsi_propagate_params {
    dsi_mesh mesh;
    dsi_place_policy policy;
    dsi_placement gradient; /* of complete gradients on the data axes; where they have a cell, as
                               that is placed. On the others their shards stay */
    dsi_place_cell_fn cell;
    void *user;
} dsi_propagate_params;

typedef struct dsi_propagation {
    dsi_mesh mesh;
    uint32_t n_values, n_operands, n_cells;
    dsi_spread *cell;  /* per cell of the graph's table, simplified */
    dsi_spread *value; /* per value of the graph */
    dsi_spread *use;   /* per entry of graph->operands: inputs as the node needs them, outputs as it
                          makes them; these differ from `value` where a written cell is gathered
                          behind the node, and where a result is completed at once */
    dsi_spread *output; /* per output of the graph: sums are complete in it */
    size_t bytes;       /* that a rank sends or receives for all redistributions */
} dsi_propagation;

/* Errors: ERR_SHAPE names a cell whose placement does not fit; ERR_UNSUPPORTED and others as
 * dsi_place_node_run; ERR_NOMEM. The caller destroys *out. */
ds_status dsi_propagate(const ds_graph *graph, const dsi_propagate_params *params,
                        dsi_propagation **out);
void dsi_propagation_destroy(dsi_propagation **p);

/* The input of a node that is a complete gradient, see above; n_in: none is. And what it is there:
 * a term of a mean where it is the rank's own. */
uint32_t dsi_completed_input(const ds_graph *graph, const dsi_node_info *node);
dsi_spread dsi_completed_spread(const dsi_spread *value);

/* The mesh, then a line a node: "%7 dps:S(0) = linear(%3 dps:S(0), param wte.weight flat(dps) -> R)
 * @ model.h.0". Averaged axes follow as "/dps". */
void dsi_propagation_text(const ds_graph *graph, const dsi_propagation *p, dsi_buf *buf);

#endif
