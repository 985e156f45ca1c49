/* SPDX-License-Identifier: Apache-2.0 */
/* What escapes in texts are made of: hexadecimal digits, and the UTF-8 of a code point. Called by
 * the readers of JSON, configurations, templates and tokenizers. */
#ifndef DSI_BASE_ESCAPE_H
#define DSI_BASE_ESCAPE_H

#include <stddef.h>
#include <stdint.h>

/* -1: none. */
static inline int dsi_hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* The value of four digits; -1: one is none. */
static inline int dsi_hex4(const char *p)
{
    int value = 0;
    for (int i = 0; i < 4; ++i) {
        const int digit = dsi_hex_digit(p[i]);
        if (digit < 0) {
            return -1;
        }
        value = value * 16 + digit;
    }
    return value;
}

/* Writes a code point below 0x110000 as UTF-8 and returns its bytes, 1 to 4. */
static inline size_t dsi_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 63));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 63));
        out[2] = (char)(0x80 | (cp & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 63));
    out[2] = (char)(0x80 | (cp >> 6 & 63));
    out[3] = (char)(0x80 | (cp & 63));
    return 4;
}

#endif
