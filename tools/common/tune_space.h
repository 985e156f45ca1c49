/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that ds_nvme_tune tries: a list of values for each key, all combinations. */
#ifndef DSI_TOOLS_TUNE_SPACE_H
#define DSI_TOOLS_TUNE_SPACE_H

#include <deepspeed/aio.h>

enum { TUNE_KEYS = 5, TUNE_VALUES = 16 };

typedef struct tune_space {
    uint64_t values[TUNE_KEYS][TUNE_VALUES]; /* switches: 0 and 1 */
    size_t n[TUNE_KEYS];
} tune_space;

/* Reads a JSON object of lists: block_size (bytes, or text such as "1M"), queue_depth, io_parallel,
 * single_submit, sequential_requests. A key that is left out has the section's default as its one
 * value. path NULL: the default space. Errors: ERR_NOT_FOUND, ERR_IO, ERR_CONFIG (names key, value,
 * what is expected). */
ds_status tune_space_read(ds_ctx *ctx, const char *path, tune_space *space_out);
size_t tune_space_size(const tune_space *space);
ds_aio_params tune_space_at(const tune_space *space, size_t index);

#endif
