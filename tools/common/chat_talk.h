/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation with the model: lines from standard input, answers to standard output. */
#ifndef DSI_TOOLS_CHAT_TALK_H
#define DSI_TOOLS_CHAT_TALK_H

#include "common/chat_answer.h"
#include "common/chat_turns.h"

typedef struct chat_talk {
    ds_generator *generator;
    chat_form form;
    chat_turns turns;   /* freed by the caller */
    chat_answer answer; /* max_new_tokens, end_id, sampling and an empty text */
    const char *found;  /* the model's folder in the Hugging Face cache; NULL: none */
    char *saved;        /* last file of /save, from malloc; freed by the caller */
    bool stats;         /* a line of tokens and seconds to standard error behind each answer */
} chat_talk;

/* On a terminal: a prompt, commands (/help), Ctrl-C ends an answer. Else each line is a message,
 * and what a person would be told is an error. *interrupted_out: Ctrl-C ended it. Errors: ERR_ARG
 * (a command that is not known, no message at all), ERR_IO, and those of the model. */
ds_status chat_talk_run(ds_ctx *ctx, chat_talk *talk, bool *interrupted_out);

/* Prints what --stats asks for of the newest answer. */
void chat_talk_stats(const chat_talk *talk);

#endif
