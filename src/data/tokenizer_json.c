/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tokenizer.json and GPT-2's two files: the large parts by a scanner, the rest by jansson.
 *
 * A vocabulary of 128k tokens with its merges is most of a file of 10 MB or more. Making a JSON
 * tree of it would cost most of the start-up time; so the members "vocab" and "merges" are found by
 * a scanner, read straight into the tables, and left out of the text that jansson parses.
 */
#include "base/number.h"
#include "data/json_scan.h"
#include "data/tokenizer_load.h"
#include "data/tokenizer_special.h"
#include "io/json_load.h"

#include <stdlib.h>
#include <string.h>

typedef struct span {
    const char *begin, *end; /* begin NULL: absent */
} span;

static bool is_key(const char *key, size_t n_key, const char *name)
{
    return strlen(name) == n_key && memcmp(name, key, n_key) == 0;
}

/* ---- the vocabulary ---- */

static ds_status read_id(dsi_json_scan *r, uint32_t *id_out)
{
    dsi_json_scan_space(r);
    const char *start = r->p;
    uint64_t id = 0;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && id < UINT32_MAX) {
        id = id * 10 + (uint64_t)(*r->p++ - '0');
    }
    const bool ended = r->p < r->end && strchr(" \n\r\t,}", *r->p) != NULL;
    if (r->p == start || !ended || id >= DSI_TOK_MAX_ID) {
        return dsi_json_scan_bad(r, "a token's id must be a whole number below 16777216");
    }
    *id_out = (uint32_t)id;
    return DS_OK;
}

typedef struct entries {
    dsi_vocab_entry *data;
    size_t n, capacity;
} entries;

static ds_status push_entry(dsi_json_scan *r, entries *all, dsi_vocab_entry entry)
{
    if (all->n == all->capacity) {
        const size_t capacity = all->capacity < 1024 ? 1024 : all->capacity * 2;
        dsi_vocab_entry *data = realloc(all->data, capacity * sizeof *data);
        if (data == NULL) {
            return ds_fail(r->ctx, DS_ERR_NOMEM, "%s: no memory for the vocabulary", r->path);
        }
        all->data = data;
        all->capacity = capacity;
    }
    all->data[all->n++] = entry;
    return DS_OK;
}

/* Reads {"spelling": id, …} at r->p. */
static ds_status read_vocab(dsi_json_scan *r, dsi_vocab *vocab)
{
    entries all = {0};
    ds_status status = DS_OK;
    char *text = malloc((size_t)(r->end - r->p) + 1);
    if (text == NULL) {
        return ds_fail(r->ctx, DS_ERR_NOMEM, "%s: no memory for the vocabulary", r->path);
    }
    char *to = text;
    DS_TRY_GOTO(status, dsi_json_scan_expect(r, '{'), fail);
    while (!dsi_json_scan_at(r, '}')) {
        if (all.n > 0) {
            DS_TRY_GOTO(status, dsi_json_scan_expect(r, ','), fail);
        }
        dsi_vocab_entry entry = {.offset = (uint32_t)(to - text)};
        DS_TRY_GOTO(status, dsi_json_scan_string(r, &to), fail);
        entry.size = (uint32_t)(to - text) - entry.offset;
        *to++ = '\0'; /* room: the two quotes of the string in the file */
        DS_TRY_GOTO(status, dsi_json_scan_expect(r, ':'), fail);
        DS_TRY_GOTO(status, read_id(r, &entry.id), fail);
        DS_TRY_GOTO(status, push_entry(r, &all, entry), fail);
    }
    ++r->p;
    char *fitted = realloc(text, (size_t)(to - text) + 1);
    status =
        dsi_vocab_build(r->ctx, r->path, all.data, all.n, fitted != NULL ? fitted : text, vocab);
    text = NULL;
fail:
    free(text);
    free(all.data);
    return status;
}

