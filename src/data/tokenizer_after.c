/* SPDX-License-Identifier: Apache-2.0 */
/* What comes behind the model in a tokenizer.json: decoder and post-processor.
 *
 * Called once while a file is read, with the same law as tokenizer_components.c.
 */
#include "data/tokenizer_form.h"
#include "data/tokenizer_load.h"

#include <string.h>

/* ---- decoders ---- */

static ds_status decoder_text(ds_tokenizer *tok, const char *path, const json_t *json,
                              const char *key, const char **text_out, size_t *n_out)
{
    const char *text;
    if (!dsi_form_text(json, key, &text, n_out) ||
        (*text_out = dsi_arena_strndup(tok->arena, text, *n_out)) == NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: the decoder lacks the text \"%s\"", path, key);
    }
    return DS_OK;
}

static ds_status decoder_step(ds_tokenizer *tok, const char *path, const json_t *json,
                              const char *type, dsi_decode_step *step)
{
    if (strcmp(type, "Fuse") == 0) {
        step->kind = DSI_DECODE_FUSE;
        return DS_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        step->kind = DSI_DECODE_BYTE_FALLBACK;
        return DS_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        step->kind = DSI_DECODE_REPLACE;
        const json_t *pattern = json_object_get(json, "pattern");
        DS_TRY(decoder_text(tok, path, pattern, "String", &step->pattern, &step->n_pattern));
        return decoder_text(tok, path, json, "content", &step->content, &step->n_content);
    }
    if (strcmp(type, "Strip") == 0) {
        step->kind = DSI_DECODE_STRIP;
        DS_TRY(decoder_text(tok, path, json, "content", &step->pattern, &step->n_pattern));
        const json_int_t start = json_integer_value(json_object_get(json, "start"));
        const json_int_t stop = json_integer_value(json_object_get(json, "stop"));
        if (step->n_pattern != 1 || start < 0 || start > 1000 || stop != 0) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: the decoder Strip is supported for one ASCII character and "
                           "\"stop\": 0",
                           path);
        }
        step->start = (uint32_t)start;
        return DS_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        step->kind = DSI_DECODE_METASPACE;
        DS_TRY(decoder_text(tok, path, json, "replacement", &step->pattern, &step->n_pattern));
        step->content = " ";
        step->n_content = 1;
        const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
        const bool never = json_is_false(json_object_get(json, "add_prefix_space")) ||
                           (scheme != NULL && strcmp(scheme, "never") == 0);
        step->drop_first = !never;
        return DS_OK;
    }
    if (strcmp(type, "WordPiece") == 0) {
        step->kind = DSI_DECODE_WORDPIECE;
        DS_TRY(decoder_text(tok, path, json, "prefix", &step->pattern, &step->n_pattern));
        return dsi_form_flag(tok, path, json, "cleanup", &step->cleanup);
    }
    return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                   "%s: the decoder \"%.80s\" is not supported; known: ByteLevel, Replace, "
                   "ByteFallback, Fuse, Strip, Metaspace, WordPiece, Sequence",
                   path, type);
}

/* Steps for a token first, then ByteFallback, then Fuse, then a Strip of the whole text: an order
 * in which a token's text depends on no later token. */
static ds_status check_order(ds_tokenizer *tok, const char *path)
{
    uint32_t last = 0;
    bool fused = false;
    for (uint32_t i = 0; i < tok->n_decoders; ++i) {
        const dsi_decode_kind kind = tok->decoders[i].kind;
        if (kind == DSI_DECODE_WORDPIECE && tok->n_decoders > 1) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: the decoder WordPiece together with others is not supported", path);
        }
        const uint32_t rank = kind == DSI_DECODE_BYTE_FALLBACK    ? 1
                              : kind == DSI_DECODE_FUSE           ? 2
                              : kind == DSI_DECODE_STRIP && fused ? 3
                                                                  : 0;
        if (rank < last || (rank == last && rank > 0)) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: the decoder's steps are not supported in this order; the order is "
                           "Replace, Strip and Metaspace, then ByteFallback, Fuse, Strip",
                           path);
        }
        fused = fused || kind == DSI_DECODE_FUSE;
        last = rank;
    }
    return DS_OK;
}

