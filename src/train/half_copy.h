/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between fp32 and a cell's dtype, element by element, on the context's threads. */
#ifndef DSI_TRAIN_HALF_COPY_H
#define DSI_TRAIN_HALF_COPY_H

#include <deepspeed/context.h>
#include <deepspeed/tensor.h>

/* to[i] = from[i], rounded to nearest even. Dtypes f32, bf16, f16. from and to may not overlap
 * unless they are equal with the same dtype. factor multiplies in fp32 first. */
void dsi_half_copy(ds_ctx *ctx, void *to, ds_dtype to_dtype, const void *from, ds_dtype from_dtype,
                   size_t count, float factor);

#endif
