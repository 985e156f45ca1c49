/* SPDX-License-Identifier: Apache-2.0 */
/* What the model of time needs of one step: the operator's class, and the shape of a product.
 *
 * Classes are facts of operators (deepspeed/op.h). Called by whoever makes abstract steps of a
 * plan. Pure.
 */
#ifndef DSI_COST_OP_CLASS_H
#define DSI_COST_OP_CLASS_H

#include <deepspeed/op.h>

enum { DSI_CLASS_FIRST = DS_CLASS_UNSTATED + 1 }; /* of loops over classes */

const char *dsi_op_class_name(ds_op_class op_class);

/* The work of one operator on given operands. */
typedef struct dsi_work {
    ds_op_class op_class;
    ds_dtype dtype;  /* of the arithmetic: f32, bf16 or f16 */
    int64_t m, n, k; /* of a product, see ds_cost; else 0 */
    double flops, bytes;
} dsi_work;

/* cost is that of the plan's step. */
dsi_work dsi_work_of(const ds_kernel_sig *sig, const ds_cost *cost);

/* Whether the class is a product: bound by arithmetic, and in the forward phase counted as model
 * operations (MFU): matrix products, attention and the output projection. */
bool dsi_op_class_is_model(ds_op_class op_class);

#endif
