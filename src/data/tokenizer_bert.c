/* SPDX-License-Identifier: Apache-2.0 */
/* BERT's part of the tokenizers: the normalizer's steps, character by character, and WordPiece.
 *
 * Called by tokenizer_norm.c and tokenizer_bpe.c. BertNormalizer is up to five steps: cleaning,
 * spaces around ideographs, NFD and what goes with the accents, lower case. Source: Devlin et al.,
 * "BERT: Pre-training of Deep Bidirectional Transformers", 2019; the tables are the package's.
 */
#include "data/bert_table.h"
#include "data/tokenizer.h"

#include <string.h>

/* ---- characters ---- */

static bool is_in(const dsi_point_range *ranges, size_t n, uint32_t cp)
{
    size_t low = 0;
    size_t high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ranges[middle].last < cp) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < n && ranges[low].first <= cp;
}

static uint32_t lower_of(uint32_t cp)
{
    if (cp < 0x80) {
        return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    }
    size_t low = 0;
    size_t high = dsi_bert_lower_n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (dsi_bert_lower[middle].last < cp) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const dsi_lower_run *run = &dsi_bert_lower[low];
    if (low == dsi_bert_lower_n || cp < run->first || (cp - run->first) % run->step != 0) {
        return cp;
    }
    return (uint32_t)((int64_t)cp + run->difference);
}

/* What a step makes of a character: false when it stays; else *n_out bytes of out, at most 6. */
static bool changed(dsi_norm_kind kind, uint32_t cp, char *out, size_t *n_out)
{
    *n_out = 0;
    switch (kind) {
    case DSI_NORM_CLEAN:
        if (cp > ' ' && cp < 0x7F) {
            return false;
        }
        if (is_in(dsi_bert_dropped, dsi_bert_dropped_n, cp)) {
            return true;
        }
        out[(*n_out)++] = ' ';
        return cp != ' ' && (dsi_uc_flags(cp) & DSI_UC_SPACE) != 0;
    case DSI_NORM_APART:
        if (!is_in(dsi_bert_apart, dsi_bert_apart_n, cp)) {
            return false;
        }
        out[0] = ' ';
        *n_out = 1 + dsi_utf8_encode(cp, out + 1);
        out[(*n_out)++] = ' ';
        return true;
    case DSI_NORM_MARKS:
        return is_in(dsi_bert_marks, dsi_bert_marks_n, cp);
    default: {
        if (cp == 0x130) { /* the one that becomes two: i and U+0307 */
            memcpy(out, "i\xCC\x87", 3);
            *n_out = 3;
            return true;
        }
        const uint32_t lower = lower_of(cp);
        *n_out = lower != cp ? dsi_utf8_encode(lower, out) : 0;
        return lower != cp;
    }
    }
}

bool dsi_bert_norm(ds_tokenizer_scratch *s, dsi_norm_kind kind, dsi_made *made, dsi_view view)
{
    size_t done = 0;
    for (size_t i = 0; i < view.n;) {
        uint32_t cp;
        char out[8];
        size_t n;
        const size_t size = dsi_utf8_decode(view.text + i, view.text + view.n, &cp);
        if (cp != DSI_UTF8_BAD && changed(kind, cp, out, &n)) {
            if (!dsi_made_copy(s, made, view, done, i - done) ||
                !dsi_made_append(s, made, out, n, dsi_view_range(dsi_view_part(view, i, size)))) {
                return false;
            }
            done = i + size;
        }
        i += size;
    }
    return dsi_made_copy(s, made, view, done, view.n - done);
}

/* ---- WordPiece ---- */

static size_t characters(dsi_view word)
{
    size_t n = 0;
    for (size_t i = 0; i < word.n; ++n) {
        uint32_t cp;
        i += dsi_utf8_decode(word.text + i, word.text + word.n, &cp);
    }
    return n;
}

/* The longest piece at `start` of the word, whose bytes lie behind room for a prefix in text;
 * DSI_NO_ID: none. *stop_out: where it ends. */
static uint32_t longest_piece(const ds_tokenizer *tok, unsigned char *text, size_t n, size_t start,
                              size_t *stop_out)
{
    const size_t prefix = start > 0 ? tok->n_piece_prefix : 0;
    const unsigned char *word = text + tok->n_piece_prefix;
    const size_t most = tok->longest_piece > prefix ? tok->longest_piece - prefix : 0;
    unsigned char *begin = text + tok->n_piece_prefix + start - prefix;
    if (prefix > 0) {
        memcpy(begin, tok->piece_prefix, prefix); /* over what earlier pieces have taken */
    }
    size_t stop = n - start > most ? start + most : n;
    for (; stop > start; --stop) {
        if (stop < n && (word[stop] & 0xC0) == 0x80) {
            continue; /* within a character; of bytes that are no UTF-8 no piece consists */
        }
        const uint32_t id = dsi_vocab_find(&tok->vocab, (const char *)begin, prefix + stop - start);
        if (id != DSI_NO_ID) {
            *stop_out = stop;
            return id;
        }
    }
    return DSI_NO_ID;
}

void dsi_wordpiece_symbols(ds_tokenizer_scratch *s, dsi_view word)
{
    const ds_tokenizer *tok = s->tok;
    dsi_made *room = &s->spelled;
    if (!dsi_made_reserve(s, room, word.n + tok->n_piece_prefix, false)) {
        return;
    }
    memcpy(room->text + tok->n_piece_prefix, word.text, word.n);
    bool known = characters(word) <= tok->max_word_chars;
    for (size_t at = 0; known && at < word.n;) {
        size_t stop = at;
        const uint32_t id = longest_piece(tok, room->text, word.n, at, &stop);
        known = id != DSI_NO_ID;
        if (known) {
            dsi_bpe_add_symbol(s, id, (uint32_t)(stop - at));
            at = stop;
        }
    }
    if (!known) { /* a word that is not all pieces is one unknown token */
        s->n_symbols = 0;
        dsi_bpe_add_symbol(s, tok->unk_id, (uint32_t)word.n);
    }
}
