/* SPDX-License-Identifier: Apache-2.0 */
/* See chat_edit.h. libedit reads through get_char, so that Ctrl-C ends a line whichever thread the
 * signal reached. */
#include "common/chat_edit.h"

#include "common/chat_answer.h"

#include <poll.h>
#include <unistd.h>

bool chat_wait_input(void)
{
    enum { LOOK_MS = 100 }; /* a signal may come in front of the wait */
    for (;;) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        const int n = poll(&in, 1, LOOK_MS);
        if (chat_interrupts() > 0) {
            return false;
        }
        if (n > 0) {
            return true;
        }
    }
}

#ifdef DSI_HAVE_EDIT
#include <histedit.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

struct chat_edit {
    FILE *out; /* the terminal itself: stdout shows control characters as text */
    EditLine *line;
    History *history;
    const char *prompt;
    bool interrupted;
};

static chat_edit *edit_of(EditLine *line)
{
    void *edit = NULL;
    (void)el_get(line, EL_CLIENTDATA, &edit);
    return edit;
}

static char *prompt_of(EditLine *line)
{
    return (char *)(uintptr_t)edit_of(line)->prompt; /* libedit does not write to it */
}

/* One byte of standard input: 1, 0 at its end, -1 with Ctrl-C or an error. */
static int get_byte(chat_edit *edit, unsigned char *byte)
{
    if (!chat_wait_input()) {
        edit->interrupted = true;
        return -1;
    }
    return (int)read(STDIN_FILENO, byte, 1);
}

/* One character of UTF-8; what is none becomes U+FFFD, which the person sees. */
static int get_char(EditLine *line, wchar_t *out)
{
    enum { REPLACEMENT = 0xfffd };
    mbstate_t state = {0};
    for (int i = 0; i < MB_LEN_MAX; ++i) {
        unsigned char byte = 0;
        const int n = get_byte(edit_of(line), &byte);
        if (n <= 0) {
            return n;
        }
        const char c = (char)byte;
        const size_t used = mbrtowc(out, &c, 1, &state);
        if (used == 0 || used == 1) { /* 0: the character NUL */
            return 1;
        }
        if (used == (size_t)-1) {
            break;
        }
    }
    *out = REPLACEMENT;
    return 1;
}

/* The person's locale has UTF-8: then the program takes UTF-8 characters, and nothing else of it.
 */
static bool take_utf8(void)
{
    const locale_t own = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (own == (locale_t)0) {
        return false;
    }
    const bool utf8 = strcmp(nl_langinfo_l(CODESET, own), "UTF-8") == 0;
    freelocale(own);
    return utf8 && setlocale(LC_CTYPE, "C.UTF-8") != NULL;
}

static bool has_a_terminal(void)
{
    const char *term = getenv("TERM");
    return term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0 &&
           isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
}

static bool open_all(chat_edit *edit)
{
    enum { LINES_KEPT = 1000 };
    HistEvent event;
    edit->history = history_init();
    edit->out = fdopen(dup(STDOUT_FILENO), "w");
    edit->line = edit->out == NULL ? NULL
                                   : el_init_fd("ds_generate", stdin, edit->out, edit->out,
                                                STDIN_FILENO, STDOUT_FILENO, STDOUT_FILENO);
    return edit->history != NULL && edit->line != NULL &&
           history(edit->history, &event, H_SETSIZE, LINES_KEPT) == 0 &&
           history(edit->history, &event, H_SETUNIQUE, 1) == 0 &&
           el_set(edit->line, EL_CLIENTDATA, edit) == 0 &&
           el_set(edit->line, EL_PROMPT, prompt_of) == 0 &&
           el_set(edit->line, EL_GETCFN, get_char) == 0 &&
           el_set(edit->line, EL_EDITOR, "emacs") == 0 &&
           el_set(edit->line, EL_HIST, history, edit->history) == 0;
}

chat_edit *chat_edit_open(void)
{
    if (!has_a_terminal() || !take_utf8()) {
        return NULL;
    }
    chat_edit *edit = calloc(1, sizeof *edit);
    if (edit != NULL && !open_all(edit)) {
        chat_edit_close(&edit);
    }
    if (edit != NULL) {
        (void)el_source(edit->line, NULL); /* ~/.editrc, if there is one */
    }
    return edit;
}

void chat_edit_close(chat_edit **edit)
{
    if (*edit == NULL) {
        return;
    }
    if ((*edit)->line != NULL) {
        el_end((*edit)->line);
    }
    if ((*edit)->history != NULL) {
        history_end((*edit)->history);
    }
    if ((*edit)->out != NULL) {
        (void)fclose((*edit)->out);
    }
    free(*edit);
    *edit = NULL;
}

const char *chat_edit_line(chat_edit *edit, const char *prompt, size_t *n_out,
                           bool *interrupted_out)
{
    int n = 0;
    HistEvent event;
    edit->prompt = prompt;
    edit->interrupted = false;
    (void)fflush(stdout); /* in front of what the editor writes */
    el_resize(edit->line);
    const char *text = el_gets(edit->line, &n);
    *interrupted_out = edit->interrupted;
    if (text == NULL || n <= 0 || edit->interrupted) {
        return NULL;
    }
    if (n > 1) { /* more than the line's end */
        (void)history(edit->history, &event, H_ENTER, text);
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        --n;
    }
    *n_out = (size_t)n;
    return text;
}
#else
chat_edit *chat_edit_open(void)
{
    return NULL;
}

void chat_edit_close(chat_edit **edit)
{
    *edit = NULL;
}

const char *chat_edit_line(chat_edit *edit, const char *prompt, size_t *n_out,
                           bool *interrupted_out)
{
    (void)edit;
    (void)prompt;
    *n_out = 0;
    *interrupted_out = false;
    return NULL;
}
#endif
