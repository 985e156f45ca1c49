/* SPDX-License-Identifier: Apache-2.0 */
/* See form_reader.h. */
#include "guide/form_reader.h"

#include "base/escape.h"

#include <string.h>

enum { MOST_COUNT = 100000 };

uint32_t dsi_form_reader_fail(dsi_form_reader *r, const char *message)
{
    size_t line = 1;
    size_t begin = 0;
    for (size_t i = 0; i < r->at && i < r->n; ++i) {
        line += r->text[i] == '\n';
        begin = r->text[i] == '\n' ? i + 1 : begin;
    }
    return dsi_grammar_fail(r->g, "%s, line %zu, byte %zu: %s", r->what, line, r->at - begin + 1,
                            message);
}

char dsi_form_reader_peek(const dsi_form_reader *r)
{
    return r->at < r->n ? r->text[r->at] : '\0';
}

bool dsi_form_reader_skip(dsi_form_reader *r, const char *word)
{
    const size_t n = strlen(word);
    const bool is = r->n - r->at >= n && memcmp(r->text + r->at, word, n) == 0;
    r->at += is ? n : 0;
    return is;
}

uint32_t dsi_form_reader_point(dsi_form_reader *r)
{
    const unsigned char *p = (const unsigned char *)r->text + r->at;
    if (r->at >= r->n) {
        return dsi_form_reader_fail(r, "it ends where a character is expected");
    }
    const size_t size = p[0] < 0x80 ? 1 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    uint32_t point = size == 1 ? p[0] : p[0] & (0x7Fu >> size);
    if (r->n - r->at < size || (p[0] >= 0x80 && p[0] < 0xC2) || p[0] > 0xF4) {
        return dsi_form_reader_fail(r, "no UTF-8");
    }
    for (size_t i = 1; i < size; ++i) {
        point = point << 6 | (p[i] & 63u);
    }
    r->at += size;
    return point;
}

uint32_t dsi_form_reader_hex(dsi_form_reader *r, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; ++i, ++r->at) {
        const int digit = dsi_hex_digit(dsi_form_reader_peek(r));
        if (digit < 0) {
            return dsi_form_reader_fail(r, "expected hexadecimal digits");
        }
        value = value * 16 + (uint32_t)digit;
    }
    return value;
}

uint32_t dsi_form_reader_fresh(dsi_form_reader *r, uint32_t at)
{
    const uint32_t state = dsi_grammar_state(r->g);
    dsi_grammar_empty(r->g, at, state);
    return state;
}

/* -1: none. */
static int64_t read_number(dsi_form_reader *r)
{
    int64_t n = -1;
    while (dsi_form_reader_peek(r) >= '0' && dsi_form_reader_peek(r) <= '9' && n <= MOST_COUNT) {
        n = (n < 0 ? 0 : n) * 10 + (r->text[r->at++] - '0');
    }
    if (n > MOST_COUNT) {
        (void)dsi_form_reader_fail(r, "a count is too large");
    }
    return n;
}

/* *most -1: no bound. Without any: once. */
static void read_count(dsi_form_reader *r, int64_t *least, int64_t *most)
{
    const bool any = dsi_form_reader_skip(r, "*");
    const bool some = !any && dsi_form_reader_skip(r, "+");
    const bool maybe = !any && !some && dsi_form_reader_skip(r, "?");
    *least = any || maybe ? 0 : 1;
    *most = any || some ? -1 : 1;
    if (any || some || maybe || !dsi_form_reader_skip(r, "{")) {
        return;
    }
    *least = read_number(r);
    *most = *least;
    if (dsi_form_reader_skip(r, ",")) {
        *most = read_number(r);
        *least = *least < 0 ? 0 : *least;
    }
    if (*least < 0 || (*most >= 0 && *most < *least) || !dsi_form_reader_skip(r, "}")) {
        (void)dsi_form_reader_fail(r, "expected {m}, {m,} or {m,n} with m not above n");
    }
}

uint32_t dsi_form_reader_repeated(dsi_form_reader *r, uint32_t at,
                                  uint32_t (*put)(dsi_form_reader *r, uint32_t at))
{
    const size_t begin = r->at;
    int64_t least = 0;
    int64_t most = 0;
    uint32_t start = dsi_form_reader_fresh(r, at);
    uint32_t behind = put(r, start);
    read_count(r, &least, &most);
    const size_t end = r->at;
    const uint32_t done = dsi_grammar_state(r->g);
    if (least == 0) {
        dsi_grammar_empty(r->g, start, done);
    }
    for (int64_t i = 1; most != 0 && dsi_grammar_work(r->g); ++i) {
        if (i >= least) {
            dsi_grammar_empty(r->g, behind, done);
        }
        if (i >= least && most < 0) {
            dsi_grammar_empty(r->g, behind, start);
        }
        if (i == most || (i >= least && most < 0)) {
            break;
        }
        r->at = begin;
        start = dsi_form_reader_fresh(r, behind);
        behind = put(r, start);
    }
    r->at = end;
    return done;
}
