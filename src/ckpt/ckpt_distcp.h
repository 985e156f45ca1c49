/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of torch.distributed.checkpoint (FSDP, DTensor; `.metadata` and `*.distcp`) as a
 * manifest in memory, as ckpt_deepspeed.h has DeepSpeed's: what reads a checkpoint reads it. Called
 * by ckpt_reader.c where a folder has no manifest.
 *
 *     .metadata        a pickle: names, shapes, and where the bytes of each chunk are
 *     __R_0.distcp     files of torch.save end to end, one a chunk: a box of its tensor
 *
 * Tensors below "model" are kind "param" by their names there; "exp_avg", "exp_avg_sq" and
 * "momentum_buffer" of an optimizer's state by name ("optim.state.NAME.exp_avg") are states. What
 * is no tensor is left out, so there are no counters: weights are exported and converted, and no
 * run goes on from it.
 */
#ifndef DSI_CKPT_CKPT_DISTCP_H
#define DSI_CKPT_CKPT_DISTCP_H

#include "ckpt/ckpt_internal.h"

/* Whether the folder has a `.metadata` and files of that kind. */
bool dsi_ckpt_distcp_is(const char *folder);
/* Fills the manifest, whose arena is there; the shards own the maps. Errors: ERR_FORMAT (names file
 * and tensor), ERR_NOT_FOUND (a file), ERR_UNSUPPORTED, ERR_LIMIT, as dsi_torch_parse. */
ds_status dsi_ckpt_distcp_read(ds_ctx *ctx, const char *folder, const char *tag,
                               dsi_ckpt_manifest *m);

#endif
