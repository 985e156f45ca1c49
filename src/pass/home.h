/* SPDX-License-Identifier: Apache-2.0 */
/* Where cells live between their uses: the tags that offload.c obeys and the executor honours. */
#ifndef DSI_PASS_HOME_H
#define DSI_PASS_HOME_H

#include <deepspeed/graph.h>

typedef enum dsi_residence { DSI_ON_DEVICE, DSI_ON_HOST, DSI_ON_DISK } dsi_residence;

/* A part of a cell is a cell of its own that shares the storage of `parent`, `offset` bytes behind
 * its start. In one phase of a plan a parent is read only before a part of it is written. */
typedef struct dsi_home {
    dsi_residence residence;
    ds_cell parent; /* DS_NONE: no part */
    size_t offset;
} dsi_home;

/* Storage of swapped cells, and memory that swaps move, comes in whole blocks. */
enum { DSI_HOME_ALIGN = 4096 };

static inline size_t dsi_home_bytes(size_t bytes)
{
    return (bytes + DSI_HOME_ALIGN - 1) / DSI_HOME_ALIGN * DSI_HOME_ALIGN;
}

#endif
