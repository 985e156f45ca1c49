/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/attention_part.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/attention.h"

enum { IN_Q, IN_K, IN_V, IN_ROWS, IN_KEYS, IN_FIRST, IN_RNG, IN_HEADS, IN_Y, IN_LSE, IN_END };
enum { B_DY, B_Q, B_K, B_V, B_Y, B_LSE, B_ROWS, B_KEYS, B_FIRST, B_RNG, B_HEADS, B_DQ };
enum { B_DK = B_DQ + 1, B_DV, B_END, B_DLSE };

static bool is_part(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_attention_part_attrs *attrs = sig->attrs;
    return dsc_is_act(sig->in[at].dtype) && attrs->head_dim <= DSC_MOST_HEAD_DIM;
}

static bool is_forward(const ds_kernel_sig *sig)
{
    return is_part(sig, IN_Q);
}

static bool is_backward(const ds_kernel_sig *sig)
{
    return is_part(sig, B_Q) && sig->out[1].dtype == DS_DTYPE_F32 &&
           sig->out[2].dtype == DS_DTYPE_F32;
}

/* at: the input q; rows: the input rows; end: the input end. */
static dsc_attention_part_args args_of(const ds_kernel_call *call, uint32_t at, uint32_t rows,
                                       uint32_t end)
{
    const dsi_attention_part_attrs *attrs = call->sig->attrs;
    const ds_shape q = call->in[at].meta.shape;
    const ds_shape k = call->in[at + 1].meta.shape;
    return (dsc_attention_part_args){
        .at = {.q = dsc_in(call, at),
               .k = dsc_in(call, at + 1),
               .v = dsc_in(call, at + 2),
               .rows = dsc_in(call, rows),
               .keys = dsc_in(call, rows + 1),
               .first = dsc_in(call, rows + 2),
               .rng = dsc_in(call, rows + 3),
               .heads = dsc_in(call, rows + 4),
               .end = dsc_in(call, end),
               .q_stride = q.dims[2],
               .kv_stride = k.dims[2],
               .n_batch = q.dims[0],
               .n_queries = q.dims[1],
               .n_keys = k.dims[1],
               .n_heads = attrs->n_heads,
               .n_kv_heads = attrs->n_kv_heads,
               .head_dim = attrs->head_dim,
               .window = attrs->window,
               .all_heads = attrs->all_heads,
               .all_keys = attrs->all_keys,
               .site = attrs->site,
               .alibi = attrs->alibi,
               .cap = (float)attrs->cap,
               .alibi_rounded = attrs->alibi > 0.0 && attrs->alibi_rounded != 0,
               .scale = (float)attrs->scale,
               .dropout = (float)attrs->dropout,
               .causal = attrs->causal != 0},
        .part = attrs->part,
        .key_part = dsi_attention_key_part(attrs),
        .q_dtype_out = (int32_t)call->out[0].meta.dtype};
}

static ds_status launch(const ds_kernel_call *call, dsc_fn first, ds_dtype dtype, int64_t n,
                        const dsc_attention_part_args *args)
{
    const dsc_shape shape = dsc_block_an_item((n + DSC_ATTENTION_WARPS - 1) / DSC_ATTENTION_WARPS,
                                              32 * DSC_ATTENTION_WARPS);
    return dsc_launch(call, dsc_of_dtype(first, dtype), &shape, args, sizeof *args);
}

static ds_status attention_part_run(const ds_kernel_call *call)
{
    dsc_attention_part_args args = args_of(call, IN_Q, IN_ROWS, IN_END);
    args.y_in = dsc_in(call, IN_Y);
    args.lse_in = dsc_in(call, IN_LSE);
    args.at.y = dsc_out(call, 0);
    args.at.lse = dsc_out(call, 1);
    return launch(call, DSC_FN_attention_part_f32, call->in[IN_Q].meta.dtype,
                  args.at.n_batch * args.at.n_queries * args.at.n_heads, &args);
}

static ds_status attention_part_backward_run(const ds_kernel_call *call)
{
    const ds_dtype dtype = call->in[B_Q].meta.dtype;
    dsc_attention_part_args args = args_of(call, B_Q, B_ROWS, B_END);
    args.at.dy = dsc_in(call, B_DY);
    args.at.y = (void *)(uintptr_t)dsc_in(call, B_Y);
    args.at.lse = (float *)(uintptr_t)dsc_in(call, B_LSE);
    args.at.dlse = dsc_in(call, B_DLSE);
    args.dq_in = dsc_in(call, B_DQ);
    args.dk_in = dsc_in(call, B_DK);
    args.dv_in = dsc_in(call, B_DV);
    args.at.dq = dsc_out(call, 0);
    args.at.dk = dsc_out(call, 1);
    args.at.dv = dsc_out(call, 2);
    DS_TRY(launch(call, DSC_FN_attention_part_dq_f32, dtype,
                  args.at.n_batch * args.at.n_queries * args.at.n_heads, &args));
    return launch(call, DSC_FN_attention_part_dkv_f32, dtype,
                  args.at.n_batch * args.at.n_keys * args.at.n_kv_heads, &args);
}

DSC_ROW(attention_part, is_forward, attention_part_run);
DSC_ROW(attention_part_backward, is_backward, attention_part_backward_run);
const ds_kernel *const dsc_attention_part_kernels[] = {&attention_part_kernel,
                                                       &attention_part_backward_kernel, NULL};
