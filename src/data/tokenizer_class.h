/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokenizer transformers makes of a folder: by model type and class name. See
 * tokenizer_class.c; the tables are made by scripts/make_tokenizer_classes.py. */
#ifndef DSI_DATA_TOKENIZER_CLASS_H
#define DSI_DATA_TOKENIZER_CLASS_H

#include <jansson.h>
#include <stdbool.h>

typedef enum dsi_class_kind {
    DSI_CLASS_FILE, /* tokenizer.json as it stands */
    /* The others take vocabulary and merges out of it and make the rest anew: */
    DSI_CLASS_LLAMA,
    DSI_CLASS_QWEN2,
    DSI_CLASS_GPT2,
    DSI_CLASS_BERT,    /* its post-processor is made of cls and sep (tokenizer_special.c) */
    DSI_CLASS_ROBERTA, /* likewise; else as GPT2 */
    DSI_CLASS_T5,      /* its post-processor is made of eos; the map of Precompiled stays */
    DSI_CLASS_OTHER    /* one that is not supported */
} dsi_class_kind;

typedef struct dsi_class_model {
    const char *model, *name;
    dsi_class_kind kind;
    bool forced; /* whatever class the folder names */
} dsi_class_model;

extern const dsi_class_model dsi_class_models[]; /* ends with model NULL */
extern const char *const dsi_class_others[];     /* ends with NULL */

/* What the folder's small files say of the class. */
typedef struct dsi_class_hint {
    const char *model;  /* "model_type" of config.json, NULL without */
    const char *named;  /* "tokenizer_class", NULL without */
    bool has_file;      /* there is a tokenizer.json */
    bool is_byte_level; /* in which the word "ByteLevel" stands */
} dsi_class_hint;

/* *name_out: the class's name, for messages. */
dsi_class_kind dsi_class_of(const dsi_class_hint *hint, const char **name_out);

/* Puts the class's components into the tree of a tokenizer.json ("model" is there, maybe empty).
 * config: tokenizer_config.json's members. False: a member of it has the wrong type, named in
 * *bad_out; or no memory, *bad_out NULL. */
bool dsi_class_rebuild(dsi_class_kind kind, const json_t *config, json_t *root,
                       const char **bad_out);

/* Whether a value counts as true where Python asks. */
bool dsi_class_is_truth(const json_t *value);

/* A special token that the class names when the folder says nothing of it, NULL for none. */
const char *dsi_class_default(dsi_class_kind kind, const char *key);

#endif
