/* SPDX-License-Identifier: Apache-2.0 */
/* Standard output to a terminal. See terminal.h. */
#include "common/terminal.h"

#include "base/plain.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 4 /* bytes of a character */, PIECE = 1024 };

/* The first bytes of a character whose rest comes with the next write. */
typedef struct tail {
    char bytes[LONGEST];
    size_t n;
} tail;

static tail kept; /* standard output is one; a stream's functions get it as their cookie */

static bool write_all(const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t done = write(STDOUT_FILENO, data, n);
        if (done < 0 && errno != EINTR) {
            return false;
        }
        data += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

static bool show(const char *text, size_t n)
{
    char out[4 * PIECE];
    while (n > 0) {
        const size_t used = dsi_plain(text, n, out, sizeof out);
        if (!write_all(out, strlen(out))) {
            return false;
        }
        text += used;
        n -= used;
    }
    return true;
}

/* How many bytes at the end of text may be the beginning of a character. */
static size_t unfinished(const char *text, size_t n)
{
    for (size_t back = 1; back < LONGEST && back <= n; ++back) {
        const unsigned char c = (unsigned char)text[n - back];
        if (c >= 0xC0) {
            const size_t bytes = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
            return bytes > back ? back : 0;
        }
        if (c < 0x80) {
            return 0;
        }
    }
    return 0;
}

static ssize_t write_plain(void *cookie, const char *data, size_t n)
{
    tail *t = cookie;
    char text[PIECE + LONGEST];
    for (size_t at = 0; at < n;) {
        const size_t part = n - at < PIECE ? n - at : PIECE;
        memcpy(text, t->bytes, t->n);
        memcpy(text + t->n, data + at, part);
        const size_t all = t->n + part;
        const size_t left = unfinished(text, all);
        if (!show(text, all - left)) {
            return 0;
        }
        memcpy(t->bytes, text + all - left, left);
        t->n = left;
        at += part;
    }
    return (ssize_t)n;
}

static int close_plain(void *cookie)
{
    const tail *t = cookie;
    return show(t->bytes, t->n) ? 0 : EOF;
}

void terminal_plain(void)
{
    const cookie_io_functions_t functions = {.write = write_plain, .close = close_plain};
    if (isatty(STDOUT_FILENO) == 0) {
        return;
    }
    FILE *stream = fopencookie(&kept, "w", functions);
    if (stream != NULL) {
        (void)setvbuf(stream, NULL, _IOLBF, BUFSIZ);
        stdout = stream;
    }
}
