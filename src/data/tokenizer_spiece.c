/* SPDX-License-Identifier: Apache-2.0 */
/* A folder whose tokenizer is a model of SentencePiece: read, written as a tokenizer.json, and read
 * as such. Called once by tokenizer_open.c.
 *
 * As in transformers: Llama's class takes BPE, T5's takes Unigram and puts its <extra_id_N> behind
 * the pieces, the general class follows the model's own settings. In that one bos, eos and unk are
 * the model's where no file names them, and the table of added tokens may give pieces of BPE other
 * names; in all, control pieces and those that stand whole are special tokens where no file has a
 * list of further ones.
 */
#include "data/spiece.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static ds_status no_memory(ds_tokenizer *tok)
{
    return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
}

static ds_status check_class(ds_tokenizer *tok, const char *path, const dsi_spiece *s,
                             const dsi_folder_files *files)
{
    const bool bpe = s->model_type == DSI_SPIECE_BPE;
    const bool llama = files->kind == DSI_CLASS_LLAMA;
    if (!llama && files->kind != DSI_CLASS_T5 && files->kind != DSI_CLASS_FILE) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: a model of SentencePiece is no tokenizer of the class %.60s that the "
                       "folder names",
                       path, files->class_name);
    }
    if ((llama && !bpe) || (files->kind == DSI_CLASS_T5 && bpe)) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the class %.60s that the folder names takes a %s model, this one is %s",
                       path, files->class_name, bpe ? "Unigram" : "BPE", bpe ? "BPE" : "Unigram");
    }
    return DS_OK;
}

/* Control pieces; but for the general class those that stand whole, too. */
static ds_status list_tokens(ds_tokenizer *tok, const dsi_spiece *s, dsi_folder_files *files)
{
    files->spiece_tokens = json_array();
    for (size_t i = 0; i < s->n; ++i) {
        const dsi_spiece_piece *piece = &s->pieces[i];
        const bool control = piece->kind == DSI_PIECE_CONTROL;
        if (!control && (piece->kind != DSI_PIECE_USER || files->kind == DSI_CLASS_FILE)) {
            continue;
        }
        json_t *token = json_pack("{s:s, s:s%, s:b, s:b, s:b, s:b, s:b}", "__type", "AddedToken",
                                  "content", piece->text.data, piece->text.n, "special", control,
                                  "normalized", 0, "single_word", 0, "lstrip", 0, "rstrip", 0);
        if (json_array_append_new(files->spiece_tokens, token) != 0) {
            return no_memory(tok);
        }
    }
    return files->spiece_tokens != NULL ? DS_OK : no_memory(tok);
}

/* bos, eos and unk of the model, where tokenizer_config.json has no such member. */
static ds_status name_tokens(ds_tokenizer *tok, const dsi_spiece *s, dsi_folder_files *files)
{
    const struct {
        const char *key;
        int64_t id;
        dsi_spiece_text text, otherwise;
    } all[] = {{"bos_token", s->bos_id, s->bos_piece, {"<s>", 3}},
               {"eos_token", s->eos_id, s->eos_piece, {"</s>", 4}},
               {"unk_token", s->unk_id, s->unk_piece, {"<unk>", 5}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        const dsi_spiece_text text = all[i].text.n > 0 ? all[i].text : all[i].otherwise;
        if (all[i].id >= 0 && json_object_get(files->config, all[i].key) == NULL &&
            json_object_set_new(files->config, all[i].key, json_stringn(text.data, text.n)) != 0) {
            return no_memory(tok);
        }
    }
    return DS_OK;
}

/* ---- pieces with other names ---- */

typedef struct name {
    size_t id;
    const char *text;
    size_t n;
} name;

static bool is_spelled(const dsi_spiece_piece *piece, const name *other)
{
    return piece->text.n == other->n && memcmp(piece->text.data, other->text, other->n) == 0;
}

/* An id of the table of added tokens that is a piece's, with a text, which may be empty. */
static bool take_name(const dsi_spiece *s, const char *id, const json_t *token, name *out)
{
    char *end;
    errno = 0;
    const unsigned long long number = strtoull(id, &end, 10);
    const json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
    if (*id < '0' || *id > '9' || *end != '\0' || errno != 0 || number >= s->n ||
        !json_is_string(text)) {
        return false;
    }
    *out = (name){(size_t)number, json_string_value(text), json_string_length(text)};
    return true;
}

/* A piece takes the name that the table has for its id, but for one that another piece keeps. */
static ds_status rename_pieces(ds_tokenizer *tok, const char *path, dsi_spiece *s,
                               const json_t *table)
{
    enum { MAX_NAMES = 4096 };
    name names[MAX_NAMES];
    size_t n = 0;
    const char *key;
    json_t *token;
    bool *named = calloc(s->n, sizeof *named);
    if (named == NULL) {
        return no_memory(tok);
    }
    json_object_foreach((json_t *)(uintptr_t)table, key, token)
    {
        name one;
        if (!take_name(s, key, token, &one)) {
            continue;
        }
        const bool unknown = (int64_t)one.id == s->unk_id && !s->byte_fallback &&
                             !is_spelled(&s->pieces[one.id], &one);
        if (one.n == 0 || unknown) { /* transformers fails at an unknown character */
            free(named);
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: \"added_tokens_decoder\" gives %s %zu %s name", path,
                           unknown ? "the unknown piece" : "piece", one.id,
                           one.n == 0 ? "an empty" : "another");
        }
        named[one.id] = true;
        if (!is_spelled(&s->pieces[one.id], &one)) {
            if (n == MAX_NAMES) {
                free(named);
                return ds_fail(tok->ctx, DS_ERR_LIMIT,
                               "%s: \"added_tokens_decoder\" gives more than %d pieces another "
                               "name",
                               path, MAX_NAMES);
            }
            names[n++] = one;
        }
    }
    size_t n_free = 0;
    for (size_t i = 0; i < n; ++i) {
        bool kept = false;
        for (size_t k = 0; !kept && k < s->n; ++k) {
            kept = !named[k] && is_spelled(&s->pieces[k], &names[i]);
        }
        if (!kept) {
            names[n_free++] = names[i];
        }
    }
    for (size_t i = 0; i < n_free; ++i) {
        s->pieces[names[i].id].text = (dsi_spiece_text){names[i].text, names[i].n};
    }
    free(named);
    return DS_OK;
}

