/* SPDX-License-Identifier: Apache-2.0 */
/* Redistribution: how a value gets from one placement to another, as a list of moves.
 *
 * Called by localize (a move becomes nodes of the local graph), by engines that gather or scatter
 * cells at set-up and in checkpoints, and by tests. Planning is pure: every rank gets the same
 * list. The elements that come out are those of the logical value, bit for bit; where placements
 * are Partial it is the one canonical sum of placement.h, whatever the moves.
 *
 * A list is the cheapest (bytes a rank sends or receives, then number of moves, then first found)
 * of: [slice] [reduce …] [slice] [one exchange] [mask].
 */
#ifndef DSI_PLACE_REDISTRIBUTE_H
#define DSI_PLACE_REDISTRIBUTE_H

#include "place/placement.h"

/* Local moves first. A collective's operand is either the local memory as it is, or chunks: for
 * each rank of the group in order `chunk` elements (all_to_all: exactly what goes there), which
 * PACK makes and UNPACK reads. Without them the memory is in that form already. */
#define DSI_MOVE_LIST(X)                                                                           \
    X(SLICE, "slice")   /* keep a part of what the rank has */                                     \
    X(MASK, "mask")     /* keep on index 0 of the group, the identity of the sum elsewhere */      \
    X(PACK, "pack")     /* pad, or lay out in chunks, for the collective `of` that follows */      \
    X(UNPACK, "unpack") /* the reverse, after the collective `of` */                               \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BROADCAST, "broadcast")

typedef enum dsi_move_kind {
#define X(id, text) DSI_MOVE_##id,
    DSI_MOVE_LIST(X)
#undef X
        DSI_MOVE_KIND_COUNT
} dsi_move_kind;

typedef struct dsi_move {
    dsi_move_kind kind;
    dsi_move_kind of; /* of PACK and UNPACK: the collective */
    dsi_axes axes;    /* the group, in the order of its indices (and of its sum); none: local */
    dsi_placement from, to; /* of the whole exchange that the move belongs to */
    int64_t chunk;          /* elements of a chunk; 0: not chunked, see above */
    uint32_t root;          /* of BROADCAST: index in the group */
    size_t bytes;           /* most that a rank sends or receives */
} dsi_move;

enum { DSI_MOVES_MOST = 3 * DSI_AXIS_COUNT + 8 };

typedef struct dsi_moves {
    dsi_mesh mesh;
    ds_meta meta;           /* of the logical value */
    dsi_placement from, to; /* simplified */
    uint32_t n;
    dsi_move move[DSI_MOVES_MOST];
    size_t bytes;      /* of all moves */
    size_t peak_bytes; /* most that a rank holds at once: what a move reads and writes */
} dsi_moves;

typedef struct dsi_redistribution {
    const char *name; /* of the value, for errors */
    dsi_mesh mesh;
    ds_meta meta;
    dsi_placement from, to;
    size_t most_bytes; /* default 0: no bound. A list with a larger peak is refused */
} dsi_redistribution;

/* Errors name the value and both placements:
 *  ERR_SHAPE        a placement does not fit mesh or shape;
 *  ERR_UNSUPPORTED  ambiguous: to Partial from a cut (nobody says which rank adds what); a
 *                   dtype that is not summed;
 *  ERR_LIMIT        larger than most_bytes. */
ds_status dsi_redistribute(ds_ctx *ctx, const dsi_redistribution *r, dsi_moves *moves_out);

/* Lists that were found, so that equal questions are asked once: a graph asks the same of all its
 * layers, and finding a list looks at every rank. {0} is empty; the owner frees it. */
typedef struct dsi_moves_memo {
    struct dsi_moves_entry *entries;
    uint32_t n, capacity;
} dsi_moves_memo;

/* As dsi_redistribute; *moves_out is the memo's, until the next call. Errors: also ERR_NOMEM. */
ds_status dsi_redistribute_memo(ds_ctx *ctx, dsi_moves_memo *memo, const dsi_redistribution *r,
                                const dsi_moves **moves_out);
void dsi_moves_memo_free(dsi_moves_memo *memo);

/* Whether adding along `first` and later along the rest of `partial` gives the canonical sum along
 * all of `partial` (masks of axes): integers; else f32 or f64, and `first` the innermost of them,
 * with a power of two of ranks, so that its groups are aligned blocks of the tree. */
bool dsi_sum_splits(const dsi_mesh *mesh, ds_dtype dtype, uint32_t partial, uint32_t first);

/* A line a move: "reduce_scatter over (dps) of 4, chunks of 12, 144 bytes". */
void dsi_moves_text(const dsi_moves *moves, dsi_buf *buf);
bool dsi_move_is_local(dsi_move_kind kind);

#endif
