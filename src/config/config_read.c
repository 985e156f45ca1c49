/* The JSON and HJSON reader. See config_read.h.
 *
 * Invariants: pos <= n; every byte is read through at(), which gives -1 past the end; a function
 * that returns NULL or false has recorded the error. Columns count bytes from 1.
 */
#include "config/config_read.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    dsi_diags *diags;
    const char *text;
    size_t n;
    size_t pos;
    uint32_t line;
    size_t line_start;
    uint32_t depth;
    uint32_t n_nodes;
    bool failed;
    locale_t c_locale; /* numbers have a point in every locale */
    dsi_buf scratch;   /* the string being read */
} reader;

static int at(const reader *r, size_t pos)
{
    return pos < r->n ? (unsigned char)r->text[pos] : -1;
}

static int peek(const reader *r)
{
    return at(r, r->pos);
}

static uint32_t column_of(const reader *r, size_t pos)
{
    return (uint32_t)(pos - r->line_start) + 1;
}

static void *bad(reader *r, const char *expected)
{
    if (r->failed) {
        return NULL;
    }
    r->failed = true;
    const int c = peek(r);
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
    dsi_error_at(r->diags, r->line, column_of(r, r->pos), NULL, "expected %s, found %s", expected,
                 found);
    return NULL;
}

static void *no_memory(reader *r)
{
    r->failed = true;
    r->diags->no_memory = true;
    return NULL;
}

/* Steps over one byte and keeps count of lines. */
static void step(reader *r)
{
    if (r->text[r->pos++] == '\n') {
        ++r->line;
        r->line_start = r->pos;
    }
}

static bool skip_block_comment(reader *r)
{
    r->pos += 2;
    while (peek(r) >= 0) {
        if (peek(r) == '*' && at(r, r->pos + 1) == '/') {
            r->pos += 2;
            return true;
        }
        step(r);
    }
    (void)bad(r, "*/ to close the comment");
    return false;
}

