/* SPDX-License-Identifier: Apache-2.0 */
/* The components of a tokenizer.json that change or split text: normalizer, pre-tokenizer.
 *
 * Called once while a file is read. Law: a component that is not supported, and an option of one
 * that is not, is an error that names it; nothing is ignored that could change an id.
 */
#include "data/tokenizer_form.h"
#include "data/tokenizer_load.h"

#include <string.h>

/* The pattern of Split and Replace: {"String": …} or {"Regex": …}. */
static ds_status read_pattern(ds_tokenizer *tok, const char *path, const json_t *component,
                              const char **text_out, size_t *n_out, bool *is_regex_out)
{
    const json_t *pattern = json_object_get(component, "pattern");
    *is_regex_out = json_object_get(pattern, "Regex") != NULL;
    const char *key = *is_regex_out ? "Regex" : "String";
    const char *text;
    if (!dsi_form_text(pattern, key, &text, n_out)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the pattern of %s must be {\"String\": text} or {\"Regex\": text}",
                       path, dsi_form_type(component));
    }
    return dsi_form_keep(tok, path, text, *n_out, text_out);
}

/* ---- normalizers ---- */

static ds_status norm_replace(ds_tokenizer *tok, const char *path, const json_t *json,
                              dsi_norm *norm)
{
    bool is_regex;
    norm->kind = DSI_NORM_REPLACE;
    DS_TRY(read_pattern(tok, path, json, &norm->pattern, &norm->n_pattern, &is_regex));
    DS_TRY(dsi_form_keep_member(tok, path, json, "content", &norm->content, &norm->n_content));
    if (is_regex) {
        norm->kind = DSI_NORM_REPLACE_REGEX;
        DS_TRY(dsi_regex_compile(tok->ctx, path, norm->pattern, norm->n_pattern, &norm->regex));
    }
    if (is_regex ? dsi_regex_matches_nothing(norm->regex) : norm->n_pattern == 0) {
        return ds_fail(
            tok->ctx, DS_ERR_UNSUPPORTED,
            "%s: the pattern \"%.80s\" of the normalizer Replace can match where there is "
            "nothing, which is not supported",
            path, norm->pattern);
    }
    return DS_OK;
}

static ds_status too_many_norms(ds_tokenizer *tok, const char *path)
{
    return ds_fail(tok->ctx, DS_ERR_LIMIT, "%s: more than %d normalizers", path, DSI_TOK_MAX_STEPS);
}

/* BertNormalizer is a step for each thing it does. */
static ds_status norm_bert(ds_tokenizer *tok, const char *path, const json_t *json)
{
    bool clean;
    bool apart;
    bool lower;
    bool accents;
    DS_TRY(dsi_form_flag(tok, path, json, "clean_text", &clean));
    DS_TRY(dsi_form_flag(tok, path, json, "handle_chinese_chars", &apart));
    DS_TRY(dsi_form_flag(tok, path, json, "lowercase", &lower));
    DS_TRY(dsi_form_option(tok, path, json, "strip_accents", lower, &accents));
    const struct {
        bool wanted;
        dsi_norm_kind kind;
    } steps[] = {{clean, DSI_NORM_CLEAN},
                 {apart, DSI_NORM_APART},
                 {accents, DSI_NORM_NFD},
                 {accents, DSI_NORM_MARKS},
                 {lower, DSI_NORM_LOWER}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; ++i) {
        if (steps[i].wanted && tok->n_norms == DSI_TOK_MAX_STEPS) {
            return too_many_norms(tok, path);
        }
        if (steps[i].wanted) {
            tok->norms[tok->n_norms++].kind = steps[i].kind;
        }
    }
    return DS_OK;
}

ds_status dsi_tokenizer_norm(ds_tokenizer *tok, const char *path, const json_t *json)
{
    if (json == NULL || json_is_null(json)) {
        return DS_OK;
    }
    const char *type = dsi_form_type(json);
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *one;
        DS_TRY(dsi_form_list(tok, path, json, "normalizers"));
        json_array_foreach(json_object_get(json, "normalizers"), i, one)
        {
            DS_TRY(dsi_tokenizer_norm(tok, path, one));
        }
        return DS_OK;
    }
    if (tok->n_norms == DSI_TOK_MAX_STEPS) {
        return too_many_norms(tok, path);
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        return norm_bert(tok, path, json);
    }
    dsi_norm *norm = &tok->norms[tok->n_norms++];
    static const struct {
        const char *name;
        dsi_norm_kind kind;
    } forms[] = {{"NFC", DSI_NORM_NFC},
                 {"NFD", DSI_NORM_NFD},
                 {"NFKC", DSI_NORM_NFKC},
                 {"NFKD", DSI_NORM_NFKD},
                 {"Lowercase", DSI_NORM_LOWER}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        if (strcmp(type, forms[i].name) == 0) {
            norm->kind = forms[i].kind;
            return DS_OK;
        }
    }
    if (strcmp(type, "Replace") == 0) {
        return norm_replace(tok, path, json, norm);
    }
    if (strcmp(type, "Prepend") == 0) {
        norm->kind = DSI_NORM_PREPEND;
        return dsi_form_keep_member(tok, path, json, "prepend", &norm->content, &norm->n_content);
    }
    if (strcmp(type, "Strip") == 0) {
        norm->kind = DSI_NORM_STRIP;
        DS_TRY(dsi_form_flag(tok, path, json, "strip_left", &norm->strip_left));
        return dsi_form_flag(tok, path, json, "strip_right", &norm->strip_right);
    }
    if (strcmp(type, "Precompiled") == 0) {
        return dsi_charsmap_read(tok, path, json, norm);
    }
    return dsi_form_unsupported(tok, path, "normalizer", type,
                                "NFC, NFD, NFKC, NFKD, Lowercase, BertNormalizer, Replace, "
                                "Prepend, Precompiled, Strip, Sequence");
}

