/* SPDX-License-Identifier: Apache-2.0 */
/* The chat templates of a tokenizer's folder, as transformers reads them: the files of templates
 * where there are any, else what tokenizer_config.json holds, one or several by name.
 *
 * Called by dsi_tokenizer_read_side_files. The texts are parsed later (chat.c).
 */
#include "base/buf.h"
#include "data/tokenizer.h"
#include "data/tokenizer_load.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, TEMPLATE_BYTES = 32 << 20, TEMPLATES_MAX = 64 };

static ds_status add(ds_tokenizer *tok, const char *name, size_t n_name, const char *text, size_t n)
{
    if (tok->n_chat_templates == TEMPLATES_MAX) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "more than %d chat templates", TEMPLATES_MAX);
    }
    if (n > 0 && memchr(text, '\0', n) != NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "a chat template with a zero byte");
    }
    dsi_template_text *grown =
        dsi_arena_array(tok->arena, tok->n_chat_templates + 1, sizeof *grown);
    dsi_template_text one = {dsi_arena_strndup(tok->arena, name, n_name),
                             dsi_arena_strndup(tok->arena, text, n)};
    if (grown == NULL || one.name == NULL || one.text == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a chat template");
    }
    for (size_t i = 0; i < tok->n_chat_templates; ++i) {
        grown[i] = tok->chat_templates[i];
    }
    grown[tok->n_chat_templates++] = one;
    tok->chat_templates = grown;
    return DS_OK;
}

static ds_status add_file(ds_tokenizer *tok, const char *path, const char *name, size_t n_name)
{
    struct stat st;
    dsi_buf file = dsi_buf_make(TEMPLATE_BYTES);
    if (stat(path, &st) == 0) { /* a pipe would be waited for */
        DS_TRY(dsi_tokenizer_check_file(tok, path, &st));
    }
    ds_status status = dsi_buf_read_file(tok->ctx, path, &file);
    if (status >= 0) {
        status = add(tok, name, n_name, dsi_buf_text(&file), file.size);
    }
    dsi_buf_free(&file);
    return status;
}

/* NAME.jinja of additional_chat_templates. */
static int is_template(const struct dirent *entry)
{
    const size_t n = strlen(entry->d_name);
    return n > 6 && *entry->d_name != '.' && strcmp(entry->d_name + n - 6, ".jinja") == 0;
}

static ds_status additional_files(ds_tokenizer *tok, const char *folder)
{
    char path[PATH_BYTES];
    struct dirent **list = NULL;
    (void)snprintf(path, sizeof path, "%s/additional_chat_templates", folder);
    const int n = scandir(path, &list, is_template, alphasort);
    ds_status status = DS_OK;
    for (int i = 0; i < n; ++i) {
        const char *name = list[i]->d_name;
        const int size =
            snprintf(path, sizeof path, "%s/additional_chat_templates/%s", folder, name);
        if (status >= 0 && size > 0 && size < PATH_BYTES) {
            status = add_file(tok, path, name, strlen(name) - 6);
        }
        free(list[i]);
    }
    free(list);
    return status;
}

static ds_status add_json(ds_tokenizer *tok, const char *name, const json_t *text)
{
    if (name == NULL || !json_is_string(text)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "tokenizer_config.json: \"chat_template\" must be a text, or a list of "
                       "{\"name\", \"template\"}");
    }
    return add(tok, name, strlen(name), json_string_value(text), json_string_length(text));
}

static ds_status of_config(ds_tokenizer *tok, const json_t *value)
{
    const char *name;
    json_t *text;
    size_t i;
    json_t *one;
    if (json_is_string(value)) {
        return add_json(tok, "default", value);
    }
    json_array_foreach((json_t *)(uintptr_t)value, i, one)
    {
        DS_TRY(add_json(tok, json_string_value(json_object_get(one, "name")),
                        json_object_get(one, "template")));
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, text)
    {
        DS_TRY(add_json(tok, name, text));
    }
    return DS_OK;
}

ds_status dsi_tokenizer_read_chat_templates(ds_tokenizer *tok, const char *folder,
                                            const json_t *config)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (n > 0 && n < PATH_BYTES && access(path, F_OK) == 0) {
        DS_TRY(add_file(tok, path, "default", strlen("default")));
        DS_TRY(dsi_tokenizer_note_file(tok, path));
    }
    DS_TRY(additional_files(tok, folder));
    return tok->n_chat_templates > 0 ? DS_OK
                                     : of_config(tok, json_object_get(config, "chat_template"));
}

const char *ds_tokenizer_chat_template(const ds_tokenizer *tok)
{
    for (size_t i = 0; i < tok->n_chat_templates; ++i) {
        if (strcmp(tok->chat_templates[i].name, "default") == 0) {
            return tok->chat_templates[i].text;
        }
    }
    return tok->n_chat_templates > 0 ? tok->chat_templates[0].text : NULL;
}
