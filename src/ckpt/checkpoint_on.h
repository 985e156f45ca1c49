/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints saved and loaded by several ranks together: what deepspeed/checkpoint.h does, over a
 * communicator. Called by the engine.
 *
 * Every rank makes the same calls in the same order. A rank adds the slices that it owns (flat
 * ranges of masters and moments) and, as `replicated`, what all ranks have; states may come from
 * rank 0 alone or from all (then alike). An error of one rank, a full disk say, fails the save on
 * all with that rank's reason, and the folder is as it was. The communicator is used in create,
 * commit and abort only, by the thread that calls them.
 */
#ifndef DSI_CKPT_CHECKPOINT_ON_H
#define DSI_CKPT_CHECKPOINT_ON_H

#include "comm/comm.h"
#include <deepspeed/checkpoint.h>

/* Collective. comm NULL: one rank. comm and ctx outlive the writer. The ranks may see one save
 * folder or have one for each host: then each host gets its shards and a manifest that says which
 * host holds which. Errors: ERR_PEER (ranks disagree about tag or counters, or one is gone), and as
 * ds_checkpoint_writer_create of any rank. ds_checkpoint_writer_commit and _abort are collective
 * for this writer: a rank that gives up calls abort where the others commit. */
ds_status dsi_checkpoint_writer_create_on(ds_ctx *ctx, const ds_checkpoint_params *params,
                                          dsi_comm *comm, ds_checkpoint_writer **writer_out);

/* Collective: every rank opens the same checkpoint (tag NULL: the one that rank 0's `latest`
 * names) and then reads what it needs, by itself. Shards are mapped when a read first needs them;
 * where hosts do not share the folder, each host's part must be there and is found to belong to
 * one save, and a read that needs another host's shard names it (ERR_NOT_FOUND). Errors of any rank
 * are everyone's, with the newest other whole checkpoint of rank 0's folder. */
ds_status dsi_checkpoint_open_on(ds_ctx *ctx, const char *dir, const char *tag, dsi_comm *comm,
                                 ds_checkpoint **ckpt_out);

/* A saver of all ranks (see ds_checkpoint_saver_create): collective, as are begin and commit of it;
 * poll, wait and destroy are local. It makes a communicator of its own for its thread. */
ds_status dsi_checkpoint_saver_create_on(ds_ctx *ctx, dsi_comm *comm,
                                         ds_checkpoint_saver **saver_out);

/* Makes the room for copies before the first save: measure gives a writer that takes the same
 * slices as a save and is never written; reserve_for reserves what this rank would copy of them,
 * and frees the writer whatever the outcome. limit: bytes that may be reserved; 0: any. Both
 * collective. Errors: ERR_LIMIT, ERR_NOMEM. */
ds_status dsi_checkpoint_saver_measure(ds_checkpoint_saver *saver,
                                       ds_checkpoint_writer **writer_out);
ds_status dsi_checkpoint_saver_reserve_for(ds_checkpoint_saver *saver,
                                           ds_checkpoint_writer **writer, size_t limit);

#endif
