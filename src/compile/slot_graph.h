/* SPDX-License-Identifier: Apache-2.0 */
/* Slots for adapters as a rewrite of a graph of many sequences (ds_trace.paged): behind each linear
 * layer each token's own adapter is added (slot_adapter). What is in a slot is written later:
 * infer/generator_slots.c. */
#ifndef DSI_COMPILE_SLOT_GRAPH_H
#define DSI_COMPILE_SLOT_GRAPH_H

#include <deepspeed/nn.h>

/* In front of MODULE.A (slots,in,rank) and MODULE.B (slots,rank,out), cells of kind INPUT. */
#define DSI_SLOT_PREFIX "adapters/"

typedef struct dsi_slots {
    int64_t n, rank; /* n 0: none */
    int64_t vocab_size;
} dsi_slots;

/* Replaces *graph; n 0: nothing. Left out: output heads, routers, and layers with their activation
 * in one operator. Adds the input "adapters", i32 (T): each token's slot, -1: none. */
ds_status dsi_slot_graph(const dsi_slots *slots, const ds_trace *trace, ds_graph **graph);

#endif
