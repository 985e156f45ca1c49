/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: choosing one, opening and closing. See chat.h. */
#include "data/chat_template.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 320 };

static void all_names(const ds_tokenizer *tok, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < tok->n_chat_templates && used < size; ++i) {
        used += (size_t)snprintf(text + used, size - used, "%.40s, ", tok->chat_templates[i].name);
    }
    for (const char *const *name = ds_chat_names(); *name != NULL && used < size; ++name) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", *name, name[1] != NULL ? ", " : "");
    }
}

static const char *template_named(const ds_tokenizer *tok, const char *name)
{
    for (size_t i = 0; i < tok->n_chat_templates; ++i) {
        if (strcmp(tok->chat_templates[i].name, name) == 0) {
            return tok->chat_templates[i].text;
        }
    }
    return NULL;
}

/* Which special tokens a template may read that this reader does not keep. */
static ds_status check_tokens(const ds_chat *chat, const dsi_jinja *template)
{
    static const char *const names[] = {"unk_token", "sep_token",  "pad_token",
                                        "cls_token", "mask_token", NULL};
    for (const char *const *name = names; *name != NULL; ++name) {
        if (dsi_jinja_mentions(template, *name)) {
            return ds_fail(chat->ctx, DS_ERR_UNSUPPORTED,
                           "the chat template %s reads %s, which is not supported; choose another "
                           "by --chat_template",
                           chat->name, *name);
        }
    }
    return DS_OK;
}

static ds_status parse(ds_chat *chat, const char *text, dsi_jinja **out)
{
    char error[DSI_JINJA_ERROR];
    const ds_status status = dsi_jinja_parse(text, strlen(text), out, error, sizeof error);
    if (status < 0) {
        return ds_fail(chat->ctx, status, "the chat template %s: %s%s", chat->name, error,
                       status == DS_ERR_UNSUPPORTED ? "; choose another by --chat_template" : "");
    }
    return check_tokens(chat, *out);
}

/* The tokenizer's own templates, as transformers chooses among them. */
static ds_status own_templates(ds_chat *chat, const ds_tokenizer *tok)
{
    const char *standard = template_named(tok, "default");
    const char *tools =
        tok->n_chat_templates > 1 || standard == NULL ? template_named(tok, "tool_use") : NULL;
    char names[NAMES];
    if (tok->n_chat_templates == 0) {
        all_names(tok, names, sizeof names);
        return ds_fail(chat->ctx, DS_ERR_NOT_FOUND,
                       "the tokenizer%s%s has no chat template; choose one by --chat_template: %s",
                       tok->folder != NULL ? " in " : "", tok->folder != NULL ? tok->folder : "",
                       names);
    }
    if (standard == NULL && tools == NULL) {
        all_names(tok, names, sizeof names);
        return ds_fail(chat->ctx, DS_ERR_FORMAT,
                       "the tokenizer has several chat templates and none is the default; choose "
                       "one by --chat_template: %s",
                       names);
    }
    if (standard != NULL) {
        DS_TRY(parse(chat, standard, &chat->plain));
    }
    return tools != NULL ? parse(chat, tools, &chat->with_tools) : DS_OK;
}

static ds_status named_template(ds_chat *chat, const ds_tokenizer *tok, const char *name)
{
    const char *text = template_named(tok, name);
    const bool own = text != NULL;
    if (text == NULL) {
        text = dsi_chat_builtin(name);
    }
    if (text == NULL) {
        char names[NAMES];
        all_names(tok, names, sizeof names);
        return ds_fail(chat->ctx, DS_ERR_ARG,
                       "--chat_template: no template is named \"%.60s\"; known: %s", name, names);
    }
    DS_TRY(parse(chat, text, &chat->plain));
    const bool no_bos = tok->bos_text == NULL && dsi_jinja_mentions(chat->plain, "bos_token");
    const bool no_eos = tok->eos_text == NULL && dsi_jinja_mentions(chat->plain, "eos_token");
    if (!own && (no_bos || no_eos)) {
        return ds_fail(
            chat->ctx, DS_ERR_UNSUPPORTED,
            "the chat template %s writes the %s token, but the tokenizer names none; set "
            "it in tokenizer_config.json or choose another template by --chat_template",
            name, no_bos ? "bos" : "eos");
    }
    return DS_OK;
}

static ds_status fill(ds_chat *chat, const ds_tokenizer *tok, const char *name)
{
    const bool by_name = name != NULL && *name != '\0';
    chat->name = strdup(by_name ? name : "of the tokenizer");
    chat->tokens = json_object();
    if (chat->name == NULL || chat->tokens == NULL ||
        (tok->bos_text != NULL &&
         json_object_set_new(chat->tokens, "bos_token", json_string(tok->bos_text)) != 0) ||
        (tok->eos_text != NULL &&
         json_object_set_new(chat->tokens, "eos_token", json_string(tok->eos_text)) != 0)) {
        return ds_fail(chat->ctx, DS_ERR_NOMEM,
                       "no memory for a chat template, or a special token that is not UTF-8");
    }
    return by_name ? named_template(chat, tok, name) : own_templates(chat, tok);
}

ds_status ds_chat_create(ds_ctx *ctx, const ds_tokenizer *tok, const char *name, ds_chat **chat_out)
{
    ds_chat *chat = calloc(1, sizeof *chat);
    if (chat == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a chat template");
    }
    chat->ctx = ctx;
    const ds_status status = fill(chat, tok, name);
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
    dsi_jinja_destroy(&chat->plain);
    dsi_jinja_destroy(&chat->with_tools);
    json_decref(chat->tokens);
    free(chat->name);
    free(chat);
    *chat_inout = NULL;
}

const char *ds_chat_name(const ds_chat *chat)
{
    return chat->name;
}
