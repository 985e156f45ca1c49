/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices as bitsandbytes stores them, in folders that transformers saved after load_in_4bit or
 * load_in_8bit (quant_method "bitsandbytes"). They become real numbers when they are matched with a
 * model's parameters, with the bits of the package's own dequantization (bitsandbytes 0.50:
 * functional.py, QuantState.from_dict, dequantize_4bit, int8_vectorwise_dequant).
 *
 *   4 bits  X.weight u8 (n/2,1): element 2i in the high nibble of byte i, elements row by row.
 *           X.weight.quant_map f32[16]: what a nibble stands for. X.weight.absmax: f32, one for
 *           blocksize elements, the last block being what is left. X.weight.quant_state.
 *           bitsandbytes__nf4 (or __fp4): JSON in bytes with quant_type, blocksize, dtype, shape.
 *           w = map[q] · absmax, a product in fp32 that is rounded to the JSON's dtype.
 *           Nested (double quantization): absmax is u8[nb], X.weight.nested_absmax f32 one for
 *           nested_blocksize of them, X.weight.nested_quant_map f32[256]: absmax = map[u] · nested
 * + nested_offset, a product and a sum in fp32. 8 bits  X.weight i8 (out,in), X.SCB f32[out],
 * X.weight_format u8: 0 (rows), or absent: w = q · SCB · (1/127), two products in fp32, which is
 * the dtype.
 *
 * Activations are not rounded (llm_int8_threshold and the compute dtype have no effect here).
 * Called by model_weights.c, and by stored_matrix.c, which goes through a folder's tensors. One
 * thread. */
#ifndef DSI_CKPT_BNB_WEIGHT_H
#define DSI_CKPT_BNB_WEIGHT_H

#include <deepspeed/safetensors.h>
#include <stdbool.h>

typedef enum dsi_bnb_form { DSI_BNB_NONE, DSI_BNB_4, DSI_BNB_8 } dsi_bnb_form;

/* The tensors of a matrix. */
typedef enum dsi_bnb_part {
    DSI_BNB_WEIGHT,
    DSI_BNB_ABSMAX, /* from here to STATE_FP4 of four bits */
    DSI_BNB_MAP,
    DSI_BNB_NESTED_ABSMAX, /* or NULL, like the next */
    DSI_BNB_NESTED_MAP,
    DSI_BNB_STATE_NF4, /* one of two */
    DSI_BNB_STATE_FP4,
    DSI_BNB_SCB,
    DSI_BNB_FORMAT, /* or NULL */
    DSI_BNB_N_PARTS
} dsi_bnb_part;

typedef struct dsi_bnb_parts {
    const ds_safetensor *of[DSI_BNB_N_PARTS];
} dsi_bnb_parts;

/* Of the config.json beside the weights; NONE without this method. Errors: ERR_UNSUPPORTED names
 * the field. */
ds_status dsi_bnb_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_bnb_form *form_out);
/* Whether the tensor has codes of this form, which stand for a matrix. */
bool dsi_bnb_is_stored(dsi_bnb_form form, const ds_safetensor *weight);
/* What lies beside it. */
dsi_bnb_parts dsi_bnb_find(const ds_safetensors *st, const ds_safetensor *weight);
/* Whether t lies beside a matrix that is stored so. */
bool dsi_bnb_is_beside(const ds_safetensors *st, dsi_bnb_form form, const ds_safetensor *t);

/* One matrix, opened; its codes stay borrowed. */
typedef struct dsi_bnb_matrix dsi_bnb_matrix;
/* Errors: ERR_NOT_FOUND (a part is missing), ERR_FORMAT and ERR_SHAPE (parts contradict each
 * other), ERR_UNSUPPORTED (other types, weight_format) name the tensor; ERR_NOMEM. */
ds_status dsi_bnb_open(ds_ctx *ctx, dsi_bnb_form form, const dsi_bnb_parts *parts,
                       dsi_bnb_matrix **matrix_out);
/* (out,in), by the matrix's own tensors. */
ds_shape dsi_bnb_shape(const dsi_bnb_matrix *matrix);
/* n elements from `first` on in fp32, rounded to the matrix's dtype. Errors: ERR_NUMERIC. */
ds_status dsi_bnb_read(const dsi_bnb_matrix *matrix, int64_t first, int64_t n, float *out);
void dsi_bnb_close(dsi_bnb_matrix **matrix);
/* The matrix in real numbers, as a tensor of that name; its data is from malloc. shape: what the
 * model needs. Errors: those of dsi_bnb_open and dsi_bnb_read; ERR_SHAPE: another shape. */
ds_status dsi_bnb_unpack(ds_ctx *ctx, dsi_bnb_form form, const dsi_bnb_parts *parts, ds_shape shape,
                         ds_safetensor *out);

#endif
