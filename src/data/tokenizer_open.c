/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a tokenizer, and what one can ask it.
 *
 * The public face of tokenizer_*.c for everything that is neither encoding nor decoding.
 */
#include "data/spiece.h"
#include "data/tokenizer_load.h"
#include "data/tokenizer_special.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARENA_CEILING = 256 << 20, PATH_BYTES = 4096 };

static ds_status open_bytes(ds_tokenizer *tok)
{
    tok->bytes = true;
    tok->decode_bytes = true;
    tok->n_ids = 256;
    tok->raw_text = malloc(256);
    tok->raw_offset = malloc(256 * sizeof *tok->raw_offset);
    tok->raw_size = malloc(256 * sizeof *tok->raw_size);
    char *text = malloc(1024);
    dsi_vocab_entry entries[256];
    if (tok->raw_text == NULL || tok->raw_offset == NULL || tok->raw_size == NULL || text == NULL) {
        free(text);
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    size_t used = 0;
    for (uint32_t i = 0; i < 256; ++i) {
        tok->raw_text[i] = (char)i;
        tok->raw_offset[i] = i;
        tok->raw_size[i] = 1;
        const size_t n = dsi_utf8_encode(dsi_letter_of_byte(i), text + used);
        entries[i] = (dsi_vocab_entry){(uint32_t)used, (uint32_t)n, i};
        text[used + n] = '\0';
        used += n + 1;
    }
    return dsi_vocab_build(tok->ctx, "bytes", entries, 256, text, &tok->vocab);
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

ds_status dsi_tokenizer_note_file(ds_tokenizer *tok, const char *path)
{
    const char *kept = dsi_arena_strdup(tok->arena, path);
    if (kept == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    if (tok->n_files < sizeof tok->files / sizeof tok->files[0]) {
        tok->files[tok->n_files++] = kept;
    }
    return DS_OK;
}

static ds_status join(ds_tokenizer *tok, const char *folder, const char *name, char *path)
{
    const int n = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    if (n < 0 || n >= PATH_BYTES) {
        return ds_fail(tok->ctx, DS_ERR_LIMIT, "the path %.100s… is too long", folder);
    }
    return DS_OK;
}

static ds_status read_gpt2_in(ds_tokenizer *tok, const char *folder, const char *vocab_path,
                              dsi_folder_files *files)
{
    char merges[PATH_BYTES];
    DS_TRY(join(tok, folder, "merges.txt", merges));
    if (!is_file(merges)) {
        return ds_fail(tok->ctx, DS_ERR_NOT_FOUND,
                       "%s: the file merges.txt is missing; it must lie beside vocab.json", folder);
    }
    DS_TRY(dsi_tokenizer_note_file(tok, vocab_path));
    DS_TRY(dsi_tokenizer_note_file(tok, merges));
    return dsi_tokenizer_read_gpt2(tok, vocab_path, merges, files);
}

static ds_status open_folder(ds_tokenizer *tok, const char *folder, dsi_folder_files *files)
{
    char path[PATH_BYTES];
    DS_TRY(join(tok, folder, "tokenizer.json", path));
    if (is_file(path)) {
        DS_TRY(dsi_tokenizer_note_file(tok, path));
        return dsi_tokenizer_read_json(tok, path, files);
    }
    DS_TRY(join(tok, folder, "vocab.json", path));
    if (is_file(path)) {
        return read_gpt2_in(tok, folder, path, files);
    }
    static const char *const spieces[] = {"tokenizer.model", "spiece.model"};
    for (size_t i = 0; i < sizeof spieces / sizeof *spieces; ++i) {
        DS_TRY(join(tok, folder, spieces[i], path));
        if (is_file(path)) {
            DS_TRY(dsi_tokenizer_note_file(tok, path));
            return dsi_tokenizer_read_spiece(tok, path, files);
        }
    }
    return ds_fail(tok->ctx, DS_ERR_NOT_FOUND,
                   "%s: no tokenizer here: neither tokenizer.json, vocab.json with merges.txt, "
                   "tokenizer.model nor spiece.model",
                   folder);
}

/* The folder part of a file's path, "." without one. */
static ds_status folder_of(ds_tokenizer *tok, const char *path, const char **folder_out)
{
    const char *slash = strrchr(path, '/');
    *folder_out = slash == NULL   ? dsi_arena_strdup(tok->arena, ".")
                  : slash == path ? dsi_arena_strdup(tok->arena, "/")
                                  : dsi_arena_strndup(tok->arena, path, (size_t)(slash - path));
    return *folder_out != NULL ? DS_OK
                               : ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
}

static ds_status open_file(ds_tokenizer *tok, const char *path, dsi_folder_files *files)
{
    static const char vocab[] = "vocab.json";
    const size_t n = strlen(path);
    if (n >= strlen(vocab) && strcmp(path + n - strlen(vocab), vocab) == 0) {
        return read_gpt2_in(tok, tok->folder, path, files);
    }
    DS_TRY(dsi_tokenizer_note_file(tok, path));
    static const char spiece[] = ".model";
    return n >= strlen(spiece) && strcmp(path + n - strlen(spiece), spiece) == 0
               ? dsi_tokenizer_read_spiece(tok, path, files)
               : dsi_tokenizer_read_json(tok, path, files);
}

static ds_status open_path(ds_tokenizer *tok, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return ds_fail(tok->ctx, errno == ENOENT ? DS_ERR_NOT_FOUND : DS_ERR_IO,
                       "tokenizer %s: %s; give a model folder, a tokenizer.json, a vocab.json or "
                       "\"bytes\"",
                       path, strerror(errno));
    }
    const bool is_folder = S_ISDIR(st.st_mode);
    if (is_folder) {
        tok->folder = dsi_arena_strdup(tok->arena, path);
    } else {
        DS_TRY(dsi_tokenizer_check_file(tok, path, &st));
        DS_TRY(folder_of(tok, path, &tok->folder));
    }
    dsi_folder_files files;
    ds_status status = dsi_folder_files_read(tok, tok->folder, &files);
    if (status >= 0) {
        status = is_folder ? open_folder(tok, path, &files) : open_file(tok, path, &files);
    }
    if (status >= 0) {
        status = dsi_tokenizer_read_side_files(tok, &files);
    }
    dsi_folder_files_free(&files);
    return status;
}

ds_status ds_tokenizer_open(ds_ctx *ctx, const char *path, ds_tokenizer **tok_out)
{
    if (path == NULL || *path == '\0') {
        return ds_fail(ctx, DS_ERR_ARG,
                       "no tokenizer given; give a model folder, a tokenizer.json, a vocab.json or "
                       "\"bytes\"");
    }
    ds_tokenizer *tok = calloc(1, sizeof *tok);
    if (tok == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    *tok = (ds_tokenizer){
        .ctx = ctx, .unk_id = DSI_NO_ID, .bos = -1, .pad = -1, .unk = -1, .mask = -1};
    ds_status status = dsi_arena_create(ARENA_CEILING, &tok->arena);
    if (status < 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    } else {
        status = strcmp(path, "bytes") == 0 ? open_bytes(tok) : open_path(tok, path);
    }
    if (status < 0) {
        ds_tokenizer_close(&tok);
        return status;
    }
    *tok_out = tok;
    return DS_OK;
}

void ds_tokenizer_close(ds_tokenizer **tok_inout)
{
    ds_tokenizer *tok = tok_inout != NULL ? *tok_inout : NULL;
    if (tok == NULL) {
        return;
    }
    for (uint32_t i = 0; i < tok->n_norms; ++i) {
        dsi_regex_free(&tok->norms[i].regex);
    }
    for (uint32_t i = 0; i < tok->n_pretoks; ++i) {
        dsi_regex_free(&tok->pretoks[i].regex);
    }
    dsi_vocab_free(&tok->vocab);
    dsi_merges_free(&tok->merges);
    dsi_trie_free(&tok->trie_raw);
    dsi_trie_free(&tok->trie_normalized);
    free(tok->raw_offset);
    free(tok->raw_size);
    free(tok->raw_text);
    free(tok->joins);
    free(tok->scores);
    dsi_trie_free(&tok->pieces);
    free(tok->added_of_id);
    free(tok->added);
    free(tok->added_slots);
    dsi_arena_destroy(&tok->arena);
    free(tok);
    *tok_inout = NULL;
}

/* ---- questions ---- */

uint32_t ds_tokenizer_vocab_size(const ds_tokenizer *tok)
{
    return tok->n_ids;
}

int64_t ds_tokenizer_bos_id(const ds_tokenizer *tok)
{
    return tok->bos;
}

int64_t ds_tokenizer_eos_id(const ds_tokenizer *tok)
{
    return tok->n_eos > 0 ? (int64_t)tok->eos[0] : -1;
}

int64_t ds_tokenizer_pad_id(const ds_tokenizer *tok)
{
    return tok->pad;
}

int64_t ds_tokenizer_mask_id(const ds_tokenizer *tok)
{
    return tok->mask;
}

int64_t ds_tokenizer_unk_id(const ds_tokenizer *tok)
{
    return tok->unk;
}

bool ds_tokenizer_is_eos(const ds_tokenizer *tok, uint32_t id)
{
    for (uint32_t i = 0; i < tok->n_eos; ++i) {
        if (tok->eos[i] == id) {
            return true;
        }
    }
    return false;
}

static const dsi_added_token *added_of(const ds_tokenizer *tok, uint32_t id)
{
    const uint32_t index =
        tok->added_of_id != NULL && id < tok->n_ids ? tok->added_of_id[id] : DSI_NO_ID;
    return index != DSI_NO_ID ? &tok->added[index] : NULL;
}

bool ds_tokenizer_is_special(const ds_tokenizer *tok, uint32_t id)
{
    const dsi_added_token *added = added_of(tok, id);
    return added != NULL && added->skipped;
}

const char *ds_tokenizer_piece(const ds_tokenizer *tok, uint32_t id, size_t *size_out)
{
    const dsi_added_token *added = added_of(tok, id);
    const char *text = NULL;
    size_t size = 0;
    if (added != NULL) {
        text = added->content;
        size = added->n_content;
    } else if (id < tok->vocab.n_ids && tok->vocab.spelled[id].offset != DSI_NO_ID) {
        text = tok->vocab.text + tok->vocab.spelled[id].offset;
        size = tok->vocab.spelled[id].size;
    }
    if (size_out != NULL) {
        *size_out = size;
    }
    return text;
}

int64_t ds_tokenizer_id(const ds_tokenizer *tok, const char *piece, size_t n)
{
    const uint32_t added = dsi_tokens_find(tok, piece, n);
    if (added != DSI_NO_ID) {
        return tok->added[added].id;
    }
    const uint32_t id = dsi_vocab_find(&tok->vocab, piece, n);
    return id != DSI_NO_ID ? (int64_t)id : -1;
}
