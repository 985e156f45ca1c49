/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of packed weights, stated once: who fills them writes by it, every kernel reads by
 * it. Formats: deepspeed/packing.h.
 *
 * Bytes of a matrix of n elements, in nb blocks of 64, those in nn blocks of 256:
 *   nf4         f32[nb] magnitudes, u8[(n+1)/2] codes
 *   nf4_double  f32 mean, f32[nn] magnitudes, u8[nb] codes of magnitudes, u8[(n+1)/2] codes
 *   int8        f32[rows] magnitudes, i8[n]
 *   fp8         f32[rows] factors, u8[n] codes
 * Two 4-bit codes are in a byte, the first in its high half.
 *
 * Reading is exact to one product in fp32 (nf4_double: a product, a sum, a product), so that an
 * element has the same bits wherever it is read. Writing: one stated sequence of operations for
 * each block.
 */
#ifndef DSI_BASE_PACKED_H
#define DSI_BASE_PACKED_H

#include <deepspeed/context.h>
#include <deepspeed/packing.h>

enum { DSI_PACKED_BLOCK = 64, DSI_PACKED_NESTED = 256 };

/* Elements [first, first + n) in fp32. data: aligned to 4 bytes. */
void dsi_packed_read(const ds_packed *packed, const void *data, int64_t first, int64_t n,
                     float *out);

/* Of nf4 and nf4_double: the codes, and what each of the 16 stands for in a block. */
const unsigned char *dsi_packed_codes(const ds_packed *packed, const void *data);
void dsi_packed_values(const ds_packed *packed, const void *data, int64_t block, float values[16]);

/* Gives elements [first, first + n) of the matrix, row by row. */
typedef ds_status (*dsi_packed_fn)(void *user, int64_t first, int64_t n, float *out);

/* Packs what `read` gives, piece by piece and twice where the format needs it. data: receives
 * ds_packed_bytes(), aligned to 4 bytes. Errors: ERR_NOMEM, ERR_NUMERIC (an element that is not
 * finite), those of read. */
ds_status dsi_packed_write(ds_ctx *ctx, const ds_packed *packed, dsi_packed_fn read, void *user,
                           void *data);

#endif
