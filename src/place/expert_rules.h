/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks share experts, a factorisation of its own of the ranks of a stage: those along ep,
 * along sp where their number divides the experts, and along tp where the configuration says so
 * (else tp shards each expert). Found from the graph, whose nodes say it. Called by whoever makes a
 * rank's plan, ahead of zero_rules.h, and where such nodes are placed.
 */
#ifndef DSI_PLACE_EXPERT_RULES_H
#define DSI_PLACE_EXPERT_RULES_H

#include "ir/graph.h"
#include "op/ops.h"
#include "place/placement.h"

/* The axes along which rows of such a node go to other ranks. */
dsi_axes dsi_expert_ranks_axes(const dsi_expert_ranks_attrs *attrs);
/* Whether the node is about an axis: its ranks share the experts, or have copies of them. */
bool dsi_expert_ranks_on(const dsi_expert_ranks_attrs *attrs, dsi_axis axis);

/* axes_out[cell]: the axes, as a mask of 1 << dsi_axis, that shard the first dim of each parameter
 * that is a weight of experts whose rows are dealt among ranks (grouped_linear with parts); others
 * stay as they are. folded: a mask of the axes that have to be among them. Pure. Errors: ERR_CONFIG
 * when there is none though ep or folded asks for it, when they do not divide the experts, or
 * names what computes the weight where it is no parameter. */
ds_status dsi_expert_rules(const ds_graph *graph, const dsi_mesh *mesh, uint32_t folded,
                           uint8_t *axes_out);

#endif
