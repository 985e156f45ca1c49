/* SPDX-License-Identifier: Apache-2.0 */
/* A template's text to tokens, as jinja2's lexer does with trim_blocks and lstrip_blocks.
 *
 * Called by dsi_jinja_parse. White space control is done here: "-" takes off all of it on its side,
 * a block or comment loses the blanks of its line before it and one line break behind it, "+"
 * keeps them. Brackets of an expression are balanced here, too, since "}}" within a dict ends no
 * tag.
 */
#include "base/buf.h"

#include "base/escape.h"
#include "data/jinja/jinja_node.h"
#include "data/jinja/jinja_unicode.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct lexer {
    dsi_arena *arena;
    const char *begin, *p, *end;
    dsi_jt *tokens;
    size_t n, room;
    char open[DSI_JI_DEPTH_MAX]; /* the brackets that are open in this tag */
    uint32_t n_open;
    bool line_starts; /* what was read last ended with a line break */
    dsi_ji_fault *fault;
    bool failed;
    const char *counted; /* lines and columns are known up to here */
    uint32_t line;
    const char *line_begin;
} lexer;

static void place(lexer *l, const char *at, uint32_t *line, uint32_t *column)
{
    for (; l->counted < at; ++l->counted) {
        if (*l->counted == '\n') {
            ++l->line;
            l->line_begin = l->counted + 1;
        }
    }
    *line = l->line;
    *column = (uint32_t)(at >= l->line_begin ? at - l->line_begin : 0) + 1;
}

DS_PRINTF(3, 4) static void fail(lexer *l, ds_status status, const char *format, ...)
{
    if (l->failed) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(l->fault->text, sizeof l->fault->text, format, args);
    va_end(args);
    l->fault->status = status;
    place(l, l->p, &l->fault->line, &l->fault->column);
    l->failed = true;
}

static dsi_jt *add(lexer *l, dsi_jt_kind kind, const char *at, const char *text, size_t n)
{
    if (l->n == l->room) {
        const size_t room = l->room * 2 + 64;
        dsi_jt *grown = dsi_arena_array(l->arena, room, sizeof *grown);
        if (grown == NULL) {
            fail(l, DS_ERR_NOMEM, "no memory for the template");
            return NULL;
        }
        if (l->n > 0) {
            memcpy(grown, l->tokens, l->n * sizeof *grown);
        }
        l->tokens = grown;
        l->room = room;
    }
    dsi_jt *token = &l->tokens[l->n++];
    *token = (dsi_jt){.kind = kind, .n = (uint32_t)n};
    place(l, at, &token->line, &token->column);
    token->text = dsi_arena_strndup(l->arena, text, n);
    if (token->text == NULL) {
        fail(l, DS_ERR_NOMEM, "no memory for the template");
    }
    return token;
}

static bool at(const lexer *l, const char *p, const char *what)
{
    const size_t n = strlen(what);
    return (size_t)(l->end - p) >= n && memcmp(p, what, n) == 0;
}

static const char *word_behind(const lexer *l, const char *p, const char *word)
{
    p = dsi_ji_skip_space(p, l->end);
    return at(l, p, word) ? dsi_ji_skip_space(p + strlen(word), l->end) : NULL;
}

/* The end of a tag at p: "-%}" with the white space behind it, "+%}", or "%}" with a line break;
 * NULL when there is none. trim: whether the line break goes. */
static const char *tag_end(const lexer *l, const char *p, const char *close, bool plus, bool trim)
{
    if (plus && p < l->end && *p == '+' && at(l, p + 1, close)) {
        return p + 1 + strlen(close);
    }
    if (p < l->end && *p == '-' && at(l, p + 1, close)) {
        return dsi_ji_skip_space(p + 1 + strlen(close), l->end);
    }
    if (!at(l, p, close)) {
        return NULL;
    }
    p += strlen(close);
    return p + (trim && p < l->end && *p == '\n');
}

/* "{% raw %}" at p: behind it; NULL when it is another tag. */
static const char *raw_begin(const lexer *l, const char *p, char *sign)
{
    const char *q = p + 2;
    *sign = '\0';
    if (q < l->end && (*q == '-' || *q == '+')) {
        *sign = *q++;
    }
    q = word_behind(l, q, "raw");
    if (q != NULL) {
        q = tag_end(l, q, "%}", false, false);
    }
    return q;
}

