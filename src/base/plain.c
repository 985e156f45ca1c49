/* SPDX-License-Identifier: Apache-2.0 */
/* Text without control characters. See plain.h. */
#include "base/plain.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ESCAPE_BYTES = 8, MORE_BYTES = 48 };

/* The character at text and its bytes; 0 bytes: no UTF-8 (short, too long for its value, a
 * surrogate, past the last character). */
static size_t decode(const unsigned char *text, size_t n, uint32_t *code_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char first = text[0];
    const size_t bytes = first < 0x80   ? 1
                         : first < 0xC0 ? 0
                         : first < 0xE0 ? 2
                         : first < 0xF0 ? 3
                         : first < 0xF8 ? 4
                                        : 0;
    if (bytes == 0 || bytes > n) {
        return 0;
    }
    uint32_t code = bytes == 1 ? first : first & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
        if ((text[i] & 0xC0) != 0x80) {
            return 0;
        }
        code = code << 6 | (text[i] & 0x3Fu);
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (code < least[bytes] || code > 0x10FFFF || surrogate) {
        return 0;
    }
    *code_out = code;
    return bytes;
}

/* Marks, embeddings, overrides and isolates of direction; separators of lines and paragraphs. */
static bool is_invisible(uint32_t code)
{
    return code == 0x061C || (code >= 0x200E && code <= 0x200F) ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) ||
           code == 0xFEFF;
}

static bool is_control(uint32_t code, bool in_name)
{
    const bool kept = !in_name && (code == '\n' || code == '\t');
    return !kept && (code < 0x20 || (code >= 0x7F && code < 0xA0));
}

static size_t escape(const char *text, size_t n, bool in_name, char *out, size_t room)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t used = 0;
    size_t at = 0;
    while (at < n) {
        char one[ESCAPE_BYTES + 1];
        uint32_t code = 0;
        const size_t wide = decode(bytes + at, n - at, &code);
        size_t written = wide;
        if (wide == 0 || is_control(code, in_name)) {
            written = (size_t)snprintf(one, sizeof one, "\\x%02x", wide == 0 ? bytes[at] : code);
        } else if (is_invisible(code)) {
            written = (size_t)snprintf(one, sizeof one, "\\u%04x", code);
        } else {
            memcpy(one, text + at, wide);
        }
        if (used + written >= room) {
            break;
        }
        memcpy(out + used, one, written);
        used += written;
        at += wide > 0 ? wide : 1;
    }
    out[used] = '\0';
    return at;
}

size_t dsi_plain(const char *text, size_t n, char *out, size_t room)
{
    return escape(text, n, false, out, room);
}

const char *dsi_plain_name(const char *name, char *out, size_t room)
{
    (void)escape(name, strlen(name), true, out, room);
    return out;
}

static size_t count_lines(const char *text, size_t n)
{
    size_t lines = n > 0 && text[n - 1] != '\n' ? 1 : 0;
    for (size_t i = 0; i < n; ++i) {
        lines += text[i] == '\n' ? 1 : 0;
    }
    return lines;
}

/* The text up to its last whole line, or else word; its bytes. */
static size_t cut_whole(char *out)
{
    char *end = strrchr(out, '\n');
    if (end == NULL) {
        end = strrchr(out, ' ');
    }
    if (end != NULL && end != out) {
        *end = '\0';
    }
    return strlen(out);
}

void dsi_plain_message(const char *text, char *out, size_t room)
{
    const size_t n = strlen(text);
    if (escape(text, n, false, out, room) == n) {
        return;
    }
    (void)escape(text, n, false, out, room - MORE_BYTES);
    const bool lines = strchr(out, '\n') != NULL;
    const size_t kept = cut_whole(out);
    const size_t taken = escape(text, n, false, out, kept + 1);
    const size_t left = lines ? count_lines(text + taken + 1, n - taken - 1) : n - taken;
    (void)snprintf(out + kept, room - kept,
                   lines ? "\n… and %zu more line%s" : " … and %zu more byte%s", left,
                   left == 1 ? "" : "s");
}
