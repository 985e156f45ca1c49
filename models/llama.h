/* SPDX-License-Identifier: Apache-2.0 */
/* Hyperparameters of the Llama family, shared by llama.c (the model) and llama_config.c (reading).
 */
#ifndef DS_MODELS_LLAMA_H
#define DS_MODELS_LLAMA_H

#include "families.h"

/* Resolved: no value here depends on whether its key was there. */
typedef struct ds_llama_config {
    int64_t vocab_size, max_positions, hidden_size, intermediate_size;
    int64_t n_layers, n_heads, n_kv_heads, head_dim;
    double rms_norm_eps, initializer_range, attention_dropout;
    ds_activation activation;
    ds_rope_params rope;
    bool tied, qkv_bias, o_bias, mlp_bias, qk_norm;
    int64_t window;                     /* 0: none */
    bool windowed[DS_MODEL_MAX_LAYERS]; /* layers that use it */
    /* read, and resolved into the others */
    bool use_window;
    int64_t max_window_layers, pad_id;
} ds_llama_config;

ds_status ds_llama_read(const ds_reader *reader, void *config, ds_model_info *info);
void ds_llama_print(const char *model_type, const void *config, FILE *out);
int64_t ds_llama_window(const ds_llama_config *config, int64_t layer);

#endif
