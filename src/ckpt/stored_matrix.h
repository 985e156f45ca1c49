/* SPDX-License-Identifier: Apache-2.0 */
/* A folder's tensors as they lie there, each as real numbers: plain, in bytes with scales
 * (byte_weight.h), in four bits (int4.h), whose parameter X.weight is several tensors, or in the
 * codes of bitsandbytes (bnb_weight.h). Names and shapes are those of the parameters.
 * model_weights.c goes the other way, from a model's parameters to the tensors, and takes more
 * forms.
 *
 * Called by gguf_export.c. One thread.
 */
#ifndef DSI_CKPT_STORED_MATRIX_H
#define DSI_CKPT_STORED_MATRIX_H

#include "ckpt/bnb_weight.h"
#include "ckpt/byte_weight.h"
#include "ckpt/int4.h"

enum { DSI_STORED_NAME_BYTES = 1024 };

typedef struct dsi_stored_forms {
    dsi_byte_form bytes;
    dsi_int4_form int4;
    dsi_bnb_form bnb;
} dsi_stored_forms;

typedef struct dsi_stored {
    ds_ctx *ctx;
    const ds_safetensor *from; /* the numbers, or the words that they are in */
    ds_shape shape;
    dsi_byte_matrix *bytes; /* NULL: no bytes with scales */
    dsi_bnb_matrix *bnb;    /* NULL: none of those codes */
    dsi_int4_form form;     /* NONE: not in four bits */
    dsi_int4_parts parts;
    dsi_int4_matrix int4; /* open while scales are not NULL */
} dsi_stored;

/* Errors: those of dsi_byte_form_of, dsi_int4_form_of and dsi_bnb_form_of. */
ds_status dsi_stored_forms_of(ds_ctx *ctx, const ds_safetensors *st, dsi_stored_forms *forms_out);
/* What tensor t is, which stays borrowed, under the name of its parameter; an empty name: it
 * belongs to another tensor. Nothing is to be closed yet. Errors: ERR_FORMAT (a parameter that is
 * stored twice); those of dsi_bnb_open. */
ds_status dsi_stored_find(ds_ctx *ctx, const ds_safetensors *st, const dsi_stored_forms *forms,
                          const ds_safetensor *t, char name_out[DSI_STORED_NAME_BYTES],
                          dsi_stored *stored_out);
bool dsi_stored_is_plain(const dsi_stored_forms *forms, const dsi_stored *stored);
/* Checks it before its numbers are read. Errors: ERR_NOT_FOUND names the part that is missing;
 * those of dsi_byte_open, dsi_int4_open and dsi_bnb_open. */
ds_status dsi_stored_open(const ds_safetensors *st, const dsi_stored_forms *forms, dsi_stored *s);
/* n elements from `first` on in fp32, rounded to the dtype of the scales where it has some. */
ds_status dsi_stored_read(dsi_stored *s, int64_t first, int64_t n, float *out);
/* Frees scales of four bits, which the next reading makes anew: a thirtieth of a whole model. */
void dsi_stored_rest(dsi_stored *s);
void dsi_stored_close(dsi_stored *s);

#endif
