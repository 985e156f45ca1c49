/* SPDX-License-Identifier: Apache-2.0 */
/* The quantized rows of a GGUF file by the Hugging Face names and in the row order of the folder
 * that gguf.h makes of it: a generator takes them as they are, in place of rounding the folder's
 * values again, which would move scales. The file stays mapped.
 *
 * Thread rule: an open dsi_gguf_blocks is const; any number of threads may read it.
 */
#ifndef DSI_CKPT_GGUF_BLOCKS_H
#define DSI_CKPT_GGUF_BLOCKS_H

#include "base/blocks.h"

#include <deepspeed/safetensors.h>
#include <stdbool.h>

typedef struct dsi_gguf_blocks dsi_gguf_blocks;

/* Errors: those of dsi_gguf_open, ERR_UNSUPPORTED (a tensor without a place), ERR_SHAPE. */
ds_status dsi_gguf_blocks_open(ds_ctx *ctx, const char *path, dsi_gguf_blocks **blocks_out);
void dsi_gguf_blocks_close(dsi_gguf_blocks **blocks); /* NULL is accepted */
/* The dtype of blocks that the folder's matrix `name` has in the file. NONE: it has none of ours,
 * is of another shape, transposed, or not there. */
ds_dtype dsi_gguf_blocks_type(const dsi_gguf_blocks *blocks, const char *name, ds_shape shape);
/* Row r of the folder's matrix `name`, whose meta is a dtype of blocks and its shape. NULL: the
 * file has the matrix in another type, or transposed, or not at all. Borrowed. Pre: r is a row. */
const uint8_t *dsi_gguf_blocks_row(const dsi_gguf_blocks *blocks, const char *name, ds_meta meta,
                                   int64_t r);

/* Values of row r of the folder's matrix `name`, as the folder would have them in f32. Errors:
 * ERR_NOT_FOUND. Pre: r is a row. */
ds_status dsi_gguf_blocks_read(const dsi_gguf_blocks *blocks, const char *name, int64_t r,
                               float *row_out);
/* Whether a folder's tensor says only that its blocks stayed in the file: rows without a column
 * (ds_gguf_params.blocks_stay). */
bool dsi_gguf_blocks_left(const ds_safetensor *tensor);

#endif
