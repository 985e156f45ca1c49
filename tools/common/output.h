/* SPDX-License-Identifier: Apache-2.0 */
/* What a tool prints or writes reaches its reader, or the tool fails: a full disk is an error and
 * no silence, and costs no file that was there before. */
#ifndef DSI_TOOLS_OUTPUT_H
#define DSI_TOOLS_OUTPUT_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

/* Every main() calls it first: standard output becomes fit for a terminal (terminal.h), and when
 * the process ends it is flushed. If anything of it was lost, that is said on standard error and an
 * exit code of 0 becomes 1. program: its name, kept, not copied. */
void output_guard(const char *program);

/* Whether output_put can put a file there: before the work whose result it will hold. Errors:
 * ERR_NOT_FOUND (the folder), ERR_IO. */
ds_status output_check(ds_ctx *ctx, const char *path);

/* Refuses an output that is one of the files read, under whatever name; NULL paths are none.
 * Error: ERR_ARG. */
ds_status output_not_input(ds_ctx *ctx, const char *path, const char *const *inputs, size_t n);

/* Refuses an output that would replace a file with content, unless `overwrite` was said or the file
 * begins with `mark`, by which the tool knows what it can make again; mark NULL: nothing is known.
 * path NULL and "-" are none; pipes and devices hold nothing to lose. Errors: ERR_ARG; as
 * dsi_place_look. */
ds_status output_free(ds_ctx *ctx, const char *path, const char *mark, bool overwrite);
/* The same of a folder that would get the files of a model: one that holds weights, a config.json
 * or a tokenizer is refused, unless `overwrite` was said. */
ds_status output_folder_free(ds_ctx *ctx, const char *folder, bool overwrite);
/* The first name in the folder that is a file of a model; NULL: none. From malloc. */
char *output_model_file(ds_ctx *ctx, const char *folder);

/* Writes a file whole, or leaves what was there. "-" is standard output; a pipe or a device is
 * written to; a link stays one. Errors: ERR_IO, ERR_NOT_FOUND (the folder). */
ds_status output_put(ds_ctx *ctx, const char *path, const char *text, size_t n);

#endif
