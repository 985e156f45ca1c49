/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing an id from logits. */
#ifndef DSI_INFER_SAMPLER_H
#define DSI_INFER_SAMPLER_H

#include <deepspeed/infer.h>

/* Draws from logits (n); `order` is scratch for n ids, `weight` for n floats. position: counter of
 * the random number. Errors: ERR_NUMERIC. */
ds_status dsi_sample(ds_ctx *ctx, const float *logits, int64_t n, const ds_sampling *sampling,
                     uint64_t position, uint32_t *order, float *weight, uint32_t *id_out);

#endif
