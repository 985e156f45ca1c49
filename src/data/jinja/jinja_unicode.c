/* SPDX-License-Identifier: Apache-2.0 */
/* Characters as Python's str sees them: white space, case, what repr() prints.
 *
 * Called by the methods and filters of strings. Tables are libutf8proc's and the tokenizers'; where
 * Python's answer is longer than a character (ß in upper case) or younger than the tables, it is
 * "not known", and the caller refuses.
 */
#include "data/jinja/jinja_unicode.h"

#include <utf8proc.h>

bool dsi_ji_is_space(uint32_t cp)
{
    return (cp >= 0x1C && cp <= 0x1F) || (dsi_uc_flags(cp) & DSI_UC_SPACE) != 0;
}

bool dsi_ji_is_line_end(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static uint32_t decode(const char *p, const char *end, size_t *n_out)
{
    uint32_t cp;
    *n_out = dsi_utf8_decode((const unsigned char *)p, (const unsigned char *)end, &cp);
    return cp;
}

const char *dsi_ji_skip_space(const char *text, const char *end)
{
    while (text < end) {
        size_t n;
        if (!dsi_ji_is_space(decode(text, end, &n))) {
            break;
        }
        text += n;
    }
    return text;
}

const char *dsi_ji_trim_end(const char *text, const char *end)
{
    while (end > text) {
        const char *p = end - 1;
        size_t n;
        while (p > text && ((unsigned char)*p & 0xC0) == 0x80) {
            --p;
        }
        if (!dsi_ji_is_space(decode(p, end, &n))) {
            break;
        }
        end = p;
    }
    return end;
}

size_t dsi_ji_n_chars(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return count;
}

const char *dsi_ji_char_at(const char *text, size_t n, size_t i)
{
    const char *end = text + n;
    for (; text < end; ++text) {
        if (((unsigned char)*text & 0xC0) != 0x80 && i-- == 0) {
            return text;
        }
    }
    return end;
}

/* Letters whose other case is several letters, or depends on where they stand. */
static bool is_special(uint32_t cp)
{
    return cp == 0xDF || cp == 0x130 || cp == 0x149 || cp == 0x1F0 || cp == 0x390 || cp == 0x3B0 ||
           cp == 0x3A3 || cp == 0x587 || (cp >= 0x10D0 && cp <= 0x10FF) ||
           (cp >= 0x1C90 && cp <= 0x1CBF) || (cp >= 0x1E96 && cp <= 0x1E9E) ||
           (cp >= 0x1F50 && cp <= 0x1FFC) || (cp >= 0x1F80 && cp <= 0x1FAF) ||
           (cp >= 0x1C4 && cp <= 0x1CC) || (cp >= 0x1F1 && cp <= 0x1F3) ||
           (cp >= 0x13A0 && cp <= 0x13FD) || (cp >= 0xAB70 && cp <= 0xABBF) ||
           (cp >= 0xFB00 && cp <= 0xFB17);
}

bool dsi_ji_recase(uint32_t cp, dsi_ji_case how, uint32_t *cp_out)
{
    *cp_out = cp;
    if (cp < 0x80) {
        if (how == DSI_JI_LOWER) {
            *cp_out = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
        } else {
            *cp_out = cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
        }
        return true;
    }
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
    if (is_special(cp) || category == UTF8PROC_CATEGORY_CN) {
        return false;
    }
    const utf8proc_int32_t c = (utf8proc_int32_t)cp;
    *cp_out = (uint32_t)(how == DSI_JI_LOWER   ? utf8proc_tolower(c)
                         : how == DSI_JI_UPPER ? utf8proc_toupper(c)
                                               : utf8proc_totitle(c));
    return true;
}

unsigned dsi_ji_classes(uint32_t cp)
{
    if (cp < 0x80) {
        return (cp >= 'A' && cp <= 'Z'   ? (unsigned)DSI_JI_CASED_UPPER | DSI_JI_ALPHA
                : cp >= 'a' && cp <= 'z' ? (unsigned)DSI_JI_CASED_LOWER | DSI_JI_ALPHA
                : cp >= '0' && cp <= '9' ? (unsigned)DSI_JI_DECIMAL
                                         : 0u);
    }
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
        return (unsigned)DSI_JI_CASED_UPPER | DSI_JI_ALPHA;
    case UTF8PROC_CATEGORY_LL:
        return (unsigned)DSI_JI_CASED_LOWER | DSI_JI_ALPHA;
    case UTF8PROC_CATEGORY_LO:
        /* some have the property of small letters */
        return cp == 0xAA || cp == 0xBA ? (unsigned)DSI_JI_UNKNOWN : (unsigned)DSI_JI_ALPHA;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_PO:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SM:
        return 0;
    default:
        return DSI_JI_UNKNOWN;
    }
}

dsi_ji_print dsi_ji_printable(uint32_t cp)
{
    if (cp < 0x80) {
        return cp >= 0x20 && cp < 0x7F ? DSI_JI_PRINTED : DSI_JI_ESCAPED;
    }
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return DSI_JI_ESCAPED;
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CS:
        return DSI_JI_PRINT_UNKNOWN;
    default:
        return DSI_JI_PRINTED;
    }
}
