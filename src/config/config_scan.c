/* SPDX-License-Identifier: Apache-2.0 */
/* Words of JSON and HJSON. See config_scan.h. */
#include "config/config_scan.h"

#include "base/escape.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The byte at a place, at the current one; -1 past the end. */
static int scan_at(const dsi_scan *r, size_t pos)
{
    return pos < r->n ? (unsigned char)r->text[pos] : -1;
}

int dsi_scan_peek(const dsi_scan *r)
{
    return scan_at(r, r->pos);
}

uint32_t dsi_scan_column(const dsi_scan *r, size_t pos)
{
    return (uint32_t)(pos - r->line_start) + 1;
}

void *dsi_scan_bad(dsi_scan *r, const char *expected)
{
    if (r->failed) {
        return NULL;
    }
    r->failed = true;
    const int c = dsi_scan_peek(r);
    char found[32];
    if (c < 0) {
        (void)snprintf(found, sizeof found, "the end of the file");
    } else if (c == '\n' || c == '\r') {
        (void)snprintf(found, sizeof found, "the end of the line");
    } else if (c < 0x20 || c >= 0x7f) {
        (void)snprintf(found, sizeof found, "byte 0x%02x", (unsigned)c);
    } else {
        (void)snprintf(found, sizeof found, "'%c'", c);
    }
    dsi_error_at(r->diags, r->line, dsi_scan_column(r, r->pos), NULL, "expected %s, found %s",
                 expected, found);
    return NULL;
}

void *dsi_scan_no_memory(dsi_scan *r)
{
    r->failed = true;
    r->diags->no_memory = true;
    return NULL;
}

/* Steps over one byte and keeps count of lines. */
void dsi_scan_step(dsi_scan *r)
{
    if (r->text[r->pos++] == '\n') {
        ++r->line;
        r->line_start = r->pos;
    }
}

static bool skip_block_comment(dsi_scan *r)
{
    r->pos += 2;
    while (dsi_scan_peek(r) >= 0) {
        if (dsi_scan_peek(r) == '*' && scan_at(r, r->pos + 1) == '/') {
            r->pos += 2;
            return true;
        }
        dsi_scan_step(r);
    }
    (void)dsi_scan_bad(r, "*/ to close the comment");
    return false;
}

/* White space and comments. */
bool dsi_scan_skip(dsi_scan *r)
{
    for (;;) {
        const int c = dsi_scan_peek(r);
        const int next = scan_at(r, r->pos + 1);
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            dsi_scan_step(r);
        } else if (c == '#' || (c == '/' && next == '/')) {
            while (dsi_scan_peek(r) >= 0 && dsi_scan_peek(r) != '\n') {
                dsi_scan_step(r);
            }
        } else if (c == '/' && next == '*') {
            if (!skip_block_comment(r)) {
                return false;
            }
        } else {
            return true;
        }
    }
}

dsi_node *dsi_scan_node(dsi_scan *r, dsi_node_kind kind)
{
    if (++r->n_nodes > DSI_READ_MAX_NODES) {
        return dsi_scan_bad(r, "at most 100000 values in a file");
    }
    dsi_node *node = dsi_node_make(r->diags->arena, kind);
    if (node == NULL) {
        return dsi_scan_no_memory(r);
    }
    node->line = r->line;
    node->column = dsi_scan_column(r, r->pos);
    return node;
}

static bool read_hex4(dsi_scan *r, uint32_t *value_out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
        const int c = dsi_scan_peek(r);
        const int digit = c < 0 ? -1 : dsi_hex_digit((char)c);
        if (digit < 0) {
            (void)dsi_scan_bad(r, "four hexadecimal digits after \\u");
            return false;
        }
        value = value << 4 | (uint32_t)digit;
        ++r->pos;
    }
    *value_out = value;
    return true;
}

static bool read_unicode_escape(dsi_scan *r)
{
    uint32_t c;
    if (!read_hex4(r, &c)) {
        return false;
    }
    if (c >= 0xd800 && c < 0xdc00 && dsi_scan_peek(r) == '\\' && scan_at(r, r->pos + 1) == 'u') {
        r->pos += 2;
        uint32_t low;
        if (!read_hex4(r, &low)) {
            return false;
        }
        if (low < 0xdc00 || low >= 0xe000) {
            (void)dsi_scan_bad(r, "the second half of a \\u surrogate pair");
            return false;
        }
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c == 0 || (c >= 0xd800 && c < 0xe000)) {
        (void)dsi_scan_bad(r, "\\u with a character other than zero or half a pair");
        return false;
    }
    char out[4];
    dsi_buf_append(&r->scratch, out, dsi_utf8_encode(c, out));
    return true;
}

