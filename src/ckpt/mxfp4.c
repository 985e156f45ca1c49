/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of experts in MXFP4. See mxfp4.h. */
#include "ckpt/mxfp4.h"

#include <math.h>

enum { BLOCK = 32, BIAS = 127 };

static ds_status check_one(ds_ctx *ctx, const ds_safetensor *tensor, ds_shape want)
{
    if (tensor->meta.dtype == DS_DTYPE_U8 && ds_shape_equal(tensor->meta.shape, want)) {
        return DS_OK;
    }
    char need[160];
    char got[160];
    return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s is %s, the model needs %s", tensor->path,
                   tensor->name, ds_meta_text(tensor->meta, got, sizeof got),
                   ds_meta_text((ds_meta){DS_DTYPE_U8, want}, need, sizeof need));
}

ds_status dsi_mxfp4_check(ds_ctx *ctx, const ds_safetensor *blocks, const ds_safetensor *scales,
                          ds_shape shape)
{
    if (shape.n_dims != 3 || shape.dims[1] % BLOCK != 0) {
        char text[160];
        return ds_fail(ctx, DS_ERR_SHAPE,
                       "%s: tensor %s is of MXFP4, but the model's parameter is %s: supported are "
                       "experts (E,K,O), K a multiple of %d",
                       blocks->path, blocks->name,
                       ds_meta_text((ds_meta){DS_DTYPE_F32, shape}, text, sizeof text), BLOCK);
    }
    const int64_t n = shape.dims[1] / BLOCK;
    DS_TRY(check_one(ctx, blocks, ds_shape_4d(shape.dims[0], shape.dims[2], n, BLOCK / 2)));
    return check_one(ctx, scales, ds_shape_3d(shape.dims[0], shape.dims[2], n));
}

void dsi_mxfp4_read(const ds_safetensor *blocks, const ds_safetensor *scales, int64_t begin,
                    int64_t count, float *out)
{
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    const uint8_t *bytes = blocks->data;
    const uint8_t *exponents = scales->data;
    const int64_t o_dim = scales->meta.shape.dims[1];
    const int64_t k_dim = scales->meta.shape.dims[2] * BLOCK;
    for (int64_t i = begin; i < begin + count; ++i) {
        const int64_t e = i / (k_dim * o_dim);
        const int64_t k = i / o_dim % k_dim;
        const int64_t at = (e * o_dim + i % o_dim) * k_dim + k; /* in the order of blocks */
        const int nibble = bytes[at / 2] >> (at % 2 * 4) & 15;
        *out++ = ldexpf(values[nibble], (int)exponents[at / BLOCK] - BIAS);
    }
}
