/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of tasks that are no cross entropy of tokens: numbers and many labels of a document, and
 * embeddings learned from pairs. Made of operators that all accelerators have. Called by the heads
 * of models. */
#include "model/family.h"

#include "nn/nn.h"
#include "op/ops.h"

#include <math.h>

static const ds_task_params usual;

static const ds_task_params *params_of(const ds_nn *nn)
{
    const ds_trace *t = ds_nn_trace(nn);
    return t->task_params != NULL ? t->task_params : &usual;
}

void ds_model_check_task(ds_nn *nn)
{
    const ds_trace *t = ds_nn_trace(nn);
    const ds_task_params *p = params_of(nn);
    const char *what = p->token_types != 0                ? "types of tokens"
                       : t->task == DS_TASK_CONTRAST      ? "the loss of embeddings"
                       : p->problem != DS_PROBLEM_CLASSES ? "regression, or many labels,"
                                                          : NULL;
    if (p->problem >= DS_PROBLEMS || p->token_types > 1) {
        ds_nn_fail(nn, DS_ERR_ARG,
                   "ds_task_params: problem %u, token_types %u; expected below %d and 2",
                   p->problem, p->token_types, (int)DS_PROBLEMS);
    } else if (p->problem != DS_PROBLEM_CLASSES && t->task != DS_TASK_SEQUENCE_CLASSES) {
        ds_nn_fail(nn, DS_ERR_ARG,
                   "ds_task_params: a problem of its own has SEQUENCE_CLASSES alone");
    } else if (what != NULL && (t->sequence_ranks > 1 || t->sequence_chunk > 0)) {
        ds_nn_fail(
            nn, DS_ERR_UNSUPPORTED,
            "%s with sequence parallelism, or sequences computed in chunks, is not built: set "
            "sequence_parallel_size to 1 and leave out chunks",
            what);
    } else if (t->task == DS_TASK_CONTRAST && t->preference != NULL) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED, "the loss of embeddings beside a preference loss");
    }
}

/* loss and count of terms (B,T,N) where `counted` (B,T) is 1: their mean over rows and N. */
static void declare_mean(ds_nn *nn, ds_value terms, ds_value counted, int64_t n)
{
    const ds_value rows = ds_nn_scale(nn, ds_nn_sum(nn, terms, -1), 1.0 / (double)n);
    const ds_value count = ds_nn_sum_all(nn, counted);
    const ds_value at_least =
        ds_nn_masked_fill(nn, count, ds_nn_compare_to(nn, count, DS_LESS, 1.0), 1.0);
    const ds_value sum = ds_nn_sum_all(nn, ds_nn_mul(nn, rows, counted));
    ds_nn_output(nn, "loss", ds_nn_div(nn, sum, at_least));
    ds_nn_output(nn, "count", count);
}

/* -log σ(z) where y is 1, -log σ(-z) where it is 0: max(z,0) - zy - log σ(|z|). */
static ds_value logistic(ds_nn *nn, ds_value z, ds_value y)
{
    const ds_value above = ds_nn_relu(nn, z);
    const ds_value size = ds_nn_sub(nn, ds_nn_scale(nn, above, 2.0), z);
    return ds_nn_sub(nn, ds_nn_sub(nn, above, ds_nn_mul(nn, z, y)),
                     ds_nn_log(nn, ds_nn_sigmoid(nn, size)));
}

void ds_model_values_loss(ds_nn *nn, ds_value logits)
{
    const ds_trace *t = ds_nn_trace(nn);
    const ds_value labels =
        ds_nn_input(nn, "labels", DS_DTYPE_F32, ds_shape_3d(t->batch, t->seq_length, t->n_classes));
    const ds_value counted =
        ds_nn_input(nn, "counted", DS_DTYPE_F32, ds_shape_2d(t->batch, t->seq_length));
    const ds_value terms = params_of(nn)->problem == DS_PROBLEM_REGRESSION
                               ? ds_nn_square(nn, ds_nn_sub(nn, logits, labels))
                               : logistic(nn, logits, labels);
    declare_mean(nn, terms, counted, t->n_classes);
}

/* Lengths of rows (R,C); no row is shorter than torch's eps of a division by them. */
static ds_value lengths(ds_nn *nn, ds_value x)
{
    const double least = 1e-12;
    const ds_value squares = ds_nn_sum(nn, ds_nn_square(nn, x), -1);
    const ds_value short_ones = ds_nn_compare_to(nn, squares, DS_LESS, least * least);
    return ds_nn_sqrt(nn, ds_nn_masked_fill(nn, squares, short_ones, least * least));
}

