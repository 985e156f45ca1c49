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
    DSI_STAGES_UNIFORM,           /* as many layers on each */
    DSI_STAGES_BY_COST,           /* the stage with most operations of a forward pass has least */
    DSI_STAGES_BY_TYPE            /* the stage with most layers of a type has least */
} dsi_stage_partition;

enum { DSI_STAGES_MOST = 16 }; /* what an operator folds at once */

/* What a rank of a pipeline has of the stages, and in how many phases it runs a micro-batch. Of n
 * ranks, chunk c of rank r is stage c·n + r; folded: in chunks 1, 3, ... the ranks stand the other
 * way round, stage c·n + n-1-r, so that the last stage is on the rank of the first (a V). Its
 * phases: the forward phase of each chunk, then the backward phases, from the last chunk to the
 * first; split: each of them without what makes gradients of weights, then that. */
typedef struct dsi_stage_parts {
    uint32_t n_chunks; /* at least 1 */
    bool split, folded;
} dsi_stage_parts;

static inline uint32_t dsi_parts_phases(const dsi_stage_parts *parts)
{
    return (parts->split ? 3 : 2) * parts->n_chunks;
}

static inline ds_phase dsi_part_forward(const dsi_stage_parts *parts, uint32_t chunk)
{
    (void)parts;
    return chunk;
}

static inline ds_phase dsi_part_backward(const dsi_stage_parts *parts, uint32_t chunk)
{
    return parts->n_chunks + (parts->n_chunks - 1 - chunk) * (parts->split ? 2 : 1);
}

/* The last phase of a chunk: its backward phase, or the part with gradients of weights. */
static inline ds_phase dsi_part_end(const dsi_stage_parts *parts, uint32_t chunk)
{
    return dsi_part_backward(parts, chunk) + (parts->split ? 1 : 0);
}

/* Of a phase of a micro-batch: its chunk; whether it is the last that the chunk runs. */
static inline uint32_t dsi_part_chunk(const dsi_stage_parts *parts, ds_phase phase)
{
    const uint32_t n = parts->n_chunks;
    return phase < n ? phase : n - 1 - (phase - n) / (parts->split ? 2 : 1);
}

static inline bool dsi_part_ends(const dsi_stage_parts *parts, ds_phase phase)
{
    return phase >= parts->n_chunks && (!parts->split || (phase - parts->n_chunks) % 2 == 1);
}

/* Of n_ranks: the stage of a chunk of a rank, the rank of a stage; all from 0. */
static inline uint32_t dsi_part_stage(const dsi_stage_parts *parts, uint32_t n_ranks, uint32_t rank,
                                      uint32_t chunk)
{
    const bool back = parts->folded && chunk % 2 == 1;
    return chunk * n_ranks + (back ? n_ranks - 1 - rank : rank);
}

static inline uint32_t dsi_part_rank(const dsi_stage_parts *parts, uint32_t n_ranks, uint32_t stage)
{
    const bool back = parts->folded && stage / n_ranks % 2 == 1;
    return back ? n_ranks - 1 - stage % n_ranks : stage % n_ranks;
}

/* Who has a parameter: the stages that read it, from 1. The first has its gradient and its states
 * and updates it; the last, where that is another one, a copy (tied weights). */
typedef struct dsi_stage_of {
    uint32_t first, last; /* 0: no stage reads it */
    bool more;            /* so do stages in between: then all of those have it */
} dsi_stage_of;

/* Marks the forward nodes of a traced graph. n_stages: 2 to DSI_STAGES_MOST. type: a regular
 * expression, of BY_TYPE alone. Pure. Errors: ERR_CONFIG: the model has fewer layers than stages,
 * or none of the type. */
ds_status dsi_stages_mark(ds_graph *graph, uint32_t n_stages, dsi_stage_partition partition,
                          const char *type);

/* Of mark: 1 in weight for each of n_layers that is of a type, given each node's layer;
 * stage_types.c. Errors: ERR_CONFIG: no layer is, or it is no regular expression. */
ds_status dsi_stage_types(const ds_graph *graph, const char *type, const uint32_t *layer,
                          uint32_t n_layers, double *weight);

/* Marks another graph of the same layers as a marked one: evaluation's as training's. Errors:
 * ERR_NOMEM. */
ds_status dsi_stages_mark_as(ds_graph *graph, const ds_graph *marked);

/* Whether a stage, from 0, has it. */
bool dsi_stage_has(dsi_stage_of of, uint32_t stage);

/* Who has it of n ranks, from 1: the first updates it. */
dsi_stage_of dsi_stage_ranks(dsi_stage_of of, const dsi_stage_parts *parts, uint32_t n_ranks);

/* Who has each cell of a marked graph: room for ds_cells_count entries. Cells of a parameter
 * (gradients, states) are with its first stage; others have {0}: every stage has them. */
void dsi_stages_of_cells(const ds_graph *graph, dsi_stage_of *of_out);

#endif
