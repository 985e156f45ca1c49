/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer.json as entries of a GGUF file. See gguf_export.h; gguf_tokenizer.c is the way back.
 *
 * Byte-level BPE keeps its merges; how it cuts text must be one of the ways that have a name.
 * SentencePiece's BPE has scores in the file: the rank of the first merge that makes a token,
 * negative, so that the better merge stays the better one. What a normalizer of byte-level BPE does
 * (Qwen's NFC) has no word in a file: llama.cpp does not do it.
 */
#include "ckpt/gguf_export.h"

#include "base/buf.h"
#include "io/file.h"
#include "io/json_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6, CEILING = 1 << 28 };

typedef struct token {
    const char *text; /* borrowed; NULL: none */
    size_t n;
    int type;
    float score;
} token;

typedef struct job {
    ds_ctx *ctx;
    const json_t *config;
    json_t *root, *more; /* tokenizer.json, tokenizer_config.json (NULL: none) */
    char *jinja;         /* chat_template.jinja; NULL: none */
    dsi_gguf_out *out;
    token *tokens;
    int64_t n;
} job;

static ds_status unsupported(const job *j, const char *what)
{
    return ds_fail(
        j->ctx, DS_ERR_UNSUPPORTED,
        "tokenizer.json: %s, which a GGUF file has no word for here; leave the tokenizer "
        "out and take the folder's",
        what);
}

static const char *text_at(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

/* ---- how text is cut into words -------------------------------------------------------------- */

/* The first part of a Sequence, or of what stands alone, that is of this type. */
static const json_t *part_of(const json_t *whole, const char *list, const char *type)
{
    const json_t *parts = json_object_get(whole, list);
    size_t i = 0;
    const json_t *part;
    if (strcmp(text_at(whole, "type"), type) == 0) {
        return whole;
    }
    json_array_foreach(parts, i, part)
    {
        if (strcmp(text_at(part, "type"), type) == 0) {
            return part;
        }
    }
    return NULL;
}

static ds_status put_cutting(const job *j)
{
    const json_t *pre = json_object_get(j->root, "pre_tokenizer");
    const json_t *digits = part_of(pre, "pretokenizers", "Digits");
    const json_t *split = part_of(pre, "pretokenizers", "Split");
    const json_t *bytes = part_of(pre, "pretokenizers", "ByteLevel");
    const json_t *parts = json_object_get(pre, "pretokenizers");
    const size_t n = json_is_array(parts) ? json_array_size(parts) : 1;
    const bool merges =
        json_is_true(json_object_get(json_object_get(j->root, "model"), "ignore_merges"));
    const dsi_gguf_cutting found = {
        .regex = split != NULL ? text_at(json_object_get(split, "pattern"), "Regex") : NULL,
        .digits = digits != NULL && json_is_true(json_object_get(digits, "individual_digits")),
        .whole = merges};
    const bool plain = bytes != NULL && !json_is_true(json_object_get(bytes, "add_prefix_space")) &&
                       n == 1 + (size_t)(digits != NULL) + (size_t)(split != NULL) &&
                       json_is_true(json_object_get(bytes, "use_regex")) == (split == NULL) &&
                       (digits == NULL || found.digits);
    const char *name = plain ? dsi_gguf_cutting_name(&found) : NULL;
    if (name == NULL) {
        return unsupported(j, "\"pre_tokenizer\" cuts text in another way than gpt-2, llama-bpe, "
                              "qwen2 and smollm do");
    }
    dsi_gguf_out_text(j->out, "tokenizer.ggml.pre", name, strlen(name));
    return DS_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static ds_status set_token(job *j, int64_t id, const json_t *text, int type)
{
    if (id < 0 || id >= j->n || !json_is_string(text)) {
        return ds_fail(j->ctx, DS_ERR_FORMAT,
                       "tokenizer.json: the id %lld is outside of the model's %lld rows",
                       (long long)id, (long long)j->n);
    }
    j->tokens[id] = (token){json_string_value(text), json_string_length(text), type, 0.0f};
    return DS_OK;
}

static bool is_byte(const token *t)
{
    return t->n == 6 && memcmp(t->text, "<0x", 3) == 0 && t->text[5] == '>';
}

static ds_status read_tokens(job *j, const json_t *model, bool spm)
{
    const char *text;
    json_t *id;
    const json_t *added = json_object_get(j->root, "added_tokens");
    const json_t *item;
    size_t i = 0;
    const char *unknown = text_at(model, "unk_token");
    json_object_foreach((json_t *)(uintptr_t)json_object_get(model, "vocab"), text, id)
    {
        /* the key's text is the iterator's: it stays as long as the object */
        const int64_t at = json_is_integer(id) ? (int64_t)json_integer_value(id) : -1;
        if (at < 0 || at >= j->n) {
            return ds_fail(j->ctx, DS_ERR_FORMAT,
                           "tokenizer.json: the id of \"%s\" is outside of the model's %lld rows",
                           text, (long long)j->n);
        }
        j->tokens[at] = (token){text, strlen(text), NORMAL, 0.0f};
        j->tokens[at].type = spm && is_byte(&j->tokens[at])      ? BYTE
                             : spm && strcmp(text, unknown) == 0 ? UNKNOWN
                                                                 : NORMAL;
    }
    json_array_foreach(added, i, item)
    {
        const bool special = json_is_true(json_object_get(item, "special"));
        const json_t *content = json_object_get(item, "content");
        const bool is_unknown = spm && strcmp(text_at(item, "content"), unknown) == 0;
        DS_TRY(set_token(j, (int64_t)json_integer_value(json_object_get(item, "id")), content,
                         is_unknown ? UNKNOWN
                         : special  ? CONTROL
                                    : USER));
    }
    return DS_OK;
}

/* The two halves of a merge: a list of two, or texts with a space between. */
static bool merge_of(const json_t *item, const char **left, size_t *n_left, const char **right)
{
    const char *both = json_string_value(item);
    if (both != NULL) {
        const char *space = both[0] != '\0' ? strchr(both + 1, ' ') : NULL;
        *left = both;
        *n_left = space != NULL ? (size_t)(space - both) : 0;
        *right = space != NULL ? space + 1 : NULL;
        return space != NULL;
    }
    *left = json_string_value(json_array_get(item, 0));
    *right = json_string_value(json_array_get(item, 1));
    *n_left = *left != NULL ? strlen(*left) : 0;
    return *left != NULL && *right != NULL;
}

static ds_status put_merges(const job *j, const json_t *list)
{
    dsi_buf whole = dsi_buf_make(CEILING);
    ds_status status = DS_OK;
    size_t i = 0;
    const json_t *item;
    dsi_gguf_out_list(j->out, "tokenizer.ggml.merges", DSI_GGUF_TEXT, json_array_size(list));
    json_array_foreach(list, i, item)
    {
        const char *left;
        const char *right;
        size_t n_left;
        if (!merge_of(item, &left, &n_left, &right) || memchr(left, ' ', n_left) != NULL) {
            status = ds_fail(j->ctx, DS_ERR_FORMAT, "tokenizer.json: merge %zu is no pair", i);
            break;
        }
        dsi_buf_clear(&whole);
        dsi_buf_append(&whole, left, n_left);
        dsi_buf_putc(&whole, ' ');
        dsi_buf_puts(&whole, right);
        dsi_gguf_out_append_text(j->out, dsi_buf_text(&whole), whole.size);
    }
    dsi_buf_free(&whole);
    return status;
}

/* Scores of what merges make: the first merge of a token is its best. What no merge makes, single
 * characters, is below, in the order of ids, as SentencePiece has it. */
static ds_status score_merges(job *j, const json_t *model)
{
    const json_t *vocab = json_object_get(model, "vocab");
    dsi_buf whole = dsi_buf_make(CEILING);
    ds_status status = DS_OK;
    size_t i = 0;
    const json_t *item;
    json_array_foreach(json_object_get(model, "merges"), i, item)
    {
        const char *left;
        const char *right;
        size_t n_left;
        const bool good = merge_of(item, &left, &n_left, &right);
        dsi_buf_clear(&whole);
        if (good) {
            dsi_buf_append(&whole, left, n_left);
            dsi_buf_puts(&whole, right);
        }
        const json_t *id = json_object_get(vocab, dsi_buf_text(&whole));
        if (!good || !json_is_integer(id)) {
            status = ds_fail(j->ctx, DS_ERR_FORMAT, "tokenizer.json: merge %zu makes no token", i);
            break;
        }
        token *t = &j->tokens[json_integer_value(id)];
        t->score = t->score == 0.0f ? -(float)(i + 1) : t->score;
    }
    const int64_t n_merges = (int64_t)i;
    for (int64_t id = 0; id < j->n; ++id) {
        token *t = &j->tokens[id];
        if (t->type == NORMAL && t->score == 0.0f) {
            t->score = -(float)(n_merges + id + 1);
        }
    }
    dsi_buf_free(&whole);
    return status;
}

static void put_tokens(const job *j, bool spm)
{
    char room[32];
    dsi_gguf_out_list(j->out, "tokenizer.ggml.tokens", DSI_GGUF_TEXT, (size_t)j->n);
    for (int64_t i = 0; i < j->n; ++i) {
        const token *t = &j->tokens[i];
        (void)snprintf(room, sizeof room, "[PAD%lld]", (long long)i);
        dsi_gguf_out_append_text(j->out, t->text != NULL ? t->text : room,
                                 t->text != NULL ? t->n : strlen(room));
    }
    if (spm) {
        dsi_gguf_out_list(j->out, "tokenizer.ggml.scores", DSI_GGUF_F32, (size_t)j->n);
        for (int64_t i = 0; i < j->n; ++i) {
            dsi_gguf_out_append_f32(j->out, j->tokens[i].score);
        }
    }
    dsi_gguf_out_list(j->out, "tokenizer.ggml.token_type", DSI_GGUF_I32, (size_t)j->n);
    for (int64_t i = 0; i < j->n; ++i) {
        dsi_gguf_out_append_i32(j->out, j->tokens[i].text != NULL ? j->tokens[i].type : UNUSED);
    }
}

/* ---- ids of meaning -------------------------------------------------------------------------- */

static int64_t id_of(const job *j, const char *text)
{
    for (int64_t i = 0; i < j->n && text[0] != '\0'; ++i) {
        if (j->tokens[i].text != NULL && strcmp(j->tokens[i].text, text) == 0) {
            return i;
        }
    }
    return -1;
}

/* tokenizer_config.json's token (a text, or an object with one), else config.json's id. */
static int64_t special_id(const job *j, const char *name, const char *id_name)
{
    const json_t *v = json_object_get(j->more, name);
    const char *text = json_is_object(v) ? text_at(v, "content") : json_string_value(v);
    const int64_t id = text != NULL ? id_of(j, text) : -1;
    const json_t *number = json_object_get(j->config, id_name);
    const json_t *first = json_is_array(number) ? json_array_get(number, 0) : number;
    return id >= 0 ? id
           : json_is_integer(first) && json_integer_value(first) < j->n
               ? (int64_t)json_integer_value(first)
               : -1;
}

/* Whether the template puts the token with this id first, or last. */
static bool template_has(const job *j, int64_t id, bool first)
{
    const json_t *post = json_object_get(j->root, "post_processor");
    const json_t *part = part_of(post, "processors", "TemplateProcessing");
    const json_t *single = json_object_get(part, "single");
    const size_t n = json_array_size(single);
    const json_t *item = n > 0 ? json_array_get(single, first ? 0 : n - 1) : NULL;
    const char *text = text_at(json_object_get(item, "SpecialToken"), "id");
    return id >= 0 && text[0] != '\0' && id_of(j, text) == id;
}

static void put_ids(const job *j)
{
    static const char *const names[][3] = {
        {"bos_token", "bos_token_id", "tokenizer.ggml.bos_token_id"},
        {"eos_token", "eos_token_id", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "", "tokenizer.ggml.unknown_token_id"},
        {"pad_token", "pad_token_id", "tokenizer.ggml.padding_token_id"}};
    int64_t ids[4];
    for (int i = 0; i < 4; ++i) {
        ids[i] = special_id(j, names[i][0], names[i][1]);
        if (ids[i] >= 0) {
            dsi_gguf_out_u32(j->out, names[i][2], (uint32_t)ids[i]);
        }
    }
    dsi_gguf_out_bool(j->out, "tokenizer.ggml.add_bos_token", template_has(j, ids[0], true));
    dsi_gguf_out_bool(j->out, "tokenizer.ggml.add_eos_token", template_has(j, ids[1], false));
}

static void put_chat_template(const job *j)
{
    const char *text = json_string_value(json_object_get(j->more, "chat_template"));
    text = text != NULL ? text : j->jinja;
    if (text != NULL) {
        dsi_gguf_out_text(j->out, "tokenizer.chat_template", text, strlen(text));
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* SentencePiece: whether a space is put in front of a text. */
static ds_status put_prefix(const job *j)
{
    const json_t *norm = json_object_get(j->root, "normalizer");
    const json_t *mark =
        part_of(json_object_get(j->root, "pre_tokenizer"), "pretokenizers", "Metaspace");
    const bool prefix = mark != NULL ? strcmp(text_at(mark, "prepend_scheme"), "never") != 0
                                     : part_of(norm, "normalizers", "Prepend") != NULL;
    if (mark == NULL && part_of(norm, "normalizers", "Replace") == NULL) {
        return unsupported(j, "\"normalizer\" makes no marks of spaces");
    }
    dsi_gguf_out_bool(j->out, "tokenizer.ggml.add_space_prefix", prefix);
    return DS_OK;
}

static ds_status put_all(job *j)
{
    const json_t *model = json_object_get(j->root, "model");
    const bool spm = json_is_true(json_object_get(model, "byte_fallback"));
    if (strcmp(text_at(model, "type"), "BPE") != 0) {
        return unsupported(j, "\"model\" is no BPE");
    }
    dsi_gguf_out_text(j->out, "tokenizer.ggml.model", spm ? "llama" : "gpt2", spm ? 5 : 4);
    if (spm) {
        dsi_gguf_out_text(j->out, "tokenizer.ggml.pre", "default", 7);
    }
    DS_TRY(spm ? put_prefix(j) : put_cutting(j));
    DS_TRY(read_tokens(j, model, spm));
    DS_TRY(spm ? score_merges(j, model) : put_merges(j, json_object_get(model, "merges")));
    put_tokens(j, spm);
    put_ids(j);
    put_chat_template(j);
    return DS_OK;
}

/* A file of the folder; an empty buffer where there is none. */
static ds_status read_file(const job *j, const char *folder, const char *name, dsi_buf *buf)
{
    char *path = dsi_path_join(folder, name);
    if (path == NULL) {
        return ds_fail(j->ctx, DS_ERR_NOMEM, "no memory for %s", name);
    }
    *buf = dsi_buf_make(CEILING);
    const ds_status status = dsi_buf_read_file(j->ctx, path, buf);
    free(path);
    return status == DS_ERR_NOT_FOUND ? DS_OK : status;
}

static ds_status read_json(const job *j, const char *folder, const char *name, json_t **root_out)
{
    dsi_buf buf = {0};
    ds_status status = read_file(j, folder, name, &buf);
    if (status >= 0 && buf.size > 0) {
        status = dsi_json_load(j->ctx, name, buf.data, buf.size, 0, DS_ERR_FORMAT, root_out);
    }
    dsi_buf_free(&buf);
    return status;
}

ds_status dsi_gguf_export_tokenizer(ds_ctx *ctx, const char *folder, const json_t *config,
                                    int64_t n_rows, dsi_gguf_out *out)
{
    job j = {.ctx = ctx, .config = config, .out = out, .n = n_rows};
    dsi_buf jinja = {0};
    ds_status status = read_json(&j, folder, "tokenizer.json", &j.root);
    status = status < 0 ? status : read_json(&j, folder, "tokenizer_config.json", &j.more);
    status = status < 0 ? status : read_file(&j, folder, "chat_template.jinja", &jinja);
    j.jinja = jinja.size > 0 ? jinja.data : NULL;
    j.tokens = calloc((size_t)n_rows + 1, sizeof *j.tokens);
    if (status >= 0 && j.tokens == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    if (status >= 0 && j.root == NULL) {
        status =
            ds_fail(ctx, DS_ERR_NOT_FOUND,
                    "%s has no tokenizer.json; the model alone can be written without one", folder);
    }
    status = status < 0 ? status : put_all(&j);
    free(j.tokens);
    dsi_buf_free(&jinja);
    json_decref(j.more);
    json_decref(j.root);
    return status;
}
