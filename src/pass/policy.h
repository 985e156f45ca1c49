/* SPDX-License-Identifier: Apache-2.0 */
/* What is kept for the backward pass and what is computed again: tags, obeyed by remat.c and
 * keep.c. */
#ifndef DSI_PASS_POLICY_H
#define DSI_PASS_POLICY_H

#include "config/config_values.h"
#include "ir/graph.h"

typedef struct dsi_recompute {
    ds_recompute mode; /* FULL: what lies inside a region is made again; SELECTIVE: of that, what
                          some operators make; AUTO is the caller's to resolve (ERR_ARG) */
    int64_t interval;  /* FULL: so many regions, one after the other, are one; 0: 1 */
    int64_t n_checkpoints; /* FULL: or so many groups of equal size; 0: as interval sets */
    const char *operators; /* SELECTIVE: names with commas; NULL: norms, activations, gates,
                              dropout, rotations, casts, elementwise */
} dsi_recompute;

/* Fills drop[v] for each value of a fused graph (fusion is decided before, LAW 4f). Only values
 * that stay inside their group of regions are dropped. Pure. Errors: ERR_ARG on an unknown
 * operator; ERR_UNSUPPORTED when the model marks no region and mode is not NONE. */
ds_status dsi_policy_recompute(const ds_graph *graph, const dsi_recompute *recompute, bool *drop);

/* Which losses keep their logits, (rows,V), for the backward pass. */
typedef enum dsi_kept_logits {
    DSI_LOGITS_NONE,
    DSI_LOGITS_FEW, /* those that weigh no more than the fp32 gradient of their weight, (C,V), which
                       the backward pass has in memory anyway */
    DSI_LOGITS_ALL
} dsi_kept_logits;

/* Fills keep[n] for each node of a fused graph: losses that keep their logits, which saves the
 * product that makes them again. Returns how many. Pure. */
uint32_t dsi_policy_keep(const ds_graph *graph, dsi_kept_logits which, bool *keep);

#endif