static ds_status read_decoder(ds_tokenizer *tok, const char *path, const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    type = type != NULL ? type : "";
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *one;
        DS_TRY(dsi_form_list(tok, path, json, "decoders"));
        json_array_foreach(json_object_get(json, "decoders"), i, one)
        {
            DS_TRY(read_decoder(tok, path, one));
        }
        return DS_OK;
    }

    const bool byte_level = strcmp(type, "ByteLevel") == 0;
    if (tok->decode_bytes || (byte_level && tok->n_decoders > 0)) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the decoder ByteLevel together with others is not supported", path);
    }
    if (byte_level) {
        tok->decode_bytes = true;
        return DS_OK;
    }
    if (tok->n_decoders == DSI_TOK_MAX_STEPS) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "%s: more than %d decoders", path,
                       DSI_TOK_MAX_STEPS);
    }
    return decoder_step(tok, path, json, type, &tok->decoders[tok->n_decoders++]);
}

ds_status dsi_tokenizer_decoder(ds_tokenizer *tok, const char *path, const json_t *json)
{
    if (json == NULL || json_is_null(json)) {
        tok->join_with_space = true;
        return DS_OK;
    }
    DS_TRY(read_decoder(tok, path, json));
    return check_order(tok, path);
}

/* ---- post-processors ---- */

/* What is read of a template: "single" or "pair". */
typedef struct template_reader {
    const char *path, *key;
    const json_t *specials;
    bool pair;
    dsi_template_piece *pieces;
    uint32_t n;
} template_reader;

static ds_status template_piece(ds_tokenizer *tok, template_reader *r, const json_t *json)
{
    const char *path = r->path;
    const json_t *specials = r->specials;
    if (r->n == DSI_TOK_MAX_TEMPLATE) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "%s: a template of more than %d pieces", path,
                       DSI_TOK_MAX_TEMPLATE);
    }
    dsi_template_piece *piece = &r->pieces[r->n++];
    *piece = (dsi_template_piece){0};
    const json_t *special = json_object_get(json, "SpecialToken");
    const json_t *text = json_object_get(json, "Sequence");
    const json_t *type = json_object_get(special != NULL ? special : text, "type_id");
    if (r->pair && type != NULL &&
        (!json_is_integer(type) || json_integer_value(type) < 0 ||
         json_integer_value(type) > UINT8_MAX)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: \"type_id\" of the post-processor's \"pair\" must be 0 to %d", path,
                       UINT8_MAX);
    }
    piece->type = (uint8_t)(r->pair ? json_integer_value(type) : 0);
    if (special == NULL) {
        const char *which = json_string_value(json_object_get(text, "id"));
        piece->sequence = true;
        piece->second = r->pair && which != NULL && strcmp(which, "B") == 0;
        return which != NULL && (piece->second || strcmp(which, "A") == 0)
                   ? DS_OK
                   : ds_fail(tok->ctx, DS_ERR_FORMAT,
                             "%s: a piece of the post-processor's \"%s\" must be a SpecialToken or "
                             "the Sequence A%s",
                             path, r->key, r->pair ? " or B" : "");
    }
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *ids = json_object_get(json_object_get(specials, name != NULL ? name : ""), "ids");
    const size_t n = json_array_size(ids);
    uint32_t *copy = dsi_arena_array(tok->arena, n + 1, sizeof *copy);
    if (n == 0 || n > 64 || copy == NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the post-processor's special token \"%.60s\" has no ids", path,
                       name != NULL ? name : "");
    }
    for (size_t i = 0; i < n; ++i) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= DSI_TOK_MAX_ID) {
            return ds_fail(tok->ctx, DS_ERR_FORMAT,
                           "%s: the post-processor's special token \"%.60s\" has a bad id", path,
                           name);
        }
        copy[i] = (uint32_t)json_integer_value(id);
    }
    piece->ids = copy;
    piece->n_ids = (uint32_t)n;
    return DS_OK;
}

ds_status dsi_tokenizer_pair_of_bert(ds_tokenizer *tok, const uint32_t *around, uint8_t type)
{
    const dsi_template_piece before = {.ids = around, .n_ids = 1};
    const dsi_template_piece behind = {.ids = around + 1, .n_ids = 1};
    dsi_template_piece *piece = tok->pair_pieces;
    *piece++ = before;
    *piece++ = (dsi_template_piece){.sequence = true};
    *piece++ = behind;
    if (type == 0) { /* RoBERTa's: two of them between the texts, and no types */
        *piece++ = behind;
    }
    *piece++ = (dsi_template_piece){.sequence = true, .second = true, .type = type};
    *piece = behind;
    piece->type = type;
    tok->n_pair = (uint32_t)(piece - tok->pair_pieces) + 1;
    return DS_OK;
}

