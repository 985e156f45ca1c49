/* SPDX-License-Identifier: Apache-2.0 */
/* What a family of models/ gives to model.c, and what it builds on besides nn.h. */
#ifndef DSI_MODEL_FAMILY_H
#define DSI_MODEL_FAMILY_H

#include "model/fields.h"

#include <deepspeed/model.h>

typedef struct ds_family {
    const char *model_types; /* space-separated values of "model_type" */
    const char *ignored;     /* space-separated suffixes of stored buffers */
    size_t config_bytes;
    /* Reads config.json into config (config_bytes, zeroed) and info, whose architecture is set. */
    ds_status (*read)(const ds_reader *reader, void *config, ds_model_info *info);
    ds_model_fn trace;
    /* Whether files may hold this tensor for nothing, besides `ignored`; NULL: none. */
    bool (*ignores)(const void *config, const char *name);
    /* Writes config as it is resolved, a line "key: value" each. */
    void (*print)(const char *model_type, const void *config, FILE *out);
    /* Writes into the config.json of config that the output projection is tied, or is not. NULL:
     * tie_word_embeddings says it. With it the weights beside a config.json decide, not the key. */
    void (*set_tied)(const void *config, json_t *json, bool tied);
} ds_family;

/* A model of the first of the families that knows config.json's "model_type"; the list must outlive
 * it. From a file, or its text. Errors: ERR_NOT_FOUND, ERR_IO and ERR_FORMAT of the file,
 * ERR_UNSUPPORTED names the model types that are known, and those of the family. */
typedef struct ds_families {
    const ds_family *const *items;
    size_t n;
} ds_families;

ds_status dsi_model_read(ds_ctx *ctx, const ds_families *families, const char *path,
                         ds_model **model_out);
ds_status dsi_model_parse(ds_ctx *ctx, const ds_families *families, const char *text,
                          ds_model **model_out);

/* ds_nn_rope_table of type longrope. */
struct ds_longrope;
ds_value ds_model_longrope_table(ds_nn *nn, ds_value positions, const ds_rope_params *rope,
                                 const struct ds_longrope *longrope);

/* A factor in the precision of a model, for families that keep it so. */
double ds_model_rounded(ds_dtype dtype, double factor);

/* The end of every language model. */
typedef struct ds_head_params {
    ds_value embedding; /* the tied projection (V,C); DS_NONE: a parameter `name` of its own */
    const char *name;
    int64_t vocab_size;
    double init_std;
    ds_value extra;   /* f32 () that is added to the loss, or DS_NONE */
    double cap;       /* default 0: none; a logit z becomes cap·tanh(z/cap) */
    const char *bias; /* default NULL: none; whole name of what is added to logits (V) */
    bool unshifted;   /* of an encoder: the input `labels` in the place of `targets` */
} ds_head_params;
/* x (B,T,C): the loss against the input `targets`, or, in GENERATE, the logits of row `last` of
 * each sequence. With a cap or a bias all logits are in memory; preference losses refuse them. */
void ds_model_head(ds_nn *nn, ds_value x, const ds_head_params *params);

/* Losses of tasks: task_loss.c. Records what is not built beside the trace's task. */
void ds_model_check_task(ds_nn *nn);
/* Of logits f32 (B,T,n_classes) of regression or of many labels. */
void ds_model_values_loss(ds_nn *nn, ds_value logits);
/* Of hidden states x (rows,T,C), by ds_contrast. */
void ds_model_contrast(ds_nn *nn, ds_value x);
/* The loss of their vectors, f32 (rows,W). */
void ds_model_contrast_rows(ds_nn *nn, ds_value rows);
/* Vectors f32 (rows,W) behind the modules Dense of the trace's ds_contrast (dense_modules.c). */
ds_value ds_model_dense(ds_nn *nn, ds_value rows, const ds_contrast *contrast);
/* The same of a model that is traced once a mini-batch (mini_batches.c). */
void ds_model_mini_batches(ds_nn *nn, ds_model_fn trace, const void *config);

enum { DS_MODEL_MAX_LAYERS = 1024, DS_MODEL_MAX_MINI_BATCHES = 4096 };

#endif
