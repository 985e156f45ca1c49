/* SPDX-License-Identifier: Apache-2.0 */
/* Work on texts that both methods and filters do: strip, replace, case, lines. See jinja_method.c.
 */
#include "data/jinja/jinja_strings.h"

#include <string.h>

static size_t decode(const char *p, const char *end, uint32_t *cp)
{
    return dsi_utf8_decode((const unsigned char *)p, (const unsigned char *)end, cp);
}

static bool has_char(dsi_ji *j, dsi_jv chars, const char *p, size_t n)
{
    return n > 0 && dsi_ji_step(j, 1 + chars.n / 64) && memmem(chars.text, chars.n, p, n) != NULL;
}

/* Where the last character of a text begins. */
static const char *last_char(const char *begin, const char *end)
{
    const char *p = end - 1;
    while (p > begin && ((unsigned char)*p & 0xC0) == 0x80) {
        --p;
    }
    return p;
}

dsi_jv dsi_ji_strip(dsi_ji *j, dsi_jv s, dsi_jv chars, dsi_ji_sides sides)
{
    const char *begin = s.text;
    const char *end = s.text + s.n;
    (void)dsi_ji_step(j, s.n / 64);
    if (chars.kind == DSI_JV_MISSING || chars.kind == DSI_JV_NONE) {
        begin = sides & DSI_JI_LEFT ? dsi_ji_skip_space(begin, end) : begin;
        end = sides & DSI_JI_RIGHT ? dsi_ji_trim_end(begin, end) : end;
        return dsi_jv_str(begin, (size_t)(end - begin));
    }
    if (chars.kind != DSI_JV_STR) {
        return dsi_ji_wrong(j, "strip() takes a text or None, not %s", dsi_ji_type(chars));
    }
    while ((sides & DSI_JI_LEFT) && begin < end) {
        uint32_t cp;
        const size_t n = decode(begin, end, &cp);
        if (!has_char(j, chars, begin, n)) {
            break;
        }
        begin += n;
    }
    while ((sides & DSI_JI_RIGHT) && begin < end) {
        const char *p = last_char(begin, end);
        if (!has_char(j, chars, p, (size_t)(end - p))) {
            break;
        }
        end = p;
    }
    return dsi_jv_str(begin, (size_t)(end - begin));
}

/* Before each character and at the end, where nothing is to be replaced; count < 0: everywhere. */
static void replace_nothing(dsi_buf *out, dsi_jv s, dsi_jv new, int64_t count)
{
    const char *p = s.text;
    const char *end = s.text + s.n;
    while (count != 0 && !out->failed) {
        uint32_t cp;
        dsi_buf_append(out, new.text, new.n);
        --count;
        if (p >= end) {
            return;
        }
        const size_t n = decode(p, end, &cp);
        dsi_buf_append(out, p, n);
        p += n;
    }
    dsi_buf_append(out, p, (size_t)(end - p));
}

dsi_jv dsi_ji_replace(dsi_ji *j, dsi_jv s, dsi_jv old, dsi_jv new, int64_t count)
{
    dsi_buf out = dsi_buf_make(1 << 28);
    (void)dsi_ji_step(j, s.n / 16);
    if (old.n == 0) {
        replace_nothing(&out, s, new, count);
        return dsi_ji_buffer(j, &out);
    }
    const char *p = s.text;
    const char *end = s.text + s.n;
    while (p < end && count != 0) {
        const char *at = memmem(p, (size_t)(end - p), old.text, old.n);
        if (at == NULL) {
            break;
        }
        dsi_buf_append(&out, p, (size_t)(at - p));
        dsi_buf_append(&out, new.text, new.n);
        p = at + old.n;
        --count;
        if (!dsi_ji_step(j, 1 + new.n / 64)) {
            break;
        }
    }
    dsi_buf_append(&out, p, (size_t)(end - p));
    return dsi_ji_buffer(j, &out);
}

static void put_recased(dsi_ji *j, dsi_buf *out, const char *p, const char *end, dsi_ji_case how)
{
    (void)dsi_ji_step(j, (size_t)(end - p) / 16);
    while (p < end && !j->failed) {
        uint32_t cp;
        uint32_t other;
        char utf8[4];
        const size_t n = decode(p, end, &cp);
        if (cp == DSI_UTF8_BAD || !dsi_ji_recase(cp, how, &other)) {
            (void)dsi_ji_refuse(j, "another case of U+%04X", cp);
            return;
        }
        dsi_buf_append(out, utf8, dsi_utf8_encode(other, utf8));
        p += n;
    }
}

