/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: logical tensors and named JSON states, in a folder that is there whole or not at
 * all.
 *
 *     SAVE_DIR/latest                    the tag of the newest checkpoint, as DeepSpeed's
 *     SAVE_DIR/TAG/ds_manifest.json      counters, states, tensors with their slices, checksums
 *     SAVE_DIR/TAG/ds_shard_00000_of_00001.safetensors   the slices
 *
 * A tensor is known by its kind ("param", "master", "exp_avg" …) and its logical name, and is
 * stored as slices that cover it exactly; any run reads the part that it needs, whatever cut it
 * saved with. A save is written under a temporary name, synced and renamed; `latest` moves last, so
 * that a killed save leaves the checkpoint before it whole. Everything is covered by XXH3-64
 * checksums: the manifest by its own last line, each slice when it is first read, each file by
 * verify. docs/internals/ckpt.md has the format. Thread rule: one thread at a time for each object.
 */
#ifndef DEEPSPEED_CHECKPOINT_H
#define DEEPSPEED_CHECKPOINT_H

#include <deepspeed/safetensors.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_checkpoint_writer ds_checkpoint_writer;
typedef struct ds_checkpoint ds_checkpoint;

/* A part of a logical tensor: a box, or a range of its elements in row-major order. */
typedef struct ds_extent {
    bool flat;
    int64_t begin, count;         /* flat: elements [begin, begin + count) */
    int64_t offset[DS_MAX_DIMS];  /* box: first index on each dim … */
    int64_t lengths[DS_MAX_DIMS]; /* … and number of indices */
} ds_extent;

DS_API ds_extent ds_extent_whole(ds_shape shape);
DS_API ds_extent ds_extent_flat(int64_t begin, int64_t count);
DS_API ds_extent ds_extent_box(uint32_t n_dims, const int64_t *offset, const int64_t *lengths);
/* Elements of the part, for a tensor of that shape. */
DS_API int64_t ds_extent_count(const ds_extent *extent, ds_shape shape);

/* ---- saving ---- */

/* What happens when ranks give different tags (checkpoint.tag_validation); rank 0's is used. */
typedef enum ds_checkpoint_tag_validation {
    DS_CHECKPOINT_TAG_WARN, /* a line in the log; the default */
    DS_CHECKPOINT_TAG_IGNORE,
    DS_CHECKPOINT_TAG_FAIL /* ERR_PEER on every rank */
} ds_checkpoint_tag_validation;

typedef struct ds_checkpoint_params {
    const char *dir;  /* SAVE_DIR; created when missing */
    const char *tag;  /* default NULL: "global_step{step}". A plain name, not beginning with a
                         dot, at most 200 bytes */
    uint64_t step;    /* optimizer steps done */
    uint64_t samples; /* … and what was trained on so far */
    uint64_t tokens;
    const char *optimizer; /* name, default NULL: none */
    bool keep_latest;      /* default false: `latest` moves to this tag; true: it stays */
    uint32_t keep_last;    /* after the save, older whole checkpoints are removed until so many are
                              left (ds_checkpoint_keep); default 0: all stay. What cannot be removed
                              is a warning: the save itself is done */
    ds_checkpoint_tag_validation tag_validation; /* between ranks; default WARN */
    const char *keep_tag; /* a checkpoint that keep_last never removes, such as the best; it counts
                             among those that are left. Default NULL: none */
    DS_RESERVED(7);
} ds_checkpoint_params;

typedef struct ds_checkpoint_slice {
    const char *kind;        /* of a-z, 0-9, _ */
    const char *name;        /* logical name */
    ds_meta meta;            /* of the whole logical tensor */
    const ds_extent *extent; /* the part that is given; NULL: all of it */
    const void *data;       /* its elements, row-major; borrowed until the commit; NULL: use fill */
    ds_tensor_fill_fn fill; /* called during the commit */
    void *user;
    bool replicated; /* every rank has all of it, and gives it, in the same order: each stores a
                        part, so that the shards come to equal sizes */
    DS_RESERVED(8);
} ds_checkpoint_slice;

/* Starts a save: makes the temporary folder and removes leftovers of killed saves. The caller owns
 * *writer_out. Errors: ERR_ARG (tag), ERR_IO, ERR_NOMEM. */
DS_API ds_status ds_checkpoint_writer_create(ds_ctx *ctx, const ds_checkpoint_params *params,
                                             ds_checkpoint_writer **writer_out);

