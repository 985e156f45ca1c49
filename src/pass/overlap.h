/* When a collective starts and when it is waited for. */
#ifndef DSI_PASS_OVERLAP_H
#define DSI_PASS_OVERLAP_H

#include "ir/graph.h"

typedef enum dsi_slot_kind { DSI_SLOT_RUN, DSI_SLOT_START, DSI_SLOT_WAIT } dsi_slot_kind;

/* A place in the order of a plan: a node, or the start or the wait of a collective's node. Members
 * of a bucket stand side by side in each of the two roles. */
typedef struct dsi_slot {
    ds_node node;
    dsi_slot_kind kind;
} dsi_slot;

/* Spreads an order of n nodes (buckets side by side) to slots (room for 2n): a collective starts
 * where it stood, and is waited for before the first node that reads its outputs, before the end of
 * its phase, or when too many are under way. Gathers of parameters start ahead of their place by up
 * to `prefetch` elements. same[v]: the value whose storage v is (elided stores). Pure.
 * Errors: ERR_NOMEM. */
ds_status dsi_overlap(const ds_graph *graph, const ds_node *order, uint32_t n, const ds_value *same,
                      int64_t prefetch, dsi_slot *slots, uint32_t *n_out);

#endif
