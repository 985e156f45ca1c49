/* SPDX-License-Identifier: Apache-2.0 */
/* The small files beside a tokenizer: reading them, the chat template, further ids; and saving.
 *
 * Called once by ds_tokenizer_open. What they say of tokens is read in tokenizer_special.c; here
 * the ids in generation_config.json and config.json: bos and pad where no token is named, and eos
 * ids besides the named one, since chat models end a turn by another token than a text.
 */
#include "data/tokenizer_load.h"
#include "data/tokenizer_special.h"
#include "io/file.h"
#include "io/json_load.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096, SIDE_FILE_BYTES = 32 << 20 };

/* The path of a file of the folder, empty when it is not there. A pipe without a writer would be
 * waited for without end. */
static ds_status find_side(ds_tokenizer *tok, const char *folder, const char *name, char *path)
{
    struct stat st;
    const int n = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    if (n < 0 || n >= PATH_BYTES || stat(path, &st) != 0) {
        *path = '\0';
        return DS_OK;
    }
    return dsi_tokenizer_check_file(tok, path, &st);
}

ds_status dsi_tokenizer_check_file(ds_tokenizer *tok, const char *path, const struct stat *st)
{
    return S_ISREG(st->st_mode)
               ? DS_OK
               : ds_fail(tok->ctx, DS_ERR_IO, "cannot read %s: it is %s, not a regular file", path,
                         S_ISDIR(st->st_mode) ? "a folder" : "a device or pipe");
}

/* Reads a file of the folder; an absent one leaves *json_out NULL. */
static ds_status read_side(ds_tokenizer *tok, const char *folder, const char *name,
                           json_t **json_out)
{
    char path[PATH_BYTES];
    *json_out = NULL;
    DS_TRY(find_side(tok, folder, name, path));
    if (*path == '\0') {
        return DS_OK;
    }
    dsi_buf file = dsi_buf_make(SIDE_FILE_BYTES);
    ds_status status = dsi_buf_read_file(tok->ctx, path, &file);
    json_error_t error;
    if (status >= 0) {
        *json_out = dsi_json_parse(dsi_buf_text(&file), file.size, 0, &error);
        if (*json_out == NULL) {
            status = ds_fail(tok->ctx, DS_ERR_FORMAT, "%s:%d:%d: %s", path, error.line,
                             error.column, error.text);
        } else if (!json_is_object(*json_out)) {
            status = ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: must be an object", path);
            json_decref(*json_out);
            *json_out = NULL;
        }
    }
    dsi_buf_free(&file);
    return status;
}

static void add_eos(ds_tokenizer *tok, int64_t id)
{
    if (id >= 0 && id < tok->n_ids && tok->n_eos < DSI_TOK_MAX_EOS &&
        !ds_tokenizer_is_eos(tok, (uint32_t)id)) {
        tok->eos[tok->n_eos++] = (uint32_t)id;
    }
}

static char *kept_text(ds_tokenizer *tok, const char *text, size_t n)
{
    return dsi_arena_strndup(tok->arena, text, n);
}

/* A number of such a file as an id of this vocabulary, -1 when it is none. */
static int64_t id_of(const ds_tokenizer *tok, const json_t *value)
{
    const double id = json_is_number(value) ? json_number_value(value) : -1.0;
    return id >= 0.0 && id < (double)tok->n_ids ? (int64_t)id : -1;
}

/* Ids as numbers in config.json or generation_config.json. */
static void by_id(ds_tokenizer *tok, const json_t *config)
{
    const int64_t bos = id_of(tok, json_object_get(config, "bos_token_id"));
    const int64_t pad = id_of(tok, json_object_get(config, "pad_token_id"));
    tok->bos = tok->bos < 0 ? bos : tok->bos;
    tok->pad = tok->pad < 0 ? pad : tok->pad;
    const json_t *eos = json_object_get(config, "eos_token_id");
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos); ++i) {
            add_eos(tok, id_of(tok, json_array_get(eos, i)));
        }
    } else {
        add_eos(tok, id_of(tok, eos));
    }
}

ds_status dsi_folder_files_read(ds_tokenizer *tok, const char *folder, dsi_folder_files *files)
{
    *files = (dsi_folder_files){.folder = folder};
    const struct {
        const char *name;
        json_t **json;
    } all[] = {{"tokenizer_config.json", &files->config},
               {"special_tokens_map.json", &files->special_map},
               {"added_tokens.json", &files->added},
               {"config.json", &files->model}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        DS_TRY(read_side(tok, folder, all[i].name, all[i].json));
    }
    return DS_OK;
}

