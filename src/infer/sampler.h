/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing an id from logits. */
#ifndef DSI_INFER_SAMPLER_H
#define DSI_INFER_SAMPLER_H

#include <deepspeed/infer.h>

/* Scratch for n logits. */
typedef struct dsi_sample_room {
    uint32_t *order;     /* [n] */
    float *weight, *key; /* [n] */
} dsi_sample_room;

/* Draws from logits (n). position: counter of the random number. surprise: what mirostat allows
 * next, 2·tau before the first id of a text; changed by the id; NULL: without mirostat. Errors:
 * ERR_NUMERIC. */
ds_status dsi_sample(ds_ctx *ctx, const float *logits, int64_t n, const ds_sampling *sampling,
                     uint64_t position, const dsi_sample_room *room, double *surprise,
                     uint32_t *id_out);
/* Errors: ERR_ARG names the field of `who` that is out of range, or has no effect beside another.
 */
ds_status dsi_sampling_check(ds_ctx *ctx, const char *who, const ds_sampling *sampling);

#endif
