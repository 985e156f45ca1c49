/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/softmax.cu, rope.cu and cell.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/row_args.h"

#include <math.h>

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status run_softmax(const ds_kernel_call *call, dsc_fn first)
{
    const ds_meta *x = &call->in[0].meta;
    const dsc_softmax_args args = {.x = dsc_in(call, 0),
                                   .saved = dsc_in(call, 1),
                                   .y = dsc_out(call, 0),
                                   .rows = ds_shape_rows(x->shape),
                                   .columns = ds_shape_last(x->shape)};
    const dsc_shape shape = dsc_block_an_item(args.rows, args.columns);
    return dsc_launch(call, dsc_of_dtype(first, x->dtype), &shape, &args, sizeof args);
}

static ds_status softmax_run(const ds_kernel_call *call)
{
    return run_softmax(call, DSC_FN_softmax_f32);
}

static ds_status softmax_backward_run(const ds_kernel_call *call)
{
    return run_softmax(call, DSC_FN_softmax_backward_f32);
}

static bool rope_supported(const ds_kernel_sig *sig)
{
    return is_act(sig) && sig->in[1].dtype == DS_DTYPE_F32;
}

static ds_status rope_run(const ds_kernel_call *call)
{
    const dsi_rope_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    const dsc_rope_args args = {.x = dsc_in(call, 0),
                                .table = dsc_in(call, 1),
                                .y = dsc_out(call, 0),
                                .tokens = ds_shape_rows(x->shape),
                                .n_heads = ds_shape_last(x->shape) / attrs->head_dim,
                                .head_dim = attrs->head_dim,
                                .rotary = ds_shape_last(call->in[1].meta.shape),
                                .inverse = attrs->inverse != 0,
                                .pairs = attrs->pairs != 0};
    const dsc_shape shape =
        dsc_over_items(args.tokens * args.n_heads * (args.head_dim - args.rotary / 2));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_rope_f32, x->dtype), &shape, &args, sizeof args);
}

#define PI 3.14159265358979323846

_Static_assert((int)DSI_ROPE_DYNAMIC == 2, "as rope.cu has it");

static bool rope_table_supported(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_I32;
}

/* Whether the table depends on how long sequences are and nothing says it (op/ops.h). */
static bool follows_sequences(const ds_kernel_sig *sig)
{
    const dsi_rope_table_attrs *a = sig->attrs;
    const bool has_lengths = sig->n_in > 1 && sig->in[1].dtype != DS_DTYPE_NONE;
    const bool has_divisors = sig->n_in > 2 && sig->in[2].dtype != DS_DTYPE_NONE;
    return a->scaling == DSI_ROPE_DYNAMIC && !has_lengths && !has_divisors;
}

static int64_t chunks_of(const ds_kernel_sig *sig)
{
    const ds_shape s = sig->in[0].shape;
    return ds_shape_rows(s) * ((ds_shape_last(s) + DSC_ROPE_CHUNK - 1) / DSC_ROPE_CHUNK);
}

static size_t rope_table_work(const ds_kernel_sig *sig)
{
    const int64_t n = ds_shape_count(sig->in[0].shape) + chunks_of(sig);
    return follows_sequences(sig) ? (size_t)n * sizeof(int64_t) : 0;
}

static ds_status follow_sequences(const ds_kernel_call *call, dsc_rope_table_args *args)
{
    args->n_chunks = chunks_of(call->sig);
    const dsc_shape shape = dsc_over_items(args->n_chunks);
    args->sequences = call->work;
    args->ends = args->sequences + args->tokens;
    DS_TRY(dsc_launch(call, DSC_FN_rope_ends, &shape, args, sizeof *args));
    return dsc_launch(call, DSC_FN_rope_sequences, &shape, args, sizeof *args);
}

/* Index of the frequency that turns `rotations` times over the original context. */
static double yarn_index(const dsi_rope_table_attrs *a, double rotations)
{
    return (double)a->head_dim * log((double)a->original_max_positions / (rotations * 2.0 * PI)) /
           (2.0 * log(a->theta));
}

