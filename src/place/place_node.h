/* SPDX-License-Identifier: Apache-2.0 */
/* Places one node: from the placements of its inputs, those that it needs and those of its outputs.
 *
 * Called by propagate.c. Axis after axis the cheapest strategy of the operator's rule is taken
 * whose changes of inputs the policy allows: a sum may be reduced, a replicated value cut or made
 * an addend, a Flat one gathered; a cut one is gathered or cut otherwise only where the policy says
 * so. A cut or a sum is taken up only where an input has it already. On an axis where some input is
 * the rank's own, all outputs are, and the other inputs are replicated. What fits nothing is
 * refused, by names.
 *
 * A written cell that is replicated where the states of its update are flat is updated on the
 * slice: the output is then flat, and whoever reads the result gathers it behind the node.
 */
#ifndef DSI_PLACE_PLACE_NODE_H
#define DSI_PLACE_PLACE_NODE_H

#include "place/redistribute.h"
#include "place/rule.h"

/* A placement, and the axes on which the value is not yet divided by their number of ranks: the
 * logical value is what `at` says, divided by the sizes of those axes. The loss of a data-parallel
 * run is such, and its gradients. */
typedef struct dsi_spread {
    dsi_placement at;
    uint32_t averaged; /* mask of axes */
} dsi_spread;

typedef struct dsi_place_node {
    const dsi_mesh *mesh;
    const dsi_place_policy *policy;
    dsi_moves_memo *memo;
    const ds_op *op;
    const void *attrs;
    const ds_meta *in_meta, *out_meta; /* dtype NONE where absent */
    uint32_t n_in, n_out;
    const dsi_spread *in; /* simplified placements */
    uint32_t fixed;       /* mask of inputs that stay as they are: cells that are written */
    uint32_t whole;       /* mask of inputs that are gathered where they are flat */
    uint32_t completed;   /* mask of inputs that are complete gradients of parameters */
    const char *scope;    /* for errors */
    void (*name)(const void *user, uint32_t input, char *text, size_t n); /* of it, for errors */
    const void *user;
} dsi_place_node;

typedef struct dsi_placed {
    dsi_spread need[DS_MAX_IN], out[DS_MAX_OUT];
    size_t bytes;       /* that a rank sends or receives from `in` to `need` */
    ds_place_case rule; /* for dsi_rule_local_attrs */
} dsi_placed;

/* Where need has fewer averaged axes than in, the sum is multiplied by 1/size on the way.
 * Errors: ERR_UNSUPPORTED names operator, scope, value and both placements; and those of
 * dsi_redistribute. placed_out is filled on success. */
ds_status dsi_place_node_run(ds_ctx *ctx, const dsi_place_node *node, dsi_placed *placed_out);

#endif
