/* SPDX-License-Identifier: Apache-2.0 */
/* Domino: the rows of a micro-batch in two halves, each of which goes through the layers by itself,
 * so that one computes while the collectives of the other are under way (arXiv 2409.15241).
 */
#ifndef DSI_PASS_DOMINO_H
#define DSI_PASS_DOMINO_H

#include "ir/graph.h"

/* Makes a new graph over the same cells in which, in place of each node of the micro-batch's phases
 * that may work on a part of the first dim by its operator's placement rule, stand two: for the
 * first ceil(rows/2) rows (half 1), and for the others (half 2). Nodes that may not work on all
 * rows (half 0), which are put together for them. A sum over rows is that of half 1, to which half
 * 2 adds its own. Inputs of `rows` rows are cut; all else follows. Experts sort the tokens of each
 * half by itself (piece_experts.h). Pure.
 *
 * Numbers: each row is computed by the same kernel on the same operands, so results by row have
 * the bits of the graph that is not cut wherever that kernel's are independent of the number of
 * rows; a sum over rows is one of two blocks of rows in place of one.
 *
 * Errors: ERR_CONFIG where rows is below 2; ERR_UNSUPPORTED of experts with a capacity, which
 * counts the tokens of both halves. The caller destroys *halves_out. */
ds_status dsi_domino(const ds_graph *graph, int64_t rows, ds_graph **halves_out);

/* Makes a new graph with the nodes in the order in which the halves take turns: one goes on until
 * it needs what a collective of its own makes that began in this turn, then the other does. A
 * collective of a half begins right behind what it carries. For a rank's graph, behind everything
 * that places nodes; preserves numerics. Pure. The caller destroys *turns_out. */
ds_status dsi_domino_turns(const ds_graph *graph, ds_graph **turns_out);

#endif
