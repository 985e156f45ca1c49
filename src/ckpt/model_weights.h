/* SPDX-License-Identifier: Apache-2.0 */
/* Which stored tensor each parameter of a model is. Used by training and generation. */
#ifndef DSI_CKPT_MODEL_WEIGHTS_H
#define DSI_CKPT_MODEL_WEIGHTS_H

#include <deepspeed/model.h>
#include <deepspeed/safetensors.h>

/* The head of a reward model, which stands in the place of the output projection: a folder of a
 * language model has none, and its projection is not read. */
#define DSI_SCORE_HEAD "score.weight"

/* Fills by_cell (ds_cells_count entries): the tensor of each PARAM cell, NULL for other cells, and
 * for the head of scores where the files have none.
 * Names are tried as they are, then without the model's base prefix (files of the bare model).
 * Errors: ERR_NOT_FOUND (a parameter without tensor), ERR_SHAPE (another shape, or no real
 * numbers), ERR_FORMAT (a tensor that the model does not have): each names tensor and file. */
ds_status dsi_weights_match(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                            const ds_safetensors *st, const ds_safetensor **by_cell);

/* A range of a stored tensor's elements, in row-major order, as a tensor of one dim. */
ds_safetensor dsi_weights_range(const ds_safetensor *tensor, int64_t begin, int64_t count);

#endif
