/* SPDX-License-Identifier: Apache-2.0 */
/* Which positions of a sequence a rank has where ranks share it and keys and values travel.
 *
 * Of n parts, part i has positions [i·L, (i+1)·L). A query sees the keys before it, so that the
 * last part has most to do; in halves a part is a piece from the front and one from the back,
 * mirrored:
 *
 *     4 parts of 16 positions in halves: 0 1 14 15 | 2 3 12 13 | 4 5 10 11 | 6 7 8 9
 *
 * so that all parts see as many pairs. Of an odd L the piece from the back is longer by one. Used
 * by the operator row_numbers and by whoever writes a batch into its parts. */
#ifndef DSI_OP_SEQUENCE_ORDER_H
#define DSI_OP_SEQUENCE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum { DSI_SEQUENCE_RUNS = 2 }; /* of a part */

/* Elements [at, at+n) of a part are positions [from, from+n). */
typedef struct dsi_sequence_run {
    int64_t at, from, n;
} dsi_sequence_run;

/* Run 0 or 1 (n may be 0) of part `part` of a sequence of this length in n_parts equal parts. */
static inline dsi_sequence_run dsi_sequence_run_of(int64_t length, int64_t n_parts, bool halves,
                                                   int64_t part, int run)
{
    const int64_t each = length / n_parts;
    const int64_t front = halves ? each / 2 : each;
    const int64_t back = each - front;
    return run == 0
               ? (dsi_sequence_run){0, part * front, front}
               : (dsi_sequence_run){front, n_parts * front + (n_parts - 1 - part) * back, back};
}

/* Positions of a chunk of at most so many that ranks share: each has as many. */
static inline int64_t dsi_sequence_chunk(int64_t most, int64_t ranks)
{
    return most / ranks * ranks;
}

/* Run i of a part of a sequence that is computed in chunks of so many positions, a multiple of
 * n_parts: its share of chunk i, so that each chunk is shared by all. The last chunk has the rest.
 */
static inline dsi_sequence_run dsi_sequence_chunk_run(int64_t length, int64_t chunk,
                                                      int64_t n_parts, int64_t part, int64_t i)
{
    const int64_t left = length - i * chunk;
    const int64_t each = (left < chunk ? left : chunk) / n_parts;
    return (dsi_sequence_run){i * (chunk / n_parts), i * chunk + part * each, each};
}

#endif