static ds_status read_score(dsi_json_scan *r, double *score_out)
{
    char text[64];
    dsi_json_scan_space(r);
    const size_t n =
        (size_t)(r->end - r->p) < sizeof text ? (size_t)(r->end - r->p) : sizeof text - 1;
    memcpy(text, r->p, n); /* a copy with an end */
    text[n] = '\0';
    const char *end = dsi_number_start(text, score_out);
    if (end == NULL || *end == '\0') {
        return dsi_json_scan_bad(r, "a piece's score must be a number");
    }
    r->p += end - text;
    return DS_OK;
}

/* Reads [["piece", score], …] at r->p: a piece's id is its place. */
static ds_status read_scored(dsi_json_scan *r, ds_tokenizer *tok)
{
    entries all = {0};
    ds_status status = DS_OK;
    const size_t room = (size_t)(r->end - r->p);
    char *text = malloc(room + 1);
    tok->scores = malloc((room / 6 + 1) * sizeof *tok->scores); /* ["",0] */
    if (text == NULL || tok->scores == NULL) {
        status = ds_fail(r->ctx, DS_ERR_NOMEM, "%s: no memory for the vocabulary", r->path);
        goto fail;
    }
    char *to = text;
    DS_TRY_GOTO(status, dsi_json_scan_expect(r, '['), fail);
    while (!dsi_json_scan_at(r, ']')) {
        if (all.n > 0) {
            DS_TRY_GOTO(status, dsi_json_scan_expect(r, ','), fail);
        }
        dsi_vocab_entry entry = {.offset = (uint32_t)(to - text), .id = (uint32_t)all.n};
        DS_TRY_GOTO(status, dsi_json_scan_expect(r, '['), fail);
        DS_TRY_GOTO(status, dsi_json_scan_string(r, &to), fail);
        entry.size = (uint32_t)(to - text) - entry.offset;
        *to++ = '\0';
        DS_TRY_GOTO(status, dsi_json_scan_expect(r, ','), fail);
        DS_TRY_GOTO(status, read_score(r, &tok->scores[all.n]), fail);
        DS_TRY_GOTO(status, dsi_json_scan_expect(r, ']'), fail);
        DS_TRY_GOTO(status, push_entry(r, &all, entry), fail);
    }
    ++r->p;
    status = dsi_vocab_build(r->ctx, r->path, all.data, all.n, text, &tok->vocab);
    text = NULL;
fail:
    free(text);
    free(all.data);
    return status;
}

/* ---- merges ---- */

/* "left right", or ["left", "right"], at r->p. */
static ds_status read_merge(dsi_json_scan *r, ds_tokenizer *tok, char *room)
{
    char *to = room;
    char *middle;
    if (dsi_json_scan_at(r, '[')) {
        ++r->p;
        DS_TRY(dsi_json_scan_string(r, &to));
        middle = to;
        DS_TRY(dsi_json_scan_expect(r, ','));
        DS_TRY(dsi_json_scan_string(r, &to));
        DS_TRY(dsi_json_scan_expect(r, ']'));
        return dsi_merges_add(r->ctx, r->path, &tok->vocab, &tok->merges, room,
                              (size_t)(middle - room), middle, (size_t)(to - middle));
    }
    DS_TRY(dsi_json_scan_string(r, &to));
    middle = memchr(room, ' ', (size_t)(to - room));
    if (middle == NULL || memchr(middle + 1, ' ', (size_t)(to - middle - 1)) != NULL) {
        return dsi_json_scan_bad(r, "a merge must be two tokens with one space between them");
    }
    return dsi_merges_add(r->ctx, r->path, &tok->vocab, &tok->merges, room, (size_t)(middle - room),
                          middle + 1, (size_t)(to - middle - 1));
}

/* How often a byte is in a text. */
static size_t count(const char *p, const char *end, char c)
{
    size_t n = 0;
    for (; p < end; ++p) {
        n += *p == c;
    }
    return n;
}

