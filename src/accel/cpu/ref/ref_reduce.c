/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the sums, fill and expand. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

static real sum_of(const ds_tensor *x)
{
    const int64_t n = ds_shape_count(x->meta.shape);
    real sum = R(0.0);
    for (int64_t i = 0; i < n; ++i) {
        sum += ref_get(x, i);
    }
    return sum;
}

static void sum_all_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)begin;
    (void)end;
    (void)slot;
    ref_set(&call->out[0], 0, sum_of(&call->in[0]));
}

static void mean_all_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    (void)begin;
    (void)end;
    (void)slot;
    ref_set(&call->out[0], 0, sum_of(&call->in[0]) / (real)n);
}

static void sum_last_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        real sum = R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            sum += ref_get(&call->in[0], n * c + i);
        }
        ref_set(&call->out[0], n, sum);
    }
}

static void sum_rows_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_shape x = call->in[0].meta.shape;
    const int64_t c = ds_shape_last(x);
    const int64_t rows = ds_shape_rows(x);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        real sum = R(0.0);
        for (int64_t n = 0; n < rows; ++n) {
            sum += ref_get(&call->in[0], n * c + i);
        }
        ref_set(&call->out[0], i, sum);
    }
}

static void fill_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const real s = ref_get(&call->in[1], 0);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, s);
    }
}

static void expand_last_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->out[0].meta.shape);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_get(&call->in[0], i / c));
    }
}

static void expand_rows_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->out[0].meta.shape);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_get(&call->in[0], i % c));
    }
}

static ds_status sum_all_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, sum_all_range);
    return DS_OK;
}

static ds_status mean_all_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, mean_all_range);
    return DS_OK;
}

/* Items are elements of the output. */
#define OUTPUT_RUN(name)                                                                           \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), name##_range);                  \
        return DS_OK;                                                                              \
    }

OUTPUT_RUN(sum_last)
OUTPUT_RUN(sum_rows)
OUTPUT_RUN(fill)
OUTPUT_RUN(expand_last)
OUTPUT_RUN(expand_rows)

REF_KERNEL(sum_all, sum_all_run, NULL);
REF_KERNEL(mean_all, mean_all_run, NULL);
REF_KERNEL(sum_last, sum_last_run, NULL);
REF_KERNEL(sum_rows, sum_rows_run, NULL);
REF_KERNEL(fill, fill_run, NULL);
REF_KERNEL(expand_last, expand_last_run, NULL);
REF_KERNEL(expand_rows, expand_rows_run, NULL);
const ds_kernel *const DSI_REF(reduce)[] = {
    &sum_all_kernel, &mean_all_kernel,    &sum_last_kernel,    &sum_rows_kernel,
    &fill_kernel,    &expand_last_kernel, &expand_rows_kernel, NULL};