/* cos(a_i, b_j), (A,C) and (R,C) → (A,R) */
static ds_value cosines(ds_nn *nn, ds_value a, ds_value b)
{
    const ds_value products = ds_nn_bmm(nn, a, b, true);
    const ds_value half = ds_nn_transpose(nn, ds_nn_div(nn, products, lengths(nn, b)), 0, 1);
    return ds_nn_transpose(nn, ds_nn_div(nn, half, lengths(nn, a)), 0, 1);
}

/* Rows (R,C) of all data-parallel ranks. */
static ds_value gathered(ds_nn *nn, ds_value rows)
{
    const dsi_ranks_attrs attrs = {.n_ranks = ds_nn_trace(nn)->data_ranks};
    return params_of(nn)->contrast.gather_across_devices != 0 && attrs.n_ranks > 1
               ? ds_nn_apply(nn, &dsi_op_rows_of_ranks, &attrs, &rows, 1)
               : rows;
}

/* One vector of each row. */
static ds_value pooled(ds_nn *nn, ds_value x)
{
    const ds_trace *t = ds_nn_trace(nn);
    const int64_t width = ds_shape_last(ds_nn_meta(nn, x).shape);
    const ds_value pool =
        ds_nn_input(nn, "pool", DS_DTYPE_F32, ds_shape_2d(t->batch, t->seq_length));
    const ds_value weights = ds_nn_reshape(nn, pool, ds_shape_3d(t->batch, 1, t->seq_length));
    return ds_nn_reshape(nn, ds_nn_bmm(nn, weights, ds_nn_cast(nn, x, DS_DTYPE_F32), false),
                         ds_shape_2d(t->batch, width));
}

void ds_model_contrast(ds_nn *nn, ds_value x)
{
    if (ds_nn_status(nn) < 0) {
        return;
    }
    const ds_value rows = ds_model_dense(nn, pooled(nn, x), &params_of(nn)->contrast);
    if (nn->whole_batch > 0) {
        nn->embedded = rows;
    } else {
        ds_model_contrast_rows(nn, rows);
    }
}

void ds_model_contrast_rows(ds_nn *nn, ds_value rows)
{
    const ds_trace *t = ds_nn_trace(nn);
    const ds_contrast *c = &params_of(nn)->contrast;
    const int64_t each = 2 + (int64_t)c->n_negatives;
    const int64_t anchors = t->batch / each;
    if (ds_nn_status(nn) < 0) {
        return;
    }
    if (t->mode == DS_TRACE_GENERATE || t->batch % each != 0 || !(c->scale > 0.0) ||
        !isfinite(c->scale)) {
        ds_nn_fail(
            nn, DS_ERR_ARG,
            "the loss of embeddings: %lld rows of %lld each, scale %g; expected whole groups "
            "and a scale above 0, and training",
            (long long)t->batch, (long long)each, c->scale);
        return;
    }
    const ds_value pool =
        ds_nn_input(nn, "pool", DS_DTYPE_F32, ds_shape_2d(t->batch, t->seq_length));
    const ds_value labels = ds_nn_input(nn, "labels", DS_DTYPE_I32, ds_shape_1d(anchors));
    const int64_t n_others = t->batch - anchors;
    const ds_value others = gathered(nn, ds_nn_slice(nn, rows, 0, anchors, n_others));
    const ds_value near = cosines(nn, ds_nn_slice(nn, rows, 0, 0, anchors), others);
    const ds_value sums = ds_nn_slice(nn, ds_nn_sum(nn, pool, -1), 0, anchors, n_others);
    const ds_value all_sums = gathered(nn, ds_nn_reshape(nn, sums, ds_shape_2d(n_others, 1)));
    const ds_value absent = ds_nn_compare_to(
        nn, ds_nn_reshape(nn, all_sums, ds_shape_1d(ds_nn_meta(nn, all_sums).shape.dims[0])),
        DS_EQUAL, 0.0);
    const ds_value scores = ds_nn_masked_fill(nn, ds_nn_scale(nn, near, c->scale), absent, -1e30);
    (void)ds_nn_cross_entropy(nn, scores, labels);
}
