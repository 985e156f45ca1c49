/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_tokenizer: what the files tokenizer_*.c share.
 *
 * Data path of an encode: added tokens that match raw text cut it into segments; a segment is
 * normalized (tokenizer_norm.c); added tokens that match normalized text cut again; the
 * pre-tokenizer steps cut the rest into words (tokenizer_split.c, tokenizer_pretok.c); a word is
 * encoded by merges (tokenizer_bpe.c). No lists in between: each stage calls the next.
 *
 * Invariants: a tokenizer is const after open. A word has at most 2^31-1 bytes.
 */
#ifndef DSI_DATA_TOKENIZER_H
#define DSI_DATA_TOKENIZER_H

#include "base/arena.h"
#include "base/buf.h"
#include "data/unicode_table.h"

#include <deepspeed/context.h>
#include <deepspeed/tokenizer.h>
#include <jansson.h>

#define DSI_NO_ID UINT32_MAX

enum {
    DSI_TOK_MAX_ID = 1 << 24,     /* ceiling of vocabulary ids: bounds every table */
    DSI_TOK_MAX_STEPS = 16,       /* normalizers or pre-tokenizer steps in a sequence */
    DSI_TOK_MAX_FILE = 256 << 20, /* bytes of any file read here */
    DSI_TOK_MAX_TEMPLATE = 16,    /* pieces of a post-processor's template */
    DSI_TOK_MAX_EOS = 16,
};

/* ---- vocabulary: spelling <-> id (tokenizer_vocab.c) ---- */

typedef struct dsi_spelling {
    uint32_t offset; /* into text; DSI_NO_ID where no token has the id */
    uint32_t size;   /* bytes */
} dsi_spelling;

typedef struct dsi_vocab_slot {
    uint32_t id; /* DSI_NO_ID when free */
    uint32_t hash;
} dsi_vocab_slot;

typedef struct dsi_vocab {
    char *text;            /* all spellings, each with a zero byte */
    dsi_spelling *spelled; /* [n_ids] */
    dsi_vocab_slot *slots;
    uint32_t slot_mask; /* size of slots minus 1 */
    uint32_t n_ids;     /* largest id + 1 */
    uint32_t n_tokens;
} dsi_vocab;

/* A pair of neighbours that merges. */
typedef struct dsi_merge {
    uint32_t left, right; /* left DSI_NO_ID: free slot */
    uint32_t rank, id;
} dsi_merge;

typedef struct dsi_merges {
    dsi_merge *slots;
    uint32_t slot_mask;
    uint32_t n;
    uint32_t newest;       /* result of the newest one, while reading */
    const uint32_t *ranks; /* of all that will be added; NULL: their order */
} dsi_merges;

/* One vocabulary entry while reading. */
typedef struct dsi_vocab_entry {
    uint32_t offset, size, id;
} dsi_vocab_entry;

/* Builds the table from entries over text (moved: owned by vocab afterwards, freed on failure). */
ds_status dsi_vocab_build(ds_ctx *ctx, const char *path, dsi_vocab_entry *entries, size_t n,
                          char *text, dsi_vocab *vocab);
void dsi_vocab_free(dsi_vocab *vocab);
uint32_t dsi_vocab_find(const dsi_vocab *vocab, const char *text, size_t n);

ds_status dsi_merges_reserve(ds_ctx *ctx, dsi_merges *merges, size_t n);
/* Adds "left right" with the next rank; a later pair replaces an equal one. */
ds_status dsi_merges_add(ds_ctx *ctx, const char *path, const dsi_vocab *vocab, dsi_merges *merges,
                         const char *left, size_t n_left, const char *right, size_t n_right);
void dsi_merges_free(dsi_merges *merges);

static inline uint32_t dsi_pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
    return (uint32_t)((h * 0xBF58476D1CE4E5B9ull) >> 32);
}

