/* SPDX-License-Identifier: Apache-2.0 */
/* How well a model tells a text: exp of the mean of -log p of each token behind the first. For
 * ds_quantize. */
#ifndef DSI_TOOLS_PERPLEXITY_H
#define DSI_TOOLS_PERPLEXITY_H

#include <deepspeed/tensor.h>

typedef struct perplexity_text {
    const char *path;
    int64_t most; /* tokens that are told, from its begin */
} perplexity_text;

/* Of a model folder, or a GGUF file as --quantize `file` runs it, in fp32 but for the rounding of
 * what blocks are multiplied with. Windows of 256 tokens, each from no context. *n_out: tokens
 * told. Errors: those of models, ERR_ARG (a text of less than two tokens). */
ds_status perplexity_of(ds_ctx *ctx, const char *model, const perplexity_text *text,
                        double *value_out, int64_t *n_out);

#endif
