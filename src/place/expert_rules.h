/* SPDX-License-Identifier: Apache-2.0 */
/* Which parameters ep and sp shard: the stacked weights of experts, found from the graph. Called by
 * whoever makes a rank's plan, ahead of zero_rules.h. */
#ifndef DSI_PLACE_EXPERT_RULES_H
#define DSI_PLACE_EXPERT_RULES_H

#include "ir/graph.h"
#include "place/placement.h"

/* on_out[cell] = S(0) for each parameter that is a weight of experts whose rows are dealt among
 * ranks (grouped_linear with parts); others stay as they are. Pure. Errors: ERR_CONFIG when there
 * is none, or names what computes the weight where it is no parameter. */
/* ep 1: sp alone shards them, and a model may have none. */
ds_status dsi_expert_rules(const ds_graph *graph, uint32_t ep, dsi_place_on *on_out);

#endif