/* The merge of two neighbours, NULL when they do not merge. */
static inline const dsi_merge *dsi_merges_find(const dsi_merges *merges, uint32_t left,
                                               uint32_t right)
{
    uint32_t i = dsi_pair_hash(left, right) & merges->slot_mask;
    for (;;) {
        const dsi_merge *slot = &merges->slots[i];
        if (slot->left == left && slot->right == right) {
            return slot;
        }
        if (slot->left == DSI_NO_ID) {
            return NULL;
        }
        i = (i + 1) & merges->slot_mask;
    }
}

/* ---- components ---- */

typedef struct dsi_regex dsi_regex; /* tokenizer_regex.c: PCRE2 with the package's meaning */

typedef enum dsi_norm_kind {
    DSI_NORM_NFC,
    DSI_NORM_NFD,
    DSI_NORM_NFKC,
    DSI_NORM_NFKD,
    DSI_NORM_REPLACE,       /* a string by a string */
    DSI_NORM_REPLACE_REGEX, /* a pattern by a string */
    DSI_NORM_PREPEND,
    DSI_NORM_STRIP,
    DSI_NORM_CLEAN, /* BertNormalizer's steps (tokenizer_bert.c), with NFD before MARKS */
    DSI_NORM_APART,
    DSI_NORM_MARKS,
    DSI_NORM_LOWER,   /* also Lowercase */
    DSI_NORM_CHARSMAP /* tokenizer_charsmap.c: pattern is the trie, content the texts */
} dsi_norm_kind;

typedef struct dsi_norm {
    dsi_norm_kind kind;
    const char *pattern, *content; /* in the tokenizer's arena */
    size_t n_pattern, n_content;
    dsi_regex *regex;
    bool strip_left, strip_right;
} dsi_norm;

typedef enum dsi_behavior {
    DSI_SPLIT_REMOVED,
    DSI_SPLIT_ISOLATED,
    DSI_SPLIT_PREVIOUS, /* a match joins the piece before it */
    DSI_SPLIT_NEXT,     /* a match joins the piece after it */
    DSI_SPLIT_CONTIGUOUS
} dsi_behavior;

/* Length of the first piece of [p,end), p < end: between 1 and end - p. */
typedef size_t (*dsi_scan_fn)(const unsigned char *p, const unsigned char *end);

typedef enum dsi_pretok_kind {
    DSI_PRETOK_SCAN,         /* a well-known pattern by a hand-written scanner */
    DSI_PRETOK_REGEX,        /* Split by a pattern */
    DSI_PRETOK_STRING,       /* Split by a string */
    DSI_PRETOK_CLASS,        /* a character of a class is a match: Digits, Punctuation … */
    DSI_PRETOK_WORDS,        /* Whitespace: runs of word characters and of the rest */
    DSI_PRETOK_PREFIX_SPACE, /* ByteLevel's add_prefix_space */
    DSI_PRETOK_METASPACE
} dsi_pretok_kind;

typedef enum dsi_prepend { DSI_PREPEND_NEVER, DSI_PREPEND_FIRST, DSI_PREPEND_ALWAYS } dsi_prepend;

typedef struct dsi_pretok {
    dsi_pretok_kind kind;
    dsi_behavior behavior;
    bool invert;
    dsi_scan_fn scan;
    dsi_regex *regex;
    const char *text; /* STRING: what to find; METASPACE: the replacement */
    size_t n_text;
    unsigned class_flags; /* CLASS: DSI_UC_* any of which matches */
    dsi_prepend prepend;
    bool split; /* METASPACE */
} dsi_pretok;

typedef struct dsi_added_token {
    const char *content; /* as the file has it */
    uint32_t n_content;
    const char *pattern; /* what is searched: content, normalized where the file says so */
    uint32_t n_pattern;
    uint32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
    const char *shown; /* its text in decoding: normalized where it ever was to be */
    uint32_t n_shown;
    bool ever_normalized;
    bool ever_special; /* it was special at some time: the package remembers the text */
    bool skipped;      /* left out in decoding without special tokens */
} dsi_added_token;

/* A byte trie over patterns (tokenizer_added.c). */
typedef struct dsi_trie_node {
    uint32_t child, sibling; /* node indices, 0 for none */
    uint32_t token;          /* index into added, DSI_NO_ID when no pattern ends here */
    unsigned char byte;
} dsi_trie_node;

