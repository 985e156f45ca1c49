/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism without lists of names: which dim of each parameter is sharded on the tp axis,
 * found from the operators' rules and the graph alone.
 *
 * Megatron's pairs fall out of it (Shoeybi et al., arXiv:1909.08053): a weight whose letter the
 * activation lacks begins a sharded region (column), a weight that meets a sharded activation in a
 * letter that is summed ends it (row), and what lies between must take the shard as it is. A region
 * counts only where it ends so on every way out: then one all-reduce a region is all that moves.
 */
#ifndef DSI_PLACE_TENSOR_RULES_H
#define DSI_PLACE_TENSOR_RULES_H

#include "ir/graph.h"
#include "place/placement.h"

/* Fills on_out[0 .. count of the graph's cells): how the tp axis shards a parameter, or a key and
 * value cache; {0}: each rank has it whole. Where the region's columns are packed (q, k and v; gate
 * and up), they are cut inside of each block. graph: logical; its forward phase is read, fused or
 * not. All shards are equal: what the axis does not divide stays whole, with its region. allowed: a
 * mask of the dims that may be sharded of each cell; NULL: all. Pure: of graph, masks and the size
 * of the axis. Errors: ERR_NOMEM. */
ds_status dsi_tensor_rules(const ds_graph *graph, const dsi_mesh *mesh, const uint8_t *allowed,
                           dsi_place_on *on_out);

/* The same of a graph that goes with another one over the same cells, for which on_inout has been
 * filled: the first n_given cells stay as they are there, and a region may end in one that is
 * sharded. */
ds_status dsi_tensor_rules_beside(const ds_graph *graph, const dsi_mesh *mesh, uint32_t n_given,
                                  dsi_place_on *on_inout);

#endif