/* "cls" before the text and "sep" after it, each [spelling, id]. */
static ds_status template_of_bert(ds_tokenizer *tok, const char *path, const json_t *json,
                                  bool bert)
{
    static const char *const keys[] = {"cls", "sep"};
    uint32_t *ids = dsi_arena_array(tok->arena, 2, sizeof *ids);
    if (ids == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory", path);
    }
    for (size_t i = 0; i < 2; ++i) {
        const json_t *pair = json_object_get(json, keys[i]);
        const json_t *id = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
            !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= DSI_TOK_MAX_ID) {
            return ds_fail(tok->ctx, DS_ERR_FORMAT,
                           "%s: \"%s\" of the post-processor must be [token, id]", path, keys[i]);
        }
        ids[i] = (uint32_t)json_integer_value(id);
    }
    tok->template_pieces[0] = (dsi_template_piece){.ids = ids, .n_ids = 1};
    tok->template_pieces[1] = (dsi_template_piece){.sequence = true};
    tok->template_pieces[2] = (dsi_template_piece){.ids = ids + 1, .n_ids = 1};
    tok->n_template = 3;
    return dsi_tokenizer_pair_of_bert(tok, ids, bert ? 1 : 0);
}

/* Each text once, the first before the second or behind it. */
static ds_status read_pair(ds_tokenizer *tok, const char *path, const json_t *json)
{
    template_reader r = {.path = path,
                         .key = "pair",
                         .specials = json_object_get(json, "special_tokens"),
                         .pair = true,
                         .pieces = tok->pair_pieces};
    const json_t *pair = json_object_get(json, "pair");
    uint32_t n_texts[2] = {0, 0};
    size_t i;
    const json_t *one;
    if (json_array_size(pair) == 0) { /* of a list alone it is more */
        return DS_OK;
    }
    json_array_foreach(pair, i, one)
    {
        DS_TRY(template_piece(tok, &r, one));
        n_texts[r.pieces[i].second] += r.pieces[i].sequence;
    }
    tok->n_pair = r.n;
    return n_texts[0] == 1 && n_texts[1] == 1
               ? DS_OK
               : ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                         "%s: the post-processor's \"pair\" must have each text once", path);
}

ds_status dsi_tokenizer_post(ds_tokenizer *tok, const char *path, const json_t *json)
{
    if (json == NULL || json_is_null(json)) {
        return DS_OK;
    }
    const char *type = json_string_value(json_object_get(json, "type"));
    type = type != NULL ? type : "";
    size_t i;
    const json_t *one;
    if (strcmp(type, "Sequence") == 0) {
        json_array_foreach(json_object_get(json, "processors"), i, one)
        {
            DS_TRY(dsi_tokenizer_post(tok, path, one));
        }
        return DS_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return DS_OK; /* it only trims offsets */
    }
    if (tok->n_template == 0 &&
        (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)) {
        return template_of_bert(tok, path, json, strcmp(type, "BertProcessing") == 0);
    }
    if (strcmp(type, "TemplateProcessing") != 0 || tok->n_template > 0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the post-processor \"%.80s\" is not supported; known: one "
                       "TemplateProcessing, BertProcessing or RobertaProcessing, ByteLevel, "
                       "Sequence",
                       path, type);
    }
    DS_TRY(dsi_form_list(tok, path, json, "single"));
    uint32_t n_texts = 0;
    template_reader r = {.path = path,
                         .key = "single",
                         .specials = json_object_get(json, "special_tokens"),
                         .pieces = tok->template_pieces};
    json_array_foreach(json_object_get(json, "single"), i, one)
    {
        DS_TRY(template_piece(tok, &r, one));
        n_texts += r.pieces[i].sequence;
    }
    tok->n_template = r.n;
    return n_texts == 1
               ? read_pair(tok, path, json)
               : ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                         "%s: the post-processor's \"single\" must have the text once", path);
}
