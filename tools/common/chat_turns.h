/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a conversation, and the ids that they are for the model. */
#ifndef DSI_TOOLS_CHAT_TURNS_H
#define DSI_TOOLS_CHAT_TURNS_H

#include "base/buf.h"

#include <deepspeed/chat.h>

typedef struct chat_turns {
    ds_chat_message *items; /* [n]; the first may be the system message, whose text may be empty */
    size_t n, capacity;
    size_t left_out; /* oldest messages behind the system message that do not fit the context */
} chat_turns;

/* What turns messages into ids, and how many there may be. */
typedef struct chat_form {
    const ds_chat *chat;
    const ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
    int64_t length; /* positions of the context */
    int64_t room;   /* of them for the answer */
} chat_form;

/* Copies the text. Errors: ERR_NOMEM. */
ds_status chat_turns_add(ds_ctx *ctx, chat_turns *turns, const char *role, const char *text,
                         size_t n);
/* Removes the newest message. */
void chat_turns_pop(chat_turns *turns);
/* Replaces the system message, or removes it (text NULL or ""). */
ds_status chat_turns_system(ds_ctx *ctx, chat_turns *turns, const char *text);
/* Forgets all but the system message. */
void chat_turns_clear(chat_turns *turns);
void chat_turns_free(chat_turns *turns);

/* The ids of the conversation, for the assistant to answer, borrowed from the form's scratch. The
 * oldest question with its answer is left out, and then the next, until there is room for the
 * answer; the newest question stays. Errors: as ds_chat_render; ERR_LIMIT (it does not fit alone).
 */
ds_status chat_turns_encode(ds_ctx *ctx, chat_turns *turns, const chat_form *form,
                            ds_tokens *tokens_out);

/* {"messages": […]} and a line feed: a row that ds_train reads. */
void chat_turns_print(const chat_turns *turns, dsi_buf *text);

/* The special token that the template writes behind an answer, -1: none. */
int64_t chat_end_of_turn(const chat_form *form);

#endif
