/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders at work: what a model makes of a document's tokens.
 *
 *     ds_encoder_create(ctx, &params, &encoder);
 *     ds_encoder_run(encoder, ids, n, &rows);       // (n,width), of each token
 *     ds_encoder_pool(encoder, DS_POOL_MEAN, vector);
 *
 * One document at a time, whose tokens all see each other. Nothing is allocated after creation. One
 * thread calls an encoder.
 */
#ifndef DEEPSPEED_ENCODER_H
#define DEEPSPEED_ENCODER_H

#include <deepspeed/model.h>
#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_encoder ds_encoder;

typedef struct ds_encoder_params {
    const ds_model *model;   /* of an encoder; borrowed, must outlive it */
    const char *weights;     /* model folder with *.safetensors, mapped where the dtype fits */
    ds_dtype dtype;          /* default NONE: that of the stored weights */
    int64_t max_length;      /* most tokens; default 0: the model's */
    uint32_t task;           /* a ds_task; default TOKENS: logits of words */
    uint32_t n_classes;      /* of a task with classes, as the folder's head has */
    const char *accelerator; /* default NULL: the best that there is */
    const struct ds_adapter *adapter; /* default NULL: none; of the model, opened from a folder;
                                         borrowed for the call */
    DS_RESERVED(7);
} ds_encoder_params;

/* Builds plans and memory, and binds the weights. Errors: those of models and folders;
 * ERR_NOT_FOUND (the folder has no head of this task), ERR_SHAPE (it has another number of
 * classes), ERR_ARG (the model is no encoder), ERR_LIMIT (max_length above the model's), ERR_NOMEM.
 */
DS_API ds_status ds_encoder_create(ds_ctx *ctx, const ds_encoder_params *params,
                                   ds_encoder **encoder_out);
DS_API void ds_encoder_destroy(ds_encoder **encoder);
DS_API int64_t ds_encoder_max_length(const ds_encoder *encoder);
/* Numbers of a row. */
DS_API int64_t ds_encoder_width(const ds_encoder *encoder);

/* Runs n >= 1 tokens, special ones included. *rows_out: f32 (n,width), borrowed until the next run:
 * logits of words or classes, or the last layer's output. Errors: ERR_LIMIT above max_length,
 * ERR_ARG on an id outside of the vocabulary. */
DS_API ds_status ds_encoder_run(ds_encoder *encoder, const uint32_t *ids, size_t n,
                                ds_tensor *rows_out);

/* The same of tokens with types (transformers' token_type_ids, as ds_tokenizer_encode_pair gives
 * them); NULL, or a model that has one type: all are of the first. ERR_ARG also on a type that the
 * model does not have. */
DS_API ds_status ds_encoder_run_typed(ds_encoder *encoder, const uint32_t *ids,
                                      const uint8_t *types, size_t n, ds_tensor *rows_out);

/* How the rows of a document's n tokens become one. Source: sentence-transformers'
 * 1_Pooling/config.json, whose name is behind each. */
typedef enum ds_pool {
    DS_POOL_FIRST,     /* the first token's, as BERT's [CLS]; pooling_mode_cls_token */
    DS_POOL_MEAN,      /* pooling_mode_mean_tokens */
    DS_POOL_LAST,      /* pooling_mode_lasttoken */
    DS_POOL_MAX,       /* of each number; pooling_mode_max_tokens */
    DS_POOL_MEAN_SQRT, /* the sum divided by √n; pooling_mode_mean_sqrt_len_tokens */
    DS_POOL_WEIGHTED,  /* the mean, token i weighs i + 1; pooling_mode_weightedmean_tokens */
    DS_POOLS
} ds_pool;
/* Of the newest run. out: width numbers. ERR_STATE before a run. */
DS_API ds_status ds_encoder_pool(const ds_encoder *encoder, ds_pool pool, float *out);

#ifdef __cplusplus
}
#endif
#endif
