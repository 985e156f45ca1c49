/* SPDX-License-Identifier: Apache-2.0 */
/* What the shape and gradient rules share: operand checks with one wording, and emitting nodes.
 *
 * Conventions: a statistic (mean, lse, loss …) is f32, or f64 where the activations are f64 (finite
 * differences); the gradient of a cell (a parameter), or of
 * what stands for one (DS_OP_PARAMETER), is of that type too; the gradient of any other
 * value has the value's dtype.
 */
#ifndef DSI_OP_UTIL_H
#define DSI_OP_UTIL_H

#include "op/ops.h"

#define DSI_N(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))
#define DSI_ATTR_INT(type, field)                                                                  \
    {                                                                                              \
#field, DS_ATTR_INT, offsetof(type, field)                                                 \
    }
#define DSI_ATTR_REAL(type, field)                                                                 \
    {                                                                                              \
#field, DS_ATTR_REAL, offsetof(type, field)                                                \
    }

/* ---- shape rules ---------------------------------------------------------------------------- */
/* Meta of operand i, dtype NONE when absent. */
ds_meta dsi_op_in(const ds_infer *call, uint32_t i);
bool dsi_op_has(const ds_infer *call, uint32_t i);
bool dsi_dtype_is_float(ds_dtype dtype); /* f32, bf16, f16, f64 */
ds_dtype dsi_stat_dtype(ds_dtype act);
ds_meta dsi_meta_of(ds_dtype dtype, ds_shape shape);
ds_shape dsi_shape_lead(ds_shape shape);                    /* (..,C) → (..) */
ds_shape dsi_shape_with_last(ds_shape shape, int64_t last); /* (..,C) → (..,last) */

/* "linear: input 1 (w) is f32[3,4], expected ..." */
ds_status dsi_op_bad(const ds_infer *call, uint32_t i, const char *name, const char *format, ...)
    DS_PRINTF(4, 5);
ds_status dsi_op_bad_attr(const ds_infer *call, const char *format, ...) DS_PRINTF(2, 3);
/* A float tensor with at least min_dims dimensions. */
ds_status dsi_op_need_float(const ds_infer *call, uint32_t i, const char *name, uint32_t min_dims);
ds_status dsi_op_need(const ds_infer *call, uint32_t i, const char *name, ds_dtype dtype,
                      ds_shape shape);
/* As dsi_op_need, when present. */
ds_status dsi_op_may(const ds_infer *call, uint32_t i, const char *name, ds_dtype dtype,
                     ds_shape shape);

/* ---- costs ---------------------------------------------------------------------------------- */
double dsi_op_bytes(const ds_infer *call); /* all operands once */
double dsi_op_count(ds_meta meta);
/* Bytes of all operands, one operation an element of output 0. */
void dsi_cost_elementwise(const ds_infer *call, ds_cost *cost_out);
/* Output 0 read and written, nothing computed. */
void dsi_cost_copy(const ds_infer *call, ds_cost *cost_out);

/* ---- gradient rules ---------------------------------------------------------------------------
 */
/* Sets every d_in to DS_NONE. */
void dsi_grad_clear(ds_grad *call);
ds_meta dsi_grad_meta(const ds_grad *call, ds_value value);
/* Applies an operator with up to DS_MAX_OUT outputs. */
ds_status dsi_emit(ds_grad *call, const ds_op *op, const void *attrs, const ds_value *in,
                   uint32_t n_in, ds_value *out);
/* Shorthands for one output. */
ds_status dsi_emit1(ds_grad *call, const ds_op *op, const void *attrs, ds_value a, ds_value *out);
ds_status dsi_emit2(ds_grad *call, const ds_op *op, const void *attrs, ds_value a, ds_value b,
                    ds_value *out);
ds_status dsi_emit_cast(ds_grad *call, ds_value value, ds_dtype dtype, ds_value *out);
/* d_in[i] = value, cast to what a gradient of input i must be. Nothing when i wants none. */
ds_status dsi_grad_give(ds_grad *call, uint32_t i, ds_value value);
/* The gradient of input 0 is op of output 0's, if one flows; the others have none. */
ds_status dsi_grad_by(ds_grad *call, const ds_op *op, const void *attrs);
bool dsi_grad_wants(const ds_grad *call, uint32_t i);
/* An error when a gradient arrives at an output that has none, such as a saved statistic. */
ds_status dsi_grad_refuse(const ds_grad *call, uint32_t output, const char *name);

#endif
