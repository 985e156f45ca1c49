/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/attention.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/attention.h"

static bool is_supported(const ds_kernel_sig *sig)
{
    const dsi_attention_attrs *attrs = sig->attrs;
    return attrs->all_keys == 0 && dsc_is_act(sig->in[0].dtype) &&
           attrs->head_dim <= DSC_MOST_HEAD_DIM && attrs->cap == 0.0 && attrs->alibi == 0.0 &&
           sig->n_in <= 12; /* 13: a gradient of lse */
}

static const void *at_element(const void *memory, ds_dtype dtype, int64_t i)
{
    return (const char *)memory + (size_t)i * ds_dtype_bytes(dtype);
}

static void *at_output(void *memory, ds_dtype dtype, int64_t i)
{
    return memory == NULL ? NULL : (char *)memory + (size_t)i * ds_dtype_bytes(dtype);
}

/* at: the input q, or packed; numbers: heads, rows, keys and end. */
static dsc_attention_args args_of(const ds_kernel_call *call, uint32_t at, uint32_t numbers)
{
    const dsi_attention_attrs *attrs = call->sig->attrs;
    const bool packed = attrs->packed != 0;
    const ds_meta *q = &call->in[at].meta;
    const ds_meta *k = &call->in[packed ? at : at + 1].meta;
    const int64_t d = attrs->head_dim;
    const int64_t k_at = packed ? attrs->n_heads * d : 0;
    const int64_t v_at = packed ? (attrs->n_heads + attrs->n_kv_heads) * d : 0;
    return (dsc_attention_args){.q = dsc_in(call, at),
                                .k = at_element(dsc_in(call, packed ? at : at + 1), q->dtype, k_at),
                                .v = at_element(dsc_in(call, packed ? at : at + 2), q->dtype, v_at),
                                .heads = dsc_in(call, numbers),
                                .rows = dsc_in(call, numbers + 1),
                                .end = dsc_in(call, numbers + 3),
                                .q_stride = q->shape.dims[2],
                                .kv_stride = k->shape.dims[2],
                                .n_batch = q->shape.dims[0],
                                .n_queries = q->shape.dims[1],
                                .n_keys = k->shape.dims[1],
                                .n_heads = attrs->n_heads,
                                .n_kv_heads = attrs->n_kv_heads,
                                .head_dim = d,
                                .window = attrs->window,
                                .all_heads = attrs->all_heads,
                                .site = attrs->site,
                                .scale = (float)attrs->scale,
                                .dropout = (float)attrs->dropout,
                                .causal = attrs->causal != 0};
}

static dsc_shape warps(int64_t n)
{
    return dsc_block_an_item((n + DSC_ATTENTION_WARPS - 1) / DSC_ATTENTION_WARPS,
                             32 * DSC_ATTENTION_WARPS);
}

static ds_status attention_run(const ds_kernel_call *call)
{
    dsc_attention_args args = args_of(call, 0, 6);
    args.first = dsc_in(call, 3);
    args.offset = dsc_in(call, 4);
    args.rng = dsc_in(call, 5);
    args.y = dsc_out(call, 0);
    args.lse = dsc_out(call, 1);
    const dsc_shape shape = warps(args.n_batch * args.n_queries * args.n_heads);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_attention_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status attention_backward_run(const ds_kernel_call *call)
{
    const dsi_attention_attrs *attrs = call->sig->attrs;
    const ds_dtype dtype = call->in[1].meta.dtype;
    const int64_t d = attrs->head_dim;
    const bool packed = attrs->packed != 0;
    dsc_attention_args args = args_of(call, 1, 8);
    args.dy = dsc_in(call, 0);
    args.y = (void *)(uintptr_t)dsc_in(call, 4);
    args.lse = (float *)(uintptr_t)dsc_in(call, 5);
    args.first = dsc_in(call, 6);
    args.rng = dsc_in(call, 7);
    args.dq = dsc_out(call, 0);
    args.dk = packed ? at_output(args.dq, dtype, attrs->n_heads * d) : dsc_out(call, 1);
    args.dv = packed ? at_output(args.dq, dtype, (attrs->n_heads + attrs->n_kv_heads) * d)
                     : dsc_out(call, 2);
    const dsc_shape by_query = warps(args.n_batch * args.n_queries * args.n_heads);
    const dsc_shape by_key = warps(args.n_batch * args.n_keys * args.n_kv_heads);
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_attention_dq_f32, dtype), &by_query, &args,
                      sizeof args));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_attention_dkv_f32, dtype), &by_key, &args,
                      sizeof args);
}

DSC_ROW(attention, is_supported, attention_run);
DSC_ROW(attention_backward, is_supported, attention_backward_run);
const ds_kernel *const dsc_attention_kernels[] = {&attention_kernel, &attention_backward_kernel,
                                                  NULL};