/* Adds a slice. Nothing is read before the commit. Errors: ERR_ARG (names the tensor), ERR_SHAPE,
 * ERR_NOMEM. */
DS_API ds_status ds_checkpoint_writer_add(ds_checkpoint_writer *writer,
                                          const ds_checkpoint_slice *slice);

/* Adds a state: any JSON text under a section name (of a-z, 0-9, _) such as "config", "engine",
 * "scheduler", "loss_scaler", "random", "data", "mesh". Numbers come back equal, bit for bit;
 * whole numbers above 2^63-1 must be given as texts. Errors: ERR_ARG (names the section and the
 * place in the text), ERR_NOMEM. */
DS_API ds_status ds_checkpoint_writer_state(ds_checkpoint_writer *writer, const char *section,
                                            const char *json);

/* Writes everything, syncs, gives the folder its name (replacing one of that tag in one step) and
 * moves `latest`. Frees *writer whatever the outcome; after an error the folder is as it was.
 * Errors: ERR_SHAPE (the slices of a tensor leave a gap or overlap), ERR_IO, what fill returns. */
DS_API ds_status ds_checkpoint_writer_commit(ds_checkpoint_writer **writer);

/* Gives up: removes the temporary folder, frees, nulls. Accepts NULL and *writer == NULL. */
DS_API void ds_checkpoint_writer_abort(ds_checkpoint_writer **writer);

/* ---- saving behind training ---- */

/* Copies what is saved and writes it on a thread of its own while the caller goes on:
 *
 *     ds_checkpoint_saver_begin(saver, &params, &writer);
 *     ds_checkpoint_writer_add(writer, …); ds_checkpoint_writer_state(writer, …);
 *     ds_checkpoint_saver_commit(saver, &writer);   // copied: the tensors may change now
 *     ds_checkpoint_saver_poll(saver);              // later, at any time
 *
 * One save at a time: begin waits for the one before. A failure of the writing is returned once, by
 * the next begin, poll or wait; the checkpoint before it stays whole. Each save logs how long the
 * caller stood still. Thread rule: one thread for each saver. */
typedef struct ds_checkpoint_saver ds_checkpoint_saver;

typedef struct ds_checkpoint_saver_info {
    size_t copy_bytes;    /* host memory that holds the copy */
    uint64_t n_saves;     /* passed to the thread so far */
    double stall_seconds; /* of the newest: in begin and commit, waiting and copying */
    double write_seconds; /* of the newest that ended */
} ds_checkpoint_saver_info;

/* ctx must outlive the saver. The caller owns *saver_out. Errors: ERR_NOMEM. */
DS_API ds_status ds_checkpoint_saver_create(ds_ctx *ctx, ds_checkpoint_saver **saver_out);
/* Waits for the save in progress, logs its failure if nobody asked, frees, nulls. Accepts NULL and
 * *saver == NULL. */
DS_API void ds_checkpoint_saver_destroy(ds_checkpoint_saver **saver);

/* Makes room for copies of so many bytes, so that the first save need not. The buffer is kept and
 * only grows. Errors: ERR_NOMEM. */
DS_API ds_status ds_checkpoint_saver_reserve(ds_checkpoint_saver *saver, size_t bytes);
/* Waits for the save before and starts a writer for ds_checkpoint_saver_commit. Errors: those of
 * the save before, and as ds_checkpoint_writer_create. */
DS_API ds_status ds_checkpoint_saver_begin(ds_checkpoint_saver *saver,
                                           const ds_checkpoint_params *params,
                                           ds_checkpoint_writer **writer_out);
/* Copies the slices and passes the writer to the thread. *writer is gone whatever the outcome.
 * Errors: ERR_NOMEM, what fill returns. */
DS_API ds_status ds_checkpoint_saver_commit(ds_checkpoint_saver *saver,
                                            ds_checkpoint_writer **writer);
/* DS_IN_PROGRESS while it writes; else OK or the failure of the newest save, once. */
DS_API ds_status ds_checkpoint_saver_poll(ds_checkpoint_saver *saver);
/* Waits for the end of the newest save. */
DS_API ds_status ds_checkpoint_saver_wait(ds_checkpoint_saver *saver);
/* Borrowed; changes with the next call. */
DS_API const ds_checkpoint_saver_info *
ds_checkpoint_saver_get_info(const ds_checkpoint_saver *saver);