typedef struct dsi_trie {
    dsi_trie_node *nodes; /* [n]; node 0 is the root; NULL when there is no pattern */
    uint32_t n;
    uint32_t first[256]; /* child of the root for a byte, 0 for none */
} dsi_trie;

typedef enum dsi_decode_kind {
    DSI_DECODE_REPLACE, /* pattern by content in each token */
    DSI_DECODE_BYTE_FALLBACK,
    DSI_DECODE_FUSE,
    DSI_DECODE_STRIP,
    DSI_DECODE_METASPACE,
    DSI_DECODE_WORDPIECE /* pattern: the prefix of pieces that continue a word */
} dsi_decode_kind;

typedef struct dsi_decode_step {
    dsi_decode_kind kind;
    const char *pattern, *content;
    size_t n_pattern, n_content;
    uint32_t start; /* STRIP: at most so many from the left */
    bool drop_first;
    bool cleanup; /* WORDPIECE: no space before punctuation and the like */
} dsi_decode_step;

typedef struct dsi_template_piece {
    bool sequence; /* a text; otherwise ids */
    bool second;   /* of a pair: the second text */
    uint8_t type;  /* of its tokens, of a pair */
    const uint32_t *ids;
    uint32_t n_ids;
} dsi_template_piece;

/* Where texts may be cut (tokenizer_cut.c). */
typedef struct dsi_cuts {
    unsigned kinds;               /* of places where a text may be cut when no merge joins there */
    unsigned ended;               /* of these: a word ends there in any case */
    unsigned slow;                /* DSI_UC_*: characters that a normalizer may change */
    bool ascii_only;              /* it may change all beyond ASCII */
    const char *space;            /* the character that a space becomes, in the arena or static */
    size_t n_space;               /* its bytes */
    uint8_t starts[32], ends[32]; /* bit a byte: no cut before, after it */
} dsi_cuts;

/* A chat template of a tokenizer's files. */
typedef struct dsi_template_text {
    const char *name, *text;
} dsi_template_text;

struct ds_tokenizer {
    ds_ctx *ctx;
    dsi_arena *arena; /* strings and small arrays of the components */
    bool bytes;       /* the 256 ids of bytes; nothing below but the special ids is used */

    dsi_vocab vocab;
    dsi_merges merges;
    uint32_t *raw_offset; /* [n_ids] decoded spelling (bytes) in raw_text */
    uint32_t *raw_size;
    char *raw_text;
    bool byte_level;
    bool word_piece; /* words by longest pieces, not by merges; the next four are its own */
    const char *piece_prefix; /* in the arena: of pieces that continue a word */
    size_t n_piece_prefix;
    size_t max_word_chars; /* a longer word is unknown */
    size_t longest_piece;  /* bytes of the longest spelling */
    double *scores;        /* [n_ids] of malloc; not NULL: words by scores (tokenizer_unigram.c) */
    double lowest_score;   /* of all, as the next, when the vocabulary is whole */
    dsi_trie pieces;       /* all spellings; a node's token is an id */
    bool byte_fallback, fuse_unk, ignore_merges;
    uint32_t unk_id;        /* DSI_NO_ID: none */
    uint32_t byte_ids[256]; /* byte_level: of the byte's letter; else of "<0xXX>" */
    bool all_bytes;         /* no DSI_NO_ID in byte_ids */
    bool cut;               /* words may be cut where no merge joins: `joins` is valid */
    dsi_cuts cuts;          /* of whole texts */
    unsigned char *joins;   /* [256*256/8] bit left*256+right: some merge joins across it */

