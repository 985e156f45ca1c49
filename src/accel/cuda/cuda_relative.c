/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/relative.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/relative.h"
#include "op/relative_buckets.h"

static int64_t n_ranges(const dsi_relative_attrs *attrs)
{
    return attrs->both != 0 ? attrs->n_buckets / 2 : attrs->n_buckets;
}

/* Ranges of one distance come first; an odd number of buckets would leave one that none is of. */
static bool fits(const dsi_relative_attrs *attrs)
{
    return n_ranges(attrs) >= 2 && n_ranges(attrs) <= DSC_RANGES &&
           (attrs->both == 0 || attrs->n_buckets % 2 == 0);
}

static bool is_forward(const ds_kernel_sig *sig)
{
    const dsi_relative_attrs *attrs = sig->attrs;
    return dsc_is_act(sig->in[0].dtype) && sig->out[0].dtype == sig->in[0].dtype && fits(attrs) &&
           sig->in[0].shape.dims[0] == attrs->n_buckets;
}

static bool is_backward(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->out[0].dtype) && fits(sig->attrs);
}

/* The least distance of range r: buckets grow with it. */
static int32_t start_of(const dsi_relative_attrs *attrs, int64_t r)
{
    int64_t low = r;
    int64_t high = DSI_MOST_DISTANCE + 1;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (dsi_relative_bucket(attrs, attrs->n_buckets, -middle) >= r) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return (int32_t)low;
}

/* at: the input first; scores: (B,H,T,K). */
static dsc_relative_args args_of(const ds_kernel_call *call, uint32_t at, ds_shape scores)
{
    const dsi_relative_attrs *attrs = call->sig->attrs;
    dsc_relative_args args = {.first = dsc_in(call, at),
                              .end = dsc_in(call, at + 1),
                              .offset = dsc_in(call, at + 2),
                              .n_batch = scores.dims[0],
                              .heads = scores.dims[1],
                              .n_queries = scores.dims[2],
                              .n_keys = scores.dims[3],
                              .n_ranges = (int32_t)n_ranges(attrs),
                              .both = attrs->both != 0};
    for (int64_t r = 0; r < args.n_ranges; ++r) {
        args.starts[r] = start_of(attrs, r);
    }
    return args;
}

static ds_status relative_bias_run(const ds_kernel_call *call)
{
    const ds_meta *y = &call->out[0].meta;
    dsc_relative_args args = args_of(call, 1, y->shape);
    args.table = dsc_in(call, 0);
    args.y = dsc_out(call, 0);
    const dsc_shape shape = dsc_over_items(ds_shape_count(y->shape));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_relative_bias_f32, y->dtype), &shape, &args,
                      sizeof args);
}

static ds_status relative_bias_backward_run(const ds_kernel_call *call)
{
    const ds_meta *dy = &call->in[0].meta;
    dsc_relative_args args = args_of(call, 1, dy->shape);
    args.dy = dsc_in(call, 0);
    args.dtable = dsc_out(call, 0);
    args.dtable_dtype = (int32_t)call->out[0].meta.dtype;
    const int64_t buckets = (int64_t)args.n_ranges * (args.both != 0 ? 2 : 1);
    const dsc_shape shape = dsc_block_an_item(buckets * args.heads, args.n_batch * args.n_queries);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_relative_bias_backward_f32, dy->dtype), &shape,
                      &args, sizeof args);
}

DSC_ROW(relative_bias, is_forward, relative_bias_run);
DSC_ROW(relative_bias_backward, is_backward, relative_bias_backward_run);
const ds_kernel *const dsc_relative_kernels[] = {&relative_bias_kernel,
                                                 &relative_bias_backward_kernel, NULL};
