/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a person on a terminal, with editing and a history: libedit, where the program was built
 * with it. */
#ifndef DS_TOOLS_CHAT_EDIT_H
#define DS_TOOLS_CHAT_EDIT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct chat_edit chat_edit;

/* Whether there is something to read on standard input; false: Ctrl-C. */
bool chat_wait_input(void);

/* NULL where lines are not edited: no libedit, no terminal at both ends, TERM unset or "dumb", no
 * UTF-8 locale, no memory. Then the terminal's own line is all there is. */
chat_edit *chat_edit_open(void);
/* The terminal's settings are as before. */
void chat_edit_close(chat_edit **edit);
/* The next line without its end, valid until the next call, and a new line of the history; NULL at
 * the end of the input and with Ctrl-C (*interrupted_out). `prompt` is borrowed for the call. */
const char *chat_edit_line(chat_edit *edit, const char *prompt, size_t *n_out,
                           bool *interrupted_out);

#endif