/* ---- loading ---- */

/* One logical tensor of a checkpoint; borrowed from it. */
typedef struct ds_checkpoint_tensor {
    const char *kind;
    const char *name;
    ds_meta meta;
    uint32_t first_slice, n_slices; /* for the reader's own use */
} ds_checkpoint_tensor;

typedef struct ds_checkpoint_info {
    const char *tag;
    const char *path; /* of its folder */
    uint64_t step, samples, tokens;
    const char *optimizer; /* "" when none was given */
    uint64_t bytes;        /* of all files */
    uint32_t n_shards;
} ds_checkpoint_info;

/* Opens SAVE_DIR/TAG; tag NULL: the one that `latest` names. Checks the manifest and its checksum,
 * and that every shard is there with the right size and the listed entries; the data is checked as
 * it is read, or by ds_checkpoint_verify. The caller owns *ckpt_out. An error names the file, and
 * the newest other checkpoint of the folder that is whole. Errors: ERR_NOT_FOUND, ERR_FORMAT,
 * ERR_CORRUPT, ERR_UNSUPPORTED (a newer format), ERR_IO, ERR_NOMEM. */
DS_API ds_status ds_checkpoint_open(ds_ctx *ctx, const char *dir, const char *tag,
                                    ds_checkpoint **ckpt_out);
/* Unmaps, frees, nulls. Accepts NULL and *ckpt == NULL. */
DS_API void ds_checkpoint_close(ds_checkpoint **ckpt);

/* All borrowed from the checkpoint. */
DS_API const ds_checkpoint_info *ds_checkpoint_get_info(const ds_checkpoint *ckpt);
DS_API size_t ds_checkpoint_count(const ds_checkpoint *ckpt);
/* Tensor i, ordered by kind and name; NULL for i out of range. */
DS_API const ds_checkpoint_tensor *ds_checkpoint_at(const ds_checkpoint *ckpt, size_t i);
/* NULL when there is none. */
DS_API const ds_checkpoint_tensor *ds_checkpoint_find(const ds_checkpoint *ckpt, const char *kind,
                                                      const char *name);
/* One file of a checkpoint; texts are borrowed. */
typedef struct ds_checkpoint_shard {
    const char *file; /* in the checkpoint's folder */
    uint64_t bytes;
    const char *host; /* that holds it, where the save folder was not shared; else NULL */
    DS_RESERVED(8);
} ds_checkpoint_shard;

/* false for i out of range. */
DS_API bool ds_checkpoint_get_shard(const ds_checkpoint *ckpt, size_t i,
                                    ds_checkpoint_shard *shard_out);
/* The JSON text of a state, NULL when there is none. */
DS_API const char *ds_checkpoint_state(const ds_checkpoint *ckpt, const char *section);
/* Name of state i, NULL for i out of range. */
DS_API const char *ds_checkpoint_state_name(const ds_checkpoint *ckpt, size_t i);

/* Copies a part of a tensor (extent NULL: all of it) to `data`, converted to dtype as
 * ds_safetensors_read does. The checksums of the slices it touches are verified the first time.
 * Errors: ERR_CORRUPT (names file and tensor), ERR_SHAPE (extent, conversion), ERR_NUMERIC. */
DS_API ds_status ds_checkpoint_read(ds_checkpoint *ckpt, const ds_checkpoint_tensor *tensor,
                                    const ds_extent *extent, ds_dtype dtype, void *data);

/* Reads every file and compares all checksums. Errors: ERR_CORRUPT (names file and tensor). */
DS_API ds_status ds_checkpoint_verify(ds_checkpoint *ckpt);

/* ---- weights and copies ---- */

typedef struct ds_checkpoint_export_params {
    const char *folder;       /* created when missing */
    ds_dtype dtype;           /* of all real weights; default NONE: f32 */
    uint64_t max_shard_bytes; /* default 0: one file whatever its size */
    bool exclude_frozen;      /* without parameters that the optimizer does not know */
    bool model_folder;        /* default false: weights alone; true: also config.json, from the
                                 state "model" */
    const char *copy_from; /* with model_folder: a folder whose tokenizer files are copied, too */
    DS_RESERVED(8);
} ds_checkpoint_export_params;

