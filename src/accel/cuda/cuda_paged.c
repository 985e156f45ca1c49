/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/paged_write.cu, paged_attention.cu and paged_mma.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/attention.h"
#include "accel/cuda/kernels/paged.h"
#include "op/paged_cell.h"

_Static_assert((int)DSC_PAGED_CODES == (int)DS_DTYPE_I8, "the dtype of codes");

static bool is_write(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) &&
           (dsc_is_act(sig->out[0].dtype) || sig->out[0].dtype == DS_DTYPE_I8);
}

static ds_status paged_write_run(const ds_kernel_call *call)
{
    const ds_meta *x = &call->in[1].meta;
    const ds_meta *cell = &call->out[0].meta;
    const dsi_paged_write_attrs *attrs = call->sig->attrs;
    const dsc_paged_write_args args = {.x = dsc_in(call, 1),
                                       .cell = dsc_out(call, 0),
                                       .slots = dsc_in(call, 2),
                                       .fault = dsc_fault_of(call),
                                       .call = (uint64_t)(uintptr_t)call,
                                       .n_tokens = x->shape.dims[1],
                                       .columns = x->shape.dims[2],
                                       .n_slots = cell->shape.dims[0] * cell->shape.dims[1],
                                       .head_dim = attrs->head_dim,
                                       .x_dtype = (int32_t)x->dtype,
                                       .cell_dtype = (int32_t)cell->dtype};
    const int64_t n = args.n_tokens * args.columns;
    DS_TRY(dsc_copy_whole(call, 0, &call->in[0])); /* what no slot names stays */
    if (cell->dtype != DS_DTYPE_I8) {
        const dsc_shape shape = dsc_over_items(n);
        return dsc_launch(call, DSC_FN_paged_write, &shape, &args, sizeof args);
    }
    const dsc_shape shape = dsc_over_items(n / args.head_dim * 32);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_paged_write_codes_f32, x->dtype), &shape, &args,
                      sizeof args);
}

/* ---- paged_attention --------------------------------------------------------------------------
 */

static bool is_supported(const ds_kernel_sig *sig)
{
    const dsi_paged_attrs *attrs = sig->attrs;
    return dsc_is_act(sig->in[0].dtype) && attrs->head_dim <= DSC_MOST_PAGED_HEAD_DIM &&
           (dsc_is_act(sig->in[1].dtype) || sig->in[1].dtype == DS_DTYPE_I8) &&
           sig->in[2].dtype == sig->in[1].dtype;
}

/* Positions and blocks are numbered in 32 bits there, a grid has a block for each token and head of
 * the cells. */
static bool fits_tiles(const ds_kernel_sig *sig)
{
    const dsi_paged_attrs *attrs = sig->attrs;
    const double positions = (double)sig->in[3].shape.dims[1] * (double)sig->in[1].shape.dims[1];
    return positions < 0x1p30 && (double)sig->in[1].shape.dims[0] < 0x1p31 &&
           (double)sig->in[0].shape.dims[1] * (double)attrs->n_kv_heads < 0x1p31;
}

static bool has_biases(const ds_kernel_sig *sig)
{
    return sig->n_in > 7 && sig->in[7].dtype != DS_DTYPE_NONE;
}

static bool is_mma(const ds_kernel_sig *sig)
{
    const dsi_paged_attrs *attrs = sig->attrs;
    return is_supported(sig) && sig->in[0].dtype != DS_DTYPE_F32 &&
           sig->in[1].dtype == sig->in[0].dtype && attrs->head_dim <= DSC_MOST_MMA_HEAD_DIM &&
           attrs->cap == 0.0 && attrs->alibi == 0.0 && !has_biases(sig) &&
           attrs->n_heads / attrs->n_kv_heads <= DSC_ATTENTION_ROWS && fits_tiles(sig);
}

