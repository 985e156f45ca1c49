/* What a family gives to model.c. Internal to models/. */
#ifndef DS_MODELS_MODEL_H
#define DS_MODELS_MODEL_H

#include <deepspeed/model.h>
#include <jansson.h>

typedef struct ds_family {
    const char *model_types; /* space-separated values of "model_type" */
    const char *ignored;     /* space-separated suffixes of stored buffers */
    size_t config_bytes;
    /* Reads config.json into config (config_bytes, zeroed) and info. */
    ds_status (*read)(ds_ctx *ctx, const json_t *json, void *config, ds_model_info *info);
    ds_model_fn trace;
} ds_family;

extern const ds_family ds_family_gpt2;
extern const ds_family ds_family_llama;

/* The end of every language model, x (B,T,C): the loss against the input `targets`, or, in
 * GENERATE, the logits of row `last` of each sequence. embedding: the tied projection (V,C);
 * DS_NONE: a parameter lm_head.weight of its own. */
void ds_model_head(ds_nn *nn, ds_value x, ds_value embedding, int64_t vocab_size, double init_std);

enum { DS_MODEL_MAX_LAYERS = 1024 };

/* Typed reads with defaults; ERR_FORMAT names the key and what was found. A null counts as absent.
 */
ds_status ds_model_int(ds_ctx *ctx, const json_t *json, const char *key, int64_t fallback,
                       int64_t min, int64_t *value_out);
/* A number of layers: at most DS_MODEL_MAX_LAYERS, else ERR_LIMIT. */
ds_status ds_model_layers(ds_ctx *ctx, const json_t *json, const char *key, int64_t fallback,
                          int64_t *value_out);
ds_status ds_model_real(ds_ctx *ctx, const json_t *json, const char *key, double fallback,
                        double *value_out);
ds_status ds_model_bool(ds_ctx *ctx, const json_t *json, const char *key, bool fallback,
                        bool *value_out);
/* Borrowed from json; fallback when absent. */
ds_status ds_model_text(ds_ctx *ctx, const json_t *json, const char *key, const char *fallback,
                        const char **value_out);

#endif
