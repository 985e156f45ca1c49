/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write and read them; for tools that handle files. */
#ifndef DSI_TOOLS_SIZE_TEXT_H
#define DSI_TOOLS_SIZE_TEXT_H

#include <deepspeed/status.h>
#include <stddef.h>
#include <stdint.h>

/* "12.3 MB", powers of ten; returns text. */
const char *size_text(uint64_t bytes, char *text, size_t n);

/* Bytes of "5GB", "200MB", "1.5TB", "10KB" (powers of ten, as huggingface_hub reads them) or
 * "123456"; "0" means no limit. Errors: ERR_ARG names the flag. */
ds_status size_parse(ds_ctx *ctx, const char *flag, const char *text, uint64_t *bytes_out);

/* Bytes of "64M", "64MiB", "1G", "8" (powers of 1024). Errors: ERR_ARG names the flag. */
ds_status size_parse_binary(ds_ctx *ctx, const char *flag, const char *text, uint64_t *bytes_out);

#endif
