/* SPDX-License-Identifier: Apache-2.0 */
/* See base64.h. */
#include "launch/base64.h"

#include <stdint.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void dsi_base64_encode(dsi_buf *buf, const void *data, size_t n)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t word = (uint32_t)bytes[i] << 16 |
                              (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? (uint32_t)bytes[i + 2] : 0);
        dsi_buf_putc(buf, digits[word >> 18]);
        dsi_buf_putc(buf, digits[word >> 12 & 63]);
        dsi_buf_putc(buf, left > 1 ? digits[word >> 6 & 63] : '=');
        dsi_buf_putc(buf, left > 2 ? digits[word & 63] : '=');
    }
}

static int digit_of(char c)
{
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

bool dsi_base64_decode(dsi_buf *buf, const char *text, size_t n)
{
    if (n % 4 != 0) {
        return false;
    }
    for (size_t i = 0; i < n; i += 4) {
        const bool is_last = i + 4 == n;
        const int pads = is_last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
        uint32_t word = 0;
        for (int k = 0; k < 4; ++k) {
            const int digit = k >= 4 - pads ? 0 : digit_of(text[i + (size_t)k]);
            if (digit < 0) {
                return false;
            }
            word = word << 6 | (uint32_t)digit;
        }
        for (int k = 0; k < 3 - pads; ++k) {
            dsi_buf_putc(buf, (char)(word >> (16 - 8 * k) & 255));
        }
    }
    return true;
}