void dsi_folder_files_free(dsi_folder_files *files)
{
    json_decref(files->config);
    json_decref(files->special_map);
    json_decref(files->added);
    json_decref(files->model);
    json_decref(files->spiece_tokens);
    *files = (dsi_folder_files){0};
}

/* Notes a file that belongs to the tokenizer rather than to the model, where it is there. */
static ds_status note_side(ds_tokenizer *tok, const char *folder, const char *name)
{
    char path[PATH_BYTES];
    DS_TRY(find_side(tok, folder, name, path));
    return *path != '\0' ? dsi_tokenizer_note_file(tok, path) : DS_OK;
}

ds_status dsi_tokenizer_read_side_files(ds_tokenizer *tok, const dsi_folder_files *files)
{
    json_t *generation = NULL;
    DS_TRY(note_side(tok, files->folder, "tokenizer_config.json"));
    DS_TRY(note_side(tok, files->folder, "special_tokens_map.json"));
    DS_TRY(note_side(tok, files->folder, "added_tokens.json"));
    DS_TRY(read_side(tok, files->folder, "generation_config.json", &generation));
    by_id(tok, generation);
    by_id(tok, files->model);
    json_decref(generation);
    DS_TRY(dsi_tokenizer_read_chat_templates(tok, files->folder, files->config));
    size_t n;
    const char *piece;
    if (tok->bos_text == NULL && tok->bos >= 0 &&
        (piece = ds_tokenizer_piece(tok, (uint32_t)tok->bos, &n)) != NULL) {
        tok->bos_text = kept_text(tok, piece, n);
    }
    if (tok->eos_text == NULL && tok->n_eos > 0 &&
        (piece = ds_tokenizer_piece(tok, tok->eos[0], &n)) != NULL) {
        tok->eos_text = kept_text(tok, piece, n);
    }
    return DS_OK;
}

/* ---- saving ---- */

/* A tokenizer.json whose ids are the bytes. */
static ds_status save_bytes(ds_ctx *ctx, const ds_tokenizer *tok, const char *folder)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    dsi_buf out = dsi_buf_make(1 << 20);
    const char *byte_level = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                             "\"trim_offsets\": true, \"use_regex\": false}";
    dsi_buf_printf(&out,
                   "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                   "  \"added_tokens\": [],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n"
                   "  \"post_processor\": null,\n  \"decoder\": %s,\n  \"model\": {\n"
                   "    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
                   "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
                   "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"
                   "    \"ignore_merges\": false,\n    \"vocab\": {",
                   byte_level, byte_level);
    for (uint32_t i = 0; i < 256; ++i) {
        size_t n;
        const char *piece = ds_tokenizer_piece(tok, i, &n);
        dsi_buf_puts(&out, i == 0 ? "\n      \"" : ",\n      \"");
        dsi_buf_json(&out, piece, n);
        dsi_buf_printf(&out, "\": %u", i);
    }
    dsi_buf_puts(&out, "\n    },\n    \"merges\": []\n  }\n}\n");
    ds_status status = out.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory to write %s", path)
                                  : dsi_file_replace(ctx, path, dsi_buf_text(&out), out.size);
    dsi_buf_free(&out);
    if (status >= 0) {
        static const char config[] = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                     "  \"clean_up_tokenization_spaces\": false\n}\n";
        (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
        status = dsi_file_replace(ctx, path, config, sizeof config - 1);
    }
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat sa;
    struct stat sb;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

ds_status ds_tokenizer_save(ds_ctx *ctx, const ds_tokenizer *tok, const char *folder)
{
    if (strlen(folder) > PATH_BYTES - 256) {
        return ds_fail(ctx, DS_ERR_LIMIT, "the path %.100s… is too long", folder);
    }
    if (tok->bytes) {
        return save_bytes(ctx, tok, folder);
    }
    for (uint32_t i = 0; i < tok->n_files; ++i) {
        const char *slash = strrchr(tok->files[i], '/');
        const char *name = slash != NULL ? slash + 1 : tok->files[i];
        const size_t n_name = strlen(name);
        if (i == 0 && strcmp(name, "vocab.json") != 0 && n_name > 5 &&
            strcmp(name + n_name - 5, ".json") == 0) {
            name = "tokenizer.json"; /* whatever it was called */
        }
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", folder, name);
        if (same_file(path, tok->files[i])) {
            continue;
        }
        dsi_buf file = dsi_buf_make(DSI_TOK_MAX_FILE);
        ds_status status = dsi_buf_read_file(ctx, tok->files[i], &file);
        if (status >= 0) {
            status = dsi_file_replace(ctx, path, dsi_buf_text(&file), file.size);
        }
        dsi_buf_free(&file);
        DS_TRY(status);
    }
    return DS_OK;
}
