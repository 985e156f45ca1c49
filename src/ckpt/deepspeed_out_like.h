/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a folder that is like another one share while they are written:
 * deepspeed_out_like.c, deepspeed_out_like_universal.c, deepspeed_out_own.c,
 * deepspeed_out_layers.c. */
#ifndef DSI_CKPT_DEEPSPEED_OUT_LIKE_H
#define DSI_CKPT_DEEPSPEED_OUT_LIKE_H

#include "ckpt/ckpt_deepspeed.h"
#include "ckpt/deepspeed_out.h"

/* A name of the other's module, among all experts, and what it is: a slice of a tensor that has the
 * model's name. */
typedef struct dsi_out_own {
    const char *name;
    const ds_checkpoint_tensor *tensor;
    const dsi_ckpt_slice *slice;
} dsi_out_own;

typedef struct dsi_out_like_state {
    dsi_deepspeed_out *o;
    ds_checkpoint *ckpt; /* the other */
    const char *folder;
    dsi_out_own *names; /* [n_names], sorted */
    size_t n_names;
    dsi_out_param *all; /* of the checkpoint, by name */
    size_t n_all;
    bool *used;      /* [n_all] */
    dsi_deepspeed d; /* the files of the model rank that is written: rank 0's optimizer, model */
    dsi_torch_file optim, model;
    const dsi_pickle *state;
    dsi_deepspeed_piece *pieces; /* [DSI_DEEPSPEED_PIECES] */
} dsi_out_like_state;

/* deepspeed_out_own.c: fills names; the checkpoint's parameter for one of them, of that shape. */
ds_status dsi_out_own_names(dsi_out_like_state *l);
const dsi_out_own *dsi_out_own_find(const dsi_out_like_state *l, const char *name);
ds_status dsi_out_own_param(dsi_out_like_state *l, const char *name, ds_shape shape,
                            dsi_out_param *param_out);

/* deepspeed_out_like.c: a group decays or not, as a whole. */
ds_status dsi_out_like_decay(const dsi_out_like_state *l, const dsi_out_param *p, size_t g,
                             bool is_first);

/* deepspeed_out_like_universal.c: the files of a universal folder like a universal one. */
ds_status dsi_out_like_universal(dsi_out_like_state *l);

/* deepspeed_out_layers.c: the files of layers and of experts. */
ds_status dsi_out_layers(dsi_out_like_state *l);

#endif