/* ---- pre-tokenizers ---- */

static ds_status read_behavior(ds_tokenizer *tok, const char *path, const json_t *json,
                               dsi_behavior otherwise, dsi_behavior *behavior_out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *value = json_object_get(json, "behavior");
    *behavior_out = otherwise;
    for (size_t i = 0; json_is_string(value) && i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(json_string_value(value), names[i]) == 0) {
            *behavior_out = (dsi_behavior)i;
            return DS_OK;
        }
    }
    return value == NULL ? DS_OK
                         : ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                                   "%s: %s has an unknown \"behavior\"; known: Removed, Isolated, "
                                   "MergedWithPrevious, MergedWithNext, Contiguous",
                                   path, dsi_form_type(json));
}

/* A Split whose pieces are just what the pattern matches may use the pattern's scanner. */
static bool keeps_matches(const dsi_pretok *step)
{
    return (step->behavior == DSI_SPLIT_ISOLATED) ||
           (step->behavior == DSI_SPLIT_REMOVED && step->invert);
}

static ds_status pretok_split(ds_tokenizer *tok, const char *path, const json_t *json,
                              dsi_pretok *step)
{
    bool is_regex;
    DS_TRY(read_pattern(tok, path, json, &step->text, &step->n_text, &is_regex));
    DS_TRY(read_behavior(tok, path, json, DSI_SPLIT_ISOLATED, &step->behavior));
    DS_TRY(dsi_form_flag(tok, path, json, "invert", &step->invert));
    step->kind = DSI_PRETOK_STRING;
    if (!is_regex) {
        return DS_OK;
    }
    step->scan = dsi_scan_for(step->text, step->n_text);
    if (step->scan != NULL && keeps_matches(step)) {
        step->kind = DSI_PRETOK_SCAN;
        return DS_OK;
    }
    step->kind = DSI_PRETOK_REGEX;
    return dsi_regex_compile(tok->ctx, path, step->text, step->n_text, &step->regex);
}

static ds_status pretok_metaspace(ds_tokenizer *tok, const char *path, const json_t *json,
                                  dsi_pretok *step)
{
    step->kind = DSI_PRETOK_METASPACE;
    DS_TRY(dsi_form_keep_member(tok, path, json, "replacement", &step->text, &step->n_text));
    DS_TRY(dsi_form_option(tok, path, json, "split", true, &step->split));
    const json_t *value = json_object_get(json, "prepend_scheme");
    const char *scheme = value == NULL ? "always" : json_string_value(value);
    scheme = scheme != NULL ? scheme : "";
    step->prepend = DSI_PREPEND_ALWAYS;
    if (strcmp(scheme, "first") == 0) {
        step->prepend = DSI_PREPEND_FIRST;
    } else if (strcmp(scheme, "never") == 0) {
        step->prepend = DSI_PREPEND_NEVER;
    } else if (strcmp(scheme, "always") != 0) {
        return dsi_form_unsupported(tok, path, "prepend_scheme", scheme, "always, first, never");
    }
    bool prefix;
    DS_TRY(dsi_form_option(tok, path, json, "add_prefix_space", true, &prefix));
    if (!prefix && step->prepend != DSI_PREPEND_NEVER) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: \"add_prefix_space\": false of Metaspace wants \"prepend_scheme\": "
                       "\"never\"",
                       path);
    }
    uint32_t cp;
    const unsigned char *text = (const unsigned char *)step->text;
    if (step->n_text == 0 || dsi_utf8_decode(text, text + step->n_text, &cp) != step->n_text) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the \"replacement\" of Metaspace must be one character", path);
    }
    return DS_OK;
}

static dsi_pretok class_step(unsigned flags, dsi_behavior behavior)
{
    return (dsi_pretok){.kind = DSI_PRETOK_CLASS, .class_flags = flags, .behavior = behavior};
}

