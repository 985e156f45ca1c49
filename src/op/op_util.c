/* SPDX-License-Identifier: Apache-2.0 */
/* See op_util.h. */
#include "op/op_util.h"

#include "ir/graph.h"

#include <stdarg.h>
#include <stdio.h>

ds_meta dsi_op_in(const ds_infer *call, uint32_t i)
{
    return i < call->n_in ? call->in[i] : (ds_meta){0};
}

bool dsi_op_has(const ds_infer *call, uint32_t i)
{
    return dsi_op_in(call, i).dtype != DS_DTYPE_NONE;
}

bool dsi_dtype_is_float(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
           dtype == DS_DTYPE_F64;
}

ds_dtype dsi_stat_dtype(ds_dtype act)
{
    return act == DS_DTYPE_F64 ? DS_DTYPE_F64 : DS_DTYPE_F32;
}

ds_meta dsi_meta_of(ds_dtype dtype, ds_shape shape)
{
    return (ds_meta){.dtype = dtype, .shape = shape};
}

ds_shape dsi_shape_lead(ds_shape shape)
{
    if (shape.n_dims > 0) {
        shape.dims[--shape.n_dims] = 0;
    }
    return shape;
}

ds_shape dsi_shape_with_last(ds_shape shape, int64_t last)
{
    if (shape.n_dims > 0) {
        shape.dims[shape.n_dims - 1] = last;
    }
    return shape;
}

ds_status dsi_op_bad(const ds_infer *call, uint32_t i, const char *name, const char *format, ...)
{
    char got[96];
    char want[256];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(want, sizeof want, format, list);
    va_end(list);
    if (!dsi_op_has(call, i)) {
        return ds_fail(call->ctx, DS_ERR_SHAPE, "%s: input %u (%s) is absent, expected %s",
                       call->op->name, i, name, want);
    }
    return ds_fail(call->ctx, DS_ERR_SHAPE, "%s: input %u (%s) is %s, expected %s", call->op->name,
                   i, name, ds_meta_text(call->in[i], got, sizeof got), want);
}

ds_status dsi_op_bad_attr(const ds_infer *call, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return ds_fail(call->ctx, DS_ERR_ARG, "%s: %s", call->op->name, text);
}

ds_status dsi_op_need_float(const ds_infer *call, uint32_t i, const char *name, uint32_t min_dims)
{
    const ds_meta meta = dsi_op_in(call, i);
    if (!dsi_dtype_is_float(meta.dtype) || meta.shape.n_dims < min_dims) {
        return dsi_op_bad(call, i, name, "a float tensor with at least %u dimension(s)", min_dims);
    }
    return DS_OK;
}

ds_status dsi_op_need(const ds_infer *call, uint32_t i, const char *name, ds_dtype dtype,
                      ds_shape shape)
{
    const ds_meta meta = dsi_op_in(call, i);
    if (meta.dtype != dtype || !ds_shape_equal(meta.shape, shape)) {
        char want[96];
        return dsi_op_bad(call, i, name, "%s",
                          ds_meta_text(dsi_meta_of(dtype, shape), want, sizeof want));
    }
    return DS_OK;
}

ds_status dsi_op_may(const ds_infer *call, uint32_t i, const char *name, ds_dtype dtype,
                     ds_shape shape)
{
    return dsi_op_has(call, i) ? dsi_op_need(call, i, name, dtype, shape) : DS_OK;
}

double dsi_op_bytes(const ds_infer *call)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < call->n_in; ++i) {
        bytes += (double)ds_meta_bytes(call->in[i]);
    }
    for (uint32_t i = 0; i < call->n_out; ++i) {
        bytes += (double)ds_meta_bytes(call->out[i]);
    }
    return bytes;
}

double dsi_op_count(ds_meta meta)
{
    return meta.dtype == DS_DTYPE_NONE ? 0.0 : (double)ds_shape_count(meta.shape);
}

void dsi_cost_elementwise(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

void dsi_cost_copy(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->out[0]);
}

void dsi_grad_clear(ds_grad *call)
{
    for (uint32_t i = 0; i < call->n_in; ++i) {
        call->d_in[i] = DS_NONE;
    }
}

ds_meta dsi_grad_meta(const ds_grad *call, ds_value value)
{
    return ds_graph_meta(call->graph, value);
}

ds_status dsi_emit(ds_grad *call, const ds_op *op, const void *attrs, const ds_value *in,
                   uint32_t n_in, ds_value *out)
{
    return ds_graph_apply(call->graph, op, attrs, in, n_in, out);
}

ds_status dsi_emit1(ds_grad *call, const ds_op *op, const void *attrs, ds_value a, ds_value *out)
{
    ds_value outs[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(call->graph, op, attrs, &a, 1, outs));
    *out = outs[0];
    return DS_OK;
}

ds_status dsi_emit2(ds_grad *call, const ds_op *op, const void *attrs, ds_value a, ds_value b,
                    ds_value *out)
{
    const ds_value in[2] = {a, b};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(call->graph, op, attrs, in, 2, outs));
    *out = outs[0];
    return DS_OK;
}

ds_status dsi_emit_cast(ds_grad *call, ds_value value, ds_dtype dtype, ds_value *out)
{
    if (dsi_grad_meta(call, value).dtype == dtype) {
        *out = value;
        return DS_OK;
    }
    const dsi_cast_attrs attrs = {.dtype = dtype};
    return dsi_emit1(call, &dsi_op_cast, &attrs, value, out);
}

/* Whether a value is a cell, or stands for one (DS_OP_PARAMETER). */
static bool is_parameter(const ds_graph *graph, ds_value value)
{
    const dsi_value_info *info = &graph->values[value];
    return info->cell != DS_NONE ||
           (info->index == 0 && (graph->nodes[info->producer].op->flags & DS_OP_PARAMETER) != 0);
}

/* dtype of the gradient of input i: f32 for a parameter, else the value's. */
static ds_dtype grad_dtype(const ds_grad *call, uint32_t i)
{
    const ds_dtype own = dsi_grad_meta(call, call->in[i]).dtype;
    return is_parameter(call->graph, call->in[i]) ? dsi_stat_dtype(own) : own;
}

bool dsi_grad_wants(const ds_grad *call, uint32_t i)
{
    return i < call->n_in && call->in[i] != DS_NONE && call->needs[i];
}

ds_status dsi_grad_give(ds_grad *call, uint32_t i, ds_value value)
{
    if (!dsi_grad_wants(call, i)) {
        return DS_OK;
    }
    return dsi_emit_cast(call, value, grad_dtype(call, i), &call->d_in[i]);
}

ds_status dsi_grad_refuse(const ds_grad *call, uint32_t output, const char *name)
{
    if (output < call->n_out && call->d_out[output] != DS_NONE) {
        return ds_fail(ds_graph_ctx(call->graph), DS_ERR_UNSUPPORTED,
                       "%s: no gradient flows through output %u (%s); use only output 0 in the "
                       "loss",
                       call->op->name, output, name);
    }
    return DS_OK;
}

ds_status dsi_grad_by(ds_grad *call, const ds_op *op, const void *attrs)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, op, attrs, call->d_out[0], &d));
    return dsi_grad_give(call, 0, d);
}