    dsi_norm norms[DSI_TOK_MAX_STEPS];
    uint32_t n_norms;
    dsi_pretok pretoks[DSI_TOK_MAX_STEPS];
    uint32_t n_pretoks;
    dsi_added_token *added; /* of malloc, as added_slots */
    uint32_t n_added, added_room;
    uint32_t *added_slots; /* [added_mask + 1] index into added by the hash of the content */
    uint32_t added_mask;
    uint32_t next_added;   /* id of the next token that is new, while reading */
    bool split_special;    /* special tokens in a text are text, whatever the caller says */
    uint32_t *added_of_id; /* [n_ids] index into added, DSI_NO_ID: not an added token */
    dsi_trie trie_raw, trie_normalized;
    dsi_decode_step decoders[DSI_TOK_MAX_STEPS];
    uint32_t n_decoders;
    bool decode_bytes;    /* ByteLevel's decoder (or "bytes"): a token is its raw bytes */
    bool join_with_space; /* no decoder at all: tokens are joined by a space */
    bool tidy;            /* no spaces before punctuation in the whole text; given at its end */
    bool falls_back;      /* one of the steps is BYTE_FALLBACK */
    dsi_template_piece template_pieces[DSI_TOK_MAX_TEMPLATE];
    uint32_t n_template; /* 0: only the text */
    dsi_template_piece pair_pieces[DSI_TOK_MAX_TEMPLATE];
    uint32_t n_pair; /* 0: one text behind the other, of types 0 and 1 */

    uint32_t n_ids; /* vocabulary and added tokens */
    int64_t bos, pad, unk, mask;
    uint32_t eos[DSI_TOK_MAX_EOS];
    uint32_t n_eos;
    char *bos_text, *eos_text;         /* in the arena; NULL when unknown */
    dsi_template_text *chat_templates; /* in the arena; "default" and others by name */
    size_t n_chat_templates;
    const char *files[8]; /* paths of the files read, in the arena */
    uint32_t n_files;
    const char *folder; /* where the files lie, in the arena; NULL for "bytes" */
};

/* ---- encoding ---- */

/* A piece of text on its way to ids, with where its bytes come from. */
typedef struct dsi_view {
    const unsigned char *text;
    size_t n;
    size_t base;               /* position of text[0] in the input, when map is NULL */
    const ds_token_range *map; /* [n] range in the input for each byte, NULL: base + i */
} dsi_view;

/* A text that a stage makes anew. */
typedef struct dsi_made {
    unsigned char *text;
    ds_token_range *map;
    size_t n, capacity, map_capacity;
} dsi_made;

enum {
    DSI_MADE_A_BYTE = 256,   /* bytes that all stages together make of a byte of text, at most */
    DSI_MADE_BYTES = 1 << 20 /* and of any text */
};

enum { DSI_WORD_KEY = 24, DSI_WORD_IDS = 8, DSI_WORD_SLOTS = 1 << 15 };

/* A remembered word: one cache line. */
typedef struct dsi_word {
    uint32_t ids[DSI_WORD_IDS];
    unsigned char key[DSI_WORD_KEY];
    uint8_t n_key, n_ids; /* n_key 0: free */
    uint8_t unused[6];
} dsi_word;

typedef struct dsi_symbol {
    uint32_t id;
    uint32_t size; /* bytes of the word it stands for */
    int32_t prev, next;
} dsi_symbol;

/* The best way to an end within a word (Unigram). */
typedef struct dsi_reached {
    double score;
    int32_t from; /* where its last piece begins; -1: none leads here yet */
    uint32_t id;
} dsi_reached;

typedef struct dsi_candidate {
    uint32_t rank;
    int32_t at; /* left symbol */
    uint32_t left, right;
} dsi_candidate;

