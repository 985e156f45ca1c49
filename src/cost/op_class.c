/* SPDX-License-Identifier: Apache-2.0 */
/* Operators to classes, and the shape of a product from its operands. See op_class.h. */
#include "cost/op_class.h"

#include "op/ops.h"

const char *dsi_op_class_name(dsi_op_class op_class)
{
    static const char *const names[] = {
#define X(id, text) text,
        DSI_OP_CLASS_LIST(X)
#undef X
    };
    return op_class < DSI_CLASS_COUNT ? names[op_class] : "unknown";
}

/* Classes of the operators that are not ELEMENTWISE. */
static const struct {
    const ds_op *op;
    dsi_op_class op_class;
} classes[] = {
    {&dsi_op_linear, DSI_CLASS_LINEAR},
    {&dsi_op_linear_dw, DSI_CLASS_LINEAR_DW},
    {&dsi_op_linear_cross_entropy, DSI_CLASS_LOSS},
    {&dsi_op_linear_cross_entropy_backward, DSI_CLASS_LOSS_BACKWARD},
    {&dsi_op_linear_cross_entropy_dx, DSI_CLASS_LOSS_BACKWARD},
    {&dsi_op_linear_cross_entropy_dw, DSI_CLASS_LOSS_BACKWARD},
    {&dsi_op_attention, DSI_CLASS_ATTENTION},
    {&dsi_op_attention_backward, DSI_CLASS_ATTENTION_BACKWARD},
    {&dsi_op_layer_norm, DSI_CLASS_NORM},
    {&dsi_op_rms_norm, DSI_CLASS_NORM},
    {&dsi_op_layer_norm_backward, DSI_CLASS_NORM_BACKWARD},
    {&dsi_op_rms_norm_backward, DSI_CLASS_NORM_BACKWARD},
    {&dsi_op_embedding, DSI_CLASS_EMBEDDING},
    {&dsi_op_embedding_dw, DSI_CLASS_EMBEDDING_BACKWARD},
    {&dsi_op_abs_max, DSI_CLASS_REDUCE},
    {&dsi_op_max_of, DSI_CLASS_REDUCE},
    {&dsi_op_sum_squares, DSI_CLASS_REDUCE},
    {&dsi_op_sum_parts, DSI_CLASS_REDUCE},
    {&dsi_op_clip_factor, DSI_CLASS_REDUCE},
    {&dsi_op_sum_all, DSI_CLASS_REDUCE},
    {&dsi_op_mean_all, DSI_CLASS_REDUCE},
    {&dsi_op_sum_last, DSI_CLASS_REDUCE},
    {&dsi_op_sum_rows, DSI_CLASS_REDUCE},
    {&dsi_op_adam, DSI_CLASS_OPTIMIZER},
    {&dsi_op_sgd, DSI_CLASS_OPTIMIZER},
    {&dsi_op_lion, DSI_CLASS_OPTIMIZER},
    {&dsi_op_adagrad, DSI_CLASS_OPTIMIZER},
    {&dsi_op_lamb, DSI_CLASS_OPTIMIZER},
    {&dsi_op_cast, DSI_CLASS_COPY},
    {&dsi_op_permute, DSI_CLASS_COPY},
    {&dsi_op_slice, DSI_CLASS_COPY},
    {&dsi_op_pad, DSI_CLASS_COPY},
    {&dsi_op_concat, DSI_CLASS_COPY},
    {&dsi_op_take_rows, DSI_CLASS_COPY},
    {&dsi_op_store, DSI_CLASS_COPY},
    {&dsi_op_kv_write, DSI_CLASS_COPY},
    {&dsi_op_take_slice, DSI_CLASS_COPY},
    {&dsi_op_column_sums, DSI_CLASS_REDUCE},
    {&dsi_op_choose_columns, DSI_CLASS_REDUCE},
    {&dsi_op_weigh_columns, DSI_CLASS_REDUCE},
    {&dsi_op_take_columns, DSI_CLASS_COPY},
    {&dsi_op_put_columns, DSI_CLASS_COPY},
};

