/* SPDX-License-Identifier: Apache-2.0 */
/* Where cells live between their uses: the tags that offload.c obeys and the executor honours. */
#ifndef DSI_PASS_CELL_RESIDENCY_H
#define DSI_PASS_CELL_RESIDENCY_H

#include "base/residency.h"

#include <deepspeed/graph.h>

/* A part of a cell is a cell of its own that shares the storage of `parent`, `offset` bytes behind
 * its start. In one phase of a plan a parent is read only before a part of it is written. */
typedef struct dsi_cell_residency {
    dsi_residency where;
    ds_cell parent; /* DS_NONE: no part */
    size_t offset;
    bool per_slot; /* each micro-batch in flight has a content of its own */
} dsi_cell_residency;

/* Storage of swapped cells, and memory that swaps move, comes in whole blocks. */
enum { DSI_SWAP_BLOCK = 4096 };

static inline size_t dsi_swap_block_bytes(size_t bytes)
{
    return (bytes + DSI_SWAP_BLOCK - 1) / DSI_SWAP_BLOCK * DSI_SWAP_BLOCK;
}

#endif
