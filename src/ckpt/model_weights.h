/* SPDX-License-Identifier: Apache-2.0 */
/* Which stored tensors each parameter of a model is. Used by training and generation. */
#ifndef DSI_CKPT_MODEL_WEIGHTS_H
#define DSI_CKPT_MODEL_WEIGHTS_H

#include "ckpt/gguf_blocks.h"
#include "ckpt/int4_blocks.h"

#include <deepspeed/model.h>
#include <deepspeed/safetensors.h>
#include <stdbool.h>

/* The head of a reward model, which stands in the place of the output projection: a folder of a
 * language model has none, and its projection is not read. */
#define DSI_SCORE_HEAD "score.weight"
/* What stays in f32 whatever a folder's dtype is, as in transformers: which experts are chosen goes
 * by it. */
#define DSI_CHOICE_BIAS "e_score_correction_bias"
/* Whether a parameter is of a head for scores or classes, or of a module Dense, which a folder of
 * the model without it has not: it is drawn anew to be trained. */
bool dsi_is_new_head(const char *name);

/* The tensors of one parameter, alike and one behind the other: one, or those that a stacked
 * parameter stands for (stacked.h). n 0: none, as of the head of scores where the files have none.
 */
typedef struct dsi_weight {
    const ds_safetensor *const *parts;
    int64_t n;
    const ds_safetensor *scales; /* of MXFP4, whose blocks parts[0] is: to be read alone, there is
                                    no piece of it (mxfp4.h); NULL: none */
    const dsi_gguf_blocks *gguf; /* has the values of parts[0], which is without them and has no
                                    pieces; NULL: they are in the folder */
    int64_t row;                 /* values of a row of it */
} dsi_weight;

typedef struct dsi_weights dsi_weights;

/* Finds the tensors of each PARAM cell: of the model's own, or of a teacher's (nn/nn.h), whose
 * names in the files lack what theirs begin with. Names are tried as they are, then without the
 * model's base prefix (files of the bare model). st must outlive the result. Errors: ERR_NOT_FOUND
 * (a parameter without tensor), ERR_SHAPE (another shape, or no real numbers), ERR_FORMAT (a tensor
 * that the model does not have): each names tensor and file. */
ds_status dsi_weights_match(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                            const ds_safetensors *st, bool teacher, dsi_weights **weights_out);
/* The same, but matrices that `kept` has stay as they are: of such the first part is the tensor of
 * its words, and no other call of this file may read it. What the folder left in the file `gguf`
 * (ds_gguf_params.blocks_stay) is read from there; it must outlive the reading. */
ds_status dsi_weights_match_kept(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                                 const ds_safetensors *st, bool teacher, dsi_int4_blocks *kept,
                                 const dsi_gguf_blocks *gguf, dsi_weights **weights_out);
/* The tensor of a name, also under the names that files give it; NULL: there is none. */
const ds_safetensor *dsi_weights_find(const ds_model *model, const ds_safetensors *st,
                                      const char *name);
void dsi_weights_destroy(dsi_weights **weights); /* NULL is accepted */
/* Whether some are stored in few bits (int4.h, byte_weight.h): what is read is not what the file
 * has. */
bool dsi_weights_are_unpacked(const dsi_weights *weights);
/* What part i of a weight is of: a tensor of the file, real numbers made of what it has in few
 * bits, or a slice of one that several weights are in. And whether the i-th tensor of the file was
 * read for parts of the last two kinds alone. */
typedef enum dsi_weight_origin {
    DSI_WEIGHT_STORED,
    DSI_WEIGHT_UNPACKED,
    DSI_WEIGHT_SLICED
} dsi_weight_origin;
dsi_weight_origin dsi_weights_origin(const dsi_weights *weights, ds_cell cell, int64_t i);
bool dsi_weights_takes(const dsi_weights *weights, size_t i);
/* Frees a part of a weight that was unpacked, which is not read again; false: it lies in a map. */
bool dsi_weights_drop(dsi_weights *weights, const ds_safetensor *part);
dsi_weight dsi_weights_of(const dsi_weights *weights, ds_cell cell);

/* What one tensor has of the weight's elements from `begin` on, at most `count`: as a tensor of one
 * dimension. */
ds_safetensor dsi_weight_piece(const dsi_weight *weight, int64_t begin, int64_t count);
/* Elements from `begin` on, converted as ds_safetensors_read converts. */
ds_status dsi_weight_read(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                          ds_dtype dtype, void *data);

#endif
