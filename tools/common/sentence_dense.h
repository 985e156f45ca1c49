/* SPDX-License-Identifier: Apache-2.0 */
/* The modules Dense of a folder of sentence-transformers, which make the vector of a text another
 * one: activation(W·x + b), and with use_residual x or R·x added. In fp32, sums in fp64. Called by
 * sentence_folder.c, ds_encode and ds_serve. Source: sentence_transformers/base/modules/dense.py.
 */
#ifndef DS_TOOLS_SENTENCE_DENSE_H
#define DS_TOOLS_SENTENCE_DENSE_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stdint.h>

enum { SENTENCE_MOST_DENSE = 4 };

typedef struct sentence_dense {
    int64_t n_in, n_out;
    int activation;  /* a row of sentence_dense.c's table */
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
/* x: n_in numbers, out: n_out others. */
void sentence_dense_run(const sentence_dense *dense, const float *x, float *out);

#endif
