/* SPDX-License-Identifier: Apache-2.0 */
/* The growable byte string. */
#include "base/buf.h"

#include <deepspeed/context.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

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

/* Waits until a pipe has bytes or has ended; says after a second what is waited for. */
static void wait_for_bytes(ds_ctx *ctx, const char *path, struct pollfd *one, bool *told)
{
    enum { TELL_MILLISECONDS = 1000 };
    while (poll(one, 1, *told ? -1 : TELL_MILLISECONDS) <= 0) {
        if (!*told && isatty(one->fd) == 0) {
            ds_log(ctx, DS_LOG_WARN, "waits for a process to write to the pipe %s", path);
        }
        *told = true;
    }
}

/* A pipe with a name, whose writer may come yet; a pipe without name and writer has ended. */
static bool is_named_pipe(int fd)
{
    enum { PIPE_FILE_SYSTEM = 0x50495045 };
    struct stat st;
    struct statfs system;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && fstatfs(fd, &system) == 0 &&
           system.f_type != PIPE_FILE_SYSTEM;
}

/* 0, or an errno; E2BIG: past the ceiling. */
static int read_all(ds_ctx *ctx, const char *path, int fd, dsi_buf *buf)
{
    char chunk[16384];
    bool told = false;
    bool may_begin = is_named_pipe(fd);
    struct pollfd one = {.fd = fd, .events = POLLIN};
    for (;;) {
        const ssize_t n = read(fd, chunk, sizeof chunk);
        if (n > 0) {
            may_begin = false;
            dsi_buf_append(buf, chunk, (size_t)n);
            if (buf->failed) {
                return E2BIG;
            }
        } else if (n == 0 && (!may_begin || (one.revents & POLLHUP) != 0)) {
            return 0;
        } else if (n == 0 || errno == EAGAIN) {
            wait_for_bytes(ctx, path, &one, &told);
        } else if (errno != EINTR) {
            return errno;
        }
    }
}

ds_status dsi_buf_read_file(ds_ctx *ctx, const char *path, dsi_buf *buf)
{
    /* a pipe that nobody writes to opens at once, and waits where it can say so */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return ds_fail(ctx, errno == ENOENT ? DS_ERR_NOT_FOUND : DS_ERR_IO, "cannot open %s: %s",
                       path, strerror(errno));
    }
    const int reason = read_all(ctx, path, fd, buf);
    (void)close(fd);
    if (reason == E2BIG) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s is larger than the limit of %zu bytes", path,
                       buf->ceiling);
    }
    if (reason != 0) {
        return ds_fail(ctx, DS_ERR_IO, "cannot read %s: %s", path, strerror(reason));
    }
    return DS_OK;
}
