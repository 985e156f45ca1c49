/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO as placements on the data axes, and layers sharded on tp: where each cell lies, and the
 * lowering of a graph by that. docs/internals/laws.md has the table.
 *
 * What comes in for a rank's own samples is its own (DSI_OWN). Parameters, gradients and states are
 * replicated, flat over the axes that ZeRO cuts, or, gradients, terms of a mean; of what is sharded
 * on tp, ZeRO cuts the shard.
 */
#ifndef DSI_PLACE_ZERO_H
#define DSI_PLACE_ZERO_H

#include "place/localize.h"
#include "place/stages.h"

typedef struct dsi_zero_spec {
    dsi_mesh mesh;   /* one rank: nothing is done */
    uint32_t tp;     /* neighbouring ranks that have the same samples, the tp axis; 0: 1. What
                        no rule shards on it is replicated: they compute the same */
    uint32_t pp;     /* stages of the pipeline, the outermost axis; 0: 1 */
    uint32_t sp;     /* neighbouring groups of tp ranks that share each sequence; 0: 1 */
    uint32_t ep;     /* neighbouring groups of those that share the experts; 0: 1 */
    uint32_t folded; /* a mask of axes beyond ep over which experts are folded. tp: its ranks have
                        whole ones, each for its part of the tokens, where else tp shards each
                        expert. sp: the ranks along it have to divide them */
    uint32_t mics;   /* ranks that share one copy of all states (MiCS); 0: all */
    uint32_t hpz;    /* ranks that share one copy of the parameters alone (hpZ); 0: all */
    uint32_t stage;  /* 0 to 3 */
    /* Per cell: how tp shards it (tensor_rules.h), {0}: it does not; NULL: none. States are
     * sharded as the parameter that they belong to. Borrowed. */
    const dsi_place_on *tensor;
    /* Per cell: a mask of the axes that share its experts (expert_rules.h), as `tensor`. NULL:
     * none.
     */
    const uint8_t *expert;
    /* Per cell: how sp shards it (sequence_rules.h): inputs along the sequence. NULL: none. */
    const dsi_place_on *sequence;
    /* Per cell: which stages have it. NULL: all. For cells of ranks, not for lowering. */
    const dsi_stage_of *stages;
    bool reduce_each; /* reduce every micro-batch, not their sum: accumulation is 1, or the run is
                         deterministic. Stages 2 and 3 always do */
    bool own_states;  /* each rank has parameters, masters and moments of its own (0/1 Adam) */
    bool sum;         /* gradients are summed over ranks, not averaged */
    dsi_quantized quantized;
    ds_dtype comm_dtype;
    int64_t reduce_bucket, gather_bucket; /* elements */
    /* stage 3, elements */
    int64_t persistence_threshold, model_persistence, max_live, max_reuse_distance;
} dsi_zero_spec;

/* The mesh of so many ranks, with the sub-groups that the spec asks for. Errors: ERR_CONFIG. */
ds_status dsi_zero_set_ranks(ds_ctx *ctx, dsi_zero_spec *spec, uint32_t n_ranks);

/* Fills spreads[0 .. count of cells). Pure. Parameters below the persistence threshold stay
 * replicated in stage 3, in cell order, until model_persistence elements are kept. */
void dsi_zero_rules(const dsi_zero_spec *spec, const ds_cells *cells, dsi_spread *spreads);

/* Places a graph (after fusion) by these rules and lowers it, see dsi_localize. */
ds_status dsi_zero_lower(const ds_graph *graph, const dsi_zero_spec *spec, ds_cells *local,
                         ds_graph **local_out);

#endif
