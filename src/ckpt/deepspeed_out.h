/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint written as a folder that DeepSpeed for Python loads and goes on from: ZeRO stages 1,
 * 2 and 3 for a number of ranks, like a folder that a job saved (the stages of a pipeline, ranks
 * that share layers, experts), or universal. What ckpt_deepspeed.h reads, and what it read itself
 * (so a folder of DeepSpeed is cut anew for another stage and other ranks).
 *
 *     stages 1, 2    mp_rank_00_model_states.pt            weights, names, shapes, counters
 *     stage 3        zero_pp_rank_R_mp_rank_00_model_states.pt      the same without weights
 *     1 to 3         [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt  rank R's partition
 *     like another   the same by stage or rank that shares layers (mp_rank_MM), and the files of
 *                    layers (layer_LL-model_states.pt) and of experts (layer_L_expert_E_…)
 *     universal      zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt, zero/optimizer_state.pt
 *
 * DeepSpeed copies a partition by its place alone, so the order of parameters has to be that of the
 * module that loads it: deepspeed_order.c. Files are written one after the other; memory is
 * bounded by the names and one block.
 */
#ifndef DSI_CKPT_DEEPSPEED_OUT_H
#define DSI_CKPT_DEEPSPEED_OUT_H

#include "ckpt/box_runs.h"
#include "ckpt/ckpt_internal.h"
#include "config/config_values.h"
#include "io/torch_write.h"

#include <jansson.h>

/* The version of DeepSpeed whose files these are; it compares it with 0.3.17. */
#define DSI_OUT_VERSION "0.19.8"

enum { DSI_OUT_WEIGHT, DSI_OUT_FIRST, DSI_OUT_SECOND, DSI_OUT_KINDS, DSI_OUT_GROUPS = 16 };

/* A parameter; tensors: weight (the master where there is one) and moments. Its elements are those
 * of its boxes of them, end to end. */
typedef struct dsi_out_param {
    const char *name;
    ds_shape shape;
    int64_t count;
    uint32_t rank;   /* by deepspeed_order.c */
    int64_t experts; /* of which it holds all, in the first dim, for AutoEP; 0: none */
    const ds_checkpoint_tensor *tensors[DSI_OUT_KINDS];
    const dsi_box *boxes; /* NULL: all of them */
    size_t n_boxes;
} dsi_out_param;

/* Elements [begin, begin + count) of a parameter, then zeros. */
typedef struct dsi_out_piece {
    const dsi_out_param *param; /* NULL: zeros alone */
    int64_t begin, count, zeros;
} dsi_out_piece;

/* Pieces end to end, of one kind: what fills a storage. */
typedef struct dsi_out_vector {
    ds_checkpoint *ckpt;
    int kind;
    ds_dtype dtype;
    const dsi_out_piece *pieces;
    size_t n;
    int64_t count; /* elements */
    size_t at;     /* cursor: the piece … */
    int64_t start; /* … and its first element in the vector */
} dsi_out_vector;

typedef struct dsi_deepspeed_out {
    ds_ctx *ctx;
    ds_checkpoint *ckpt;
    const ds_checkpoint_deepspeed_params *given;
    dsi_arena *arena;
    const char *folder; /* where files go */
    ds_config *config;
    const ds_config_values *values; /* of the run */
    json_t *engine, *scaler;        /* states */
    dsi_out_param *params;          /* in the module's order, group by group */
    size_t n_params;
    size_t group_begin[DSI_OUT_GROUPS + 1]; /* in params */
    size_t n_groups;
    bool decays[DSI_OUT_GROUPS];  /* whether the group has weight decay */
    const char *alias, *alias_of; /* a second name of a parameter (a tied head); NULL */
    /* Like another folder: */
    uint32_t model_rank;           /* a stage, or a rank that shares layers, being written */
    uint32_t n_stages;             /* 0: no pipeline */
    uint32_t n_tensor;             /* ranks that share layers; 0: none */
    const dsi_pickle *like;        /* the other's model file of that rank; NULL: not like another */
    const dsi_pickle *like_groups; /* its optimizer's param_groups */
    /* Of a group whose ranks have other experts each: its parameters for rank % n_places. */
    dsi_out_param *const *places[DSI_OUT_GROUPS];
    uint32_t n_places[DSI_OUT_GROUPS]; /* 0: all ranks have the same parameters */
    int64_t steps, skipped, samples;
    double lr, beta1; /* of the next update */
} dsi_deepspeed_out;

/* deepspeed_order.c: sorts the names as the module of a model type has its parameters. ERR_ARG: the
 * type, or a name of it, is not known. */
ds_status dsi_deepspeed_order(ds_ctx *ctx, const char *model_type, dsi_out_param *params, size_t n);

/* deepspeed_out_params.c: parameters, order and groups. */
ds_status dsi_out_find_params(dsi_deepspeed_out *o);
/* Parameters alone, for deepspeed_out_like.c; and the number of groups that the run's decay makes.
 */
ds_status dsi_out_take_params(dsi_deepspeed_out *o);
size_t dsi_out_group_count(const dsi_deepspeed_out *o);

/* deepspeed_out_values.c: what the files share. Each appends keys and values to an open dict.
 * decay: with the weight decay of each group; a reader without it keeps its own. */
ds_status dsi_out_read_states(dsi_deepspeed_out *o);
void dsi_out_param_groups(const dsi_deepspeed_out *o, dsi_torch_out *t, const size_t *n_vectors,
                          bool decay);
void dsi_out_loss_scaler(const dsi_deepspeed_out *o, dsi_torch_out *t, bool always);
void dsi_out_config(const dsi_deepspeed_out *o, dsi_torch_out *t);
/* deepspeed_out_model.c: the model's file, with the weights or without. sub_groups: the number of
 * parameters in each of n, for param_shapes. */
ds_status dsi_out_model_file(const dsi_deepspeed_out *o, const char *name, bool weights,
                             const size_t *sub_groups, size_t n);

/* deepspeed_out_vector.c: bytes of a vector (a dsi_out_vector), for dsi_torch_storage. */
ds_status dsi_out_fill(void *vector, size_t offset, void *data, size_t n);
/* A vector's tensor of that shape, as the next value. */
void dsi_out_put(dsi_torch_out *t, dsi_out_vector *vector, ds_shape shape);

/* deepspeed_out_zero.c, deepspeed_out_universal.c, deepspeed_out_like.c: the files. */
ds_status dsi_out_zero(dsi_deepspeed_out *o);
ds_status dsi_out_like(dsi_deepspeed_out *o);
ds_status dsi_out_universal(dsi_deepspeed_out *o);

/* What deepspeed_out_zero.c says of stage 3: the number of parameters in each sub-group. */
ds_status dsi_out_sub_groups(dsi_deepspeed_out *o, const size_t **sizes_out, size_t *n_out);

#endif
