/* The growable byte string. */
#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dsi_buf dsi_buf_make(size_t ceiling)
{
    return (dsi_buf){.ceiling = ceiling};
}

void dsi_buf_free(dsi_buf *buf)
{
    free(buf->data);
    *buf = (dsi_buf){.ceiling = buf->ceiling};
}

void dsi_buf_clear(dsi_buf *buf)
{
    buf->size = 0;
    buf->failed = false;
    if (buf->data != NULL) {
        buf->data[0] = '\0';
    }
}

const char *dsi_buf_text(const dsi_buf *buf)
{
    return buf->data != NULL ? buf->data : "";
}

/* Makes room for n more bytes and the terminator. */
static bool reserve(dsi_buf *buf, size_t n)
{
    if (buf->failed || n > buf->ceiling || buf->size > buf->ceiling - n) {
        buf->failed = true;
        return false;
    }
    const size_t need = buf->size + n + 1;
    if (need <= buf->capacity) {
        return true;
    }
    size_t capacity = buf->capacity < 256 ? 256 : buf->capacity * 2;
    capacity = capacity < need ? need : capacity;
    char *data = realloc(buf->data, capacity);
    if (data == NULL) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

void dsi_buf_append(dsi_buf *buf, const void *data, size_t n)
{
    if (reserve(buf, n)) {
        if (n > 0) {
            memcpy(buf->data + buf->size, data, n);
        }
        buf->size += n;
        buf->data[buf->size] = '\0';
    }
}

void dsi_buf_puts(dsi_buf *buf, const char *text)
{
    dsi_buf_append(buf, text, strlen(text));
}

void dsi_buf_putc(dsi_buf *buf, char c)
{
    dsi_buf_append(buf, &c, 1);
}

void dsi_buf_printf(dsi_buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && reserve(buf, (size_t)n)) {
        (void)vsnprintf(buf->data + buf->size, (size_t)n + 1, format, again);
        buf->size += (size_t)n;
    }
    va_end(again);
}

void dsi_buf_json(dsi_buf *buf, const char *text, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') {
            dsi_buf_putc(buf, '\\');
            dsi_buf_putc(buf, (char)c);
        } else if (c == '\n') {
            dsi_buf_puts(buf, "\\n");
        } else if (c == '\t') {
            dsi_buf_puts(buf, "\\t");
        } else if (c == '\r') {
            dsi_buf_puts(buf, "\\r");
        } else if (c < 0x20) {
            dsi_buf_printf(buf, "\\u%04x", c);
        } else {
            dsi_buf_putc(buf, (char)c);
        }
    }
}

ds_status dsi_buf_read_file(ds_ctx *ctx, const char *path, dsi_buf *buf)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return ds_fail(ctx, errno == ENOENT ? DS_ERR_NOT_FOUND : DS_ERR_IO, "cannot open %s: %s",
                       path, strerror(errno));
    }
    char chunk[16384];
    size_t n = 0;
    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0) {
        dsi_buf_append(buf, chunk, n);
        if (buf->failed) {
            (void)fclose(file);
            return ds_fail(ctx, DS_ERR_LIMIT, "%s is larger than the limit of %zu bytes", path,
                           buf->ceiling);
        }
    }
    const int failed = ferror(file);
    const int reason = errno;
    (void)fclose(file);
    if (failed) {
        return ds_fail(ctx, DS_ERR_IO, "cannot read %s: %s", path, strerror(reason));
    }
    return DS_OK;
}
