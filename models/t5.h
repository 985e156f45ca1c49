/* SPDX-License-Identifier: Apache-2.0 */
/* What t5_config.c reads and t5.c traces. */
#ifndef DS_MODELS_T5_H
#define DS_MODELS_T5_H

#include "model/family.h"

/* Resolved: no value here depends on whether its key was there. */
typedef struct ds_t5_config {
    int64_t vocab_size, hidden_size, head_dim, intermediate_size, n_heads;
    int64_t n_layers, n_decoder_layers;
    int64_t n_buckets, max_distance; /* of ds_relative_params */
    double dropout, norm_eps, init_factor;
    ds_activation activation;
    bool gated;
    bool tied;   /* the output projection is the embedding */
    bool scaled; /* it reads x / √hidden_size */
    int64_t pad_id, start_id;
    int64_t own_layers; /* read, and resolved into the others */
} ds_t5_config;

ds_status ds_t5_read(const ds_reader *reader, void *config, ds_model_info *info);
/* See ds_family.set_tied. */
void ds_t5_set_tied(const void *config, json_t *json, bool tied);
/* What the decoder has, which the encoder alone leaves out. */
bool ds_t5_ignores(const void *config, const char *name);
void ds_t5_print(const char *model_type, const void *config, FILE *out);

#endif
