/* SPDX-License-Identifier: Apache-2.0 */
/* One answer of the model, streamed. */
#ifndef DSI_TOOLS_CHAT_ANSWER_H
#define DSI_TOOLS_CHAT_ANSWER_H

#include "base/buf.h"

#include <deepspeed/chat.h>
#include <deepspeed/infer.h>
#include <stdio.h>

typedef enum chat_end {
    CHAT_END_TURN,       /* the model ended its turn */
    CHAT_END_TOKENS,     /* as many tokens as were asked for */
    CHAT_END_CONTEXT,    /* the context is full */
    CHAT_END_INTERRUPTED /* Ctrl-C */
} chat_end;

typedef struct chat_answer {
    int64_t max_new_tokens;
    int64_t end_id; /* of a turn, besides the tokenizer's eos ids; -1: none */
    ds_sampling sampling;
    /* filled: */
    dsi_buf text; /* made and freed by the caller */
    chat_end end;
    size_t n_prompt,
        n_kept; /* ids of the prompt; of them, those whose keys and values were there */
    int64_t n_drawn;
    double prompt_seconds, seconds;
} chat_answer;

/* Answers the prompt and writes the text to stream, whole characters as they come. Errors: those of
 * ds_generator_prompt_on and ds_generator_next, ERR_IO. */
ds_status chat_answer_draw(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                           const ds_tokens *prompt, FILE *stream, chat_answer *answer);

/* From now on Ctrl-C ends an answer, a second one the program, with exit code 130. */
void chat_interrupts_take(void);
/* How often it came since; the count begins anew. */
int chat_interrupts(void);

#endif
