/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint that the hosts of a job have together: where they do not share the folder, what one
 * lacks comes from another over the communicator, one tensor at a time. Called by the engine.
 *
 * 1. Every rank reads the same tensors in the same order, each its own part of them.
 * 2. Where every rank sees every shard nothing is exchanged beyond the opening.
 * 3. A rank holds at most one tensor's worth of borrowed data, and gives it back after the read.
 */
#ifndef DSI_CKPT_POOL_H
#define DSI_CKPT_POOL_H

#include "comm/comm.h"
#include <deepspeed/checkpoint.h>

typedef struct dsi_ckpt_pool dsi_ckpt_pool;

/* Collective. ckpt is from dsi_checkpoint_open_on with the same comm (NULL: one rank); both outlive
 * the pool. Errors: ERR_NOMEM, ERR_PEER. */
ds_status dsi_ckpt_pool_open(ds_ctx *ctx, ds_checkpoint *ckpt, dsi_comm *comm,
                             dsi_ckpt_pool **pool_out);
/* Local; NULL is accepted. */
void dsi_ckpt_pool_close(dsi_ckpt_pool **pool);

/* Collective: ds_checkpoint_read of this rank's part; extent NULL: this rank needs nothing (data is
 * ignored). Errors of any rank are everyone's where something is exchanged: ERR_NOT_FOUND names
 * shards that no host has; ERR_PEER; as ds_checkpoint_read. */
ds_status dsi_ckpt_pool_read(dsi_ckpt_pool *pool, const ds_checkpoint_tensor *tensor,
                             const ds_extent *extent, ds_dtype dtype, void *data);

#endif
