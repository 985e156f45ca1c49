/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of store, accumulate and kv_write. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <string.h>

static bool is_float(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
           dtype == DS_DTYPE_F64;
}

/* Of one dtype: bytes; else converted. The output may be the very same memory. */
static void store_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *x = &call->in[1];
    const ds_tensor *out = &call->out[0];
    (void)slot;
    if (x->meta.dtype == out->meta.dtype || !is_float(x->meta.dtype)) {
        const size_t each = ds_dtype_bytes(out->meta.dtype);
        memmove((char *)out->data + (size_t)begin * each,
                (const char *)x->data + (size_t)begin * each, (size_t)(end - begin) * each);
        return;
    }
    for (int64_t i = begin; i < end; ++i) {
        ref_set(out, i, ref_get(x, i));
    }
}

static void accumulate_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_get(&call->in[0], i) + ref_get(&call->in[1], i));
    }
}

static ds_status store_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), store_range);
    return DS_OK;
}

static ds_status accumulate_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), accumulate_range);
    return DS_OK;
}

static void kv_write_samples(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *x = &call->in[1];
    const int64_t *cell = call->out[0].meta.shape.dims;
    const size_t token = (size_t)cell[2] * ds_dtype_bytes(x->meta.dtype);
    const int64_t t = x->meta.shape.dims[1];
    (void)slot;
    for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b * cell[1] + ((const int32_t *)call->in[2].data)[b];
        memcpy((char *)call->out[0].data + (size_t)row * token,
               (const char *)x->data + (size_t)(b * t) * token, (size_t)t * token);
    }
}

static ds_status kv_write_run(const ds_kernel_call *call)
{
    const int32_t *offset = call->in[2].data;
    const int64_t *cell = call->out[0].meta.shape.dims;
    const int64_t t = call->in[1].meta.shape.dims[1];
    for (int64_t b = 0; b < cell[0]; ++b) {
        if (offset[b] < 0 || offset[b] > cell[1] - t) {
            return ds_fail(call->ctx, DS_ERR_LIMIT,
                           "kv_write: sample %lld writes positions %d to %lld, but the cell holds "
                           "%lld",
                           (long long)b, offset[b], (long long)offset[b] + t - 1,
                           (long long)cell[1]);
        }
    }
    dsi_ref_for(call, cell[0], kv_write_samples);
    return DS_OK;
}

REF_KERNEL(store, store_run, NULL);
REF_KERNEL(accumulate, accumulate_run, NULL);
REF_KERNEL(kv_write, kv_write_run, NULL);
const ds_kernel *const DSI_REF(cell)[] = {&store_kernel, &accumulate_kernel, &kv_write_kernel,
                                          NULL};
