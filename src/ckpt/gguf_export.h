/* SPDX-License-Identifier: Apache-2.0 */
/* What a GGUF file says of a Hugging Face folder: entries of its config.json and its tokenizer.
 * Inside of gguf_export*.c; the way back is gguf_config.c and gguf_tokenizer.c. */
#ifndef DSI_CKPT_GGUF_EXPORT_H
#define DSI_CKPT_GGUF_EXPORT_H

#include "ckpt/gguf_model.h"
#include "io/gguf_write.h"

/* Entries of the architecture. *divisors_out: of Llama 3's rotary positions, n of them, which the
 * caller frees; NULL: none. Errors: ERR_UNSUPPORTED, ERR_FORMAT name the key. */
ds_status dsi_gguf_export_config(ds_ctx *ctx, const dsi_gguf_arch *arch, const json_t *config,
                                 dsi_gguf_out *out, float **divisors_out, int64_t *n_out);
/* Entries of tokenizer.json and tokenizer_config.json; n_rows: of the embedding, whose ids without
 * a token get one that is not used. Errors: ERR_UNSUPPORTED names what has no word there. */
ds_status dsi_gguf_export_tokenizer(ds_ctx *ctx, const char *folder, const json_t *config,
                                    int64_t n_rows, dsi_gguf_out *out);

#endif
