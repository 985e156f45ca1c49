/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of a conversation. See chat_talk.h. */
#include "common/chat_talk.h"

#include "common/chat_command.h"
#include "common/chat_edit.h"

#include <deepspeed/context.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum line_kind {
    LINE_MESSAGE,
    LINE_COMMAND,
    LINE_EMPTY,
    LINE_END,
    LINE_INTERRUPT
} line_kind;

/* Standard input. */
typedef struct lines {
    bool terminal;
    chat_edit *edit; /* NULL: lines as the terminal or a pipe gives them */
    char *line;      /* of getline */
    size_t capacity;
    dsi_buf text; /* of the message */
    uint64_t number;
} lines;

static ds_status add_text(ds_ctx *ctx, lines *in, const char *text, size_t n)
{
    dsi_buf_append(&in->text, text, n);
    return in->text.failed ? ds_fail(ctx, DS_ERR_LIMIT, "the message is too long") : DS_OK;
}

static ds_status read_edited(ds_ctx *ctx, lines *in, const char *prompt, line_kind *kind_out)
{
    size_t n = 0;
    bool interrupted = false;
    const char *text = chat_edit_line(in->edit, prompt, &n, &interrupted);
    *kind_out = interrupted ? LINE_INTERRUPT : text == NULL ? LINE_END : LINE_MESSAGE;
    return text != NULL ? add_text(ctx, in, text, n) : DS_OK;
}

static ds_status read_plain(ds_ctx *ctx, lines *in, const char *prompt, line_kind *kind_out)
{
    if (in->terminal) {
        (void)fputs(prompt, stdout);
        (void)fflush(stdout);
        if (!chat_wait_input()) {
            *kind_out = LINE_INTERRUPT;
            return DS_OK;
        }
    }
    errno = 0;
    ssize_t n = getline(&in->line, &in->capacity, stdin);
    in->number += 1;
    if (n < 0 && errno != 0 && errno != EINTR) {
        return ds_fail(ctx, DS_ERR_IO, "cannot read standard input: %s", strerror(errno));
    }
    if (n < 0) {
        *kind_out = errno == EINTR || chat_interrupts() > 0 ? LINE_INTERRUPT : LINE_END;
        return DS_OK;
    }
    while (n > 0 && (in->line[n - 1] == '\n' || in->line[n - 1] == '\r')) {
        in->line[--n] = '\0';
    }
    *kind_out = LINE_MESSAGE;
    return add_text(ctx, in, in->line, (size_t)n);
}

static ds_status read_line(ds_ctx *ctx, lines *in, const char *prompt, line_kind *kind_out)
{
    (void)chat_interrupts();
    return in->edit != NULL ? read_edited(ctx, in, prompt, kind_out)
                            : read_plain(ctx, in, prompt, kind_out);
}

/* A message, which on a terminal may have several lines. */
static ds_status read_message(ds_ctx *ctx, lines *in, line_kind *kind_out)
{
    dsi_buf_clear(&in->text);
    DS_TRY(read_line(ctx, in, "> ", kind_out));
    while (*kind_out == LINE_MESSAGE && in->terminal && in->text.size > 0 &&
           in->text.data[in->text.size - 1] == '\\') {
        in->text.data[in->text.size - 1] = '\n';
        DS_TRY(read_line(ctx, in, "… ", kind_out));
    }
    if (*kind_out == LINE_MESSAGE) {
        const char *text = dsi_buf_text(&in->text);
        *kind_out = in->text.size == 0                 ? LINE_EMPTY
                    : text[0] == '/' && text[1] != '/' ? LINE_COMMAND
                                                       : LINE_MESSAGE;
    }
    return DS_OK;
}

void chat_talk_stats(const chat_talk *talk)
{
    const chat_answer *a = &talk->answer;
    const double rate = a->seconds > 0.0 ? (double)a->n_drawn / a->seconds : 0.0;
    (void)fprintf(stderr,
                  "prompt: %zu tokens, %zu of them kept, %.2f s; %lld tokens in %.2f s: %.1f "
                  "tokens/s, %.2f GB/s\n",
                  a->n_prompt, a->n_kept, a->prompt_seconds, (long long)a->n_drawn, a->seconds,
                  rate, rate * ds_generator_step_bytes(talk->generator) * 1e-9);
}

