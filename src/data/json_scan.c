/* SPDX-License-Identifier: Apache-2.0 */
/* The scanner of json_scan.h. */
#include "data/json_scan.h"

#include "base/escape.h"

#include <stdio.h>
#include <string.h>

ds_status dsi_json_scan_bad(const dsi_json_scan *r, const char *what)
{
    size_t line = 1;
    for (const char *p = r->begin; p < r->p && p < r->end; ++p) {
        line += *p == '\n';
    }
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s:%zu: %s", r->path, line, what);
}

void dsi_json_scan_space(dsi_json_scan *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')) {
        ++r->p;
    }
}

bool dsi_json_scan_at(dsi_json_scan *r, char c)
{
    dsi_json_scan_space(r);
    return r->p < r->end && *r->p == c;
}

ds_status dsi_json_scan_expect(dsi_json_scan *r, char c)
{
    if (!dsi_json_scan_at(r, c)) {
        char what[64];
        (void)snprintf(what, sizeof what, "expected '%c'", c);
        return dsi_json_scan_bad(r, what);
    }
    ++r->p;
    return DS_OK;
}

/* The character of \uXXXX (r->p is behind the u), two of them for a surrogate pair. */
static ds_status read_unicode_escape(dsi_json_scan *r, char **out)
{
    const int first = r->end - r->p >= 4 ? dsi_hex4(r->p) : -1;
    if (first < 0) {
        return dsi_json_scan_bad(r, "bad \\u escape");
    }
    r->p += 4;
    uint32_t cp = (uint32_t)first;
    if (first >= 0xD800 && first < 0xE000) {
        const int second =
            r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u' ? dsi_hex4(r->p + 2) : -1;
        if (first >= 0xDC00 || second < 0xDC00 || second > 0xDFFF) {
            return dsi_json_scan_bad(r, "unpaired surrogate in a \\u escape");
        }
        r->p += 6;
        cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)second - 0xDC00);
    }
    *out += dsi_utf8_encode(cp, *out);
    return DS_OK;
}

/* Reads a string into out, which has room for all that is left of the file. */
ds_status dsi_json_scan_string(dsi_json_scan *r, char **out)
{
    DS_TRY(dsi_json_scan_expect(r, '"'));
    char *to = *out;
    for (;;) {
        if (r->p == r->end) {
            return dsi_json_scan_bad(r, "unfinished string");
        }
        const unsigned char c = (unsigned char)*r->p++;
        if (c == '"') {
            break;
        }
        if (c < 0x20) {
            --r->p;
            return dsi_json_scan_bad(r, "control character in a string");
        }
        if (c != '\\') {
            *to++ = (char)c;
            continue;
        }
        if (r->p == r->end) {
            return dsi_json_scan_bad(r, "unfinished string");
        }
        const char letter = *r->p++;
        static const char from[] = "\"\\/bfnrt";
        static const char into[] = "\"\\/\b\f\n\r\t";
        const char *known = letter != '\0' ? strchr(from, letter) : NULL;
        if (known != NULL) {
            *to++ = into[known - from];
        } else if (letter == 'u') {
            DS_TRY(read_unicode_escape(r, &to));
        } else {
            return dsi_json_scan_bad(r, "unknown escape in a string");
        }
    }
    *out = to;
    return DS_OK;
}

static ds_status skip_string(dsi_json_scan *r)
{
    DS_TRY(dsi_json_scan_expect(r, '"'));
    while (r->p < r->end && *r->p != '"') {
        r->p += *r->p == '\\' ? 2 : 1;
    }
    if (r->p >= r->end) {
        r->p = r->end;
        return dsi_json_scan_bad(r, "unfinished string");
    }
    ++r->p;
    return DS_OK;
}

/* Skips a value. Only brackets are counted: jansson or a dsi_json_scan of ours checks what is
 * inside. */
ds_status dsi_json_scan_skip(dsi_json_scan *r)
{
    size_t depth = 0;
    do {
        dsi_json_scan_space(r);
        if (r->p == r->end) {
            return dsi_json_scan_bad(r, "the file ends within a value");
        }
        const char c = *r->p;
        if (c == '"') {
            DS_TRY(skip_string(r));
        } else if (c == '{' || c == '[') {
            ++depth;
            ++r->p;
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return dsi_json_scan_bad(r, "expected a value");
            }
            --depth;
            ++r->p;
        } else {
            ++r->p; /* part of a number or word, a comma or a colon */
            while (depth == 0 && r->p < r->end && strchr(" \n\r\t,}]", *r->p) == NULL) {
                ++r->p;
            }
        }
    } while (depth > 0);
    return DS_OK;
}

/* Walks through the object at r->p; r->p ends behind it. */
ds_status dsi_json_scan_members(dsi_json_scan *r, dsi_json_member_fn take, void *arg)
{
    DS_TRY(dsi_json_scan_expect(r, '{'));
    if (dsi_json_scan_at(r, '}')) {
        ++r->p;
        return DS_OK;
    }
    for (;;) {
        dsi_json_scan_space(r);
        const char *key = r->p + 1;
        DS_TRY(skip_string(r));
        const size_t n_key = (size_t)(r->p - 1 - key);
        DS_TRY(dsi_json_scan_expect(r, ':'));
        dsi_json_scan_space(r);
        DS_TRY(take(r, key, n_key, arg));
        if (!dsi_json_scan_at(r, ',')) {
            return dsi_json_scan_expect(r, '}');
        }
        ++r->p;
    }
}
