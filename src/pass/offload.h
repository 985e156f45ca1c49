/* SPDX-License-Identifier: Apache-2.0 */
/* Offload: cells that live in host memory or on disk are moved to the device around their uses. */
#ifndef DSI_PASS_OFFLOAD_H
#define DSI_PASS_OFFLOAD_H

#include "ir/graph.h"
#include "pass/cell_residency.h"

/* Per cell of the local table, parts included; grows as parts are made. */
typedef struct dsi_residencies {
    dsi_cell_residency *items;
    uint32_t n, capacity;
} dsi_residencies;

typedef struct dsi_offload {
    int64_t chunk; /* elements of a parameter that are updated together; 0: all */
    int64_t reuse; /* a parameter stays in memory when its next use in the same phase is nearer than
                      this many elements of other parameters */
    dsi_residency activations; /* of what the forward pass keeps for the backward pass */
    dsi_residency waiting;     /* of what a chunk of sequences leaves to the turns of others */
    size_t least_activation;   /* bytes; a smaller one stays */
    size_t forward_ahead; /* bytes of states that the forward phase fetches for early updates */
    bool host; /* the processor runs updates whose states are in host memory, where it can */
    struct {
        bool on;
        ds_phase accept, undo, redo; /* in that order, behind that of updates */
        ds_cell factor;              /* of gradients that are not clipped */
    } speculate;
} dsi_offload;

/* Makes a new graph in which cells whose residency is not the device are touched by swap_in and
 * swap_out alone. cells: the table of the new graph; it is the graph's own, or receives copies of
 * its cells, which keep their ids; parts are added behind. residencies: has an entry a cell of the
 * graph's table; receives those of the parts.
 *
 * A use of a parameter reads its content, swapped in once for neighbouring uses. A gradient swaps
 * out as soon as it is made; its largest magnitude, which the norm asks for, is found before. A
 * kept activation swaps out where it is made, into a cell of its own, and in at its first use in
 * the backward phase. States of the first early updates swap in at the end of the forward phase. An
 * update runs chunk by chunk on parts when the operator works element by element; a parameter with
 * a master is not read: its new value is the master's rounding.
 *
 * The numbers are those of the run in memory: the same kernels see the same operands, cut only
 * where the result of an element depends on its own alone, or sums are exact. With `host`
 * elementwise updates run where their states are (offload_host.c). Pure. Errors: ERR_UNSUPPORTED
 * names what cannot work on a swapped cell. The caller destroys *offload_out. */
ds_status dsi_offload_graph(const ds_graph *graph, const dsi_offload *offload, ds_cells *cells,
                            dsi_residencies *residencies, ds_graph **offload_out);

/* Entry of a cell; on the device when there is none. */
dsi_cell_residency dsi_residency_of(const dsi_residencies *residencies, ds_cell cell);

#endif
