/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of model_weights.h share: the matching of a model's parameters with a folder's
 * tensors while it is under way, and what it leaves.
 *
 *   weight_names.c   under which names files have a parameter
 *   weight_stored.c  parameters that are stored in few bits, or many in one tensor
 *   weight_rows.c    rows of tokens that were added to the vocabulary
 *   weight_extra.c   tensors that are no parameter's
 *   weight_read.c    elements of a parameter that has been matched
 */
#ifndef DSI_CKPT_MODEL_WEIGHTS_IMPL_H
#define DSI_CKPT_MODEL_WEIGHTS_IMPL_H

#include "ckpt/bnb_weight.h"
#include "ckpt/byte_weight.h"
#include "ckpt/int4.h"
#include "ckpt/model_weights.h"
#include "ckpt/stacked.h"

enum { DSI_MOST_LONGER = 3 }; /* embedding, output projection, its bias */

/* A matrix that is stored in four or eight bits, in real numbers. */
typedef struct dsi_unpacked_weight dsi_unpacked_weight;
struct dsi_unpacked_weight {
    ds_safetensor tensor;
    bool mapped; /* its data lies in the file */
    char name[DSI_STACKED_NAME_BYTES];
    dsi_unpacked_weight *next;
};

struct dsi_weights {
    dsi_unpacked_weight *unpacked;
    dsi_weight *by_cell;
    const ds_safetensor **parts; /* of all weights, one after the other */
    dsi_weight_origin *made;     /* of parts */
    bool *taken;                 /* of the stored tensors: it was read for one that was unpacked */
    size_t n_parts;
    bool few_bits;                         /* some were in few bits */
    ds_safetensor longer[DSI_MOST_LONGER]; /* with a row for each token, more than are stored */
    uint32_t n_longer;
};

typedef struct dsi_matching {
    ds_ctx *ctx;
    const ds_model *model;
    const ds_safetensors *st;
    bool *used; /* of the stored tensors */
    dsi_weights *found;
    dsi_int4_form int4;
    dsi_int4_blocks *kept;       /* NULL: all are unpacked */
    const dsi_gguf_blocks *gguf; /* what the folder lacks; NULL: nothing */
    dsi_byte_form bytes;
    dsi_bnb_form bnb;
} dsi_matching;

/* A tensor is used: it is some parameter's. Taken: read for what was unpacked or sliced, too. */
void dsi_matching_use(dsi_matching *m, const ds_safetensor *tensor);
void dsi_matching_take(dsi_matching *m, const ds_safetensor *tensor);

/* The output projection's name, and whether one is its bias's. */
const char *dsi_weights_head(const ds_model *model);
bool dsi_weights_is_head_bias(const ds_model *model, const char *name);

/* Real numbers of that shape. Errors: ERR_SHAPE with both, ERR_UNSUPPORTED. */
ds_status dsi_weights_check_meta(ds_ctx *ctx, ds_meta want, const ds_safetensor *tensor);

/* Each looks whether a parameter is stored in its way, and what it is not stays as it is: *tensor,
 * or *found_out false. Errors name the tensor. */
ds_status dsi_match_mxfp4(dsi_matching *m, ds_cell c, const ds_cell_info *cell, bool *found_out);
ds_status dsi_match_bytes(dsi_matching *m, const char *name, ds_shape shape,
                          const ds_safetensor **tensor);
ds_status dsi_match_bnb(dsi_matching *m, const char *name, ds_shape shape,
                        const ds_safetensor **tensor);
ds_status dsi_match_int4(dsi_matching *m, const ds_cell_info *cell, const char *name,
                         ds_shape shape, const ds_safetensor **tensor_out);
ds_status dsi_match_stack(dsi_matching *m, ds_cell c, const ds_cell_info *cell, bool *found_out);

/* What has a row for each token, of a model whose vocabulary was enlarged (ds_model_change): with
 * the rows that are not stored. want: with them. Errors: those of dsi_weights_check_meta, by what
 * is stored; ERR_NOMEM. */
ds_status dsi_weights_enlarge(dsi_matching *m, const char *name, ds_meta want,
                              const ds_safetensor **tensor);

/* A tied model's files may hold the output projection a second time, but no other one: transformers
 * does not tie then, whatever config.json says. */
ds_status dsi_weights_check_head(ds_ctx *ctx, const ds_model *model, const ds_safetensors *st);
/* Tensors that no parameter used may be there, or are refused. */
ds_status dsi_weights_check_extra(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                                  const ds_safetensors *st, const bool *used);

#endif
