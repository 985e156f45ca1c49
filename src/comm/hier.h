/* SPDX-License-Identifier: Apache-2.0 */
/* The hierarchy: shared memory inside of a block of ranks, a network between blocks, with the same
 * bits as without it.
 *
 * Blocks hold the same power of two of ranks, aligned in the canonical order (LAW 4b): the
 * sum of a block is a node of the tree, so it may be made first; it travels as fp32. Made by
 * net_open.c.
 */
#ifndef DSI_COMM_HIER_H
#define DSI_COMM_HIER_H

#include "comm/comm.h"

/* Ranks in a block: the largest power of two so that every change of node lies between two blocks.
 * nodes[size]: where each rank is. 1: no hierarchy. */
uint32_t dsi_hier_block(const int64_t *nodes, uint32_t size);

typedef struct dsi_hier_parts {
    dsi_comm *flat;  /* all ranks, over the network */
    dsi_comm *local; /* the ranks of this block, over shared memory */
    dsi_comm *cross; /* the ranks of the same place in every block, over the network */
} dsi_hier_parts;

/* Takes over the parts on success. rank = block · local->size + local->rank. */
ds_status dsi_comm_hier(const dsi_hier_parts *parts, dsi_comm **comm_out);

#endif
