/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that are taken for our checkpoints and are others'. Called where none was found. */
#ifndef DSI_CKPT_FOREIGN_H
#define DSI_CKPT_FOREIGN_H

#include <deepspeed/status.h>
#include <stdbool.h>

/* ERR_UNSUPPORTED when dir/tag (tag NULL or "": what `latest` names, dir itself, a folder in it) is
 * a checkpoint of DeepSpeed for Python, or dir a model folder with pickles alone; the message says
 * what it is and what works. Else DS_OK. */
ds_status dsi_ckpt_foreign(ds_ctx *ctx, const char *dir, const char *tag);

/* The number of data-parallel ranks by its files, where the folder is one of ZeRO that can be read
 * (not universal; a pipeline's and one with experts below stage 3 and without tensor parallelism,
 * not both), and that of the ranks or stages that share the model; else 0. */
int dsi_ckpt_foreign_zero_ranks(const char *folder, int *n_model_out, bool *pipeline_out,
                                bool *experts_out);

/* The number of ranks or stages that share the model, by the names of its files, where it is a
 * universal one (without files of experts), at least 1; else 0. */
int dsi_ckpt_foreign_universal(const char *folder);

#endif
