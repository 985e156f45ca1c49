/* SPDX-License-Identifier: Apache-2.0 */
/* What the bytes of each value of a graph are for. */
#ifndef DSI_PLAN_PLAN_KINDS_H
#define DSI_PLAN_PLAN_KINDS_H

#include "cost/ledger.h"
#include "ir/graph.h"

/* Of a cell's bytes. */
dsi_memory_kind dsi_memory_kind_of(ds_cell_kind kind);

/* Fills kinds[0 .. n_values) with dsi_memory_kind, as if every value had bytes of its own. Pure. */
void dsi_plan_kinds(const ds_graph *graph, uint8_t *kinds);

#endif
