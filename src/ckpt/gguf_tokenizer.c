/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json and tokenizer_config.json of a GGUF file's tokens. See gguf_model.h.
 *
 * Byte-level BPE ("gpt2") has its merges in the file, and a name for how text is cut into words.
 * SentencePiece's BPE ("llama") has scores: its merges are all ways to put a token together from
 * two others, the best scores first, which gives the same ids (as `tokenizers` converts such
 * models).
 */
#include "ckpt/gguf_model.h"

#include "io/file.h"
#include "io/json_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

static ds_status bad(const dsi_gguf_tokens *p, const char *what)
{
    return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tokenizer: %s", dsi_gguf_path(p->gguf), what);
}

static const dsi_gguf_entry *key(const dsi_gguf *g, const char *name)
{
    char whole[96];
    (void)snprintf(whole, sizeof whole, "tokenizer.ggml.%s", name);
    return dsi_gguf_find(g, whole);
}

static bool flag(const dsi_gguf *g, const char *name, bool otherwise)
{
    const dsi_gguf_entry *e = key(g, name);
    return e != NULL && e->kind == DSI_GGUF_BOOL ? dsi_gguf_number(e, 0) != 0.0 : otherwise;
}

/* The token of an id key; false: there is none. */
static bool token_of(const dsi_gguf_tokens *p, const char *name, dsi_gguf_text *token_out,
                     int64_t *id_out)
{
    const dsi_gguf_entry *e = key(p->gguf, name);
    const double id = e != NULL && e->n == 1 && e->of != DSI_GGUF_TEXT ? dsi_gguf_number(e, 0) : -1;
    if (!(id >= 0.0 && id < (double)p->tokens->n)) {
        return false;
    }
    *id_out = (int64_t)id;
    *token_out = p->tokens->texts[*id_out];
    return true;
}

static int type_of(const dsi_gguf_tokens *p, size_t id)
{
    return p->types != NULL ? (int)dsi_gguf_number(p->types, id) : NORMAL;
}

static json_t *text(dsi_gguf_text t)
{
    return json_stringn(t.data, t.n); /* NULL: no UTF-8 */
}

/* ---- how text is cut into words -------------------------------------------------------------- */

#define CASES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char llama3[] = CASES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" REST;
static const char qwen2[] = CASES "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" REST;

static const dsi_gguf_cutting cuttings[] = {
    {.name = "gpt-2"},
    {.name = "gpt2"},
    {.name = "phi-2"},
    {.name = "mpt"},
    {.name = "llama-bpe", .regex = llama3, .whole = true},
    {.name = "llama3", .regex = llama3, .whole = true},
    {.name = "llama-v3", .regex = llama3, .whole = true},
    {.name = "qwen2", .regex = qwen2},
    {.name = "smollm", .digits = true},
    {.name = "starcoder", .digits = true},
    {.name = "refact", .digits = true},
    {.name = "command-r", .digits = true},
};

const char *dsi_gguf_cutting_name(const dsi_gguf_cutting *c)
{
    for (size_t i = 0; i < sizeof cuttings / sizeof cuttings[0]; ++i) {
        const dsi_gguf_cutting *known = &cuttings[i];
        const bool same = c->regex == NULL || known->regex == NULL
                              ? c->regex == known->regex
                              : strcmp(c->regex, known->regex) == 0;
        if (same && known->digits == c->digits && known->whole == c->whole) {
            return known->name;
        }
    }
    return NULL;
}

static ds_status find_cutting(const dsi_gguf_tokens *p, const dsi_gguf_cutting **cutting_out)
{
    const dsi_gguf_entry *pre = key(p->gguf, "pre");
    if (pre == NULL || pre->kind != DSI_GGUF_TEXT) {
        return ds_fail(p->ctx, DS_ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.pre is missing: how text is cut into words is not said; "
                       "take the tokenizer of the original model",
                       dsi_gguf_path(p->gguf));
    }
    for (size_t i = 0; i < sizeof cuttings / sizeof cuttings[0]; ++i) {
        if (dsi_gguf_text_is(pre->texts[0], cuttings[i].name)) {
            *cutting_out = &cuttings[i];
            return DS_OK;
        }
    }
    return ds_fail(p->ctx, DS_ERR_UNSUPPORTED,
                   "%s: tokenizer.ggml.pre is %.*s, which is not known here; take the tokenizer of "
                   "the original model",
                   dsi_gguf_path(p->gguf), (int)(pre->texts[0].n < 60 ? pre->texts[0].n : 60),
                   pre->texts[0].data);
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 0, "use_regex", (int)use_regex);
}