/* Text before a tag, whose sign is "-", "+" or none. */
static void data(lexer *l, const char *begin, const char *stop, char sign, bool variable)
{
    const char *tail = stop;
    if (sign == '-') {
        tail = dsi_ji_trim_end(begin, stop);
    } else if (sign != '+' && !variable) {
        const char *line = stop;
        while (line > begin && line[-1] != '\n') {
            --line;
        }
        if ((line > begin || l->line_starts) && dsi_ji_skip_space(line, stop) == stop) {
            tail = line;
        }
    }
    if (tail > begin) {
        (void)add(l, DSI_JT_DATA, begin, begin, (size_t)(tail - begin));
    }
}

static void moved(lexer *l, const char *to)
{
    l->line_starts = to > l->begin && to[-1] == '\n';
    l->p = to;
}

static void raw(lexer *l)
{
    for (const char *p = l->p; p < l->end; ++p) {
        if (!at(l, p, "{%")) {
            continue;
        }
        const char *q = p + 2;
        char sign = '\0';
        if (q < l->end && (*q == '-' || *q == '+')) {
            sign = *q++;
        }
        q = word_behind(l, q, "endraw");
        q = q != NULL ? tag_end(l, q, "%}", true, true) : NULL;
        if (q != NULL) {
            data(l, l->p, p, sign, false);
            moved(l, q);
            return;
        }
    }
    fail(l, DS_ERR_FORMAT, "{%% raw %%} has no end");
}

static void comment(lexer *l)
{
    for (const char *p = l->p; p < l->end; ++p) {
        const char *q = tag_end(l, p, "#}", true, true);
        if (q != NULL) {
            moved(l, q);
            return;
        }
    }
    fail(l, DS_ERR_FORMAT, "a comment has no end");
}

/* ---- the inside of a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* (\d+_)*\d+ at p: behind it, p when it is none. */
static const char *digits(const lexer *l, const char *p)
{
    const char *stop = p;
    while (p < l->end && is_digit(*p)) {
        while (p < l->end && is_digit(*p)) {
            ++p;
        }
        stop = p;
        if (p < l->end && *p == '_') {
            ++p;
        }
    }
    return stop;
}

static const char *based_digits(const lexer *l, const char *p, int base)
{
    const char *stop = p;
    while (p < l->end) {
        const char *q = p + (*p == '_');
        const char c = q < l->end ? *q : '\0';
        const int value = dsi_hex_digit(c);
        if (value < 0 || value >= base) {
            break;
        }
        p = q + 1;
        stop = p;
    }
    return stop;
}

static const char *float_end(const lexer *l, const char *p)
{
    if (p > l->begin && p[-1] == '.') {
        return NULL;
    }
    const char *q = digits(l, p);
    if (q == p) {
        return NULL;
    }
    bool real = false;
    if (q < l->end && *q == '.' && digits(l, q + 1) > q + 1) {
        q = digits(l, q + 1);
        real = true;
    }
    if (q < l->end && (*q | 32) == 'e') {
        const char *e = q + 1;
        e += e < l->end && (*e == '+' || *e == '-');
        if (digits(l, e) > e) {
            return digits(l, e);
        }
    }
    return real ? q : NULL;
}

static const char *integer_end(const lexer *l, const char *p, int *base)
{
    *base = 10;
    if (*p != '0') {
        return digits(l, p);
    }
    if (p + 1 < l->end) {
        const char c = (char)(p[1] | 32);
        *base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (*base != 10 && based_digits(l, p + 2, *base) > p + 2) {
            return based_digits(l, p + 2, *base);
        }
    }
    *base = 10;
    const char *stop = p;
    while (p < l->end && (*p == '0' || (*p == '_' && p + 1 < l->end && p[1] == '0'))) {
        stop = p += 1 + (*p == '_');
    }
    return stop;
}

static void number(lexer *l)
{
    char clean[128];
    int base = 10;
    const char *real = float_end(l, l->p);
    const char *stop = real != NULL ? real : integer_end(l, l->p, &base);
    size_t n = 0;
    for (const char *p = l->p; p < stop && n + 1 < sizeof clean; ++p) {
        if (*p != '_') {
            clean[n++] = *p;
        }
    }
    clean[n] = '\0';
    dsi_jt *token =
        add(l, real != NULL ? DSI_JT_FLOAT : DSI_JT_INTEGER, l->p, l->p, (size_t)(stop - l->p));
    if (token == NULL) {
        return;
    }
    if (real != NULL) {
        token->real = strtod(clean, NULL);
    } else {
        uint64_t value = 0;
        for (const char *p = clean + (base == 10 ? 0 : 2); *p != '\0'; ++p) {
            const unsigned d = (unsigned)dsi_hex_digit(*p);
            if (value > ((uint64_t)INT64_MAX - d) / (uint64_t)base) {
                fail(l, DS_ERR_UNSUPPORTED, "a whole number beyond 64 bits");
                return;
            }
            value = value * (uint64_t)base + d;
        }
        token->integer = (int64_t)value;
    }
    if (n + 1 >= sizeof clean) {
        fail(l, DS_ERR_UNSUPPORTED, "a number of more than %zu digits", sizeof clean - 2);
    }
    moved(l, stop);
}

