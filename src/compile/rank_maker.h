/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's plan while it is made. Inside of rank_*.c:
 *   rank_plan.c    who has which cell and which weights; the plan as a whole
 *   rank_mesh.c    what the mesh says
 *   rank_lower.c   from a logical graph to a plan: the passes, in their order
 *   rank_fit.c     the plans of training and evaluation, by the first memory choice that fits
 *   state_place.c  which optimizer states stay on a device with memory of its own
 */
#ifndef DSI_COMPILE_RANK_MAKER_H
#define DSI_COMPILE_RANK_MAKER_H

#include "compile/rank_plan.h"

enum { DSI_RANK_MAX_CELLS = 1 << 20 };

typedef struct dsi_rank_maker {
    const dsi_rank_request *request;
    dsi_engine_spec spec;    /* as the memory choice in force has it */
    dsi_place_on *tensor;    /* per logical cell; NULL: no layer is sharded */
    uint8_t *expert;         /* per logical cell; NULL: each rank has all experts */
    dsi_place_on *sequence;  /* per logical cell; NULL: each rank has whole sequences */
    dsi_stage_of *stages;    /* per logical cell; NULL: one stage has all */
    uint32_t stage;          /* whose plan is made */
    const ds_graph *trained; /* the training graph, whose stages evaluation has; NULL: none yet */
    dsi_cell_residency *residencies; /* of logical cells, of whatever stage; NULL: none */
    dsi_rank_plan plan;
} dsi_rank_maker;

/* Ranks of a pipeline; and stages of the model, the chunks of all of them. */
uint32_t dsi_rank_n_stages(const dsi_rank_maker *m);
uint32_t dsi_rank_n_chunks(const dsi_rank_maker *m);
/* Ranks that share a sequence. */
int64_t dsi_rank_sequence_ranks(const dsi_rank_maker *m);
/* Of those that share the experts, ranks that have the same tokens. */
int64_t dsi_rank_token_ranks(const dsi_rank_maker *m);
/* Ranks that share the experts: those along ep, those that share a sequence as well, and those
 * along tp over which they are folded. */
int64_t dsi_rank_expert_ranks(const dsi_rank_maker *m);
/* Ranks that share layers. */
int64_t dsi_rank_tensor_ranks(const dsi_rank_maker *m);
/* Ranks that share the heads of attention, for the trace; 0: none. */
int64_t dsi_rank_head_ranks(const dsi_rank_maker *m);
/* Whether keys and values travel among the ranks that share a sequence; and in halves. */
bool dsi_rank_is_ring(const dsi_rank_maker *m);
bool dsi_rank_has_halves(const dsi_rank_maker *m);
/* Whether sequences are computed in chunks: not those that are one chunk. */
bool dsi_rank_has_chunks(const dsi_rank_maker *m);

/* The logical graph of a mode, its stages marked. */
ds_status dsi_rank_trace(const dsi_rank_maker *m, ds_trace_mode mode, ds_graph **graph_out);
/* Which inputs of a graph sp shards along the sequence. Those of other graphs stay as they are. */
ds_status dsi_rank_share_sequences(dsi_rank_maker *m, const ds_graph *graph);
/* How the rank's stage is cut out; name: of the messages between stages. */
dsi_stage_cut dsi_rank_stage_cut(const dsi_rank_maker *m, const char *name);
/* The rank's plan of a logical graph; backward: of training. */
ds_status dsi_rank_lower(dsi_rank_maker *m, const ds_graph *graph, dsi_plan_env env, bool backward,
                         dsi_plan **plan_out);
/* Both plans, of the training graph and of evaluation's. */
ds_status dsi_rank_lower_to_fit(dsi_rank_maker *m, const ds_graph *graph);

#endif
