/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/block_linear.cu and linear_packed.cu: products with weights that are not of a
 * float dtype; and of weight_norms.cu, whose weights may be such. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/block_linear_args.h"
#include "accel/cuda/kernels/packed_args.h"
#include "accel/cuda/kernels/weight_norms.h"
#include "base/blocks.h"
#include "base/dynamic_map.h"
#include "base/nf4.h"

#include <deepspeed/packing.h>
#include <string.h>

_Static_assert((int)DSC_Q8_0 == (int)DS_DTYPE_Q8_0 && (int)DSC_Q6_K == (int)DS_DTYPE_Q6_K,
               "the dtypes of blocks");

/* ---- linear with a weight in blocks ------------------------------------------------------------
 */

static bool is_blocks(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsi_is_blocks(sig->in[1].dtype) &&
           dsc_is_act(sig->out[0].dtype) &&
           (sig->n_out < 2 || sig->out[1].dtype == DS_DTYPE_NONE) &&
           dsc_fits_y(ds_shape_rows(sig->in[0].shape), DSC_BLOCK_WARPS);
}

/* A multiple of 16 bytes. */
static int64_t rounded(int64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

/* x as bytes, scales and sums of its blocks. */
static size_t blocks_work(const ds_kernel_sig *sig)
{
    const int64_t n = ds_shape_count(sig->in[0].shape);
    return (size_t)(rounded(n) + rounded(n / DSI_BLOCK * (int64_t)sizeof(float)) +
                    n / DSI_BLOCK * 2 * (int64_t)sizeof(int32_t));
}

static dsc_block_linear_args blocks_args(const ds_kernel_call *call)
{
    const dsi_linear_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    const int64_t n = ds_shape_count(x->shape);
    char *scale = (char *)call->work + rounded(n);
    dsc_block_linear_args args = {
        .linear = {.x = dsc_in(call, 0),
                   .w = dsc_in(call, 1),
                   .bias = dsc_in(call, 2),
                   .residual = dsc_in(call, 3),
                   .y = dsc_out(call, 0),
                   .rows = ds_shape_rows(x->shape),
                   .n_in = ds_shape_last(x->shape),
                   .n_out = ds_shape_last(call->out[0].meta.shape),
                   .activation = (int32_t)attrs->activation,
                   .bias_dtype = dsc_in(call, 2) != NULL ? (int32_t)call->in[2].meta.dtype : 0,
                   .y_dtype = (int32_t)call->out[0].meta.dtype},
        .q = call->work,
        .scale = (float *)(void *)scale,
        .sums = (int32_t *)(void *)(scale + rounded(n / DSI_BLOCK * (int64_t)sizeof(float)))};
    args.n_blocks = args.linear.n_in / DSI_BLOCK;
    args.n_panels = (args.linear.n_out + DSI_BLOCK_ROWS - 1) / DSI_BLOCK_ROWS;
    args.panel_bytes = (int64_t)dsi_panel_bytes(call->in[1].meta.dtype, args.linear.n_in);
    return args;
}

static ds_status blocks_run(const ds_kernel_call *call)
{
    const dsc_block_linear_args args = blocks_args(call);
    const dsc_fn product = DSC_FN_block_linear_q8_0 + (call->in[1].meta.dtype - DS_DTYPE_Q8_0);
    const dsc_shape by_block = dsc_over_items(args.linear.rows * args.linear.n_in);
    const dsc_shape tiles = {
        {(uint32_t)((args.linear.n_out + DSC_BLOCK_COLUMNS - 1) / DSC_BLOCK_COLUMNS),
         (uint32_t)((args.linear.rows + DSC_BLOCK_WARPS - 1) / DSC_BLOCK_WARPS), 1},
        {32 * DSC_BLOCK_WARPS, 1, 1}};
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_block_round_f32, call->in[0].meta.dtype), &by_block,
                      &args, sizeof args));
    return dsc_launch(call, product, &tiles, &args, sizeof args);
}

static bool is_embedding(const ds_kernel_sig *sig)
{
    return dsi_is_blocks(sig->in[0].dtype) && dsc_is_act(sig->out[0].dtype);
}

static ds_status embedding_blocks_run(const ds_kernel_call *call)
{
    const ds_meta *table = &call->in[0].meta;
    const int64_t columns = ds_shape_last(table->shape);
    const dsc_embedding_blocks_args args = {.table = dsc_in(call, 0),
                                            .ids = dsc_in(call, 1),
                                            .y = dsc_out(call, 0),
                                            .fault = dsc_fault_of(call),
                                            .call = (uint64_t)(uintptr_t)call,
                                            .n = ds_shape_count(call->in[1].meta.shape),
                                            .columns = columns,
                                            .n_rows = table->shape.dims[0],
                                            .panel_bytes =
                                                (int64_t)dsi_panel_bytes(table->dtype, columns),
                                            .type = (int32_t)table->dtype,
                                            .y_dtype = (int32_t)call->out[0].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n * args.columns);
    return dsc_launch(call, DSC_FN_embedding_blocks, &shape, &args, sizeof args);
}

/* ---- linear_packed -----------------------------------------------------------------------------
 */

_Static_assert((int)DSC_NF4 == (int)DS_PACKING_NF4 &&
                   (int)DSC_NF4_DOUBLE == (int)DS_PACKING_NF4_DOUBLE &&
                   (int)DSC_INT8 == (int)DS_PACKING_INT8 && (int)DSC_FP8 == (int)DS_PACKING_FP8 &&
                   (int)DS_PACKING_COUNT == (int)DSC_FP8 + 1,
               "packed_value.h has each packing");

