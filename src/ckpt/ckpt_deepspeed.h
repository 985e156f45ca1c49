/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of DeepSpeed for Python (ZeRO stages 1 to 3, BF16_Optimizer; data-parallel ranks, ranks
 * that share layers, or stages of a pipeline; or a universal one) as a manifest in memory, so that
 * everything that reads a checkpoint reads it: inspect, export, consolidate, a resume on any ranks.
 * Called by ckpt_reader.c where a folder has no manifest.
 *
 * Each rank's flat partition becomes flat slices of the logical tensors, which point into the
 * mapped files; nothing is copied. Tensors: "master", "exp_avg", "exp_avg_sq" of what is trained,
 * "param" of what is frozen. States: "engine", "loss_scaler", "frozen" as an engine of ours saves
 * them, "origin" (who wrote it) and "ds_config". There is no seed and no data cursor.
 */
#ifndef DSI_CKPT_CKPT_DEEPSPEED_H
#define DSI_CKPT_CKPT_DEEPSPEED_H

#include "ckpt/box_runs.h"
#include "ckpt/ckpt_internal.h"
#include "io/torch_file.h"

enum { DSI_DEEPSPEED_PIECES = 4096 };

/* A part of a rank's shard: elements from `begin` on are a box of the whole tensor. */
typedef struct dsi_deepspeed_piece {
    dsi_box box;
    int64_t begin;
    bool first; /* no lower rank has the same one */
} dsi_deepspeed_piece;

/* What the reading shares between its files. Freed by ckpt_deepspeed.c. */
typedef struct dsi_deepspeed {
    ds_ctx *ctx;
    const char *folder;
    dsi_ckpt_manifest *m;
    uint32_t n_ranks;     /* data-parallel ones */
    uint32_t n_model;     /* ranks that share each layer, or stages of a pipeline; the arrays have
                             the files of each, in a row, and a copy of this struct looks at those
                             of one */
    bool pipeline;        /* the latter */
    bool universal;       /* models: of all ranks or stages, n_model is 1 */
    bool experts;         /* that ranks have each other ones of, or that are all in one (AutoEP) */
    uint32_t first_shard; /* of its optims */
    dsi_torch_file *optims; /* [n_ranks] */
    dsi_torch_file *models; /* [n_models]: 1, or n_ranks at stage 3 */
    uint32_t n_models;
    const dsi_pickle **states; /* [n_ranks]: optimizer_state_dict of each */
    double steps;  /* that the optimizer made, where a file of its own says so; else negative */
    int64_t stage; /* 1, 2 or 3; 0: BF16_Optimizer, which is cut as 1 */
    size_t room_tensors, room_slices;
} dsi_deepspeed;

/* Whether the folder is one that dsi_ckpt_deepspeed_read can read, by the names of its files. */
bool dsi_ckpt_deepspeed_is(const char *folder);
/* Fills the manifest, whose arena is there; the shards own the maps. Errors: as dsi_torch_open;
 * ERR_FORMAT and ERR_UNSUPPORTED, naming file and key; ERR_NOT_FOUND (a rank's file). */
ds_status dsi_ckpt_deepspeed_read(ds_ctx *ctx, const char *folder, const char *tag,
                                  dsi_ckpt_manifest *m);

/* ---- between its files ---- */

/* Tensors and slices of what the optimizer has: stages 1 and 2, or 3. */
ds_status dsi_deepspeed_flat(dsi_deepspeed *d);
ds_status dsi_deepspeed_zero3(dsi_deepspeed *d);
/* Begins a tensor; its slices follow. dims: a tuple of numbers. */
ds_status dsi_deepspeed_tensor(dsi_deepspeed *d, const char *kind, const char *name, ds_dtype dtype,
                               const dsi_pickle *dims);
/* The same by its shape. */
ds_status dsi_deepspeed_tensor_of(dsi_deepspeed *d, const char *kind, const char *name,
                                  ds_meta meta);
/* A part of the newest tensor, in the manifest's shard at `data`. */
ds_status dsi_deepspeed_part(dsi_deepspeed *d, uint32_t shard, const ds_extent *extent,
                             const uint8_t *data);
/* ckpt_deepspeed_model.c: the tensors that the model-parallel ranks' files have, one rank's after
 * the other's, as those of the model: by affine_map of universal_checkpoint_info. */
ds_status dsi_deepspeed_join(dsi_deepspeed *d);
/* The pieces of which rank mp's shard of a parameter is made, and the whole parameter's shape, by
 * the file of models[0]. pieces: [DSI_DEEPSPEED_PIECES]. */
