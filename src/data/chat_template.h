/* What the files chat*.c share: the template in use and its small parts. See chat.h. */
#ifndef DSI_DATA_CHAT_TEMPLATE_H
#define DSI_DATA_CHAT_TEMPLATE_H

#include "base/buf.h"

#include <deepspeed/chat.h>

typedef enum dsi_chat_kind {
    DSI_CHAT_CHATML,
    DSI_CHAT_QWEN2,
    DSI_CHAT_QWEN25,
    DSI_CHAT_QWEN3,
    DSI_CHAT_QWEN3_2507,
    DSI_CHAT_LLAMA2,
    DSI_CHAT_LLAMA3,
    DSI_CHAT_LLAMA31,
    DSI_CHAT_LLAMA32,
    DSI_CHAT_MISTRAL
} dsi_chat_kind;

/* Where a Mistral template puts the system message. */
typedef enum dsi_chat_system {
    DSI_SYSTEM_REFUSE,
    DSI_SYSTEM_FIRST,
    DSI_SYSTEM_LAST
} dsi_chat_system;

/* Mistral's templates differ in white space and in the place of the system message. */
typedef struct dsi_mistral_form {
    const char *open;   /* before a user's text */
    const char *close;  /* after it */
    const char *answer; /* before the assistant's text */
    bool trim;          /* the assistant's text is stripped */
    bool space_after_eos;
    dsi_chat_system system;
} dsi_mistral_form;

/* A template; built in as a row of a table, or recognised. */
typedef struct dsi_chat_form {
    const char *name;
    dsi_chat_kind kind;
    bool needs_bos, needs_eos;
    bool bos_first;          /* ChatML: the text begins with bos */
    bool always_prompt;      /* Llama 3's first release: a generation prompt in any case */
    const char *system_text; /* Qwen: the default system message */
    size_t system_size;
    dsi_mistral_form mistral;
} dsi_chat_form;

struct ds_chat {
    ds_ctx *ctx;
    dsi_chat_form form;
    char *system_text; /* owned copy of form.system_text */
    char *bos, *eos;   /* owned; "" when unknown */
    char date[16];     /* Llama 3.1 and 3.2: "26 Jul 2024" */
};

/* The built-in forms, by name; NULL at the end of names. */
const dsi_chat_form *dsi_chat_form_by_name(const char *name);

enum { DSI_CHAT_ERROR = 256 };
/* ds_chat_render that writes the text of an error to `error` in place of the context's record: for
 * threads that share a context. */
ds_status dsi_chat_render(const ds_chat *chat, const ds_chat_message *messages, size_t n_messages,
                          uint32_t flags, ds_chat_text *text_out, char *error, size_t error_size);

/* Brings a Jinja template into one spelling: white space control applied, comments gone, quotes,
 * escapes, member access and constant concatenation alike. Templates that differ only in these give
 * the same text. Never fails on odd input; out->failed on no memory. */
void dsi_chat_canonical(const char *text, size_t n, dsi_buf *out);

/* Recognises a canonical template; false when it is not a known one. form->system_text may point
 * into canonical. */
bool dsi_chat_recognise(const char *canonical, dsi_chat_form *form);

#endif
