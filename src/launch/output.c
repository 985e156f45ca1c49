/* SPDX-License-Identifier: Apache-2.0 */
/* Prefixed lines, log files, last lines. See output.h. */
#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { LINE_CEILING = 1 << 16 }; /* longer lines are cut in pieces */

int dsi_write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EAGAIN) {
            (void)usleep(1000); /* somebody made the terminal non-blocking */
        } else if (done < 0 && errno != EINTR) {
            return errno;
        } else if (done > 0) {
            data += done;
            n -= (size_t)done;
        }
    }
    return 0;
}

static void to_terminal(dsi_terminal *terminal, int stream, const char *data, size_t n)
{
    if (n > 0 && !terminal->closed[stream]) {
        terminal->closed[stream] = dsi_write_all(terminal->fd[stream], data, n) != 0;
    }
}

static void to_log(dsi_output *output, const char *data, size_t n)
{
    if (output->log >= 0 && output->log_error == 0) {
        output->log_error = dsi_write_all(output->log, data, n);
    }
}

static void to_tail(dsi_output *output, const char *data, size_t n)
{
    if (n > DSI_TAIL_BYTES) {
        data += n - DSI_TAIL_BYTES;
        n = DSI_TAIL_BYTES;
    }
    for (size_t i = 0; i < n; ++i) {
        output->tail[(output->tail_start + output->tail_size) % DSI_TAIL_BYTES] = data[i];
        if (output->tail_size < DSI_TAIL_BYTES) {
            ++output->tail_size;
        } else {
            output->tail_start = (output->tail_start + 1) % DSI_TAIL_BYTES;
        }
    }
}

ds_status dsi_output_open(ds_ctx *ctx, dsi_terminal *terminal, const char *prefix, bool shown,
                          const char *log_path, dsi_output *output_out)
{
    int log = -1;
    if (log_path != NULL) {
        log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (log < 0) {
            return ds_fail(ctx, DS_ERR_IO, "%s: log file cannot be made: %s", log_path,
                           strerror(errno));
        }
    }
    *output_out = (dsi_output){.terminal = terminal,
                               .prefix = prefix,
                               .shown = shown,
                               .log = log,
                               .line = {dsi_buf_make(LINE_CEILING), dsi_buf_make(LINE_CEILING)}};
    return DS_OK;
}

/* Ends another's unfinished line before this output writes. */
static void take_terminal(dsi_output *output, int stream)
{
    dsi_terminal *terminal = output->terminal;
    if (terminal->owner != NULL && terminal->owner != &output->line[stream]) {
        to_terminal(terminal, stream, "\n", 1);
    }
    terminal->owner = NULL;
}

/* Whether the program wrote the prefix itself, as ds_log does on several ranks. */
static bool has_prefix(const dsi_output *output, const dsi_buf *line)
{
    const size_t n = strlen(output->prefix);
    return line->size >= n && memcmp(line->data, output->prefix, n) == 0;
}

/* Shows the line, which ends with '\n' or '\r', or is unfinished, in one write. */
static void show_line(dsi_output *output, int stream)
{
    dsi_buf *line = &output->line[stream];
    const size_t from = output->line_shown[stream];
    if (!output->shown || line->size == from) {
        return;
    }
    const bool continued = from > 0 && output->terminal->owner == line;
    take_terminal(output, stream);
    if (output->prefix[0] != '\0' && !continued && !(from == 0 && has_prefix(output, line))) {
        char text[LINE_CEILING + 256];
        const size_t n = strlen(output->prefix) < 256 ? strlen(output->prefix) : 255;
        memcpy(text, output->prefix, n);
        memcpy(text + n, line->data + from, line->size - from);
        to_terminal(output->terminal, stream, text, n + line->size - from);
    } else {
        to_terminal(output->terminal, stream, line->data + from, line->size - from);
    }
    if (line->data[line->size - 1] != '\n') {
        output->terminal->owner = line;
    }
    output->line_shown[stream] = line->size;
}

static void end_line(dsi_output *output, int stream)
{
    show_line(output, stream);
    output->line[stream].size = 0;
    output->line_shown[stream] = 0;
}

void dsi_output_feed(dsi_output *output, int stream, const char *data, size_t n)
{
    dsi_buf *line = &output->line[stream];
    to_log(output, data, n);
    to_tail(output, data, n);
    while (n > 0) {
        const bool bare = output->prefix[0] == '\0';
        size_t take = 0;
        while (take < n && data[take] != '\n' && !(bare && data[take] == '\r')) {
            ++take;
        }
        const bool ended = take < n;
        take += ended ? 1 : 0;
        const size_t room = LINE_CEILING - line->size;
        const size_t piece = take < room ? take : room;
        dsi_buf_append(line, data, piece);
        if (line->failed) { /* out of memory: the bytes are in the log, the line is lost */
            dsi_buf_clear(line);
        } else if (line->size == LINE_CEILING || (ended && piece == take)) {
            end_line(output, stream);
        }
        data += piece;
        n -= piece;
    }
}

void dsi_output_idle(dsi_output *output)
{
    for (int stream = 0; stream < 2 && output->prefix[0] == '\0'; ++stream) {
        show_line(output, stream);
    }
}

void dsi_output_finish(dsi_output *output)
{
    for (int stream = 0; stream < 2; ++stream) {
        dsi_buf *line = &output->line[stream];
        const bool open = output->shown && (line->size > 0 || output->terminal->owner == line);
        if (open) {
            dsi_buf_putc(line, '\n');
            end_line(output, stream);
        }
        dsi_buf_clear(line);
        output->line_shown[stream] = 0;
    }
}

void dsi_output_close(dsi_output *output)
{
    dsi_buf_free(&output->line[0]);
    dsi_buf_free(&output->line[1]);
    if (output->log >= 0) {
        (void)close(output->log);
    }
    output->log = -1;
}

static char tail_at(const dsi_output *output, size_t i)
{
    return output->tail[(output->tail_start + i) % DSI_TAIL_BYTES];
}

void dsi_output_tail(const dsi_output *output, const char *indent, dsi_buf *buf)
{
    size_t end = output->tail_size;
    while (end > 0 && tail_at(output, end - 1) == '\n') {
        --end;
    }
    size_t start = end;
    for (int lines = 0; start > 0; --start) {
        lines += tail_at(output, start - 1) == '\n' ? 1 : 0;
        if (lines == DSI_TAIL_LINES) {
            break;
        }
    }
    bool at_start = true;
    for (size_t i = start; i < end; ++i) {
        const char c = tail_at(output, i);
        if (at_start) {
            dsi_buf_puts(buf, indent);
        }
        at_start = c == '\n';
        dsi_buf_putc(buf, c == '\n' || c == '\t' || (c & 0xe0) != 0 ? (c == 127 ? '?' : c) : '?');
    }
    if (end > 0) {
        dsi_buf_putc(buf, '\n');
    }
}
