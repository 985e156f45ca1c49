/* SPDX-License-Identifier: Apache-2.0 */
/* Common JSON, read quickly: see json_load.h.
 *
 * jansson looks at each byte by several calls, which for rows of text takes as long as to tokenize
 * them. Here runs of plain characters are passed over eight at a time. What is not common (a real,
 * a long number, a surrogate, a zero byte, anything wrong) is not judged here: the answer is NULL,
 * and jansson reads the text again. What is read is the value that jansson gives.
 */
#include "io/json_quick.h"

#include "base/escape.h"

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 256, MAX_DIGITS = 18 };

typedef struct quick {
    const char *p, *end;
    char *room; /* for a string with escapes, eight bytes larger than the text */
    size_t n_text;
    int depth;
} quick;

static json_t *value(quick *q);

static void space(quick *q)
{
    while (q->p < q->end && (*q->p == ' ' || *q->p == '\n' || *q->p == '\t' || *q->p == '\r')) {
        ++q->p;
    }
}

static bool take(quick *q, char c)
{
    const bool is = q->p < q->end && *q->p == c;
    q->p += is;
    return is;
}

/* ---- strings ---- */

static bool is_plain(char c)
{
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x80 && c != '"' && c != '\\';
}

/* How many of the eight bytes at p come before one that is a control character, a quote, a
 * backslash or no ASCII. */
static unsigned plain_of_eight(const char *p)
{
    static const uint64_t ones = UINT64_C(0x0101010101010101);
    static const uint64_t high = UINT64_C(0x8080808080808080);
    uint64_t x;
    memcpy(&x, p, sizeof x);
    x = le64toh(x);
    const uint64_t quote = x ^ (ones * '"');
    const uint64_t slash = x ^ (ones * '\\');
    const uint64_t hits = (x | (x - ones * 0x20) | (quote - ones) | (slash - ones)) & high;
    /* The lowest is right: only a byte that is one borrows from the next. */
    return hits != 0 ? (unsigned)__builtin_ctzll(hits) >> 3 : 8;
}

/* The first byte that is not plain. */
static const char *plain_end(const char *p, const char *end)
{
    unsigned n = 8;
    for (; n == 8 && end - p >= 8; p += n) {
        n = plain_of_eight(p);
    }
    while (n == 8 && p < end && is_plain(*p)) {
        ++p;
    }
    return p;
}

/* The same, and copies what comes before, up to eight bytes more. */
static const char *copy_plain(const char *p, const char *end, char *out)
{
    unsigned n = 8;
    for (; n == 8 && end - p >= 8; p += n, out += n) {
        memcpy(out, p, 8);
        n = plain_of_eight(p);
    }
    while (n == 8 && p < end && is_plain(*p)) {
        *out++ = *p++;
    }
    return p;
}

/* Bytes of the well-formed UTF-8 sequence at p, which is no ASCII; 0: there is none. */
static size_t sequence(const char *p, const char *end)
{
    const unsigned char *s = (const unsigned char *)p;
    const size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0xC2 || s[0] > 0xF4 || (size_t)(end - p) < n) {
        return 0;
    }
    uint32_t c = s[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; ++i) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
        c = c << 6 | (s[i] & 0x3F);
    }
    return c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ? 0 : n;
}

/* The escape at p, behind its backslash; *n_out bytes of it are written. */
static bool escape(quick *q, char *out, size_t *n_out)
{
    static const char means[256] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                    ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};
    const char meant = q->p < q->end ? means[(unsigned char)*q->p] : '\0';
    if (meant != '\0') {
        *out = meant;
        *n_out = 1;
        ++q->p;
        return true;
    }
    const int c = q->end - q->p >= 5 && *q->p == 'u' ? dsi_hex4(q->p + 1) : -1;
    if (c <= 0 || (c >= 0xD800 && c < 0xE000)) {
        return false;
    }
    *n_out = dsi_utf8_encode((uint32_t)c, out); /* at most three bytes for six of the text */
    q->p += 5;
    return true;
}

/* The rest of a string whose first n bytes are in q->room. */
static bool decode(quick *q, size_t n, size_t *n_out)
{
    for (;;) {
        const char *begin = q->p;
        q->p = copy_plain(begin, q->end, q->room + n);
        n += (size_t)(q->p - begin);
        if (q->p < q->end && (unsigned char)*q->p >= 0x80) {
            const size_t step = sequence(q->p, q->end);
            memcpy(q->room + n, q->p, step);
            n += step;
            q->p += step;
            if (step == 0) {
                return false;
            }
            continue;
        }
        if (take(q, '"')) {
            *n_out = n;
            return true;
        }
        size_t added = 0;
        if (!take(q, '\\') || !escape(q, q->room + n, &added)) {
            return false;
        }
        n += added;
    }
}

