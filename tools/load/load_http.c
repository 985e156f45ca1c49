/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP answer read as its bytes come (RFC 9112), with chunks and a stream's frames (HTML
 * standard, server-sent events: lines "data: …", an empty line ends a frame). See load.h. */
#include "load/load.h"

#include "base/escape.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HEAD_CEILING = 1 << 16, BODY_CEILING = 1 << 24 };

void load_http_begin(load_http *h)
{
    dsi_buf line = h->line.ceiling > 0 ? h->line : dsi_buf_make(HEAD_CEILING);
    dsi_buf body = h->body.ceiling > 0 ? h->body : dsi_buf_make(BODY_CEILING);
    dsi_buf_clear(&line);
    dsi_buf_clear(&body);
    *h = (load_http){.line = line, .body = body};
}

void load_http_free(load_http *h)
{
    dsi_buf_free(&h->line);
    dsi_buf_free(&h->body);
}

static bool bad(load_http *h, const char *what)
{
    h->error = what;
    return false;
}

/* The value of a header line "Name: value"; NULL: another one. */
static const char *value_of(const char *line, const char *name)
{
    const size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') {
        return NULL;
    }
    return line + n + 1 + strspn(line + n + 1, " \t");
}

static bool take_status(load_http *h, const char *line)
{
    if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12 || line[8] != ' ') {
        return bad(h, "no HTTP answer");
    }
    h->status = (int)strtol(line + 9, NULL, 10);
    h->closes = line[7] == '0';
    h->until_end = true;
    return h->status >= 100 && h->status <= 999 ? true : bad(h, "no HTTP status");
}

static bool take_header(load_http *h, const char *line, void *user)
{
    const char *value = NULL;
    if (h->status == 0) {
        return take_status(h, line);
    }
    if (h->header != NULL) {
        h->header(user, line);
    }
    if ((value = value_of(line, "Transfer-Encoding")) != NULL) {
        h->chunked = strcasestr(value, "chunked") != NULL;
        h->until_end = h->until_end && !h->chunked;
    } else if ((value = value_of(line, "Content-Length")) != NULL) {
        char *end = NULL;
        h->left = strtoll(value, &end, 10);
        h->until_end = false;
        return end != value && h->left >= 0 ? true : bad(h, "a bad Content-Length");
    } else if ((value = value_of(line, "Content-Type")) != NULL) {
        h->events = strncasecmp(value, "text/event-stream", 17) == 0;
    } else if ((value = value_of(line, "Connection")) != NULL) {
        h->closes = strncasecmp(value, "close", 5) == 0 || h->closes;
    }
    return true;
}

static void end_head(load_http *h)
{
    const bool interim = h->status >= 100 && h->status < 200;
    if (interim) {
        h->status = 0;
        return;
    }
    h->place = h->chunked ? LOAD_HTTP_SIZE : LOAD_HTTP_BODY;
    h->closes = h->closes || h->until_end;
    if (!h->chunked && !h->until_end && h->left == 0) {
        h->place = LOAD_HTTP_DONE;
    }
}

static bool take_size(load_http *h, const char *line)
{
    int64_t size = 0;
    size_t n = 0;
    for (; dsi_hex_digit(line[n]) >= 0 && n < 12; ++n) {
        size = size * 16 + dsi_hex_digit(line[n]);
    }
    if (n == 0 || (line[n] != '\0' && line[n] != ';' && line[n] != ' ')) {
        return bad(h, "a chunk without its size");
    }
    h->left = size;
    h->place = size > 0 ? LOAD_HTTP_CHUNK : LOAD_HTTP_TAIL;
    return true;
}

/* A line without its end. */
static bool take_line(load_http *h, const char *line, void *user)
{
    switch (h->place) {
    case LOAD_HTTP_HEAD:
        if (line[0] == '\0' && h->status != 0) {
            end_head(h);
            return true;
        }
        return line[0] == '\0' ? true : take_header(h, line, user);
    case LOAD_HTTP_SIZE:
        return take_size(h, line);
    case LOAD_HTTP_CRLF:
        h->place = LOAD_HTTP_SIZE;
        return line[0] == '\0' ? true : bad(h, "a chunk that is longer than its size");
    case LOAD_HTTP_TAIL:
        h->place = line[0] == '\0' ? LOAD_HTTP_DONE : LOAD_HTTP_TAIL;
        return true;
    case LOAD_HTTP_CHUNK:
    case LOAD_HTTP_BODY:
    case LOAD_HTTP_DONE:
        break;
    }
    return true;
}

