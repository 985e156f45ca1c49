/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/attention.cu and attention_mma*.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/attention.h"

enum { IN_DLSE = 12 }; /* of attention_backward */

static bool is_supported(const ds_kernel_sig *sig)
{
    const dsi_attention_attrs *attrs = sig->attrs;
    return dsc_is_act(sig->in[0].dtype) && attrs->head_dim <= DSC_MOST_HEAD_DIM;
}

/* Scores are scale·q·k alone, of all keys, and nothing comes to lse. */
static bool is_straight(const ds_kernel_sig *sig)
{
    const dsi_attention_attrs *attrs = sig->attrs;
    return attrs->cap == 0.0 && attrs->alibi == 0.0 && attrs->all_keys == 0 &&
           (sig->n_in <= IN_DLSE || sig->in[IN_DLSE].dtype == DS_DTYPE_NONE);
}

/* Rows of one head group, and keys, are numbered in 32 bits there, blocks as a grid has them. */
static bool fits_tiles(const dsi_attention_attrs *attrs, const ds_meta *q, const ds_meta *k)
{
    const double batch = (double)q->shape.dims[0];
    const double rows = (double)q->shape.dims[1] * (double)(attrs->n_heads / attrs->n_kv_heads);
    const double keys = (double)k->shape.dims[1];
    const double most = rows > keys ? rows : keys;
    return most < 0x1p30 &&
           batch * (double)attrs->n_kv_heads * (most / DSC_ATTENTION_ROWS + 1.0) < 0x1p31;
}

/* at: the input q, or packed. */
static bool is_mma_at(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_attention_attrs *attrs = sig->attrs;
    return is_supported(sig) && is_straight(sig) && sig->in[at].dtype != DS_DTYPE_F32 &&
           attrs->head_dim <= DSC_MOST_MMA_HEAD_DIM &&
           fits_tiles(attrs, &sig->in[at], &sig->in[attrs->packed != 0 ? at : at + 1]);
}

static bool is_mma(const ds_kernel_sig *sig)
{
    return is_mma_at(sig, 0);
}

static bool is_mma_backward(const ds_kernel_sig *sig)
{
    return is_mma_at(sig, 1);
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
                                .keys = dsc_in(call, numbers + 2),
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
                                .all_keys = attrs->all_keys,
                                .site = attrs->site,
                                .alibi = attrs->alibi,
                                .cap = (float)attrs->cap,
                                .alibi_rounded = attrs->alibi > 0.0 && attrs->alibi_rounded != 0,
                                .scale = (float)attrs->scale,
                                .dropout = (float)attrs->dropout,
                                .causal = attrs->causal != 0};
}

static dsc_shape warps(int64_t n)
{
    return dsc_block_an_item((n + DSC_ATTENTION_WARPS - 1) / DSC_ATTENTION_WARPS,
                             32 * DSC_ATTENTION_WARPS);
}

static dsc_attention_args forward_args_of(const ds_kernel_call *call)
{
    dsc_attention_args args = args_of(call, 0, 6);
    args.first = dsc_in(call, 3);
    args.offset = dsc_in(call, 4);
    args.rng = dsc_in(call, 5);
    args.y = dsc_out(call, 0);
    args.lse = dsc_out(call, 1);
    return args;
}

static ds_status attention_run(const ds_kernel_call *call)
{
    const dsc_attention_args args = forward_args_of(call);
    const dsc_shape shape = warps(args.n_batch * args.n_queries * args.n_heads);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_attention_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static dsc_attention_args backward_args_of(const ds_kernel_call *call)
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
    args.dlse = dsc_in(call, IN_DLSE);
    args.dq = dsc_out(call, 0);
    args.dk = packed ? at_output(args.dq, dtype, attrs->n_heads * d) : dsc_out(call, 1);
    args.dv = packed ? at_output(args.dq, dtype, (attrs->n_heads + attrs->n_kv_heads) * d)
                     : dsc_out(call, 2);
    return args;
}

