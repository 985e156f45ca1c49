/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention: keys and values in parts that travel from rank to rank. */
#ifndef DSI_PASS_RING_ATTENTION_H
#define DSI_PASS_RING_ATTENTION_H

#include "ir/graph.h"

/* Makes a new graph over the same cells in which, in place of each attention of a sequence that
 * `ranks` share, stands a chain of as many attention_part, between which the parts of keys and
 * values turn by one (turn_parts); and of its gradient likewise, where the sums of dk and dv turn
 * with them and once more, home. Which queries and keys a part has they know by row_numbers: halves
 * as there. Errors: ERR_INTERNAL
 * where q, k and v are packed. Pure. The caller destroys *ring_out. */
ds_status dsi_ring_attention(const ds_graph *graph, int64_t ranks, bool halves,
                             ds_graph **ring_out);

#endif