static json_t *pre_tokenizer(const dsi_gguf_cutting *c)
{
    if (c->digits) {
        return json_pack("{s:s, s:[{s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type",
                         "Digits", "individual_digits", 1, byte_level(true));
    }
    if (c->regex != NULL) {
        return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence",
                         "pretokenizers", "type", "Split", "pattern", "Regex", c->regex, "behavior",
                         "Isolated", "invert", 0, byte_level(false));
    }
    return byte_level(true);
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

/* The first token of every text, where there is one. */
static json_t *template_with_bos(const dsi_gguf_tokens *p, bool adds)
{
    dsi_gguf_text bos;
    int64_t id = 0;
    if (!adds || !token_of(p, "bos_token_id", &bos, &id)) {
        return json_null();
    }
    json_t *name = text(bos);
    json_t *single = json_pack("[{s:{s:O, s:i}}, {s:{s:s, s:i}}]", "SpecialToken", "id", name,
                               "type_id", 0, "Sequence", "id", "A", "type_id", 0);
    json_t *pair =
        json_pack("[{s:{s:O, s:i}}, {s:{s:s, s:i}}, {s:{s:O, s:i}}, {s:{s:s, s:i}}]",
                  "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                  "SpecialToken", "id", name, "type_id", 1, "Sequence", "id", "B", "type_id", 1);
    json_t *special = json_object();
    (void)json_object_set_new(
        special, json_string_value(name),
        json_pack("{s:O, s:[I], s:[O]}", "id", name, "ids", (json_int_t)id, "tokens", name));
    json_decref(name);
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", special);
}

static json_t *added_tokens(const dsi_gguf_tokens *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->tokens->n; ++i) {
        const int type = type_of(p, i);
        if (type != CONTROL && type != USER && type != UNKNOWN) {
            continue;
        }
        (void)json_array_append_new(
            list, json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content",
                            text(p->tokens->texts[i]), "single_word", 0, "lstrip", 0, "rstrip", 0,
                            "normalized", 0, "special", type != USER));
    }
    return list;
}

/* c: how text is cut; NULL: SentencePiece. */
static ds_status model(const dsi_gguf_tokens *p, const dsi_gguf_cutting *c, json_t **model_out)
{
    json_t *vocab = json_object();
    json_t *list = json_array();
    for (size_t i = 0; i < p->tokens->n; ++i) {
        json_t *token = text(p->tokens->texts[i]);
        if (token == NULL || json_object_get(vocab, json_string_value(token)) != NULL) {
            json_decref(token);
            json_decref(vocab);
            json_decref(list);
            return bad(p, token == NULL ? "a token is no UTF-8" : "a token is there twice");
        }
        (void)json_object_set_new(vocab, json_string_value(token), json_integer((json_int_t)i));
        json_decref(token);
    }
    const ds_status status =
        c != NULL ? dsi_gguf_merges_of_file(p, list) : dsi_gguf_merges_of_scores(p, list);
    if (status < 0) {
        json_decref(vocab);
        json_decref(list);
        return status;
    }
    dsi_gguf_text unknown;
    int64_t id = 0;
    const bool has_unknown = c == NULL && token_of(p, "unknown_token_id", &unknown, &id);
    *model_out = json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
                           "dropout", "unk_token", has_unknown ? text(unknown) : json_null(),
                           "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                           (int)has_unknown, "byte_fallback", (int)(c == NULL), "ignore_merges",
                           (int)(c != NULL && c->whole), "vocab", vocab, "merges", list);
    return DS_OK;
}

/* SentencePiece: a space is a mark, put in front of the text where the file says so. */
static json_t *marks(const dsi_gguf *g)
{
    json_t *replace = json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ",
                                "content", "\u2581");
    return flag(g, "add_space_prefix", true)
               ? json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type",
                           "Prepend", "prepend", "\u2581", replace)
               : replace;
}

