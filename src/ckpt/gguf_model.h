/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file as a Hugging Face model folder: config.json of its entries, tensors under their
 * Hugging Face names and in their layout, tokenizer.json of its tokens. Inside of gguf_*.c, but for
 * dsi_gguf_config_text.
 *
 * What is not known is refused by its key or tensor: no field of the model's architecture is passed
 * over in silence.
 */
#ifndef DSI_CKPT_GGUF_MODEL_H
#define DSI_CKPT_GGUF_MODEL_H

#include "io/gguf.h"

#include <deepspeed/safetensors.h>
#include <jansson.h>

enum { DSI_GGUF_NAME_BYTES = 256 };

/* An architecture that is read, and what its config.json calls it. */
typedef struct dsi_gguf_arch {
    const char *name, *model_type, *class_name;
    bool gpt2;  /* its config.json has GPT-2's names */
    bool pairs; /* q and k lie in interleaved pairs */
    bool tells; /* config.json says whether there are biases of q, k and v */
} dsi_gguf_arch;

/* Errors: ERR_UNSUPPORTED names the architecture, ERR_FORMAT. */
ds_status dsi_gguf_arch_of(ds_ctx *ctx, const dsi_gguf *gguf, const dsi_gguf_arch **arch_out);

/* How the rows of a tensor lie in the file. */
typedef enum dsi_gguf_layout {
    DSI_GGUF_SAME,
    DSI_GGUF_PAIRS,     /* each head's rows as interleaved pairs: here halves */
    DSI_GGUF_TRANSPOSED /* (out, in), here (in, out) */
} dsi_gguf_layout;

/* A tensor on its way into the folder. */
typedef struct dsi_gguf_source {
    const dsi_gguf *gguf;
    const dsi_gguf_tensor *tensor;
    char name[DSI_GGUF_NAME_BYTES];
    dsi_gguf_layout layout;
    int64_t heads; /* of PAIRS */
    float *whole;  /* of TRANSPOSED, while it is written */
    float *row;    /* else: scratch of one row */
} dsi_gguf_source;

/* Whether it is a matrix in blocks that products take as they lie, for dsi_gguf_blocks_row. */
bool dsi_gguf_stays(const dsi_gguf_source *source);

/* Value of {architecture}.key, or of key itself; NULL: there is none. */
const dsi_gguf_entry *dsi_gguf_field(const dsi_gguf *gguf, const char *key);
/* A number from 1 on; of an array only where all are equal. Errors: ERR_FORMAT, ERR_UNSUPPORTED. */
ds_status dsi_gguf_count(ds_ctx *ctx, const dsi_gguf *gguf, const char *key, int64_t *value_out);
/* config.json. The caller frees it (json_decref). Errors: ERR_UNSUPPORTED names the architecture or
 * the key, ERR_FORMAT a key that is missing or of another kind. */
ds_status dsi_gguf_config(ds_ctx *ctx, const dsi_gguf *gguf, json_t **config_out);

/* The same of a file, as a text that the caller frees. Errors: those of dsi_gguf_open, too. */
ds_status dsi_gguf_config_text(ds_ctx *ctx, const char *path, char **text_out);

/* Where a tensor goes: name, layout, heads of *source, or an empty name for what the folder does
 * not have. Errors: ERR_UNSUPPORTED names the tensor. */
ds_status dsi_gguf_place(ds_ctx *ctx, const dsi_gguf *gguf, const dsi_gguf_tensor *tensor,
                         dsi_gguf_source *source_out);

/* The other way: where the folder's tensor `name` goes in a file; an empty name for what the file
 * does not have (of_keys: the heads of PAIRS are those of keys). Errors: ERR_UNSUPPORTED names the
 * tensor. */
typedef struct dsi_gguf_target {
    char name[DSI_GGUF_NAME_BYTES];
    dsi_gguf_layout layout;
    bool of_keys;
} dsi_gguf_target;
ds_status dsi_gguf_place_back(ds_ctx *ctx, const dsi_gguf_arch *arch, const char *name,
                              dsi_gguf_target *target_out);
/* The architecture of a config.json's model_type; NULL: none is written. */
const dsi_gguf_arch *dsi_gguf_arch_of_model(const char *model_type);

/* Whether the permutation and the transposition fit the tensor. Errors: ERR_SHAPE. */
ds_status dsi_gguf_check_layout(ds_ctx *ctx, const dsi_gguf_source *source);
/* The file's row that is row r here: of PAIRS the halves of a head are interleaved. */
int64_t dsi_gguf_stored_row(const dsi_gguf_source *source, int64_t r);

/* How text is cut into words, by the name that tokenizer.ggml.pre has for it. */
typedef struct dsi_gguf_cutting {
    const char *name;
    const char *regex; /* NULL: GPT-2's, which ByteLevel has */
    bool digits;       /* each digit is a word */
    bool whole;        /* a word that is a token is not put together */
} dsi_gguf_cutting;

/* The first name that cuts so; NULL: none. cutting->name is not looked at. */
const char *dsi_gguf_cutting_name(const dsi_gguf_cutting *cutting);

/* What both kinds need. */
typedef struct dsi_gguf_tokens {
    ds_ctx *ctx;
    const dsi_gguf *gguf;
    const dsi_gguf_entry *tokens, *types, *scores, *merges;
} dsi_gguf_tokens;

/* Appends the merges of BPE, pairs of tokens, to a list: those of the file, or those that the
 * scores mean. Errors: ERR_FORMAT, ERR_NOMEM. */
ds_status dsi_gguf_merges_of_file(const dsi_gguf_tokens *tokens, json_t *list);
ds_status dsi_gguf_merges_of_scores(const dsi_gguf_tokens *tokens, json_t *list);

/* Writes tokenizer.json and tokenizer_config.json. Errors: ERR_UNSUPPORTED names the kind of
 * tokenizer; ERR_FORMAT, ERR_IO. */
ds_status dsi_gguf_tokenizer(ds_ctx *ctx, const dsi_gguf *gguf, const char *folder);

#endif
