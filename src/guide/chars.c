/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of code points, and the bytes that spell one of them. See grammar.h. */
#include "guide/grammar.h"

#include "base/escape.h"

#include <stdio.h>
#include <string.h>

enum { MOST_POINT = 0x10FFFF, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF };

/* Ranges ascend and do not touch. */
void dsi_chars_add(dsi_chars *c, uint32_t low, uint32_t high)
{
    uint32_t at = 0;
    uint32_t end = 0;
    while (at < c->n && c->high[at] + 1 < low) {
        ++at;
    }
    for (end = at; end < c->n && c->low[end] <= high + 1; ++end) {
        low = c->low[end] < low ? c->low[end] : low;
        high = c->high[end] > high ? c->high[end] : high;
    }
    if (end == at && c->n == DSI_CHARS_RANGES) {
        c->full = true;
        return;
    }
    memmove(&c->low[at + 1], &c->low[end], (c->n - end) * sizeof c->low[0]);
    memmove(&c->high[at + 1], &c->high[end], (c->n - end) * sizeof c->high[0]);
    c->low[at] = low;
    c->high[at] = high;
    c->n = c->n - (end - at) + 1;
}

void dsi_chars_invert(dsi_chars *c, uint32_t most)
{
    dsi_chars others = {.full = c->full};
    uint32_t next = 0;
    for (uint32_t i = 0; i < c->n; ++i) {
        if (c->low[i] > next && next <= most) {
            dsi_chars_add(&others, next, c->low[i] - 1 < most ? c->low[i] - 1 : most);
        }
        next = c->high[i] + 1;
    }
    if (next <= most) {
        dsi_chars_add(&others, next, most);
    }
    *c = others;
}

/* Sequences of n bytes from low to high, byte by byte. */
static void put_bytes(dsi_grammar *g, uint32_t at, uint32_t end, const uint8_t *low,
                      const uint8_t *high, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        const uint32_t next = i + 1 == n ? end : dsi_grammar_state(g);
        dsi_grammar_byte(g, at, next, low[i], high[i]);
        at = next;
    }
}

/* Cut until all but equal first bytes go from 80 to BF: then bytes are ranges by themselves. */
static void put_range(dsi_grammar *g, uint32_t at, uint32_t end, uint32_t low, uint32_t high)
{
    static const uint32_t last[] = {0x7F, 0x7FF, 0xFFFF};
    char a[4];
    char b[4];
    for (size_t i = 0; i < 3; ++i) {
        if (low <= last[i] && high > last[i]) {
            put_range(g, at, end, low, last[i]);
            put_range(g, at, end, last[i] + 1, high);
            return;
        }
    }
    for (uint32_t bits = 6; bits <= 18 && high > 0x7F; bits += 6) {
        const uint32_t mask = (1u << bits) - 1;
        if ((low & ~mask) == (high & ~mask)) {
            break;
        }
        if ((low & mask) != 0) {
            put_range(g, at, end, low, low | mask);
            put_range(g, at, end, (low | mask) + 1, high);
            return;
        }
        if ((high & mask) != mask) {
            put_range(g, at, end, low, (high & ~mask) - 1);
            put_range(g, at, end, high & ~mask, high);
            return;
        }
    }
    const size_t n = dsi_utf8_encode(low, a);
    (void)dsi_utf8_encode(high, b);
    put_bytes(g, at, end, (const uint8_t *)a, (const uint8_t *)b, n);
}

/* RFC 8259, section 7: a quotation mark, a backslash and controls are escaped. */
static void put_escaped(dsi_grammar *g, uint32_t at, uint32_t end, uint32_t point)
{
    static const char letters[] = "\b\f\n\r\t\"\\";
    static const char names[] = "bfnrt\"\\";
    const char *found = point != 0 ? strchr(letters, (int)point) : NULL;
    char text[8];
    if (found != NULL) {
        (void)snprintf(text, sizeof text, "\\%c", names[found - letters]);
    } else {
        (void)snprintf(text, sizeof text, "\\u%04x", point);
    }
    dsi_grammar_empty(g, dsi_grammar_text(g, at, text, strlen(text)), end);
}

static bool is_escaped(uint32_t point)
{
    return point < 0x20 || point == '"' || point == '\\';
}

static void put_quoted(dsi_grammar *g, uint32_t at, uint32_t end, uint32_t low, uint32_t high)
{
    while (low <= high && low <= '\\') {
        uint32_t plain = low;
        while (plain <= high && plain <= '\\' && !is_escaped(plain)) {
            ++plain;
        }
        if (plain > low) {
            put_range(g, at, end, low, plain - 1);
        } else {
            put_escaped(g, at, end, plain++);
        }
        low = plain;
    }
    if (low <= high) {
        put_range(g, at, end, low, high);
    }
}

uint32_t dsi_chars_put(dsi_grammar *g, uint32_t at, const dsi_chars *c, bool quoted)
{
    const uint32_t end = dsi_grammar_state(g);
    dsi_chars valid = {0};
    for (uint32_t i = 0; i < c->n; ++i) { /* surrogates are no characters */
        const uint32_t low = c->low[i];
        const uint32_t high = c->high[i] < MOST_POINT ? c->high[i] : MOST_POINT;
        if (low < FIRST_SURROGATE) {
            dsi_chars_add(&valid, low, high < FIRST_SURROGATE ? high : FIRST_SURROGATE - 1);
        }
        if (high > LAST_SURROGATE) {
            dsi_chars_add(&valid, low > LAST_SURROGATE ? low : LAST_SURROGATE + 1, high);
        }
    }
    if (c->full || valid.full) {
        return dsi_grammar_fail(g, "a class has more than %d ranges", DSI_CHARS_RANGES);
    }
    if (valid.n == 0) {
        return dsi_grammar_fail(g, "a class holds no character");
    }
    for (uint32_t i = 0; i < valid.n; ++i) {
        if (quoted) {
            put_quoted(g, at, end, valid.low[i], valid.high[i]);
        } else {
            put_range(g, at, end, valid.low[i], valid.high[i]);
        }
    }
    return end;
}