dsi_jv dsi_ji_recased(dsi_ji *j, dsi_jv s, dsi_ji_case how)
{
    dsi_buf out = dsi_buf_make(1 << 28);
    put_recased(j, &out, s.text, s.text + s.n, how);
    return dsi_ji_buffer(j, &out);
}

dsi_jv dsi_ji_capitalize(dsi_ji *j, dsi_jv s)
{
    dsi_buf out = dsi_buf_make(1 << 28);
    const char *second = dsi_ji_char_at(s.text, s.n, 1);
    put_recased(j, &out, s.text, second, DSI_JI_TITLE);
    put_recased(j, &out, second, s.text + s.n, DSI_JI_LOWER);
    return dsi_ji_buffer(j, &out);
}

dsi_jv dsi_ji_join(dsi_ji *j, dsi_jv between, const dsi_jv *at, size_t n)
{
    dsi_buf out = dsi_buf_make(1 << 28);
    for (size_t i = 0; i < n && dsi_ji_step(j, 1); ++i) {
        if (i > 0) {
            dsi_buf_append(&out, between.text, between.n);
        }
        dsi_ji_put(j, &out, at[i]);
    }
    return dsi_ji_buffer(j, &out);
}

dsi_jv dsi_ji_center(dsi_ji *j, dsi_jv s, int64_t width, char fill)
{
    const int64_t n = dsi_ji_length(j, s);
    const int64_t pad = width > n ? width - n : 0;
    const int64_t left = pad / 2 + (pad & width & 1);
    if (pad > 1 << 20) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "a text of such a width");
    }
    dsi_buf out = dsi_buf_make(1 << 28);
    for (int64_t i = 0; i < pad; ++i) {
        if (i == left) {
            dsi_buf_append(&out, s.text, s.n);
        }
        dsi_buf_putc(&out, fill);
    }
    if (left >= pad) {
        dsi_buf_append(&out, s.text, s.n);
    }
    return dsi_ji_buffer(j, &out);
}

dsi_jv dsi_ji_splitlines(dsi_ji *j, dsi_jv s, bool keep)
{
    size_t room = 16;
    size_t count = 0;
    (void)dsi_ji_step(j, s.n / 16);
    dsi_jv *at = dsi_ji_alloc(j, room, sizeof *at);
    const char *p = s.text;
    const char *end = s.text + s.n;
    const char *line = p;
    while (line < end && at != NULL) {
        uint32_t cp = 0;
        size_t n = 0;
        for (p = line; p < end; p += n) {
            n = decode(p, end, &cp);
            if (dsi_ji_is_line_end(cp)) {
                break;
            }
        }
        const char *stop = p;
        if (p < end) {
            p += n;
            p += cp == '\r' && p < end && *p == '\n';
        }
        if (count == room) {
            dsi_jv *grown = dsi_ji_alloc(j, room * 2, sizeof *grown);
            if (grown == NULL) {
                break;
            }
            memcpy(grown, at, count * sizeof *grown);
            at = grown;
            room *= 2;
        }
        at[count++] = dsi_jv_str(line, (size_t)((keep ? p : stop) - line));
        line = p;
    }
    return dsi_ji_list(j, at, count, DSI_JV_LIST);
}

bool dsi_ji_is_cased(dsi_ji *j, dsi_jv s, dsi_ji_class how)
{
    bool any = false;
    const char *end = s.text + s.n;
    (void)dsi_ji_step(j, s.n / 16);
    for (const char *p = s.text; p < end && !j->failed;) {
        uint32_t cp;
        p += decode(p, end, &cp);
        const unsigned classes = dsi_ji_classes(cp);
        if (classes & DSI_JI_UNKNOWN) {
            (void)dsi_ji_refuse(j, "the case of U+%04X", cp);
        }
        if (classes & (DSI_JI_CASED_LOWER | DSI_JI_CASED_UPPER)) {
            if (!(classes & (unsigned)how)) {
                return false;
            }
            any = true;
        }
    }
    return any;
}
