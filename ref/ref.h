/* SPDX-License-Identifier: Apache-2.0 */
/* The oracles: straight-line models of the supported families, forward and backward, in plain C.
 *
 * They are the clearest statement of what each model computes, share no code with the library, and
 * are never optimised. Tests compare them with transformers' results, and graphs run through the
 * reference kernels with them, bit for bit (docs/internals/reference_numerics.md). fp32, one
 * thread; allocation failure ends the process, which only tests run. Reference kernels flush
 * subnormals: whoever compares bits sets the same mode around these calls.
 */
#ifndef REF_REF_H
#define REF_REF_H

#include "ref/ref_ops.h"

#include <stddef.h>

/* Where weights come from and gradients go, by Hugging Face's parameter name. A tied output
 * projection is never asked for. */
typedef struct ref_io {
    void *user;
    const float *(*param)(void *user, const char *name); /* never NULL */
    float *(*grad)(void *user, const char *name);        /* never NULL; overwritten */
    bool backward;                                       /* false: grad is not called */
} ref_io;

/* All (B,T). */
typedef struct ref_batch {
    int64_t b, t;
    const int32_t *tokens;
    const int32_t *targets;   /* aligned with the logits; REF_IGNORE is not counted */
    const int32_t *positions; /* within the document */
    const int32_t *first;     /* lowest visible position of each query (start of its document) */
} ref_batch;

/* ---- GPT-2: names as config.json's, resolved ----------------------------------------------------
 */
typedef struct ref_gpt2_config {
    int64_t vocab_size, n_positions, n_embd, n_layer, n_head, n_inner;
    float layer_norm_epsilon;
    ref_act activation;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx, tied;
} ref_gpt2_config;
/* The mean loss; logits (B,T,V) when not NULL; gradients through io. */
float ref_gpt2(const ref_gpt2_config *config, const ref_io *io, const ref_batch *batch,
               float *logits);

/* ---- Llama 2 and 3, Mistral, Qwen2, Qwen3 -------------------------------------------------------
 */
enum { REF_LLAMA_MAX_LAYERS = 512 };
typedef struct ref_llama_config {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim;
    float rms_norm_eps;
    ref_act activation;
    ref_rope rope;
    bool tied;
    bool qkv_bias, o_bias, mlp_bias;      /* Qwen2 has the first */
    bool qk_norm;                         /* Qwen3: RMS norm over each head of q and k */
    int64_t window[REF_LLAMA_MAX_LAYERS]; /* of each layer; 0: none */
} ref_llama_config;
float ref_llama(const ref_llama_config *config, const ref_io *io, const ref_batch *batch,
                float *logits);

/* ---- AdamW, one tensor -------------------------------------------------------------------------
 */
typedef struct ref_adamw_params {
    double lr, beta1, beta2, eps, weight_decay; /* rounded to fp32 where they meet the tensors */
    int64_t step;                               /* from 1 */
} ref_adamw_params;
void ref_adamw(float *p, float *m, float *v, const float *g, int64_t count,
               const ref_adamw_params *params);

/* ---- used by the models ------------------------------------------------------------------------
 */
/* Memory of one pass, freed together. */
typedef struct ref_scratch {
    struct ref_block *blocks;
} ref_scratch;
float *ref_floats(ref_scratch *scratch, int64_t count);
void ref_scratch_free(ref_scratch *scratch);

/* io->param or io->grad with a formatted name. */
const float *ref_param(const ref_io *io, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
float *ref_grad(const ref_io *io, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
