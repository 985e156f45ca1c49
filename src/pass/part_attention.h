/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of some queries to keys that come one part after the other: what rings
 * (ring_attention.c) and chunks (chunks.c) have in common. Internal to pass/.
 *
 * A round is the keys of one run of positions. Ranks that share it have a part each, and it takes
 * as many steps as there are: keys and values turn to the next rank between them, the sums of their
 * gradients with them and once more, home. A turn stands before the step whose keys it follows, so
 * that it can run beside it.
 *
 *     keys of part    own     the rank before's     the one before that's …
 *     k, v            k, v -> turn_parts          -> turn_parts
 *     y, lse          part -> part                -> part
 *     dq              part -> part                -> part
 *     dk, dv          part -> turn -> part        -> turn -> part -> turn: home
 */
#ifndef DSI_PASS_PART_ATTENTION_H
#define DSI_PASS_PART_ATTENTION_H

#include "ir/graph.h"
#include "op/ops.h"

/* Operands of attention, and of its gradient. */
enum {
    DSI_AT_Q,
    DSI_AT_K,
    DSI_AT_V,
    DSI_AT_FIRST,
    DSI_AT_OFFSET,
    DSI_AT_RNG,
    DSI_AT_HEADS,
    DSI_AT_ROWS,
    DSI_AT_KEYS,
    DSI_AT_END,
    DSI_AT_N
};
enum {
    DSI_ATB_DY,
    DSI_ATB_Q,
    DSI_ATB_K,
    DSI_ATB_V,
    DSI_ATB_Y,
    DSI_ATB_LSE,
    DSI_ATB_FIRST,
    DSI_ATB_RNG,
    DSI_ATB_HEADS,
    DSI_ATB_ROWS,
    DSI_ATB_KEYS,
    DSI_ATB_END,
    DSI_ATB_DLSE,
    DSI_ATB_N
};

/* Queries of a run of positions: their operands, ROWS their numbers; K and V are not read. */
typedef struct dsi_part_queries {
    dsi_attention_attrs attrs;
    const ds_value *of; /* DSI_AT_N, or backward DSI_ATB_N, DS_NONE: not there */
    int64_t all_keys;   /* positions of the whole sequence */
    int64_t length;     /* of these queries */
} dsi_part_queries;

/* Keys and values of a run of positions. */
typedef struct dsi_part_round {
    ds_value k, v;
    ds_value numbers;      /* of the keys before any turn; DS_NONE: made */
    int64_t start, length; /* positions */
    int64_t ranks;         /* that have a part of it each; 1: nothing turns */
    bool halves;           /* each part is two pieces (sequence_order.h) */
    bool last;             /* no round comes behind */
} dsi_part_round;

/* Numbers of the positions of a round behind so many turns. */
ds_status dsi_part_numbers(ds_graph *to, const dsi_part_round *round, int64_t turns,
                           ds_value *value_out);

/* Merges a round into seen[0], y, and seen[1], lse; DS_NONE before the first. */
ds_status dsi_part_forward(ds_graph *to, const dsi_part_queries *queries,
                           const dsi_part_round *round, ds_value *seen);

/* Adds a round's to sums[0], dq, of these queries, and to sums[1], dk, and sums[2], dv, of the
 * round, in fp32; DS_NONE before the first. */
ds_status dsi_part_backward(ds_graph *to, const dsi_part_queries *queries,
                            const dsi_part_round *round, ds_value *sums);

/* The value in a type, where it is of another. */
ds_status dsi_part_cast(ds_graph *to, ds_dtype dtype, ds_value *value);

#endif