/* Why the answer ended, where it is not the model's own end. */
static void say_end(const chat_talk *talk)
{
    const chat_answer *a = &talk->answer;
    if (a->end == CHAT_END_TOKENS) {
        (void)fprintf(stderr, "[cut after %lld tokens: --max_new_tokens]\n", (long long)a->n_drawn);
    } else if (a->end == CHAT_END_CONTEXT) {
        (void)fprintf(stderr, "[cut: the context of %lld positions is full: --max_length]\n",
                      (long long)talk->form.length);
    }
}

/* The newest message's answer, which becomes a turn. A question without any is none. */
static ds_status answer(ds_ctx *ctx, chat_talk *talk)
{
    ds_tokens prompt;
    const size_t before = talk->turns.left_out;
    DS_TRY(chat_turns_encode(ctx, &talk->turns, &talk->form, &prompt));
    if (talk->turns.left_out > before) {
        (void)fprintf(stderr,
                      "[the conversation is longer than the context of %lld positions: its oldest "
                      "%zu messages are left out]\n",
                      (long long)talk->form.length, talk->turns.left_out);
    }
    DS_TRY(chat_answer_draw(ctx, talk->generator, talk->form.tokenizer, &prompt, stdout,
                            &talk->answer));
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    say_end(talk);
    if (talk->stats) {
        chat_talk_stats(talk);
    }
    if (talk->answer.end == CHAT_END_INTERRUPTED && talk->answer.text.size == 0) {
        chat_turns_pop(&talk->turns);
        return DS_OK;
    }
    return chat_turns_add(ctx, &talk->turns, "assistant", dsi_buf_text(&talk->answer.text),
                          talk->answer.text.size);
}

/* A message that cannot be answered is taken back. */
static ds_status ask(ds_ctx *ctx, chat_talk *talk, const lines *in)
{
    const char *text = dsi_buf_text(&in->text);
    const size_t escape = text[0] == '/' ? 1 : 0; /* "//" */
    DS_TRY(chat_turns_add(ctx, &talk->turns, "user", text + escape, in->text.size - escape));
    const ds_status status = answer(ctx, talk);
    if (status < 0) {
        chat_turns_pop(&talk->turns);
    }
    return status;
}

/* Whether a person can go on after the error. */
static bool is_of_the_line(ds_status status)
{
    return status == DS_ERR_ARG || status == DS_ERR_FORMAT || status == DS_ERR_LIMIT ||
           status == DS_ERR_UNSUPPORTED || status == DS_ERR_NOT_FOUND || status == DS_ERR_IO;
}

static ds_status one_line(ds_ctx *ctx, chat_talk *talk, lines *in, line_kind kind, bool *end_out)
{
    const ds_status status = kind == LINE_COMMAND
                                 ? chat_command(ctx, talk, dsi_buf_text(&in->text), end_out)
                                 : ask(ctx, talk, in);
    if (status >= 0 || !in->terminal || !is_of_the_line(status) || ferror(stdout) != 0) {
        return status;
    }
    (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
    return DS_OK;
}

static ds_status run(ds_ctx *ctx, chat_talk *talk, lines *in, bool *interrupted_out)
{
    bool end = false;
    uint64_t n = 0;
    while (!end) {
        line_kind kind;
        DS_TRY(read_message(ctx, in, &kind));
        *interrupted_out = kind == LINE_INTERRUPT;
        end = kind == LINE_INTERRUPT || kind == LINE_END || (kind == LINE_EMPTY && in->terminal);
        if (kind == LINE_MESSAGE || kind == LINE_COMMAND) {
            DS_TRY(one_line(ctx, talk, in, kind, &end));
            ++n;
        } else if (end && in->terminal && kind != LINE_EMPTY) {
            (void)fputc('\n', stdout);
        }
    }
    return n > 0 || in->terminal ? DS_OK
                                 : ds_fail(ctx, DS_ERR_ARG, "standard input has no message");
}

ds_status chat_talk_run(ds_ctx *ctx, chat_talk *talk, bool *interrupted_out)
{
    enum { MESSAGE_CEILING = 64 << 20 };
    lines in = {.terminal = isatty(STDIN_FILENO) != 0, .text = dsi_buf_make(MESSAGE_CEILING)};
    if (in.terminal) {
        chat_interrupts_take();
        in.edit = chat_edit_open();
        (void)fputs("Conversation; /help lists the commands, an empty line ends it.\n", stderr);
    }
    const ds_status status = run(ctx, talk, &in, interrupted_out);
    chat_edit_close(&in.edit);
    free(in.line);
    dsi_buf_free(&in.text);
    return status;
}
