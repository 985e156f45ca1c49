/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte string with a ceiling: for building texts and reading files. */
#ifndef DSI_BASE_BUF_H
#define DSI_BASE_BUF_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct dsi_buf {
    char *data; /* always terminated by a zero byte that size does not count; NULL when empty */
    size_t size;
    size_t capacity;
    size_t ceiling; /* bytes; an append past it sets `failed` */
    bool failed;    /* sticky: out of memory or past the ceiling; later appends do nothing */
} dsi_buf;

dsi_buf dsi_buf_make(size_t ceiling);
void dsi_buf_free(dsi_buf *buf); /* leaves an empty buffer */
void dsi_buf_append(dsi_buf *buf, const void *data, size_t n);
void dsi_buf_puts(dsi_buf *buf, const char *text);
void dsi_buf_putc(dsi_buf *buf, char c);
void dsi_buf_printf(dsi_buf *buf, const char *format, ...) DS_PRINTF(2, 3);
/* Appends text as the inside of a JSON string, escaped. */
void dsi_buf_json(dsi_buf *buf, const char *text, size_t n);
/* The text, "" when empty. */
const char *dsi_buf_text(const dsi_buf *buf);
void dsi_buf_clear(dsi_buf *buf);

/* Appends a whole file, or what comes through a pipe; one that nobody writes to is waited for,
 * which is said after a second. Errors: ERR_NOT_FOUND, ERR_IO (names path and reason), ERR_LIMIT.
 */
ds_status dsi_buf_read_file(ds_ctx *ctx, const char *path, dsi_buf *buf);

#endif
