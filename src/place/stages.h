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

/* What a rank of a pipeline has of the stages, and in how many phases it runs a micro-batch. Of n
 * ranks, chunk c of rank r is stage c·n + r. Its phases: the forward phase of each chunk, then the
 * backward phases, from the last chunk to the first; split (of one chunk): the backward phase
 * without what makes gradients of weights, then that. */
typedef struct dsi_stage_parts {
    uint32_t n_chunks; /* at least 1 */
    bool split;
} dsi_stage_parts;

static inline uint32_t dsi_parts_phases(const dsi_stage_parts *parts)
{
    return parts->split ? 3 : 2 * parts->n_chunks;
}

static inline ds_phase dsi_part_forward(const dsi_stage_parts *parts, uint32_t chunk)
{
    (void)parts;
    return chunk;
}

static inline ds_phase dsi_part_backward(const dsi_stage_parts *parts, uint32_t chunk)
{
    return 2 * parts->n_chunks - 1 - chunk;
}

/* Of a phase of a micro-batch: its chunk; whether it is the last that the chunk runs. */
static inline uint32_t dsi_part_chunk(const dsi_stage_parts *parts, ds_phase phase)
{
    return parts->split ? 0 : phase < parts->n_chunks ? phase : 2 * parts->n_chunks - 1 - phase;
}

static inline bool dsi_part_ends(const dsi_stage_parts *parts, ds_phase phase)
{
    return parts->split ? phase == 2 : phase >= parts->n_chunks;
}

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

/* Who has it of n ranks, from 1, where chunk c of rank r is stage c·n + r: the first updates it. */
dsi_stage_of dsi_stage_ranks(dsi_stage_of of, uint32_t n_ranks);

/* Who has each cell of a marked graph: room for ds_cells_count entries. Cells of a parameter
 * (gradients, states) are with its first stage; others have {0}: every stage has them. */
void dsi_stages_of_cells(const ds_graph *graph, dsi_stage_of *of_out);

#endif
