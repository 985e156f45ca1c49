/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of whole tensors. See half_copy.h. */
#include "train/half_copy.h"

#include "base/half.h"
#include <deepspeed/op.h>

enum { BLOCK = 1 << 16 };

typedef struct copy_job {
    void *to;
    const void *from;
    ds_dtype to_dtype, from_dtype;
    size_t count;
    float factor;
} copy_job;

static float load(const void *from, ds_dtype dtype, size_t i)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        return dsi_bf16_to_f32(((const uint16_t *)from)[i]);
    case DS_DTYPE_F16:
        return dsi_f16_to_f32(((const uint16_t *)from)[i]);
    default:
        return ((const float *)from)[i];
    }
}

static void store(void *to, ds_dtype dtype, size_t i, float value)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        ((uint16_t *)to)[i] = dsi_f32_to_bf16(value);
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)to)[i] = dsi_f32_to_f16(value);
        break;
    default:
        ((float *)to)[i] = value;
        break;
    }
}

static void copy_block(void *arg, uint32_t task, uint32_t thread)
{
    const copy_job *job = arg;
    const size_t begin = (size_t)task * BLOCK;
    const size_t end = begin + BLOCK < job->count ? begin + BLOCK : job->count;
    (void)thread;
    for (size_t i = begin; i < end; ++i) {
        store(job->to, job->to_dtype, i, load(job->from, job->from_dtype, i) * job->factor);
    }
}

void dsi_half_copy(ds_ctx *ctx, void *to, ds_dtype to_dtype, const void *from, ds_dtype from_dtype,
                   size_t count, float factor)
{
    copy_job job = {to, from, to_dtype, from_dtype, count, factor};
    ds_parallel(ctx, copy_block, &job, (uint32_t)((count + BLOCK - 1) / BLOCK));
}
