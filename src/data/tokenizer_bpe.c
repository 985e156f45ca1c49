/* SPDX-License-Identifier: Apache-2.0 */
/* One word to ids by byte-pair merges.
 *
 * Called by the pre-tokenizer for each word, so it is the hot spot of encoding. A short word is
 * looked up among those remembered in the scratch; else it becomes symbols (a byte or a character
 * each), and the pair with the lowest rank, leftmost first, merges until none is left: by scanning
 * for few symbols, by a heap for many (n log n).
 */
#include "data/tokenizer.h"

#include <string.h>

enum { SCAN_LIMIT = 48 }; /* symbols up to which scanning beats the heap */

void dsi_tok_emit(ds_tokenizer_scratch *s, uint32_t id, ds_token_range range)
{
    if (s->n == s->max_tokens) {
        if (s->failed == DS_OK) {
            s->failed = ds_fail(s->tok->ctx, DS_ERR_LIMIT, "the text has more than %zu tokens",
                                s->max_tokens);
        }
        return;
    }
    if (!dsi_tok_grow(s, (void **)&s->ids, &s->capacity, s->n + 1, sizeof *s->ids)) {
        return;
    }
    if (s->want_ranges) {
        if (!dsi_tok_grow(s, (void **)&s->ranges, &s->ranges_capacity, s->n + 1,
                          sizeof *s->ranges)) {
            return;
        }
        s->ranges[s->n] = range;
    }
    s->ids[s->n++] = id;
}

/* ---- symbols ---- */

void dsi_bpe_add_symbol(ds_tokenizer_scratch *s, uint32_t id, uint32_t size)
{
    if (dsi_tok_grow(s, (void **)&s->symbols, &s->symbols_capacity, s->n_symbols + 1,
                     sizeof *s->symbols)) {
        s->symbols[s->n_symbols++] = (dsi_symbol){.id = id, .size = size};
    }
}

/* An unknown character that waits: whether the next one joins it is not known yet. */
typedef struct pending {
    uint32_t size; /* bytes; 0: nothing waits */
} pending;

static void flush_unknown(ds_tokenizer_scratch *s, pending *wait)
{
    if (wait->size > 0) {
        dsi_bpe_add_symbol(s, s->tok->unk_id, wait->size);
        wait->size = 0;
    }
}

/* Without an unknown token the character is left out, as the package does. */
static void add_unknown(ds_tokenizer_scratch *s, pending *wait, uint32_t size)
{
    if (s->tok->unk_id == DSI_NO_ID) {
        return;
    }
    if (!s->tok->fuse_unk) {
        flush_unknown(s, wait);
    }
    wait->size += size;
}

/* Byte-level words: a symbol a byte. */
static void symbols_of_bytes(ds_tokenizer_scratch *s, dsi_view word)
{
    pending wait = {0};
    for (size_t i = 0; i < word.n; ++i) {
        const uint32_t id = s->tok->byte_ids[word.text[i]];
        if (id == DSI_NO_ID) {
            add_unknown(s, &wait, 1);
        } else {
            flush_unknown(s, &wait);
            dsi_bpe_add_symbol(s, id, 1);
        }
    }
    flush_unknown(s, &wait);
}

static bool have_bytes(const ds_tokenizer *tok, const unsigned char *text, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (tok->byte_ids[text[i]] == DSI_NO_ID) {
            return false;
        }
    }
    return tok->byte_fallback;
}

/* Words of characters: a symbol a character, or one for each of its bytes. */
static void symbols_of_characters(ds_tokenizer_scratch *s, dsi_view word)
{
    pending wait = {0};
    const unsigned char *end = word.text + word.n;
    for (const unsigned char *p = word.text; p < end;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(p, end, &cp);
        const uint32_t id = dsi_vocab_find(&s->tok->vocab, (const char *)p, size);
        if (id != DSI_NO_ID) {
            flush_unknown(s, &wait);
            dsi_bpe_add_symbol(s, id, (uint32_t)size);
        } else if (have_bytes(s->tok, p, size)) {
            for (size_t i = 0; i < size; ++i) {
                dsi_bpe_add_symbol(s, s->tok->byte_ids[p[i]], 1);
            }
        } else {
            add_unknown(s, &wait, (uint32_t)size);
        }
        p += size;
    }
    flush_unknown(s, &wait);
}

/* ---- merging few ---- */

static void merge_by_scan(ds_tokenizer_scratch *s)
{
    const dsi_merges *merges = &s->tok->merges;
    dsi_symbol *symbols = s->symbols;
    const dsi_merge *pairs[SCAN_LIMIT]; /* pairs[i]: merge of symbols i and i + 1 */
    size_t n = s->n_symbols;
    for (size_t i = 0; i + 1 < n; ++i) {
        pairs[i] = dsi_merges_find(merges, symbols[i].id, symbols[i + 1].id);
    }
    for (;;) {
        size_t best = n;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < n; ++i) {
            if (pairs[i] != NULL && pairs[i]->rank < rank) {
                rank = pairs[i]->rank;
                best = i;
            }
        }
        if (best == n) {
            break;
        }
        symbols[best].id = pairs[best]->id;
        symbols[best].size += symbols[best + 1].size;
        --n;
        memmove(&symbols[best + 1], &symbols[best + 2], (n - best - 1) * sizeof *symbols);
        if (best + 1 < n) {
            memmove(&pairs[best], &pairs[best + 1], (n - best - 1) * sizeof(*pairs));
            pairs[best] = dsi_merges_find(merges, symbols[best].id, symbols[best + 1].id);
        }
        if (best > 0) {
            pairs[best - 1] = dsi_merges_find(merges, symbols[best - 1].id, symbols[best].id);
        }
    }
    s->n_symbols = n;
}

