/* SPDX-License-Identifier: Apache-2.0 */
/* What a family gives to model.c. Internal to models/. */
#ifndef DS_MODELS_MODEL_H
#define DS_MODELS_MODEL_H

#include "fields.h"

#include <deepspeed/model.h>

typedef struct ds_family {
    const char *model_types; /* space-separated values of "model_type" */
    const char *ignored;     /* space-separated suffixes of stored buffers */
    size_t config_bytes;
    /* Reads config.json into config (config_bytes, zeroed) and info, whose architecture is set. */
    ds_status (*read)(const ds_reader *reader, void *config, ds_model_info *info);
    ds_model_fn trace;
    /* Writes config as it is resolved, a line "key: value" each. */
    void (*print)(const char *model_type, const void *config, FILE *out);
} ds_family;

extern const ds_family ds_family_gpt2;
extern const ds_family ds_family_llama;

/* Of a custom model with fields (custom.c): its constants as the text of a config.json (NULL
 * without fields), read back from one into memory for free(), and a line "key: value" each. */
ds_status ds_custom_write(ds_ctx *ctx, const ds_model_info *info, const void *config,
                          char **text_out);
ds_status ds_custom_parse(ds_ctx *ctx, const ds_model_info *info, const char *text,
                          void **config_out);
void ds_custom_print(const ds_model_info *info, const void *config, FILE *out);

/* The end of every language model, x (B,T,C): the loss against the input `targets`, or, in
 * GENERATE, the logits of row `last` of each sequence. embedding: the tied projection (V,C);
 * DS_NONE: a parameter lm_head.weight of its own. */
void ds_model_head(ds_nn *nn, ds_value x, ds_value embedding, int64_t vocab_size, double init_std);

enum { DS_MODEL_MAX_LAYERS = 1024 };

#endif
