/* SPDX-License-Identifier: Apache-2.0 */
/* The cut of a model into the stages of a pipeline: which nodes and parameters belong to which.
 *
 * The layers are what the model marks for recomputation (ds_nn_region_begin): neighbouring ones
 * share a stage. What stands before the first belongs to it, what stands behind a layer to that
 * layer. Nodes that no parameter reaches (masks, positions) are of no stage: they run wherever
 * their results are read. The reverse walk, updates and passes keep the stages (dsi_node_info).
 */
#ifndef DSI_PLACE_STAGES_H
#define DSI_PLACE_STAGES_H

#include "ir/graph.h"

typedef enum dsi_stage_partition {
    DSI_STAGES_BY_PARAMETERS = 0, /* the stage with most elements of parameters has least */
    DSI_STAGES_UNIFORM            /* as many layers on each */
} dsi_stage_partition;

enum { DSI_STAGES_MOST = 16 }; /* what an operator folds at once */

/* Who has a parameter: the stages that read it, from 1. The first has its gradient and its states
 * and updates it; the last, where that is another one, a copy (tied weights). */
typedef struct dsi_stage_of {
    uint32_t first, last; /* 0: no stage reads it */
    bool more;            /* so do stages in between: then all of those have it */
} dsi_stage_of;

/* Marks the forward nodes of a traced graph. n_stages: 2 to DSI_STAGES_MOST. Pure. Errors:
 * ERR_CONFIG: the model has fewer layers than stages. */
ds_status dsi_stages_mark(ds_graph *graph, uint32_t n_stages, dsi_stage_partition partition);

/* Whether a stage, from 0, has it. */
bool dsi_stage_has(dsi_stage_of of, uint32_t stage);

/* Who has each cell of a marked graph: room for ds_cells_count entries. Cells of a parameter
 * (gradients, states) are with its first stage; others have {0}: every stage has them. */
void dsi_stages_of_cells(const ds_graph *graph, dsi_stage_of *of_out);

#endif
