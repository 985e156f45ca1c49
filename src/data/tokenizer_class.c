/* SPDX-License-Identifier: Apache-2.0 */
/* What transformers makes of a folder besides reading its tokenizer.json.
 *
 * Called once while a folder is opened. Most classes take tokenizer.json as it stands. Those of
 * Llama, Qwen2, GPT-2, RoBERTa and BERT take only vocabulary, merges and (not BERT) post-processor
 * out of it: normalizer, pre-tokenizer, decoder and the model's options are the class's own,
 * whatever the file says. Not here: the added tokens (tokenizer_named.c).
 */
#include "data/tokenizer_class.h"

#include <stdint.h>
#include <string.h>

/* ---- which class ---- */

static bool is_name(const char *text, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && (text[n] == '\0' || strcmp(text + n, "Fast") == 0);
}

/* By its name; one that transformers does not know is the general class. */
static dsi_class_kind kind_named(const char *named)
{
    static const struct {
        const char *name;
        dsi_class_kind kind;
    } known[] = {{"LlamaTokenizer", DSI_CLASS_LLAMA},     {"Qwen2Tokenizer", DSI_CLASS_QWEN2},
                 {"GPT2Tokenizer", DSI_CLASS_GPT2},       {"BertTokenizer", DSI_CLASS_BERT},
                 {"RobertaTokenizer", DSI_CLASS_ROBERTA}, {"T5Tokenizer", DSI_CLASS_T5}};
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
        if (is_name(named, known[i].name)) {
            return known[i].kind;
        }
    }
    for (const char *const *other = dsi_class_others; *other != NULL; ++other) {
        if (is_name(named, *other)) {
            return DSI_CLASS_OTHER;
        }
    }
    return DSI_CLASS_FILE;
}

static const dsi_class_model *row_of(const char *model)
{
    for (const dsi_class_model *row = dsi_class_models; model != NULL && row->model != NULL;
         ++row) {
        if (strcmp(row->model, model) == 0) {
            return row;
        }
    }
    return NULL;
}

dsi_class_kind dsi_class_of(const dsi_class_hint *hint, const char **name_out)
{
    const dsi_class_model *row = row_of(hint->model);
    *name_out = hint->named != NULL ? hint->named : row != NULL ? row->name : "TokenizersBackend";
    if (hint->named == NULL) {
        return row != NULL ? row->kind : hint->has_file ? DSI_CLASS_FILE : DSI_CLASS_GPT2;
    }
    const dsi_class_kind kind = kind_named(hint->named);
    if (row != NULL && row->forced && row->kind != DSI_CLASS_FILE) {
        *name_out = row->name;
        return row->kind;
    }
    if ((row != NULL && row->kind == DSI_CLASS_FILE) ||
        (kind == DSI_CLASS_LLAMA && hint->is_byte_level)) {
        return DSI_CLASS_FILE;
    }
    return kind;
}

static const char *default_in(const char *const rows[][2], const char *key)
{
    for (size_t i = 0; rows[i][0] != NULL; ++i) {
        if (strcmp(key, rows[i][0]) == 0) {
            return rows[i][1];
        }
    }
    return NULL;
}

static const char *const bert_defaults[][2] = {{"unk_token", "[UNK]"},   {"sep_token", "[SEP]"},
                                               {"pad_token", "[PAD]"},   {"cls_token", "[CLS]"},
                                               {"mask_token", "[MASK]"}, {NULL, NULL}};
static const char *const roberta_defaults[][2] = {
    {"bos_token", "<s>"},   {"eos_token", "</s>"},  {"sep_token", "</s>"},    {"cls_token", "<s>"},
    {"unk_token", "<unk>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"}, {NULL, NULL}};

static const char *const t5_defaults[][2] = {
    {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}, {NULL, NULL}};

const char *dsi_class_default(dsi_class_kind kind, const char *key)
{
    static const char end[] = "<|endoftext|>";
    const bool unk = strcmp(key, "unk_token") == 0;
    const bool bos = strcmp(key, "bos_token") == 0;
    const bool eos = strcmp(key, "eos_token") == 0;
    switch (kind) {
    case DSI_CLASS_LLAMA:
        return unk ? "<unk>" : bos ? "<s>" : eos ? "</s>" : NULL;
    case DSI_CLASS_QWEN2:
        return unk || eos || strcmp(key, "pad_token") == 0 ? end : NULL;
    case DSI_CLASS_GPT2:
        return unk || bos || eos ? end : NULL;
    case DSI_CLASS_BERT:
        return default_in(bert_defaults, key);
    case DSI_CLASS_ROBERTA:
        return default_in(roberta_defaults, key);
    case DSI_CLASS_T5:
        return default_in(t5_defaults, key);
    default:
        return NULL;
    }
}

