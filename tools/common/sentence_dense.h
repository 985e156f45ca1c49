/* SPDX-License-Identifier: Apache-2.0 */
/* The modules Dense of a folder of sentence-transformers, which make the vector of a text another
 * one: activation(W·x + b), and with use_residual x or R·x added. In fp32, sums in fp64. Called by
 * sentence_folder.c, ds_encode, ds_serve and, to train them, train_dense.c. Source:
 * sentence_transformers/base/modules/dense.py.
 */
#ifndef DS_TOOLS_SENTENCE_DENSE_H
#define DS_TOOLS_SENTENCE_DENSE_H

#include <deepspeed/context.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { SENTENCE_MOST_DENSE = 4 };

typedef struct sentence_dense {
    int64_t n_in, n_out;
    int activation;  /* a ds_dense_function */
    float *weight;   /* (n_out,n_in) */
    float *bias;     /* (n_out), NULL: none */
    bool adds;       /* use_residual */
    float *residual; /* (n_out,n_in) of it; NULL: x itself */
} sentence_dense;

/* Reads FOLDER/PATH: its config.json, and its weights. The caller closes *dense_out. Errors: those
 * of folders; ERR_UNSUPPORTED (what is not built, by its key), ERR_SHAPE, ERR_NOT_FOUND. */
ds_status sentence_dense_open(ds_ctx *ctx, const char *folder, const char *path,
                              sentence_dense *dense_out);
void sentence_dense_close(sentence_dense *dense);
/* Its tensors, of which there are at most SENTENCE_DENSE_TENSORS: the i-th that is there, false:
 * none. */
typedef struct sentence_tensor {
    const char *name; /* "linear.weight" */
    float *data;
    int64_t rows, columns; /* columns 0: a vector */
} sentence_tensor;
enum { SENTENCE_DENSE_TENSORS = 3 };
bool sentence_dense_tensor(const sentence_dense *dense, int i, sentence_tensor *out);
/* What its config.json says; NULL: no memory. The caller frees it. */
json_t *sentence_dense_config(const sentence_dense *dense);
/* Of such a text, with memory for its tensors, as zeros. Errors: ERR_FORMAT, ERR_NOMEM. */
ds_status sentence_dense_like(ds_ctx *ctx, const json_t *config, sentence_dense *dense_out);
/* Writes config.json and model.safetensors into a folder that is there. Errors: ERR_IO, ERR_NOMEM.
 */
ds_status sentence_dense_write(ds_ctx *ctx, const char *folder, const sentence_dense *dense);
/* x: n_in numbers, out: n_out others. */
void sentence_dense_run(const sentence_dense *dense, const float *x, float *out);

#endif
