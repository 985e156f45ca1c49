/* Chat templates: the built-in forms, choosing one, opening and closing. See chat.h. */
#include "data/chat_template.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QWEN2_SYSTEM  "You are a helpful assistant."
#define QWEN25_SYSTEM "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

/* clang-format off */
static const dsi_chat_form forms[] = {
    {.name = "chatml", .kind = DSI_CHAT_CHATML},
    {.name = "llama2", .kind = DSI_CHAT_LLAMA2, .needs_bos = true, .needs_eos = true},
    {.name = "llama3", .kind = DSI_CHAT_LLAMA3, .needs_bos = true},
    {.name = "llama3.1", .kind = DSI_CHAT_LLAMA31, .needs_bos = true},
    {.name = "llama3.2", .kind = DSI_CHAT_LLAMA32, .needs_bos = true},
    {.name = "mistral-v0.1", .kind = DSI_CHAT_MISTRAL, .needs_bos = true, .needs_eos = true,
     .mistral = {"[INST] ", " [/INST]", "", false, true, DSI_SYSTEM_REFUSE}},
    {.name = "mistral-v0.2", .kind = DSI_CHAT_MISTRAL, .needs_bos = true, .needs_eos = true,
     .mistral = {"[INST] ", " [/INST]", "", false, false, DSI_SYSTEM_REFUSE}},
    {.name = "mistral-v1", .kind = DSI_CHAT_MISTRAL, .needs_bos = true, .needs_eos = true,
     .mistral = {" [INST] ", " [/INST]", " ", false, false, DSI_SYSTEM_FIRST}},
    {.name = "mistral-v3", .kind = DSI_CHAT_MISTRAL, .needs_bos = true, .needs_eos = true,
     .mistral = {"[INST] ", "[/INST]", " ", true, false, DSI_SYSTEM_LAST}},
    {.name = "mistral-tekken", .kind = DSI_CHAT_MISTRAL, .needs_bos = true, .needs_eos = true,
     .mistral = {"[INST]", "[/INST]", "", false, false, DSI_SYSTEM_LAST}},
    {.name = "qwen2", .kind = DSI_CHAT_QWEN2, .system_text = QWEN2_SYSTEM,
     .system_size = sizeof QWEN2_SYSTEM - 1},
    {.name = "qwen2.5", .kind = DSI_CHAT_QWEN25, .system_text = QWEN25_SYSTEM,
     .system_size = sizeof QWEN25_SYSTEM - 1},
    {.name = "qwen3", .kind = DSI_CHAT_QWEN3},
    {.name = "qwen3-2507", .kind = DSI_CHAT_QWEN3_2507},
};
static const char *const form_names[] = {
    "chatml", "llama2", "llama3", "llama3.1", "llama3.2", "mistral-v0.1", "mistral-v0.2",
    "mistral-v1", "mistral-v3", "mistral-tekken", "qwen2", "qwen2.5", "qwen3", "qwen3-2507", NULL};
/* clang-format on */

const char *const *ds_chat_names(void)
{
    return form_names;
}

const dsi_chat_form *dsi_chat_form_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        if (strcmp(forms[i].name, name) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

static void all_names(char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; form_names[i] != NULL && used < size; ++i) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", form_names[i]);
    }
}

/* Fills the form by the tokenizer's own template. */
static ds_status recognise(ds_ctx *ctx, const ds_tokenizer *tok, dsi_buf *canonical,
                           dsi_chat_form *form)
{
    char names[256];
    all_names(names, sizeof names);
    const char *text = ds_tokenizer_chat_template(tok);
    if (text == NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND,
                       "the tokenizer%s%s has no chat template; choose one by --chat_template: %s",
                       tok->folder != NULL ? " in " : "", tok->folder != NULL ? tok->folder : "",
                       names);
    }
    dsi_chat_canonical(text, strlen(text), canonical);
    if (canonical->failed) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read a chat template");
    }
    if (!dsi_chat_recognise(dsi_buf_text(canonical), form)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "the chat template of the tokenizer%s%s is none of the known ones; choose "
                       "one by --chat_template: %s",
                       tok->folder != NULL ? " in " : "", tok->folder != NULL ? tok->folder : "",
                       names);
    }
    return DS_OK;
}

static ds_status by_name(ds_ctx *ctx, const char *name, dsi_chat_form *form)
{
    const dsi_chat_form *known = dsi_chat_form_by_name(name);
    if (known == NULL) {
        char names[256];
        all_names(names, sizeof names);
        return ds_fail(ctx, DS_ERR_ARG,
                       "--chat_template: no template is named \"%.60s\"; known: %s", name, names);
    }
    *form = *known;
    return DS_OK;
}

/* The date that Llama 3.2's template writes: today, in English whatever the locale. */
static void today(char *date, size_t size)
{
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local) != NULL && local.tm_mon >= 0 && local.tm_mon < 12) {
        (void)snprintf(date, size, "%02u %s %04u", (unsigned)local.tm_mday % 100u,
                       months[local.tm_mon], (unsigned)(local.tm_year + 1900) % 10000u);
    }
}

/* Copies what the form borrows and what the tokenizer spells. */
static ds_status fill(ds_chat *chat, const ds_tokenizer *tok)
{
    const dsi_chat_form *form = &chat->form;
    if ((form->needs_bos && tok->bos_text == NULL) || (form->needs_eos && tok->eos_text == NULL)) {
        return ds_fail(
            chat->ctx, DS_ERR_UNSUPPORTED,
            "the chat template %s writes the %s token, but the tokenizer names none; set "
            "it in tokenizer_config.json or choose another template by --chat_template",
            form->name, form->needs_bos && tok->bos_text == NULL ? "bos" : "eos");
    }
    chat->bos = strdup(tok->bos_text != NULL ? tok->bos_text : "");
    chat->eos = strdup(tok->eos_text != NULL ? tok->eos_text : "");
    chat->system_text =
        strndup(form->system_text != NULL ? form->system_text : "", form->system_size);
    if (chat->bos == NULL || chat->eos == NULL || chat->system_text == NULL) {
        return ds_fail(chat->ctx, DS_ERR_NOMEM, "no memory for a chat template");
    }
    chat->form.system_text = chat->system_text;
    (void)snprintf(chat->date, sizeof chat->date, "26 Jul 2024");
    if (form->kind == DSI_CHAT_LLAMA32) {
        today(chat->date, sizeof chat->date);
    }
    return DS_OK;
}

ds_status ds_chat_create(ds_ctx *ctx, const ds_tokenizer *tok, const char *name, ds_chat **chat_out)
{
    ds_chat *chat = calloc(1, sizeof *chat);
    if (chat == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a chat template");
    }
    chat->ctx = ctx;
    dsi_buf canonical = dsi_buf_make(16 << 20);
    ds_status status = name != NULL && *name != '\0' ? by_name(ctx, name, &chat->form)
                                                     : recognise(ctx, tok, &canonical, &chat->form);
    if (status >= 0) {
        status = fill(chat, tok);
    }
    dsi_buf_free(&canonical);
    if (status < 0) {
        ds_chat_destroy(&chat);
        return status;
    }
    *chat_out = chat;
    return DS_OK;
}

void ds_chat_destroy(ds_chat **chat_inout)
{
    ds_chat *chat = chat_inout != NULL ? *chat_inout : NULL;
    if (chat == NULL) {
        return;
    }
    free(chat->system_text);
    free(chat->bos);
    free(chat->eos);
    free(chat);
    *chat_inout = NULL;
}

const char *ds_chat_name(const ds_chat *chat)
{
    return chat->form.name;
}
