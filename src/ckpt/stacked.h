/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that stand for many stored tensors. The matrices of experts are stored one by one,
 * `layers.0.mlp.experts.3.up_proj.weight` (O,K), and are one parameter, whose name has a `*` where
 * theirs have the number and whose shape begins with how many there are: (E,O,K). In memory and in
 * checkpoints there is the one, in model folders there are the many. A name without `*` is stored
 * as it is. Used by what reads and writes model folders. */
#ifndef DSI_CKPT_STACKED_H
#define DSI_CKPT_STACKED_H

#include <deepspeed/safetensors.h>

enum { DSI_STACKED_NAME_BYTES = 1024 };

/* Stored tensors of a parameter, and the shape of each. */
int64_t dsi_stacked_count(const char *name, ds_shape shape);
ds_shape dsi_stacked_shape(const char *name, ds_shape shape);
/* The name of the i-th. ERR_LIMIT when it is longer than DSI_STACKED_NAME_BYTES. */
ds_status dsi_stacked_name(ds_ctx *ctx, const char *name, int64_t i, char *out);

/* The stored tensors of parameters that are to be written, those of one side by side. sources are
 * borrowed until it is destroyed. */
typedef struct dsi_unstacked dsi_unstacked;
ds_status dsi_unstacked_create(ds_ctx *ctx, const ds_tensor_source *sources, size_t n,
                               dsi_unstacked **unstacked_out);
void dsi_unstacked_destroy(dsi_unstacked **unstacked);
const ds_tensor_source *dsi_unstacked_sources(const dsi_unstacked *unstacked, size_t *n_out);
/* Whether any parameter stands for several: then the data is best written in the order of the
 * sources, a parameter after the other, since one may have to be gathered whole. */
bool dsi_unstacked_any(const dsi_unstacked *unstacked);

/* ds_safetensors_write_folder() of parameters. */
ds_status dsi_write_parameters(ds_ctx *ctx, const char *folder, const ds_tensor_source *sources,
                               size_t n, uint64_t max_shard_bytes,
                               const ds_safetensors_params *params);

#endif
