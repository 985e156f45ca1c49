/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of operators that share one model of time, and what the model needs of one step.
 *
 * Products (LINEAR to ATTENTION_BACKWARD) are bound by arithmetic and have a shape m, n, k; the
 * others are bound by memory. Called by whoever makes abstract steps of a plan. Pure.
 */
#ifndef DSI_COST_OP_CLASS_H
#define DSI_COST_OP_CLASS_H

#include <deepspeed/op.h>

#define DSI_OP_CLASS_LIST(X)                                                                       \
    X(LINEAR, "linear")                                                                            \
    X(LINEAR_DW, "linear_dw")                                                                      \
    X(LOSS, "loss")                                                                                \
    X(LOSS_BACKWARD, "loss_backward")                                                              \
    X(ATTENTION, "attention")                                                                      \
    X(ATTENTION_BACKWARD, "attention_backward")                                                    \
    X(NORM, "norm")                                                                                \
    X(NORM_BACKWARD, "norm_backward")                                                              \
    X(ELEMENTWISE, "elementwise")                                                                  \
    X(EMBEDDING, "embedding")                                                                      \
    X(EMBEDDING_BACKWARD, "embedding_backward")                                                    \
    X(REDUCE, "reduce")                                                                            \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(COPY, "copy")                                                                                \
    X(COMM, "comm")                                                                                \
    X(VIEW, "view")

typedef enum dsi_op_class {
#define X(id, text) DSI_CLASS_##id,
    DSI_OP_CLASS_LIST(X)
#undef X
        DSI_CLASS_COUNT
} dsi_op_class;

#define DSI_CLASS_LAST_PRODUCT DSI_CLASS_ATTENTION_BACKWARD

const char *dsi_op_class_name(dsi_op_class op_class);

/* The work of one operator on given operands. */
typedef struct dsi_work {
    dsi_op_class op_class;
    ds_dtype dtype;  /* of the arithmetic: f32, bf16 or f16 */
    int64_t m, n, k; /* of a product: rows, columns, summed length; attention: queries of all heads,
                        keys, head dim. Else 0 */
    double flops, bytes;
} dsi_work;

/* flops and bytes are those of the plan's step. A custom operator is ELEMENTWISE. */
dsi_work dsi_work_of(const ds_kernel_sig *sig, double flops, double bytes);

/* Whether an operator of the forward phase counts as model operations (MFU): matrix products,
 * attention and the output projection; elementwise operations do not. */
bool dsi_op_class_is_model(dsi_op_class op_class);

#endif