static json_t *marks_decoder(const dsi_gguf *g)
{
    json_t *list =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  "\u2581", "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (flag(g, "add_space_prefix", true)) {
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                                    "content", " ", "start", 1, "stop", 0));
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

static ds_status tokenizer_json(const dsi_gguf_tokens *p, bool bpe, json_t **root_out)
{
    const dsi_gguf_cutting *c = NULL;
    json_t *bpe_model = NULL;
    if (bpe) {
        DS_TRY(find_cutting(p, &c));
    }
    DS_TRY(model(p, c, &bpe_model));
    *root_out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
                          "truncation", "padding", "added_tokens", added_tokens(p), "normalizer",
                          bpe ? json_null() : marks(p->gguf), "pre_tokenizer",
                          bpe ? pre_tokenizer(c) : json_null(), "post_processor",
                          template_with_bos(p, flag(p->gguf, "add_bos_token", !bpe)), "decoder",
                          bpe ? byte_level(true) : marks_decoder(p->gguf), "model", bpe_model);
    return *root_out != NULL ? DS_OK : bad(p, "a token is no UTF-8");
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

static json_t *tokenizer_config(const dsi_gguf_tokens *p)
{
    static const char *const names[][2] = {{"bos_token_id", "bos_token"},
                                           {"eos_token_id", "eos_token"},
                                           {"unknown_token_id", "unk_token"},
                                           {"padding_token_id", "pad_token"}};
    const dsi_gguf_entry *chat = dsi_gguf_find(p->gguf, "tokenizer.chat_template");
    json_t *root = json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        dsi_gguf_text token;
        int64_t id = 0;
        if (token_of(p, names[i][0], &token, &id)) {
            (void)json_object_set_new(root, names[i][1], text(token));
        }
    }
    if (chat != NULL && chat->kind == DSI_GGUF_TEXT) {
        (void)json_object_set_new(root, "chat_template", text(chat->texts[0]));
    }
    return root;
}

static ds_status write_json(ds_ctx *ctx, const char *folder, const char *name, json_t *root)
{
    char *path = dsi_path_join(folder, name);
    char *dump = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    const ds_status status = path != NULL && dump != NULL
                                 ? dsi_file_replace(ctx, path, dump, strlen(dump))
                                 : ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", name);
    free(path);
    free(dump);
    return status;
}

static bool is_list(const dsi_gguf_entry *e, const dsi_gguf_tokens *p)
{
    return e != NULL && e->kind == DSI_GGUF_ARRAY && e->of != DSI_GGUF_TEXT && e->n == p->tokens->n;
}

ds_status dsi_gguf_tokenizer(ds_ctx *ctx, const dsi_gguf *g, const char *folder)
{
    const dsi_gguf_entry *kind = key(g, "model");
    const dsi_gguf_tokens p = {.ctx = ctx,
                               .gguf = g,
                               .tokens = key(g, "tokens"),
                               .types = key(g, "token_type"),
                               .scores = key(g, "scores"),
                               .merges = key(g, "merges")};
    const bool bpe =
        kind != NULL && kind->kind == DSI_GGUF_TEXT && dsi_gguf_text_is(kind->texts[0], "gpt2");
    if (!bpe && (kind == NULL || kind->kind != DSI_GGUF_TEXT ||
                 !dsi_gguf_text_is(kind->texts[0], "llama"))) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.model is neither gpt2 nor llama; take the tokenizer of "
                       "the original model",
                       dsi_gguf_path(g));
    }
    if (p.tokens == NULL || p.tokens->of != DSI_GGUF_TEXT || p.tokens->n >= INT32_MAX ||
        (p.types != NULL && !(is_list(p.types, &p) && dsi_gguf_is_whole(p.types))) ||
        (!bpe && !is_list(p.scores, &p))) {
        return bad(&p, "tokens, token_type or scores are missing, or not of one length");
    }
    json_t *root = NULL;
    ds_status status = tokenizer_json(&p, bpe, &root);
    DS_TRY(status);
    DS_TRY(write_json(ctx, folder, "tokenizer.json", root));
    return write_json(ctx, folder, "tokenizer_config.json", tokenizer_config(&p));
}
