/* One spelling for Jinja templates, so that they can be recognised by what they say.
 *
 * Called by ds_chat_create. Follows the environment that transformers renders in: trim_blocks and
 * lstrip_blocks are on, a trailing newline is dropped. This is a lexer only; nothing is executed.
 */
#include "data/chat_template.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The end of a tag's inside that starts at p: where its "}}" or "%}" stands, outside of strings. */
static const char *tag_end(const char *p, const char *end, char close)
{
    char quote = '\0';
    for (; p + 1 < end; ++p) {
        if (quote != '\0') {
            if (*p == '\\') {
                ++p;
            } else if (*p == quote) {
                quote = '\0';
            }
        } else if (close != '#' && (*p == '\'' || *p == '"')) {
            quote = *p;
        } else if (*p == close && p[1] == '}') {
            return p;
        }
    }
    return NULL;
}

/* Writes the string literal at *at (a quote) with its escapes resolved; *at ends behind it. A
 * literal that is added to the one before continues it. */
static void literal(dsi_buf *out, const char **at, const char *end)
{
    const char quote = **at;
    const char *p = *at + 1;
    const bool continues = out->size >= 2 && memcmp(out->data + out->size - 2, "'+", 2) == 0;
    if (continues) {
        out->size -= 2;
    } else {
        dsi_buf_putc(out, '\'');
    }
    for (; p < end && *p != quote; ++p) {
        if (*p != '\\' || p + 1 == end) {
            dsi_buf_putc(out, *p);
            continue;
        }
        ++p;
        dsi_buf_putc(out, (char)(*p == 'n' ? '\n' : *p == 't' ? '\t' : *p == 'r' ? '\r' : *p));
    }
    dsi_buf_putc(out, '\'');
    *at = p < end ? p + 1 : end;
}

/* ['name'] as .name: returns the bytes taken, 0 when it is something else. */
static size_t member(dsi_buf *out, const char *p, const char *end)
{
    if (end - p < 5 || (p[1] != '\'' && p[1] != '"')) {
        return 0;
    }
    size_t n = 2;
    while (p + n < end && is_name(p[n])) {
        ++n;
    }
    if (n == 2 || p + n + 1 >= end || p[n] != p[1] || p[n + 1] != ']') {
        return 0;
    }
    dsi_buf_putc(out, '.');
    dsi_buf_append(out, p + 2, n - 2);
    return n + 2;
}

/* The inside of {{ }} or {% %}. */
static void expression(dsi_buf *out, const char *p, const char *end)
{
    while (p < end) {
        if (is_blank(*p)) {
            const char *next = p;
            while (next < end && is_blank(*next)) {
                ++next;
            }
            const bool between =
                out->size > 0 && next < end && is_name(out->data[out->size - 1]) && is_name(*next);
            if (between) {
                dsi_buf_putc(out, ' ');
            }
            p = next;
        } else if (*p == '\'' || *p == '"') {
            literal(out, &p, end);
        } else {
            const size_t taken = *p == '[' ? member(out, p, end) : 0;
            if (taken == 0) {
                dsi_buf_putc(out, *p++);
            }
            p += taken;
        }
    }
}

typedef struct edges {
    bool strip_start;  /* the tag before ended with '-' */
    bool drop_newline; /* the tag before was a block or a comment */
    bool strip_end;    /* the tag after starts with '-' */
    bool strip_line;   /* the tag after is a block or a comment */
} edges;

/* Text between tags, after white space control. `line_start`: it begins at the start of a line. */
static void plain(dsi_buf *out, const char *p, const char *end, edges e, bool line_start)
{
    if (e.strip_start) {
        while (p < end && is_blank(*p)) {
            ++p;
        }
    } else if (e.drop_newline && p < end && *p == '\n') {
        ++p;
        line_start = true;
    }
    if (e.strip_end) {
        while (end > p && is_blank(end[-1])) {
            --end;
        }
    } else if (e.strip_line) {
        const char *back = end;
        while (back > p && (back[-1] == ' ' || back[-1] == '\t')) {
            --back;
        }
        if ((back == p && line_start) || (back > p && back[-1] == '\n')) {
            end = back;
        }
    }
    dsi_buf_append(out, p, (size_t)(end - p));
}

static const char *find_tag(const char *p, const char *end)
{
    for (; p + 1 < end; ++p) {
        if (*p == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#')) {
            return p;
        }
    }
    return end;
}

void dsi_chat_canonical(const char *text, size_t n, dsi_buf *out)
{
    const char *p = text;
    const char *end = text + n;
    end -= end > p && end[-1] == '\n';
    edges e = {0};
    bool line_start = true;
    while (p < end) {
        const char *open = find_tag(p, end);
        const char kind = open < end ? open[1] : '\0';
        e.strip_end = open + 2 < end && open[2] == '-';
        e.strip_line = (kind == '%' || kind == '#') && !(open + 2 < end && open[2] == '+');
        plain(out, p, open, e, line_start);
        if (open == end) {
            return;
        }
        const char close = (char)(kind == '{' ? '}' : kind);
        const char *inside = open + 2 + (e.strip_end || (open + 2 < end && open[2] == '+'));
        const char *stop = inside <= end ? tag_end(inside, end, close) : NULL;
        if (stop == NULL) {
            dsi_buf_append(out, open, (size_t)(end - open)); /* unfinished: matches nothing */
            return;
        }
        const bool minus = stop > inside && stop[-1] == '-';
        const bool plus = stop > inside && stop[-1] == '+';
        if (kind != '#') {
            dsi_buf_append(out, open, 2);
            expression(out, inside, stop - (minus || plus));
            dsi_buf_append(out, stop, 2);
        }
        e = (edges){.strip_start = minus, .drop_newline = kind != '{' && !plus};
        p = stop + 2;
        line_start = false;
    }
}