static dsi_op_class class_of(const ds_op *op)
{
    if ((op->flags & DS_OP_VIEW) != 0) {
        return DSI_CLASS_VIEW;
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; ++i) {
        if (classes[i].op == op) {
            return classes[i].op_class;
        }
    }
    return (op->flags & DS_OP_COMM) != 0 ? DSI_CLASS_COMM : DSI_CLASS_ELEMENTWISE;
}

static ds_meta input(const ds_kernel_sig *sig, uint32_t i)
{
    return i < sig->n_in ? sig->in[i] : (ds_meta){0};
}

/* Of x (rows, k) times a matrix of k·n elements. */
static void product_of(dsi_work *work, ds_meta x, ds_meta matrix)
{
    work->m = ds_shape_rows(x.shape);
    work->k = ds_shape_last(x.shape);
    work->n = ds_shape_count(matrix.shape) / (work->k > 0 ? work->k : 1);
    work->dtype = x.dtype;
}

/* Tokens, vocabulary, width; of kept logits these stand at input 2, x or w at input 1. */
static void loss_backward_shape(const ds_kernel_sig *sig, dsi_work *work)
{
    const ds_meta first = input(sig, 1);
    const ds_meta logits = input(sig, 2);
    if (sig->op == &dsi_op_linear_cross_entropy_backward) {
        product_of(work, first, logits);
        return;
    }
    work->dtype = first.dtype;
    work->m = ds_shape_rows(logits.shape);
    work->n = ds_shape_last(logits.shape);
    const int64_t other = sig->op == &dsi_op_linear_cross_entropy_dx ? work->n : work->m;
    work->k = ds_shape_count(first.shape) / (other > 0 ? other : 1);
}

static void attention_shape(const ds_kernel_sig *sig, uint32_t at, dsi_work *work)
{
    const dsi_attention_attrs *a = sig->attrs;
    const ds_meta q = input(sig, at);
    const ds_meta keys = a->packed != 0 ? q : input(sig, at + 1);
    work->m = ds_shape_rows(q.shape) * a->n_heads;
    work->n = keys.shape.n_dims >= 2 ? keys.shape.dims[1] : 0;
    work->k = a->head_dim;
    work->dtype = q.dtype;
}

/* Of the first operand that has reals. */
static ds_dtype real_dtype(const ds_kernel_sig *sig)
{
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        const ds_dtype dtype = sig->in[i].dtype;
        if (dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16) {
            return dtype;
        }
    }
    return DS_DTYPE_F32;
}

dsi_work dsi_work_of(const ds_kernel_sig *sig, double flops, double bytes)
{
    dsi_work work = {
        .op_class = class_of(sig->op), .dtype = real_dtype(sig), .flops = flops, .bytes = bytes};
    switch (work.op_class) {
    case DSI_CLASS_LINEAR:
    case DSI_CLASS_LOSS:
        product_of(&work, input(sig, 0), input(sig, 1));
        break;
    case DSI_CLASS_LINEAR_DW: /* (K, rows) times (rows, O) */
        work.m = ds_shape_last(input(sig, 0).shape);
        work.n = ds_shape_last(input(sig, 1).shape);
        work.k = ds_shape_rows(input(sig, 0).shape);
        break;
    case DSI_CLASS_LOSS_BACKWARD:
        loss_backward_shape(sig, &work);
        break;
    case DSI_CLASS_ATTENTION:
        attention_shape(sig, 0, &work);
        break;
    case DSI_CLASS_ATTENTION_BACKWARD:
        attention_shape(sig, 1, &work);
        break;
    default:
        break;
    }
    return work;
}

bool dsi_op_class_is_model(dsi_op_class op_class)
{
    return op_class <= DSI_CLASS_LAST_PRODUCT;
}
