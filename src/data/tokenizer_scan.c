/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-written scanners for the pre-tokenizer patterns of GPT-2, Llama 3 and Qwen2.
 *
 * Called for each piece of text, so they are the hot loop before the merges. They are used only
 * when a file's pattern is one of the texts below, character for character; every other pattern
 * goes to PCRE2. Bytes that are not UTF-8 count as characters that are no letter, number or space.
 *
 * A piece is what the pattern matches next; these patterns leave no character unmatched.
 */
#include "data/tokenizer.h"

#include <string.h>

typedef const unsigned char *cursor;

enum { LETTER = DSI_UC_L, NUMBER = DSI_UC_N, SPACE = DSI_UC_SPACE, LNS = 7 };

/* Class (LETTER, NUMBER, SPACE or 0) of the character at p < end, its bytes to *size_out. */
static inline unsigned char_class(cursor p, cursor end, size_t *size_out)
{
    if (*p < 0x80) {
        *size_out = 1;
        return dsi_unicode_flags[dsi_unicode_index[0]][*p] & LNS;
    }
    uint32_t cp;
    *size_out = dsi_utf8_decode(p, end, &cp);
    return dsi_uc_flags(cp) & LNS;
}

/* The end of the run of characters of one class from p on. */
static inline cursor run_of(cursor p, cursor end, unsigned class)
{
    size_t size;
    while (p < end && char_class(p, end, &size) == class) {
        p += size;
    }
    return p;
}

/* White space from p on: its end, where its last character starts, and the end of its last line
 * break (NULL without one). */
static inline cursor run_of_space(cursor p, cursor end, cursor *last_out, cursor *newline_out)
{
    size_t size;
    *newline_out = NULL;
    *last_out = p;
    while (p < end && char_class(p, end, &size) == SPACE) {
        *last_out = p;
        p += size;
        if (p[-1] == '\n' || p[-1] == '\r') {
            *newline_out = p;
        }
    }
    return p;
}

/* "\s+(?!\S)|\s+" from p on: white space, without its last character when text follows. */
static inline cursor trailing_space(cursor p, cursor end)
{
    cursor last;
    cursor newline;
    cursor stop = run_of_space(p, end, &last, &newline);
    return stop == end || last == p ? stop : last;
}

/* Bytes of a contraction ('s 't 're 've 'm 'll 'd) at p, which is an apostrophe; 0 for none. */
static inline size_t contraction(cursor p, cursor end, unsigned fold)
{
    const size_t n = (size_t)(end - p);
    if (n < 2) {
        return 0;
    }
    const unsigned a = p[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return 2;
    }
    if (n < 3) {
        return 0;
    }
    if (fold != 0 && p[1] == 0xC5 && p[2] == 0xBF) {
        return 3; /* LATIN SMALL LETTER LONG S folds to s */
    }
    const unsigned b = p[2] | fold;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t dsi_scan_gpt2(const unsigned char *p, const unsigned char *end)
{
    cursor start = p;
    if (*p == '\'') {
        const size_t n = contraction(p, end, 0);
        if (n > 0) {
            return n;
        }
    }
    size_t size;
    unsigned class = char_class(p, end, &size);
    if (*p == ' ' && p + 1 < end) {
        const unsigned next = char_class(p + 1, end, &size);
        if (next != SPACE) {
            return (size_t)(run_of(p + 1 + size, end, next) - start);
        }
    }
    if (class != SPACE) {
        return (size_t)(run_of(p + size, end, class) - start);
    }
    return (size_t)(trailing_space(p, end) - start);
}

/* Llama 3's and Qwen2's pattern; they differ in how many numbers go together. */
static inline size_t scan_cased(cursor p, cursor end, unsigned n_numbers)
{
    cursor start = p;
    if (*p == '\'') {
        const size_t n = contraction(p, end, 0x20);
        if (n > 0) {
            return n;
        }
    }
    size_t size;
    const unsigned class = char_class(p, end, &size);
    if (class == LETTER) {
        return (size_t)(run_of(p + size, end, LETTER) - start);
    }
    if (class == NUMBER) {
        for (unsigned i = 0; i < n_numbers && p < end && char_class(p, end, &size) == NUMBER; ++i) {
            p += size;
        }
        return (size_t)(p - start);
    }
    size_t next_size = 0;
    const unsigned next = p + size < end ? char_class(p + size, end, &next_size) : SPACE;
    if (next == LETTER && *p != '\r' && *p != '\n') {
        return (size_t)(run_of(p + size + next_size, end, LETTER) - start);
    }
    if (class == 0 || (*p == ' ' && next == 0 && p + size < end)) {
        p = run_of(p + size, end, 0);
        while (p < end && (*p == '\r' || *p == '\n')) {
            ++p;
        }
        return (size_t)(p - start);
    }
    cursor last;
    cursor newline;
    cursor stop = run_of_space(p, end, &last, &newline);
    if (newline != NULL) {
        return (size_t)(newline - start);
    }
    return (size_t)((stop == end || last == start ? stop : last) - start);
}

static size_t scan_llama3(const unsigned char *p, const unsigned char *end)
{
    return scan_cased(p, end, 3);
}

static size_t scan_qwen2(const unsigned char *p, const unsigned char *end)
{
    return scan_cased(p, end, 1);
}

dsi_scan_fn dsi_scan_for(const char *pattern, size_t n)
{
    static const struct {
        const char *pattern;
        dsi_scan_fn scan;
    } known[] = {
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         dsi_scan_gpt2},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         scan_llama3},
        {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         scan_qwen2},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        if (strlen(known[i].pattern) == n && memcmp(known[i].pattern, pattern, n) == 0) {
            return known[i].scan;
        }
    }
    return NULL;
}