struct ds_tokenizer_scratch {
    const ds_tokenizer *tok;
    size_t max_tokens;
    uint32_t *ids;
    ds_token_range *ranges;
    size_t n, capacity, ranges_capacity;
    bool want_ranges;
    bool continues;   /* the text is the next part of one that was cut */
    ds_status failed; /* sticky within a call */
    dsi_word *words;  /* [DSI_WORD_SLOTS] */
    dsi_symbol *symbols;
    size_t n_symbols, symbols_capacity;
    dsi_reached *ends; /* of a word's bytes */
    size_t ends_capacity;
    dsi_candidate *heap;
    size_t n_heap, heap_capacity;
    dsi_made made_norm[2];                 /* normalizers, in turn */
    dsi_made made_step[DSI_TOK_MAX_STEPS]; /* pre-tokenizer steps that change text */
    dsi_made spelled; /* a word in the byte-level alphabet; a text for a normalizer's pattern */
    int32_t *points;  /* code points of a run being normalized */
    size_t points_capacity;
    void *match;          /* pcre2_match_data */
    size_t match_account; /* what matching may still cost in this text (tokenizer_match.c) */
    size_t made_account;  /* bytes that stages may still make of this text */
    uint32_t *pair;       /* the ids of two texts, before the template (tokenizer_pair.c) */
    size_t pair_capacity;
    uint8_t *types; /* of a pair's ids */
    size_t types_capacity;
};

/* Grows an array of `size`-byte elements to hold `need`; false records ERR_NOMEM in the scratch. */
bool dsi_tok_grow(ds_tokenizer_scratch *s, void **data, size_t *capacity, size_t need, size_t size);
/* Sets what a text of n bytes may cost; before each text. */
void dsi_tok_open_accounts(ds_tokenizer_scratch *s, size_t n);
/* Makes room in a made text for `need` bytes (and their map, with map). */
bool dsi_made_reserve(ds_tokenizer_scratch *s, dsi_made *made, size_t need, bool map);
/* Appends bytes that stand for `range` of the input (given only with a map). */
bool dsi_made_append(ds_tokenizer_scratch *s, dsi_made *made, const void *text, size_t n,
                     ds_token_range range);
/* Appends view[at, at+n) unchanged. */
bool dsi_made_copy(ds_tokenizer_scratch *s, dsi_made *made, dsi_view view, size_t at, size_t n);

/* Part [at, at+n) of a view, and the input range of it. */
static inline dsi_view dsi_view_part(dsi_view view, size_t at, size_t n)
{
    return (dsi_view){view.text + at, n, view.base + at, view.map != NULL ? view.map + at : NULL};
}

static inline ds_token_range dsi_view_range(dsi_view view)
{
    if (view.map == NULL || view.n == 0) {
        return (ds_token_range){view.base, view.base + view.n};
    }
    return (ds_token_range){view.map[0].begin, view.map[view.n - 1].end};
}

void dsi_tok_emit(ds_tokenizer_scratch *s, uint32_t id, ds_token_range range);
/* Appends the ids of a text without what stands around it. flags: of ds_tokenizer_encode. */
void dsi_tok_append(ds_tokenizer_scratch *s, const char *text, size_t n, uint32_t flags);

/* Notes in joins which neighbours a merge product has inside. */
void dsi_joins_add(unsigned char *joins, const unsigned char *text, size_t n);
/* Whether some merge joins across the end of one character and the start of another. */
bool dsi_joins(const unsigned char *joins, const unsigned char *left, size_t n_left,
               const unsigned char *right, size_t n_right);

/* ---- parts of a text (tokenizer_cut.c) ---- */

/* Further flags of ds_tokenizer_encode: the text is a part of one that was cut at a place that
 * dsi_tok_next_cut gave. The ids of all parts in order are those of the whole. */
enum {
    DSI_ENCODE_CONTINUES = 1 << 16, /* not the first part */
    DSI_ENCODE_GOES_ON = 1 << 17    /* not the last part */
};

/* Finds which places are safe; once, when everything else is read. */
void dsi_cuts_find(ds_tokenizer *tok);
/* Whether texts have places to cut at all with this tokenizer. */
bool dsi_tok_can_cut(const ds_tokenizer *tok);
/* The first place at or after `from`, and after the start, where the text may be cut; n: none. */
size_t dsi_tok_next_cut(const ds_tokenizer *tok, const char *text, size_t n, size_t from);
/* Takes the ids of the last encode out of the scratch, in exchange for an array of malloc (or NULL)
 * with room for *room ids, which the next encode uses. Returns the array of ids, now the caller's
 * to free, with room for at least n + 1 of them; NULL: no memory, nothing exchanged. */
