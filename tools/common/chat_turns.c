/* SPDX-License-Identifier: Apache-2.0 */
/* See chat_turns.h. A conversation is rendered and encoded whole at each turn: what the model sees
 * is what a fresh prompt of the same messages would be, whatever the template does to older turns.
 */
#include "common/chat_turns.h"

#include <stdlib.h>
#include <string.h>

static bool has_system(const chat_turns *t)
{
    return t->n > 0 && strcmp(t->items[0].role, "system") == 0;
}

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the conversation");
}

static ds_status insert(ds_ctx *ctx, chat_turns *t, size_t at, const char *role, const char *text,
                        size_t n)
{
    if (t->n == t->capacity) {
        const size_t capacity = t->capacity > 0 ? 2 * t->capacity : 16;
        ds_chat_message *grown = realloc(t->items, capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory(ctx);
        }
        t->items = grown;
        t->capacity = capacity;
    }
    char *copy = malloc(n + 1);
    if (copy == NULL) {
        return no_memory(ctx);
    }
    memcpy(copy, text, n);
    copy[n] = '\0';
    memmove(t->items + at + 1, t->items + at, (t->n - at) * sizeof *t->items);
    t->items[at] = (ds_chat_message){role, copy, n};
    t->n += 1;
    return DS_OK;
}

static void take_out(chat_turns *t, size_t at)
{
    free((char *)(size_t)t->items[at].content);
    memmove(t->items + at, t->items + at + 1, (t->n - at - 1) * sizeof *t->items);
    t->n -= 1;
}

ds_status chat_turns_add(ds_ctx *ctx, chat_turns *t, const char *role, const char *text, size_t n)
{
    return insert(ctx, t, t->n, role, text, n);
}

void chat_turns_pop(chat_turns *t)
{
    take_out(t, t->n - 1);
}

ds_status chat_turns_system(ds_ctx *ctx, chat_turns *t, const char *text)
{
    if (has_system(t)) {
        take_out(t, 0);
    }
    return text != NULL && *text != '\0' ? insert(ctx, t, 0, "system", text, strlen(text)) : DS_OK;
}

void chat_turns_clear(chat_turns *t)
{
    while (t->n > (has_system(t) ? 1u : 0u)) {
        chat_turns_pop(t);
    }
    t->left_out = 0;
}

void chat_turns_free(chat_turns *t)
{
    while (t->n > 0) {
        chat_turns_pop(t);
    }
    free(t->items);
    *t = (chat_turns){0};
}

/* Renders messages and encodes the text. */
static ds_status encode(const chat_form *form, const ds_chat_message *messages, size_t n,
                        ds_tokens *tokens_out)
{
    ds_chat_text text = {0};
    DS_TRY(ds_chat_render(form->chat, messages, n, DS_CHAT_GENERATION_PROMPT, &text));
    const ds_status status =
        ds_tokenizer_encode(form->tokenizer, form->scratch, text.text, text.size, 0, tokens_out);
    ds_chat_text_free(&text);
    return status;
}

ds_status chat_turns_encode(ds_ctx *ctx, chat_turns *t, const chat_form *form,
                            ds_tokens *tokens_out)
{
    const size_t system = has_system(t) ? 1 : 0;
    ds_chat_message *sent = calloc(t->n, sizeof *sent);
    if (sent == NULL) {
        return no_memory(ctx);
    }
    if (system > 0) {
        sent[0] = t->items[0];
    }
    ds_status status = DS_OK;
    for (;;) {
        const size_t from = system + t->left_out;
        memcpy(sent + system, t->items + from, (t->n - from) * sizeof *sent);
        status = encode(form, sent, system + t->n - from, tokens_out);
        const bool fits = status < 0 || (int64_t)tokens_out->n + form->room <= form->length;
        if (fits || from + 2 >= t->n) {
            break;
        }
        t->left_out += 2;
    }
    free(sent);
    if (status >= 0 && (int64_t)tokens_out->n >= form->length) {
        return ds_fail(ctx, DS_ERR_LIMIT,
                       "the message has %zu tokens with its template; the context has %lld "
                       "(--max_length)",
                       tokens_out->n, (long long)form->length);
    }
    return status;
}

void chat_turns_print(const chat_turns *t, dsi_buf *text)
{
    dsi_buf_puts(text, "{\"messages\": [");
    for (size_t i = 0; i < t->n; ++i) {
        dsi_buf_printf(text, "%s{\"role\": \"%s\", \"content\": \"", i > 0 ? ", " : "",
                       t->items[i].role);
        dsi_buf_json(text, t->items[i].content, t->items[i].content_size);
        dsi_buf_puts(text, "\"}");
    }
    dsi_buf_puts(text, "]}\n");
}

int64_t chat_end_of_turn(const chat_form *form)
{
    static const char answer[] = "answerofthemodel";
    const ds_chat_message messages[] = {{"user", "question", strlen("question")},
                                        {"assistant", answer, sizeof answer - 1}};
    ds_chat_text text = {0};
    ds_tokens tokens;
    int64_t id = -1;
    if (ds_chat_render(form->chat, messages, 2, 0, &text) < 0) {
        return -1;
    }
    const char *at = strstr(text.text, answer);
    const char *behind = at != NULL ? at + sizeof answer - 1 : NULL;
    if (behind != NULL && strlen(behind) > 0 &&
        ds_tokenizer_encode(form->tokenizer, form->scratch, behind, strlen(behind), 0, &tokens) >=
            0 &&
        tokens.n > 0 && ds_tokenizer_is_special(form->tokenizer, tokens.ids[0])) {
        id = (int64_t)tokens.ids[0];
    }
    ds_chat_text_free(&text);
    return id;
}