/* ---- the folder ---- */

static ds_status follow_model(ds_tokenizer *tok, const char *path, dsi_spiece *s,
                              dsi_folder_files *files)
{
    const json_t *table = json_object_get(files->config, "added_tokens_decoder");
    files->raw_table = s->add_dummy_prefix;
    DS_TRY(name_tokens(tok, s, files));
    return s->model_type == DSI_SPIECE_BPE && json_is_object(table)
               ? rename_pieces(tok, path, s, table)
               : DS_OK;
}

static ds_status count_gaps(ds_tokenizer *tok, const dsi_folder_files *files, size_t *n_out)
{
    const json_t *most = json_object_get(files->config, "extra_ids");
    const json_int_t n = most == NULL ? 100 : json_is_integer(most) ? json_integer_value(most) : -1;
    if (n < 0 || n > DSI_TOK_MAX_ID) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s/tokenizer_config.json: \"extra_ids\" must be a whole number from 0 on",
                       files->folder);
    }
    *n_out = (size_t)n;
    return DS_OK;
}

static ds_status read_model(ds_tokenizer *tok, const char *path, dsi_spiece *s,
                            dsi_folder_files *files)
{
    size_t n_gaps = 0;
    uint32_t *ranks = NULL;
    dsi_buf text = dsi_buf_make(DSI_TOK_MAX_FILE);
    const json_t *legacy = json_object_get(files->config, "legacy");
    const bool always = legacy == NULL || dsi_class_is_truth(legacy);
    DS_TRY(check_class(tok, path, s, files));
    DS_TRY(list_tokens(tok, s, files));
    if (files->kind == DSI_CLASS_FILE) {
        DS_TRY(follow_model(tok, path, s, files));
    } else if (files->kind == DSI_CLASS_T5) {
        DS_TRY(count_gaps(tok, files, &n_gaps));
    }
    ds_status status = dsi_spiece_json(tok->ctx, path, s, n_gaps, always, &text, &ranks);
    if (status >= 0) {
        tok->merges.ranks = ranks;
        status = dsi_tokenizer_read_text(tok, path, &text, files);
        tok->merges.ranks = NULL;
    }
    free(ranks);
    dsi_buf_free(&text);
    return status;
}

ds_status dsi_tokenizer_read_spiece(ds_tokenizer *tok, const char *path, dsi_folder_files *files)
{
    dsi_spiece spiece = {0};
    dsi_buf file = dsi_buf_make(DSI_TOK_MAX_FILE);
    ds_status status = DS_OK;
    files->spiece = true;
    if (files->config == NULL && (files->config = json_object()) == NULL) {
        return no_memory(tok);
    }
    DS_TRY_GOTO(status, dsi_tokenizer_find_class(tok, files, NULL), done);
    DS_TRY_GOTO(status, dsi_buf_read_file(tok->ctx, path, &file), done);
    DS_TRY_GOTO(status, dsi_spiece_read(tok->ctx, path, dsi_buf_text(&file), file.size, &spiece),
                done);
    status = read_model(tok, path, &spiece, files);
done:
    free(spiece.pieces);
    dsi_buf_free(&file);
    return status;
}
