/* SPDX-License-Identifier: Apache-2.0 */
/* An oracle of ref/ made from a model folder below test/golden: its config.json read with Hugging
 * Face's names, its fp32 weights, gradients beside them. For tests. */
#ifndef DS_TEST_REF_MODEL_H
#define DS_TEST_REF_MODEL_H

#include "common/golden.h"
#include "ref/ref.h"

typedef struct ref_model {
    bool is_gpt2;
    ref_gpt2_config gpt2;
    ref_llama_config llama;
    int64_t vocab_size;
    golden_file weights; /* private to this model: may be changed */
    float **grads;       /* like weights.tensors */
} ref_model;

/* folder: below test/golden, as "parity/llama3". */
void ref_model_load(ref_model *model, const char *folder);
void ref_model_close(ref_model *model);
/* The loss; logits (B,T,V) when not NULL; with backward, the gradients of every parameter. */
float ref_model_run(ref_model *model, const ref_batch *batch, float *logits, bool backward);
/* Gradient or weight by name; NULL when the model has no such parameter. */
float *ref_model_grad(ref_model *model, const char *name);
float *ref_model_weight(ref_model *model, const char *name);

/* tokens, targets, positions and first of a golden file; borrowed from it. */
ref_batch ref_batch_of(const golden_file *golden);

#endif