static ds_status read_merges(dsi_json_scan *r, ds_tokenizer *tok)
{
    DS_TRY(dsi_json_scan_expect(r, '['));
    const size_t quotes = dsi_json_scan_at(r, '[') ? 4 : 2; /* of one merge in the file */
    DS_TRY(dsi_merges_reserve(r->ctx, &tok->merges, count(r->p, r->end, '"') / quotes + 1));
    char *room = malloc((size_t)(r->end - r->p) + 1);
    if (room == NULL) {
        return ds_fail(r->ctx, DS_ERR_NOMEM, "%s: no memory for the merges", r->path);
    }
    ds_status status = DS_OK;
    while (!dsi_json_scan_at(r, ']')) {
        if (tok->merges.n > 0) {
            DS_TRY_GOTO(status, dsi_json_scan_expect(r, ','), done);
        }
        DS_TRY_GOTO(status, read_merge(r, tok, room), done);
    }
    ++r->p;
done:
    free(room);
    return status;
}

/* ---- whole files ---- */

static ds_status read_text(ds_ctx *ctx, const char *path, dsi_buf *buf)
{
    *buf = dsi_buf_make(DSI_TOK_MAX_FILE);
    DS_TRY(dsi_buf_read_file(ctx, path, buf));
    const unsigned char *text = (const unsigned char *)dsi_buf_text(buf);
    const unsigned char *end = text + buf->size;
    for (const unsigned char *p = text; p < end;) {
        uint64_t eight = UINT64_MAX;
        if (end - p >= 8) {
            memcpy(&eight, p, 8);
        }
        if ((eight & 0x8080808080808080ull) == 0) {
            p += 8;
            continue;
        }
        uint32_t cp;
        p += dsi_utf8_decode(p, end, &cp);
        if (cp == DSI_UTF8_BAD) {
            return ds_fail(ctx, DS_ERR_FORMAT, "%s: byte %zu is not UTF-8", path,
                           (size_t)(p - text) - 1);
        }
    }
    return DS_OK;
}

/* What is read past jansson: the parts of "model" that are large. */
typedef struct model_parts {
    ds_tokenizer *tok;
    span vocab, merges;
    bool merges_read;
} model_parts;

static ds_status take_model_member(dsi_json_scan *r, const char *key, size_t n_key, void *arg)
{
    model_parts *parts = arg;
    const char *begin = r->p;
    if (is_key(key, n_key, "vocab") && dsi_json_scan_at(r, '{') && parts->vocab.begin == NULL) {
        DS_TRY(read_vocab(r, &parts->tok->vocab));
        parts->vocab = (span){begin, r->p};
        return DS_OK;
    }
    if (is_key(key, n_key, "vocab") && dsi_json_scan_at(r, '[') && parts->vocab.begin == NULL) {
        DS_TRY(read_scored(r, parts->tok));
        parts->vocab = (span){begin, r->p};
        return DS_OK;
    }
    if (is_key(key, n_key, "merges") && dsi_json_scan_at(r, '[') && parts->merges.begin == NULL) {
        parts->merges_read = parts->vocab.begin != NULL;
        DS_TRY(parts->merges_read ? read_merges(r, parts->tok) : dsi_json_scan_skip(r));
        parts->merges = (span){begin, r->p};
        return DS_OK;
    }
    return dsi_json_scan_skip(r);
}

static ds_status take_root_member(dsi_json_scan *r, const char *key, size_t n_key, void *arg)
{
    const model_parts *parts = arg;
    const bool first = parts->vocab.begin == NULL && parts->merges.begin == NULL;
    if (is_key(key, n_key, "model") && dsi_json_scan_at(r, '{') && first) {
        return dsi_json_scan_members(r, take_model_member, arg);
    }
    return dsi_json_scan_skip(r);
}

