/* SPDX-License-Identifier: Apache-2.0 */
/* The last part of loading: the tables derived from vocabulary and components.
 *
 * Called by the readers of tokenizer_json.c after vocabulary and components are there.
 */
#include "data/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>

/* ---- the byte-level alphabet (GPT-2's: printable bytes are themselves, others from 256 on) ----
 */

static bool is_own_letter(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t dsi_letter_of_byte(unsigned byte)
{
    if (is_own_letter(byte)) {
        return byte;
    }
    /* the others in order: 0..32, 127..160, 173 */
    return 256 + (byte <= 32 ? byte : byte <= 160 ? 33 + byte - 127 : 67);
}

/* The byte that a letter of the byte-level alphabet stands for, -1 for another code point. */
static int byte_of_letter(uint32_t cp)
{
    if (cp < 256) {
        return is_own_letter(cp) ? (int)cp : -1;
    }
    const uint32_t other = cp - 256;
    return other <= 32   ? (int)other
           : other <= 66 ? (int)(other - 33 + 127)
           : other == 67 ? 173
                         : -1;
}

/* ---- derived tables ---- */

static ds_status no_memory(ds_tokenizer *tok, const char *path)
{
    return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for the vocabulary", path);
}

/* Writes the bytes that a spelling of the byte-level alphabet stands for; false when it has another
 * character. */
static bool spelling_bytes(const char *spelling, size_t n, char *out, size_t *n_out)
{
    const unsigned char *p = (const unsigned char *)spelling;
    const unsigned char *end = p + n;
    size_t to = 0;
    while (p < end) {
        uint32_t cp;
        p += dsi_utf8_decode(p, end, &cp);
        const int byte = byte_of_letter(cp);
        if (byte < 0) {
            return false;
        }
        out[to++] = (char)byte;
    }
    *n_out = to;
    return true;
}

static bool falls_back(const ds_tokenizer *tok)
{
    for (uint32_t i = 0; i < tok->n_decoders; ++i) {
        if (tok->decoders[i].kind == DSI_DECODE_BYTE_FALLBACK) {
            return true;
        }
    }
    return false;
}

static void put_raw(ds_tokenizer *tok, uint32_t id, const char *spelling, size_t n, bool fallback,
                    size_t *used)
{
    char *to = tok->raw_text + *used;
    size_t size = n;
    const int byte = fallback ? dsi_byte_of_piece(spelling, n) : -1;
    if (byte >= 0) {
        *to = (char)byte;
        size = 1;
    } else if (!tok->decode_bytes || !spelling_bytes(spelling, n, to, &size)) {
        memcpy(to, spelling, n);
        size = n;
    }
    to[size] = '\0';
    tok->raw_offset[id] = (uint32_t)*used;
    tok->raw_size[id] = (uint32_t)size;
    *used += size + 1;
}

/* What each id is as bytes, before the decoder steps. */
static ds_status build_raw(ds_tokenizer *tok, const char *path)
{
    size_t total = 1;
    for (uint32_t id = 0; id < tok->vocab.n_ids; ++id) {
        total += tok->vocab.spelled[id].size + 1;
    }
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        total += tok->added[i].n_shown + 1;
    }
    tok->raw_text = malloc(total);
    tok->raw_offset = malloc(((size_t)tok->n_ids + 1) * sizeof *tok->raw_offset);
    tok->raw_size = calloc((size_t)tok->n_ids + 1, sizeof *tok->raw_size);
    if (tok->raw_text == NULL || tok->raw_offset == NULL || tok->raw_size == NULL) {
        return no_memory(tok, path);
    }
    memset(tok->raw_offset, 0xFF, ((size_t)tok->n_ids + 1) * sizeof *tok->raw_offset);
    tok->falls_back = falls_back(tok);
    const bool fallback = tok->falls_back;
    size_t used = 0;
    for (uint32_t id = 0; id < tok->vocab.n_ids; ++id) {
        if (tok->vocab.spelled[id].offset != DSI_NO_ID) {
            put_raw(tok, id, tok->vocab.text + tok->vocab.spelled[id].offset,
                    tok->vocab.spelled[id].size, fallback, &used);
        }
    }
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        const dsi_added_token *added = &tok->added[i];
        put_raw(tok, added->id, added->shown, added->n_shown, fallback, &used);
    }
    return DS_OK;
}

static void find_bytes(ds_tokenizer *tok)
{
    tok->all_bytes = true;
    for (unsigned byte = 0; byte < 256; ++byte) {
        char spelling[8];
        size_t n;
        if (tok->byte_level) {
            n = dsi_utf8_encode(dsi_letter_of_byte(byte), spelling);
        } else {
            n = (size_t)snprintf(spelling, sizeof spelling, "<0x%02X>", byte);
        }
        tok->byte_ids[byte] = dsi_vocab_find(&tok->vocab, spelling, n);
        tok->all_bytes = tok->all_bytes && tok->byte_ids[byte] != DSI_NO_ID;
    }
}

