/* The components of a tokenizer.json: model options, normalizer, pre-tokenizer, added tokens.
 *
 * Called once while a file is read. Law: a component that is not supported, and an option of one
 * that is not, is an error that names it; nothing is ignored that could change an id.
 */
#include "data/tokenizer.h"

#include <string.h>

bool dsi_json_text(const json_t *object, const char *key, const char **text_out, size_t *n_out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) {
        return false;
    }
    *text_out = json_string_value(value);
    *n_out = json_string_length(value);
    return true;
}

ds_status dsi_json_list(ds_tokenizer *tok, const char *path, const json_t *object, const char *key)
{
    const json_t *list = json_object_get(object, key);
    bool whole = json_is_array(list);
    for (size_t i = 0; whole && i < json_array_size(list); ++i) {
        whole = json_is_object(json_array_get(list, i));
    }
    return whole ? DS_OK
                 : ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"%s\" must be a list of objects", path,
                           key);
}

static const char *type_of(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type != NULL ? type : "";
}

/* A member that must be there, true or false. */
static ds_status read_flag(ds_tokenizer *tok, const char *path, const json_t *object,
                           const char *key, bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_is_true(value);
    if (!json_is_boolean(value)) {
        const char *name = json_string_value(json_object_get(object, "content"));
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"%s\" of %s%.60s must be true or false", path,
                       key, name != NULL ? "the added token " : "",
                       name != NULL ? name : type_of(object));
    }
    return DS_OK;
}

/* A member that may be absent. */
static ds_status read_flag_or(ds_tokenizer *tok, const char *path, const json_t *object,
                              const char *key, bool otherwise, bool *out)
{
    if (json_object_get(object, key) == NULL) {
        *out = otherwise;
        return DS_OK;
    }
    return read_flag(tok, path, object, key, out);
}

/* A member that may be absent or null. */
static ds_status read_option(ds_tokenizer *tok, const char *path, const json_t *object,
                             const char *key, bool otherwise, bool *out)
{
    if (json_is_null(json_object_get(object, key))) {
        *out = otherwise;
        return DS_OK;
    }
    return read_flag_or(tok, path, object, key, otherwise, out);
}

/* A string of the file, kept in the arena. */
static ds_status keep(ds_tokenizer *tok, const char *path, const char *text, size_t n,
                      const char **kept_out)
{
    *kept_out = dsi_arena_strndup(tok->arena, text, n);
    return *kept_out != NULL ? DS_OK : ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory", path);
}

static ds_status keep_member(ds_tokenizer *tok, const char *path, const json_t *object,
                             const char *key, const char **text_out, size_t *n_out)
{
    const char *text;
    if (!dsi_json_text(object, key, &text, n_out)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: %s lacks the text \"%s\"", path,
                       type_of(object), key);
    }
    return keep(tok, path, text, *n_out, text_out);
}

static ds_status unsupported(ds_tokenizer *tok, const char *path, const char *part,
                             const char *name, const char *known)
{
    return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED, "%s: the %s \"%.80s\" is not supported; known: %s",
                   path, part, name, known);
}

/* The pattern of Split and Replace: {"String": …} or {"Regex": …}. */
static ds_status read_pattern(ds_tokenizer *tok, const char *path, const json_t *component,
                              const char **text_out, size_t *n_out, bool *is_regex_out)
{
    const json_t *pattern = json_object_get(component, "pattern");
    *is_regex_out = json_object_get(pattern, "Regex") != NULL;
    const char *key = *is_regex_out ? "Regex" : "String";
    const char *text;
    if (!dsi_json_text(pattern, key, &text, n_out)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the pattern of %s must be {\"String\": text} or {\"Regex\": text}",
                       path, type_of(component));
    }
    return keep(tok, path, text, *n_out, text_out);
}

/* ---- normalizers ---- */