static bool is_packed(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->out[0].dtype) &&
           dsc_fits_y(ds_shape_rows(sig->in[0].shape), DSC_PLAIN_TILE);
}

static bool is_packed_mma(const ds_kernel_sig *sig)
{
    return is_packed(sig) && sig->in[0].dtype != DS_DTYPE_F32;
}

static dsc_packed packed_of(int64_t format, int64_t rows, int64_t columns)
{
    dsc_packed packed = {.rows = rows, .columns = columns, .format = (int32_t)format};
    memcpy(packed.nf4, dsi_nf4, sizeof dsi_nf4);
    memcpy(packed.map, dsi_dynamic_map(true), sizeof packed.map);
    return packed;
}

static dsc_linear_packed_args packed_args(const ds_kernel_call *call)
{
    const dsi_linear_packed_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    return (dsc_linear_packed_args){
        .linear = {.x = dsc_in(call, 0),
                   .w = dsc_in(call, 1),
                   .bias = dsc_in(call, 2),
                   .y = dsc_out(call, 0),
                   .rows = ds_shape_rows(x->shape),
                   .n_in = ds_shape_last(x->shape),
                   .n_out = ds_shape_last(call->out[0].meta.shape),
                   .transposed = attrs->transposed != 0,
                   .activation = DSI_ACT_NONE,
                   .bias_dtype = dsc_in(call, 2) != NULL ? (int32_t)call->in[2].meta.dtype : 0,
                   .y_dtype = (int32_t)call->out[0].meta.dtype},
        .packed = packed_of(attrs->format, attrs->rows, attrs->columns)};
}

static dsc_shape in_tiles(const dsc_linear_args *a, int64_t tile, uint32_t threads)
{
    return (dsc_shape){
        {(uint32_t)((a->n_out + tile - 1) / tile), (uint32_t)((a->rows + tile - 1) / tile), 1},
        {threads, 1, 1}};
}

static ds_status packed_run(const ds_kernel_call *call)
{
    const dsc_linear_packed_args args = packed_args(call);
    const dsc_shape shape = in_tiles(&args.linear, DSC_PLAIN_TILE, DSC_PLAIN_TILE * DSC_PLAIN_TILE);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_linear_packed_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status packed_mma_run(const ds_kernel_call *call)
{
    dsc_linear_packed_args args = packed_args(call);
    args.linear.copies = args.linear.n_in % 8 == 0 && (uintptr_t)args.linear.x % 16 == 0;
    const dsc_shape shape = in_tiles(&args.linear, DSC_MMA_TILE, DSC_MMA_THREADS);
    const dsc_fn fn = call->in[0].meta.dtype == DS_DTYPE_BF16 ? DSC_FN_linear_packed_mma_bf16
                                                              : DSC_FN_linear_packed_mma_f16;
    return dsc_launch(call, fn, &shape, &args, sizeof args);
}

/* ---- weight_norms: w, a, b → y -----------------------------------------------------------------
 */

static bool is_norms(const ds_kernel_sig *sig)
{
    const dsi_weight_norms_attrs *attrs = sig->attrs;
    return dsc_is_act(sig->in[1].dtype) && sig->in[2].dtype == sig->in[1].dtype &&
           (attrs->format != DS_PACKING_NONE || sig->in[0].dtype == sig->in[1].dtype);
}

static ds_status weight_norms_run(const ds_kernel_call *call)
{
    const dsi_weight_norms_attrs *attrs = call->sig->attrs;
    const ds_shape a = call->in[1].meta.shape;
    const dsc_weight_norms_args args = {.w = dsc_in(call, 0),
                                        .a = dsc_in(call, 1),
                                        .b = dsc_in(call, 2),
                                        .y = dsc_out(call, 0),
                                        .rows = call->out[0].meta.shape.dims[0],
                                        .columns = a.dims[1],
                                        .rank = a.dims[0],
                                        .transposed = attrs->transposed != 0,
                                        .scale = (float)attrs->scale,
                                        .packed =
                                            packed_of(attrs->format, attrs->rows, attrs->columns)};
    const dsc_shape shape = dsc_block_an_item(args.rows, DSC_BLOCK);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_weight_norms_f32, call->in[1].meta.dtype), &shape,
                      &args, sizeof args);
}

static const ds_kernel blocks_kernel = {.version = DS_OP_VERSION,
                                        .name = "cuda_blocks",
                                        .op = "linear",
                                        .supports = is_blocks,
                                        .work_bytes = blocks_work,
                                        .run = blocks_run};
static const ds_kernel packed_mma_kernel = {.version = DS_OP_VERSION,
                                            .name = "cuda_mma",
                                            .op = "linear_packed",
                                            .supports = is_packed_mma,
                                            .run = packed_mma_run};
static const ds_kernel packed_kernel = {.version = DS_OP_VERSION,
                                        .name = "cuda",
                                        .op = "linear_packed",
                                        .supports = is_packed,
                                        .run = packed_run};
DSC_ROW(embedding_blocks, is_embedding, embedding_blocks_run);
DSC_ROW(weight_norms, is_norms, weight_norms_run);
const ds_kernel *const dsc_quantized_kernels[] = {&blocks_kernel,       &embedding_blocks_kernel,
                                                  &packed_mma_kernel,   &packed_kernel,
                                                  &weight_norms_kernel, NULL};