/* ---- its components ---- */

bool dsi_class_is_truth(const json_t *value)
{
    return json_is_true(value) || (json_is_number(value) && json_number_value(value) != 0.0) ||
           json_string_length(value) > 0 || json_array_size(value) > 0 ||
           json_object_size(value) > 0;
}

static json_t *llama_pretok(const json_t *config, bool prefix)
{
    const bool always = dsi_class_is_truth(json_object_get(config, "legacy"));
    return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", "\xE2\x96\x81",
                     "prepend_scheme",
                     !prefix  ? "never"
                     : always ? "always"
                              : "first",
                     "split", 0);
}

static json_t *llama_decoder(bool prefix)
{
    json_t *steps =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  "\xE2\x96\x81", "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (prefix) {
        (void)json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                                     "content", " ", "start", 1, "stop", 0));
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static json_t *byte_level(bool prefix, bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", prefix,
                     "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *qwen2_pretok(bool prefix)
{
    static const char pattern[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "invert",
                     0, byte_level(prefix, false));
}

/* Vocabulary and merges stay; the options that the class sets replace the file's. */
static bool set_model(json_t *root, bool fuse_unk, bool byte_fallback)
{
    json_t *model = json_object_get(root, "model");
    return json_object_set_new(model, "type", json_string("BPE")) == 0 &&
           json_object_set_new(model, "dropout", json_null()) == 0 &&
           json_object_set_new(model, "unk_token", json_null()) == 0 &&
           json_object_set_new(model, "continuing_subword_prefix", json_null()) == 0 &&
           json_object_set_new(model, "end_of_word_suffix", json_null()) == 0 &&
           json_object_set_new(model, "ignore_merges", json_false()) == 0 &&
           json_object_set_new(model, "fuse_unk", json_boolean(fuse_unk)) == 0 &&
           json_object_set_new(model, "byte_fallback", json_boolean(byte_fallback)) == 0;
}

/* A switch of tokenizer_config.json; false: it is no truth value. */
static bool bert_switch(const json_t *config, const char *key, json_t **value_out,
                        const char **bad_out)
{
    const json_t *value = json_object_get(config, key);
    const bool may_be_null = strcmp(key, "strip_accents") == 0;
    if (value != NULL && !json_is_boolean(value) && !(may_be_null && json_is_null(value))) {
        *bad_out = key;
        return false;
    }
    *value_out = value == NULL
                     ? (may_be_null ? json_null() : json_true())
                     : (json_is_null(value) ? json_null() : json_boolean(json_is_true(value)));
    return true;
}

/* WordPiece by the switches of tokenizer_config.json, whatever the file says; the unknown token is
 * the named one, which tokenizer_special.c sets. */
static bool rebuild_bert(const json_t *config, json_t *root, const char **bad_out)
{
    json_t *lower;
    json_t *apart;
    json_t *accents;
    json_t *model = json_object_get(root, "model");
    if (!bert_switch(config, "do_lower_case", &lower, bad_out) ||
        !bert_switch(config, "tokenize_chinese_chars", &apart, bad_out) ||
        !bert_switch(config, "strip_accents", &accents, bad_out)) {
        return false;
    }
    json_t *norm =
        json_pack("{s:s, s:b, s:o, s:o, s:o}", "type", "BertNormalizer", "clean_text", 1,
                  "lowercase", lower, "handle_chinese_chars", apart, "strip_accents", accents);
    return json_object_set_new(root, "normalizer", norm) == 0 &&
           json_object_set_new(root, "pre_tokenizer",
                               json_pack("{s:s}", "type", "BertPreTokenizer")) == 0 &&
           json_object_set_new(root, "decoder",
                               json_pack("{s:s, s:s, s:b}", "type", "WordPiece", "prefix", "##",
                                         "cleanup", 1)) == 0 &&
           json_object_set_new(root, "added_tokens", json_array()) == 0 &&
           json_object_set_new(root, "post_processor", json_null()) == 0 &&
           json_object_set_new(model, "type", json_string("WordPiece")) == 0 &&
           json_object_set_new(model, "max_input_chars_per_word", json_integer(100)) == 0 &&
           json_object_set_new(model, "continuing_subword_prefix", json_string("##")) == 0;
}

/* The first Precompiled of a file's normalizer, or null. */
static json_t *charsmap_of(const json_t *root)
{
    const json_t *norm = json_object_get(root, "normalizer");
    const char *type = json_string_value(json_object_get(norm, "type"));
    const bool many = type != NULL && strcmp(type, "Sequence") == 0;
    const json_t *list = json_object_get(norm, "normalizers");
    for (size_t i = 0; i < (many ? json_array_size(list) : 1); ++i) {
        const json_t *one = many ? json_array_get(list, i) : norm;
        const char *name = json_string_value(json_object_get(one, "type"));
        if (name != NULL && strcmp(name, "Precompiled") == 0) {
            return json_incref((json_t *)(uintptr_t)one);
        }
    }
    return json_null();
}

/* Pieces and their scores, and the map; the rest is the class's. */
static bool rebuild_t5(json_t *root)
{
    static const char space[] = "\xE2\x96\x81";
    json_t *model = json_object_get(root, "model");
    json_t *norm = charsmap_of(root);
    json_t *pretok = json_pack("{s:s, s:[{s:s}, {s:s, s:s, s:s, s:b}]}", "type", "Sequence",
                               "pretokenizers", "type", "WhitespaceSplit", "type", "Metaspace",
                               "replacement", space, "prepend_scheme", "always", "split", 1);
    json_t *decoder = json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", space,
                                "prepend_scheme", "always", "split", 1);
    return json_object_set_new(root, "normalizer", norm) == 0 &&
           json_object_set_new(root, "pre_tokenizer", pretok) == 0 &&
           json_object_set_new(root, "decoder", decoder) == 0 &&
           json_object_set_new(root, "added_tokens", json_array()) == 0 &&
           json_object_set_new(root, "post_processor", json_null()) == 0 &&
           json_object_set_new(model, "type", json_string("Unigram")) == 0 &&
           json_object_set_new(model, "unk_id", json_integer(2)) == 0 &&
           json_object_set_new(model, "byte_fallback", json_false()) == 0;
}