typedef struct ds_checkpoint_export_info {
    uint64_t n_trained, trained_elements;
    uint64_t n_frozen, frozen_elements;
    DS_RESERVED(8);
} ds_checkpoint_export_info;

/* Writes the weights (the masters where there are any) under their names as model.safetensors, or
 * shards with an index. Streamed: memory is bounded by one tensor. info_out may be NULL. Errors:
 * ERR_CORRUPT, ERR_NUMERIC (a value beyond the range of dtype), ERR_NOT_FOUND (no weights),
 * ERR_UNSUPPORTED (frozen parameters are not known), ERR_IO. */
DS_API ds_status ds_checkpoint_export(ds_checkpoint *ckpt,
                                      const ds_checkpoint_export_params *params,
                                      ds_checkpoint_export_info *info_out);

/* Writes the same checkpoint, under the same tag, with one shard into the save folder `dir`.
 * Streamed. Errors: ERR_CORRUPT, as ds_checkpoint_writer_commit. */
DS_API ds_status ds_checkpoint_consolidate(ds_checkpoint *ckpt, const char *dir);

/* ---- folders for DeepSpeed for Python ---- */

typedef struct ds_checkpoint_deepspeed_params {
    const char *dir;     /* the save folder; created when missing */
    uint32_t zero_stage; /* 1, 2 or 3; 0: universal, which any stage and number of ranks loads */
    uint32_t ranks;      /* data-parallel ranks that will load it; universal: at stage 3 at most so
                            many; 1 or more */
    const char *const *order; /* names of the parameters in the order of the module that loads it
                                 (model.named_parameters()); default NULL: by the model type, where
                                 that is known; universal: not needed */
    size_t n_order;
    uint32_t n_groups; /* of the optimizer: 1, or 2 (norms and biases, without weight decay, in the
                          second, as the Trainer has them); default 0: as the run decayed them */
    int64_t sub_group_size; /* stage 3: elements, as in the configuration that loads it; default 0:
                               that of the run */
    const char *like; /* default NULL; a save folder of the job that loads it (a pipeline, ranks
                         that share layers, experts): the same stages and shards, names, order and
                         groups of parameters. Needs zero_stage 1 or 2 (a pipeline: 1); or 0 and a
                         universal folder of it, by which experts (AutoEP) are written */
    DS_RESERVED(7);
} ds_checkpoint_deepspeed_params;

/* Writes a checkpoint as a folder that DeepSpeed for Python loads (engine.load_checkpoint) and goes
 * on from: fp32 weights, moments of Adam, counters, rate, loss scale. Its tag is the checkpoint's
 * ("_universal" behind it where it is); `latest` (or `latest_universal`) moves to it. Also of a
 * folder that DeepSpeed wrote: for another stage and other ranks. Streamed. Errors: ERR_UNSUPPORTED
 * (names the optimizer, a kind of tensor, frozen parameters, stacked ones without like, an unknown
 * order), ERR_ARG (names the parameter that order or like lacks or has too much), ERR_CORRUPT,
 * ERR_IO. */
DS_API ds_status ds_checkpoint_write_deepspeed(ds_checkpoint *ckpt,
                                               const ds_checkpoint_deepspeed_params *params);

/* ---- the save folder ---- */

typedef struct ds_checkpoint_entry {
    char *tag;
    uint64_t step;
    uint64_t bytes;
    bool whole;           /* its manifest is right and its files are there with their sizes */
    bool latest;          /* `latest` names it */
    uint32_t n_elsewhere; /* shards that other hosts hold, where the folder was not shared; then it
                             is not whole here, but may be right */
    DS_RESERVED(8);
} ds_checkpoint_entry;

/* Lists the checkpoints of a folder by step, then tag; those that are not whole have step 0. The
 * caller frees the list with ds_checkpoint_list_free. */
DS_API ds_status ds_checkpoint_list(ds_ctx *ctx, const char *dir, ds_checkpoint_entry **list_out,
                                    size_t *n_out);
DS_API void ds_checkpoint_list_free(ds_checkpoint_entry *list, size_t n);

/* Removes whole checkpoints, oldest step first, until n are left (n >= 1). The one that `latest`
 * names and the newest whole one stay, and what is not whole is left to the user. */
DS_API ds_status ds_checkpoint_keep(ds_ctx *ctx, const char *dir, size_t n);

#ifdef __cplusplus
}
#endif
#endif
