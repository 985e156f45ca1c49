/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a tokenizer.json and its added tokens, and the order in which components are read.
 *
 * Called once while a file is read, with the same law as tokenizer_components.c.
 */
#include "data/tokenizer_form.h"
#include "data/tokenizer_load.h"

#include <string.h>

/* ---- the model ---- */

/* An option of text may be absent or null. */
static ds_status reject_kind(ds_tokenizer *tok, const char *path, const json_t *model,
                             const char *key)
{
    const json_t *value = json_object_get(model, key);
    return value == NULL || json_is_null(value) || json_is_string(value)
               ? DS_OK
               : ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: the model's \"%s\" must be a text or null",
                         path, key);
}

static ds_status reject_text(ds_tokenizer *tok, const char *path, const json_t *model,
                             const char *key)
{
    const char *text;
    size_t n;
    DS_TRY(reject_kind(tok, path, model, key));
    if (dsi_form_text(model, key, &text, &n) && n > 0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the BPE model's \"%s\": \"%.40s\" is not supported; it must be null",
                       path, key, text);
    }
    return DS_OK;
}

static ds_status read_wordpiece(ds_tokenizer *tok, const char *path, const json_t *model)
{
    const char *text;
    size_t n;
    const json_t *most = json_object_get(model, "max_input_chars_per_word");
    if (tok->vocab.slots == NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"model\" must have the object \"vocab\"",
                       path);
    }
    if (!json_is_integer(most) || json_integer_value(most) < 0) {
        return ds_fail(
            tok->ctx, DS_ERR_FORMAT,
            "%s: the model's \"max_input_chars_per_word\" must be a whole number from 0 on", path);
    }
    if (!dsi_form_text(model, "unk_token", &text, &n)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: the model lacks the text \"unk_token\"", path);
    }
    tok->unk_id = dsi_vocab_find(&tok->vocab, text, n);
    if (tok->unk_id == DSI_NO_ID) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the unknown token \"%.40s\" is not in the vocabulary", path, text);
    }
    DS_TRY(dsi_form_keep_member(tok, path, model, "continuing_subword_prefix", &tok->piece_prefix,
                                &tok->n_piece_prefix));
    tok->word_piece = true;
    tok->max_word_chars = (size_t)json_integer_value(most);
    for (uint32_t id = 0; id < tok->vocab.n_ids; ++id) {
        const dsi_spelling *spelled = &tok->vocab.spelled[id];
        if (spelled->offset != DSI_NO_ID && spelled->size > tok->longest_piece) {
            tok->longest_piece = spelled->size;
        }
    }
    return DS_OK;
}

static ds_status read_unigram(ds_tokenizer *tok, const char *path, const json_t *model)
{
    const json_t *unknown = json_object_get(model, "unk_id");
    if (tok->scores == NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: \"model\" must have a list \"vocab\" of pieces with scores", path);
    }
    if (!json_is_integer(unknown) || json_integer_value(unknown) < 0 ||
        json_integer_value(unknown) >= (json_int_t)tok->vocab.n_ids) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the Unigram model's \"unk_id\" must be the id of a piece: without one "
                       "the package fails at the first unknown character",
                       path);
    }
    tok->unk_id = (uint32_t)json_integer_value(unknown);
    return dsi_form_option(tok, path, model, "byte_fallback", false, &tok->byte_fallback);
}