/* ---- merging many ---- */

static bool sooner(const dsi_candidate *a, const dsi_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(ds_tokenizer_scratch *s, dsi_candidate candidate)
{
    if (!dsi_tok_grow(s, (void **)&s->heap, &s->heap_capacity, s->n_heap + 1, sizeof *s->heap)) {
        return;
    }
    size_t i = s->n_heap++;
    while (i > 0 && sooner(&candidate, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = candidate;
}

static dsi_candidate heap_pop(ds_tokenizer_scratch *s)
{
    const dsi_candidate top = s->heap[0];
    const dsi_candidate last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) {
            break;
        }
        if (child + 1 < s->n_heap && sooner(&s->heap[child + 1], &s->heap[child])) {
            ++child;
        }
        if (!sooner(&s->heap[child], &last)) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void consider(ds_tokenizer_scratch *s, int32_t at)
{
    const dsi_symbol *left = &s->symbols[at];
    if (left->next < 0) {
        return;
    }
    const dsi_symbol *right = &s->symbols[left->next];
    const dsi_merge *merge = dsi_merges_find(&s->tok->merges, left->id, right->id);
    if (merge != NULL) {
        heap_push(s, (dsi_candidate){merge->rank, at, left->id, right->id});
    }
}

static void merge_by_heap(ds_tokenizer_scratch *s)
{
    const int32_t n = (int32_t)s->n_symbols;
    s->n_heap = 0;
    for (int32_t i = 0; i < n; ++i) {
        s->symbols[i].prev = i - 1;
        s->symbols[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; ++i) {
        consider(s, i);
    }
    while (s->n_heap > 0) {
        const dsi_candidate top = heap_pop(s);
        dsi_symbol *left = &s->symbols[top.at];
        if (left->size == 0 || left->next < 0 || left->id != top.left ||
            s->symbols[left->next].id != top.right) {
            continue; /* one of the two has merged elsewhere */
        }
        dsi_symbol *right = &s->symbols[left->next];
        left->id = dsi_merges_find(&s->tok->merges, top.left, top.right)->id;
        left->size += right->size;
        left->next = right->next;
        right->size = 0;
        if (left->next >= 0) {
            s->symbols[left->next].prev = top.at;
        }
        consider(s, top.at);
        if (left->prev >= 0) {
            consider(s, left->prev);
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < s->n_symbols; ++i) {
        if (s->symbols[i].size != 0) {
            s->symbols[kept++] = s->symbols[i];
        }
    }
    s->n_symbols = kept;
}

/* ---- words ---- */

/* With ignore_merges a word that is itself in the vocabulary is that token. */
static uint32_t whole_word(ds_tokenizer_scratch *s, dsi_view word)
{
    const ds_tokenizer *tok = s->tok;
    if (!tok->byte_level) {
        return dsi_vocab_find(&tok->vocab, (const char *)word.text, word.n);
    }
    s->spelled.n = 0;
    if (!dsi_made_reserve(s, &s->spelled, 2 * word.n, false)) {
        return DSI_NO_ID;
    }
    for (size_t i = 0; i < word.n; ++i) {
        char *at = (char *)s->spelled.text + s->spelled.n;
        s->spelled.n += dsi_utf8_encode(dsi_letter_of_byte(word.text[i]), at);
    }
    return dsi_vocab_find(&tok->vocab, (const char *)s->spelled.text, s->spelled.n);
}

static void remember(ds_tokenizer_scratch *s, dsi_word *slot, dsi_view word)
{
    if (s->n_symbols > DSI_WORD_IDS || s->n_symbols == 0 || s->failed != DS_OK) {
        return;
    }
    for (size_t i = 0; i < s->n_symbols; ++i) {
        if (s->symbols[i].size != s->tok->raw_size[s->symbols[i].id]) {
            return; /* unknown, or left out: the size is not known from the id */
        }
    }
    for (size_t i = 0; i < s->n_symbols; ++i) {
        slot->ids[i] = s->symbols[i].id;
    }
    memcpy(slot->key, word.text, word.n);
    slot->n_key = (uint8_t)word.n;
    slot->n_ids = (uint8_t)s->n_symbols;
}

static void emit_remembered(ds_tokenizer_scratch *s, const dsi_word *slot, dsi_view word)
{
    if (!s->want_ranges && s->n + DSI_WORD_IDS <= s->capacity &&
        s->n + DSI_WORD_IDS <= s->max_tokens) {
        memcpy(s->ids + s->n, slot->ids, sizeof slot->ids);
        s->n += slot->n_ids;
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < slot->n_ids; ++i) {
        const size_t size = s->tok->raw_size[slot->ids[i]];
        dsi_tok_emit(s, slot->ids[i], dsi_view_range(dsi_view_part(word, at, size)));
        at += size;
    }
}

static inline uint64_t load64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* A slot for words of 1 to DSI_WORD_KEY bytes. */
static inline dsi_word *slot_of(const ds_tokenizer_scratch *s, const unsigned char *p, size_t n)
{
    uint64_t a;
    uint64_t b = 0;
    if (n >= 8) {
        a = load64(p);
        b = load64(p + n - 8);
        if (n > 16) {
            b ^= load64(p + 8) * 0x9E3779B97F4A7C15ull;
        }
    } else if (n >= 4) {
        uint32_t low;
        uint32_t high;
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        a = (uint64_t)high << 32 | low;
    } else {
        a = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
    }
    uint64_t h = (a ^ (b * 0xC2B2AE3D27D4EB4Full) ^ n) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93ull;
    return &s->words[(h >> 40) & (DSI_WORD_SLOTS - 1)];
}

static void encode_word(ds_tokenizer_scratch *s, dsi_view word)
{
    dsi_word *slot = NULL;
    if (word.n <= DSI_WORD_KEY) {
        slot = slot_of(s, word.text, word.n);
        if (slot->n_key == word.n && memcmp(slot->key, word.text, word.n) == 0) {
            emit_remembered(s, slot, word);
            return;
        }
    }
    s->n_symbols = 0;
    const uint32_t whole = s->tok->ignore_merges ? whole_word(s, word) : DSI_NO_ID;
    if (whole != DSI_NO_ID) {
        dsi_bpe_add_symbol(s, whole, (uint32_t)word.n);
    } else if (s->tok->scores != NULL) {
        dsi_unigram_symbols(s, word);
    } else if (s->tok->word_piece) {
        dsi_wordpiece_symbols(s, word);
    } else if (s->tok->byte_level) {
        symbols_of_bytes(s, word);
    } else {
        symbols_of_characters(s, word);
    }
    if (s->tok->word_piece || s->tok->scores != NULL) { /* no merges */
    } else if (s->n_symbols > 1 && s->n_symbols <= SCAN_LIMIT) {
        merge_by_scan(s);
    } else if (s->n_symbols > 1) {
        merge_by_heap(s);
    }
    if (slot != NULL) {
        remember(s, slot, word);
    }
    size_t at = 0;
    for (size_t i = 0; i < s->n_symbols; ++i) {
        dsi_tok_emit(s, s->symbols[i].id,
                     dsi_view_range(dsi_view_part(word, at, s->symbols[i].size)));
        at += s->symbols[i].size;
    }
}

/* The character at p for the `joins` table: its first and last byte, with U+2581 (the
 * SentencePiece space, E2 96 81) as a byte of its own that UTF-8 never uses. */
static inline unsigned edge_byte(const unsigned char *p, size_t size, bool first)
{
    if (size == 3 && p[0] == 0xE2 && p[1] == 0x96 && p[2] == 0x81) {
        return 0xFF;
    }
    return first ? p[0] : p[size - 1];
}

void dsi_joins_add(unsigned char *joins, const unsigned char *text, size_t n)
{
    const unsigned char *end = text + n;
    unsigned before = 0;
    for (const unsigned char *p = text; p < end;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(p, end, &cp);
        const unsigned pair = before * 256 + edge_byte(p, size, true);
        if (p > text) {
            joins[pair / 8] = (unsigned char)(joins[pair / 8] | 1u << (pair % 8));
        }
        before = edge_byte(p, size, false);
        p += size;
    }
}

bool dsi_joins(const unsigned char *joins, const unsigned char *left, size_t n_left,
               const unsigned char *right, size_t n_right)
{
    const unsigned pair = edge_byte(left, n_left, false) * 256 + edge_byte(right, n_right, true);
    return (joins[pair / 8] >> (pair % 8) & 1) != 0;
}

void dsi_bpe_word(ds_tokenizer_scratch *s, dsi_view word)
{
    if (word.n > INT32_MAX) { /* symbols are counted in 31 bits */
        s->failed = ds_fail(s->tok->ctx, DS_ERR_LIMIT, "a word of %zu bytes is too long", word.n);
        return;
    }
    if (!s->tok->cut) {
        encode_word(s, word);
        return;
    }
    const unsigned char *joins = s->tok->joins;
    const unsigned char *end = word.text + word.n;
    size_t start = 0;
    unsigned before = 0;
    for (const unsigned char *p = word.text; p < end;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(p, end, &cp);
        const unsigned pair = before * 256 + edge_byte(p, size, true);
        if (p > word.text && (joins[pair / 8] >> (pair % 8) & 1) == 0) {
            const size_t at = (size_t)(p - word.text);
            encode_word(s, dsi_view_part(word, start, at - start));
            start = at;
        }
        before = edge_byte(p, size, false);
        p += size;
    }
    encode_word(s, dsi_view_part(word, start, word.n - start));
}
