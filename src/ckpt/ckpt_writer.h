/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a checkpoint writer: shared by its parts (collect, places, share, table, commit,
 * saver).
 *
 * A save on N ranks: create agrees about the tag and makes the temporary folder (ckpt_places.c);
 * add and state are local; commit deals out replicated tensors (ckpt_share.c), sends every rank's
 * list to rank 0, which merges and checks it (ckpt_table.c), writes one shard a rank, collects the
 * checksums, writes the manifest, and puts the folder in its place (ckpt_commit.c).
 */
#ifndef DSI_CKPT_WRITER_H
#define DSI_CKPT_WRITER_H

#include "ckpt/ckpt_group.h"
#include "ckpt/ckpt_internal.h"
#include "io/safetensors_write.h"

typedef struct dsi_ckpt_pending {
    ds_checkpoint_tensor tensor;
    ds_extent extent;
    size_t order; /* of the call, keeps slices of one tensor in order */
    const void *data;
    ds_tensor_fill_fn fill;
    void *user;
    size_t fill_base; /* bytes before this slice in what fill gives: not 0 after dealing */
    bool replicated;  /* until it is dealt */
    const char *entry;
} dsi_ckpt_pending;

struct ds_checkpoint_writer {
    ds_ctx *ctx;
    dsi_ckpt_group group;
    char *dir;
    bool keep_latest;
    uint32_t keep_last;
    char *keep_tag; /* NULL: none */

    /* the place of this rank's shard */
    dsi_stage stage; /* of a leader: the one that made the temporary folder of its host */
    bool leads;
    char *folder; /* the temporary folder, on every rank */
    char **hosts; /* [size], names in the arena, when the save folder is not shared; else NULL */
    uint32_t *leaders; /* [size]: who made each rank's folder */

    dsi_ckpt_manifest m;       /* info and states on every rank, the rest on rank 0 */
    dsi_ckpt_pending *pending; /* from malloc; the rest of the lists is in the arena */
    size_t n_pending, pending_capacity, states_capacity;

    /* what dsi_ckpt_prepare makes, so that the rest of the commit allocates nothing */
    ds_tensor_source *sources; /* [n_pending] */
    dsi_safetensors_plan *plan;
    dsi_file_out *shard, *manifest, *latest; /* the last two of leaders */
    uint64_t shard_bytes;                    /* known from the plan */
    uint64_t *report; /* [2 + n_pending]: bytes and digest of the shard, digests of the slices */
    dsi_ckpt_pieces reports; /* rank 0: of all ranks */
    dsi_buf text;            /* the manifest: on rank 0, and where hosts share no folder on all */
    dsi_publish publish;     /* of leaders */
};

/* Appends a state; both texts live in the arena. */
ds_status dsi_ckpt_push_state(ds_checkpoint_writer *w, const char *key, const char *text);

/* Makes the temporary folder of every host. Collective. */
ds_status dsi_ckpt_places_make(ds_checkpoint_writer *w);

/* Replaces replicated slices by the part that this rank stores, so that shards have equal sizes as
 * far as they can. Collective; needs every rank to have given the same replicated tensors. */
ds_status dsi_ckpt_share_out(ds_checkpoint_writer *w);

/* Sorts the own slices, names their entries, and makes the manifest's tensors, slices and states on
 * rank 0. Collective. Errors: ERR_SHAPE names a tensor that is not covered exactly once, ERR_ARG
 * the states that differ between ranks. */
ds_status dsi_ckpt_table_merge(ds_checkpoint_writer *w);
/* Brings the sizes of all shards into rank 0's manifest, and makes room for the checksums; then
 * brings the checksums. Both collective; the second allocates nothing. */
ds_status dsi_ckpt_table_room(ds_checkpoint_writer *w);
ds_status dsi_ckpt_table_digests(ds_checkpoint_writer *w);

/* As dsi_checkpoint_writer_create_on; `before` < 0: this rank has that to report, and creates
 * nothing; all ranks fail with it. */
ds_status dsi_ckpt_writer_create(ds_ctx *ctx, const ds_checkpoint_params *params, dsi_comm *comm,
                                 ds_status before, ds_checkpoint_writer **writer_out);

/* A writer for slices that are measured and not written: it has no folder. Collective. */
ds_status dsi_ckpt_writer_measure(ds_ctx *ctx, dsi_comm *comm, ds_checkpoint_writer **writer_out);

/* The three parts of a commit, all collective. After begin, the pending slices are what this rank
 * will store. prepare merges the lists and makes every file and buffer that writing needs; the data
 * is not read yet. rest writes and allocates nothing, apart from what a fill does and what an error
 * needs; what it replaced, and the writer, end with dsi_ckpt_writer_free. */
ds_status dsi_ckpt_commit_begin(ds_checkpoint_writer *writer);
ds_status dsi_ckpt_prepare(ds_checkpoint_writer *writer);
ds_status dsi_ckpt_commit_rest(ds_checkpoint_writer *writer, bool allow_exchange);
/* After a successful rest: removes what keep_last allows, on a leader. */
void dsi_ckpt_remove_old(ds_checkpoint_writer *writer);

/* Frees the writer and removes its temporary folder. Local. */
void dsi_ckpt_writer_free(ds_checkpoint_writer **writer);

#endif
