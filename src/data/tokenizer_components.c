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

static const char *type_of(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type != NULL ? type : "";
}

static bool flag(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
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
    if (!is_regex) {
        return DS_OK;
    }
    norm->kind = DSI_NORM_REPLACE_REGEX;
    return dsi_regex_compile(tok->ctx, path, norm->pattern, norm->n_pattern, &norm->regex);
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
        norm->strip_left = flag(json, "strip_left", true);
        norm->strip_right = flag(json, "strip_right", true);
        return DS_OK;
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
    step->invert = flag(json, "invert", false);
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
    step->split = flag(json, "split", true);
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    step->prepend = DSI_PREPEND_ALWAYS;
    if (scheme != NULL && strcmp(scheme, "first") == 0) {
        step->prepend = DSI_PREPEND_FIRST;
    } else if (scheme != NULL && strcmp(scheme, "never") == 0) {
        step->prepend = DSI_PREPEND_NEVER;
    } else if (scheme != NULL && strcmp(scheme, "always") != 0) {
        return unsupported(tok, path, "prepend_scheme", scheme, "always, first, never");
    }
    if (!flag(json, "add_prefix_space", true)) {
        step->prepend = DSI_PREPEND_NEVER;
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
static ds_status pretok_byte_level(ds_tokenizer *tok, const json_t *json)
{
    tok->byte_level = true;
    if (flag(json, "add_prefix_space", true)) {
        tok->pretoks[tok->n_pretoks++] = (dsi_pretok){.kind = DSI_PRETOK_PREFIX_SPACE};
    }
    if (flag(json, "use_regex", true)) {
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
        return pretok_byte_level(tok, json);
    }
    dsi_pretok *step = &tok->pretoks[tok->n_pretoks++];
    if (strcmp(type, "Split") == 0) {
        return pretok_split(tok, path, json, step);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return pretok_metaspace(tok, path, json, step);
    }
    if (strcmp(type, "Digits") == 0) {
        const bool single = flag(json, "individual_digits", false);
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

/* ---- the model ---- */

static ds_status reject_text(ds_tokenizer *tok, const char *path, const json_t *model,
                             const char *key)
{
    const char *text;
    size_t n;
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
    if (*type != '\0' && strcmp(type, "BPE") != 0) {
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
    if (json_is_number(dropout) && json_number_value(dropout) != 0.0) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: the BPE model's \"dropout\" %g is not supported; it must be null", path,
                       json_number_value(dropout));
    }
    tok->byte_fallback = flag(model, "byte_fallback", false);
    tok->fuse_unk = flag(model, "fuse_unk", false);
    tok->ignore_merges = flag(model, "ignore_merges", false);
    const char *text;
    size_t n;
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

static ds_status read_added(ds_tokenizer *tok, const char *path, const json_t *json,
                            dsi_added_token *added)
{
    const char *text;
    size_t n;
    const json_t *id = json_object_get(json, "id");
    if (!dsi_json_text(json, "content", &text, &n) || n == 0 || n > UINT32_MAX) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: an added token lacks its \"content\"", path);
    }
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= DSI_TOK_MAX_ID) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the \"id\" of the added token \"%.60s\" must be a whole number below "
                       "%d",
                       path, text, DSI_TOK_MAX_ID);
    }
    *added = (dsi_added_token){.n_content = (uint32_t)n,
                               .id = (uint32_t)json_integer_value(id),
                               .special = flag(json, "special", false),
                               .single_word = flag(json, "single_word", false),
                               .lstrip = flag(json, "lstrip", false),
                               .rstrip = flag(json, "rstrip", false)};
    added->normalized = flag(json, "normalized", !added->special);
    const uint32_t in_vocab = dsi_vocab_find(&tok->vocab, text, n);
    if (in_vocab != DSI_NO_ID) {
        added->id = in_vocab; /* the package goes by the spelling */
    } else if (added->id < tok->vocab.n_ids && tok->vocab.spelled[added->id].offset != DSI_NO_ID) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the added token \"%.60s\" has the id %u of the token \"%.60s\"", path,
                       text, added->id, tok->vocab.text + tok->vocab.spelled[added->id].offset);
    }
    return keep(tok, path, text, n, &added->content);
}

static ds_status read_all_added(ds_tokenizer *tok, const char *path, const json_t *list)
{
    const size_t n = json_array_size(list);
    tok->added = dsi_arena_array(tok->arena, n + 1, sizeof *tok->added);
    if (tok->added == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for the added tokens", path);
    }
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(read_added(tok, path, json_array_get(list, i), &tok->added[tok->n_added]));
        ++tok->n_added;
    }
    return DS_OK;
}

static ds_status reject_member(ds_tokenizer *tok, const char *path, const json_t *root,
                               const char *key)
{
    /* Truncation and padding are for the package's batches; they change no id of a text. */
    const json_t *value = json_object_get(root, key);
    if (value != NULL && !json_is_null(value)) {
        ds_log(tok->ctx, DS_LOG_OBJECT, "%s: \"%s\" is for batches of the package: not used", path,
               key);
    }
    return DS_OK;
}

ds_status dsi_tokenizer_components(ds_tokenizer *tok, const char *path, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(root) || !json_is_object(model)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: the object \"model\" is missing", path);
    }
    DS_TRY(reject_member(tok, path, root, "truncation"));
    DS_TRY(reject_member(tok, path, root, "padding"));
    DS_TRY(read_model(tok, path, model));
    DS_TRY(dsi_tokenizer_norm(tok, path, json_object_get(root, "normalizer")));
    DS_TRY(dsi_tokenizer_pretok(tok, path, json_object_get(root, "pre_tokenizer")));
    DS_TRY(read_all_added(tok, path, json_object_get(root, "added_tokens")));
    DS_TRY(dsi_tokenizer_post(tok, path, json_object_get(root, "post_processor")));
    return dsi_tokenizer_decoder(tok, path, json_object_get(root, "decoder"));
}
