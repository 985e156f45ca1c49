/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of a tokenizer file by PCRE2, with the meaning that Oniguruma gives them.
 *
 * Called for Split and Replace with a pattern that no scanner knows; tokenizer_match.c runs it.
 * Shorthands are rewritten to Unicode properties, so that \s is White_Space and \w is that of UTS
 * #18; what the two engines read differently and cannot be rewritten is an error that names it.
 */
#include "data/tokenizer_regex.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERN = 16384 };

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* The rewritten form of \letter, NULL when it stays as it is. */
static const char *shorthand(char letter, bool in_class)
{
    switch (letter) {
    case 's':
        return "\\p{White_Space}";
    case 'S':
        return "\\P{White_Space}";
    case 'd':
        return "\\p{Nd}";
    case 'D':
        return "\\P{Nd}";
    case 'h':
        return in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
    case 'w':
        return in_class ? WORD : "[" WORD "]";
    case 'W':
        return in_class ? NULL : "[^" WORD "]";
    default:
        return NULL;
    }
}

/* Bytes of an interval {n}, {n,}, {n,m} or {,m} at p, 0 for another brace. */
static size_t interval(const char *p, size_t n)
{
    size_t i = 1;
    size_t digits = 0;
    for (; i < n && p[i] >= '0' && p[i] <= '9'; ++i) {
        ++digits;
    }
    if (i < n && p[i] == ',') {
        for (++i; i < n && p[i] >= '0' && p[i] <= '9'; ++i) {
            ++digits;
        }
    }
    return i < n && p[i] == '}' && digits > 0 ? i + 1 : 0;
}

/* {n}? and {n,m}+ repeat an interval there; here they are a lazy and a possessive one. */
static bool is_doubled(const char *p, size_t n)
{
    const size_t size = interval(p, n);
    const bool exact = size > 0 && memchr(p, ',', size) == NULL;
    return size > 0 && size < n &&
           (p[size] == '+' || p[size] == '*' || p[size] == '{' || (exact && p[size] == '?'));
}

/* What cannot be rewritten at this place of the pattern, NULL when all is well. */
static const char *difference(const char *p, size_t n, bool in_class, bool first)
{
    if (!in_class && n >= 3 && p[0] == '(' && p[1] == '?' && strchr("mxadusJUn^-", p[2]) != NULL) {
        return "an inline option other than (?i)";
    }
    if (!in_class && !first && n >= 4 && memcmp(p, "(?i)", 4) == 0) {
        return "the option (?i) behind the start";
    }
    if (!in_class && n >= 2 && p[0] == '(' &&
        (p[1] == '*' || (n >= 3 && p[1] == '?' && strchr("(|R&P+0123456789C", p[2]) != NULL))) {
        return "a verb, condition or call";
    }
    if (!in_class && p[0] == '{' && is_doubled(p, n)) {
        return "a quantifier behind an interval";
    }
    if (in_class && n >= 2 && p[0] == '&' && p[1] == '&') {
        return "an intersection of character classes (&&)";
    }
    if (in_class && n >= 2 && p[0] == '[' && p[1] != ':') {
        return "a character class within a character class";
    }
    if (p[0] == '\\' && n >= 2 &&
        (strchr("XRyYNOGKHbBvVQEgkCMLlUuo", p[1]) != NULL || (in_class && p[1] == 'W'))) {
        return "an escape";
    }
    return NULL;
}

static ds_status translate(ds_ctx *ctx, const char *path, const char *p, size_t n, dsi_buf *out)
{
    bool in_class = false;
    for (size_t i = 0; i < n; ++i) {
        const char *trouble = difference(p + i, n - i, in_class, i == 0);
        if (trouble != NULL) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "%s: the pattern \"%.*s\" has %s at byte %zu, which is not supported",
                           path, (int)(n < 200 ? n : 200), p, trouble, i);
        }
        if (p[i] == '\\' && i + 1 < n) {
            const char *text = shorthand(p[i + 1], in_class);
            if (text != NULL) {
                dsi_buf_puts(out, text);
            } else {
                dsi_buf_append(out, p + i, 2);
            }
            ++i;
            continue;
        }
        if (in_class && p[i] == '[') { /* a POSIX name: [:alpha:] */
            const char *close = memchr(p + i, ']', n - i);
            const size_t size = close != NULL ? (size_t)(close - (p + i)) + 1 : n - i;
            dsi_buf_append(out, p + i, size);
            i += size - 1;
            continue;
        }
        dsi_buf_putc(out, p[i]);
        if (p[i] == '{' && !in_class && p[i + 1] == ',' && interval(p + i, n - i) > 0) {
            dsi_buf_putc(out, '0'); /* {,m} */
        }
        if (p[i] == '[') {
            in_class = true;
            if (i + 1 < n && p[i + 1] == '^') {
                dsi_buf_putc(out, p[++i]);
            }
            if (i + 1 < n && p[i + 1] == ']') {
                dsi_buf_puts(out, "\\]"); /* first in a class it is a literal */
                ++i;
            }
        } else if (p[i] == ']') {
            in_class = false;
        }
    }
    return out->failed ? ds_fail(ctx, DS_ERR_LIMIT, "%s: a pattern is too long", path) : DS_OK;
}

ds_status dsi_regex_compile(ds_ctx *ctx, const char *path, const char *pattern, size_t n,
                            dsi_regex **regex_out)
{
    dsi_buf text = dsi_buf_make(MAX_PATTERN);
    ds_status status = DS_OK;
    dsi_regex *regex = NULL;
    DS_TRY_GOTO(status, translate(ctx, path, pattern, n, &text), done);
    regex = calloc(1, sizeof *regex);
    if (regex == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for a pattern", path);
        goto done;
    }
    int error = 0;
    PCRE2_SIZE at = 0;
    /* ^ and $ are of lines in Oniguruma's syntax. */
    regex->code = pcre2_compile((PCRE2_SPTR)dsi_buf_text(&text), text.size,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                                    PCRE2_USE_OFFSET_LIMIT,
                                &error, &at, NULL);
    if (regex->code == NULL) {
        char message[160];
        (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        status = ds_fail(ctx, DS_ERR_FORMAT, "%s: the pattern \"%.*s\": %s", path,
                         (int)(n < 200 ? n : 200), pattern, message);
        free(regex);
        goto done;
    }
    /* Without JIT it is interpreted. */
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    regex->text = strndup(pattern, n);
    regex->path = strdup(path);
    if (regex->text == NULL || regex->path == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for a pattern", path);
        dsi_regex_free(&regex);
        goto done;
    }
    *regex_out = regex;
done:
    dsi_buf_free(&text);
    return status;
}

bool dsi_regex_matches_nothing(const dsi_regex *regex)
{
    uint32_t empty = 1;
    return pcre2_pattern_info(regex->code, PCRE2_INFO_MATCHEMPTY, &empty) != 0 || empty != 0;
}

void dsi_regex_free(dsi_regex **regex)
{
    if (*regex != NULL) {
        pcre2_code_free((*regex)->code);
        free((*regex)->text);
        free((*regex)->path);
        free(*regex);
        *regex = NULL;
    }
}
