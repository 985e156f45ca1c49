/* SPDX-License-Identifier: Apache-2.0 */
/* A graph made anew from another, node by node: what every pass that rewrites a graph does beside
 * its own idea.
 *
 *     dsi_rewrite r;
 *     ds_status status = dsi_rewrite_begin(&r, from, cells);
 *     for (each node of from) status = the pass's own way, or dsi_rewrite_copy(&r, node);
 *     return dsi_rewrite_end(&r, status, &made);
 */
#ifndef DSI_IR_REWRITE_H
#define DSI_IR_REWRITE_H

#include "ir/graph.h"

typedef struct dsi_rewrite {
    const ds_graph *from;
    ds_graph *to;
    ds_value *map;           /* per value of from: what stands for it in `to` */
    const char *scope;       /* of from, where it stands */
    const char *scope_there; /* the same in `to` */
    bool partial;            /* outputs that nothing stands for are left out, no error */
} dsi_rewrite;

/* An empty graph over cells that reads what from reads. Errors: ERR_NOMEM; dsi_rewrite_end in any
 * case. */
ds_status dsi_rewrite_begin(dsi_rewrite *r, const ds_graph *from, ds_cells *cells);

/* Nodes applied from now on have this node's phase, region, stage, half and scope, and are
 * recomputed, and the host's, if it is. */
ds_status dsi_rewrite_stand_at(dsi_rewrite *r, const dsi_node_info *node);
/* What stands for the inputs of a node of from; DS_NONE behind them, up to in[DS_MAX_IN]. */
void dsi_rewrite_inputs(const dsi_rewrite *r, const dsi_node_info *node, ds_value *in);
/* From now on out[i] stands for output i of a node of from. */
void dsi_rewrite_made(dsi_rewrite *r, const dsi_node_info *node, const ds_value *out);
/* The same node, at its own place. */
ds_status dsi_rewrite_copy(dsi_rewrite *r, const dsi_node_info *node);

/* Names the outputs that from has and gives the graph away, unless status or this fails. Returns
 * the first error. */
ds_status dsi_rewrite_end(dsi_rewrite *r, ds_status status, ds_graph **to_out);

#endif
