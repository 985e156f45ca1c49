/* SPDX-License-Identifier: Apache-2.0 */
/* Which inputs the sp axis shards along the sequence, found from the graph.
 *
 * An input (B,T,..) is cut along T where every node that reads it can work on a part of the
 * positions, or meets it otherwise only where propagation exchanges it; an input that a reader
 * takes whole (where documents begin, for attention by heads) is whole on every rank. Pure. */
#ifndef DSI_PLACE_SEQUENCE_RULES_H
#define DSI_PLACE_SEQUENCE_RULES_H

#include "ir/graph.h"
#include "place/placement.h"

/* Whether the ranks divide the length. Errors: ERR_CONFIG, with the nearest numbers that do. */
ds_status dsi_sequence_check_length(ds_ctx *ctx, uint32_t ranks, int64_t length);

/* Sets on_out of the graph's inputs, per cell; the others' are left. Pre: the ranks of
 * the axis divide T. order: where positions have another order in parts, so that none may stay
 * whole, the end of the message: what does not go with it; else NULL. Errors: ERR_UNSUPPORTED names
 * an input that stays whole. */
ds_status dsi_sequence_rules(const ds_graph *graph, const dsi_mesh *mesh, int64_t seq_length,
                             const char *order, dsi_place_on *on_out);

#endif
