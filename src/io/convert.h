/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of element types, block by block: for reading and writing files, not for kernels. */
#ifndef DSI_IO_CONVERT_H
#define DSI_IO_CONVERT_H

#include <deepspeed/tensor.h>

/* Whether dsi_convert knows the pair: equal dtypes, or both of f32, f64, bf16, f16. */
bool dsi_can_convert(ds_dtype from, ds_dtype to);

/* Converts n elements, round to nearest even; in and out must not overlap and need no alignment.
 * Returns how many finite values became infinite. Pre: dsi_can_convert. */
size_t dsi_convert(ds_dtype from, const void *in, ds_dtype to, void *out, size_t n);
/* Rounds fp32 numbers in place to those of `dtype`. Returns what dsi_convert does. */
size_t dsi_round(ds_dtype dtype, float *x, size_t n);

#endif
