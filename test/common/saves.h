/* SPDX-License-Identifier: Apache-2.0 */
/* A small checkpoint whose every value tells its step; for tests that disturb saves. */
#ifndef DS_TEST_SAVES_H
#define DS_TEST_SAVES_H

#include <deepspeed/checkpoint.h>

/* Saves step `step` under tag (NULL: global_step{N}) with n_values f32 values. */
ds_status saves_save(ds_ctx *ctx, const char *dir, const char *tag, uint64_t step, int64_t n_values,
                     bool allow_exchange);

/* Opens tag (NULL: latest), verifies every checksum and value, and gives its step. */
ds_status saves_check(ds_ctx *ctx, const char *dir, const char *tag, uint64_t *step_out);

#endif
