/* SPDX-License-Identifier: Apache-2.0 */
/* What the processes of a job write: to the terminal with a prefix, to a log file each, and the
 * last lines kept for a report. Called by supervise.c.
 *
 * Lines of different processes never mix: a line is written in one piece. A process without prefix
 * also shows lines that are not ended yet (progress bars, prompts); another's line then starts on a
 * new one.
 */
#ifndef DSI_LAUNCH_OUTPUT_H
#define DSI_LAUNCH_OUTPUT_H

#include "base/buf.h"

enum { DSI_TAIL_BYTES = 16384, DSI_TAIL_LINES = 20 };

/* The terminal, or what stdout and stderr are; shared by the outputs of a job. */
typedef struct dsi_terminal {
    int fd[2];         /* of output and errors */
    const void *owner; /* whose unfinished line stands on it; NULL: at the start of a line */
    bool closed[2];    /* writing failed: nobody reads any more */
} dsi_terminal;

typedef struct dsi_output {
    dsi_terminal *terminal; /* borrowed */
    const char *prefix;     /* borrowed; "" for none */
    bool shown;             /* on the terminal */
    int log;                /* file; -1: none */
    int log_error;          /* errno of a write that failed; 0: none. Reported once by the owner */
    dsi_buf line[2];        /* unfinished lines of output and errors */
    size_t line_shown[2];   /* bytes of it on the terminal already */
    char tail[DSI_TAIL_BYTES]; /* ring of the newest bytes */
    size_t tail_start, tail_size;
} dsi_output;

/* log_path NULL: no file. Errors: ERR_IO names the path. */
ds_status dsi_output_open(ds_ctx *ctx, dsi_terminal *terminal, const char *prefix, bool shown,
                          const char *log_path, dsi_output *output_out);
/* Takes n bytes of stream 0 (output) or 1 (errors). */
void dsi_output_feed(dsi_output *output, int stream, const char *data, size_t n);
/* Nothing came for a while: shows the unfinished line of a process without prefix. */
void dsi_output_idle(dsi_output *output);
/* Writes what is unfinished, with a newline. */
void dsi_output_finish(dsi_output *output);
void dsi_output_close(dsi_output *output);

/* Writes n bytes, in as many pieces as it takes, waiting where that would block. 0, or the errno
 * that stopped it. */
int dsi_write_all(int fd, const char *data, size_t n);

/* Appends the last lines, at most DSI_TAIL_LINES, each after `indent` and ended by a newline.
 * Control characters are shown as '?', so that a report never moves the cursor. */
void dsi_output_tail(const dsi_output *output, const char *indent, dsi_buf *buf);

#endif