/* The bytes of the string at p, behind its quote: in the text, or in q->room. */
static bool string(quick *q, const char **bytes_out, size_t *n_out)
{
    const char *begin = q->p;
    q->p = plain_end(q->p, q->end);
    if (take(q, '"')) {
        *bytes_out = begin;
        *n_out = (size_t)(q->p - begin) - 1;
        return true;
    }
    if (q->room == NULL) {
        q->room = malloc(q->n_text + 8);
    }
    if (q->room == NULL) {
        return false;
    }
    memcpy(q->room, begin, (size_t)(q->p - begin));
    *bytes_out = q->room;
    return decode(q, (size_t)(q->p - begin), n_out);
}

/* ---- the other values ---- */

static json_t *number(quick *q)
{
    const bool negative = take(q, '-');
    const char *begin = q->p;
    uint64_t n = 0; /* room for a digit more than is taken */
    while (q->p < q->end && *q->p >= '0' && *q->p <= '9' && q->p - begin <= MAX_DIGITS) {
        n = n * 10 + (uint64_t)(*q->p++ - '0');
    }
    const long digits = q->p - begin;
    const char after = q->p < q->end ? *q->p : ' ';
    if (digits == 0 || digits > MAX_DIGITS || (*begin == '0' && (digits > 1 || negative)) ||
        strchr(",]} \n\t\r", after) == NULL || after == '\0') {
        return NULL;
    }
    return json_integer(negative ? -(json_int_t)n : (json_int_t)n);
}

static bool word(quick *q, const char *text)
{
    const size_t n = strlen(text);
    if ((size_t)(q->end - q->p) <= n || memcmp(q->p, text, n) != 0 ||
        memchr(",]} \n\t\r", q->p[n], 7) == NULL) {
        return false;
    }
    q->p += n;
    return true;
}

static bool members(quick *q, json_t *object)
{
    space(q);
    if (take(q, '}')) {
        return true;
    }
    for (;;) {
        const char *bytes = NULL;
        size_t n = 0;
        space(q);
        if (!take(q, '"') || !string(q, &bytes, &n)) {
            return false;
        }
        char *key = bytes == q->room ? strndup(bytes, n) : NULL; /* the value needs the room */
        space(q);
        json_t *member = take(q, ':') && (key != NULL || bytes != q->room) ? value(q) : NULL;
        const bool set = member != NULL && json_object_setn_new_nocheck(
                                               object, key != NULL ? key : bytes, n, member) == 0;
        free(key);
        if (!set) {
            return false;
        }
        space(q);
        if (!take(q, ',')) {
            return take(q, '}');
        }
    }
}

static bool items(quick *q, json_t *array)
{
    space(q);
    if (take(q, ']')) {
        return true;
    }
    for (;;) {
        json_t *item = value(q);
        if (item == NULL || json_array_append_new(array, item) != 0) {
            return false;
        }
        space(q);
        if (!take(q, ',')) {
            return take(q, ']');
        }
    }
}

static json_t *container(quick *q, bool is_object)
{
    json_t *json = is_object ? json_object() : json_array();
    ++q->depth;
    if (json == NULL || q->depth > MAX_DEPTH || !(is_object ? members(q, json) : items(q, json))) {
        json_decref(json);
        return NULL;
    }
    --q->depth;
    return json;
}

static json_t *value(quick *q)
{
    const char *bytes = NULL;
    size_t n = 0;
    space(q);
    if (take(q, '"')) {
        return string(q, &bytes, &n) ? json_stringn_nocheck(bytes, n) : NULL;
    }
    if (take(q, '{')) {
        return container(q, true);
    }
    if (take(q, '[')) {
        return container(q, false);
    }
    if (word(q, "true")) {
        return json_true();
    }
    if (word(q, "false")) {
        return json_false();
    }
    return word(q, "null") ? json_null() : number(q);
}

json_t *dsi_json_quick(const char *text, size_t n)
{
    quick q = {.p = text, .end = text + n, .n_text = n};
    json_t *json = NULL;
    space(&q);
    if (q.p < q.end && (*q.p == '{' || *q.p == '[')) {
        json = value(&q);
    }
    space(&q);
    free(q.room);
    if (q.p < q.end) {
        json_decref(json);
        return NULL;
    }
    return json;
}
