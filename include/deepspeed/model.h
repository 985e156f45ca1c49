/* SPDX-License-Identifier: Apache-2.0 */
/* Models: architectures known by their Hugging Face config.json, and custom ones.
 *
 * A model is a function that traces single-device code, with its hyperparameters. Language models
 * use these inputs, all i32 (B,T) unless stated:
 *   TRAIN, EVAL: input_ids, positions, first (lowest visible position: document mask), targets
 *                (-100 is not counted) → outputs "loss", "count". An encoder has labels in the
 * place of targets: what the token at the same position is, not the next one, for tokens that are
 * masked in input_ids (ds_loader_params.masking), or a class GENERATE:    input_ids, positions,
 * kv_offset (B), last (B: row whose logits are wanted), and where rotary positions are dynamic
 * length (B: ids of the sequence, those that come in a later piece of the prompt too; with paged
 * (B,T), of each token's sequence as it is then) → output
 * "logits" f32 (B,V) Of an encoder: input_ids, positions, first → "logits" f32 (B,T,V),
 * (B,T,classes), or "hidden" f32 (B,T,C), by the trace's task
 */
#ifndef DEEPSPEED_MODEL_H
#define DEEPSPEED_MODEL_H

#include <deepspeed/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_model ds_model;

/* Traces a model for ds_nn_trace(nn). Errors go to the tracer. */
typedef void (*ds_model_fn)(ds_nn *nn, const void *config);

typedef struct ds_model_info {
    const char *architecture; /* model_type of config.json ("gpt2", "llama", …), or a custom name */
    int64_t vocab_size;       /* 0: not a language model */
    int64_t max_positions;    /* 0: no limit; of dynamic rotary scaling factor times the model's */
    int64_t hidden_size;      /* 0: unknown; used to resolve "auto" in configurations */
    bool tied_embeddings;     /* the output projection is the token embedding */
    bool encoder;             /* positions see later ones too; see above */
    ds_dtype dtype;           /* of the stored weights (torch_dtype), NONE when not said */
    const char *base_prefix; /* "transformer." or "model.": absent in files of the bare model */
    const char *embedding;   /* the parameter that a tied output projection is; NULL: unknown */
    const ds_attr *fields; /* default NULL; of a custom model: its constants, see ds_model_custom */
    uint32_t n_fields;
    const char *head;     /* the output projection's parameter; NULL: "lm_head.weight" */
    int64_t stored_vocab; /* default 0: vocab_size; rows of the embedding and of the output
                             projection as they are stored, of a model that ds_model_change made */
    bool stored_tied;     /* the output projection begins as the stored embedding */
    bool
        pairs; /* with encoder: input_ids are a source, labels are what is made of it, both from the
                  document's beginning on; pad_id fills up the shorter source, -100 shorter labels.
                  GENERATE gives the next token, of a source that the task HIDDEN read before */
    bool carries; /* GENERATE: a state goes on from token to token, which does not go back: what is
                     kept of a sequence serves only those that begin with all of it */
    int64_t pad_id, start_id; /* of pairs; start_id: what comes before the first label */
    int64_t token_types; /* rows of the table of token types (BERT's segments); default 0: none */
    DS_RESERVED(2);
} ds_model_info;

/* Reads a config.json. Errors: ERR_NOT_FOUND, ERR_FORMAT, ERR_UNSUPPORTED naming the architecture
 * or the key and value that is not supported. */
DS_API ds_status ds_model_from_config(ds_ctx *ctx, const char *path, ds_model **model_out);

/* The same from the text of a config.json. */
DS_API ds_status ds_model_from_text(ds_ctx *ctx, const char *text, ds_model **model_out);
/* Its constants as they are resolved, a line "key: value" each, whatever the layout of the
 * config.json that gave them; of a custom model its name and its fields. The caller frees
 * *text_out. Errors: ERR_NOMEM. */
DS_API ds_status ds_model_print(const ds_model *model, char **text_out);
/* The same of another config.json, given as text and read as a model of this kind: to compare them.
 * Errors: as of reading it. */
DS_API ds_status ds_model_print_config(const ds_model *model, const char *config_json,
                                       char **text_out);

/* A model written by the caller. info is copied, its strings and fields borrowed; config is passed
 * to trace.
 *
 * info->fields describes the numbers of config, as an operator's attributes are described:
 *
 *     static const ds_attr fields[] = {{"width", DS_ATTR_INT, offsetof(mlp, width)}};
 *     const ds_model_info info = {.architecture = "mlp", .fields = fields, .n_fields = 1};
 *
 * With it the model has a config.json, {"model_type": "mlp", "width": 32}: it is written with
 * exports and checkpoints, ranks compare it, and a resume compares it with the checkpoint's, field
 * by field. Errors: ERR_ARG (a field twice, or not finite), ERR_NOMEM. */
DS_API ds_status ds_model_custom(ds_ctx *ctx, const ds_model_info *info, ds_model_fn trace,
                                 const void *config, ds_model **model_out);
/* Reads such a config.json into config, of which an error may leave a part filled. Errors:
 * ERR_NOT_FOUND, ERR_FORMAT (a field is missing or no number; names it), ERR_UNSUPPORTED (another
 * model_type). Keys that are no fields are passed over. */
DS_API ds_status ds_model_read_config(ds_ctx *ctx, const char *path, const ds_model_info *info,
                                      void *config);
DS_API void ds_model_destroy(ds_model **model);

typedef struct ds_model_changes {
    int64_t vocab_size; /* default 0: as it is; at least the model's: tokens are added at the end,
                           and begin as the mean of the stored rows */
    bool untie;         /* the output projection becomes a parameter of its own, which begins as the
                           token embedding. A model that has one stays as it is */
    DS_RESERVED(8);
} ds_model_changes;

/* A model like another one, as its weights are to go on being trained. Weights are read from the
 * folder of the model that it was made of; what is written has its config.json. The caller destroys
 * *model_out; model stays as it is. Errors: ERR_ARG (fewer tokens), ERR_UNSUPPORTED (a custom
 * model, or one whose config.json does not say it), ERR_NOMEM. */
DS_API ds_status ds_model_change(const ds_model *model, const ds_model_changes *changes,
                                 ds_model **model_out);
DS_API const ds_model_info *ds_model_get_info(const ds_model *model);
/* The text of config.json, NULL for a custom model without fields. */
DS_API const char *ds_model_config_text(const ds_model *model);
/* Traces into a tracer; the first error of the trace. */
DS_API ds_status ds_model_trace(const ds_model *model, ds_nn *nn);
/* Whether a stored tensor of that name is no parameter but a buffer that may be ignored, such as
 * "h.0.attn.bias" or "rotary_emb.inv_freq". */
DS_API bool ds_model_ignores(const ds_model *model, const char *tensor_name);

#ifdef __cplusplus
}
#endif
#endif
