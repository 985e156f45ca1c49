/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_graph and ds_cells, for the passes. Everybody else uses include/deepspeed/graph.h.
 *
 * Invariants (dsi_graph_check):
 *  1. every id stored is below the count of its table, or DS_NONE where that is allowed;
 *  2. a node's inputs are defined before it: program order is a topological order;
 *  3. a value has one producer; a value of a cell has version 0 and no producer, or is the output
 * of the node that wrote that version;
 *  4. after version k+1 of a cell is written no node reads version k;
 *  5. phases never decrease along program order.
 */
#ifndef DSI_IR_GRAPH_H
#define DSI_IR_GRAPH_H

#include "base/arena.h"
#include "ir/phase.h"
#include <deepspeed/graph.h>
#include <deepspeed/op.h>

typedef struct dsi_value_info {
    ds_meta meta;
    ds_node producer; /* DS_NONE for version 0 of a cell */
    uint32_t index;   /* which output of the producer */
    ds_cell cell;     /* DS_NONE for ordinary values */
    uint32_t version; /* of the cell */
} dsi_value_info;

typedef struct dsi_node_info {
    const ds_op *op;
    const void *attrs;
    uint32_t in_at, n_in;   /* operands[in_at .. in_at+n_in) */
    uint32_t out_at, n_out; /* operands[out_at .. out_at+n_out) */
    const char *scope;
    ds_phase phase;
    uint32_t region; /* that the model marked for recomputation, 0: none */
    uint32_t stage;  /* of a pipeline, from 1; 0: it runs wherever its results are read */
    uint32_t
        half; /* of the micro-batch's rows that it works on: 1, 2 (pass/domino.h), or the turn of
                 the chunk of positions that it runs in, from 1 (pass/chunks.h); 0: on all */
    bool recomputed; /* does again what a node of the forward pass did */
    bool on_host;    /* the processor runs it, concurrently with the device, on cells of the host */
} dsi_node_info;

typedef struct dsi_output_info {
    const char *name;
    ds_value value;
} dsi_output_info;

struct ds_cells {
    ds_ctx *ctx;
    dsi_arena *names;
    ds_cell_info *items;
    uint32_t n, capacity, ceiling;
    uint32_t *buckets; /* open hash of name and kind: cell + 1, 0 is free */
    uint32_t n_buckets;
};

struct ds_graph {
    ds_ctx *ctx;
    ds_cells *cells;
    dsi_arena *arena; /* attributes, scopes, names */
    dsi_value_info *values;
    uint32_t n_values, values_capacity;
    dsi_node_info *nodes;
    uint32_t n_nodes, nodes_capacity;
    ds_value *operands;
    uint32_t n_operands, operands_capacity;
    dsi_output_info *outputs;
    uint32_t n_outputs, outputs_capacity;
    dsi_phases phases;
    ds_value *current; /* per cell: value of the current version, DS_NONE before the first read */
    uint32_t current_capacity;
    const char *scope; /* of nodes applied from now on, like the six below */
    ds_phase phase;
    uint32_t region;
    uint32_t stage;
    uint32_t half;
    bool recomputed, on_host;
};

const ds_value *dsi_node_in(const ds_graph *graph, const dsi_node_info *node);
const ds_value *dsi_node_out(const ds_graph *graph, const dsi_node_info *node);

/* Runs a node's shape rule again on given operand metas; fills out[0..op->n_out). */
ds_status dsi_graph_infer(ds_ctx *ctx, const ds_op *op, const void *attrs, const ds_meta *in,
                          uint32_t n_in, ds_meta *out);

/* Asserts the invariants; ERR_GRAPH names the first that is broken. */
ds_status dsi_graph_check(const ds_graph *graph);

/* Grows an array to hold at least `need` items of `size` bytes; doubles. NULL on failure. */
void *dsi_graph_grow(void *items, uint32_t *capacity, uint32_t need, size_t size);

#endif
