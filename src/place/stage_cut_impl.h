/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the cut into stages: stage_cut.c makes a rank's graph, stage_cross.c finds what
 * crosses. */
#ifndef DSI_PLACE_STAGE_CUT_IMPL_H
#define DSI_PLACE_STAGE_CUT_IMPL_H

#include "ir/rewrite.h"
#include "place/stage_cut.h"

typedef struct dsi_cutter {
    dsi_rewrite r;
    const dsi_stage_cut *how;
    ds_cells *local;
    dsi_stage_messages *messages;
    uint64_t all;     /* a bit a stage, from 0: the first chunk of each rank */
    uint64_t mine;    /* the stages of this rank */
    uint64_t *need;   /* per value: stages that read it */
    uint64_t *runs;   /* per node: stages that run it */
    bool *awaited;    /* per node of the backward phase: another stage waits for what it makes */
    ds_value *root;   /* per value: what it is a view of, or itself */
    bool *late;       /* per root: a later phase of this rank reads it */
    ds_cell *stored;  /* per value: the cell that carries it from this rank; DS_NONE: none */
    uint32_t *bucket; /* per bucket of from and part of a phase: its number here, from 1; 0: none */
    uint32_t n_buckets;
    uint32_t n_sent;
    uint32_t n_micro; /* phases of a micro-batch that from has */
    uint32_t more;    /* phases of a micro-batch that are added */
} dsi_cutter;

static inline uint64_t dsi_stage_bit(uint32_t stage)
{
    return (uint64_t)1 << stage;
}

static inline uint32_t dsi_cut_ranks(const dsi_cutter *c)
{
    return c->how->mesh->size[DSI_AXIS_PP];
}

/* Of a value: the stage of the node that makes it, from 1. */
static inline uint32_t dsi_cut_stage_of(const ds_graph *g, ds_value v)
{
    const ds_node maker = v != DS_NONE ? g->values[v].producer : DS_NONE;
    return maker != DS_NONE ? g->nodes[maker].stage : 0;
}

/* The rank that runs a stage. */
static inline uint32_t dsi_cut_rank_of(const dsi_cutter *c, uint32_t stage)
{
    return dsi_part_rank(&c->how->parts, dsi_cut_ranks(c), stage);
}

/* The stages that a rank runs. */
static inline uint64_t dsi_cut_on(const dsi_cutter *c, uint32_t rank)
{
    uint64_t stages = 0;
    for (uint32_t chunk = 0; chunk < c->how->parts.n_chunks; ++chunk) {
        stages |= dsi_stage_bit(dsi_part_stage(&c->how->parts, dsi_cut_ranks(c), rank, chunk));
    }
    return stages;
}

/* The stages that run on the rank of a stage. */
static inline uint64_t dsi_cut_beside(const dsi_cutter *c, uint32_t stage)
{
    return dsi_cut_on(c, dsi_cut_rank_of(c, stage));
}

/* Of a node of a micro-batch, on one of its stages: the phase of a rank that runs it. */
ds_phase dsi_cut_phase_on(const dsi_cutter *c, ds_node n, uint32_t stage);

/* Cells and messages of all that crosses, reads of what this rank receives. */
ds_status dsi_cut_find_crossings(dsi_cutter *c);
ds_status dsi_cut_add_message(ds_ctx *ctx, dsi_stage_messages *messages, dsi_stage_message message);

#endif
