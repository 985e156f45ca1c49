/* SPDX-License-Identifier: Apache-2.0 */
/* Quoting for a shell, and splitting as one does. See words.h.
 *
 * Source of the rules: POSIX.1-2017, Shell Command Language, 2.2 Quoting.
 */
#include "launch/words.h"

#include <string.h>

static bool is_plain(const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_+:,./@-=";
    return *text != '\0' && *text != '=' && text[strspn(text, plain)] == '\0';
}

void dsi_shell_quote(dsi_buf *buf, const char *text)
{
    if (is_plain(text)) {
        dsi_buf_puts(buf, text);
        return;
    }
    dsi_buf_putc(buf, '\'');
    for (; *text != '\0'; ++text) {
        if (*text == '\'') {
            dsi_buf_puts(buf, "'\\''");
        } else {
            dsi_buf_putc(buf, *text);
        }
    }
    dsi_buf_putc(buf, '\'');
}

void dsi_shell_join(dsi_buf *buf, const dsi_words *words, size_t from)
{
    for (size_t i = from; i < words->n; ++i) {
        if (i > from) {
            dsi_buf_putc(buf, ' ');
        }
        dsi_shell_quote(buf, words->items[i]);
    }
}

/* One word being read. */
typedef struct splitter {
    ds_ctx *ctx;
    const char *what;
    const char *at;
    dsi_buf word;
} splitter;

/* Inside double quotes a backslash is itself but before $ ` " \ and a newline, which it removes. */
static void double_quoted_escape(splitter *s)
{
    if (s->at[1] == '\n') {
        s->at += 2;
        return;
    }
    if (strchr("$`\"\\", s->at[1]) == NULL) {
        dsi_buf_putc(&s->word, '\\');
    }
    dsi_buf_putc(&s->word, s->at[1]);
    s->at += 2;
}

static ds_status read_quoted(splitter *s)
{
    const char quote = *s->at++;
    while (*s->at != '\0' && *s->at != quote) {
        if (quote == '"' && *s->at == '\\' && s->at[1] != '\0') {
            double_quoted_escape(s);
        } else if (quote == '"' && (*s->at == '$' || *s->at == '`')) {
            return ds_fail(s->ctx, DS_ERR_ARG,
                           "%s: expected plain text, found '%c', which is not expanded here; put "
                           "it into single quotes to mean it literally",
                           s->what, *s->at);
        } else {
            dsi_buf_putc(&s->word, *s->at++);
        }
    }
    if (*s->at == '\0') {
        return ds_fail(s->ctx, DS_ERR_ARG, "%s: the quote %c is not closed", s->what, quote);
    }
    ++s->at;
    return DS_OK;
}

static ds_status read_word(splitter *s)
{
    while (*s->at != '\0' && strchr(" \t\n", *s->at) == NULL) {
        if (*s->at == '\'' || *s->at == '"') {
            DS_TRY(read_quoted(s));
        } else if (*s->at == '\\') {
            if (s->at[1] == '\0') {
                return ds_fail(s->ctx, DS_ERR_ARG, "%s: ends with a backslash", s->what);
            }
            dsi_buf_putc(&s->word, s->at[1]);
            s->at += 2;
        } else if (strchr("$`;&|<>()", *s->at) != NULL) {
            return ds_fail(s->ctx, DS_ERR_ARG,
                           "%s: expected plain words, found '%c', which no shell sees here; put it "
                           "into single quotes to mean it literally",
                           s->what, *s->at);
        } else {
            dsi_buf_putc(&s->word, *s->at++);
        }
    }
    return DS_OK;
}

ds_status dsi_shell_split(ds_ctx *ctx, const char *what, const char *text, dsi_words *words)
{
    splitter s = {.ctx = ctx, .what = what, .at = text, .word = dsi_buf_make(1 << 20)};
    ds_status status = DS_OK;
    for (;;) {
        s.at += strspn(s.at, " \t\n");
        if (*s.at == '\0') {
            break;
        }
        dsi_buf_clear(&s.word);
        status = read_word(&s);
        if (status < 0) {
            break;
        }
        dsi_words_add(words, dsi_buf_text(&s.word));
        words->failed = words->failed || s.word.failed;
    }
    dsi_buf_free(&s.word);
    return status < 0 ? status : dsi_words_check(ctx, words);
}