ds_status dsi_deepspeed_pieces(const dsi_deepspeed *d, const char *name, uint32_t mp,
                               ds_shape shard, ds_shape *whole_out, dsi_deepspeed_piece *pieces,
                               size_t *n_out);
/* The whole shape by affine_map; false: it has none for this name. */
bool dsi_deepspeed_logical(const dsi_deepspeed *d, const char *name, ds_shape *shape_out);
/* ckpt_deepspeed_whole.c: the shape in the model of a parameter of a universal folder, of which the
 * file holds all, in that shape. ERR_SHAPE: it is not what the ranks' shapes make. */
ds_status dsi_deepspeed_whole(const dsi_deepspeed *d, const char *name, const dsi_torch_file *file,
                              ds_shape shape, ds_shape *whole_out);
/* Whether param_shapes of a model's file has it. */
bool dsi_deepspeed_has(const dsi_deepspeed *d, const char *name);
/* Whether the file holds all experts (AutoEP), and their number, the first dim. */
bool dsi_deepspeed_is_experts(const dsi_torch_file *file);
ds_status dsi_deepspeed_whole_experts(const dsi_deepspeed *d, const char *name,
                                      const dsi_torch_file *file, ds_shape shape,
                                      int64_t *n_experts_out);
/* ckpt_deepspeed_pipe.c: what a stage has from tensor `first` on without what an earlier one has
 * too (a tied layer); and that the stages are of one save, each with the same counters. */
ds_status dsi_deepspeed_drop_tied(dsi_deepspeed *d, size_t first);
ds_status dsi_deepspeed_check_stages(const dsi_deepspeed *d);
/* ckpt_deepspeed_experts.c: how many ranks have other experts, by a group of the optimizer (1: none
 * of experts); the name of a rank's own expert among all; and experts one by one as the stacked
 * parameters that the model has, after they have the model's names. */
ds_status dsi_deepspeed_expert_ranks(const dsi_deepspeed *d, int64_t g, uint32_t *n_out);
ds_status dsi_deepspeed_expert_name(const dsi_deepspeed *d, const dsi_pickle *shapes,
                                    const char **name, uint32_t rank);
ds_status dsi_deepspeed_stack(dsi_deepspeed *d);
/* The name of one expert of a parameter that holds all of them (AutoEP): PREFIX.experts.w1 as
 * PREFIX.experts.N.w1; in the arena. */
ds_status dsi_deepspeed_expert_of(const dsi_deepspeed *d, dsi_arena *arena, const char *name,
                                  int64_t expert, const char **name_out);
/* ckpt_deepspeed_names.c: a module's own names as those of the model. */
ds_status dsi_deepspeed_names(dsi_deepspeed *d);
/* The folder's parameter_names.txt, from malloc; NULL: it has none. */
ds_status dsi_deepspeed_names_file(ds_ctx *ctx, const char *folder, char **path_out);
/* Elements [begin, begin + count) of the newest tensor, in file `shard` at `data`. */
ds_status dsi_deepspeed_slice(dsi_deepspeed *d, uint32_t shard, int64_t begin, int64_t count,
                              const uint8_t *data);
/* Ends it: its slices have all of its elements. */
ds_status dsi_deepspeed_end_tensor(dsi_deepspeed *d);
/* A tuple of numbers as a shape; false for anything else. */
bool dsi_deepspeed_dims(const dsi_pickle *dims, ds_shape *shape_out);
/* Elements of a shape; -1 when it is none. */
int64_t dsi_deepspeed_count(const dsi_pickle *dims);
/* The moments of group g of rank r, a dict; NULL. */
const dsi_pickle *dsi_deepspeed_moments(const dsi_deepspeed *d, uint32_t rank, int64_t g);
/* What a universal checkpoint holds; names: those in its folder zero. */
ds_status dsi_deepspeed_universal(dsi_deepspeed *d, char *const *names, size_t n);
/* One more shard in the manifest, which has room for it. prefix NULL: its plain file name. */
ds_status dsi_deepspeed_shard(dsi_deepspeed *d, const dsi_torch_file *file, const char *prefix);
/* The shard keeps the file's map; its values go. */
ds_status dsi_deepspeed_own_map(dsi_deepspeed *d, dsi_ckpt_shard *shard, dsi_torch_file *file);
/* The states as JSON. */
ds_status dsi_deepspeed_states(dsi_deepspeed *d);

#endif