static ds_status attention_backward_run(const ds_kernel_call *call)
{
    const dsc_attention_args args = backward_args_of(call);
    const ds_dtype dtype = call->in[1].meta.dtype;
    const dsc_shape by_query = warps(args.n_batch * args.n_queries * args.n_heads);
    const dsc_shape by_key = warps(args.n_batch * args.n_keys * args.n_kv_heads);
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_attention_dq_f32, dtype), &by_query, &args,
                      sizeof args));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_attention_dkv_f32, dtype), &by_key, &args,
                      sizeof args);
}

/* ---- by mma -------------------------------------------------------------------------------- */

/* Whether each head of each token begins at a multiple of 16 bytes; y and dy have heads alone. */
static bool is_aligned(const dsc_attention_args *a)
{
    const uintptr_t at = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->dy;
    return at % 16 == 0 && a->head_dim % 8 == 0 && a->q_stride % 8 == 0 && a->kv_stride % 8 == 0;
}

/* Tiles of n rows for each group of heads. first: the kernel for 64 channels in bf16. */
static ds_status launch_tiles(const ds_kernel_call *call, dsc_fn first, ds_dtype dtype, int64_t n,
                              const dsc_attention_args *args)
{
    const int64_t tiles = (n + DSC_ATTENTION_ROWS - 1) / DSC_ATTENTION_ROWS;
    const dsc_shape shape = {{(uint32_t)(args->n_batch * args->n_kv_heads * tiles), 1, 1},
                             {DSC_ATTENTION_THREADS, 1, 1}};
    const dsc_fn fn = first + (args->head_dim > 64 ? 2 : 0) + (dtype == DS_DTYPE_F16 ? 1 : 0);
    return dsc_launch(call, fn, &shape, args, sizeof *args);
}

static int64_t rows_of(const dsc_attention_args *args)
{
    return args->n_queries * (args->n_heads / args->n_kv_heads);
}

static ds_status mma_run(const ds_kernel_call *call)
{
    dsc_attention_args args = forward_args_of(call);
    args.copies = is_aligned(&args);
    return launch_tiles(call, DSC_FN_attention_mma_64_bf16, call->in[0].meta.dtype, rows_of(&args),
                        &args);
}

/* Of each query and head what attention_mma_dq leaves for attention_mma_dkv. */
static size_t mma_backward_work(const ds_kernel_sig *sig)
{
    const dsi_attention_attrs *attrs = sig->attrs;
    return (size_t)(sig->in[1].shape.dims[0] * sig->in[1].shape.dims[1] * attrs->n_heads) *
           sizeof(float);
}

static ds_status mma_backward_run(const ds_kernel_call *call)
{
    const ds_dtype dtype = call->in[1].meta.dtype;
    dsc_attention_args args = backward_args_of(call);
    args.copies = is_aligned(&args);
    args.delta = call->work;
    DS_TRY(launch_tiles(call, DSC_FN_attention_mma_dq_64_bf16, dtype, rows_of(&args), &args));
    return launch_tiles(call, DSC_FN_attention_mma_dkv_64_bf16, dtype, args.n_keys, &args);
}

static const ds_kernel mma_kernel = {.version = DS_OP_VERSION,
                                     .name = "cuda_mma",
                                     .op = "attention",
                                     .supports = is_mma,
                                     .run = mma_run};
static const ds_kernel mma_backward_kernel = {.version = DS_OP_VERSION,
                                              .name = "cuda_mma",
                                              .op = "attention_backward",
                                              .supports = is_mma_backward,
                                              .work_bytes = mma_backward_work,
                                              .run = mma_backward_run};
DSC_ROW(attention, is_supported, attention_run);
DSC_ROW(attention_backward, is_supported, attention_backward_run);
const ds_kernel *const dsc_attention_kernels[] = {
    &mma_kernel, &attention_kernel, &mma_backward_kernel, &attention_backward_kernel, NULL};
