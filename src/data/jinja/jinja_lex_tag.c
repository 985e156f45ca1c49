/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a tag to tokens: names, numbers, strings and operators, as jinja2's lexer reads
 * them. Called by jinja_lex.c.
 */
#include "base/buf.h"
#include "base/escape.h"
#include "data/jinja/jinja_lex_impl.h"
#include "data/jinja/jinja_unicode.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* (\d+_)*\d+ at p: behind it, p when it is none. */
static const char *digits(const dsi_ji_lexer *l, const char *p)
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

static const char *based_digits(const dsi_ji_lexer *l, const char *p, int base)
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

static const char *float_end(const dsi_ji_lexer *l, const char *p)
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

static const char *integer_end(const dsi_ji_lexer *l, const char *p, int *base)
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

static void number(dsi_ji_lexer *l)
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
    dsi_jt *token = dsi_ji_lex_add(l, real != NULL ? DSI_JT_FLOAT : DSI_JT_INTEGER, l->p, l->p,
                                   (size_t)(stop - l->p));
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
                dsi_ji_lex_fail(l, DS_ERR_UNSUPPORTED, "a whole number beyond 64 bits");
                return;
            }
            value = value * (uint64_t)base + d;
        }
        token->integer = (int64_t)value;
    }
    if (n + 1 >= sizeof clean) {
        dsi_ji_lex_fail(l, DS_ERR_UNSUPPORTED, "a number of more than %zu digits",
                        sizeof clean - 2);
    }
    dsi_ji_lex_moved(l, stop);
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
static bool escape(dsi_ji_lexer *l, const char **at_p, const char *end, dsi_buf *out)
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
            dsi_ji_lex_fail(l, DS_ERR_FORMAT, "a bad \\%c escape in a string", *p);
            return false;
        }
        if (cp >= 0xD800 && cp < 0xE000) {
            dsi_ji_lex_fail(l, DS_ERR_UNSUPPORTED, "half of a surrogate pair in a string");
            return false;
        }
        dsi_buf_append(out, utf8, dsi_utf8_encode(cp, utf8));
        p += 1 + n;
    } else if (*p == 'N' || (unsigned char)*p >= 0x80) {
        dsi_ji_lex_fail(l, DS_ERR_UNSUPPORTED,
                        "the escape \\N, or a backslash before a letter beyond ASCII");
        return false;
    } else {
        dsi_buf_putc(out, '\\');
    }
    *at_p = p;
    return true;
}

static void string(dsi_ji_lexer *l)
{
    const char quote = *l->p;
    const char *stop = l->p + 1;
    while (stop < l->end && *stop != quote) {
        stop += *stop == '\\' && stop + 1 < l->end ? 2 : 1;
    }
    if (stop >= l->end) {
        dsi_ji_lex_fail(l, DS_ERR_FORMAT, "a string has no end");
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
        dsi_ji_lex_fail(l, DS_ERR_NOMEM, "no memory for the template");
    }
    (void)dsi_ji_lex_add(l, DSI_JT_STRING, l->p, dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    dsi_ji_lex_moved(l, stop + 1);
}

static void operator_token(dsi_ji_lexer *l)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0] && n == 0; ++i) {
        n = dsi_ji_lex_at(l, l->p, two[i]) ? 2 : 0;
    }
    if (n == 0 && *l->p != '\0' && strchr(one, *l->p) != NULL) {
        n = 1;
    }
    if (n == 0) {
        dsi_ji_lex_fail(l, DS_ERR_FORMAT, "unexpected character '%c'", *l->p);
        return;
    }
    const char c = *l->p;
    if (c == '{' || c == '(' || c == '[') {
        if (l->n_open == sizeof l->open) {
            dsi_ji_lex_fail(l, DS_ERR_LIMIT, "more than %d brackets within each other",
                            DSI_JI_DEPTH_MAX);
            return;
        }
        l->open[l->n_open++] = (char)(c == '{' ? '}' : c == '(' ? ')' : ']');
    } else if (c == '}' || c == ')' || c == ']') {
        if (l->n_open == 0 || l->open[l->n_open - 1] != c) {
            dsi_ji_lex_fail(l, DS_ERR_FORMAT, "unexpected '%c'", c);
            return;
        }
        --l->n_open;
    }
    (void)dsi_ji_lex_add(l, DSI_JT_OPERATOR, l->p, l->p, n);
    dsi_ji_lex_moved(l, l->p + n);
}

bool dsi_ji_lex_inside(dsi_ji_lexer *l, bool block)
{
    if (l->p >= l->end) {
        return false; /* the parser misses the end */
    }
    const char *stop =
        l->n_open == 0 ? dsi_ji_lex_end(l, l->p, block ? "%}" : "}}", block, block) : NULL;
    if (stop != NULL) {
        (void)dsi_ji_lex_add(l, block ? DSI_JT_BLOCK_END : DSI_JT_VARIABLE_END, l->p, "", 0);
        dsi_ji_lex_moved(l, stop);
        return false;
    }
    const char *behind = dsi_ji_skip_space(l->p, l->end);
    if (behind > l->p) {
        dsi_ji_lex_moved(l, behind);
    } else if (is_digit(*l->p)) {
        number(l);
    } else if (is_word(*l->p)) {
        const char *p = l->p;
        while (p < l->end && is_word(*p)) {
            ++p;
        }
        if (p < l->end && (unsigned char)*p >= 0x80) {
            dsi_ji_lex_fail(l, DS_ERR_UNSUPPORTED, "a name beyond ASCII");
        }
        (void)dsi_ji_lex_add(l, DSI_JT_NAME, l->p, l->p, (size_t)(p - l->p));
        dsi_ji_lex_moved(l, p);
    } else if ((unsigned char)*l->p >= 0x80) {
        dsi_ji_lex_fail(l, DS_ERR_UNSUPPORTED, "a character beyond ASCII outside of strings");
    } else if (*l->p == '\'' || *l->p == '"') {
        string(l);
    } else {
        operator_token(l);
    }
    return true;
}
