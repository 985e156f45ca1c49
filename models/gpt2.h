/* SPDX-License-Identifier: Apache-2.0 */
/* Hyperparameters of GPT-2, shared by gpt2.c (the model) and gpt2_config.c (reading). */
#ifndef DS_MODELS_GPT2_H
#define DS_MODELS_GPT2_H

#include "families.h"

typedef struct ds_gpt2_config {
    int64_t vocab_size, n_positions, n_embd, n_layer, n_head, n_inner;
    double layer_norm_epsilon, initializer_range;
    double resid_pdrop, embd_pdrop, attn_pdrop;
    ds_activation activation;
    bool scale_attn_weights, scale_attn_by_inverse_layer_idx, tied;
} ds_gpt2_config;

ds_status ds_gpt2_read(const ds_reader *reader, void *config, ds_model_info *info);
void ds_gpt2_print(const char *model_type, const void *config, FILE *out);

#endif