/* Whole lines of the stream that are in the body. Frames of several data lines are joined by
 * nobody here: OpenAI's have one. */
static bool take_events(load_http *h, load_take_fn take, void *user)
{
    size_t begin = 0;
    for (;;) {
        char *line = h->body.data + begin;
        char *end = h->body.size > begin ? memchr(line, '\n', h->body.size - begin) : NULL;
        if (end == NULL) {
            break;
        }
        size_t n = (size_t)(end - line);
        begin += n + 1;
        n -= n > 0 && line[n - 1] == '\r';
        if (n >= 5 && memcmp(line, "data:", 5) == 0) {
            const size_t skip = n > 5 && line[5] == ' ' ? 6 : 5;
            if (!take(user, line + skip, n - skip)) {
                return false;
            }
        }
    }
    if (begin > 0) {
        memmove(h->body.data, h->body.data + begin, h->body.size - begin + 1);
        h->body.size -= begin;
    }
    return true;
}

static bool take_bytes(load_http *h, const char *data, size_t n, load_take_fn take, void *user)
{
    if (h->raw) {
        return n == 0 || take(user, data, n);
    }
    dsi_buf_append(&h->body, data, n);
    if (h->body.failed) {
        return bad(h, "an answer that is too long");
    }
    return h->events ? take_events(h, take, user) : true;
}

static bool finish(load_http *h, load_take_fn take, void *user)
{
    const bool whole = h->place == LOAD_HTTP_DONE && !h->events && h->body.size > 0;
    if (!whole) {
        return true;
    }
    const bool goes_on = take(user, h->body.data, h->body.size);
    dsi_buf_clear(&h->body);
    return goes_on;
}

/* The first bytes of TLS's alerts and handshakes. */
static bool is_tls(const load_http *h, const char *data, size_t n)
{
    return h->place == LOAD_HTTP_HEAD && h->status == 0 && h->line.size == 0 && n > 1 &&
           (data[0] == 0x15 || data[0] == 0x16) && data[1] == 0x03;
}

bool load_http_feed(load_http *h, const char *data, size_t n, load_take_fn take, void *user)
{
    const char *end = data + n;
    if (is_tls(h, data, n)) {
        return bad(h, "it speaks TLS there: ask it by https://");
    }
    while (data < end && h->place != LOAD_HTTP_DONE) {
        if (h->place == LOAD_HTTP_CHUNK || h->place == LOAD_HTTP_BODY) {
            const size_t room = (size_t)(end - data);
            const size_t part = h->until_end || (uint64_t)h->left > room ? room : (size_t)h->left;
            if (!take_bytes(h, data, part, take, user)) {
                return false;
            }
            data += part;
            h->left -= h->until_end ? 0 : (int64_t)part;
            if (!h->until_end && h->left == 0) {
                h->place = h->place == LOAD_HTTP_CHUNK ? LOAD_HTTP_CRLF : LOAD_HTTP_DONE;
            }
            continue;
        }
        const char *newline = memchr(data, '\n', (size_t)(end - data));
        const size_t part = (size_t)((newline != NULL ? newline : end) - data);
        dsi_buf_append(&h->line, data, part);
        data += part + (newline != NULL);
        if (h->line.failed) {
            return bad(h, "a head that is too long");
        }
        if (newline != NULL) {
            if (h->line.size > 0 && h->line.data[h->line.size - 1] == '\r') {
                h->line.data[--h->line.size] = '\0';
            }
            const bool good = take_line(h, dsi_buf_text(&h->line), user);
            dsi_buf_clear(&h->line);
            if (!good) {
                return false;
            }
        }
    }
    if (data < end) {
        return bad(h, "bytes behind the answer");
    }
    return finish(h, take, user);
}

bool load_http_end(load_http *h, load_take_fn take, void *user)
{
    if (h->place == LOAD_HTTP_BODY && h->until_end) {
        h->place = LOAD_HTTP_DONE;
    }
    return h->place == LOAD_HTTP_DONE && finish(h, take, user);
}
