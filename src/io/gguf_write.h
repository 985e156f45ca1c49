/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files, written: version 3, little-endian, data aligned to 32. Entries are collected, tensors
 * named, then all is written, a few rows at a time, and put in its place.
 *
 * Thread rule: one thread uses a dsi_gguf_out; rows are encoded on the context's threads.
 */
#ifndef DSI_IO_GGUF_WRITE_H
#define DSI_IO_GGUF_WRITE_H

#include "io/gguf.h"

typedef struct dsi_gguf_out dsi_gguf_out;

/* The caller owns *out_out; ctx must outlive it. Errors: ERR_NOMEM. */
ds_status dsi_gguf_out_create(ds_ctx *ctx, dsi_gguf_out **out_out);
void dsi_gguf_out_destroy(dsi_gguf_out **out);

/* Entries; keys and texts are copied. Out of memory shows in dsi_gguf_out_write. */
void dsi_gguf_out_u32(dsi_gguf_out *out, const char *key, uint32_t value);
void dsi_gguf_out_f32(dsi_gguf_out *out, const char *key, float value);
void dsi_gguf_out_bool(dsi_gguf_out *out, const char *key, bool value);
void dsi_gguf_out_text(dsi_gguf_out *out, const char *key, const char *text, size_t n);
/* A list of n elements of a kind, which the next n calls append. */
void dsi_gguf_out_list(dsi_gguf_out *out, const char *key, dsi_gguf_kind kind, size_t n);
void dsi_gguf_out_append_text(dsi_gguf_out *out, const char *text, size_t n);
void dsi_gguf_out_append_i32(dsi_gguf_out *out, int32_t value);
void dsi_gguf_out_append_f32(dsi_gguf_out *out, float value);
/* One of another file, as it is. */
void dsi_gguf_out_copy(dsi_gguf_out *out, const dsi_gguf_entry *entry);

/* Where a tensor's rows come from: bytes that are of its type, else values to encode. */
typedef struct dsi_gguf_rows {
    ds_status (*read)(void *user, int64_t row, float *out);
    const uint8_t *(*stored)(void *user, int64_t row); /* default NULL; may return NULL */
    void *user;
} dsi_gguf_rows;

/* A tensor of `dtype`, whose rows (of its last dim) are whole blocks. */
ds_status dsi_gguf_out_tensor(dsi_gguf_out *out, const char *name, ds_meta meta,
                              const dsi_gguf_rows *rows);
/* Writes `path`, staged, then renamed. `check` (default NULL) looks at all of it, under the name
 * that it has until then, and an error of it leaves what was there. Errors: those of rows and
 * check; ERR_NUMERIC (a value that is not finite, or beyond the type, by its tensor), ERR_IO,
 * ERR_NOMEM; ERR_UNSUPPORTED (a pipe or a device, beside check). */
ds_status dsi_gguf_out_write(dsi_gguf_out *out, const char *path,
                             ds_status (*check)(void *user, const char *staged), void *user);

#endif