static ds_status read_model(ds_tokenizer *tok, const char *path, const json_t *model)
{
    const char *type = dsi_form_type(model);
    if (tok->scores != NULL && strcmp(type, "Unigram") != 0) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the vocabulary has scores, but the model's \"type\" is \"%.40s\"", path,
                       type);
    }
    if (strcmp(type, "WordPiece") == 0) {
        return read_wordpiece(tok, path, model);
    }
    if (strcmp(type, "Unigram") == 0) {
        return read_unigram(tok, path, model);
    }
    if (json_object_get(model, "type") != NULL && strcmp(type, "BPE") != 0) {
        return dsi_form_unsupported(tok, path, "model", type, "BPE, WordPiece, Unigram");
    }
    if (tok->vocab.slots == NULL || tok->merges.slots == NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: \"model\" must have the object \"vocab\" and the list \"merges\"",
                       path);
    }
    DS_TRY(reject_text(tok, path, model, "continuing_subword_prefix"));
    DS_TRY(reject_text(tok, path, model, "end_of_word_suffix"));
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0.0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the BPE model's \"dropout\" %g is not supported; it must be null", path,
                       json_number_value(dropout));
    }
    DS_TRY(dsi_form_option(tok, path, model, "byte_fallback", false, &tok->byte_fallback));
    DS_TRY(dsi_form_option(tok, path, model, "fuse_unk", false, &tok->fuse_unk));
    DS_TRY(dsi_form_option(tok, path, model, "ignore_merges", false, &tok->ignore_merges));
    const char *text;
    size_t n;
    DS_TRY(reject_kind(tok, path, model, "unk_token"));
    if (dsi_form_text(model, "unk_token", &text, &n)) {
        tok->unk_id = dsi_vocab_find(&tok->vocab, text, n);
        if (tok->unk_id == DSI_NO_ID) {
            return ds_fail(tok->ctx, DS_ERR_FORMAT,
                           "%s: the unknown token \"%.40s\" is not in the vocabulary", path, text);
        }
    }
    return DS_OK;
}

/* ---- added tokens ---- */

static ds_status read_added(ds_tokenizer *tok, const char *path, const json_t *json)
{
    const char *text;
    size_t n;
    const json_t *id = json_object_get(json, "id");
    if (!dsi_form_text(json, "content", &text, &n) || n > UINT32_MAX) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: an added token lacks its \"content\"", path);
    }
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the \"id\" of the added token \"%.60s\" must be a whole number of 32 "
                       "bits",
                       path, text);
    }
    dsi_added_token token = {.content = text, .n_content = (uint32_t)n};
    DS_TRY(dsi_form_flag(tok, path, json, "special", &token.special));
    DS_TRY(dsi_form_flag(tok, path, json, "single_word", &token.single_word));
    DS_TRY(dsi_form_flag(tok, path, json, "lstrip", &token.lstrip));
    DS_TRY(dsi_form_flag(tok, path, json, "rstrip", &token.rstrip));
    DS_TRY(dsi_form_flag(tok, path, json, "normalized", &token.normalized));
    return dsi_tokens_add(tok, path, &token);
}

static ds_status read_all_added(ds_tokenizer *tok, const char *path, const json_t *list)
{
    if (list != NULL && !json_is_array(list)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"added_tokens\" must be a list", path);
    }
    size_t i;
    const json_t *one;
    dsi_tokens_begin(tok);
    json_array_foreach(list, i, one)
    {
        DS_TRY(read_added(tok, path, one));
    }
    return DS_OK;
}

/* Truncation and padding are for the package's batches; they change no id of a text. */
static ds_status check_batch_member(ds_tokenizer *tok, const char *path, const json_t *root,
                                    const char *key)
{
    const json_t *value = json_object_get(root, key);
    return value == NULL || json_is_null(value) || json_is_object(value)
               ? DS_OK
               : ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"%s\" must be an object or null", path,
                         key);
}

static ds_status check_version(ds_tokenizer *tok, const char *path, const json_t *root)
{
    const json_t *version = json_object_get(root, "version");
    const char *text = json_string_value(version);
    return version == NULL || (text != NULL && strcmp(text, "1.0") == 0)
               ? DS_OK
               : ds_fail(tok->ctx, DS_ERR_UNSUPPORTED, "%s: \"version\" must be \"1.0\"", path);
}

ds_status dsi_tokenizer_components(ds_tokenizer *tok, const char *path, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(root) || !json_is_object(model)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: the object \"model\" is missing", path);
    }
    DS_TRY(check_version(tok, path, root));
    DS_TRY(check_batch_member(tok, path, root, "truncation"));
    DS_TRY(check_batch_member(tok, path, root, "padding"));
    DS_TRY(read_model(tok, path, model));
    DS_TRY(dsi_tokenizer_norm(tok, path, json_object_get(root, "normalizer")));
    DS_TRY(dsi_tokenizer_pretok(tok, path, json_object_get(root, "pre_tokenizer")));
    DS_TRY(dsi_tokenizer_check_first(tok, path));
    DS_TRY(read_all_added(tok, path, json_object_get(root, "added_tokens")));
    DS_TRY(dsi_tokenizer_post(tok, path, json_object_get(root, "post_processor")));
    return dsi_tokenizer_decoder(tok, path, json_object_get(root, "decoder"));
}
