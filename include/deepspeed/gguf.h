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
    /* Default false; true: matrices in Q4_0 to Q6_K are not written, but for their names and rows;
     * such a folder is of use only beside its file (ds_generator_params.gguf). */
    bool blocks_stay;
    DS_RESERVED(8);
} ds_gguf_params;

/* Writes the folder. Memory is bounded by the largest tensor. Errors: ERR_UNSUPPORTED names
 * architecture, field, tensor, type or tokenizer; ERR_FORMAT (names file and place), ERR_NUMERIC (a
 * value beyond the dtype), ERR_IO, ERR_NOT_FOUND. Any thread. */
DS_API ds_status ds_gguf_to_folder(ds_ctx *ctx, const ds_gguf_params *params);

typedef struct ds_gguf_write_params {
    const char *source; /* a model folder of llama, mistral, qwen2, qwen3 or gpt2, or a GGUF file */
    const char *file;   /* to be written, staged, then renamed */
    /* Of matrices: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, or as llama.cpp
     * mixes them q4_k_m and q5_k_m: attention's values and the last product of a layer in q6_k in
     * about half of the layers. Vectors and GPT-2's positions are f32. Embedding and output
     * projection of the quantized types from q4_0 to q6_k are q6_k, of q8_0 q8_0. Where rows are no
     * whole blocks: of 256, q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k; of 32, f16. */
    const char *type;
    bool no_tokenizer; /* default false; true: none is written, whatever the folder's is */
    DS_RESERVED(8);
} ds_gguf_write_params;

/* Writes a GGUF file that llama.cpp loads. Bytes of Q4_0 to Q8_0, f16 and bf16 are those of PyPI's
 * `gguf`; K types are searched for by least squares. From a GGUF file all else stays, and matrices
 * that are in their type already keep their bytes. From a folder the file is read back and must
 * stand for the same graph as config.json. Errors: ERR_UNSUPPORTED names what a file cannot say
 * (architecture, field, tensor, tokenizer); ERR_NUMERIC (a value beyond the type, by its tensor),
 * ERR_FORMAT, ERR_IO, ERR_NOT_FOUND. Any thread. */
DS_API ds_status ds_gguf_write(ds_ctx *ctx, const ds_gguf_write_params *params);

#ifdef __cplusplus
}
#endif
#endif
