/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files (github.com/ggml-org/ggml, docs/gguf.md) as Hugging Face model folders: config.json,
 * weights with their quantized blocks as real numbers, tokenizer and chat template. The folder then
 * trains, generates and loads in transformers as any other.
 *
 * Read: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4,
 * TQ1_0, TQ2_0; of llama (Mistral too), qwen2, qwen3 and gpt2. Values have the bits of PyPI's
 * `gguf` before they are rounded to the folder's dtype.
 */
#ifndef DEEPSPEED_GGUF_H
#define DEEPSPEED_GGUF_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_gguf_params {
    const char *file;   /* of one part */
    const char *folder; /* to be written: staged, then renamed; one that exists keeps other files */
    ds_dtype dtype;     /* f32, bf16 or f16; default NONE: bf16 */
    uint64_t max_shard_bytes; /* default 0: one file */
    bool no_tokenizer;        /* default false; true: none is written, whatever the file's is */
    DS_RESERVED(8);
} ds_gguf_params;

/* Writes the folder. Memory is bounded by the largest tensor. Errors: ERR_UNSUPPORTED names
 * architecture, field, tensor, type or tokenizer; ERR_FORMAT (names file and place), ERR_NUMERIC (a
 * value beyond the dtype), ERR_IO, ERR_NOT_FOUND. Any thread. */
DS_API ds_status ds_gguf_to_folder(ds_ctx *ctx, const ds_gguf_params *params);

#ifdef __cplusplus
}
#endif
#endif
