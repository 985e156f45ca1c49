/* SPDX-License-Identifier: Apache-2.0 */
/* Experts that a file has as one tensor, as transformers' classes do (save_pretrained with
 * save_original_format=False): MODULE.experts.gate_up_proj (E,2·out,in), the rows of gate in front
 * of those of up, and MODULE.experts.down_proj (E,out,in); in FP8 with NAME_scale_inv (E,r,c), a
 * grid of scales for each expert (quant_method "fp8": byte_weight.h). Parameters here are gate, up
 * and down, an expert a tensor (stacked.h). Called by model_weights.c. */
#ifndef DSI_CKPT_EXPERT_STACK_H
#define DSI_CKPT_EXPERT_STACK_H

#include "ckpt/byte_weight.h"

typedef struct dsi_expert_stack {
    const ds_safetensor *whole, *scales; /* scales NULL: real numbers */
    int64_t n_experts;
    int64_t part, parts; /* which rows of each expert's: one of parts that are alike */
    ds_shape shape;      /* of one part: (out,in) */
} dsi_expert_stack;

/* Whether the tensors are of these shapes. Errors: ERR_SHAPE, ERR_NOT_FOUND name the tensor. */
ds_status dsi_expert_stack_check(ds_ctx *ctx, const dsi_byte_form *form,
                                 const dsi_expert_stack *stack);
/* Expert e's part. Its data lies in the file, or is from malloc where there are scales. */
ds_status dsi_expert_stack_read(ds_ctx *ctx, const dsi_byte_form *form,
                                const dsi_expert_stack *stack, int64_t e, ds_safetensor *out);

#endif
