/* SPDX-License-Identifier: Apache-2.0 */
/* Placement rules applied: the ways to run one node on one axis of a mesh.
 *
 * The rules themselves are facts of operators (ds_op.place; deepspeed/place.h has the notation). An
 * operator without one works on replicated operands only, and on the rank's own samples. Called by
 * propagate.c for graphs, and by tests that execute every strategy.
 */
#ifndef DSI_PLACE_RULE_H
#define DSI_PLACE_RULE_H

#include "op/op_place.h"
#include "place/placement.h"

enum { DSI_RULE_STRATEGIES = 32 };

/* Pre: the operator's rule is one that dsi_op_check() takes. */
void dsi_rule_case_make(const ds_op *op, const void *attrs, const ds_meta *in, uint32_t n_in,
                        const ds_meta *out, uint32_t n_out, ds_place_case *c_out);

/* What the operator's Partial operands are of the ranks' terms. */
dsi_terms dsi_rule_terms(const ds_place_case *c);

/* What is agreed of axes, beside their sizes. Masks of axes. */
typedef struct dsi_place_policy {
    uint32_t mean;     /* the loss is the mean of the ranks' means over their own rows */
    uint32_t own;      /* random states count from the rank's own first sample */
    uint32_t gather;   /* a cut value may be gathered */
    uint32_t exchange; /* a value may change from one cut to another (Ulysses, experts) */
    size_t most_bytes; /* of any redistribution, see dsi_redistribution; 0: no bound */
} dsi_place_policy;

/* mean and own on dpr, dps, ep; no gathers; exchanges on sp and ep. */
dsi_place_policy dsi_place_policy_default(void);

/* One way to run a node on one axis. */
typedef struct dsi_strategy {
    char letter; /* that is cut; 0: none */
    bool linear; /* passes Partial */
    bool inside; /* it cuts blocks of a dim, of which an axis behind takes one each */
    dsi_place_on in[DS_MAX_IN], out[DS_MAX_OUT];
    uint32_t averaged; /* outputs that the axis then averages: the value is the sum over its ranks
                          divided by their number */
    uint32_t averaged_in; /* inputs that are added to those, and must be averaged as well */
} dsi_strategy;

/* All strategies of the case on an axis, replicate first; returns how many. blocks: each letter
 * that may be cut may be so in that many blocks as well (DSI_PADDED: in slices with padding), for
 * operands that are; 0: no. Where an
 * operator has blocks side by side itself, they are what its strategies cut. */
uint32_t dsi_rule_strategies(const ds_place_case *c, const dsi_mesh *mesh, dsi_axis axis,
                             const dsi_place_policy *policy, uint32_t blocks,
                             dsi_strategy list_out[DSI_RULE_STRATEGIES]);

/* Whether the letter may be cut into so many equal parts more, between heads where it has some. */
bool dsi_rule_cuts_evenly(const ds_place_case *c, char letter, uint32_t n_parts);

/* Attributes of the node for a rank's part, into attrs_out (op->attrs_bytes): heads and shapes are
 * the local ones. need: the inputs' placements, out: the outputs'. */
void dsi_rule_local_attrs(const ds_place_case *c, const dsi_mesh *mesh, const dsi_placement *need,
                          const dsi_placement *out, uint32_t rank, void *attrs_out);
/* The same of operands with these metas. */
void dsi_rule_attrs_of(const ds_place_case *c, const ds_meta *in, ds_meta *out, void *attrs_out);

/* The axis-th strategy taken: later axes know what is cut already. */
void dsi_rule_case_take(ds_place_case *c, const dsi_mesh *mesh, dsi_axis axis,
                        const dsi_strategy *s);

#endif
