/* SPDX-License-Identifier: Apache-2.0 */
/* One stage of a pipeline: of a local graph whose nodes know their stages (stages.h) those of one
 * stage, and what crosses to and from the others.
 *
 * A value that another stage reads is stored into a cell; there it is read from the same cell,
 * which whoever runs the plan has filled in between. Nodes of no stage run on each that reads
 * them. What each stage has folded for all (maxima, exact sums of squares) is gathered along pp.
 * What happens between the phases is a list of messages, the same for all stages.
 */
#ifndef DSI_PLACE_STAGE_CUT_H
#define DSI_PLACE_STAGE_CUT_H

#include "place/mesh.h"
#include "place/stages.h"

/* From one rank of the pipeline to another, between those at the same place of their stages. */
typedef struct dsi_stage_message {
    ds_cell cell;            /* of the local table, on both ranks */
    uint32_t source, target; /* ranks of the pipeline, from 0 */
    ds_phase phase;          /* of the source: behind which it is sent */
    ds_phase first, last;    /* of the target: that read it; behind the micro-batches: as phase */
    uint32_t buffers;        /* that may be on their way; 0: the cell's own */
    uint32_t places;         /* of the target's cell; 0: one for each slot */
    uint32_t channel;        /* 1: messages of the others may pass it on the way */
    ds_cell waiting;         /* of the source: room for so many; DS_NONE: none */
} dsi_stage_message;

typedef struct dsi_stage_messages {
    dsi_stage_message *items; /* owned: free() */
    uint32_t n, capacity;
} dsi_stage_messages;

typedef struct dsi_stage_cut {
    const dsi_mesh *mesh;
    const dsi_stage_of *cells; /* per cell of the graph's table; those behind n_cells: everywhere */
    uint32_t n_cells;
    uint32_t stage; /* a rank of the pipeline, from 0: whose graph is made */
    dsi_stage_parts parts;
    uint32_t n_micro;                /* of a step; 0: nothing is kept for a backward phase */
    uint32_t slots[DSI_STAGES_MOST]; /* per rank: micro-batches in flight; where there are parts */
    const char *name;                /* of the graph, in names of cells: "train" */
} dsi_stage_cut;

/* The graph of one rank: its stages, in the phases of dsi_stage_parts; over the same table of local
 * cells: cells for what crosses are added, the
 * same on every stage; those that the stage does not have or read become empty. Messages are
 * appended. What a chunk reads of another one on the same rank is no message: it is kept in the
 * slot. Errors: ERR_UNSUPPORTED names a value that goes back to an earlier stage in the forward
 * phase, or crosses behind the micro-batches. Pure. */
ds_status dsi_stage_cut_graph(const ds_graph *graph, const dsi_stage_cut *how, ds_cells *local,
                              dsi_stage_messages *messages, ds_graph **cut_out);

/* The copies of parameters on other stages than that which updates them, behind phase `update`. */
ds_status dsi_stage_copies(const ds_cells *cells, const dsi_stage_cut *how, ds_phase update,
                           dsi_stage_messages *messages);

/* Makes the cells empty that a stage does not have: of n_cells, and of those of messages. */
void dsi_stage_empty_cells(ds_cells *local, const dsi_stage_cut *how,
                           const dsi_stage_messages *train, const dsi_stage_messages *eval);

#endif