/* Appends the file up to a part, and the part as an empty value with as many lines. */
static const char *append_emptied(dsi_buf *out, const char *from, span part)
{
    if (part.begin == NULL) {
        return from;
    }
    dsi_buf_append(out, from, (size_t)(part.begin + 1 - from));
    for (size_t lines = count(part.begin, part.end, '\n'); lines > 0; --lines) {
        dsi_buf_putc(out, '\n');
    }
    return part.end - 1;
}

/* Reads vocabulary and merges, and writes what is left of the file to *rest. */
static ds_status read_large_parts(ds_tokenizer *tok, dsi_json_scan *r, dsi_buf *rest)
{
    model_parts parts = {.tok = tok};
    DS_TRY(dsi_json_scan_members(r, take_root_member, &parts));
    if (parts.merges.begin != NULL && parts.vocab.begin != NULL && !parts.merges_read) {
        dsi_json_scan merges = *r;
        merges.p = parts.merges.begin;
        merges.end = parts.merges.end;
        DS_TRY(read_merges(&merges, tok));
    }
    const bool vocab_first = parts.vocab.begin < parts.merges.begin;
    const char *from = append_emptied(rest, r->begin, vocab_first ? parts.vocab : parts.merges);
    from = append_emptied(rest, from, vocab_first ? parts.merges : parts.vocab);
    dsi_buf_append(rest, from, (size_t)(r->end - from));
    return rest->failed ? ds_fail(r->ctx, DS_ERR_NOMEM, "%s: no memory", r->path) : DS_OK;
}

/* Makes the tokenizer that the folder stands for of what is in root and the tables. */
static ds_status build(ds_tokenizer *tok, const char *path, json_t *root, dsi_folder_files *files)
{
    const char *bad = NULL;
    json_t *tree = json_copy(root); /* as the file has it */
    ds_status status = DS_OK;
    if (tree == NULL || !dsi_class_rebuild(files->kind, files->config, root, &bad)) {
        status = bad != NULL ? ds_fail(tok->ctx, DS_ERR_FORMAT,
                                       "%s/tokenizer_config.json: \"%s\" must be true or false",
                                       files->folder, bad)
                             : ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory", path);
        goto done;
    }
    DS_TRY_GOTO(status, dsi_tokenizer_components(tok, path, root), done);
    DS_TRY_GOTO(status, dsi_special_apply(tok, files, tree), done);
    status = dsi_tokenizer_finish(tok, path);
done:
    json_decref(tree);
    return status;
}

static const char *text_member(const json_t *json, const char *key)
{
    return json_string_value(json_object_get(json, key));
}

ds_status dsi_tokenizer_find_class(ds_tokenizer *tok, dsi_folder_files *files, const dsi_buf *text)
{
    static const char word[] = "\"ByteLevel\"";
    const char *named = text_member(files->config, "tokenizer_class");
    const dsi_class_hint hint = {
        .model = text_member(files->model, "model_type"),
        .named = named != NULL ? named : text_member(files->model, "tokenizer_class"),
        .has_file = text != NULL || files->spiece,
        .is_byte_level =
            text != NULL && memmem(dsi_buf_text(text), text->size, word, strlen(word)) != NULL};
    files->has_file = text != NULL;
    files->kind = dsi_class_of(&hint, &files->class_name);
    return dsi_special_check(tok, files);
}

ds_status dsi_tokenizer_read_text(ds_tokenizer *tok, const char *path, const dsi_buf *text,
                                  dsi_folder_files *files)
{
    dsi_buf rest = dsi_buf_make(DSI_TOK_MAX_FILE);
    ds_status status = DS_OK;
    json_t *root = NULL;
    dsi_json_scan r = {tok->ctx, path, dsi_buf_text(text), dsi_buf_text(text),
                       dsi_buf_text(text) + text->size};
    DS_TRY_GOTO(status, read_large_parts(tok, &r, &rest), done);
    json_error_t error;
    root = dsi_json_parse(dsi_buf_text(&rest), rest.size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        status = ds_fail(tok->ctx, DS_ERR_FORMAT, "%s:%d:%d: %s", path, error.line, error.column,
                         error.text);
        goto done;
    }
    status = build(tok, path, root, files);
done:
    json_decref(root);
    dsi_buf_free(&rest);
    return status;
}

