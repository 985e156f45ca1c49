/* SPDX-License-Identifier: Apache-2.0 */
/* Chat messages to text, as the model's own template does it, and where the assistant speaks.
 *
 * A model's template is Jinja text and is interpreted: the text equals that of transformers'
 * apply_chat_template, with tools, documents and the template's own variables. What the interpreter
 * does not know is an error with the template's line and column, never another text. For models
 * without a template there are built-in ones by name (--chat_template), for chats without tools.
 */
#ifndef DEEPSPEED_CHAT_H
#define DEEPSPEED_CHAT_H

#include <deepspeed/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_chat ds_chat;

typedef struct ds_chat_message {
    const char *role;    /* "system", "user", "assistant" or "tool"; zero-terminated */
    const char *content; /* UTF-8 */
    size_t content_size; /* bytes */
} ds_chat_message;

/* Bytes [begin,end) of the text: an assistant's turn with its end token, without its header. */
typedef struct ds_chat_span {
    size_t begin, end;
} ds_chat_span;

typedef struct ds_chat_text {
    const char *text; /* size bytes and a zero byte */
    size_t size;
    const ds_chat_span *spans; /* ascending, with DS_CHAT_SPANS: what the assistant says */
    size_t n_spans;
    DS_RESERVED(4);
} ds_chat_text;

/* Flags of ds_chat_render. */
enum {
    DS_CHAT_GENERATION_PROMPT = 1, /* end with the assistant's header, for it to answer */
    DS_CHAT_NO_THINKING = 2,       /* the template's variable enable_thinking is false */
    DS_CHAT_SPANS = 4 /* find the spans; an error when the template does not show them */
};

/* Chooses a template. name NULL or "": tok's own, of several the default, and "tool_use" for chats
 * with tools; otherwise the one of tok's that has this name, or a built-in one of ds_chat_names().
 * tok (borrowed for the call) gives the spelling of bos and eos. The caller owns *chat_out; ctx
 * must outlive it. Errors: ERR_NOT_FOUND (tok has no template), ERR_FORMAT and ERR_UNSUPPORTED (the
 * text is wrong, or not known here: line and column), ERR_ARG (no such name: lists the names). */
DS_API ds_status ds_chat_create(ds_ctx *ctx, const ds_tokenizer *tok, const char *name,
                                ds_chat **chat_out);
DS_API void ds_chat_destroy(ds_chat **chat);

/* Renders messages. *text_out is owned by the caller: free it with ds_chat_text_free. A chat is
 * const: any thread. The text begins with bos where the template writes it: encode it without
 * DS_ENCODE_ADD_SPECIAL. Errors: ERR_FORMAT (what the template raises, or would be an error in
 * transformers), ERR_UNSUPPORTED (see above, and spans that are not to be seen), ERR_LIMIT,
 * ERR_NOMEM.
 */
DS_API ds_status ds_chat_render(const ds_chat *chat, const ds_chat_message *messages,
                                size_t n_messages, uint32_t flags, ds_chat_text *text_out);

/* The same for a chat as JSON, n bytes: an object with "messages", each with any members, and as
 * apply_chat_template takes them "tools", "documents" and "chat_template_kwargs". */
DS_API ds_status ds_chat_render_json(const ds_chat *chat, const char *json, size_t n,
                                     uint32_t flags, ds_chat_text *text_out);
DS_API void ds_chat_text_free(ds_chat_text *text);

/* Name of the template in use ("llama3"); "of the tokenizer" for its own. */
DS_API const char *ds_chat_name(const ds_chat *chat);

/* The built-in names, NULL at the end. */
DS_API const char *const *ds_chat_names(void);

#ifdef __cplusplus
}
#endif
#endif
