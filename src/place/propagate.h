/* Propagation: from the placements of cells to those of every value of a graph, and to the
 * redistributions in between.
 *
 * Pure: every rank gets the same. The graph stays as it is; localize reads the result. One walk in
 * program order: a node is placed by what its inputs are (place_node.h), never by what follows. A
 * node that writes a cell must leave it as the cell is placed.
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
    dsi_place_cell_fn cell;
    void *user;
} dsi_propagate_params;

typedef struct dsi_propagation {
    dsi_mesh mesh;
    uint32_t n_values, n_operands;
    dsi_spread *value; /* per value of the graph */
    dsi_spread *use;   /* per entry of graph->operands: inputs as the node needs them */
    size_t bytes;      /* that a rank sends or receives for all redistributions */
} dsi_propagation;

/* Errors: ERR_SHAPE names a cell whose placement does not fit; ERR_UNSUPPORTED and others as
 * dsi_place_node_run; ERR_NOMEM. The caller destroys *out. */
ds_status dsi_propagate(const ds_graph *graph, const dsi_propagate_params *params,
                        dsi_propagation **out);
void dsi_propagation_destroy(dsi_propagation **p);

/* The mesh, then a line a node: "%7 dps:S(0) = linear(%3 dps:S(0), param wte.weight flat(dps) -> R)
 * @ model.h.0". Averaged axes follow as "/dps". */
void dsi_propagation_text(const ds_graph *graph, const dsi_propagation *p, dsi_buf *buf);

#endif
