/* SPDX-License-Identifier: Apache-2.0 */
/* Unigram (Kudo, "Subword Regularization", 2018): a word is cut into the pieces whose scores, which
 * are log-probabilities, have the largest sum. Called at load and by the encoder for each word;
 * sums, ties and what is unknown are as in the package: scores add from the left in fp64, of equal
 * sums the one that begins first stays, a character that is no piece has 10 less than the lowest
 * score.
 */
#include "data/tokenizer_load.h"

#include <stdlib.h>
#include <string.h>

#define UNKNOWN_PENALTY 10.0

ds_status dsi_unigram_build(ds_tokenizer *tok, const char *path)
{
    size_t n = 1;
    for (uint32_t id = 0; id < tok->vocab.n_ids; ++id) {
        n += tok->vocab.spelled[id].size;
    }
    tok->pieces.nodes = n < UINT32_MAX ? calloc(n, sizeof *tok->pieces.nodes) : NULL;
    if (tok->pieces.nodes == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for the vocabulary", path);
    }
    tok->pieces.n = 1;
    tok->lowest_score = tok->scores[0];
    for (uint32_t id = 0; id < tok->vocab.n_ids; ++id) {
        const dsi_spelling at = tok->vocab.spelled[id];
        if (at.size == 0) {
            return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED,
                           "%s: the Unigram model has a piece of no characters, id %u", path, id);
        }
        (void)dsi_trie_insert(&tok->pieces, tok->vocab.text + at.offset, at.size, id);
        tok->lowest_score =
            tok->scores[id] < tok->lowest_score ? tok->scores[id] : tok->lowest_score;
    }
    return DS_OK;
}

static void reach(dsi_reached *node, double score, size_t from, uint32_t id)
{
    if (node->from < 0 || score > node->score) {
        *node = (dsi_reached){.score = score, .from = (int32_t)from, .id = id};
    }
}

/* All pieces that begin at `at`; the character there is unknown where none is that alone. */
static void step(const ds_tokenizer *tok, dsi_view word, size_t at, size_t size, dsi_reached *ends)
{
    const double score = ends[at].score;
    bool alone = false;
    uint32_t node = 0;
    for (size_t i = at; i < word.n; ++i) {
        node = dsi_trie_child(&tok->pieces, node, word.text[i]);
        if (node == 0) {
            break;
        }
        const uint32_t id = tok->pieces.nodes[node].token;
        if (id != DSI_NO_ID) {
            reach(&ends[i + 1], tok->scores[id] + score, at, id);
            alone = alone || i + 1 - at == size;
        }
    }
    if (!alone) {
        reach(&ends[at + size], tok->lowest_score - UNKNOWN_PENALTY + score, at, tok->unk_id);
    }
}

/* A piece, which is known by its text, or else bytes or the unknown token. From the right. */
static void add(ds_tokenizer_scratch *s, dsi_view word, size_t begin, size_t end)
{
    const ds_tokenizer *tok = s->tok;
    const uint32_t id = dsi_vocab_find(&tok->vocab, (const char *)word.text + begin, end - begin);
    if (id == DSI_NO_ID && tok->byte_fallback && tok->all_bytes) {
        for (size_t i = end; i > begin; --i) {
            dsi_bpe_add_symbol(s, tok->byte_ids[word.text[i - 1]], 1);
        }
        return;
    }
    dsi_bpe_add_symbol(s, id != DSI_NO_ID ? id : tok->unk_id, (uint32_t)(end - begin));
}

static void turn_round(ds_tokenizer_scratch *s)
{
    for (size_t i = 0; i < s->n_symbols / 2; ++i) {
        const dsi_symbol symbol = s->symbols[i];
        s->symbols[i] = s->symbols[s->n_symbols - 1 - i];
        s->symbols[s->n_symbols - 1 - i] = symbol;
    }
}

void dsi_unigram_symbols(ds_tokenizer_scratch *s, dsi_view word)
{
    if (!dsi_tok_grow(s, (void **)&s->ends, &s->ends_capacity, word.n + 1, sizeof *s->ends)) {
        return;
    }
    for (size_t i = 0; i <= word.n; ++i) {
        s->ends[i] = (dsi_reached){.from = -1};
    }
    for (size_t at = 0; at < word.n;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(word.text + at, word.text + word.n, &cp);
        step(s->tok, word, at, size, s->ends);
        at += size;
    }
    size_t unknown = 0; /* bytes of unknown pieces behind `end`, which are one */
    for (size_t end = word.n; end > 0;) {
        const dsi_reached node = s->ends[end];
        const size_t from = (size_t)node.from;
        if (node.id == s->tok->unk_id) {
            unknown += end - from;
        } else {
            if (unknown > 0) {
                add(s, word, end, end + unknown);
            }
            unknown = 0;
            add(s, word, from, end);
        }
        end = from;
    }
    if (unknown > 0) {
        add(s, word, 0, unknown);
    }
    turn_round(s);
}