static int hex(const char *p, const char *end, int n, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < n; ++i) {
        const int d = dsi_hex_digit(p + i < end ? p[i] : '\0');
        if (d < 0) {
            return -1;
        }
        *value = *value * 16 + (uint32_t)d;
    }
    return n;
}

/* The escape behind a backslash at *at; false: refused. */
static bool escape(lexer *l, const char **at_p, const char *end, dsi_buf *out)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char into[] = "\\'\"\a\b\f\n\r\t\v";
    const char *p = *at_p;
    const char *known = strchr(from, *p);
    uint32_t cp = 0;
    char utf8[4];
    if (known != NULL && *p != '\0') {
        dsi_buf_putc(out, into[known - from]);
        ++p;
    } else if (*p == '\n') {
        ++p;
    } else if (*p >= '0' && *p <= '7') {
        for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; ++i) {
            cp = cp * 8 + (uint32_t)(*p++ - '0');
        }
        dsi_buf_append(out, utf8, dsi_utf8_encode(cp, utf8));
    } else if (*p == 'x' || *p == 'u' || *p == 'U') {
        const int n = *p == 'x' ? 2 : *p == 'u' ? 4 : 8;
        if (hex(p + 1, end, n, &cp) < 0 || cp > 0x10FFFF) {
            fail(l, DS_ERR_FORMAT, "a bad \\%c escape in a string", *p);
            return false;
        }
        if (cp >= 0xD800 && cp < 0xE000) {
            fail(l, DS_ERR_UNSUPPORTED, "half of a surrogate pair in a string");
            return false;
        }
        dsi_buf_append(out, utf8, dsi_utf8_encode(cp, utf8));
        p += 1 + n;
    } else if (*p == 'N' || (unsigned char)*p >= 0x80) {
        fail(l, DS_ERR_UNSUPPORTED, "the escape \\N, or a backslash before a letter beyond ASCII");
        return false;
    } else {
        dsi_buf_putc(out, '\\');
    }
    *at_p = p;
    return true;
}

static void string(lexer *l)
{
    const char quote = *l->p;
    const char *stop = l->p + 1;
    while (stop < l->end && *stop != quote) {
        stop += *stop == '\\' && stop + 1 < l->end ? 2 : 1;
    }
    if (stop >= l->end) {
        fail(l, DS_ERR_FORMAT, "a string has no end");
        return;
    }
    dsi_buf text = dsi_buf_make(1 << 26);
    for (const char *p = l->p + 1; p < stop && !l->failed;) {
        if (*p != '\\') {
            dsi_buf_putc(&text, *p++);
            continue;
        }
        ++p;
        if (!escape(l, &p, stop, &text)) {
            break;
        }
    }
    if (text.failed) {
        fail(l, DS_ERR_NOMEM, "no memory for the template");
    }
    (void)add(l, DSI_JT_STRING, l->p, dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    moved(l, stop + 1);
}

static void operator_token(lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0] && n == 0; ++i) {
        n = at(l, l->p, two[i]) ? 2 : 0;
    }
    if (n == 0 && *l->p != '\0' && strchr(one, *l->p) != NULL) {
        n = 1;
    }
    if (n == 0) {
        fail(l, DS_ERR_FORMAT, "unexpected character '%c'", *l->p);
        return;
    }
    const char c = *l->p;
    if (c == '{' || c == '(' || c == '[') {
        if (l->n_open == sizeof l->open) {
            fail(l, DS_ERR_LIMIT, "more than %d brackets within each other", DSI_JI_DEPTH_MAX);
            return;
        }
        l->open[l->n_open++] = (char)(c == '{' ? '}' : c == '(' ? ')' : ']');
    } else if (c == '}' || c == ')' || c == ']') {
        if (l->n_open == 0 || l->open[l->n_open - 1] != c) {
            fail(l, DS_ERR_FORMAT, "unexpected '%c'", c);
            return;
        }
        --l->n_open;
    }
    (void)add(l, DSI_JT_OPERATOR, l->p, l->p, n);
    moved(l, l->p + n);
}

