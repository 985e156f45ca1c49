/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices of experts in MXFP4, as gpt-oss is published: elements of four bits (E2M1) with a power
 * of two for each 32 of them (OCP Microscaling Formats, 2023). A parameter (E,K,O) is two tensors,
 * its name with _blocks, u8 (E,O,K/32,16), of two elements a byte, the first in the low bits, and
 * with _scales, u8 (E,O,K/32): exponents plus 127. */
#ifndef DSI_CKPT_MXFP4_H
#define DSI_CKPT_MXFP4_H

#include <deepspeed/safetensors.h>

/* ERR_SHAPE, which names the tensor, where the two are not those of a parameter of this shape. */
ds_status dsi_mxfp4_check(ds_ctx *ctx, const ds_safetensor *blocks, const ds_safetensor *scales,
                          ds_shape shape);
/* Elements of the parameter (E,K,O) from `begin` on. */
void dsi_mxfp4_read(const ds_safetensor *blocks, const ds_safetensor *scales, int64_t begin,
                    int64_t count, float *out);

#endif
