/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of whole numbers of four bits, as GPTQ, AWQ and compressed-tensors publish them:
 * X.weight (out,in) is stored as X.qweight, X.qzeros and X.scales, of GPTQ with X.g_idx, too, and
 * config.json has a quantization_config. They become real numbers when they are matched with a
 * model's parameters: w[o,i] = s[g(i),o] · (q[i,o] − z[g(i),o]), rounded once to the dtype of the
 * scales, as the packages' own dequantization does (GPTQModel: qlinear/torch.py; AutoAWQ:
 * packing_utils.py).
 *
 *   GPTQ  qweight i32 (in/8,out): eight neighbouring inputs a word, the first in the low bits.
 *         qzeros i32 (G,out/8), scales (G,out). z is one more than what is stored, but of
 *         checkpoint_format "gptq_v2". g(i) is g_idx[i], without it i / group_size.
 *   AWQ   qweight i32 (in,out/8), qzeros i32 (G,out/8), scales (G,out): column 8w + j of word w in
 *         nibble 0, 4, 1, 5, 2, 6, 3, 7 of j = 0 … 7. g(i) = i / group_size. Version "gemm" alone.
 *
 *   compressed-tensors, format "pack-quantized": X.weight_packed i32 (out,in/8), the first input in
 *         the low bits, X.weight_scale (out,G), X.weight_zero_point i32 (out/8,G) or none, which is
 *         8, X.weight_shape. Weights alone: no quantized activations. The same of eight bits: four
 *         inputs a word, and 128 for a zero point.
 *
 * Called by model_weights.c, and by stored_matrix.c, which goes through a folder's tensors. */
#ifndef DSI_CKPT_INT4_H
#define DSI_CKPT_INT4_H

#include <deepspeed/model.h>
#include <deepspeed/safetensors.h>
#include <stdbool.h>

typedef enum dsi_int4_layout {
    DSI_INT4_NONE,
    DSI_INT4_GPTQ,
    DSI_INT4_GPTQ_V2,
    DSI_INT4_AWQ,
    DSI_INT4_PACKED,
    DSI_INT4_PACKED8
} dsi_int4_layout;

enum { DSI_INT4_MOST_SIZES = 8 };

/* What quantization_config says. */
typedef struct dsi_int4_form {
    dsi_int4_layout layout;
    /* Inputs of a group, 0: all of them: each matrix is of one of these; n_sizes 0: not said. */
    int64_t sizes[DSI_INT4_MOST_SIZES];
    uint32_t n_sizes;
    enum { DSI_INT4_ZEROS_ANY, DSI_INT4_ZEROS, DSI_INT4_NO_ZEROS } zeros; /* of PACKED */
} dsi_int4_form;

typedef struct dsi_int4_parts {
    const ds_safetensor *words, *scales; /* never NULL */
    const ds_safetensor *zeros;          /* NULL: they are in the middle (PACKED) */
    const ds_safetensor *groups;         /* of g_idx, or NULL */
    const ds_safetensor *shape;          /* of PACKED, or NULL */
} dsi_int4_parts;

/* One matrix, opened. */
typedef struct dsi_int4_matrix {
    dsi_int4_layout layout;
    const ds_safetensor *from; /* the words */
    ds_dtype dtype;            /* that numbers are rounded to */
    const uint32_t *words;
    const uint32_t *zeros; /* NULL: they are in the middle */
    const int32_t *groups; /* [n_in]; NULL: neighbours */
    float *scales;         /* [n_groups][n_out]; of PACKED [n_out][n_groups] */
    int64_t n_in, n_out, n_groups;
} dsi_int4_matrix;

/* The parts of parameter `name`; false: it is not stored so. */
bool dsi_int4_find(const ds_model *model, const ds_safetensors *st, const dsi_int4_form *form,
                   const char *name, dsi_int4_parts *parts_out);
/* Whether tensor t of a folder is a part of a matrix that is stored so, whose words are there: the
 * parts, of which any other may be missing (NULL). */
bool dsi_int4_part(const ds_safetensors *st, const dsi_int4_form *form, const ds_safetensor *t,
                   dsi_int4_parts *parts_out);
/* (out,in) by the words; of words that are no matrix their own. */
ds_shape dsi_int4_shape(const dsi_int4_form *form, const dsi_int4_parts *parts);
/* Checks the parts, of which there are as many groups as the form says; words, zeros and groups
 * stay borrowed. Errors: those of dsi_int4_unpack. */
ds_status dsi_int4_open(ds_ctx *ctx, const dsi_int4_form *form, const dsi_int4_parts *parts,
                        ds_shape shape, dsi_int4_matrix *m);
void dsi_int4_close(dsi_int4_matrix *m);
int32_t dsi_int4_number(const dsi_int4_matrix *m, int64_t in, int64_t out);
int32_t dsi_int4_zero(const dsi_int4_matrix *m, int64_t group, int64_t out);
float dsi_int4_scale(const dsi_int4_matrix *m, int64_t group, int64_t out);
/* n elements from `first` on in fp32, rounded as dsi_int4_unpack rounds. Errors: ERR_NUMERIC. */
ds_status dsi_int4_read(ds_ctx *ctx, const dsi_int4_matrix *m, int64_t first, int64_t n,
                        float *out);
/* Of the config.json beside the weights; NONE without one of these three (int4_config.c). Errors:
 * ERR_UNSUPPORTED names the field (other bits, other layouts), ERR_FORMAT. */
ds_status dsi_int4_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_int4_form *form_out);
/* The matrix in real numbers, as a tensor of that name; its data is from malloc. shape: what the
 * model needs. Errors: ERR_SHAPE and ERR_FORMAT name the tensor; ERR_UNSUPPORTED (a zero point of
 * GPTQ that packages read differently), ERR_NOMEM. */
ds_status dsi_int4_unpack(ds_ctx *ctx, const dsi_int4_form *form, const dsi_int4_parts *parts,
                          ds_shape shape, ds_safetensor *out);

#endif