/* A token of the inside of a tag, or its end; false behind the end. */
static bool inside(lexer *l, bool block)
{
    if (l->p >= l->end) {
        return false; /* the parser misses the end */
    }
    const char *stop = l->n_open == 0 ? tag_end(l, l->p, block ? "%}" : "}}", block, block) : NULL;
    if (stop != NULL) {
        (void)add(l, block ? DSI_JT_BLOCK_END : DSI_JT_VARIABLE_END, l->p, "", 0);
        moved(l, stop);
        return false;
    }
    const char *behind = dsi_ji_skip_space(l->p, l->end);
    if (behind > l->p) {
        moved(l, behind);
    } else if (is_digit(*l->p)) {
        number(l);
    } else if (is_word(*l->p)) {
        const char *p = l->p;
        while (p < l->end && is_word(*p)) {
            ++p;
        }
        if (p < l->end && (unsigned char)*p >= 0x80) {
            fail(l, DS_ERR_UNSUPPORTED, "a name beyond ASCII");
        }
        (void)add(l, DSI_JT_NAME, l->p, l->p, (size_t)(p - l->p));
        moved(l, p);
    } else if ((unsigned char)*l->p >= 0x80) {
        fail(l, DS_ERR_UNSUPPORTED, "a character beyond ASCII outside of strings");
    } else if (*l->p == '\'' || *l->p == '"') {
        string(l);
    } else {
        operator_token(l);
    }
    return true;
}

static void tag(lexer *l, bool block)
{
    l->n_open = 0;
    (void)add(l, block ? DSI_JT_BLOCK_BEGIN : DSI_JT_VARIABLE_BEGIN, l->p, "", 0);
    while (!l->failed && inside(l, block)) {
    }
}

static const char *find_tag(const lexer *l)
{
    for (const char *p = l->p; p + 1 < l->end; ++p) {
        if (*p == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#')) {
            return p;
        }
    }
    return NULL;
}

/* Text up to the next tag, and that tag. */
static void root(lexer *l)
{
    const char *open = find_tag(l);
    if (open == NULL) {
        (void)add(l, DSI_JT_DATA, l->p, l->p, (size_t)(l->end - l->p));
        l->p = l->end;
        return;
    }
    char sign = '\0';
    const char *behind_raw = open[1] == '%' ? raw_begin(l, open, &sign) : NULL;
    if (behind_raw == NULL) {
        sign = open + 2 < l->end && (open[2] == '-' || open[2] == '+') ? open[2] : '\0';
    }
    data(l, l->p, open, sign, open[1] == '{');
    moved(l, behind_raw != NULL ? behind_raw : open + 2 + (sign != '\0'));
    if (behind_raw != NULL) {
        raw(l);
    } else if (open[1] == '#') {
        comment(l);
    } else {
        tag(l, open[1] == '%');
    }
}

/* Line breaks as \n, and without the one at the end. */
static char *normalize(dsi_arena *arena, const char *text, size_t n, size_t *n_out)
{
    char *out = dsi_arena_alloc(arena, n + 1);
    size_t used = 0;
    for (size_t i = 0; out != NULL && i < n; ++i) {
        if (text[i] == '\r') {
            out[used++] = '\n';
            i += i + 1 < n && text[i + 1] == '\n';
        } else {
            out[used++] = text[i];
        }
    }
    *n_out = used - (used > 0 && out[used - 1] == '\n');
    return out;
}

dsi_jt *dsi_ji_lex(dsi_arena *arena, const char *text, size_t n, dsi_ji_fault *fault)
{
    size_t size = 0;
    const char *clean = normalize(arena, text, n, &size);
    lexer l = {.arena = arena, .fault = fault, .line_starts = true, .line = 1};
    l.begin = l.p = l.counted = l.line_begin = clean;
    if (clean == NULL) {
        l.begin = l.p = l.counted = l.line_begin = "";
        l.end = l.p;
        fail(&l, DS_ERR_NOMEM, "no memory for the template");
        return NULL;
    }
    l.end = clean + size;
    for (const char *p = clean; p < l.end && !l.failed;) {
        uint32_t cp;
        l.p = p;
        p += dsi_utf8_decode((const unsigned char *)p, (const unsigned char *)l.end, &cp);
        if (cp == DSI_UTF8_BAD) {
            fail(&l, DS_ERR_FORMAT, "a byte that is not UTF-8");
        }
    }
    l.p = clean;
    while (!l.failed && l.p < l.end) {
        root(&l);
    }
    (void)add(&l, DSI_JT_EOF, l.end, "", 0);
    return l.failed ? NULL : l.tokens;
}
