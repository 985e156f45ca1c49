/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks that save or load one checkpoint together: small exchanges, and agreement about errors.
 *
 * Called by the writer, the reader and the saver. With one rank (comm NULL or of size 1) every call
 * is local. Invariant: all ranks make the same calls in the same order; a rank with an error says
 * so in the next dsi_ckpt_agree, never by staying away. A failure of the communicator itself ends
 * it for all ranks (dsi_comm_abort), and every later call of the group fails at once.
 */
#ifndef DSI_CKPT_GROUP_H
#define DSI_CKPT_GROUP_H

#include "comm/rank_names.h"

enum { DSI_CKPT_REASON_BYTES = 1536, DSI_CKPT_HOST_BYTES = 72 };

typedef struct dsi_ckpt_group {
    ds_ctx *ctx;
    dsi_comm *comm; /* borrowed; NULL: one rank */
    uint32_t rank, size;
    char host[DSI_CKPT_HOST_BYTES];
    char what[64];   /* "checkpoint global_step5", for a diagnosis */
    int32_t *states; /* [size] */
    size_t *counts;  /* [2 * size] */
    char *reason;    /* DSI_CKPT_REASON_BYTES */
    ds_status broken;
    double granted; /* seconds added to comm->timeout until the close */
} dsi_ckpt_group;

/* Errors: ERR_NOMEM; the other ranks then learn it through dsi_comm_abort. */
ds_status dsi_ckpt_group_open(ds_ctx *ctx, dsi_comm *comm, dsi_ckpt_group *group);
void dsi_ckpt_group_close(dsi_ckpt_group *group);

/* Gives every rank the first failing rank's status and reason; OK when all are OK. */
ds_status dsi_ckpt_agree(dsi_ckpt_group *group, ds_status status);
/* `bytes` of each rank to all_out[size * bytes] on every rank. */
ds_status dsi_ckpt_gather(dsi_ckpt_group *group, const void *mine, size_t bytes, void *all_out);
ds_status dsi_ckpt_broadcast(dsi_ckpt_group *group, void *data, size_t bytes, uint32_t root);

/* What rank 0 got from the ranks: rank r's bytes are data[at[r] … at[r + 1]). */
typedef struct dsi_ckpt_pieces {
    uint8_t *data;
    size_t *at;
} dsi_ckpt_pieces;

/* Any number of bytes from each rank to rank 0; the others get empty pieces. The caller frees them.
 * Agrees about its own errors. */
ds_status dsi_ckpt_to_root(dsi_ckpt_group *group, const void *mine, size_t bytes,
                           dsi_ckpt_pieces *pieces_out);
/* The same once more, with as many bytes from each rank as pieces have room for; allocates nothing.
 */
ds_status dsi_ckpt_to_root_again(dsi_ckpt_group *group, const void *mine, size_t bytes,
                                 dsi_ckpt_pieces *pieces);
void dsi_ckpt_pieces_free(dsi_ckpt_pieces *pieces);

#endif
