/* SPDX-License-Identifier: Apache-2.0 */
/* Text from files and other programs as a terminal may show it: what would move the cursor, change
 * colours, the title or the order of letters is written as \x1b or \u202e instead.
 *
 * ds_fail and ds_log pass every message through it, and the tools what they print of a file: the
 * one place where names that somebody else chose are made harmless. Output of the ranks of a job is
 * not passed through it: that is the user's own program.
 */
#ifndef DSI_BASE_PLAIN_H
#define DSI_BASE_PLAIN_H

#include <stddef.h>

/* Writes `n` bytes of text to out (room > 0 bytes, terminated), as far as they fit, and returns how
 * many bytes of text were used. Line feeds and tabs stay. Control characters (C0, DEL, C1), marks
 * that change the direction of writing, separators of lines, and bytes that are not UTF-8 become
 * escapes. Plain text stays as it is, so a second pass changes nothing. */
size_t dsi_plain(const char *text, size_t n, char *out, size_t room);

/* The same for one name in a message or table: line feeds and tabs are escaped too. Returns out. */
const char *dsi_plain_name(const char *name, char *out, size_t room);

/* A message that fits: what is too long ends after a whole line (else a word) and says how much
 * more there was. */
void dsi_plain_message(const char *text, char *out, size_t room);

#endif
