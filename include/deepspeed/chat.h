/* Chat messages to text, as the model's own template does it, and where the assistant speaks.
 *
 * A model's template is Jinja text. It is not interpreted: the templates of the families below are
 * known, and a model's template is recognised as one of them. Another template, an edited one too,
 * is an error that names --chat_template, which forces one. The text equals that of transformers'
 * apply_chat_template, without tools and documents.
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
    const ds_chat_span *spans; /* ascending, one for each assistant message that the text holds */
    size_t n_spans;
} ds_chat_text;

/* Flags of ds_chat_render. */
enum {
    DS_CHAT_GENERATION_PROMPT = 1, /* end with the assistant's header, for it to answer */
    DS_CHAT_NO_THINKING = 2        /* Qwen3: enable_thinking=False */
};

/* Chooses a template. name NULL or "": recognised from tok's template; otherwise one of
 * ds_chat_names(). tok (borrowed for the call) gives the spelling of bos and eos. The caller owns
 * *chat_out; ctx must outlive it. Errors: ERR_NOT_FOUND (tok has no template), ERR_UNSUPPORTED (it
 * is not a known one), ERR_ARG (no such name); each names --chat_template and the names. */
DS_API ds_status ds_chat_create(ds_ctx *ctx, const ds_tokenizer *tok, const char *name,
                                ds_chat **chat_out);
DS_API void ds_chat_destroy(ds_chat **chat);

/* Renders messages. *text_out is owned by the caller: free it with ds_chat_text_free. A chat is
 * const: any thread. The text begins with bos where the template writes it: encode it without
 * DS_ENCODE_ADD_SPECIAL. Errors: ERR_FORMAT (roles that the template refuses: names the message),
 * ERR_LIMIT, ERR_NOMEM. */
DS_API ds_status ds_chat_render(const ds_chat *chat, const ds_chat_message *messages,
                                size_t n_messages, uint32_t flags, ds_chat_text *text_out);
DS_API void ds_chat_text_free(ds_chat_text *text);

/* Name of the template in use ("llama3"). */
DS_API const char *ds_chat_name(const ds_chat *chat);

/* All names, NULL at the end. */
DS_API const char *const *ds_chat_names(void);

#ifdef __cplusplus
}
#endif
#endif
