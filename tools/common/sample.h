/* SPDX-License-Identifier: Apache-2.0 */
/* Text from a model folder to standard output: ds_generate, and ds_train's sample. */
#ifndef DSI_TOOLS_SAMPLE_H
#define DSI_TOOLS_SAMPLE_H

#include <deepspeed/infer.h>
#include <deepspeed/tokenizer.h>
#include <stdio.h>

/* Streams up to n tokens behind a prompt of ids to `stream`, ending at an eos id. *n_out and
 * *seconds_out (either may be NULL): tokens drawn and the time of drawing. */
ds_status sample_stream(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                        const uint32_t *ids, size_t n_ids, int64_t n, const ds_sampling *sampling,
                        FILE *stream, int64_t *n_out, double *seconds_out);

/* Opens a model folder, prints prompt and sample (temperature 0.8, top-p 0.95). */
ds_status sample_from_folder(ds_ctx *ctx, const char *dir, const char *prompt, int64_t n,
                             const char *accelerator);

#endif