/* White space and comments. */
static bool skip(reader *r)
{
    for (;;) {
        const int c = peek(r);
        const int next = at(r, r->pos + 1);
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            step(r);
        } else if (c == '#' || (c == '/' && next == '/')) {
            while (peek(r) >= 0 && peek(r) != '\n') {
                step(r);
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

static dsi_node *new_node(reader *r, dsi_node_kind kind)
{
    if (++r->n_nodes > DSI_READ_MAX_NODES) {
        return bad(r, "at most 100000 values in a file");
    }
    dsi_node *node = dsi_node_make(r->diags->arena, kind);
    if (node == NULL) {
        return no_memory(r);
    }
    node->line = r->line;
    node->column = column_of(r, r->pos);
    return node;
}

static void put_utf8(dsi_buf *buf, uint32_t c)
{
    if (c < 0x80) {
        dsi_buf_putc(buf, (char)c);
    } else if (c < 0x800) {
        dsi_buf_putc(buf, (char)(0xc0 | c >> 6));
        dsi_buf_putc(buf, (char)(0x80 | (c & 63)));
    } else if (c < 0x10000) {
        dsi_buf_putc(buf, (char)(0xe0 | c >> 12));
        dsi_buf_putc(buf, (char)(0x80 | (c >> 6 & 63)));
        dsi_buf_putc(buf, (char)(0x80 | (c & 63)));
    } else {
        dsi_buf_putc(buf, (char)(0xf0 | c >> 18));
        dsi_buf_putc(buf, (char)(0x80 | (c >> 12 & 63)));
        dsi_buf_putc(buf, (char)(0x80 | (c >> 6 & 63)));
        dsi_buf_putc(buf, (char)(0x80 | (c & 63)));
    }
}

static bool read_hex4(reader *r, uint32_t *value_out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
        const int c = peek(r);
        const bool digit = c >= '0' && c <= '9';
        const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!digit && !letter) {
            (void)bad(r, "four hexadecimal digits after \\u");
            return false;
        }
        value = value << 4 | (uint32_t)(digit ? c - '0' : (c | 32) - 'a' + 10);
        ++r->pos;
    }
    *value_out = value;
    return true;
}

static bool read_unicode_escape(reader *r)
{
    uint32_t c;
    if (!read_hex4(r, &c)) {
        return false;
    }
    if (c >= 0xd800 && c < 0xdc00 && peek(r) == '\\' && at(r, r->pos + 1) == 'u') {
        r->pos += 2;
        uint32_t low;
        if (!read_hex4(r, &low)) {
            return false;
        }
        if (low < 0xdc00 || low >= 0xe000) {
            (void)bad(r, "the second half of a \\u surrogate pair");
            return false;
        }
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c == 0 || (c >= 0xd800 && c < 0xe000)) {
        (void)bad(r, "\\u with a character other than zero or half a pair");
        return false;
    }
    put_utf8(&r->scratch, c);
    return true;
}

static bool read_escape(reader *r)
{
    static const char names[] = "\"'\\/bfnrt";
    static const char values[] = "\"'\\/\b\f\n\r\t";
    const int c = peek(r);
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
    (void)bad(r, "one of \" ' \\ / b f n r t u after a backslash");
    return false;
}

/* The scratch as text in the arena. */
static const char *scratch_text(reader *r)
{
    const char *text =
        r->scratch.failed ? NULL : dsi_arena_strdup(r->diags->arena, dsi_buf_text(&r->scratch));
    return text != NULL ? text : no_memory(r);
}

/* A string in double or single quotes; pos is at the opening one. */
static const char *read_quoted(reader *r)
{
    const int quote = peek(r);
    dsi_buf_clear(&r->scratch);
    ++r->pos;
    while (peek(r) != quote) {
        const int c = peek(r);
        if (c < 0x20) {
            return bad(r, c < 0
                              ? "a closing quote"
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

static bool at_triple(const reader *r)
{
    return peek(r) == '\'' && at(r, r->pos + 1) == '\'' && at(r, r->pos + 2) == '\'';
}

static void skip_indent(reader *r, size_t indent)
{
    while (indent-- > 0 && (peek(r) == ' ' || peek(r) == '\t')) {
        ++r->pos;
    }
}

/* Three single quotes around lines, which lose the indent of the opening quotes. */
static const char *read_multiline(reader *r)
{
    const size_t indent = column_of(r, r->pos) - 1;
    dsi_buf_clear(&r->scratch);
    r->pos += 3;
    while (peek(r) == ' ' || peek(r) == '\t' || peek(r) == '\r') {
        ++r->pos;
    }
    if (peek(r) == '\n') {
        step(r);
        skip_indent(r, indent);
    }
    while (!at_triple(r)) {
        const int c = peek(r);
        if (c <= 0) {
            return bad(r, "''' to close the string");
        }
        step(r);
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
static bool store_number(reader *r, dsi_node *node, const char *text, bool whole)
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
        (void)bad(r, "a number that a double can hold");
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
static bool store_literal(reader *r, dsi_node *node, const char *text, size_t n)
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

static bool ends_literal(const reader *r, size_t i)
{
    const int c = at(r, i);
    const int next = at(r, i + 1);
    return c < 0 || c == '\n' || c == '\r' || c == ',' || c == '}' || c == ']' || c == '#' ||
           (c == '/' && (next == '/' || next == '*'));
}

/* A keyword or number up to a delimiter, or else the rest of the line as a string. */
static dsi_node *read_unquoted(reader *r)
{
    const int first = peek(r);
    if (first < 0 || strchr("{}[],:", first) != NULL) {
        return bad(r, "a value");
    }
    dsi_node *node = new_node(r, DSI_NODE_NULL);
    if (node == NULL) {
        return NULL;
    }
    const size_t start = r->pos;
    for (size_t i = start;; ++i) {
        const int c = at(r, i);
        if (c == 0) {
            r->pos = i;
            return bad(r, "text without zero bytes");
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
            node->kind = DSI_NODE_TEXT;
            node->as.text = dsi_arena_strndup(r->diags->arena, r->text + start, n);
            r->pos = i;
            return node->as.text != NULL ? node : no_memory(r);
        }
    }
}

static dsi_node *read_value(reader *r);

static const char *read_key(reader *r)
{
    if (peek(r) == '"' || peek(r) == '\'') {
        return read_quoted(r);
    }
    const size_t start = r->pos;
    for (int c = peek(r); c != ':' && c > ' '; c = peek(r)) {
        if (strchr("{}[],", c) != NULL) {
            return bad(r, "a key and ':'");
        }
        ++r->pos;
    }
    if (r->pos == start) {
        return bad(r, "a key or '}'");
    }
    const char *key = dsi_arena_strndup(r->diags->arena, r->text + start, r->pos - start);
    while (peek(r) == ' ' || peek(r) == '\t' || peek(r) == '\r' || peek(r) == '\n') {
        step(r);
    }
    if (peek(r) != ':') {
        return bad(r, "':' after a key");
    }
    return key != NULL ? key : no_memory(r);
}

static void check_duplicate(reader *r, const dsi_node *object, const dsi_node *member)
{
    const dsi_node *twin = dsi_node_find(object, member->key);
    if (twin != NULL) {
        dsi_error_at(r->diags, member->key_line, member->key_column, NULL,
                     "the key \"%s\" is already given on line %u; remove one of the two",
                     member->key, (unsigned)twin->key_line);
    }
}

static bool read_member(reader *r, dsi_node *object)
{
    const uint32_t line = r->line;
    const uint32_t column = column_of(r, r->pos);
    const char *key = read_key(r);
    if (key == NULL || !skip(r)) {
        return false;
    }
    if (peek(r) != ':') {
        (void)bad(r, "':' after a key");
        return false;
    }
    ++r->pos;
    if (!skip(r)) {
        return false;
    }
    dsi_node *member = read_value(r);
    if (member == NULL) {
        return false;
    }
    member->key = key;
    member->key_line = line;
    member->key_column = column;
    check_duplicate(r, object, member);
    dsi_node_add(object, member);
    if (object->n_children > DSI_READ_MAX_MEMBERS) {
        (void)bad(r, "at most 2000 keys in an object");
    }
    return !r->failed;
}

/* Members or elements up to `close`, or to the end of the text when close is -1. */
static dsi_node *read_children(reader *r, dsi_node *node, int close)
{
    if (++r->depth > DSI_READ_MAX_DEPTH) {
        return bad(r, "at most 64 levels of objects and lists");
    }
    while (skip(r) && peek(r) != close) {
        if (peek(r) < 0) {
            return bad(r, close == '}' ? "'}' to close the object" : "']' to close the list");
        }
        if (node->kind == DSI_NODE_OBJECT) {
            if (!read_member(r, node)) {
                return NULL;
            }
        } else {
            dsi_node *element = read_value(r);
            if (element == NULL) {
                return NULL;
            }
            dsi_node_add(node, element);
        }
        if (skip(r) && peek(r) == ',') {
            ++r->pos;
        }
    }
    if (r->failed) {
        return NULL;
    }
    r->pos += close >= 0;
    --r->depth;
    return node;
}

static dsi_node *read_value(reader *r)
{
    const int c = peek(r);
    if (c == '{' || c == '[') {
        dsi_node *node = new_node(r, c == '{' ? DSI_NODE_OBJECT : DSI_NODE_LIST);
        if (node == NULL) {
            return NULL;
        }
        ++r->pos;
        return read_children(r, node, c == '{' ? '}' : ']');
    }
    if (c != '"' && c != '\'') {
        return read_unquoted(r);
    }
    dsi_node *node = new_node(r, DSI_NODE_TEXT);
    if (node == NULL) {
        return NULL;
    }
    node->as.text = at_triple(r) ? read_multiline(r) : read_quoted(r);
    return node->as.text != NULL ? node : NULL;
}

static dsi_node *read_root(reader *r)
{
    if (r->n >= 3 && memcmp(r->text, "\xef\xbb\xbf", 3) == 0) {
        r->pos = r->line_start = 3; /* byte order mark */
    }
    if (!skip(r)) {
        return NULL;
    }
    if (peek(r) == '[') {
        return bad(r, "an object of keys and values");
    }
    dsi_node *root = new_node(r, DSI_NODE_OBJECT);
    if (root == NULL) {
        return NULL;
    }
    const bool braces = peek(r) == '{';
    r->pos += braces;
    root = read_children(r, root, braces ? '}' : -1);
    if (root != NULL && (!skip(r) || peek(r) >= 0)) {
        return bad(r, "nothing after the closing '}'");
    }
    return root;
}

dsi_node *dsi_config_read(dsi_diags *diags, const char *text, size_t n)
{
    if (n > DSI_READ_MAX_BYTES) {
        dsi_error_at(diags, 0, 0, NULL, "expected at most 4 MiB of configuration, found %zu bytes",
                     n);
        return NULL;
    }
    reader r = {.diags = diags, .text = text, .n = n, .line = 1};
    r.c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (r.c_locale == (locale_t)0) {
        return no_memory(&r);
    }
    r.scratch = dsi_buf_make(DSI_READ_MAX_BYTES);
    dsi_node *root = read_root(&r);
    dsi_buf_free(&r.scratch);
    freelocale(r.c_locale);
    return r.failed ? NULL : root;
}
