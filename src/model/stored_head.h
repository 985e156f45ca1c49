/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a folder's output projection is tied to its embedding, where config.json does not say it:
 * called by model.c for families that have ds_family.set_tied. */
#ifndef DSI_MODEL_STORED_HEAD_H
#define DSI_MODEL_STORED_HEAD_H

#include <deepspeed/model.h>

/* Of the weights beside config_path: tied where they have no projection, or one with the bytes of
 * the embedding, which is what transformers ties then. *tied_inout stays where there are none, or
 * none that can be opened: whoever reads the weights says what is wrong with them. */
void dsi_stored_head(ds_ctx *ctx, const ds_model_info *info, const char *config_path,
                     bool *tied_inout);

#endif