/* Whether some merge joins a byte token ("<0x0A>"), whose spelling is not what it stands for. */
static bool merges_bytes(const ds_tokenizer *tok)
{
    for (uint32_t i = 0; i <= tok->merges.slot_mask; ++i) {
        const dsi_merge *merge = &tok->merges.slots[i];
        for (unsigned byte = 0; merge->left != DSI_NO_ID && byte < 256; ++byte) {
            if (tok->byte_ids[byte] != DSI_NO_ID &&
                (merge->left == tok->byte_ids[byte] || merge->right == tok->byte_ids[byte])) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a character that is left out or unknown may stand between two that merge, or merges
 * itself. */
static bool merges_through_unknown(const ds_tokenizer *tok)
{
    if (tok->byte_fallback && tok->all_bytes) {
        return false; /* no character is unknown */
    }
    if (tok->unk_id == DSI_NO_ID || tok->fuse_unk) {
        return true;
    }
    for (uint32_t i = 0; i <= tok->merges.slot_mask; ++i) {
        const dsi_merge *merge = &tok->merges.slots[i];
        if (merge->left != DSI_NO_ID &&
            (merge->left == tok->unk_id || merge->right == tok->unk_id)) {
            return true;
        }
    }
    return false;
}

/* Which neighbours some merge joins. Where none does, a word can be cut without changing its ids,
 * and its parts be remembered; that makes a whole document without pre-tokenizer (Llama 2's) as
 * fast as words. Not so where unknown characters fuse, bytes merge or a whole word counts. */
static ds_status build_joins(ds_tokenizer *tok, const char *path)
{
    if (tok->scores != NULL || tok->word_piece || tok->byte_level || tok->ignore_merges ||
        merges_through_unknown(tok) || merges_bytes(tok)) {
        return DS_OK;
    }
    tok->joins = calloc(256 * 256 / 8, 1);
    if (tok->joins == NULL) {
        return no_memory(tok, path);
    }
    for (uint32_t i = 0; i <= tok->merges.slot_mask; ++i) {
        const dsi_merge *merge = &tok->merges.slots[i];
        if (merge->left != DSI_NO_ID) {
            dsi_joins_add(tok->joins,
                          (const unsigned char *)tok->vocab.text +
                              tok->vocab.spelled[merge->id].offset,
                          tok->vocab.spelled[merge->id].size);
        }
    }
    tok->cut = true;
    return DS_OK;
}

/* The pattern of each added token: its content, normalized where the file says so. */
static ds_status build_patterns(ds_tokenizer *tok, const char *path)
{
    ds_tokenizer_scratch *s = NULL;
    ds_status status = DS_OK;
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        dsi_added_token *added = &tok->added[i];
        added->pattern = added->content;
        added->n_pattern = added->n_content;
        added->shown = added->content;
        added->n_shown = added->n_content;
        if (!added->ever_normalized || tok->n_norms == 0) {
            continue;
        }
        if (s == NULL) {
            DS_TRY_GOTO(status, ds_tokenizer_scratch_create(tok, 0, &s), done);
        }
        dsi_tok_open_accounts(s, added->n_content);
        const dsi_view view = dsi_tok_normalize(
            s, (dsi_view){.text = (const unsigned char *)added->content, .n = added->n_content});
        DS_TRY_GOTO(status, s->failed, done);
        added->shown = dsi_arena_strndup(tok->arena, (const char *)view.text, view.n);
        added->n_shown = (uint32_t)view.n;
        added->pattern = added->normalized ? added->shown : added->content;
        added->n_pattern = added->normalized ? added->n_shown : added->n_content;
        if (added->shown == NULL) {
            status = no_memory(tok, path);
            goto done;
        }
    }
done:
    ds_tokenizer_scratch_destroy(&s);
    return status;
}

static ds_status check_pieces(ds_tokenizer *tok, const char *path, const dsi_template_piece *pieces,
                              uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t k = 0; k < pieces[i].n_ids; ++k) {
            if (pieces[i].ids[k] >= tok->n_ids) {
                return ds_fail(tok->ctx, DS_ERR_FORMAT,
                               "%s: the post-processor adds the id %u; the vocabulary has %u ids",
                               path, pieces[i].ids[k], tok->n_ids);
            }
        }
    }
    return DS_OK;
}

static ds_status check_template(ds_tokenizer *tok, const char *path)
{
    DS_TRY(check_pieces(tok, path, tok->template_pieces, tok->n_template));
    return check_pieces(tok, path, tok->pair_pieces, tok->n_pair);
}

ds_status dsi_tokenizer_finish(ds_tokenizer *tok, const char *path)
{
    tok->n_ids = tok->vocab.n_ids;
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        tok->n_ids = tok->added[i].id >= tok->n_ids ? tok->added[i].id + 1 : tok->n_ids;
    }
    if (tok->n_ids == 0) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: the vocabulary is empty", path);
    }
    find_bytes(tok);
    if (tok->scores != NULL && tok->byte_level) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: a Unigram model behind the pre-tokenizer ByteLevel is not supported",
                       path);
    }
    DS_TRY(tok->scores != NULL ? dsi_unigram_build(tok, path) : DS_OK);
    if (tok->byte_level && tok->byte_fallback && !tok->all_bytes) {
        return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                       "%s: \"byte_fallback\" together with ByteLevel and a vocabulary that lacks "
                       "some byte is not supported",
                       path);
    }
    tok->byte_fallback = tok->byte_fallback && !tok->byte_level; /* no byte is unknown there */
    DS_TRY(check_template(tok, path));
    DS_TRY(build_patterns(tok, path));
    DS_TRY(build_raw(tok, path));
    DS_TRY(build_joins(tok, path));
    dsi_cuts_find(tok);
    return dsi_added_build(tok, path);
}