/* ByteLevel is at most two steps, or none: its letters are only another spelling of bytes. */
static ds_status pretok_byte_level(ds_tokenizer *tok, const char *path, const json_t *json)
{
    bool prefix;
    bool trim; /* of offsets: no id changes */
    bool use_regex;
    DS_TRY(dsi_form_flag(tok, path, json, "add_prefix_space", &prefix));
    DS_TRY(dsi_form_flag(tok, path, json, "trim_offsets", &trim));
    DS_TRY(dsi_form_flag_or(tok, path, json, "use_regex", true, &use_regex));
    tok->byte_level = true;
    if (prefix) {
        tok->pretoks[tok->n_pretoks++] = (dsi_pretok){.kind = DSI_PRETOK_PREFIX_SPACE};
    }
    if (use_regex) {
        tok->pretoks[tok->n_pretoks++] =
            (dsi_pretok){.kind = DSI_PRETOK_SCAN, .scan = dsi_scan_gpt2};
    }
    return DS_OK;
}

static ds_status pretok_one(ds_tokenizer *tok, const char *path, const json_t *json)
{
    const char *type = dsi_form_type(json);
    if (tok->byte_level) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the pre-tokenizer \"%.80s\" after ByteLevel is not supported; "
                       "ByteLevel must be the last",
                       path, type);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return pretok_byte_level(tok, path, json);
    }
    if (strcmp(type, "BertPreTokenizer") == 0) { /* words, with punctuation by itself */
        tok->pretoks[tok->n_pretoks++] = class_step(DSI_UC_SPACE, DSI_SPLIT_REMOVED);
        tok->pretoks[tok->n_pretoks++] = class_step(DSI_UC_PUNCT, DSI_SPLIT_ISOLATED);
        return DS_OK;
    }
    dsi_pretok *step = &tok->pretoks[tok->n_pretoks++];
    if (strcmp(type, "Split") == 0) {
        return pretok_split(tok, path, json, step);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return pretok_metaspace(tok, path, json, step);
    }
    if (strcmp(type, "Digits") == 0) {
        bool single;
        DS_TRY(dsi_form_flag(tok, path, json, "individual_digits", &single));
        *step = class_step(DSI_UC_N, single ? DSI_SPLIT_ISOLATED : DSI_SPLIT_CONTIGUOUS);
        return DS_OK;
    }
    if (strcmp(type, "Punctuation") == 0) {
        *step = class_step(DSI_UC_PUNCT, DSI_SPLIT_ISOLATED);
        return read_behavior(tok, path, json, DSI_SPLIT_ISOLATED, &step->behavior);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        *step = class_step(DSI_UC_SPACE, DSI_SPLIT_REMOVED);
        return DS_OK;
    }
    if (strcmp(type, "Whitespace") == 0) {
        step->kind = DSI_PRETOK_WORDS;
        return DS_OK;
    }
    return dsi_form_unsupported(tok, path, "pre-tokenizer", type,
                                "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
                                "WhitespaceSplit, BertPreTokenizer, Sequence");
}

ds_status dsi_tokenizer_pretok(ds_tokenizer *tok, const char *path, const json_t *json)
{
    if (json == NULL || json_is_null(json)) {
        return DS_OK;
    }
    if (strcmp(dsi_form_type(json), "Sequence") == 0) {
        size_t i;
        const json_t *one;
        DS_TRY(dsi_form_list(tok, path, json, "pretokenizers"));
        json_array_foreach(json_object_get(json, "pretokenizers"), i, one)
        {
            DS_TRY(dsi_tokenizer_pretok(tok, path, one));
        }
        return DS_OK;
    }
    if (tok->n_pretoks + 2 > DSI_TOK_MAX_STEPS) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "%s: more than %d pre-tokenizer steps", path,
                       DSI_TOK_MAX_STEPS);
    }
    return pretok_one(tok, path, json);
}

/* Whether a text's first place in the input is known from where it was cut: a Replace of one
 * character by others keeps it, the package moves it behind what others take away. */
static bool keeps_place(const dsi_norm *norm)
{
    uint32_t cp;
    const unsigned char *text = (const unsigned char *)norm->pattern;
    return norm->kind != DSI_NORM_REPLACE_REGEX && norm->kind != DSI_NORM_CLEAN &&
           norm->kind != DSI_NORM_APART && norm->kind != DSI_NORM_MARKS &&
           norm->kind != DSI_NORM_CHARSMAP &&
           (norm->kind != DSI_NORM_REPLACE ||
            (norm->n_content > 0 && norm->n_pattern > 0 &&
             dsi_utf8_decode(text, text + norm->n_pattern, &cp) == norm->n_pattern));
}

ds_status dsi_tokenizer_check_first(ds_tokenizer *tok, const char *path)
{
    for (uint32_t i = 0; i < tok->n_pretoks; ++i) {
        for (uint32_t k = 0; tok->pretoks[i].prepend == DSI_PREPEND_FIRST && k < tok->n_norms;
             ++k) {
            if (tok->pretoks[i].kind == DSI_PRETOK_METASPACE && !keeps_place(&tok->norms[k])) {
                return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                               "%s: \"prepend_scheme\": \"first\" of Metaspace behind a normalizer "
                               "Replace of more than one character, or by nothing, or behind "
                               "BertNormalizer or Precompiled is not supported",
                               path);
            }
        }
    }
    return DS_OK;
}
