/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in chunks that are computed one after another (FPDT, arXiv 2408.16978), so that what
 * is live is that of a chunk: the rest of keys and values, and of their gradients, can wait in host
 * memory or on disk between the turns of the chunks (pass/offload_turns.c).
 */
#ifndef DSI_PASS_CHUNKS_H
#define DSI_PASS_CHUNKS_H

#include "ir/graph.h"

typedef struct dsi_chunks {
    int64_t seq_length;  /* of all ranks that share a sequence */
    int64_t chunk;       /* positions of a chunk, as configured */
    int64_t ranks;       /* that share each sequence */
    int64_t token_ranks; /* of those, ranks that share a rank's tokens for their experts; 1: none */
    bool ring;           /* they keep their queries, and keys and values travel */
} dsi_chunks;

/* Positions of a chunk: as many as configured, rounded down so that all ranks have as many of it
 * (sequence_order.h). The last chunk has what is left. And how many chunks there are. */
int64_t dsi_chunks_length(const dsi_chunks *chunks);
uint32_t dsi_chunks_count(const dsi_chunks *chunks);

/* Refuses chunks of which ranks would have nothing, and too many of them, by the configuration's
 * keys. */
ds_status dsi_chunks_check(ds_ctx *ctx, const dsi_chunks *chunks);

/* Makes a new graph over the same cells in which, in place of each node of the micro-batch's phases
 * that may work on a part of the positions by its operator's placement rule, stand as many as there
 * are chunks, each with the number of its chunk (half, from 1). What may not works on all of them,
 * put together. Causal attention of chunk i becomes steps of attention_part over the keys of chunks
 * i, i-1 … 0, less those that its window hides; backward, chunks go last to first, so that the
 * gradients of a chunk's keys are complete when its turn comes. Sums over positions are added up in
 * the order of the turns. For the logical graph, before it is placed.
 *
 * With ranks the sequence stands in the order of sequence_order.h: each has its part of every
 * chunk, so that all have as much to do.
 *
 * In a ring each pair of chunks is a round of steps, in which the keys of one turn among the ranks
 * (part_attention.h). Experts sort the tokens of each chunk by itself (piece_experts.h).
 *
 * Numbers: rows have the bits of the graph in one piece, attention apart, which is merged of its
 * steps in fp32 (ops.h); they depend on the length of a chunk, on no number of ranks.
 *
 * Errors: ERR_UNSUPPORTED names what has no chunks: attention that is not causal, or by queries
 * but in a ring; experts with a capacity; dropout that does not know its rows. The caller destroys
 * *made_out. */
ds_status dsi_chunks_cut(const ds_graph *graph, const dsi_chunks *chunks, ds_graph **made_out);

/* Makes a new graph with the nodes in the order of turns: of each layer (region) the nodes of one
 * chunk behind the other, first to last, in backward phases last to first. What a turn needs of
 * other chunks runs where it is asked for, what is recomputed only then; such a node is of that
 * turn (half). The order of versions of cells stays. Preserves numerics. Pure. The caller destroys
 * *turns_out. */
ds_status dsi_chunks_turns(const ds_graph *graph, uint32_t n_chunks, ds_graph **turns_out);

#endif
