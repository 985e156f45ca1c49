/* SPDX-License-Identifier: Apache-2.0 */
/* Files that ranks read for themselves must have the same content: a stale copy on one host is
 * another model (LAW 5).
 *
 * What is one file on one host (device and inode) is not read. Of every other one each host reads
 * each byte once, its ranks sharing the work by pieces, and hashes of the pieces are compared.
 */
#ifndef DSI_TRAIN_SAME_FILES_H
#define DSI_TRAIN_SAME_FILES_H

#include "comm/comm.h"

/* Compares the i-th file of each rank with the i-th of the others. Collective; comm NULL: one rank.
 * what: what the files are, as in "another MODEL FOLDER than rank 0". Errors: ERR_PEER on every
 * rank names the first file that differs and the first rank that has another than rank 0. */
ds_status dsi_same_files(ds_ctx *ctx, dsi_comm *comm, const char *const *paths, uint32_t n_paths,
                         const char *what);

/* The same of files whose names count, too. */
ds_status dsi_same_names(ds_ctx *ctx, dsi_comm *comm, const char *const *paths, uint32_t n_paths,
                         const char *what);

/* The same for the files of a folder that a model is read from: *.safetensors, *.json, *.jinja,
 * *.txt, *.model. folder NULL: none. A path of a file: that file. */
ds_status dsi_same_folder(ds_ctx *ctx, dsi_comm *comm, const char *folder, const char *what);

#endif
