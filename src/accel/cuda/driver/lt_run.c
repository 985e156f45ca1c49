/* SPDX-License-Identifier: Apache-2.0 */
/* `linear` and `linear_dw` as calls of cuBLASLt. Tensors are row-major and the library's matrices
 * are column-major, so that each is the transpose of what the other calls it: y = x·wᵀ is asked for
 * as Yᵀ = w·Xᵀ. See lt.h.
 */
#include "accel/cuda/driver/lt.h"
#include "accel/cuda/kernels/elementwise.h"
#include "accel/cuda/kernels/linear.h"

#include <string.h>

enum { ALIGN = 16, WORK_ALIGN = 256 };

static bool is_there(const ds_meta *metas, uint32_t n, uint32_t i)
{
    return i < n && metas[i].dtype != DS_DTYPE_NONE;
}

/* ---- what a step is ------------------------------------------------------------------------ */

/* An activation goes over the sum as it is rounded: where the operator rounds it too. */
static bool linear_of(const ds_kernel_sig *sig, dsc_lt_product *p)
{
    const dsi_linear_attrs *attrs = sig->attrs;
    const bool has_bias = is_there(sig->in, sig->n_in, 2);
    const bool has_residual = is_there(sig->in, sig->n_in, 3);
    const bool has_pre = is_there(sig->out, sig->n_out, 1);
    const bool acts = attrs->activation != DSI_ACT_NONE;
    *p = (dsc_lt_product){.m = ds_shape_last(sig->out[0].shape),
                          .n = ds_shape_rows(sig->in[0].shape),
                          .k = ds_shape_last(sig->in[0].shape),
                          .in = sig->in[0].dtype,
                          .out = sig->out[0].dtype,
                          .a_transposed = attrs->transposed == 0,
                          .has_bias = has_bias,
                          .adds = has_residual};
    return (!has_bias || sig->in[2].dtype == p->out) && has_pre == (attrs->save_pre != 0) &&
           (acts ? !has_residual && (has_pre || p->out == DS_DTYPE_F32) : !has_pre);
}

static bool linear_dw_of(const ds_kernel_sig *sig, dsc_lt_product *p)
{
    const dsi_linear_dw_attrs *attrs = sig->attrs;
    const bool transposed = attrs->transposed != 0;
    const int64_t n_in = ds_shape_last(sig->in[0].shape);
    const int64_t n_out = ds_shape_last(sig->in[1].shape);
    const bool adds = is_there(sig->in, sig->n_in, 2);
    *p = (dsc_lt_product){.m = transposed ? n_out : n_in,
                          .n = transposed ? n_in : n_out,
                          .k = ds_shape_rows(sig->in[0].shape),
                          .in = sig->in[0].dtype,
                          .out = sig->out[0].dtype,
                          .b_transposed = true,
                          .adds = adds};
    return !adds || sig->in[2].dtype == p->out;
}

bool dsc_lt_product_of(const ds_kernel_sig *sig, dsc_lt_product *p)
{
    const bool is_linear = strcmp(sig->op->name, "linear") == 0;
    if (!is_linear && strcmp(sig->op->name, "linear_dw") != 0) {
        return false;
    }
    const bool right = is_linear ? linear_of(sig, p) : linear_dw_of(sig, p);
    return right && dsc_is_act(p->in) && sig->in[1].dtype == p->in && p->m > 0 && p->n > 0 &&
           p->k > 0 && (p->out == p->in || p->out == DS_DTYPE_F32);
}

/* ---- the calls ----------------------------------------------------------------------------- */

typedef struct operands {
    const void *a, *b, *c, *bias;
    void *d;
} operands;

static ds_status multiply(const ds_kernel_call *call, const operands *o)
{
    static const float one = 1.0f;
    static const float zero = 0.0f;
    const char *why = NULL;
    const dsc_lt_api *lt = dsc_lt_load(&why);
    const ds_accel_stream *stream = dsc_current_stream();
    dsc_lt_product product;
    const dsc_lt_choice *c = dsc_lt_product_of(call->sig, &product) ? dsc_lt_find(&product) : NULL;
    if (lt == NULL || stream == NULL || stream->device->lt == NULL || c == NULL) {
        return dsc_fail(call->ctx, DS_ERR_STATE,
                        "accelerator cuda: %s was planned for cuBLASLt, which is not open here",
                        call->sig->op->name);
    }
    const uintptr_t all = (uintptr_t)o->a | (uintptr_t)o->b | (uintptr_t)o->c | (uintptr_t)o->d;
    if (all % ALIGN != 0) {
        return dsc_fail(call->ctx, DS_ERR_STATE,
                        "accelerator cuda: an operand of %s begins at no multiple of %d bytes",
                        call->sig->op->name, ALIGN);
    }
    void *work = c->work_bytes > 0
                     ? (void *)(((uintptr_t)call->work + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN)
                     : NULL;
    dsc_lt_lock(); /* the descriptor has this call's bias */
    dsc_lt_status status =
        o->bias != NULL ? lt->desc_set(c->desc, DSC_LT_DESC_BIAS_POINTER, &o->bias, sizeof o->bias)
                        : DSC_LT_SUCCESS;
    if (status == DSC_LT_SUCCESS) {
        status = lt->matmul(stream->device->lt, c->desc, &one, o->a, c->a, o->b, c->b,
                            o->c != NULL ? &one : &zero, o->c != NULL ? o->c : o->d, c->d, o->d,
                            c->d, &c->algo, work, c->work_bytes, stream->queue);
    }
    dsc_lt_unlock();
    return status == DSC_LT_SUCCESS ? DS_OK : dsc_lt_fail(call->ctx, lt, status, "cublasLtMatmul");
}

ds_status dsc_lt_linear(const ds_kernel_call *call)
{
    const dsi_linear_attrs *attrs = call->sig->attrs;
    void *y = dsc_out(call, 0);
    void *pre = dsc_out(call, 1);
    const operands o = {.a = dsc_in(call, 1),
                        .b = dsc_in(call, 0),
                        .c = dsc_in(call, 3),
                        .bias = dsc_in(call, 2),
                        .d = pre != NULL ? pre : y};
    DS_TRY(multiply(call, &o));
    if (attrs->activation == DSI_ACT_NONE) {
        return DS_OK;
    }
    const ds_meta *meta = &call->out[0].meta;
    const dsc_activation_args args = {
        .x = o.d, .y = y, .n = ds_shape_count(meta->shape), .kind = (int32_t)attrs->activation};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_activation_f32, meta->dtype), &shape, &args,
                      sizeof args);
}

ds_status dsc_lt_linear_dw(const ds_kernel_call *call)
{
    const dsi_linear_dw_attrs *attrs = call->sig->attrs;
    const bool transposed = attrs->transposed != 0;
    const operands o = {.a = dsc_in(call, transposed ? 1 : 0),
                        .b = dsc_in(call, transposed ? 0 : 1),
                        .c = dsc_in(call, 2),
                        .d = dsc_out(call, 0)};
    DS_TRY(multiply(call, &o));
    return dsc_sum_columns(call);
}