static dsc_paged_args args_of(const ds_kernel_call *call)
{
    const dsi_paged_attrs *attrs = call->sig->attrs;
    const ds_shape cell = call->in[1].meta.shape;
    const ds_shape tables = call->in[3].meta.shape;
    return (dsc_paged_args){.q = dsc_in(call, 0),
                            .k = dsc_in(call, 1),
                            .v = dsc_in(call, 2),
                            .tables = dsc_in(call, 3),
                            .sequence = dsc_in(call, 4),
                            .positions = dsc_in(call, 5),
                            .heads = dsc_in(call, 6),
                            .biases = has_biases(call->sig) ? dsc_in(call, 7) : NULL,
                            .y = dsc_out(call, 0),
                            .lse = dsc_out(call, 1),
                            .fault = dsc_fault_of(call),
                            .call = (uint64_t)(uintptr_t)call,
                            .n_tokens = call->in[0].meta.shape.dims[1],
                            .n_sequences = tables.dims[0],
                            .n_table = tables.dims[1],
                            .block = cell.dims[1],
                            .n_blocks = cell.dims[0],
                            .n_heads = attrs->n_heads,
                            .n_kv_heads = attrs->n_kv_heads,
                            .head_dim = attrs->head_dim,
                            .all_heads = attrs->all_heads,
                            .n_distances =
                                has_biases(call->sig) ? call->in[7].meta.shape.dims[3] : 0,
                            .window = attrs->window,
                            .kv_stride = cell.dims[2],
                            .kv_head = dsi_paged_head(call->in[1].meta.dtype, attrs->head_dim),
                            .kv_dtype = (int32_t)call->in[1].meta.dtype,
                            .alibi_rounded = attrs->alibi_rounded != 0,
                            .scale = (float)attrs->scale,
                            .cap = (float)attrs->cap,
                            .alibi = attrs->alibi};
}

static ds_status plain_run(const ds_kernel_call *call)
{
    const dsc_paged_args args = args_of(call);
    const ds_dtype dtype = call->in[0].meta.dtype;
    const dsc_fn first = call->in[1].meta.dtype == dtype         ? DSC_FN_paged_attention_f32
                         : call->in[1].meta.dtype == DS_DTYPE_I8 ? DSC_FN_paged_attention_codes_f32
                                                                 : DSC_FN_paged_attention_other_f32;
    const int64_t n = args.n_tokens * args.n_heads;
    const dsc_shape shape =
        dsc_block_an_item((n + DSC_PAGED_WARPS - 1) / DSC_PAGED_WARPS, 32 * DSC_PAGED_WARPS);
    return dsc_launch(call, dsc_of_dtype(first, dtype), &shape, &args, sizeof args);
}

static ds_status mma_run(const ds_kernel_call *call)
{
    dsc_paged_args args = args_of(call);
    const uintptr_t at = (uintptr_t)args.k | (uintptr_t)args.v;
    args.copies = at % 16 == 0 && args.head_dim % 8 == 0 && args.kv_stride % 8 == 0;
    const dsc_shape shape = {{(uint32_t)(args.n_tokens * args.n_kv_heads), 1, 1},
                             {DSC_ATTENTION_THREADS, 1, 1}};
    const dsc_fn fn = DSC_FN_paged_mma_64_bf16 + (args.head_dim > 64 ? 2 : 0) +
                      (call->in[0].meta.dtype == DS_DTYPE_F16 ? 1 : 0);
    return dsc_launch(call, fn, &shape, &args, sizeof args);
}

static const ds_kernel mma_kernel = {.version = DS_OP_VERSION,
                                     .name = "cuda_mma",
                                     .op = "paged_attention",
                                     .supports = is_mma,
                                     .run = mma_run};
DSC_ROW(paged_write, is_write, paged_write_run);
DSC_ROW(paged_attention, is_supported, plain_run);
const ds_kernel *const dsc_paged_kernels[] = {&paged_write_kernel, &mma_kernel,
                                              &paged_attention_kernel, NULL};