ds_status dsi_tokenizer_read_json(ds_tokenizer *tok, const char *path, dsi_folder_files *files)
{
    dsi_buf file;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, read_text(tok->ctx, path, &file), done);
    DS_TRY_GOTO(status, dsi_tokenizer_find_class(tok, files, &file), done);
    status = dsi_tokenizer_read_text(tok, path, &file, files);
done:
    dsi_buf_free(&file);
    return status;
}

/* A line of merges.txt: "left right". */
static ds_status read_merge_line(ds_tokenizer *tok, const char *path, size_t number,
                                 const char *line, size_t n)
{
    const char *space = memchr(line, ' ', n);
    const size_t n_left = space != NULL ? (size_t)(space - line) : n;
    const char *right = line + n_left + 1;
    const size_t n_right = space != NULL ? n - n_left - 1 : 0;
    if (space == NULL || memchr(right, ' ', n_right) != NULL) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s:%zu: a merge must be two tokens with one space between them", path,
                       number);
    }
    return dsi_merges_add(tok->ctx, path, &tok->vocab, &tok->merges, line, n_left, right, n_right);
}

static ds_status read_merges_txt(ds_tokenizer *tok, const char *path)
{
    dsi_buf file;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, read_text(tok->ctx, path, &file), done);
    const char *end = dsi_buf_text(&file) + file.size;
    DS_TRY_GOTO(
        status,
        dsi_merges_reserve(tok->ctx, &tok->merges, count(dsi_buf_text(&file), end, '\n') + 1),
        done);
    size_t number = 1;
    for (const char *p = dsi_buf_text(&file); p < end; ++number) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((newline != NULL ? newline : end) - p);
        const size_t step = n + (newline != NULL);
        n -= n > 0 && p[n - 1] == '\r';
        if (n < 8 || memcmp(p, "#version", 8) != 0) {
            DS_TRY_GOTO(status, read_merge_line(tok, path, number, p, n), done);
        }
        p += step;
    }
done:
    dsi_buf_free(&file);
    return status;
}

ds_status dsi_tokenizer_read_gpt2(ds_tokenizer *tok, const char *vocab_path,
                                  const char *merges_path, dsi_folder_files *files)
{
    dsi_buf file;
    ds_status status = DS_OK;
    json_t *root = json_pack("{s:{}}", "model");
    DS_TRY_GOTO(status, read_text(tok->ctx, vocab_path, &file), done);
    DS_TRY_GOTO(status, dsi_tokenizer_find_class(tok, files, NULL), done);
    if (files->kind != DSI_CLASS_GPT2 && files->kind != DSI_CLASS_QWEN2 &&
        files->kind != DSI_CLASS_ROBERTA) {
        status = ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                         "%s: the tokenizer class \"%.60s\" cannot be read from vocab.json and "
                         "merges.txt; add its tokenizer.json (transformers' save_pretrained)",
                         files->folder, files->class_name);
        goto done;
    }
    dsi_json_scan r = {tok->ctx, vocab_path, dsi_buf_text(&file), dsi_buf_text(&file),
                       dsi_buf_text(&file) + file.size};
    DS_TRY_GOTO(status, read_vocab(&r, &tok->vocab), done);
    dsi_json_scan_space(&r);
    if (r.p != r.end) {
        status = dsi_json_scan_bad(&r, "text after the end of the vocabulary");
        goto done;
    }
    DS_TRY_GOTO(status, read_merges_txt(tok, merges_path), done);
    status = root != NULL ? build(tok, vocab_path, root, files)
                          : ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory", vocab_path);
done:
    json_decref(root);
    dsi_buf_free(&file);
    return status;
}
