/* SPDX-License-Identifier: Apache-2.0 */
/* The merges that the scores of SentencePiece's BPE mean: all ways to put a piece together from two
 * others, the best scores first. For GGUF files and for SentencePiece's own. */
#ifndef DSI_IO_PIECE_MERGES_H
#define DSI_IO_PIECE_MERGES_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dsi_scored_piece {
    const char *text;
    size_t n;
    float score;
    bool merges; /* is made by merges and part of them */
} dsi_scored_piece;

/* Two pieces that make a third, all by their places. */
typedef struct dsi_piece_merge {
    float score, left_score, right_score;
    uint32_t whole, left, right;
    size_t order; /* in which it was found */
} dsi_piece_merge;

/* The texts must differ. The caller frees *merges_out. Errors: ERR_NOMEM. */
ds_status dsi_piece_merges(ds_ctx *ctx, const dsi_scored_piece *pieces, size_t n,
                           dsi_piece_merge **merges_out, size_t *n_out);

#endif
