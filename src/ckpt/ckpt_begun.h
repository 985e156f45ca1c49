/* SPDX-License-Identifier: Apache-2.0 */
/* What a save folder held when the run that writes there began: DIR/.ds_begun.
 *
 * A line "INODE TAG" for each checkpoint of an earlier run. From this a run that replaces the
 * earlier one (ds_train --overwrite) knows what to remove once it has a checkpoint of its own, and
 * a run started again after a crash knows whose checkpoints it finds. The commit point is the name
 * of the first checkpoint that is not in the record: before it nothing is removed; after it,
 * whoever comes next ends the removal. Called by ds_train; the folder must be locked
 * (io/folder_lock.h).
 */
#ifndef DSI_CKPT_BEGUN_H
#define DSI_CKPT_BEGUN_H

#include <deepspeed/status.h>
#include <stdbool.h>

/* Writes the record of what is there now. */
ds_status dsi_ckpt_begun_write(ds_ctx *ctx, const char *dir);
/* Whether there is a record and a whole checkpoint that is not in it: of the run that began. */
ds_status dsi_ckpt_begun_has_new(ds_ctx *ctx, const char *dir, bool *has_new_out);
/* When there is such a one: makes `latest` name one of them and removes those of the record. */
ds_status dsi_ckpt_begun_settle(ds_ctx *ctx, const char *dir);
/* The run has ended: removes the record, best effort. */
void dsi_ckpt_begun_end(const char *dir);

#endif