uint32_t *dsi_tok_take_ids(ds_tokenizer_scratch *s, uint32_t *array, size_t *room);

/* One word (not empty) to ids (tokenizer_bpe.c). */
void dsi_bpe_word(ds_tokenizer_scratch *s, dsi_view word);

/* Adds a symbol of the word that is being encoded. */
void dsi_bpe_add_symbol(ds_tokenizer_scratch *s, uint32_t id, uint32_t size);
/* The symbols of a word by WordPiece (tokenizer_bert.c). */
void dsi_wordpiece_symbols(ds_tokenizer_scratch *s, dsi_view word);
/* Likewise by Unigram (tokenizer_unigram.c). */
void dsi_unigram_symbols(ds_tokenizer_scratch *s, dsi_view word);
/* The normalizer Precompiled (tokenizer_charsmap.c); false as below. */
bool dsi_charsmap_norm(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made,
                       dsi_view view);
/* One of BertNormalizer's steps; false: no memory, or too much of it, recorded. */
bool dsi_bert_norm(ds_tokenizer_scratch *s, dsi_norm_kind kind, dsi_made *made, dsi_view view);

/* Runs the normalizers; the result is view itself or lies in made_norm. */
dsi_view dsi_tok_normalize(ds_tokenizer_scratch *s, dsi_view view);

/* Runs pre-tokenizer steps from `step` on, then dsi_bpe_word on each word. */
void dsi_tok_pretokenize(ds_tokenizer_scratch *s, uint32_t step, dsi_view view);

/* The scanner for a pattern by its exact text, NULL when it is not a well-known one. */
dsi_scan_fn dsi_scan_for(const char *pattern, size_t n);
/* The scanner of ByteLevel's own pattern (GPT-2's). */
size_t dsi_scan_gpt2(const unsigned char *p, const unsigned char *end);

ds_status dsi_regex_compile(ds_ctx *ctx, const char *path, const char *pattern, size_t n,
                            dsi_regex **regex_out);
void dsi_regex_free(dsi_regex **regex);
/* Whether the pattern may match without taking in a character. */
bool dsi_regex_matches_nothing(const dsi_regex *regex);
/* Frees ds_tokenizer_scratch.match. Accepts NULL. */
void dsi_matcher_free(void *match);
/* The text for PCRE2, which wants UTF-8: view's own, or in room a copy in which bytes that are not
 * are U+0001, one for one. NULL: no memory, recorded. */
const unsigned char *dsi_regex_text(ds_tokenizer_scratch *s, dsi_made *room, dsi_view view);
/* Finds the first match at or after `from` in view, whose bytes for PCRE2 are text: 1 found, 0
 * none, negative an error (recorded). */
int dsi_regex_find(ds_tokenizer_scratch *s, const dsi_regex *regex, const unsigned char *text,
                   dsi_view view, size_t from, size_t *begin_out, size_t *end_out);
/* What matching may cost in a text of n bytes. */
size_t dsi_regex_account(size_t n);

/* ---- added tokens and bytes ---- */

/* Where a match of added tokens lies; token DSI_NO_ID: no (further) match. */
typedef struct dsi_added_match {
    uint32_t token;
    size_t begin, end; /* with the white space that it takes in */
    size_t next;       /* where to search on */
} dsi_added_match;
/* The node below `node` for a byte, 0: none. Inserting needs room for n nodes; false: the pattern
 * was there already. */
uint32_t dsi_trie_child(const dsi_trie *trie, uint32_t node, unsigned char byte);
bool dsi_trie_insert(dsi_trie *trie, const char *pattern, size_t n, uint32_t token);
/* First match in text[from, n) that counts; `floor`: where the last one ended. */
dsi_added_match dsi_added_find(const ds_tokenizer *tok, const dsi_trie *trie,
                               const unsigned char *text, size_t n, size_t from, size_t floor,
                               bool no_special);

/* The byte of "<0xXX>", -1 for another text. */
int dsi_byte_of_piece(const char *text, size_t n);
/* The letter of a byte. */
uint32_t dsi_letter_of_byte(unsigned byte);

#endif
