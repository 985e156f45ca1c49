/* SPDX-License-Identifier: Apache-2.0 */
/* Frame and escaping of pages. See html.h. */
#include "monitor/html.h"

#include "io/file.h"
#include "monitor/html_style.h"
#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <utf8proc.h>

enum { HEAD_BYTES = 512 };

#define GENERATOR "<meta name=\"generator\" content=\"DeepSpeed native, "

static void put_letter(dsi_buf *page, utf8proc_int32_t code, const char *bytes, size_t n)
{
    switch (code) {
    case '<':
        dsi_buf_puts(page, "&lt;");
        break;
    case '>':
        dsi_buf_puts(page, "&gt;");
        break;
    case '&':
        dsi_buf_puts(page, "&amp;");
        break;
    case '"':
        dsi_buf_puts(page, "&quot;");
        break;
    case '\'':
        dsi_buf_puts(page, "&#39;");
        break;
    default:
        dsi_buf_append(page, bytes, n);
    }
}

/* Of the order of letters, and separators of lines: a name must not disguise what follows it. */
static bool is_hidden(utf8proc_int32_t code)
{
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
           (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || (code & 0xfffe) == 0xfffe;
}

void dsi_html_text(dsi_buf *page, const char *text)
{
    const size_t size = text != NULL ? strlen(text) : 0;
    for (size_t i = 0; i < size;) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + i,
                                                    (utf8proc_ssize_t)(size - i), &code);
        if (n < 1 || is_hidden(code)) {
            dsi_buf_puts(page, "\xef\xbf\xbd");
        } else {
            put_letter(page, code, text + i, (size_t)n);
        }
        i += n < 1 ? 1 : (size_t)n;
    }
}

void dsi_html_json(dsi_buf *page, const char *text)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "<");
        dsi_buf_json(page, text, n);
        text += n;
        if (*text == '<') {
            dsi_buf_puts(page, "\\u003c");
            ++text;
        }
    }
}

void dsi_html_begin(dsi_buf *page, const char *title, const char *kind)
{
    dsi_buf_printf(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" GENERATOR
        "%s\">\n<meta name=\"viewport\" content=\"width=device-width, "
        "initial-scale=1\">\n",
        kind);
    dsi_buf_puts(page, "<title>");
    dsi_html_text(page, title);
    dsi_buf_puts(page, "</title>\n<style>\n");
    for (size_t i = 0; dsi_html_style[i] != NULL; ++i) {
        dsi_buf_puts(page, dsi_html_style[i]);
    }
    dsi_buf_puts(page, "</style>\n</head>\n<body>\n<main>\n");
}

void dsi_html_end(dsi_buf *page, bool script)
{
    dsi_buf_puts(page, "</main>\n");
    if (script) {
        dsi_buf_puts(page, "<script>\n");
        dsi_buf_puts(page, dsi_html_script);
        dsi_buf_puts(page, "</script>\n");
    }
    dsi_buf_puts(page, "</body>\n</html>\n");
}

void dsi_html_tile(dsi_buf *page, const char *name, const char *value, const char *note,
                   const char *tone)
{
    dsi_buf_printf(page, "<div class=\"tile %s\"><span>", tone);
    dsi_html_text(page, name);
    dsi_buf_puts(page, "</span><b>");
    dsi_html_text(page, value);
    dsi_buf_puts(page, "</b>");
    if (note != NULL) {
        dsi_buf_puts(page, "<small>");
        dsi_html_text(page, note);
        dsi_buf_puts(page, "</small>");
    }
    dsi_buf_puts(page, "</div>\n");
}

static bool has_mark(const char *path, const char *kind)
{
    char head[HEAD_BYTES];
    char mark[128];
    FILE *file = fopen(path, "re");
    const size_t n = file != NULL ? fread(head, 1, sizeof head - 1, file) : 0;
    head[n] = '\0';
    if (file != NULL) {
        (void)fclose(file);
    }
    (void)snprintf(mark, sizeof mark, GENERATOR "%s\">", kind);
    return n == 0 || strstr(head, mark) != NULL;
}

ds_status dsi_html_check(ds_ctx *ctx, const char *path, const char *kind)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && !has_mark(path, kind)) {
        return ds_fail(ctx, DS_ERR_STATE,
                       "%s is there and was not written as a %s: it would be lost; move it, or "
                       "give another name",
                       path, kind);
    }
    return dsi_file_check(ctx, path);
}
