/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of words that own their texts: command lines and environments; and words for a shell.
 *
 * A list is always terminated by NULL, so that `items` is an argv or an envp. Used by everything in
 * launch/. Invariant: no text reaches a shell but through dsi_shell_quote.
 */
#ifndef DSI_LAUNCH_WORDS_H
#define DSI_LAUNCH_WORDS_H

#include "base/buf.h"

typedef struct dsi_words {
    char **items; /* NULL while empty; else terminated by NULL */
    size_t n, capacity;
    bool failed; /* sticky: out of memory, later calls do nothing */
} dsi_words;

void dsi_words_add(dsi_words *words, const char *text);
void dsi_words_addf(dsi_words *words, const char *format, ...) DS_PRINTF(2, 3);
void dsi_words_add_all(dsi_words *words, const dsi_words *more);
/* Appends a text that was built aside, and frees it; its failure is the list's. */
void dsi_words_take(dsi_words *words, dsi_buf *text);
void dsi_words_free(dsi_words *words); /* leaves an empty list */
/* ERR_NOMEM when an earlier call ran out of memory. */
ds_status dsi_words_check(ds_ctx *ctx, const dsi_words *words);

/* The list as an environment of NAME=VALUE. A later set replaces an earlier one in its place. */
void dsi_env_inherit(dsi_words *env, char *const *from);
void dsi_env_set(dsi_words *env, const char *name, const char *value);
void dsi_env_setf(dsi_words *env, const char *name, const char *format, ...) DS_PRINTF(3, 4);
void dsi_env_unset(dsi_words *env, const char *name);
const char *dsi_env_get(const dsi_words *env, const char *name); /* NULL: not set; borrowed */

/* Appends the text as one word of a POSIX shell: bare when every character is plain, else in single
 * quotes. */
void dsi_shell_quote(dsi_buf *buf, const char *text);
/* Appends the words from index `from`, quoted, with blanks between. */
void dsi_shell_join(dsi_buf *buf, const dsi_words *words, size_t from);
/* Splits text into words as a POSIX shell would (blanks, quotes, backslash) without expanding
 * anything. Errors: ERR_ARG names `what`, a quote that is not closed, or a character that a shell
 * would act on ($ ` ; & | < > ( ) and newline outside of quotes). */
ds_status dsi_shell_split(ds_ctx *ctx, const char *what, const char *text, dsi_words *words);

#endif
