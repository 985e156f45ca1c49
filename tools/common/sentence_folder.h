/* SPDX-License-Identifier: Apache-2.0 */
/* How a folder of sentence-transformers makes one vector of a text: modules.json and what it names.
 * Called by ds_encode, ds_serve, ds_train and
 * ds_checkpoint. */
#ifndef DS_TOOLS_SENTENCE_FOLDER_H
#define DS_TOOLS_SENTENCE_FOLDER_H

#include "common/sentence_dense.h"

#include <deepspeed/context.h>
#include <deepspeed/encoder.h>
#include <deepspeed/model.h>

#define SENTENCE_POOLINGS "auto|mean|cls|last|max|mean_sqrt|weighted"
#define SENTENCE_POOLING_DOC                                                                       \
    "One vector of a text's tokens: mean, that of the first (cls) or last, the largest numbers, "  \
    "the sum by the root of how many, or the mean where token i weighs i; auto: as the folder "    \
    "says (1_Pooling/config.json), else mean, of a decoder last."

typedef struct sentence_form {
    ds_pool pool;
    bool normalize;
    int64_t max_length; /* tokens of a text that are read; 0: the folder says nothing */
    sentence_dense dense[SENTENCE_MOST_DENSE]; /* between pooling and normalization */
    uint32_t n_dense;
} sentence_form;

/* pooling: one of SENTENCE_POOLINGS. A folder without modules.json: *form_inout as it comes, but
 * for a pooling that is named. The caller closes the form. Errors: a module, pooling or prompt that
 * is not built, by name. */
ds_status sentence_folder(ds_ctx *ctx, const char *folder, const char *pooling,
                          sentence_form *form_inout);
void sentence_form_close(sentence_form *form);
/* Whether its modules fit a model of that hidden size, and each the one before it. Errors:
 * ERR_SHAPE. */
ds_status sentence_form_check(ds_ctx *ctx, const sentence_form *form, int64_t hidden_size);
/* Numbers of a text's vector, and those vectors: of a pooled one, in memory of the caller's to
 * free; NULL: no memory. */
int64_t sentence_width(const sentence_form *form, int64_t hidden_size);
float *sentence_vector(const sentence_form *form, const float *pooled, int64_t hidden_size);
/* Tokens of a text that an encoder reads, 0: as many as the model can: what was asked for (0:
 * nothing), else what the folder says. */
int64_t sentence_length(const sentence_form *form, int64_t asked, const ds_model_info *info);

/* Those files, as one text: what a checkpoint holds of them (the state "embeddings"), so that
 * whoever makes a model folder of it writes the same. width: numbers of a vector. source: the
 * folder that was trained, whose named prompts and similarity stay; NULL: none. The caller frees
 * *text_out. Errors: ERR_NOMEM, ERR_FORMAT. */
ds_status sentence_folder_describe(ds_ctx *ctx, const char *source, const sentence_form *form,
                                   int64_t width, char **text_out);
/* n numbers of tensor `name` ("linear.weight") of the which-th module Dense. */
typedef ds_status (*sentence_read_fn)(void *user, uint32_t which, const char *name, float *data,
                                      size_t n);
/* Writes the files of such a text into a model folder, for sentence-transformers, with weights of
 * modules Dense from `read`. Errors: ERR_IO, ERR_NOMEM, ERR_FORMAT; those of `read`. */
ds_status sentence_folder_write(ds_ctx *ctx, const char *folder, const char *text,
                                sentence_read_fn read, void *user);

#endif
