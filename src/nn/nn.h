/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the tracer, shared by nn*.c. */
#ifndef DSI_NN_NN_H
#define DSI_NN_NN_H

#include "op/ops.h"
#include <deepspeed/distillation.h>

enum { DSI_NN_MAX_DEPTH = 16, DSI_NN_PATH_BYTES = 1024 };

struct ds_nn {
    ds_graph *graph;
    ds_trace trace;
    ds_status status;
    char scope[DSI_NN_PATH_BYTES];
    size_t scope_length[DSI_NN_MAX_DEPTH]; /* of the outer scopes */
    uint32_t depth;
    uint32_t n_regions; /* marked so far */
    bool in_region;
    uint32_t n_sites; /* random sites given out */
    bool teaches;     /* a teacher is traced: its parameters are frozen, and there is no dropout */
    ds_value lesson;  /* its logits, f32 (B,T,V) */
    ds_value rng;     /* the random state input, DS_NONE before its first use */
    /* Of a mini-batch (model/mini_batches.c): rows of the whole batch, else 0; the first that is
     * traced; the vectors of those that are. */
    int64_t whole_batch, mini_begin;
    ds_value embedded;
};

/* Whether a teacher is being traced, for distillation. */
bool dsi_nn_teaches(const ds_nn *nn);
/* Whether this trace draws at random: dropout, noise. */
bool dsi_nn_draws(const ds_nn *nn);
/* x with noise of a kind (DSI_NOISE_*, op/ops.h); its numbers are of a site of their own. */
ds_value dsi_nn_noise(ds_nn *nn, ds_value x, int64_t kind, double amount);

bool dsi_nn_ok(ds_nn *nn, ds_status status);
ds_value dsi_nn_cell(ds_nn *nn, const ds_cell_info *info);
/* An input that has no rows, as a random state: all of it, in a mini-batch, too. */
ds_value dsi_nn_whole_input(ds_nn *nn, const char *name, ds_dtype dtype, ds_shape shape);
/* The matrix (out,in) of a linear layer, in the trace's dtype of weights. */
ds_value dsi_nn_matrix_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init);
void dsi_nn_path(ds_nn *nn, const char *name, char *path, size_t n);
void dsi_nn_apply_all(ds_nn *nn, const ds_op *op, const void *attrs, const ds_value *in,
                      uint32_t n_in, ds_value *out);

/* The numbers of n rows along dim 1 of (B,n,..): of positions in the order in which ranks share
 * them. */
dsi_row_numbers_attrs dsi_nn_row_numbers(const ds_trace *trace, int64_t n);

/* ds_nn_linear_cross_entropy() with something added to the loss; extra DS_NONE: nothing. */
ds_value dsi_nn_linear_cross_entropy(ds_nn *nn, ds_value x, ds_value weight, ds_value targets,
                                     ds_value extra);

/* Parameters of ds_dense, which are no part of a model folder: in their names. */
#define DSI_DENSE_SCOPE "sentence_dense."
enum { DSI_MOST_DENSE = 4 };
bool dsi_is_dense(const char *parameter);

enum { DSI_NN_TEACHER_BYTES = 8 };
#define DSI_NN_TEACHER "teacher." /* in the names of a teacher's parameters */
/* Whether a cell is of a teacher. */
bool dsi_nn_is_teacher(const ds_cell_info *cell);
/* Declares "loss" and "count" of the trace's distillation, from logits and the teacher's (lesson),
 * and gives back the loss; extra is added to it, DS_NONE: nothing. */
ds_value dsi_nn_distillation(ds_nn *nn, ds_value logits, ds_value targets, ds_value extra);

/* Declares "loss", "count", "logps" and "preference_sums" of the trace's preference loss, and gives
 * back the loss. nn_preference.c. */
ds_value dsi_nn_preference(ds_nn *nn, ds_value x, ds_value weight, ds_value targets);

#endif
