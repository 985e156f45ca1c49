/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of a byte an element with scales in a grid, as DeepSeek, FBGEMM and compressed-tensors
 * publish them: X.weight (out,in) in FP8 (E4M3 or E5M2: OCP 8-bit Floating Point, 2023) or int8,
 * and config.json has a quantization_config. They become real numbers when they are matched with a
 * model's parameters: w = scale · (x − zero), rounded once to the dtype of the scales, or
 * to bf16 where those are exponents (F8_E8M0).
 *
 *   "fp8" (DeepSeek-V3)     X.weight_scale_inv: one for each block of weight_block_size, the last
 * of a row or column of blocks being as large as is left, or one for the matrix "fbgemm_fp8"
 * X.weight_scale: one a row "compressed-tensors"    of formats float-quantized, int-quantized and
 * naive-quantized, X.weight_scale: for the matrix, a row, a group of a row, or a block; of int8,
 * X.weight_zero_point too, i8
 *
 * Activations are not rounded, whatever the object says of them. Called by model_weights.c. */
#ifndef DSI_CKPT_BYTE_WEIGHT_H
#define DSI_CKPT_BYTE_WEIGHT_H

#include <deepspeed/safetensors.h>
#include <jansson.h>
#include <stdbool.h>

typedef struct dsi_byte_form {
    bool there;            /* false: nothing here is so */
    const char *scale;     /* what follows "X." in the name of the scales */
    int64_t rows, columns; /* that a scale is of; 0: all */
    bool whole_numbers;    /* int8, else FP8 */
} dsi_byte_form;

/* Whether the format of compressed-tensors is one of these. */
bool dsi_byte_is_format(const json_t *quantization_config);
/* Errors: ERR_UNSUPPORTED names the field. */
ds_status dsi_byte_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_byte_form *form_out);
bool dsi_byte_is_stored(const dsi_byte_form *form, const ds_safetensor *weight);
/* One matrix, opened: weight and zeros (or NULL) stay borrowed. Errors: those of dsi_byte_unpack.
 */
typedef struct dsi_byte_matrix dsi_byte_matrix;
ds_status dsi_byte_open(ds_ctx *ctx, const dsi_byte_form *form, const ds_safetensor *weight,
                        const ds_safetensor *scales, const ds_safetensor *zeros, ds_shape shape,
                        dsi_byte_matrix **matrix_out);
/* n elements from `first` on in fp32, rounded as dsi_byte_unpack rounds. Errors: ERR_NUMERIC. */
ds_status dsi_byte_read(const dsi_byte_matrix *matrix, int64_t first, int64_t n, float *out);
void dsi_byte_close(dsi_byte_matrix **matrix);
/* The matrix in real numbers; its data is from malloc. zeros: or NULL. shape: what the model needs.
 * Errors: ERR_SHAPE names the tensor; ERR_NOMEM. */
ds_status dsi_byte_unpack(ds_ctx *ctx, const dsi_byte_form *form, const ds_safetensor *weight,
                          const ds_safetensor *scales, const ds_safetensor *zeros, ds_shape shape,
                          ds_safetensor *out);
/* The same of rows [first, first + n) alone. */
ds_status dsi_byte_unpack_rows(ds_ctx *ctx, const dsi_byte_form *form, const ds_safetensor *weight,
                               const ds_safetensor *scales, const ds_safetensor *zeros,
                               ds_shape shape, int64_t first, int64_t n, ds_safetensor *out);

#endif
