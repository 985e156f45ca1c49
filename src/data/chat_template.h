/* SPDX-License-Identifier: Apache-2.0 */
/* What the files chat*.c share: the template in use and its rendering. See chat.h. */
#ifndef DSI_DATA_CHAT_TEMPLATE_H
#define DSI_DATA_CHAT_TEMPLATE_H

#include "data/jinja/jinja.h"

#include <deepspeed/chat.h>
#include <jansson.h>

struct ds_chat {
    ds_ctx *ctx;
    char *name;            /* owned */
    dsi_jinja *plain;      /* NULL: several templates, and none is the default */
    dsi_jinja *with_tools; /* of a row with tools; NULL: plain is */
    json_t *tokens;        /* bos_token, eos_token: as the tokenizer spells them */
};

/* The text of the built-in template of a name; NULL when there is none. */
const char *dsi_chat_builtin(const char *name);

/* The template that renders a row. */
const dsi_jinja *dsi_chat_template_for(const ds_chat *chat, const json_t *row);

enum { DSI_CHAT_ERROR = 320 };
/* Renders a row: an object with "messages" and, as transformers' apply_chat_template takes them,
 * "tools", "documents" and "chat_template_kwargs"; its other members are not looked at. counts:
 * a message each, whether what the assistant says in it is among the spans; NULL: in all. Writes
 * the text of an error to `error` in place of the context's record: for threads that share a
 * context. */
ds_status dsi_chat_render_row(const ds_chat *chat, const json_t *row, const uint8_t *counts,
                              uint32_t flags, ds_chat_text *text_out, char *error,
                              size_t error_size);

/* Where the assistant speaks in a rendering (chat_spans.c). variables: what it was rendered with;
 * counts as above; *spans_out is malloc's. */
ds_status dsi_chat_find_spans(const dsi_jinja *template, json_t *variables, const uint8_t *counts,
                              const dsi_jinja_result *rendered, ds_chat_span **spans_out,
                              size_t *n_out, char *error, size_t error_size);

#endif
