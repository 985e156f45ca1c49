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
#include "data/jinja/jinja_lex_impl.h"
#include "data/jinja/jinja_unicode.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void place(dsi_ji_lexer *l, const char *at, uint32_t *line, uint32_t *column)
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

void dsi_ji_lex_fail(dsi_ji_lexer *l, ds_status status, const char *format, ...)
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

dsi_jt *dsi_ji_lex_add(dsi_ji_lexer *l, dsi_jt_kind kind, const char *at, const char *text,
                       size_t n)
{
    if (l->n == l->room) {
        const size_t room = l->room * 2 + 64;
        dsi_jt *grown = dsi_arena_array(l->arena, room, sizeof *grown);
        if (grown == NULL) {
            dsi_ji_lex_fail(l, DS_ERR_NOMEM, "no memory for the template");
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
        dsi_ji_lex_fail(l, DS_ERR_NOMEM, "no memory for the template");
    }
    return token;
}

bool dsi_ji_lex_at(const dsi_ji_lexer *l, const char *p, const char *what)
{
    const size_t n = strlen(what);
    return (size_t)(l->end - p) >= n && memcmp(p, what, n) == 0;
}

static const char *word_behind(const dsi_ji_lexer *l, const char *p, const char *word)
{
    p = dsi_ji_skip_space(p, l->end);
    return dsi_ji_lex_at(l, p, word) ? dsi_ji_skip_space(p + strlen(word), l->end) : NULL;
}

const char *dsi_ji_lex_end(const dsi_ji_lexer *l, const char *p, const char *close, bool plus,
                           bool trim)
{
    if (plus && p < l->end && *p == '+' && dsi_ji_lex_at(l, p + 1, close)) {
        return p + 1 + strlen(close);
    }
    if (p < l->end && *p == '-' && dsi_ji_lex_at(l, p + 1, close)) {
        return dsi_ji_skip_space(p + 1 + strlen(close), l->end);
    }
    if (!dsi_ji_lex_at(l, p, close)) {
        return NULL;
    }
    p += strlen(close);
    return p + (trim && p < l->end && *p == '\n');
}

/* "{% raw %}" at p: behind it; NULL when it is another tag. */
static const char *raw_begin(const dsi_ji_lexer *l, const char *p, char *sign)
{
    const char *q = p + 2;
    *sign = '\0';
    if (q < l->end && (*q == '-' || *q == '+')) {
        *sign = *q++;
    }
    q = word_behind(l, q, "raw");
    if (q != NULL) {
        q = dsi_ji_lex_end(l, q, "%}", false, false);
    }
    return q;
}

/* Text before a tag, whose sign is "-", "+" or none. */
static void data(dsi_ji_lexer *l, const char *begin, const char *stop, char sign, bool variable)
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
        (void)dsi_ji_lex_add(l, DSI_JT_DATA, begin, begin, (size_t)(tail - begin));
    }
}

void dsi_ji_lex_moved(dsi_ji_lexer *l, const char *to)
{
    l->line_starts = to > l->begin && to[-1] == '\n';
    l->p = to;
}

static void raw(dsi_ji_lexer *l)
{
    for (const char *p = l->p; p < l->end; ++p) {
        if (!dsi_ji_lex_at(l, p, "{%")) {
            continue;
        }
        const char *q = p + 2;
        char sign = '\0';
        if (q < l->end && (*q == '-' || *q == '+')) {
            sign = *q++;
        }
        q = word_behind(l, q, "endraw");
        q = q != NULL ? dsi_ji_lex_end(l, q, "%}", true, true) : NULL;
        if (q != NULL) {
            data(l, l->p, p, sign, false);
            dsi_ji_lex_moved(l, q);
            return;
        }
    }
    dsi_ji_lex_fail(l, DS_ERR_FORMAT, "{%% raw %%} has no end");
}

static void comment(dsi_ji_lexer *l)
{
    for (const char *p = l->p; p < l->end; ++p) {
        const char *q = dsi_ji_lex_end(l, p, "#}", true, true);
        if (q != NULL) {
            dsi_ji_lex_moved(l, q);
            return;
        }
    }
    dsi_ji_lex_fail(l, DS_ERR_FORMAT, "a comment has no end");
}

static void tag(dsi_ji_lexer *l, bool block)
{
    l->n_open = 0;
    (void)dsi_ji_lex_add(l, block ? DSI_JT_BLOCK_BEGIN : DSI_JT_VARIABLE_BEGIN, l->p, "", 0);
    while (!l->failed && dsi_ji_lex_inside(l, block)) {
    }
}

static const char *find_tag(const dsi_ji_lexer *l)
{
    for (const char *p = l->p; p + 1 < l->end; ++p) {
        if (*p == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#')) {
            return p;
        }
    }
    return NULL;
}

/* Text up to the next tag, and that tag. */
static void root(dsi_ji_lexer *l)
{
    const char *open = find_tag(l);
    if (open == NULL) {
        (void)dsi_ji_lex_add(l, DSI_JT_DATA, l->p, l->p, (size_t)(l->end - l->p));
        l->p = l->end;
        return;
    }
    char sign = '\0';
    const char *behind_raw = open[1] == '%' ? raw_begin(l, open, &sign) : NULL;
    if (behind_raw == NULL) {
        sign = open + 2 < l->end && (open[2] == '-' || open[2] == '+') ? open[2] : '\0';
    }
    data(l, l->p, open, sign, open[1] == '{');
    dsi_ji_lex_moved(l, behind_raw != NULL ? behind_raw : open + 2 + (sign != '\0'));
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
    dsi_ji_lexer l = {.arena = arena, .fault = fault, .line_starts = true, .line = 1};
    l.begin = l.p = l.counted = l.line_begin = clean;
    if (clean == NULL) {
        l.begin = l.p = l.counted = l.line_begin = "";
        l.end = l.p;
        dsi_ji_lex_fail(&l, DS_ERR_NOMEM, "no memory for the template");
        return NULL;
    }
    l.end = clean + size;
    for (const char *p = clean; p < l.end && !l.failed;) {
        uint32_t cp;
        l.p = p;
        p += dsi_utf8_decode((const unsigned char *)p, (const unsigned char *)l.end, &cp);
        if (cp == DSI_UTF8_BAD) {
            dsi_ji_lex_fail(&l, DS_ERR_FORMAT, "a byte that is not UTF-8");
        }
    }
    l.p = clean;
    while (!l.failed && l.p < l.end) {
        root(&l);
    }
    (void)dsi_ji_lex_add(&l, DSI_JT_EOF, l.end, "", 0);
    return l.failed ? NULL : l.tokens;
}