static bool read_escape(dsi_scan *r)
{
    static const char names[] = "\"'\\/bfnrt";
    static const char values[] = "\"'\\/\b\f\n\r\t";
    const int c = dsi_scan_peek(r);
    const char *found = c > 0 ? strchr(names, c) : NULL;
    if (found != NULL) {
        ++r->pos;
        dsi_buf_putc(&r->scratch, values[found - names]);
        return true;
    }
    if (c == 'u') {
        ++r->pos;
        return read_unicode_escape(r);
    }
    (void)dsi_scan_bad(r, "one of \" ' \\ / b f n r t u after a backslash");
    return false;
}

/* The scratch as text in the arena. */
static const char *scratch_text(dsi_scan *r)
{
    const char *text =
        r->scratch.failed ? NULL : dsi_arena_strdup(r->diags->arena, dsi_buf_text(&r->scratch));
    return text != NULL ? text : dsi_scan_no_memory(r);
}

/* A string in double or single quotes; pos is at the opening one. */
const char *dsi_scan_quoted(dsi_scan *r)
{
    const int quote = dsi_scan_peek(r);
    dsi_buf_clear(&r->scratch);
    ++r->pos;
    while (dsi_scan_peek(r) != quote) {
        const int c = dsi_scan_peek(r);
        if (c < 0x20) {
            return dsi_scan_bad(
                r, c < 0 ? "a closing quote"
                         : "a closing quote (a line break or tab in a string is \\n or \\t)");
        }
        ++r->pos;
        if (c != '\\') {
            dsi_buf_putc(&r->scratch, (char)c);
        } else if (!read_escape(r)) {
            return NULL;
        }
    }
    ++r->pos;
    return scratch_text(r);
}

bool dsi_scan_at_multiline(const dsi_scan *r)
{
    return dsi_scan_peek(r) == '\'' && scan_at(r, r->pos + 1) == '\'' &&
           scan_at(r, r->pos + 2) == '\'';
}

static void skip_indent(dsi_scan *r, size_t indent)
{
    while (indent-- > 0 && (dsi_scan_peek(r) == ' ' || dsi_scan_peek(r) == '\t')) {
        ++r->pos;
    }
}

/* Three single quotes around lines, which lose the indent of the opening quotes. */
const char *dsi_scan_multiline(dsi_scan *r)
{
    const size_t indent = dsi_scan_column(r, r->pos) - 1;
    dsi_buf_clear(&r->scratch);
    r->pos += 3;
    while (dsi_scan_peek(r) == ' ' || dsi_scan_peek(r) == '\t' || dsi_scan_peek(r) == '\r') {
        ++r->pos;
    }
    if (dsi_scan_peek(r) == '\n') {
        dsi_scan_step(r);
        skip_indent(r, indent);
    }
    while (!dsi_scan_at_multiline(r)) {
        const int c = dsi_scan_peek(r);
        if (c <= 0) {
            return dsi_scan_bad(r, "''' to close the string");
        }
        dsi_scan_step(r);
        if (c != '\r') {
            dsi_buf_putc(&r->scratch, (char)c);
        }
        if (c == '\n') {
            skip_indent(r, indent);
        }
    }
    r->pos += 3;
    if (r->scratch.size > 0 && r->scratch.data[r->scratch.size - 1] == '\n') {
        r->scratch.data[--r->scratch.size] = '\0';
    }
    return scratch_text(r);
}

static size_t digits(const char *text, size_t i, size_t n)
{
    while (i < n && text[i] >= '0' && text[i] <= '9') {
        ++i;
    }
    return i;
}

