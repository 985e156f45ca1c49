/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of GPTQ, AWQ and compressed-tensors as blocks that products take, exactly: the value
 * s·(q − z) is scale·(q' − offset) with the same scale. Where each zero point is 8 that is Q4_0,
 * else Q5_0, which has room for all z of 0 to 16; of eight bits around 128 Q8_0. So it is where
 * scales are exact in fp16 and groups are whole runs of 32 inputs; other matrices stay real numbers
 * (an order of activations in g_idx, odd groups). Not rounded as the packages' real numbers are,
 * which have the dtype of the scales.
 *
 * Called by generators, and by model_weights.c to leave such matrices packed. One thread.
 */
#ifndef DSI_CKPT_INT4_BLOCKS_H
#define DSI_CKPT_INT4_BLOCKS_H

#include <deepspeed/model.h>

typedef struct dsi_int4_blocks dsi_int4_blocks;

/* Of a model folder, which stays mapped. Errors: those of the folder and of dsi_int4_form_of;
 * ERR_UNSUPPORTED (its weights are of none of these forms). */
ds_status dsi_int4_blocks_open(ds_ctx *ctx, const ds_model *model, const char *folder,
                               dsi_int4_blocks **blocks_out);
void dsi_int4_blocks_close(dsi_int4_blocks **blocks); /* NULL is accepted */
/* The type that parameter `name` is exactly; NONE: it is none, or not stored so. */
ds_dtype dsi_int4_blocks_type(dsi_int4_blocks *blocks, const char *name, ds_shape shape);
/* Row r of such a matrix as ggml's blocks, whole rows of the type's bytes. */
void dsi_int4_blocks_row(dsi_int4_blocks *blocks, const char *name, int64_t r, uint8_t *out);
/* How many matrices are stored so, and are real numbers all the same, of those asked for. */
int64_t dsi_int4_blocks_n_real(const dsi_int4_blocks *blocks);

#endif