bool dsi_class_rebuild(dsi_class_kind kind, const json_t *config, json_t *root,
                       const char **bad_out)
{
    const json_t *value = json_object_get(config, "add_prefix_space");
    const bool given = value != NULL && (!json_is_null(value) || kind == DSI_CLASS_GPT2 ||
                                         kind == DSI_CLASS_ROBERTA);
    *bad_out = NULL;
    if (kind == DSI_CLASS_FILE) {
        return true;
    }
    if (kind == DSI_CLASS_BERT) {
        return rebuild_bert(config, root, bad_out);
    }
    if (kind == DSI_CLASS_T5) {
        return rebuild_t5(root);
    }
    if (given && kind != DSI_CLASS_LLAMA && !json_is_boolean(value)) {
        *bad_out = "add_prefix_space";
        return false;
    }
    const bool prefix = given ? dsi_class_is_truth(value) : kind == DSI_CLASS_LLAMA;
    const bool llama = kind == DSI_CLASS_LLAMA;
    json_t *norm = kind == DSI_CLASS_QWEN2 ? json_pack("{s:s}", "type", "NFC") : json_null();
    json_t *pretok = llama                     ? llama_pretok(config, prefix)
                     : kind == DSI_CLASS_QWEN2 ? qwen2_pretok(prefix)
                                               : byte_level(prefix, true);
    json_t *decoder = llama ? llama_decoder(prefix) : byte_level(true, true);
    return json_object_set_new(root, "normalizer", norm) == 0 &&
           json_object_set_new(root, "pre_tokenizer", pretok) == 0 &&
           json_object_set_new(root, "decoder", decoder) == 0 &&
           json_object_set_new(root, "added_tokens", json_array()) == 0 &&
           (kind != DSI_CLASS_ROBERTA || /* tokenizer_special.c says it */
            json_object_set_new(root, "post_processor", json_null()) == 0) &&
           set_model(root, llama, llama);
}
