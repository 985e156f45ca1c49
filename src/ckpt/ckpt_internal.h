/* SPDX-License-Identifier: Apache-2.0 */
/* What writer, manifest and reader of checkpoints share. */
#ifndef DSI_CKPT_INTERNAL_H
#define DSI_CKPT_INTERNAL_H

#include "base/arena.h"
#include "base/buf.h"
#include "io/extent.h"
#include "io/file.h"

#define DSI_CKPT_FORMAT         "ds_checkpoint"
#define DSI_CKPT_VERSION        1
#define DSI_CKPT_MANIFEST       "ds_manifest.json"
#define DSI_CKPT_LATEST         "latest"
#define DSI_CKPT_MANIFEST_BYTES ((size_t)1 << 30) /* ceiling */

/* One stored slice; entry is its name in the shard file. */
typedef struct dsi_ckpt_slice {
    uint32_t shard;
    size_t order; /* writer only: in its shard */
    const char *entry;
    ds_extent extent;
    uint64_t digest;
    const ds_safetensor *stored; /* reader only */
    bool verified;               /* reader only */
} dsi_ckpt_slice;

typedef struct dsi_ckpt_shard {
    const char *file; /* plain name */
    const char *host; /* that holds the file; NULL: the save folder is shared */
    uint64_t bytes;
    uint64_t digest;
    ds_safetensors *st; /* reader only; NULL until it is needed */
    bool absent;        /* reader only: not in this folder; another host has it */
} dsi_ckpt_shard;

/* A file of torch.save inside of a shard: what verify compares of foreign ones. */
typedef struct dsi_ckpt_part {
    uint32_t shard;
    size_t begin, bytes;
} dsi_ckpt_part;

/* A manifest in memory: what is written, and what was read. All texts live in the arena.
 * Invariants: tensors are sorted by kind, then name, without equals; the slices of one tensor are
 * neighbours and cover it exactly. */
typedef struct dsi_ckpt_manifest {
    dsi_arena *arena;
    ds_checkpoint_info info;
    uint64_t digest; /* reader only: of the text */
    bool foreign;    /* reader only: files of DeepSpeed for Python or of torch; ckpt_deepspeed.h,
                        ckpt_distcp.h */
    dsi_ckpt_part *parts; /* reader only: of torch's, whose shards are no files of torch.save */
    size_t n_parts;
    ds_text_pair *states;
    size_t n_states;
    dsi_ckpt_shard *shards;
    size_t n_shards;
    ds_checkpoint_tensor *tensors;
    size_t n_tensors;
    bool *ascending; /* [n_tensors], reader only: flat slices, in the order of their elements */
    dsi_ckpt_slice *slices;
    size_t n_slices;
} dsi_ckpt_manifest;

/* Name made of a-z, 0-9 and _ only, at most 64 bytes. */
bool dsi_ckpt_is_word(const char *text);
/* A tag that may name a folder. */
bool dsi_ckpt_is_tag(const char *tag);
/* Entry name of slice k of n: "kind/name", with "#k" when there are several. */
char *dsi_ckpt_entry_name(dsi_arena *arena, const char *kind, const char *name, uint32_t k,
                          uint32_t n);
/* What an extent's entry has as shape in the shard file. */
ds_shape dsi_ckpt_entry_shape(const ds_extent *extent, ds_shape shape);
/* File name of a rank's shard. */
#define DSI_CKPT_SHARD_NAME 64
void dsi_ckpt_shard_name(uint32_t rank, uint32_t size, char *name);
int dsi_ckpt_compare_tensors(const void *a, const void *b);

/* The manifest's text with its checksum line. Errors: ERR_NOMEM, ERR_LIMIT. */
ds_status dsi_ckpt_manifest_text(ds_ctx *ctx, const dsi_ckpt_manifest *m, dsi_buf *out);
/* Checks and parses n bytes of text; path is for messages. m->arena is the caller's. */
ds_status dsi_ckpt_manifest_parse(ds_ctx *ctx, const char *path, const char *text, size_t n,
                                  dsi_ckpt_manifest *m);

/* How much of a checkpoint is opened at once. */
typedef enum dsi_ckpt_depth {
    DSI_CKPT_WHOLE, /* every shard must be there; all are mapped and their entries compared */
    DSI_CKPT_LAZY   /* every shard of this host must be there with its size; it is mapped and its
                       entries are compared when a read needs it */
} dsi_ckpt_depth;

/* Opens without the search for another checkpoint that the public function names in its error. */
ds_status dsi_ckpt_open_tag(ds_ctx *ctx, const char *dir, const char *tag, dsi_ckpt_depth depth,
                            ds_checkpoint **ckpt_out);
ds_ctx *dsi_ckpt_ctx(const ds_checkpoint *ckpt);
/* Gives the memory that a tensor's mapped slices occupy back; they are read again when needed. */
void dsi_ckpt_release(const ds_checkpoint *ckpt, const ds_checkpoint_tensor *tensor);
/* Checksum of the manifest: equal on all hosts of one save. */
uint64_t dsi_ckpt_manifest_digest(const ds_checkpoint *ckpt);
/* The manifest, with the slices' places: for ckpt_pool.c. */
dsi_ckpt_manifest *dsi_ckpt_manifest_of(ds_checkpoint *ckpt);
/* Maps a slice's shard unless it is, and compares the slice's checksum once. */
ds_status dsi_ckpt_verify_slice(ds_checkpoint *ckpt, const ds_checkpoint_tensor *tensor,
                                dsi_ckpt_slice *slice);
/* Number of shards that are not in this folder. */
size_t dsi_ckpt_n_absent(const ds_checkpoint *ckpt);
/* Records the present error again with the newest sound checkpoint of the folder besides `tag`. */
/* As ds_checkpoint_keep; a checkpoint of this tag stays too, and counts. tag may be NULL. */
ds_status dsi_ckpt_keep_with(ds_ctx *ctx, const char *dir, size_t n_keep, const char *tag);
ds_status dsi_ckpt_fail_with_offer(ds_ctx *ctx, ds_status status, const char *dir, const char *tag);
/* The tag that `latest` names, into 256 bytes. */
ds_status dsi_ckpt_read_latest(ds_ctx *ctx, const char *dir, char *tag);
/* Commit with a choice of the way to replace a tag (see dsi_folder_publish). For tests. */
ds_status dsi_ckpt_commit(ds_checkpoint_writer **writer, bool allow_exchange);

#endif