static ds_status norm_replace(ds_tokenizer *tok, const char *path, const json_t *json,
                              dsi_norm *norm)
{
    bool is_regex;
    norm->kind = DSI_NORM_REPLACE;
    DS_TRY(read_pattern(tok, path, json, &norm->pattern, &norm->n_pattern, &is_regex));
    DS_TRY(keep_member(tok, path, json, "content", &norm->content, &norm->n_content));
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

ds_status dsi_tokenizer_norm(ds_tokenizer *tok, const char *path, const json_t *json)
{
    if (json == NULL || json_is_null(json)) {
        return DS_OK;
    }
    const char *type = type_of(json);
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *one;
        DS_TRY(dsi_json_list(tok, path, json, "normalizers"));
        json_array_foreach(json_object_get(json, "normalizers"), i, one)
        {
            DS_TRY(dsi_tokenizer_norm(tok, path, one));
        }
        return DS_OK;
    }
    if (tok->n_norms == DSI_TOK_MAX_STEPS) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "%s: more than %d normalizers", path,
                       DSI_TOK_MAX_STEPS);
    }
    dsi_norm *norm = &tok->norms[tok->n_norms++];
    static const struct {
        const char *name;
        dsi_norm_kind kind;
    } forms[] = {{"NFC", DSI_NORM_NFC},
                 {"NFD", DSI_NORM_NFD},
                 {"NFKC", DSI_NORM_NFKC},
                 {"NFKD", DSI_NORM_NFKD}};
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
        return keep_member(tok, path, json, "prepend", &norm->content, &norm->n_content);
    }
    if (strcmp(type, "Strip") == 0) {
        norm->kind = DSI_NORM_STRIP;
        DS_TRY(read_flag(tok, path, json, "strip_left", &norm->strip_left));
        return read_flag(tok, path, json, "strip_right", &norm->strip_right);
    }
    return unsupported(tok, path, "normalizer", type,
                       "NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip, Sequence");
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
                                   path, type_of(json));
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
    DS_TRY(read_flag(tok, path, json, "invert", &step->invert));
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
    DS_TRY(keep_member(tok, path, json, "replacement", &step->text, &step->n_text));
    DS_TRY(read_option(tok, path, json, "split", true, &step->split));
    const json_t *value = json_object_get(json, "prepend_scheme");
    const char *scheme = value == NULL ? "always" : json_string_value(value);
    scheme = scheme != NULL ? scheme : "";
    step->prepend = DSI_PREPEND_ALWAYS;
    if (strcmp(scheme, "first") == 0) {
        step->prepend = DSI_PREPEND_FIRST;
    } else if (strcmp(scheme, "never") == 0) {
        step->prepend = DSI_PREPEND_NEVER;
    } else if (strcmp(scheme, "always") != 0) {
        return unsupported(tok, path, "prepend_scheme", scheme, "always, first, never");
    }
    bool prefix;
    DS_TRY(read_option(tok, path, json, "add_prefix_space", true, &prefix));
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
    DS_TRY(read_flag(tok, path, json, "add_prefix_space", &prefix));
    DS_TRY(read_flag(tok, path, json, "trim_offsets", &trim));
    DS_TRY(read_flag_or(tok, path, json, "use_regex", true, &use_regex));
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
    const char *type = type_of(json);
    if (tok->byte_level) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the pre-tokenizer \"%.80s\" after ByteLevel is not supported; "
                       "ByteLevel must be the last",
                       path, type);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return pretok_byte_level(tok, path, json);
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
        DS_TRY(read_flag(tok, path, json, "individual_digits", &single));
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
    return unsupported(tok, path, "pre-tokenizer", type,
                       "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
                       "WhitespaceSplit, Sequence");
}

ds_status dsi_tokenizer_pretok(ds_tokenizer *tok, const char *path, const json_t *json)
{
    if (json == NULL || json_is_null(json)) {
        return DS_OK;
    }
    if (strcmp(type_of(json), "Sequence") == 0) {
        size_t i;
        const json_t *one;
        DS_TRY(dsi_json_list(tok, path, json, "pretokenizers"));
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
    return norm->kind != DSI_NORM_REPLACE_REGEX &&
           (norm->kind != DSI_NORM_REPLACE ||
            (norm->n_content > 0 && norm->n_pattern > 0 &&
             dsi_utf8_decode(text, text + norm->n_pattern, &cp) == norm->n_pattern));
}

static ds_status check_first(ds_tokenizer *tok, const char *path)
{
    for (uint32_t i = 0; i < tok->n_pretoks; ++i) {
        for (uint32_t k = 0; tok->pretoks[i].prepend == DSI_PREPEND_FIRST && k < tok->n_norms;
             ++k) {
            if (tok->pretoks[i].kind == DSI_PRETOK_METASPACE && !keeps_place(&tok->norms[k])) {
                return ds_fail(
                    tok->ctx, DS_ERR_UNSUPPORTED,
                    "%s: \"prepend_scheme\": \"first\" of Metaspace behind a normalizer "
                    "Replace of more than one character, or by nothing, is not supported",
                    path);
            }
        }
    }
    return DS_OK;
}

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
    if (dsi_json_text(model, key, &text, &n) && n > 0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the BPE model's \"%s\": \"%.40s\" is not supported; it must be null",
                       path, key, text);
    }
    return DS_OK;
}

static ds_status read_model(ds_tokenizer *tok, const char *path, const json_t *model)
{
    const char *type = type_of(model);
    if (json_object_get(model, "type") != NULL && strcmp(type, "BPE") != 0) {
        return unsupported(tok, path, "model", type, "BPE");
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
    DS_TRY(read_option(tok, path, model, "byte_fallback", false, &tok->byte_fallback));
    DS_TRY(read_option(tok, path, model, "fuse_unk", false, &tok->fuse_unk));
    DS_TRY(read_option(tok, path, model, "ignore_merges", false, &tok->ignore_merges));
    const char *text;
    size_t n;
    DS_TRY(reject_kind(tok, path, model, "unk_token"));
    if (dsi_json_text(model, "unk_token", &text, &n)) {
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
    if (!dsi_json_text(json, "content", &text, &n) || n > UINT32_MAX) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: an added token lacks its \"content\"", path);
    }
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the \"id\" of the added token \"%.60s\" must be a whole number of 32 "
                       "bits",
                       path, text);
    }
    dsi_added_token token = {.content = text, .n_content = (uint32_t)n};
    DS_TRY(read_flag(tok, path, json, "special", &token.special));
    DS_TRY(read_flag(tok, path, json, "single_word", &token.single_word));
    DS_TRY(read_flag(tok, path, json, "lstrip", &token.lstrip));
    DS_TRY(read_flag(tok, path, json, "rstrip", &token.rstrip));
    DS_TRY(read_flag(tok, path, json, "normalized", &token.normalized));
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
    DS_TRY(check_first(tok, path));
    DS_TRY(read_all_added(tok, path, json_object_get(root, "added_tokens")));
    DS_TRY(dsi_tokenizer_post(tok, path, json_object_get(root, "post_processor")));
    return dsi_tokenizer_decoder(tok, path, json_object_get(root, "decoder"));
}