/* JSON's number grammar over the whole text. */
static bool is_number(const char *text, size_t n, bool *whole_out)
{
    size_t i = n > 0 && text[0] == '-';
    const size_t start = i;
    i = digits(text, i, n);
    if (i == start || (text[start] == '0' && i > start + 1)) {
        return false;
    }
    *whole_out = i == n;
    if (i < n && text[i] == '.') {
        const size_t fraction = ++i;
        i = digits(text, i, n);
        if (i == fraction) {
            return false;
        }
    }
    if (i < n && (text[i] == 'e' || text[i] == 'E')) {
        ++i;
        i += i < n && (text[i] == '+' || text[i] == '-');
        const size_t exponent = i;
        i = digits(text, i, n);
        if (i == exponent) {
            return false;
        }
    }
    return i == n;
}

/* A number in text that is_number accepted. hjson makes integral floats below 1e10 integers. */
static bool store_number(dsi_scan *r, dsi_node *node, const char *text, bool whole)
{
    errno = 0;
    if (whole) {
        const long long value = strtoll(text, NULL, 10);
        if (errno == 0) {
            node->kind = DSI_NODE_INT;
            node->as.integer = value;
            return true;
        }
    }
    const double value = strtod_l(text, NULL, r->c_locale);
    if (!isfinite(value)) {
        (void)dsi_scan_bad(r, "a number that a double can hold");
        return false;
    }
    if (floor(value) == value && fabs(value) < 1e10) {
        node->kind = DSI_NODE_INT;
        node->as.integer = (int64_t)value;
        return true;
    }
    node->kind = DSI_NODE_REAL;
    node->as.real = value;
    return true;
}

/* Whether n bytes of text are a keyword or a number; stores it then. */
static bool store_literal(dsi_scan *r, dsi_node *node, const char *text, size_t n)
{
    enum { MAX_LITERAL = 400 }; /* longer ones are strings: keeps a line of commas linear */
    bool whole = false;
    if (n > MAX_LITERAL) {
        return false;
    }
    if (n == 4 && memcmp(text, "true", 4) == 0) {
        node->kind = DSI_NODE_BOOL;
        node->as.truth = true;
    } else if (n == 5 && memcmp(text, "false", 5) == 0) {
        node->kind = DSI_NODE_BOOL;
    } else if (n == 4 && memcmp(text, "null", 4) == 0) {
        node->kind = DSI_NODE_NULL;
    } else if (is_number(text, n, &whole)) {
        dsi_buf_clear(&r->scratch);
        dsi_buf_append(&r->scratch, text, n);
        const char *copy = scratch_text(r);
        (void)(copy != NULL && store_number(r, node, copy, whole));
    } else {
        return false;
    }
    return true;
}

static bool ends_literal(const dsi_scan *r, size_t i)
{
    const int c = scan_at(r, i);
    const int next = scan_at(r, i + 1);
    return c < 0 || c == '\n' || c == '\r' || c == ',' || c == '}' || c == ']' || c == '#' ||
           (c == '/' && (next == '/' || next == '*'));
}

/* A keyword or number up to a delimiter, or else the rest of the line as a string. */
dsi_node *dsi_scan_unquoted(dsi_scan *r)
{
    const int first = dsi_scan_peek(r);
    if (first < 0 || strchr("{}[],:", first) != NULL) {
        return dsi_scan_bad(r, "a value");
    }
    dsi_node *node = dsi_scan_node(r, DSI_NODE_NULL);
    if (node == NULL) {
        return NULL;
    }
    const size_t start = r->pos;
    for (size_t i = start;; ++i) {
        const int c = scan_at(r, i);
        if (c == 0) {
            r->pos = i;
            return dsi_scan_bad(r, "text without zero bytes");
        }
        if (!ends_literal(r, i)) {
            continue;
        }
        size_t n = i - start;
        while (n > 0 && (r->text[start + n - 1] == ' ' || r->text[start + n - 1] == '\t')) {
            --n;
        }
        if (store_literal(r, node, r->text + start, n)) {
            r->pos = i;
            return r->failed ? NULL : node;
        }
        if (c < 0 || c == '\n' || c == '\r') {
            const char last = n > 0 ? r->text[start + n - 1] : ' ';
            r->open_line = last == '}' || last == ']' ? r->line : r->open_line;
            node->kind = DSI_NODE_TEXT;
            node->as.text = dsi_arena_strndup(r->diags->arena, r->text + start, n);
            r->pos = i;
            return node->as.text != NULL ? node : dsi_scan_no_memory(r);
        }
    }
}
