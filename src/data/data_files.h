/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a word of --data stands for: a file, a folder, or a pattern. See data_files.c.
 * Called by the tools before anything is opened. */
#ifndef DSI_DATA_FILES_H
#define DSI_DATA_FILES_H

#include <deepspeed/status.h>
#include <stddef.h>

/* Words, and the files that they stand for: word w has paths[begin[w]] to paths[begin[w+1] - 1]. */
typedef struct dsi_data_files {
    char **paths;
    size_t n;
    size_t *begin; /* [n_words + 1] */
    size_t n_words;
} dsi_data_files;

/* The data files of each word, in order; of one word never none, and sorted by their bytes. The
 * caller frees the list.
 *
 *   a file    itself, whatever its name: who reads it judges the ending
 *   a folder  all data files in it and in the folders below, links followed. Known by the ending:
 *             rows, .txt, and .bin with its .idx. Left out are hidden files and folders, other
 *             endings, and what data sets carry beside their rows (dataset_info.json, README.txt …)
 *   a pattern ("part-*.jsonl", where no file has that name) each match in turn, of files those
 *             that a folder would take; * ? [] do not match a slash or a leading dot
 *
 * What is left out is said in one line. Errors: ERR_NOT_FOUND (nothing there, no match), ERR_ARG
 * (no data file in it, a pattern with **), ERR_IO, ERR_LIMIT (folders nested too deep), ERR_NOMEM.
 */
ds_status dsi_data_files_list(ds_ctx *ctx, const char *const *words, size_t n_words,
                              dsi_data_files *files_out);
/* Accepts an empty list. */
void dsi_data_files_free(dsi_data_files *files);

#endif
