/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON that bitsandbytes stores beside a matrix in four bits, in a tensor of bytes
 * (X.weight.quant_state.bitsandbytes__nf4 or __fp4). Called by bnb_weight.c. */
#ifndef DSI_CKPT_BNB_STATE_H
#define DSI_CKPT_BNB_STATE_H

#include <deepspeed/safetensors.h>
#include <stdbool.h>

typedef struct dsi_bnb_state {
    int64_t n_out, n_in;
    ds_dtype dtype; /* of the numbers: f32, bf16 or f16 */
    int64_t block;  /* elements that a magnitude is of */
    /* where magnitudes are nested */
    int64_t nested_block;
    float nested_offset;
} dsi_bnb_state;

/* type: what the tensor's name says; nested: whether the tensors of that lie beside. Errors:
 * ERR_FORMAT and ERR_UNSUPPORTED name the tensor and the key. */
ds_status dsi_bnb_state_read(ds_ctx *ctx, const ds_safetensor *tensor, const char *type,
                             bool nested, dsi_bnb_state *state_out);

#endif
