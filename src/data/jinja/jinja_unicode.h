/* SPDX-License-Identifier: Apache-2.0 */
/* Characters as Python's str sees them. See jinja_unicode.c. */
#ifndef DSI_DATA_JINJA_UNICODE_H
#define DSI_DATA_JINJA_UNICODE_H

#include "data/unicode_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* str.isspace() of one character: what strip() takes off and \s of a pattern matches. */
bool dsi_ji_is_space(uint32_t cp);
/* Whether splitlines() ends a line at it (\r\n is one end). */
bool dsi_ji_is_line_end(uint32_t cp);

/* The text without white space at its ends. */
const char *dsi_ji_skip_space(const char *text, const char *end);
const char *dsi_ji_trim_end(const char *text, const char *end);

size_t dsi_ji_n_chars(const char *text, size_t n);
/* Where character i begins; the end when there are fewer. */
const char *dsi_ji_char_at(const char *text, size_t n, size_t i);

typedef enum dsi_ji_case { DSI_JI_UPPER, DSI_JI_LOWER, DSI_JI_TITLE } dsi_ji_case;
/* The character in another case; false when Python's answer is several characters or depends on
 * those around it. */
bool dsi_ji_recase(uint32_t cp, dsi_ji_case how, uint32_t *cp_out);

typedef enum dsi_ji_class {
    DSI_JI_CASED_UPPER = 1,
    DSI_JI_CASED_LOWER = 2,
    DSI_JI_ALPHA = 4,
    DSI_JI_DECIMAL = 8,
    DSI_JI_UNKNOWN = 16 /* not ASCII, and Python's answer is not known here */
} dsi_ji_class;
unsigned dsi_ji_classes(uint32_t cp);

typedef enum dsi_ji_print { DSI_JI_PRINTED, DSI_JI_ESCAPED, DSI_JI_PRINT_UNKNOWN } dsi_ji_print;
/* How repr() writes the character. */
dsi_ji_print dsi_ji_printable(uint32_t cp);

#endif