static double mscale_of(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static float yarn_attention(const dsi_rope_table_attrs *a)
{
    if (a->attention_factor >= 0.0) {
        return (float)a->attention_factor;
    }
    if (a->mscale != 0.0 && a->mscale_all_dim != 0.0) {
        return (float)(mscale_of(a->factor, a->mscale) / mscale_of(a->factor, a->mscale_all_dim));
    }
    return (float)mscale_of(a->factor, 1.0);
}

static void set_yarn(const dsi_rope_table_attrs *a, dsc_rope_table_args *args)
{
    double low = yarn_index(a, a->beta_fast);
    double high = yarn_index(a, a->beta_slow);
    if (a->truncate != 0) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)(a->head_dim - 1) ? high : (double)(a->head_dim - 1);
    high = low == high ? high + 0.001 : high;
    args->low = (float)low;
    args->high_less_low = (float)(high - low);
    args->attention = yarn_attention(a);
}

static void set_llama3(const dsi_rope_table_attrs *a, dsc_rope_table_args *args)
{
    args->low_bound = (double)a->original_max_positions / a->low_freq_factor;
    args->high_bound = (double)a->original_max_positions / a->high_freq_factor;
    args->low = (float)a->low_freq_factor;
    args->high_less_low = (float)(a->high_freq_factor - a->low_freq_factor);
}

static ds_status rope_table_run(const ds_kernel_call *call)
{
    const dsi_rope_table_attrs *attrs = call->sig->attrs;
    dsc_rope_table_args args = {.positions = dsc_in(call, 0),
                                .lengths = dsc_in(call, 1),
                                .divisors = dsc_in(call, 2),
                                .table = dsc_out(call, 0),
                                .tokens = ds_shape_count(call->in[0].meta.shape),
                                .head_dim = attrs->head_dim,
                                .original = attrs->original_max_positions,
                                .length = ds_shape_last(call->in[0].meta.shape),
                                .scaling = (int32_t)attrs->scaling,
                                .whole_factor = attrs->factor,
                                .theta = attrs->theta,
                                .factor = (float)attrs->factor,
                                .attention = 1.0f};
    if (args.lengths != NULL) {
        args.of_tokens = call->in[1].meta.shape.n_dims == 2;
    }
    if (attrs->scaling == DSI_ROPE_YARN) {
        set_yarn(attrs, &args);
    } else if (attrs->scaling == DSI_ROPE_LLAMA3) {
        set_llama3(attrs, &args);
    }
    if (args.divisors != NULL) {
        args.attention = (float)attrs->attention_factor;
    }
    if (follows_sequences(call->sig)) {
        DS_TRY(follow_sequences(call, &args));
    }
    const dsc_shape shape = dsc_over_items(args.tokens * ((args.head_dim + 1) / 2));
    return dsc_launch(call, DSC_FN_rope_table, &shape, &args, sizeof args);
}

static bool cast_supported(const ds_kernel_sig *sig)
{
    return is_act(sig) && dsc_is_act(sig->out[0].dtype);
}

static bool two_supported(const ds_kernel_sig *sig)
{
    return is_act(sig) && dsc_is_act(sig->in[1].dtype) && dsc_is_act(sig->out[0].dtype);
}

/* a and b: numbers of inputs; b < 0: none. */
static ds_status run_cell(const ds_kernel_call *call, uint32_t a, int32_t b)
{
    const dsc_cell_args args = {.a = dsc_in(call, a),
                                .b = b < 0 ? NULL : dsc_in(call, (uint32_t)b),
                                .y = dsc_out(call, 0),
                                .n = ds_shape_count(call->out[0].meta.shape),
                                .a_dtype = (int32_t)call->in[a].meta.dtype,
                                .b_dtype = b < 0 ? 0 : (int32_t)call->in[b].meta.dtype,
                                .y_dtype = (int32_t)call->out[0].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_cell, &shape, &args, sizeof args);
}

static ds_status cast_run(const ds_kernel_call *call)
{
    return run_cell(call, 0, -1);
}

static ds_status store_run(const ds_kernel_call *call)
{
    return run_cell(call, 1, -1);
}

static ds_status accumulate_run(const ds_kernel_call *call)
{
    return run_cell(call, 0, 1);
}

DSC_ROW(softmax, is_act, softmax_run);
DSC_ROW(softmax_backward, is_act, softmax_backward_run);
DSC_ROW_WORK(rope_table, rope_table_supported, rope_table_work, rope_table_run);
DSC_ROW(rope, rope_supported, rope_run);
DSC_ROW(cast, cast_supported, cast_run);
DSC_ROW(store, two_supported, store_run);
DSC_ROW(accumulate, two_supported, accumulate_run);
const ds_kernel *const dsc_rows_kernels[] = {
    &softmax_kernel, &softmax_backward_kernel, &rope_kernel, &rope_table_kernel, &cast_kernel,
    &store_kernel,   &accumulate_kernel,       NULL};
